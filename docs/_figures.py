"""Draw figures of the pages from stored results, of docs/results or of a ledger: `make figures`.

A name of a figure as an argument draws that one alone. Nothing here computes.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments import agreement as study
from experiments._ledger.papers import ledger_of
from jaxleak.study import plots
from jaxleak.study.ledger import Entry

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent / "figures"

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
#: What becomes of a mistake, from the best on: its name in the results, what a reader is told, and its colour.
OUTCOMES = {
    "failed": ("the verdict is 'inputs inconsistent'", "C0"),
    "suspicious": ("a check calls the inputs suspicious", "C5"),
    "leaks": ("no check sees it, and the update leaks all the same", "C2"),
    "warned": ("'not shown to leak', with a warning", "C4"),
    "silent": ("'not shown to leak', in silence: a wrong answer", "C1"),
}
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
    "resnet34-b1": "ResNet34 (full width)", "mobilenet_v2-b1": "MobileNetV2",
}  # fmt: skip
#: Cells of CAFE's tables that a descent fills, by their data, and what the figure calls the method.
DESCENTS = {
    "table4/full/{}": "CAFE",
    "table2/bn/{}": "BN regularizer",
    "table2/gc/{}": "GC regularizer",
    "table2/dlg/{}": "DLG",
    "table2/cosine/{}": "cosine + TV",
    "table2/sapag/{}": "SAPAG",
}


def agreement(stored: dict[str, Any], path: Path) -> None:
    """How far two starts agree, against how right the answer is."""
    cells = stored["cells"]
    sizes = [len(cell["agreement"]) for cell in cells]

    def of_image(values: list[Any]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(value, size) for value, size in zip(values, sizes, strict=True)])

    images = study.Images(
        *(of_image([np.array(cell[name], float) for cell in cells]) for name in ("agreement", "tinted", "ssim")),
        matched=of_image([cell["gradient_matched"] == 1 for cell in cells]),
        defended=of_image([study.CASES[cell["case"]].defense is not None for cell in cells]),
        seed=of_image([cell["seed"] for cell in cells]),
    )
    study.draw(path, images, stored["metrics"]["threshold"])


def defenses(stored: dict[str, Any], path: Path) -> None:
    """What every defense leaves to attackers who know it and who do not, and what it costs in accuracy."""
    ran = sorted((cell for cell in stored["cells"] if "accuracy" in cell), key=lambda cell: -cell["leak"])
    figure, (left, right) = plots.subplots(1, 2, size=(10, 1.2 + 0.25 * len(ran)))
    places = -np.arange(len(ran))
    knows = np.array([cell.get("psnr_adaptive", np.nan) for cell in ran])
    does_not = np.array([cell["psnr"] for cell in ran])
    left.hlines(places, does_not, knows, color="grey", linewidth=1)
    left.plot(does_not, places, "o", label="an attacker who does not know the defense")
    left.plot(knows, places, "s", label="an attacker who knows it")
    grey = float(np.mean([cell["psnr_grey"] for cell in ran]))
    left.axvline(grey, color="black", linewidth=1, linestyle=":", label="a grey image, which shows nothing")
    left.set_yticks(places, [DEFENSES[cell["defense"]].format(cell["strength"]) for cell in ran])
    left.set_xlabel("PSNR in dB (further left leaks less)")
    left.set_title("What leaks")
    right.barh(places, [100 * float(cell["accuracy"]) for cell in ran], 0.6, color="C5")
    right.axvline(100 * next(cell["accuracy"] for cell in ran if cell["defense"] is None), color="black", linewidth=1)
    right.set_yticks(places, [])
    for axes in (left, right):  # whose rows stand beside each other
        axes.set_ylim(places[-1] - 0.7, 0.7)
    right.set_xlim(0, 100)
    right.set_xlabel("test accuracy in % (the line: without a defense)")
    right.set_title("What it costs")
    plots.legend_below(figure, left)
    plots.save_figure(figure, path)


def mistakes(stored: dict[str, Any], path: Path) -> None:
    """What becomes of every kind of mistake in the inputs of an audit, one bar each."""
    kinds = stored["metrics"]["by_mistake"]
    figure, axes = plots.subplots(size=(8, 4.6))
    places, left = np.arange(len(kinds))[::-1], np.zeros(len(kinds))
    for name, (label, colour) in OUTCOMES.items():
        share = np.array([100 * found[name] / found["made"] for found in kinds.values()])
        total = sum(found[name] for found in kinds.values())
        axes.barh(places, share, left=left, height=0.7, color=colour, label=f"{label}: {total}")
        left += share
    names = [name.replace("_", " ").replace("001", "of 0.01") for name in kinds]
    axes.set_yticks(places, [f"{name} ({of['made']})" for name, of in zip(names, kinds.values(), strict=True)])
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("% of the mistakes of a kind (in brackets: their number)")
    axes.set_title(f"What becomes of {stored['metrics']['made']} mistakes in the inputs of an audit")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def audited(stored: dict[str, Any], path: Path) -> None:
    """How close the audit's images come to the private ones, one bar for each case."""
    cases = sorted(stored["metrics"]["by_case"].items(), key=lambda case: -case[1]["psnr"])
    figure, axes = plots.subplots(size=(8, 1.2 + 0.22 * len(cases)))
    # One reason of a verdict says how many images are certified, and begins with "No" where none is.
    certified = [
        any(" certified" in said and not said.startswith("No ") for said in case["reasons"]) for _, case in cases
    ]
    for some, label, colour in (
        (True, "images certified without the truth", "C0"),
        (False, "no image certified", "C1"),
    ):
        chosen = [i for i, is_certified in enumerate(certified) if is_certified is some]
        bars = axes.barh([-i for i in chosen], [cases[i][1]["psnr"] for i in chosen], 0.7, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks([-i for i in range(len(cases))], [name for name, _ in cases])
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.1 * cases[0][1]["psnr"])
    axes.set_xlabel("PSNR in dB, mean over the images of a batch (higher leaks more)")
    axes.set_title("Networks as their owners write them, each through jaxleak audit")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


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
    plots.grouped_bars(path, bars, groups, ylabel="PSNR in dB (higher leaks more)", title=title)


