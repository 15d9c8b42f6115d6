"""Gaussian noise in split vertical training: at one place, and at the labels for an epsilon."""

import math

import jax

from jaxleak import _validate
from jaxleak.defenses._accounting import noise_multiplier_of
from jaxleak.defenses._base import SPLIT_PLACES, Defense, per_leaf


def gaussian_noise(scale: float, *, place: str = "top_output") -> Defense:
    """Add Gaussian noise of standard deviation `scale` to every entry of what passes at `place`.

    VFLRecon's table V puts noise of variance 0.001, 0.01 and 0.1 (`scale` is the root of it) on the output of the top
    model; its discussion speaks of gradients. Both are measured by choosing the place; "bottom_output" is noise on the
    embeddings that the parties send, which hides features from the label holder. Gradients here are of the mean
    loss, so they shrink with 1 / B, while outputs do not: the same scale is a much larger noise on gradients.

    There is no clipping, and hence no (epsilon, delta) but the one that `label_dp_scale` states.

    Args:
        scale: standard deviation > 0.
        place: one of `SPLIT_PLACES`.

    Raises:
        ValueError: on a scale <= 0 or an unknown place.
    """
    _validate.positive(scale=scale)
    _validate.one_of(SPLIT_PLACES, place=place)

    return per_leaf(place, lambda key, leaf: leaf + scale * jax.random.normal(key, leaf.shape))


def label_dp_scale(epsilon: float, *, delta: float, epochs: int, batch_size: int) -> float:
    """The standard deviation that makes all of training label-private, by noise on the top's output gradient.

    It is the `scale` of `gaussian_noise(scale, place="top_output_gradient")`.
    Changing one label moves that example's row of dL/do = (p - onehot(y)) / B by sqrt(2) / B. All that a party or the
    top sees of labels is computed from the noisy rows, and a row is released once per epoch: so labels have (epsilon,
    delta) differential privacy in the view of every party, messages included. Features have none. `dp_sgd`, in
    contrast, protects the trained parameters and leaves the gradients that go to the parties as they are.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
        epochs: how often every example takes part, > 0.
        batch_size: B > 0; the loss is the batch's mean cross-entropy.

    Raises:
        ImportError: without dp-accounting.
        ValueError: on values out of range.
    """
    _validate.count(batch_size=batch_size)
    sigma = noise_multiplier_of(epsilon=epsilon, sampling_rate=1.0, steps=epochs, delta=delta)
    return sigma * math.sqrt(2) / batch_size
