"""How far an update is from what a client must have sent, in units of what rounding explains.

All arithmetic is NumPy's: JAX would compile a program for every operation on every shape that a network has.
"""

from typing import Any

import jax
import numpy as np

from jaxleak._base import Batch, PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.precision import FULL, Precision

#: A client may be off by this many times the change of the gradient when rounding changes the images.
_TIMES_ROUNDING = 100.0
_ROUNDING = 1e-6
_RELATIVE = 1e-3


def batch_of(x: Any, y: Any) -> Batch:
    """Images (B, H, W, channels) and labels (B,), arrays of NumPy, as the whole batch of a client."""
    index: Any = np.arange(len(x), dtype=np.int32)
    return Batch(x[:, None], y, index)


def shaken(batch: Batch) -> Batch:
    """The batch with its images changed by as much as rounding changes them."""
    return batch._replace(x=batch.x + _ROUNDING * np.random.default_rng(0).standard_normal(batch.x.shape, np.float32))


def said_of(worst: float, leaf: str, error: float) -> str:
    """What `furthest` found, in a sentence."""
    return (
        f"The array that differs most from what this client would send is {leaf}: by {error:.1e} of its norm, which is "
        f"{worst:.2g} times as much as rounding explains."
    )


def furthest(
    payload: PyTree, expected: PyTree, rounding: PyTree, precision: Precision = FULL, params: PyTree | None = None
) -> tuple[float, str, float]:
    """The leaf with the largest error over what is allowed: this ratio, the leaf's name, and its relative error."""
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
    """Every leaf's error, once over what is allowed and once over the norm of what is expected.

    The allowed error is `times` the norm of the leaf in `rounding` plus `relative` times the norm of the expected leaf,
    together at most `most` times the latter norm. The rounding of the update's format is added to it. A leaf with less
    than `share` of the whole gradient's norm, such as one that is zero in theory, may be off by this share in addition.
    """
    found, weights = {}, {} if params is None else named_leaves(params)
    all_wanted, all_moved = named_leaves(expected), named_leaves(rounding)
    little = share * norm_of(expected)
    for name, leaf in named_leaves(payload).items():
        wanted = np.asarray(all_wanted[name])
        error, size = norm_of(np.asarray(leaf) - wanted), norm_of(wanted)
        allowed = min(times * norm_of(all_moved[name]) + relative * size, most * size) + 1e-12
        allowed += precision.error(wanted, weights.get(name)) + (little if size < little else 0.0)
        found[name] = error / allowed, error / max(size, 1e-30)
    return found


def norm_of(tree: PyTree) -> float:
    """The Euclidean norm over all leaves."""
    return float(np.sqrt(inner(tree, tree)))


def inner(a: PyTree, b: PyTree) -> float:
    """The inner product over all leaves of two trees of the same structure."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(float(np.vdot(np.asarray(one), np.asarray(other))) for one, other in pairs)


def scaled(tree: PyTree, factor: float) -> PyTree:
    """Every leaf of the tree times the factor."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) * factor, tree)


def minus(a: PyTree, b: PyTree) -> PyTree:
    """The difference of two trees of the same structure."""
    return jax.tree.map(lambda one, other: np.asarray(one) - np.asarray(other), a, b)
