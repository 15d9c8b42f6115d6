"""Figures 3 to 9 of the VFLRecon paper, drawn from the rows of the tables; nothing here computes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak.study.parties import ATTACK_LABELS, draw_correlations, draw_strips
from jaxleak.study.plots import grouped_bars, legend_below, save_figure, subplots

#: Captions of the figures, by patterns of their names.
CAPTIONS = {
    "fig4.png": "The victim's part of the private images above what the attack made of the cut gradients. Every pixel "
    "is scaled to its own range.",
    "fig6.png": "Correlations of ten features with each other, private and reconstructed. Constant features have none.",
    "*": "VFLRecon beside other attacks, models that see only the attacker's own features, and the paper's numbers. Of "
    "two seeds or more, a bar or point is the mean, and the error bar is their standard deviation to either side.",
}

#: Figures that show arrays instead of the numbers of rows.
PICTURED = ("fig4", "fig6")
#: Attacks and baselines whose scores are shown beside ours.
BESIDE = tuple(name for name in ATTACK_LABELS if name != "shared")
#: Labels of the curves and bars.
LABELS = {"ours": "VFLRecon from the first --shadow-init", **ATTACK_LABELS, "paper": "VFLRecon as the paper prints it"}
#: Label of the axis for a score, and title of its figure.
_SCORES = {
    "label_accuracy": ("right labels in % (higher leaks more)", "How many labels each attack finds"),
    "feature_mse": ("mean squared error (lower leaks more)", "How far recovered features are from the true ones"),
}
_AXES = {
    "fig7": "share of the features that the adversary holds",
    "fig8": "samples in a batch",
    "fig9": "records of the shadow run",
}


def draw(folder: Path, table: str, rows: list[dict[str, Any]], arrays: Mapping[str, np.ndarray] | None) -> None:
    """Draw a table's figures from the cells that ran into `folder`.

    Args:
        folder: folder of the PNG files.
        table: "fig3" to "fig9"; other tables have no figure.
        rows: rows of the table's cells, from `run_cells`.
        arrays: `victims` (features of the victims) and `estimate`, for figures 4 and 6; else None.
    """
    ran = [row for row in rows if row["ours"] is not None]
    if table in ("fig3", "fig5") and ran:
        _bars(folder / f"{table}.png", ran, *_SCORES["label_accuracy" if table == "fig3" else "feature_mse"])
    elif table == "fig4" and arrays:
        draw_strips(folder / "fig4.png", arrays["victims"], arrays["estimate"])
    elif table == "fig6" and arrays:
        draw_correlations(folder / "fig6.png", arrays["victims"], arrays["estimate"])
    elif table in _AXES:
        for metric, texts in _SCORES.items():
            chosen = [row for row in ran if f"/{metric}/" in row["id"]]
            if chosen:
                _lines(folder / f"{table}_{metric}.png", chosen, _AXES[table], *texts)


def _lines(path: Path, rows: list[dict[str, Any]], xlabel: str, ylabel: str, title: str) -> None:
    figure, axes = subplots(size=(6.5, 4.5))
    x = np.array([float(row["id"].split("/")[-1]) for row in rows])
    for name in ("ours", *BESIDE, "paper"):
        y, spread = _over_seeds(rows, name)
        if np.isnan(y).all():
            continue
        look = {"paper": "k*", "ours": "o-"}.get(name, "x--" if name.startswith("baseline") else ".-")
        axes.errorbar(x, y, spread, fmt=look, capsize=3, label=LABELS[name])
    if max(x) / min(x) > 20:
        axes.set_xscale("log", base=2)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    legend_below(figure, axes)
    save_figure(figure, path)


def _bars(path: Path, rows: list[dict[str, Any]], ylabel: str, title: str) -> None:
    names = [name for name in ("paper", "ours", *BESIDE) if any(row.get(name) is not None for row in rows)]
    bars, spreads = ({LABELS[name]: _over_seeds(rows, name)[which] for name in names} for which in (0, 1))
    groups = [row["id"].split("/", 1)[1] for row in rows]
    grouped_bars(path, bars, groups, ylabel=ylabel, title=title, spreads=spreads)


def _over_seeds(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    deviation = "spread" if name == "ours" else f"{name}_spread"
    kept = [(row.get(name), row.get(deviation) if len(row["seeds"]) > 1 else None) for row in rows]
    return np.array(kept, float).T  # (2, rows) means and deviations; None becomes NaN
