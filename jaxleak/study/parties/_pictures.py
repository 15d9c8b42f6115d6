"""Pictures of a vertical run: labels over the epoch, features true against recovered, and images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxleak import metrics
from jaxleak.study import plots, sheets
from jaxleak.study._data_names import data_in_short
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._names import ATTACK_LABELS, attack_name
from jaxleak.study.parties._problem import ADVERSARY, IMAGE_WIDTHS, split_problem

#: Pixels per row of the images whose columns are features.
WIDTHS = IMAGE_WIDTHS | {"digits": 8}
#: A point of the accuracy over the epoch is a mean over this share of its steps.
WINDOW = 0.1
#: Number of images that a sheet shows; these are the first that took part.
SHOWN = 16
_GREY = 0.5
#: Cells along each side of the picture of features. With 17, every one of the 17 values of digits has its own cell.
_BINS = 17
_UNIT = ((0, 1), (0, 1))


class _Answer(NamedTuple):
    """An attacker's answer among the arrays of a run."""

    label: str
    array: str  # name of the array of recovered features
    of: str = ""  # beginning of the names of the arrays of what this attacker holds and of what it lacks

    def array_of(self, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        """The array of this attacker: `own`, `victims`, or `known` (which of the victims' features are scored)."""
        if name == "known" and f"{self.of}known" not in arrays:
            return np.ones(arrays[f"{self.of}victims"].shape, bool)
        return arrays[f"{self.of}{name}"]


#: The answers that pictures show. The label holder's is shown where the run has it.
_PARTYS = (_Answer("VFLRecon", "estimate"), _Answer(ATTACK_LABELS["baseline"], "baseline"))
_LABEL_HOLDERS = _Answer("the label holder", "label_holder_estimate", "label_holder_")


def draw_pictures(
    folder: Path,
    name: str,
    case: SplitCase,
    scores: Sequence[Mapping[str, float]],
    arrays: Sequence[Mapping[str, np.ndarray]],
    *,
    seed: int,
) -> dict[str, str]:
    """Draw what the runs of one data set show.

    Args:
        folder: folder of the figures.
        name: name of the data set, with which the files' names begin.
        case: the case that was run.
        scores: scores of every seed by name, each in the unit that `run_case` states.
        arrays: arrays of every seed, from `run_case`; a figure whose arrays are missing is left out.
        seed: the first of the seeds, on which depends which pixels a party holds.

    Returns:
        The captions, by the names of the figures.
    """
    captions, data = {}, data_in_short(case.data)
    if any(key.startswith("right_") for key in arrays[0]):
        _labels(folder / f"{name}-labels.png", scores, arrays)
        captions[f"{name}-labels.png"] = (
            f"The share of the labels of {data} that each attack finds, along one epoch of training. Every point is "
            f"the mean over the last {WINDOW:.0%} of the steps and over all seeds. Where curves are equal, one covers "
            "the other. The dashed line is what a model of the attacker's own features predicts without any gradient; "
            "an attack below it tells the attacker nothing new."
        )
    if "estimate" not in arrays[0] or "baseline" not in arrays[0]:
        return captions
    answers = (*_PARTYS, *([_LABEL_HOLDERS] if _LABEL_HOLDERS.array in arrays[0] else []))
    others = len(answers) > len(_PARTYS)
    _features(folder / f"{name}-features.png", answers, arrays[0])
    captions[f"{name}-features.png"] = (
        f"The victims' features of {data} with the first seed: each is counted in the cell of its true value and "
        "of the value that the attacker recovered, and a darker cell holds more of them. Features on the dotted "
        "line are recovered exactly. Where the dark cells do not follow that line, recovered values say nothing "
        "about the true ones." + (" The label holder's victims are all other parties." if others else "")
    )
    if case.data in WIDTHS:
        _images(folder / f"{name}-images.png", case, answers, arrays[0], seed)
        captions[f"{name}-images.png"] = (
            f"The first {SHOWN} images of {data} that took part in training with the first seed. Every pixel is scaled "
            "to its own range. The grey pixels belong to the victims, and the rows below show what an attacker puts in "
            "their place; a higher PSNR is closer to the private images."
            + (" The label holder has other pixels than the attacker of the rows above it." if others else "")
        )
    return captions


def _labels(path: Path, scores: Sequence[Mapping[str, float]], arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
    series = {}
    for key in (key for key in arrays[0] if key.startswith("right_")):
        right = np.mean([of_seed[key].mean(axis=1) for of_seed in arrays], axis=0)
        window = max(1, round(WINDOW * len(right)))
        along = np.convolve(right, np.full(window, 1 / window), "valid")
        label = key.removeprefix("right_")
        series[attack_name(label)] = (np.arange(window, len(right) + 1), 100 * along)
    baseline = 100 * float(np.mean([of_seed["label_accuracy_baseline"] for of_seed in scores]))
    last = max(int(x[-1]) for x, _ in series.values())
    plots.curves(
        path, series, title="How many labels each attack finds, along one epoch of training",
        xlabel=f"step of the epoch, which has {last} steps", ylabel="right labels in % (higher leaks more)",
        levels={ATTACK_LABELS["baseline"]: baseline},
    )  # fmt: skip


def _features(path: Path, answers: Sequence[_Answer], arrays: Mapping[str, np.ndarray]) -> None:
    figure, panels = plots.subplots(1, len(answers), size=(4.5 * len(answers), 4.4))
    pairs = []
    for answer in answers:
        known = answer.array_of(arrays, "known")
        pairs.append((answer.array_of(arrays, "victims")[known], arrays[answer.array][known]))
    # The colours mean the same in all panels.
    most = max(np.histogram2d(true, np.clip(found, 0, 1), _BINS, _UNIT)[0].max() for true, found in pairs)
    for axes, answer, (true, found) in zip(panels, answers, pairs, strict=True):
        cells = axes.hist2d(
            true, np.clip(found, 0, 1), bins=_BINS, range=_UNIT, norm="log", vmin=1, vmax=most, cmap="Blues", cmin=1
        )[-1]
        axes.axline((0, 0), slope=1, color="black", linewidth=1, linestyle=":")
        variance = metrics.feature_variance(
            answer.array_of(arrays, "victims"), entries=answer.array_of(arrays, "known")
        )
        axes.set_title(
            f"{answer.label}\nmean squared error {np.mean((found - true) ** 2):.4f} (lower leaks more)\n"
            f"{variance:.4f} by always answering a feature's mean",
            fontsize=9,
        )
        axes.set_xlabel("true value of the feature")
    panels[0].set_ylabel("recovered value of the feature")
    figure.colorbar(cells, ax=panels, label="number of features in a cell")
    figure.suptitle("Right values lie on the dotted line.", fontsize=10)
    plots.save_figure(figure, path)


def _images(
    path: Path, case: SplitCase, answers: Sequence[_Answer], arrays: Mapping[str, np.ndarray], seed: int
) -> None:
    columns = split_problem(case, seed).columns
    side = WIDTHS[case.data]

    def assembled(answer: _Answer, victims: np.ndarray | float) -> np.ndarray:
        """Images from an attacker's own pixels and an estimate of the others; dropped pixels are black."""
        own, attacker = answer.array_of(arrays, "own"), len(columns) - 1 if answer.of else ADVERSARY
        x = np.zeros((len(own), side * side))
        x[:, columns[attacker]] = own
        x[:, np.concatenate([theirs for party, theirs in enumerate(columns) if party != attacker])] = victims
        return x.reshape(-1, side, side, 1)[:SHOWN]

    truth = assembled(answers[0], arrays["victims"])
    rows = {"private images": truth}
    for answer in answers:
        holder = answer.label if answer.of else "the attacker"
        rows.setdefault(f"what {holder} holds, with the victims' pixels in grey", assembled(answer, _GREY))
        images = np.clip(assembled(answer, arrays[answer.array]), 0, 1)
        rows[f"{answer.label}: mean PSNR {metrics.psnr(truth, images).mean():.1f} dB"] = images
    title = (
        f"The first {SHOWN} images of {data_in_short(case.data)} that took part in training (a higher PSNR leaks more)"
    )
    sheets.comparison_sheet(path, rows, title=title, columns=SHOWN)


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
    shown = {"the victim's part of the private images": victims, "what the attack made of the cut gradients": estimate}
    rows = {label: x.reshape(len(x), side, -1, 1) for label, x in shown.items()}
    title = "The victim's strips of the first images, and their reconstructions (a higher PSNR leaks more)"
    sheets.comparison_sheet(path, rows, title=title, columns=SHOWN)


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
    for axes, x, title in zip(panels, (victims, estimate), ("private features", "reconstructed features"), strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            image = axes.imshow(np.corrcoef(x[:, chosen].T), vmin=-1, vmax=1, cmap="RdBu_r")
        axes.grid(visible=False)
        axes.set_xticks(range(len(chosen)), chosen)
        axes.set_yticks(range(len(chosen)), chosen)
        axes.set_xlabel("feature")
        axes.set_title(f"Correlations of the {title}")
    panels[0].set_ylabel("feature")
    figure.colorbar(image, ax=panels, label="correlation (the more alike the panels, the more leaks)")
    plots.save_figure(figure, path)
