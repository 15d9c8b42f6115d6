"""Noise in split vertical training that gives labels differential privacy."""

import math

from jaxleak import _validate
from jaxleak.defenses._accounting import noise_multiplier_of


def label_dp_scale(epsilon: float, *, delta: float, epochs: int, batch_size: int) -> float:
    """The standard deviation of noise on the top's output gradient that makes all of training label-private.

    It is the `scale` of `gaussian_noise(scale, place="top_output_gradient")`.
    Changing one label moves that example's row of dL/do = (p - onehot(y)) / B by sqrt(2) / B. All that a party or the
    top sees of labels is computed from the noisy rows, and a row is released once per epoch. Labels therefore have
    (epsilon, delta) differential privacy in the view of every party, messages included. Features have none. `dp_sgd`,
    in contrast, protects the trained parameters and leaves the gradients that go to the parties as they are.

    Args:
        epsilon: privacy parameter, > 0.
        delta: privacy parameter, in (0, 1).
        epochs: how often every example takes part, > 0.
        batch_size: batch size B > 0; the loss is the batch's mean cross-entropy.

    Raises:
        ImportError: without dp-accounting.
        ValueError: on values out of range.
    """
    _validate.count(batch_size=batch_size)
    sigma = noise_multiplier_of(epsilon=epsilon, sampling_rate=1.0, steps=epochs, delta=delta)
    return sigma * math.sqrt(2) / batch_size
