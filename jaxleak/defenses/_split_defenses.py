"""Every defense of vertical training by name, each with one number for its strength."""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxleak import _validate
from jaxleak.defenses._accounting import noise_multiplier_of
from jaxleak.defenses._base import Defense
from jaxleak.defenses._dp_sgd import dp_sgd
from jaxleak.defenses._label_noise import label_dp_scale
from jaxleak.defenses._marvell import marvell
from jaxleak.defenses._noise import gaussian_noise
from jaxleak.defenses._vfl_defender import Reading, vfl_defender

#: Clipping norm and delta, neither of which VFLRecon states. The norm is about the median norm of an example's gradient
#: at the start of training.
_CLIP, _DELTA = 1.0, 1e-5


class SplitRun(NamedTuple):
    """The run of vertical training to which a defense is calibrated."""

    num_classes: int  # C
    batch_size: int  # B
    num_samples: int  # N
    epochs: int  # which epsilon covers


class SplitDefense(NamedTuple):
    """A defense of vertical training as a function of its strength, one number, and of the run."""

    build: Callable[[float, SplitRun], Defense]  # raises `ValueError` on a strength out of range
    default: float  # default strength; the paper's if it prints one
    unit: str  # what the number is


def _noise(place: str) -> Callable[[float, SplitRun], Defense]:
    return lambda variance, run: gaussian_noise(math.sqrt(variance), place=place)


def _private(epsilon: float, run: SplitRun) -> Defense:
    # The literature accounts as if batches were Poisson samples, but those of a shuffled epoch are not. By the bound
    # that is valid for shuffled epochs, epsilon 10 is 51 and 100 is 158 (N = 954, 20 epochs).
    steps, rate = run.num_samples // run.batch_size * run.epochs, run.batch_size / run.num_samples
    return dp_sgd(_CLIP, noise_multiplier_of(epsilon=epsilon, delta=_DELTA, sampling_rate=rate, steps=steps))


def _private_labels(epsilon: float, run: SplitRun) -> Defense:
    scale = label_dp_scale(epsilon, delta=_DELTA, epochs=run.epochs, batch_size=run.batch_size)
    return gaussian_noise(scale, place="top_output_gradient")


def _defender(reading: Reading) -> Callable[[float, SplitRun], Defense]:
    def build(threshold: float, run: SplitRun) -> Defense:
        return vfl_defender(threshold / run.batch_size, -threshold / run.batch_size, reading=reading)

    return build


_THRESHOLD = "t_max = -t_min, in units of 1 / batch size, the largest size of an entry"

#: Every defense of vertical training, by name.
SPLIT_DEFENSES: dict[str, SplitDefense] = {
    "noise": SplitDefense(_noise("top_output"), 0.01, "variance of Gaussian noise on the top's output"),
    "noise_gradient": SplitDefense(
        _noise("top_output_gradient"), 0.01, "variance of Gaussian noise on the gradient of the top's output"
    ),
    "noise_cut": SplitDefense(
        _noise("cut_gradient"), 0.01, "variance of Gaussian noise on the gradients that leave for the parties"
    ),
    "noise_embedding": SplitDefense(
        _noise("bottom_output"), 0.01, "variance of Gaussian noise on the embeddings that the parties send"
    ),
    "dp_sgd": SplitDefense(
        _private, 10.0,
        "epsilon of all training as for Poisson sampling, delta 1e-5, clipping norm 1, on every owner's own updates",
    ),
    "label_dp": SplitDefense(
        _private_labels, 10.0,
        "epsilon of all labels in any party's view, delta 1e-5, by noise on the gradient of the top's output",
    ),
    "marvell": SplitDefense(
        lambda power, run: marvell(num_classes=run.num_classes, power=power), 1.0,
        "power of the noise, which hides every class against the rest",
    ),
    "vfl_defender": SplitDefense(_defender("direction"), 1.0, f"{_THRESHOLD}, with one random size for every sample"),
    "vfl_defender_paper": SplitDefense(
        _defender("paper"), 1.0, f"{_THRESHOLD}, with a random size for every entry, 0 as negative"
    ),
    "vfl_defender_batch": SplitDefense(_defender("batch"), 4.0, f"{_THRESHOLD}, with one random size for every batch"),
}  # fmt: skip


def split_defense(kind: str, strength: float, run: SplitRun) -> Defense:
    """The defense of this kind and strength, for a run of vertical training.

    Args:
        kind: a key of `SPLIT_DEFENSES`, which has the unit of each.
        strength: the defense's number >= 0; 0 takes the default.
        run: sizes of the defended training.

    Raises:
        ValueError: on an unknown kind or a strength < 0.
        ImportError: if epsilon has to be computed and dp-accounting is missing.
    """
    _validate.one_of(tuple(SPLIT_DEFENSES), defense=kind)
    _validate.non_negative(strength=strength)
    defense = SPLIT_DEFENSES[kind]
    return defense.build(strength or defense.default, run)
