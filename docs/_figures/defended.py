"""Figures about defenses: what they leave to whom, and what they cost."""

from pathlib import Path
from typing import Any

import numpy as np

from docs._figures.lines import PSNR, grey_images, with_spread
from jaxleak.study import plots
from jaxleak.study.updates import RECOGNISED_ABOVE

#: How the page calls a defense at a strength.
DEFENSES = {
    None: "no defense",
    "soteria": "Soteria, ratio {:g}",
    "quantization": "quantization, bits per entry: {:g}",
    "encrypt_bottom": "smallest {:g} % of the entries encrypted",
    "encrypt_top": "largest {:g} % of the entries encrypted",
    "sparsification": "sparsification, {:g} % sent",
    "magnitude_noise": "noise in proportion to the entries, {:g}",
    "outpost": "OUTPOST, ratio {:g}",
    "gaussian": "Gaussian noise, {:g}",
    "dp_sgd": "DP-SGD at the shorthand epsilon {:,g}",
    "dp_soteria": "DP-SGD with Soteria, epsilon {:,g}",
    "error_feedback": "sparsification, {:g} % sent, the rest later",
    "guardian": "Guardian (rebuilt), beta {:g}: training diverged",
}

#: Names of the scores of every attacker, each with its mark and its name in the legend.
ATTACKERS = {
    "ssim": ("o", "an attacker who does not know the defense"),
    "ssim_adaptive": ("s", "an attacker who knows it"),
    "ssim_adaptive_weak": ("^", "an attacker who knows its noise, without a prior"),
}


def defenses(stored: dict[str, Any], path: Path) -> None:
    """What every defense leaves to attackers who know it and who do not, and what it costs in accuracy."""
    measured = (cell for cell in stored["cells"] if "accuracy" in cell)
    ran = sorted(measured, key=lambda cell: -max(cell.get(name, 0.0) for name in ATTACKERS))
    figure, (left, right) = plots.subplots(1, 2, size=(10, 1.2 + 0.25 * len(ran)))
    places = -np.arange(len(ran))
    scores = np.array([[cell.get(name, np.nan) for cell in ran] for name in ATTACKERS])
    left.hlines(places, np.nanmin(scores, axis=0), np.nanmax(scores, axis=0), color="grey", linewidth=1)
    for of_attacker, (mark, label) in zip(scores, ATTACKERS.values(), strict=True):
        left.plot(of_attacker, places, mark, label=label)
    left.axvline(
        RECOGNISED_ABOVE, color="black", linewidth=1, linestyle=":", label="above: a single image counts as recognised"
    )
    left.set_xlim(0, 1.02)
    left.set_yticks(places, [DEFENSES[cell["defense"]].format(cell["strength"]) for cell in ran])
    left.set_xlabel("mean SSIM (further left leaks less)")
    left.set_title("What leaks")
    right.barh(places, [100 * float(cell["accuracy"]) for cell in ran], 0.6, color="C5")
    right.axvline(100 * next(cell["accuracy"] for cell in ran if cell["defense"] is None), color="black", linewidth=1)
    right.set_yticks(places, [])
    for axes in (left, right):  # whose rows stand beside each other
        axes.set_ylim(places[-1] - 0.7, 0.7)
    right.set_xlim(0, 100)
    right.set_xlabel("test accuracy in % (the line: without a defense)")
    right.set_title("What it costs")
    figure.suptitle("What every defense leaves to attackers, and what it costs", fontsize=11)
    plots.legend_below(figure, left)
    plots.save_figure(figure, path)


def rounds(*stored: dict[str, Any], path: Path) -> None:
    """What an undefended upload leaks, by the round that is attacked; a run for each round."""
    runs = sorted(stored, key=lambda run: run["config"]["attacked_round"])
    cells = [cell | {"ours": cell["psnr"], "spread": cell["psnr_spread"]} for run in runs for cell in run["cells"][:1]]
    figure, axes = plots.subplots(size=(7, 4))
    with_spread(axes, range(len(cells)), cells, "o-", "mean and spread over the seeds")
    grey_images(axes, range(len(cells)), cells)
    axes.set_xticks(range(len(cells)), [cell["attacked_round"] for cell in cells])
    axes.set_ylim(0, None)
    axes.set_xlabel("rounds of training before the attacked upload")
    axes.set_ylabel(PSNR)
    axes.set_title("What an undefended upload leaks, by the round of training")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)
