"""Figures about FedLeak: what changes its answer, here and in the paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docs._figures.lines import PSNR, grey_images, with_spread
from jaxleak.study import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Panels about FedLeak's own terms: a title, the beginning of the cells' names, and what the reader is told of each.
TERMS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("Share of the gradient that is matched, %", "table15/R", {n: n for n in ("15", "30", "50", "65", "80", "100")}),
    ("Weight lambda' of the blend of gradients", "table16/lambda", {f"0.{n}": f".{n}" for n in range(1, 10, 2)}),
    (
        "Weight alpha of the total variation",
        "table17/alpha",
        {"0": "0"} | {f"1e-{n}": f"1e-{n}" for n in range(5, 0, -1)},
    ),
    (
        "Weight beta of the activation penalty",
        "table18/beta",
        {"0": "0"} | {f"0.{'0' * (n - 1)}1": f"1e-{n}" for n in range(4, 0, -1)},
    ),
    ("Distances", "table19/", {"both": "both", "without-cos": "no cosine", "without-l1": "no L1"}),
)
#: Panels about what a client holds.
CLIENTS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("Classes per client", "table5/fedleak/label-skew/", {str(n): str(n) for n in range(1, 6)}),
    (
        "Dirichlet alpha (smaller: fewer classes)",
        "table6/fedleak/alpha",
        {n: n for n in ("0.1", "0.5", "1", "5")},
    ),
    ("Samples per client", "table5/fedleak/quantity-skew/", {n: n for n in ("50", "100", "150", "200")}),
    (
        "Smoothest to busiest fifth of the images, %",
        "table5/fedleak/feature-skew/",
        {f"{n}-{n + 20}": f"{n}-{n + 20}" for n in range(0, 100, 20)},
    ),
)
#: Data of FedLeak's Table 3 that are at hand, and the table's attacks.
COMPARED_ON = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ATTACKS = {
    "idlg": "iDLG",
    "ig": "Inverting Gradients",
    "gi": "GradInversion",
    "fedleak": "FedLeak, our settings",
}

#: Attacks on a noisy gradient, with and without a generator, and what the figure calls them.
PRIORS = {"fedleak": "FedLeak, no generator", "ggl": "GGL, a generator", "rog": "ROG, a generator"}
#: Deviations of the noise, as the names of the stored runs have them.
NOISE = {"0": "no noise", "0.001": "0.001", "0.01": "0.01"}
#: Attacks on networks with sigmoids, in the order of the stored runs.
SMOOTH = (
    "LeNet, one image:\nDLG, 300 iterations",
    "LeNet, one image:\nDLG, 1,200 iterations",
    "ResNet10, four images:\nFedLeak",
    "ResNet10, four images:\nInverting Gradients",
    "ResNet10, four images:\niDLG by Adam",
)

#: Numbers of local steps in FedLeak's Table 9.
STEPS = (1, 2, 4, 8, 12)

#: Stored runs of clients that take several epochs, and what a reader is told of each.
EPOCHS = {
    "epochs_four_1": "4 images, one batch",
    "epochs_four_5": "the same, 5 epochs",
    "epochs_eight_1": "8 images, four batches",
    "epochs_eight_5": "5 epochs, one order",
    "epochs_eight_5_reshuffle": "5 epochs, new orders",
    "epochs_eight_5_copies": "5 epochs, new orders,\na copy per epoch",
    "epochs_eight_5_estimate": "5 epochs, new orders,\nattacked as one gradient",
    "epochs_eight_5_reshuffle_0.03": "5 epochs, new orders, rate 0.03",
    "epochs_eight_5_copies_0.03": "5 epochs, new orders, rate 0.03,\na copy per epoch",
    "epochs_eight_5_estimate_0.03": "5 epochs, new orders, rate 0.03,\nattacked as one gradient",
    "epochs_eight_5_momentum": "5 epochs, new orders,\nrate 0.01 with momentum",
}


#: Sizes of the batches that one attack was tried on.
BATCHES = (1, 2, 4, 8, 16, 32, 64)

#: Stored runs of clients that send a step of Adam, and what a reader is told of each.
ADAM = {
    "batch_1": "one image: the gradient itself",
    "adam_1e-2_b1": "Adam at a rate of 0.01, undone",
    "adam_b1": "at 0.001, undone",
    "adam_1e-4_b1": "at 0.0001, undone",
    "adamw_b1": "AdamW at 0.001, undone",
    "adam_read_b1": "Adam at 0.001, read as a gradient",
    "batch_4": "four images: the gradient itself",
    "adam_b4": "Adam at 0.001, undone",
    "adam_1e-4_b4": "at 0.0001, undone",
    "adam_read_b4": "Adam at 0.001, read as a gradient",
}

#: Losses of clients with four images, each by an attacker who does not know it and by one who does.
ANY_LOSS = {
    f"{who}_loss_{loss}_b4": f"{told}: {how}"
    for loss, told in {
        "cross_entropy": "cross-entropy",
        "smoothed_cross_entropy": "with smoothed labels",
        "focal_loss": "focal loss",
        "binary_cross_entropy": "binary cross-entropies",
        "squared_error": "squared error",
    }.items()
    for who, how in {"any": "not known", "known": "known, with the labels"}.items()
}


def terms(stored: dict[str, Any], path: Path) -> None:
    """What FedLeak's own terms change, here and in the paper."""
    _trends(stored, TERMS, path, "FedLeak on a ConvNet: the variation and L1 matter, the other terms do not")


