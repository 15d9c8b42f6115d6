"""DP-SGD (Abadi et al., CCS 2016): clip every example's gradient, and add Gaussian noise to their sum."""

import math

import jax
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, map_with_keys, stateless
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, Mechanism


def dp_sgd(clip: float = 1.0, noise_multiplier: float = 1.0, *, expected_batch: float | None = None) -> Defense:
    """Clip every example's gradient to norm `clip` and add noise of deviation `noise_multiplier * clip` to the sum.

    Shapes stay (B, ...): every example carries its share of the noise, and the mean over the B examples is
    (sum of clipped gradients + noise) / B. In split training the payload is a tuple with one tree per owner; each of
    the n owners clips its own part to clip / sqrt(n), so that none needs to know the others' norms.

    `epsilon_of` computes the privacy loss, for batches that are sampled as described there. A batch-normalised network
    in training mode mixes examples, so the gradient of a single example does not exist.

    Keywords of `apply`, optional: `mask` (B,) bool, True for examples that count, and `owners`, True where the payload
    is such a tuple. With Poisson sampling the batch size varies, so a protocol with fixed shapes pads the batch. The
    sum is then divided by `expected_batch`, as the accounting requires.

    Args:
        clip: C > 0, in units of the gradient (FedLeak: 1).
        noise_multiplier: sigma >= 0; 0 only clips.
        expected_batch: divisor > 0 of the noisy sum; None is B.

    Returns:
        A `Defense` at "per_example_gradient".

    Raises:
        ValueError: on values out of range; when applied to leaves that differ in their leading axis, or with a mask of
            another shape or kind.
    """
    return adaptive_dp_sgd(clip, noise_multiplier, decay=1.0, expected_batch=expected_batch)


def adaptive_dp_sgd(
    clip: float = 1.0, noise_multiplier: float = 1.0, *, decay: float = 0.99, expected_batch: float | None = None
) -> Defense:
    """`dp_sgd` whose noise multiplier is `noise_multiplier * decay^round`.

    FedLeak (2025, section 6.4) uses "adaptive DP" after Adap DP-FL (Fu et al. 2022) and says only that sigma decays;
    the geometric schedule is our reading. `epsilon_of_schedule` computes its privacy loss.

    Needs the keyword `round` () when it is applied, unless decay is 1.

    Args:
        clip: C > 0.
        noise_multiplier: sigma >= 0 of round 0.
        decay: factor per round, in (0, 1].
        expected_batch: see `dp_sgd`.

    Returns:
        A `Defense` at "per_example_gradient".

    Raises:
        ValueError: on values out of range; when applied without `round`, or to leaves that differ in the leading axis.
    """
    _validate.positive(clip=clip, decay=decay)
    _validate.in_range(0, 1, decay=decay)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    if expected_batch is not None:
        _validate.positive(expected_batch=expected_batch)

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        round: jax.Array | int | None = None,
        mask: jax.Array | None = None,
        owners: bool = False,
        **extra: object,
    ) -> PyTree:
        del extra
        sigma = noise_multiplier * clip * decay_at(decay, round)
        size = example_count(payload)
        if mask is not None and (mask.shape != (size,) or mask.dtype != bool):
            raise ValueError(f"mask must be ({size},) truth values, got {mask.dtype} of shape {mask.shape}")
        divisor = size if expected_batch is None else expected_batch
        parts = payload if owners else (payload,)
        bound = clip / math.sqrt(sum(bool(jax.tree.leaves(part)) for part in parts))

        def clipped(example: PyTree) -> PyTree:
            factor = _tree.clip_factor(example, bound)
            return jax.tree.map(lambda leaf: factor * leaf, example)

        def noisy(k: jax.Array, leaf: jax.Array) -> jax.Array:
            counted = leaf if mask is None else leaf * jnp.reshape(mask, (-1,) + (1,) * (leaf.ndim - 1))
            return (counted * size + sigma * jax.random.normal(k, leaf.shape[1:])) / divisor

        new = tuple(jax.vmap(clipped)(part) if jax.tree.leaves(part) else part for part in parts)
        return map_with_keys(noisy, key, new if owners else new[0])

    noise = GaussianNoise(noise_multiplier * clip, decay, of_sum=True) if noise_multiplier else None
    # With a divisor other than B, the payload is not on the scale of a candidate's mean gradient.
    mechanism = Mechanism(Clipped(clip, examples=True), noise) if expected_batch is None else None
    return stateless("per_example_gradient", update, mechanism=mechanism)


def decay_at(decay: float, round: jax.Array | int | None) -> jax.Array | float:
    """decay^round, for defenses that get weaker; raises `ValueError` if `round` is None and decay is not 1."""
    if decay == 1:
        return 1.0
    if round is None:
        raise ValueError("noise that decays needs the keyword round")
    return decay ** jnp.asarray(round)


def example_count(payload: PyTree) -> int:
    """B of gradients with a leading example axis.

    Raises:
        ValueError: if there is no leaf, or leaves differ in their leading axis.
    """
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(payload)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"every leaf must have the same leading example axis, got lengths {sorted(counts)}")
    return counts.pop()
