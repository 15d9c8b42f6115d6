"""VFLDefender (VFLRecon, Algorithm 2): random sizes for the gradient at the top model's output."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, broken

Reading = Literal["paper", "direction", "batch"]
READINGS: tuple[Reading, ...] = ("paper", "direction", "batch")
_TINY = float(jnp.finfo(jnp.float32).tiny)


def vfl_defender(t_max: float, t_min: float, *, reading: Reading = "direction") -> Defense:
    """Randomise dL/do, the gradient at the top's output, before it goes back through the top model.

    The paper's text promises to randomise the norm and keep the direction. Algorithm 2 does something else, so there
    are three readings:

    * "paper", Algorithm 2 as printed: clip, normalise, then replace every element > 0 by a uniform draw from
      (0, t_max) and every other one by a draw from (t_min, 0). **Only the signs of the gradient survive**; clipping
      and normalising cannot change a sign and therefore have no effect at all. With softmax and cross-entropy the true
      class is the only negative element, so the label stays fully visible at the output; an adversary sees only what
      has gone through the top model. A zero counts as negative, as in the algorithm; equation 7 has it positive.
    * "direction", repaired: clip every element to [t_min, t_max], divide each sample's row by its Euclidean norm, and
      multiply it by a uniform draw from (0, min(t_max, -t_min)), one per sample. The direction of the clipped gradient
      stays, and the size says nothing about the sample, because its distribution is the same for all of them. A row of
      zeros has no direction and stays zero.
    * "batch", repaired as well, but with one norm and one draw for the whole batch: the direction of the batch's
      gradient stays, and with it the relative sizes of its samples.

    In all readings, every element ends in [t_min, t_max]. The paper prints neither thresholds nor the distribution
    (uniform is assumed) nor whether it normalises per sample or per batch. The gradient is that of the mean loss: its
    elements are within [-1 / B, 1 / B] for cross-entropy, so a threshold above 1 / B clips nothing, and under "paper"
    one far above it is a far larger learning rate for optimisers that are not scale-free.

    Args:
        t_max: upper threshold > 0.
        t_min: lower threshold < 0.
        reading: "paper", "direction" or "batch".

    Returns:
        A `Defense` at "top_output_gradient"; it takes (..., C) leaves, and the last axis is one sample's gradient.

    Raises:
        ValueError: if not t_max > 0 > t_min, a threshold is not finite, or the reading is unknown.
    """
    _validate.positive(t_max=t_max)
    if not -math.inf < t_min < 0:
        raise ValueError(f"t_min must be < 0, got {t_min}")
    _validate.one_of(READINGS, reading=reading)
    radius = min(t_max, -t_min)

    def only_signs(key: jax.Array, gradient: jax.Array) -> jax.Array:
        # Clipping and normalising are left out: they keep signs, and only the signs are read.
        size = jax.random.uniform(key, gradient.shape, minval=_TINY)
        return size * jnp.where(gradient > 0, t_max, t_min) + broken(gradient)

    def only_direction(key: jax.Array, gradient: jax.Array) -> jax.Array:
        clipped = jnp.clip(gradient, t_min, t_max)
        one_norm = -1 if reading == "direction" else None
        # Squares of small float32 numbers underflow, so the largest element is scaled to one before the norm is taken.
        scaled = clipped / jnp.maximum(jnp.abs(clipped).max(axis=one_norm, keepdims=True), _TINY)
        norm = jnp.sqrt(jnp.sum(scaled**2, axis=one_norm, keepdims=True))
        sizes = radius * jax.random.uniform(key, norm.shape, minval=_TINY)
        return sizes * scaled / jnp.maximum(norm, _TINY) + broken(gradient)

    randomise = only_signs if reading == "paper" else only_direction

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        leaves, treedef = jax.tree.flatten(updates)
        new = [randomise(jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, new), state

    return Defense(
        "top_output_gradient", optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    )
