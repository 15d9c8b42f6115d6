"""Regularizers of matching attacks: image priors, representations, activation statistics and group consistency."""

import jax
import jax.numpy as jnp

from jaxleak import _tree
from jaxleak._base import PyTree


def total_variation(x: jax.Array) -> jax.Array:
    """Anisotropic total variation (CAFE, ICLR 2021 submission, section 3.3).

    `sum_c sum_hw |x[h+1, w, c] - x[h, w, c]| + |x[h, w+1, c] - x[h, w, c]|`, with no difference across a border. The
    tiles of one sample are summed; seams between tiles are not counted, as every party holds its tile alone.

    Args:
        x: (B, P, h, w, c) tiles, or (B, H, W, C) whole images.

    Returns:
        (B,), >= 0.

    Raises:
        ValueError: if x has no two image axes.
    """
    if x.ndim not in (4, 5):
        raise ValueError(f"total_variation needs images (B, P, h, w, c) or (B, H, W, C), got shape {x.shape}")
    vertical = jnp.abs(jnp.diff(x, axis=-3))
    horizontal = jnp.abs(jnp.diff(x, axis=-2))
    axes = tuple(range(1, x.ndim))
    return vertical.sum(axis=axes) + horizontal.sum(axis=axes)


def truncated_tv(x: jax.Array, xi: float) -> jax.Array:
    """CAFE's truncated total variation: the batch's mean TV, or 0 while the mean TV of a tile is below xi.

    The papers leave open whether xi is meant per image, batch or tile. Here it is compared with the mean over the
    batch and over the parties' tiles, as in the authors' code, whose 25 on MNIST is also the printed xi (NeurIPS 2021,
    Table 9): the mean TV of a real quadrant. The indicator (ICLR 2021 submission, equation 8) has no gradient.

    Args:
        x: (B, P, h, w, c) tiles, or (B, H, W, C) whole images.
        xi: threshold >= 0; 0 never truncates.

    Returns:
        () mean over the batch of each sample's TV summed over its tiles, or 0.
    """
    mean = total_variation(x).mean()
    tiles = x.shape[1] if x.ndim == 5 else 1
    return jnp.where(jax.lax.stop_gradient(mean) / tiles >= xi, mean, 0.0)


def feature_distance(observed: jax.Array, simulated: jax.Array) -> jax.Array:
    """CAFE's representation term `sum_n ||h_n - h'_n||^2` (NeurIPS 2021, equation 9, last term).

    Args:
        observed: (B, P, d1), the recovered inputs of the first dense layer.
        simulated: (B, P, d1), those of the fake samples.

    Returns:
        () summed over the batch, not averaged.
    """
    return jnp.sum((observed - simulated) ** 2)


def activation_statistics_distance(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Squared differences of per-layer means and variances (the BN regularizer of GradInversion, Yin et al. 2021).

    CAFE's networks have no batch normalisation, which in training mode would make per-sample gradients depend on the
    batch. The mean and variance of every convolution's pre-activations over the batch stand in for the layers'
    statistics; the threat must grant them. GradInversion adds norms, not their squares; squared, the term has the
    smooth minimum of the other terms.

    Args:
        observed: the granted statistics, as `SplitModel.statistics` gives them.
        simulated: those of the fake batch.

    Returns:
        () summed over layers and channels.
    """
    return _tree.squared_norm(jax.tree.map(jnp.subtract, observed, simulated))


def group_consistency(candidates: jax.Array) -> jax.Array:
    """Summed squared distance of each candidate to the mean of its group (GradInversion, Yin et al. 2021).

    GradInversion registers the candidates to each other before averaging; index alignment makes that unnecessary.

    Args:
        candidates: (G, B, ...), G reconstructions of the same batch.

    Returns:
        () >= 0; 0 for a single candidate.
    """
    return jnp.sum((candidates - candidates.mean(axis=0)) ** 2)
