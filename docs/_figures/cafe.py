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
        axes.barh(places[0], solved.value, 0.4, color="C2", label="CAFE's equations solved (ours), 800 images")
        axes.barh(
            places[1:] + 0.2, [e.paper for e in found], 0.4, color="C5", label="the paper: 8,000 iterations, 800 images"
        )
        axes.barh(places[1:] - 0.2, [e.value for e in found], 0.4, color="C0", label="here: 200 iterations, 80 images")
        for bars, decimals in zip(axes.containers, ("%.1f", "%g", "%.1f"), strict=True):
            axes.bar_label(bars, fmt=decimals, padding=3, fontsize=7)
        axes.set_yticks(places, ["equations solved", *DESCENTS.values()] if axes is panels[0] else [])
        axes.set_ylim(places[-1] - 0.6, 0.6)
        axes.set_xlim(0, 150)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("PSNR in dB (further right leaks more)")
        axes.set_title(name)
    figure.suptitle("In this short descent no attack has found an image; the equations hold them all", fontsize=11)
    plots.legend_below(figure, panels[0])
    plots.save_figure(figure, path)


def cafe_printed(*stored: dict[str, Any], path: Path) -> None:
    """PSNR along the 8,000 iterations of Step III that the paper prints, and where the paper's descent ends."""
    figure, axes = plots.subplots(size=(7, 3.4))
    for color, run in enumerate(stored):
        iterations, psnr = zip(*run["curve"], strict=True)
        name = DATA[run["job"]["dataset"]]
        axes.plot(iterations, psnr, f"C{color}", label=f"{name}, here")
        axes.axhline(run["paper"], color=f"C{color}", linestyle=":", label=f"{name}, where the paper's ends")
    axes.set_xlim(0, 8000)
    axes.set_ylim(0, 50)
    axes.set_xlabel("iterations of Step III")
    axes.set_ylabel("PSNR in dB")
    axes.set_title("The descent as printed levels off below the paper's numbers")
    plots.legend_below(figure, axes)
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
