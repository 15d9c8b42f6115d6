"""Pictures of a vertical run: labels over the epoch, features true against recovered, and images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxleak import metrics
from jaxleak.study import plots, sheets
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import ADVERSARY, IMAGE_WIDTHS, split_problem

#: Names of the attacks and of the baselines, as legends show them.
ATTACK_LABELS = {
    "shared": "VFLRecon, shared start",
    "own_bottom": "VFLRecon, own bottom shared",
    "independent": "VFLRecon, independent start",
    "free": "initialisation-free",
    "baseline": "own features alone, tuned",
    "baseline_network": "own features alone, the paper's network",
}
#: Pixels per row of the images whose columns are features.
WIDTHS = IMAGE_WIDTHS | {"digits": 8}
#: A point of the accuracy over the epoch is a mean over this share of its steps.
WINDOW = 0.1
#: Number of images that a sheet shows; these are the first that took part.
SHOWN = 16
_GREY = 0.5
#: Cells along each side of the picture of features. With 17, every one of the 17 values of digits has its own cell.
_BINS = 17


def draw_pictures(
    folder: Path,
    name: str,
    case: SplitCase,
    scores: Sequence[Mapping[str, float]],
    arrays: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, str]:
    """Draw what the runs of one data set show.

    Args:
        folder: folder of the figures.
        name: name of the data set, with which the files' names begin.
        case: the case that was run.
        scores: scores of every seed by name, each in the unit that `run_case` states.
        arrays: arrays of every seed, from `run_case`; a figure whose arrays are missing is left out.

    Returns:
        The captions, by the names of the figures.
    """
    captions = {}
    if any(key.startswith("right_") for key in arrays[0]):
        _labels(folder / f"{name}-labels.png", scores, arrays)
        captions[f"{name}-labels.png"] = (
            f"Labels of {name} that are right over the epoch, by what the attack starts from; every point is the mean "
            f"over {WINDOW:.0%} of the steps and over all seeds, and equal curves cover each other. Dashed: a "
            "regression on the attacker's own features, which sees no gradient."
        )
    if "estimate" not in arrays[0] or "baseline" not in arrays[0]:
        return captions
    _features(folder / f"{name}-features.png", arrays[0])
    captions[f"{name}-features.png"] = (
        f"The victims' features of {name}, true against recovered, of the first seed; on the line they are right. "
        "Recovered values that do not follow the true ones say nothing of them."
    )
    if case.data in WIDTHS:
        _images(folder / f"{name}-images.png", case, arrays[0])
        captions[f"{name}-images.png"] = (
            f"The first {SHOWN} images of {name} that took part, of the first seed. Every pixel is scaled to its own "
            "range; grey pixels are the victims' part."
        )
    return captions


def _labels(path: Path, scores: Sequence[Mapping[str, float]], arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
    series = {}
    for key in (key for key in arrays[0] if key.startswith("right_")):
        right = np.mean([of_seed[key].mean(axis=1) for of_seed in arrays], axis=0)
        window = max(1, round(WINDOW * len(right)))
        along = np.convolve(right, np.full(window, 1 / window), "valid")
        label = key.removeprefix("right_")
        series[_called(label)] = (np.arange(window, len(right) + 1), 100 * along)
    baseline = 100 * float(np.mean([of_seed["label_accuracy_baseline"] for of_seed in scores]))
    last = max(int(x[-1]) for x, _ in series.values())
    plots.curves(
        path, series, title="Labels over one epoch", xlabel=f"step of the epoch, of {last}",
        ylabel="labels right, % (higher leaks more)",
        levels={"own features alone, tuned": baseline},
    )  # fmt: skip


def _called(name: str) -> str:
    """The attack's name in legends; an attack whose shadow run has the defense knows the defense."""
    plain = name.removesuffix("_adaptive")
    return ATTACK_LABELS.get(plain, plain) + (", knows the defense" if plain != name else "")