def clients(stored: dict[str, Any], path: Path) -> None:
    """What a client's data change, here and in the paper."""
    _trends(stored, CLIENTS, path, "Clients with one class leak less here, and not more as in the paper")


def baselines(stored: dict[str, Any], path: Path) -> None:
    """What FedLeak and the attacks that it is compared with recover, here and in the paper."""
    found = {cell["id"]: cell for cell in stored["cells"]}
    figure, panels = plots.subplots(1, len(COMPARED_ON), size=(10, 3))
    places = -np.arange(len(ATTACKS))
    for (data, name), axes in zip(COMPARED_ON.items(), panels, strict=True):
        cells = [found[f"table3/{attack}/b16/{data}"] for attack in ATTACKS]
        ours, spread = ([cell[key] for cell in cells] for key in ("ours", "spread"))
        axes.barh(places + 0.2, [cell["paper"] for cell in cells], 0.4, color="C5", label="the paper")
        axes.barh(places - 0.2, ours, 0.4, xerr=spread, color="C0", label="here (mean and spread over the seeds)")
        grey = float(np.mean([cell["psnr_grey"] for cell in cells]))
        axes.axvline(grey, color="black", linewidth=1, linestyle=":", label="a grey image, which shows nothing")
        axes.set_yticks(places, ATTACKS.values() if axes is panels[0] else [])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("PSNR in dB (further right leaks more)")
        axes.set_title(name)
    figure.suptitle("One gradient of four images here, and of sixteen in the paper", fontsize=11)
    plots.legend_below(figure, panels[0])
    plots.save_figure(figure, path)


def local_steps(exact: dict[str, Any], smooth: dict[str, Any], path: Path) -> None:
    """What an update of several local steps leaves, by their number and by how the attack takes the kinks."""
    names, places = [f"table9/fedleak/steps{steps}" for steps in STEPS], range(len(STEPS))
    figure, axes = plots.subplots(size=(7, 4))
    for stored, look, label in (
        (smooth, "o-", "here, smoothed kinks, 1,000 iterations"),
        (exact, "^-", "here, exact kinks, 400 iterations"),
    ):
        found = {cell["id"]: cell for cell in stored["cells"]}
        cells = [found[name] for name in names]
        with_spread(axes, places, cells, look, label)
    axes.plot(places, [cell["paper"] for cell in cells], "s--", color="C5", label="the paper")
    grey_images(axes, places, cells)
    axes.set_title("PSNR falls as an update has more local steps, and more images")
    _psnr_by(figure, axes, STEPS, "local steps behind the update", path)


def batch_size(*stored: dict[str, Any], path: Path) -> None:
    """What one gradient of so many images leaves of them, a run for each of `BATCHES`."""
    scores, places = [run["metrics"] for run in stored], range(len(stored))
    figure, axes = plots.subplots(size=(7, 4))
    cells = [{"ours": score["psnr"], "spread": score["psnr_spread"]} for score in scores]
    with_spread(axes, places, cells, "o-", "FedLeak (mean and spread over the seeds)")
    grey_images(axes, places, scores)
    axes.set_title("The more images stand behind a gradient, the less of each is seen")
    _psnr_by(figure, axes, BATCHES, "images behind the gradient", path)


def _psnr_by(figure: "Figure", axes: "Axes", numbers: Sequence[int], what: str, path: Path) -> None:
    """Name the axes of a curve of the PSNR over so many of something, and save it."""
    axes.set_xticks(range(len(numbers)), numbers)
    axes.set_xlabel(what)
    axes.set_ylabel(PSNR)
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def adam(*stored: dict[str, Any], path: Path) -> None:
    """What a step of Adam leaves to an attacker who undoes it and to one who does not, a run for each of `ADAM`."""
    _bars_of_runs(stored, ADAM, "A step of Adam hides little from those who undo it", path)


def any_loss(*stored: dict[str, Any], path: Path) -> None:
    """What four images leak without the loss and the labels, and with both: runs of `ANY_LOSS`."""
    _bars_of_runs(stored, ANY_LOSS, "An unknown loss costs one to two dB", path)


def epochs(*stored: dict[str, Any], path: Path) -> None:
    """What epochs over the same images leave, a run for each of `EPOCHS`."""
    _bars_of_runs(stored, EPOCHS, "What five epochs leave depends on how far the weights move", path)


