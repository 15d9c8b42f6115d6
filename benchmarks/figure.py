"""Draw docs/figures/speed.png from the stored JSON: steps that were timed beside PyTorch's. `make bench` does it, too.

python -m benchmarks.figure
"""

import json
from pathlib import Path

import numpy as np

from benchmarks.report import EAGER, FOLDER, RESULTS, seconds_of
from jaxleak.study.plots import save_figure, subplots

FIGURE = FOLDER.parent / "docs" / "figures" / "speed.png"

#: Steps that were timed in PyTorch as well: the first words of the group, and the label in the figure.
STEPS = {
    "CAFE iteration, N = 800": "CAFE, 40 of 800 images",
    "Inverting Gradients, one step, ConvNet": "Inverting Gradients,\nConvNet, 8 images",
    "Inverting Gradients, one step, ResNet10": "Inverting Gradients,\nResNet10, 16 images",
    "Inverting Gradients, one step, ResNet18": "Inverting Gradients,\nResNet18, 16 images",
    "DLG, one step of 32 restarts": "DLG on LeNet,\n32 restarts at once",
}


def draw(results: dict, path: Path = FIGURE) -> None:
    """Draw a bar chart of PyTorch's best time over that of jaxleak's fastest form on CPU, with a bar for each step.

    Args:
        results: the content of results.json.
        path: PNG to write, with an SVG beside it.

    Raises:
        ValueError: if a step has no entry of PyTorch or none of jaxleak.
    """
    names, ratios = [], []
    on_cpu = [e for e in results["benchmarks"] if results["runs"][e["run"]]["device"].startswith("cpu")]
    for words, name in STEPS.items():
        entries = [e for e in on_cpu if e["group"].startswith(words)]
        theirs = [seconds_of(e) for e in entries if e["name"].startswith("PyTorch")]
        ours = [seconds_of(e) for e in entries if not e["name"].startswith("PyTorch") and e["name"] not in EAGER]
        if not theirs or not ours:
            raise ValueError(f"results.json has no pair of entries for the step {words!r}")
        names.append(name)
        ratios.append(min(theirs) / min(ours))
    figure, axes = subplots(size=(6.4, 3.2))
    places = np.arange(len(names))[::-1]
    bars = axes.barh(places, ratios, height=0.6)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color="black", linewidth=1, linestyle=":")
    axes.set_yticks(places, names)
    axes.set_xlim(0, 1.15 * max(ratios))
    axes.set_xlabel("PyTorch's best time over jaxleak's (above 1: jaxleak is faster)")
    axes.set_title("One step of an attack, two CPU cores")
    save_figure(figure, path)


if __name__ == "__main__":
    draw(json.loads(RESULTS.read_text()))
