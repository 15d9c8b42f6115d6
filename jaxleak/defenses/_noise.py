"""Gaussian noise at one place of split vertical training."""

import jax
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import SPLIT_PLACES, Defense


def gaussian_noise(scale: float, *, place: str = "top_output") -> Defense:
    """Add Gaussian noise of standard deviation `scale` to every entry of what passes at `place`.

    VFLRecon's table V puts noise of variance 0.001, 0.01 and 0.1 (`scale` is the root of it) on the output of the top
    model; its discussion speaks of gradients. Both are measured by choosing the place. Gradients here are of the mean
    loss, so they shrink with 1 / B, while outputs do not: the same scale is a much larger noise on gradients.

    There is no clipping and hence no (epsilon, delta). DP-SGD needs gradients of single examples, for which
    `protocols.split_training` has no place.

    Args:
        scale: standard deviation > 0.
        place: one of `SPLIT_PLACES`.

    Raises:
        ValueError: on a scale <= 0 or an unknown place.
    """
    _validate.positive(scale=scale)
    _validate.one_of(SPLIT_PLACES, place=place)

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        leaves, treedef = jax.tree.flatten(updates)
        noisy = [
            leaf + scale * jax.random.normal(jax.random.fold_in(key, i), leaf.shape) for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(treedef, noisy), state

    return Defense(place, optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update))
