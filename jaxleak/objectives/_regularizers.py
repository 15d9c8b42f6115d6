"""Regularizers of matching attacks: image priors, representations, activation statistics and group consistency."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.objectives._distances import absolute, difference, layer_norms, squared_l2


def total_variation(x: jax.Array) -> jax.Array:
    """Anisotropic total variation (CAFE, ICLR 2021 submission, section 3.3).

    `sum_c sum_hw |x[h+1, w, c] - x[h, w, c]| + |x[h, w+1, c] - x[h, w, c]|`, with no difference across a border. The
    tiles of one sample are summed. Seams between tiles are not counted, because each party holds only its own tile.

    Args:
        x: (B, P, h, w, c) tiles, or (B, H, W, C) whole images, in any unit.

    Returns:
        (B,) in the unit of `x`, >= 0.

    Raises:
        ValueError: if x has no two image axes.
    """
    if x.ndim not in (4, 5):
        raise ValueError(f"total_variation needs images (B, P, h, w, c) or (B, H, W, C), got shape {x.shape}")
    vertical = jnp.abs(jnp.diff(x, axis=-3))
    horizontal = jnp.abs(jnp.diff(x, axis=-2))
    axes = tuple(range(1, x.ndim))
    return vertical.sum(axis=axes) + horizontal.sum(axis=axes)


def mean_total_variation(x: jax.Array, kind: Literal["anisotropic", "isotropic"] = "anisotropic") -> jax.Array:
    """Total variation as a mean over differences: a weight then means the same at every image and batch size.

    - "anisotropic": `mean |vertical difference| + mean |horizontal difference|` over the batch, all places and
      channels (the prior of Geiping et al. 2020; FedLeak, section 4.2, prints no formula).
    - "isotropic": the mean of `sqrt(dv^2 + dh^2)` over channels and the pixels with a lower and a right neighbour.

    Args:
        x: (B, H, W, C) images, or (B, P, h, w, c) tiles, in any unit. An axis of one pixel has no differences and adds
            nothing, so that images of one pixel, as rows of a table whose columns are channels, have no variation.
        kind: as above.

    Returns:
        () in the unit of `x`, >= 0, at most 2 for images in [0, 1]; the gradient is 0 where an image is constant.

    Raises:
        ValueError: if x has no two image axes, or `kind` is unknown.
    """
    _validate.one_of(("anisotropic", "isotropic"), kind=kind)
    if x.ndim not in (4, 5):
        raise ValueError(f"mean_total_variation needs images (B, H, W, C) or tiles, got shape {x.shape}")
    if kind == "anisotropic" or min(x.shape[-3:-1]) < 2:  # along one axis both kinds are the same
        means = [absolute(jnp.diff(x, axis=axis)).mean() for axis in (-3, -2) if x.shape[axis] > 1]
        return sum(means, jnp.zeros((), x.dtype))
    corner = x[..., :-1, :-1, :]
    square = (x[..., 1:, :-1, :] - corner) ** 2 + (x[..., :-1, 1:, :] - corner) ** 2
    return _tree.root(square).mean()


def relative_total_variation(x: jax.Array) -> jax.Array:
    """Anisotropic `mean_total_variation` divided by the pixels' standard deviation within an image.

    This measure does not change when images are dimmed. Some objectives (`row_space_distance`) do not depend on the
    scale of images either, and this prior does not pull them towards black.

    Args:
        x: (B, H, W, C) images in any unit.

    Returns:
        () >= 0, without a unit.
    """
    return mean_total_variation(x) / jnp.sqrt(jnp.var(x, axis=(1, 2, 3)).mean() + 1e-6)


def summed_total_variation(x: jax.Array) -> jax.Array:
    """Anisotropic total variation summed over all differences of all images, as FedLeak prints its TV(x').

    Unlike `total_variation`, whose derivative is CAFE's, its derivative is 0 at a constant image.

    Args:
        x: (B, H, W, C) images, or (B, P, h, w, c) tiles, in any unit.

    Returns:
        () in the unit of `x`, >= 0; the gradient is 0 where an image is constant.

    Raises:
        ValueError: if x has no two image axes.
    """
    if x.ndim not in (4, 5):
        raise ValueError(f"summed_total_variation needs images (B, H, W, C) or tiles, got shape {x.shape}")
    return absolute(jnp.diff(x, axis=-3)).sum() + absolute(jnp.diff(x, axis=-2)).sum()


def truncated_tv(x: jax.Array, xi: float) -> jax.Array:
    """CAFE's truncated total variation: the batch's mean TV, or 0 while the mean TV of a tile is below xi.

    The papers leave open whether xi applies per image, batch or tile. Here it is compared with the mean over the batch
    and over the parties' tiles, as in the authors' code. Their code's threshold of 25 on MNIST is also the printed xi
    (NeurIPS 2021, Table 9), and it is the mean TV of a real quadrant. The indicator (ICLR 2021 submission, equation 8)
    has no gradient.

    Args:
        x: (B, P, h, w, c) tiles, or (B, H, W, C) whole images, in any unit.
        xi: threshold >= 0, in the unit of `x`; 0 never truncates.

    Returns:
        () in the unit of `x`, >= 0: the mean over the batch of each sample's TV summed over its tiles, or 0.
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
        () >= 0, a squared distance summed over the batch, not averaged.
    """
    return jnp.sum(difference(observed, simulated) ** 2)


def activation_statistics_distance(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Squared differences of per-layer means and variances (the BN regularizer of GradInversion, Yin et al. 2021).

    CAFE's networks have no batch normalisation, because in training mode it would make per-sample gradients depend on
    the batch. Instead, this term compares the mean and variance over the batch of every convolution's pre-activations.
    The threat must grant them. GradInversion adds norms, not their squares; squares give this term a smooth minimum,
    like the other terms.

    Args:
        observed: the granted statistics, as `SplitModel.statistics` gives them.
        simulated: the statistics of the fake batch.

    Returns:
        () >= 0, squared differences summed over layers and channels.
    """
    return squared_l2(observed, simulated)


def batch_norm_distance(observed: PyTree, simulated: PyTree) -> jax.Array:
    """GradInversion's term R_BN: `sum_l ||mean_l - mean'_l||_2 + ||var_l - var'_l||_2` (Yin et al. 2021).

    The term adds norms, not squares, so the gradient of a layer's term does not shrink as the layer gets close, unlike
    in `activation_statistics_distance`. The threat decides which statistics are observed: those of the private batch,
    or running ones.

    Args:
        observed: tree of means and variances, every leaf (channels,) of one layer.
        simulated: the same structure, of the fake batch.

    Returns:
        () >= 0; the gradient of a leaf that agrees exactly is 0.
    """
    return layer_norms(observed, simulated)


def activation_penalty(activations: PyTree, reduction: Literal["mean", "sum"] = "mean") -> jax.Array:
    """FedLeak's activation penalty: activations of trained networks are sparse on natural images (section 4.2).

    Args:
        activations: outputs of the layers that count, each (B, ...), e.g. `Outputs.activations` of a classifier.
        reduction: "mean" gives the mean over layers of the mean |a|, which does not depend on widths or batch; "sum"
            the printed `sum_l ||F_l(x)||_1`, summed over the batch too.

    Returns:
        () >= 0.

    Raises:
        ValueError: if there are no activations, or `reduction` is unknown.
    """
    _validate.one_of(("mean", "sum"), reduction=reduction)
    leaves = jax.tree.leaves(activations)
    if not leaves:
        raise ValueError("activation_penalty needs a network with at least one non-linearity, got one without")
    if reduction == "sum":
        return sum((jnp.sum(absolute(a)) for a in leaves), jnp.zeros(()))
    return sum((jnp.mean(absolute(a)) for a in leaves), jnp.zeros(())) / len(leaves)


def l2_prior(x: jax.Array) -> jax.Array:
    """GradInversion's prior R_l2: the mean over the batch of each image's Euclidean norm (Yin et al. 2021).

    Args:
        x: (B, ...) images in any unit.

    Returns:
        () >= 0; the gradient of an image of zeros is 0.
    """
    return _tree.root(jnp.sum(x**2, axis=tuple(range(1, x.ndim)))).mean()


def group_distance(candidates: jax.Array) -> jax.Array:
    """Summed distance of each candidate to the mean of its group (GradInversion, Yin et al. 2021, equation 12).

    GradInversion registers the candidates to each other before averaging, which is left out here. The distance is a
    norm, because its square would outweigh every other term while the candidates are far apart.

    Args:
        candidates: (G, B, ...), G reconstructions of the same batch.

    Returns:
        () >= 0; 0 for a single candidate.
    """
    squares = jnp.sum((candidates - candidates.mean(axis=0)) ** 2, axis=tuple(range(1, candidates.ndim)))
    return _tree.root(squares).sum()


def group_consistency(candidates: jax.Array) -> jax.Array:
    """Summed squared distance of each candidate to the mean of its group: CAFE's baseline of group consistency.

    CAFE does not print the formula of this baseline. GradInversion itself adds norms (`group_distance`), and registers
    the candidates to each other before averaging, which index alignment makes unnecessary.

    Args:
        candidates: (G, B, ...), G reconstructions of the same batch.

    Returns:
        () >= 0; 0 for a single candidate.
    """
    return jnp.sum((candidates - candidates.mean(axis=0)) ** 2)