def _bars_of_runs(stored: Sequence[dict[str, Any]], told: Mapping[str, str], title: str, path: Path) -> None:
    """One bar for each run, with its seeds as points."""
    figure, axes = plots.subplots(size=(7, 5))
    places = np.arange(len(stored))[::-1]
    bars = axes.barh(places, [run["metrics"]["psnr"] for run in stored], 0.6)
    axes.bar_label(bars, fmt="%.1f", fontsize=8, label_type="center", color="white")
    for place, run in zip(places, stored, strict=True):
        seeds = [cell["psnr"] for cell in run["cells"]]
        axes.plot(seeds, [place] * len(seeds), "o", color="black", markersize=4)
    grey = np.mean([run["metrics"]["psnr_grey"] for run in stored])
    axes.axvline(grey, color="black", linewidth=1, linestyle=":", label="a grey image, which shows nothing")
    axes.plot([], [], "o", color="black", markersize=4, label="one seed")
    axes.set_yticks(places, told.values())
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(PSNR)
    axes.set_title(title)
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def variation(*stored: dict[str, Any], path: Path) -> None:
    """What the weight of the total variation does to four images behind a ResNet10; a run for each weight."""
    cells = [run["cells"][0] for run in stored]
    weights = [run["config"]["tv"] / 2 for run in stored]  # the root of four images
    figure, axes = plots.subplots(size=(7, 4))
    with_spread(axes, weights, cells, "o-", "PSNR, mean and spread over the seeds")
    scaled = [cell["psnr_up_to_scale"] for cell in cells]
    axes.plot(weights, scaled, "s--", label="the same, up to one factor of brightness")
    grey_images(axes, weights, cells)
    axes.set_xscale("log")
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.minorticks_off()
    axes.set_ylim(0, None)
    axes.set_xlabel("weight of the total variation, in units of the root of the number of images")
    axes.set_ylabel(PSNR)
    axes.set_title("Four images behind a ResNet10 want three times the usual variation")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def priors(*stored: dict[str, Any], path: Path) -> None:
    """What a generator adds to an attack, by the noise on the gradient; runs by attack, then by noise."""
    figure, axes = plots.subplots(size=(7, 4))
    places = np.arange(len(NOISE))
    for number, name in enumerate(PRIORS.values()):
        runs = [run["metrics"] for run in stored[number * len(NOISE) : (number + 1) * len(NOISE)]]
        bars = axes.bar(
            places + 0.27 * (number - 1),
            [run["psnr"] for run in runs],
            0.25,
            yerr=[run["psnr_spread"] for run in runs],
            label=name,
        )
        axes.bar_label(bars, fmt="%.1f", padding=6, fontsize=8)
    grey_images(axes, places, [run["metrics"] for run in stored[: len(NOISE)]])
    axes.set_xticks(places, NOISE.values())
    axes.set_ylim(0, 145)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("standard deviation of the Gaussian noise on the gradient")
    axes.set_ylabel(PSNR)
    axes.set_title("A generator helps against noise that the attacker does not know")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def smooth(*stored: dict[str, Any], path: Path) -> None:
    """What attacks that optimise pixels recover behind networks with sigmoids."""
    runs, places = [run["metrics"] for run in stored], -np.arange(len(SMOOTH))
    figure, axes = plots.subplots(size=(7, 3.6))
    axes.barh(places, [run["psnr"] for run in runs], 0.6, xerr=[run["psnr_spread"] for run in runs], color="C0")
    for place, run in zip(places, runs, strict=True):
        label = "a grey image, which shows nothing" if not place else None
        axes.vlines(run["psnr_grey"], place - 0.4, place + 0.4, color="black", linestyle=":", label=label)
        end = max(run["psnr"] + run["psnr_spread"], run["psnr_grey"])  # what the number must not stand on
        axes.text(end + 1, place, f"{run['psnr']:.1f}", va="center")
    axes.set_yticks(places, SMOOTH)
    axes.set_xlim(0, 60)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("PSNR in dB, mean and spread over the seeds (further right leaks more)")
    axes.set_title("Behind sigmoids, FedLeak and DLG read images, and iDLG does not")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def _trends(
    stored: dict[str, Any],
    panels: Sequence[tuple[str, str, Mapping[str, str]]],
    path: Path,
    title: str,
) -> None:
    """A panel for each setting that is varied: PSNR by strength here, in the paper, and of a grey image."""
    found = {cell["id"]: cell for cell in stored["cells"]}
    columns = -(-len(panels) // 2)
    figure, grid = plots.subplots(2, columns, size=(10, 5.4))
    for (name, beginning, strengths), axes in zip(panels, grid.flat, strict=False):
        cells = [found[beginning + strength] for strength in strengths]
        places = range(len(cells))
        with_spread(axes, places, cells, "o-", "here (mean and spread over the seeds)")
        axes.plot(places, [cell["paper"] for cell in cells], "s--", color="C5", label="the paper")
        grey_images(axes, places, cells)
        axes.set_xticks(places, strengths.values())
        axes.set_ylim(0, 35)
        axes.set_title(name, fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(PSNR)
    figure.suptitle(title, fontsize=11)
    plots.legend_below(figure, grid.flat[0])
    plots.save_figure(figure, path)
