"""Distances between two gradient trees: what the server received, and what a fake batch would have sent.

Every function is `(observed, simulated) -> ()` with two trees of the same structure, is differentiable in
`simulated`, and is zero when the trees are equal.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxleak import _tree
from jaxleak._base import PyTree

Distance = Callable[[PyTree, PyTree], jax.Array]

# Below this, a tensor's variance is rounding: a kernel that narrow is flat everywhere and has no gradient.
_VARIANCE_FLOOR = 1e-20


def squared_l2(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum of squared differences over all leaves (DLG; CAFE, NeurIPS 2021, equation 9, first term). In [0, inf)."""
    return _tree.squared_norm(jax.tree.map(jnp.subtract, observed, simulated))


def l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum of absolute differences over all leaves. In [0, inf)."""
    differences = jax.tree.map(lambda a, b: jnp.sum(jnp.abs(a - b)), observed, simulated)
    return sum(jax.tree.leaves(differences), jnp.zeros(()))


def cosine(observed: PyTree, simulated: PyTree) -> jax.Array:
    """One minus the cosine of the angle between the whole trees (Geiping et al. 2020, equation 4). In [0, 2].

    A tree of zeros has no direction: its distance to anything is 1.
    """
    scale = _tree.norm(observed) * _tree.norm(simulated)
    # Both branches of a where are differentiated: the divisor must be safe in the branch that is not taken.
    similarity = _tree.dot(observed, simulated) / jnp.where(scale > 0, scale, 1.0)
    return 1.0 - jnp.where(scale > 0, similarity, 0.0)


def gaussian_kernel(observed: PyTree, simulated: PyTree, *, variance: float | None = None) -> jax.Array:
    """SAPAG's distance (Wang et al. 2020): sum over tensors of `1 - exp(-||g - g'||^2 / sigma^2)`.

    sigma^2 is the variance of the observed tensor's entries, a scale that adapts to every layer and phase of training
    and that the published CAFE code uses for this baseline too; a constant tensor falls back to a small floor. A leaf
    of a vertical model holds all parties' copies of a layer and counts as one tensor.

    Args:
        observed: the gradient that was received.
        simulated: the gradient of the fake batch.
        variance: one sigma^2 > 0 for all tensors; None takes each observed tensor's own.

    Returns:
        () in [0, number of tensors].
    """

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        sigma2 = jnp.maximum(jnp.var(a), _VARIANCE_FLOOR) if variance is None else variance
        return 1.0 - jnp.exp(-jnp.sum((a - b) ** 2) / sigma2)

    return sum(jax.tree.leaves(jax.tree.map(one, observed, simulated)), jnp.zeros(()))
