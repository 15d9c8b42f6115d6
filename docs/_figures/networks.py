"""Figures about networks: which of them an update's gradient gives away, and which labels."""

from pathlib import Path
from typing import Any

import numpy as np

from docs._figures.lines import PSNR
from jaxleak.study import plots

#: Rules of label inference, and how the figure calls them.
RULES = {
    "calibrated": "calibrated (ours)",
    "bias_rule": "gradient of the last bias",
    "corrected_counts": "corrected counts",
    "fedleak": "the rule of the FedLeak paper",
    "random": "labels drawn at random",
}
#: Rows of the study of basins, by what a reader is told.
NETWORKS = {
    "convnet-b1": "ConvNet", "resnet10_16_eval-b1": "ResNet10 (width 16), evaluation mode",
    "resnet10_16-b4": "ResNet10 (width 16), four images", "resnet10_16-b1": "ResNet10 (width 16)",
    "resnet10-b1": "ResNet10 (full width)", "resnet18_16-b1": "ResNet18 (width 16)",
    "resnet18_16-b4": "ResNet18 (width 16), four images", "resnet18-b1": "ResNet18 (full width)",
    "resnet34-b1": "ResNet34 (full width)", "mobilenet_v2-b1": "MobileNetV2",
}  # fmt: skip


def deep(stored: dict[str, Any], path: Path) -> None:
    """What row spaces find of one image behind ResNet34, beside a grey image."""
    shown = {
        "a grey image, which shows nothing": "psnr_grey",
        "what the attack finds": "psnr",
        "the same, up to one factor of brightness": "psnr_up_to_scale",
    }
    cells = stored["cells"]
    bars = {label: [cell[name] for cell in cells] for label, name in shown.items()}
    groups = [f"seed {cell['seed']}\nSSIM {cell['ssim']:.2f}" for cell in cells]
    title = "One private image behind ResNet34, read by row spaces"
    plots.grouped_bars(path, bars, groups, ylabel=PSNR, title=title)


def labels(stored: dict[str, Any], path: Path) -> None:
    """Which share of the labels every rule finds, by the number of samples behind the update."""
    found = stored["metrics"]["label_rules"]
    figure, panels = plots.subplots(1, len(found), size=(10, 3.4))
    for axes, (data, batches) in zip(panels, found.items(), strict=True):
        sizes = [int(batch.removeprefix("b")) for batch in batches]
        for number, (rule, label) in enumerate(RULES.items()):
            # What is drawn first is broad, so that it shows around equal lines which are drawn above it.
            look = {"linewidth": 4.2 - 0.7 * number, "markersize": 9 - 1.3 * number}
            axes.plot(sizes, [batch[rule]["mean"] for batch in batches.values()], "o-", label=label, **look)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, sizes)
        axes.set_ylim(-4, 106)
        axes.set_title(data.replace("cifar", "CIFAR-").replace(", 1000 classes drawn", ", labels of 1,000 classes"))
        axes.set_xlabel("samples behind the update")
    panels[0].set_ylabel("labels found, % (higher leaks more)")
    figure.suptitle("Which share of a batch's labels every rule finds", fontsize=11)
    plots.legend_below(figure, panels[0])
    plots.save_figure(figure, path)


def vit(*stored: dict[str, Any], path: Path) -> None:
    """What the closed form finds behind ViT tiny, by the noise on the gradient; runs in the order of the noise."""
    figure, axes = plots.subplots(size=(7, 4))
    places = np.arange(len(stored))
    of_seed = zip(*(run["cells"] for run in stored), strict=True)
    for cells in of_seed:
        axes.plot(places, [cell["psnr"] for cell in cells], color="C5", linewidth=1)
    for answered, look, label in (
        (1, {"marker": "o", "color": "C0"}, "the attack gives an answer"),
        (0, {"marker": "X", "color": "C1"}, "the attack itself flags its answer"),
    ):
        shown = [(x, c["psnr"]) for x, run in enumerate(stored) for c in run["cells"] if c["answered"] == answered]
        axes.plot(*zip(*shown, strict=True), linestyle="", label=label, **look)  # type: ignore[arg-type]
    grey = float(np.mean([cell["psnr_grey"] for cell in stored[0]["cells"]]))
    axes.axhline(grey, color="black", linewidth=1, linestyle=":", label="a grey image, which shows nothing")
    strengths = [run["config"]["strength"] for run in stored]
    axes.set_xticks(places, [f"{strength:.0e}".replace("e-0", "e-") if strength else "none" for strength in strengths])
    axes.set_xlim(-0.3, places[-1] + 0.3)
    axes.set_ylim(0, 100)
    axes.set_xlabel("standard deviation of the noise on the gradient (a line for each seed)")
    axes.set_ylabel(PSNR)
    axes.set_title("One image behind ViT tiny is read, until noise of 1e-5 stops it on 3 of 4 seeds")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def brightness(deep_network: dict[str, Any], *trained: dict[str, Any], path: Path) -> None:
    """What one factor of brightness costs, one row for every answer that has the update's gradient."""
    runs = [("ResNet34", cell["seed"], cell) for cell in deep_network["cells"]]
    for run in trained:
        seed = run["config"]["seeds"][0]
        runs += [("ResNet10, trained", seed, cell | {"psnr": cell["ours"]}) for cell in run["cells"]]
    matched = [run for run in runs if run[2]["gradient_matched"] == 1]
    matched.sort(key=lambda run: run[2]["psnr"] - run[2]["psnr_up_to_scale"])
    places = -np.arange(len(matched))
    plain, scaled = (np.array([cell[name] for *_, cell in matched]) for name in ("psnr", "psnr_up_to_scale"))
    figure, axes = plots.subplots(size=(7, 1.4 + 0.3 * len(matched)))
    axes.hlines(places, plain, scaled, color="grey", linewidth=1)
    axes.plot(plain, places, "o", label="PSNR as it is")
    axes.plot(scaled, places, "s", label="PSNR after the best factor of brightness")
    axes.set_yticks(places, [f"{network}, seed {seed}: SSIM {cell['ssim']:.2f}" for network, seed, cell in matched])
    axes.set_ylim(places[-1] - 0.7, 0.7)
    axes.set_xlim(0, 50)
    axes.set_xlabel("PSNR in dB (further right leaks more)")
    axes.set_title(f"One hidden factor of brightness costs up to {max(scaled - plain):.0f} dB")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def basin(*stored: dict[str, Any], path: Path) -> None:
    """By how much the gradient of a noisy image is nearer than that of another image, one row for each network."""
    cells = sorted((cell for run in stored for cell in run["cells"]), key=lambda cell: -cell["reach"]["30 dB"])
    places = -np.arange(len(cells))
    figure, axes = plots.subplots(size=(7, 1.4 + 0.3 * len(cells)))
    for marker, noise in zip("o^s", ("40 dB", "30 dB", "20 dB"), strict=True):
        reach, error = ([cell[name][noise] for cell in cells] for name in ("reach", "standard_error"))
        axes.errorbar(reach, places, xerr=error, fmt=marker, elinewidth=1, label=f"an image at {noise}")
    axes.set_yticks(places, [NETWORKS[cell["id"]] for cell in cells])
    axes.set_ylim(places[-1] - 0.7, 0.7)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(
        "reach (1: as near as the truth, 0: as far as another image)\nfurther right: descent has more to follow"
    )
    axes.set_title("The deeper the network, the nearer an image must be")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)
