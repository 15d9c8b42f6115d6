"""Figures about audits: two starts that agree, mistakes in the inputs, and audits of plain networks."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from docs._figures.lines import shares
from experiments import agreement as study
from jaxleak.study import plots

#: What becomes of a mistake, from the best on: its name in the results, what a reader is told, and its colour.
OUTCOMES = {
    "failed": ("the verdict is 'inputs inconsistent'", "C0"),
    "suspicious_leaks": ("a check calls the inputs suspicious, and the update leaks", "C5"),
    "suspicious_not_shown": ("a check calls them suspicious, 'not shown to leak'", "C3"),
    "leaks": ("no check sees it, and the update leaks all the same", "C2"),
    "warned": ("'not shown to leak', with a warning", "C4"),
    "silent": ("'not shown to leak', in silence: a wrong answer", "C1"),
}

#: Parts of the names of audited networks, and what a reader is told of them; the network itself comes first.
NAMES = {
    "two-pools-cnn": "CNN with two poolings", "norm-cnn": "CNN with batch norm", "cnn": "CNN", "convnet": "ConvNet",
    "resnet18": "ResNet18", "vit": "ViT", "nnx": "in Flax NNX", "equinox": "in Equinox", "trained": "trained",
    "eval": "evaluation mode", "train": "training mode", "b1": "one image", "b4": "four images",
    "steps4": "four local steps of", "steps8": "eight local steps of",
}  # fmt: skip


def agreement(stored: dict[str, Any], path: Path) -> None:
    """How far two starts agree, against how right the answer is."""
    cells = stored["cells"]
    sizes = [len(cell["agreement"]) for cell in cells]

    def of_image(values: list[Any]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(value, size) for value, size in zip(values, sizes, strict=True)])

    images = study.Images(
        *(of_image([np.array(cell[name], float) for cell in cells]) for name in ("agreement", "tinted", "ssim")),
        matched=of_image([cell["gradient_matched"] == 1 for cell in cells]),
        # The figure is of the two starts alone, and the stored run is older than the search for other images.
        determined=of_image([True for _ in cells]),
        defended=of_image([study.CASES[cell["case"]].defense is not None for cell in cells]),
        seed=of_image([cell["seed"] for cell in cells]),
    )
    study.draw(path, images, stored["metrics"]["threshold"])


def mistakes(stored: dict[str, Any], path: Path) -> None:
    """What becomes of every kind of mistake in the inputs of an audit, one bar each."""
    kinds = stored["metrics"]["by_mistake"]
    figure, axes = plots.subplots(size=(8, 4.6))
    names = [name.replace("_", " ").replace("001", "of 0.01") for name in kinds]
    rows = {f"{name} ({of['made']})": of for name, of in zip(names, kinds.values(), strict=True)}
    totals = {name: sum(of[name] for of in kinds.values()) for name in OUTCOMES}
    shares(axes, rows, {name: (f"{label}: {totals[name]}", colour) for name, (label, colour) in OUTCOMES.items()})
    axes.set_xlabel("% of the mistakes of a kind (in brackets: their number)")
    axes.set_title(f"What becomes of {stored['metrics']['made']} mistakes in the inputs of an audit")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def spoken(case: str) -> str:
    """What a reader is told of an audited network, from the name of its case, such as `norm-cnn-trained-eval-b4`."""
    network = next(name for name in NAMES if case.startswith(f"{name}-"))
    return ", ".join(NAMES[part] for part in (network, *case.removeprefix(f"{network}-").split("-")))


def against_breaching(stored: dict[str, Any], path: Path) -> None:
    """PSNR of an audit and of breaching on the same update, one row for each case."""
    cases = sorted(stored["metrics"]["by_case"].items(), key=lambda case: case[1]["jaxleak_psnr"])
    figure, axes = plots.subplots(size=(11, 1.2 + 0.22 * len(cases)))
    places = np.arange(len(cases))
    ours, theirs, grey = (
        np.array([case[score] for _, case in cases]) for score in ("jaxleak_psnr", "breaching_psnr", "grey_psnr")
    )
    axes.hlines(places, ours, theirs, color="0.8", zorder=1)
    axes.scatter(ours, places, color="C0", zorder=3, label="jaxleak audit")
    axes.scatter(theirs, places, color="C1", marker="s", zorder=3, label="breaching, Inverting Gradients")
    axes.scatter(grey, places, color="0.4", marker="|", zorder=2, label="a grey image")
    axes.set_yticks(places, [spoken(name) for name, _ in cases])
    axes.set_xlabel("PSNR in dB, mean over the images of a batch (higher leaks more)")
    axes.set_title("The same updates of PyTorch networks, as long each")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def audited(stored: dict[str, Any], path: Path) -> None:
    """How close the audit's images come to the private ones, one bar for each case."""
    cases = sorted(stored["metrics"]["by_case"].items(), key=lambda case: -case[1]["psnr"])
    figure, axes = plots.subplots(size=(11, 1.2 + 0.22 * len(cases)))
    # One reason of a verdict begins with how many images are certified; other reasons may name certificates, too.
    certified = [
        any(re.match(r"(The image is|\d+ of \d+ images (is|are)) certified", said) for said in case["reasons"])
        for _, case in cases
    ]
    for some, label, colour in (
        (True, "images certified without the truth", "C0"),
        (False, "no image certified", "C1"),
    ):
        chosen = [i for i, is_certified in enumerate(certified) if is_certified is some]
        bars = axes.barh([-i for i in chosen], [cases[i][1]["psnr"] for i in chosen], 0.7, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks([-i for i in range(len(cases))], [spoken(name) for name, _ in cases])
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.1 * cases[0][1]["psnr"])
    axes.set_xlabel("PSNR in dB, mean over the images of a batch (higher leaks more)")
    axes.set_title("Plain PyTorch, Flax and Equinox networks, each through jaxleak audit")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)
