"""How far an update is from what a client must have sent, in units of what rounding explains."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Batch, PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.precision import FULL, Precision

#: Multiples of what a change of the images by rounding changes in the gradient, that a client may be off.
_TIMES_ROUNDING = 100.0
_ROUNDING = 1e-6
_RELATIVE = 1e-3


def shaken(batch: Batch) -> Batch:
    """The batch with its images changed by as much as rounding changes them."""
    return batch._replace(x=batch.x + _ROUNDING * jax.random.normal(jax.random.key(0), batch.x.shape))


def said_of(worst: float, leaf: str, error: float) -> str:
    """What `furthest` found, in a sentence."""
    return (
        f"The leaf furthest off is {leaf}: its error is {worst:.2g} times what rounding explains, and {error:.1e} "
        "times its norm."
    )


def furthest(
    payload: PyTree, expected: PyTree, rounding: PyTree, precision: Precision = FULL, params: PyTree | None = None
) -> tuple[float, str, float]:
    """Over the leaves: the largest error over what is allowed, which leaf, and its relative error."""
    found = ratios(payload, expected, rounding, precision, params)
    return max((ratio, name, relative) for name, (ratio, relative) in found.items())


def ratios(
    payload: PyTree,
    expected: PyTree,
    rounding: PyTree,
    precision: Precision,
    params: PyTree | None,
    *,
    times: float = _TIMES_ROUNDING,
    relative: float = _RELATIVE,
    most: float = np.inf,
    share: float = 0.0,
) -> dict[str, tuple[float, float]]:
    """Every leaf's error, over what is allowed and over the norm of what is expected.

    Allowed are `times` the norm of the leaf of `rounding` and `relative` times that of the leaf, together at most
    `most` times the latter, and what the update's format rounds. A leaf that has less than `share` of the whole
    gradient's norm, such as one that is zero in theory, may be off by that.
    """
    found, weights = {}, {} if params is None else named_leaves(params)
    little = share * float(np.sqrt(sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(expected))))
    for name, leaf in named_leaves(payload).items():
        wanted, moved = named_leaves(expected)[name], named_leaves(rounding)[name]
        error, size = float(jnp.linalg.norm((leaf - wanted).ravel())), float(jnp.linalg.norm(wanted.ravel()))
        allowed = min(times * float(jnp.linalg.norm(moved.ravel())) + relative * size, most * size) + 1e-12
        allowed += precision.error(np.asarray(wanted), weights.get(name)) + (little if size < little else 0.0)
        found[name] = error / allowed, error / max(size, 1e-30)
    return found


def scaled(tree: PyTree, factor: float) -> PyTree:
    """Every leaf of the tree times the factor."""
    return jax.tree.map(lambda leaf: leaf * factor, tree)
