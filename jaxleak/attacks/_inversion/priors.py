"""What an inversion knows of images beyond the gradient: total variation, activations, statistics, size."""

import math

import jax
import jax.numpy as jnp

from jaxleak._base import Observation
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode
from jaxleak.objectives import (
    activation_penalty,
    batch_norm_distance,
    l2_prior,
    mean_total_variation,
    relative_total_variation,
    summed_total_variation,
    truncated_tv,
)


def recommended_tv(*, coupled_kinks: bool, batch_size: int) -> float:
    """The weight of the total variation that has won in `experiments.homotopy`, as a mean beside a distance around 1.

    It grows with sqrt(B), since more images share one gradient, and is three times as large where statistics of the
    batch couple kinks, as in a ResNet of ReLUs in training mode: gradients then lead from nearby only
    (`experiments.basin`).
    """
    return (0.3 if coupled_kinks else 0.1) * math.sqrt(batch_size)


def priors(
    model: Classifier,
    mode: BatchNormMode,
    s: Settings,
    observation: Observation,
    x: jax.Array,
    sharpness: jax.Array | None,
) -> jax.Array:
    """() the weighted priors of `s` on images x (B, H, W, C), on the model of that sharpness."""
    total = jnp.zeros(())
    if s.tv:
        total += float(s.tv) * variation(s, x)
    if s.l2:
        total += s.l2 * l2_prior(x)
    if s.activation or s.batch_norm:
        out = model.apply(observation.params, x, mode=mode, sharpness=sharpness)
        if s.activation:
            total += s.activation * activation_penalty(out.activations, s.activation_reduction)
        if s.batch_norm:
            total += s.batch_norm * batch_norm_distance(observation.statistics, out.statistics)
    return total


def variation(s: Settings, x: jax.Array) -> jax.Array:
    """() the total variation of images (B, H, W, C) as `s` takes it, without its weight."""
    if s.tv_kind == "relative":
        return relative_total_variation(x)
    if s.tv_kind == "sum":
        return summed_total_variation(x)
    return truncated_tv(x, s.tv_threshold) if s.tv_kind == "truncated" else mean_total_variation(x, s.tv_kind)