def _features(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    figure, panels = plots.subplots(1, 2, size=(8.5, 4))
    true = arrays["victims"].ravel()
    for axes, key, title in zip(
        panels, ("estimate", "baseline"), ("VFLRecon", "own features alone, tuned"), strict=True
    ):
        found = arrays[key].ravel()
        axes.hist2d(true, np.clip(found, 0, 1), bins=_BINS, range=((0, 1), (0, 1)), norm="log", cmap="Blues", cmin=1)
        axes.axline((0, 0), slope=1, color="black", linewidth=1, linestyle=":")
        axes.set_title(f"{title}: squared error {np.mean((found - true) ** 2):.4f}", fontsize=10)
        axes.set_xlabel("true feature")
    panels[0].set_ylabel("recovered feature")
    figure.suptitle(
        f"darker: more features; the mean as an answer would have {arrays['victims'].var(axis=0).mean():.4f}"
    )
    plots.save_figure(figure, path)


def _images(path: Path, case: SplitCase, arrays: Mapping[str, np.ndarray]) -> None:
    columns = split_problem(case, 0).columns
    side = WIDTHS[case.data]

    def assembled(victims: np.ndarray | float) -> np.ndarray:
        """Images from the adversary's own pixels and an estimate of the others; dropped pixels are black."""
        x = np.zeros((len(arrays["own"]), side * side))
        x[:, columns[ADVERSARY]] = arrays["own"]
        x[:, np.concatenate([own for party, own in enumerate(columns) if party != ADVERSARY])] = victims
        return x.reshape(-1, side, side, 1)[:SHOWN]

    truth = assembled(arrays["victims"])
    rows = {"private": truth, "what the attacker holds": assembled(_GREY)}
    for key, label in (("estimate", "VFLRecon"), ("baseline", "its own pixels alone, tuned")):
        images = np.clip(assembled(arrays[key]), 0, 1)
        rows[f"{label}: {metrics.psnr(truth, images).mean():.1f} dB"] = images
    title = f"The first {SHOWN} images of {case.data} that took part"
    sheets.comparison_sheet(path, rows, title=title, columns=SHOWN, zoom=max(1, 48 // side))


def draw_strips(path: Path, victims: np.ndarray, estimate: np.ndarray) -> None:
    """Draw the victims' strips of square images beside their reconstructions; brightness is scaled pixel by pixel.

    Args:
        path: PNG file to write.
        victims: (N, F), the victims' columns of CIFAR-10 images of 32 rows, scaled to [0, 1].
        estimate: (N, F), an attack's reconstruction of these columns in the same unit.

    Raises:
        ValueError: if F is no multiple of the number of rows.
    """
    side = IMAGE_WIDTHS["cifar10"]
    if victims.shape[1] % side:
        raise ValueError(
            f"strips of images of {side} rows must have a multiple of {side} pixels, got {victims.shape[1]}"
        )
    shown = {"the victim's part of the images": victims, "reconstructed from cut gradients": estimate}
    sheets.comparison_sheet(path, {title: x.reshape(len(x), side, -1, 1) for title, x in shown.items()}, columns=16)


def draw_correlations(path: Path, victims: np.ndarray, estimate: np.ndarray, shown: int = 10) -> None:
    """Draw the correlations of random features, original and reconstructed (VFLRecon, Fig. 6).

    Args:
        path: PNG file to write.
        victims: (N, F), the victims' features.
        estimate: (N, F), an attack's reconstruction of them in the same unit.
        shown: number of features that are drawn, the same in both panels.
    """
    chosen = np.sort(np.random.default_rng(0).permutation(victims.shape[1])[:shown])
    figure, panels = plots.subplots(1, 2, size=(9, 4.2))
    for axes, x, title in zip(panels, (victims, estimate), ("original", "reconstructed"), strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            image = axes.imshow(np.corrcoef(x[:, chosen].T), vmin=-1, vmax=1, cmap="RdBu_r")
        axes.set_title(title)
    figure.colorbar(image, ax=panels)
    plots.save_figure(figure, path)