def labels(stored: dict[str, Any], path: Path) -> None:
    """Which share of the labels every rule finds, by the number of samples behind the update."""
    found = stored["metrics"]["label_rules"]
    figure, panels = plots.subplots(1, len(found), size=(10, 3.4))
    for axes, (data, batches) in zip(panels, found.items(), strict=True):
        sizes = [int(batch.removeprefix("b")) for batch in batches]
        for rule, label in RULES.items():
            axes.plot(sizes, [batch[rule]["mean"] for batch in batches.values()], "o-", label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, sizes)
        axes.set_ylim(-3, 103)
        axes.set_title(data.replace("cifar", "CIFAR-").replace(", 1000 classes drawn", ", labels of 1,000 classes"))
        axes.set_xlabel("samples behind the update")
    panels[0].set_ylabel("labels found, % (higher leaks more)")
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
    axes.set_ylabel("PSNR in dB (higher leaks more)")
    axes.set_title("One image behind ViT tiny is read, until noise of 1e-5 stops it")
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


def cafe_descent(entries: dict[tuple[str, str, str], Entry], path: Path) -> None:
    """What CAFE's descent and its baselines recover, here and in the paper, beside its equations solved."""
    figure, panels = plots.subplots(1, 2, size=(8, 4))
    for axes, (data, name) in zip(panels, {"mnist": "MNIST", "cifar10": "CIFAR-10"}.items(), strict=True):
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
    figure.suptitle("The descent of CAFE leads its baselines, and falls far short of its equations", fontsize=11)
    plots.legend_below(figure, panels[0])
    plots.save_figure(figure, path)


#: What draws a figure, by its name, and the names of the stored results.
DRAWN: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    draw.__name__: (draw, (draw.__name__,)) for draw in (agreement, defenses, mistakes, audited, labels)
}
DRAWN["deep"] = (deep, ("resnet34",))
DRAWN["vit"] = (vit, ("vit_tiny", *(f"vit_tiny_noise_1e-{digits}" for digits in (6, 5, 4))))
DRAWN["brightness"] = (brightness, ("resnet34", "trained_0", "trained_1", "trained_2"))
DRAWN["basin"] = (basin, ("basin", "basin_resnet10", "basin_resnet34", "basin_mobilenet_v2"))
DRAWN["cafe_descent"] = (cafe_descent, ("cafe",))


def read(name: str) -> Any:
    """What docs/results has by this name, or else the entries of a paper's ledger."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else ledger_of(name).entries


def main(names: list[str]) -> None:
    """Draw the figures of these names, or all of them."""
    for name, (draw, results) in DRAWN.items():
        if not names or name in names:
            draw(*map(read, results), path=FIGURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
