"""Figures about CAFE."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxleak.study import plots
from jaxleak.study.ledger import Entry

#: Cells of CAFE's tables that a descent fills, by their data, and what the figure calls the method.
DESCENTS = {
    "table4/full/{}": "CAFE",
    "table2/bn/{}": "BN regularizer",
    "table2/gc/{}": "GC regularizer",
    "table2/dlg/{}": "DLG",
    "table2/cosine/{}": "cosine + TV",
    "table2/sapag/{}": "SAPAG",
}

#: Names of data sets in the figures.
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

#: Cells of the study of fake gradients, and what the figure calls them.
SERVERS = {
    "true/cifar10": "no defense",
    "fake/cifar10#fake-capped": "fake gradients,\nthe server does not know",
    "fake/cifar10#fake-capped#adaptive": "fake gradients,\nthe server knows",
}


def cafe_descent(entries: dict[tuple[str, str, str], Entry], path: Path) -> None:
    """What CAFE's descent and its baselines recover, here and in the paper, beside its equations solved."""
    figure, panels = plots.subplots(1, 2, size=(8, 4))
    for axes, (data, name) in zip(panels, DATA.items(), strict=True):
        found = [entries[cell.format(data), "reduced", ""] for cell in DESCENTS]
        solved, places = entries[f"table2/cafe/{data}", "ours", ""], -np.arange(len(found) + 1)
        axes.barh(places[0], solved.value, 0.4, color="C2", label="CAFE's equations solved (ours), 8 of 800 images")
        axes.barh(places[1:] + 0.2, [e.paper for e in found], 0.4, color="C5", label="the paper, 800 images")
        axes.barh(places[1:] - 0.2, [e.value for e in found], 0.4, color="C0", label="here: 200 iterations, 80 images")
        for bars, decimals in zip(axes.containers, ("%.1f", "%g", "%.1f"), strict=True):
            axes.bar_label(bars, fmt=decimals, padding=3, fontsize=7)
        axes.set_yticks(places, ["equations solved", *DESCENTS.values()] if axes is panels[0] else [])
        axes.set_ylim(places[-1] - 0.6, 0.6)
        axes.set_xlim(0, 150)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("PSNR in dB (further right leaks more)")
        axes.set_title(name)
    figure.suptitle(
        "No attack finds an image in this short descent; the equations give all 8 that were solved", fontsize=11
    )
    plots.legend_below(figure, panels[0])
    plots.save_figure(figure, path)


#: How the figure draws a reading of the steps, by its name in `jaxleak.study.rounds.runs.STEPS`.
_STEPS = {"adam": ("-", "our Adam"), "authors": ("--", "the authors' Adam"), "stopped": ("-.", "Step II at its best")}


def cafe_printed(*stored: dict[str, Any], path: Path) -> None:
    """The loss along Step II and the PSNR along Step III, 8,000 iterations of each, and where the paper ends."""
    figure, (left, right) = plots.subplots(1, 2, size=(10, 3.8))
    datasets = list(dict.fromkeys(run["job"]["dataset"] for run in stored))
    for run in stored:
        steps = run["job"].get("steps", "adam")
        line, words = _STEPS[steps]
        name, color = run["job"]["dataset"], f"C{datasets.index(run['job']['dataset'])}"
        # Rounds of Step I come first, and Step II takes as many.
        length = run["f_history"][-1][0] / 2
        second = [(round_ - length, loss) for round_, _, loss in run["f_history"] if round_ > length]
        if steps != "stopped":  # whose Step II is that of our Adam
            left.plot(*zip(*second, strict=True), f"{color}{line}")
        right.plot(*zip(*run["curve"], strict=True), f"{color}{line}", label=f"{DATA[name]}, {words}")
    for name in datasets:
        paper = next(run["paper"] for run in stored if run["job"]["dataset"] == name)
        color = f"C{datasets.index(name)}"
        right.axhline(paper, color=color, linestyle=":", label=f"{DATA[name]}, where the paper's ends")
    left.set_yscale("log")
    left.set_xlabel("iterations of Step II")
    left.set_ylabel("loss F2, which the attacker knows")
    left.set_title("With our Adam, Step II passes its best point")
    right.set_ylim(0, 50)
    right.set_xlabel("iterations of Step III")
    right.set_ylabel("PSNR in dB")
    right.set_title("Step III levels off below the paper's numbers")
    plots.legend_below(figure, right)
    plots.save_figure(figure, path)


def fake_gradients(undefended: dict[str, Any], defended: dict[str, Any], path: Path) -> None:
    """What CAFE recovers behind fake gradients, if the server knows of them and if it does not."""
    found = {cell["id"]: cell for run in (undefended, defended) for cell in run["cells"] if cell["ours"] is not None}
    cells = [found[f"text-fake-gradients/{name}"] for name in SERVERS]
    figure, axes = plots.subplots(size=(7, 2.6))
    places = -np.arange(len(cells))
    ours, spread = ([cell[key] for cell in cells] for key in ("ours", "spread"))
    bars = axes.barh(places, ours, 0.6, xerr=spread, color=["C2", "C0", "C1"])
    axes.bar_label(bars, fmt="%.1f", padding=8)
    axes.set_yticks(places, SERVERS.values())
    axes.set_xlim(0, 130)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("PSNR in dB, mean and spread over the seeds (further right leaks more)")
    axes.set_title("Fake gradients stop only a server that knows nothing of them")
    plots.save_figure(figure, path)
