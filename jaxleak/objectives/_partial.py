"""Partial gradient matching: which entries of the gradients an attack compares (FedLeak, section 4.2).

A `Selection` gives a mask with the gradient's structure, 1 for entries that count and 0 for the others; both gradients
are multiplied by it before a distance sees them. The largest entries are found by bisection on the bits of their
magnitudes, since non-negative floats are ordered as their bit patterns are: one counting pass per bit and no sort,
which on millions of entries is more than ten times cheaper.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.objectives._distances import Distance

#: `(observed, simulated) -> mask`, a tree of the gradients' structure and shapes that holds 0.0 and 1.0.
Selection = Callable[[PyTree, PyTree], PyTree]
SelectBy = Literal["simulated", "observed"]

# A share such as 0.07 * 100 percent is a hair above 7: without this it would select one entry too many.
_ROUNDING = 1e-12


def top_share(
    percent: float, *, per_tensor: bool = False, by: SelectBy = "simulated", bottom: bool = False
) -> Selection:
    """Select the entries largest in magnitude, FedLeak's set Lambda.

    The paper recomputes Lambda in every iteration from the simulated gradient; its released code selects per tensor.
    No gradient flows through the selection. Of n entries k = ceil(n percent / 100) are selected, and with them all
    ties of the last one. So a gradient with fewer than k non-zero entries is selected whole: zeros tie with each other.

    Args:
        percent: R, share of the entries in (0, 100]; 100 selects all of them without looking.
        per_tensor: the share of every leaf instead of the share of all leaves together.
        by: the gradient whose magnitudes decide.
        bottom: select the smallest entries instead.

    Returns:
        A `Selection`; masks have the dtypes of the deciding tree. It may be jitted, vmapped and scanned.

    Raises:
        ValueError: if `percent` is not in (0, 100], or `by` is unknown.
    """
    _share(1, percent)
    _validate.one_of(("simulated", "observed"), by=by)

    def mask_together(leaves: Sequence[jax.Array]) -> list[jax.Array]:
        bits = _magnitude_bits(leaves)
        total = sum(leaf.size for leaf in leaves)
        count = _share(total, percent)
        # Comparing integers and not floats: subnormal numbers, which floats may flush to zero, keep their order.
        threshold = _kth_largest(bits, total - count + 1 if bottom else count)
        chosen = [b <= threshold if bottom else b >= threshold for b in bits]
        return [c.astype(leaf.dtype) for c, leaf in zip(chosen, leaves, strict=True)]

    def select(observed: PyTree, simulated: PyTree) -> PyTree:
        tree = simulated if by == "simulated" else observed
        if percent == 100:
            return jax.tree.map(jnp.ones_like, tree)
        leaves, structure = jax.tree.flatten(jax.lax.stop_gradient(tree))
        masks = [mask_together([leaf])[0] for leaf in leaves] if per_tensor else mask_together(leaves)
        return jax.tree.unflatten(structure, masks)

    return select


def fixed_share(mask: PyTree) -> Selection:
    """Always the same entries, e.g. those that reach a server which sees only a part of the model.

    Args:
        mask: tree of the gradients' structure and shapes with entries 0 and 1 (or weights in between).
    """
    mask = jax.lax.stop_gradient(jax.tree.map(jnp.asarray, mask))
    return lambda observed, simulated: mask


def apply_mask(mask: PyTree, tree: PyTree) -> PyTree:
    """`tree` with every entry multiplied by the mask's; the gradient of what is masked out is zero."""
    return jax.tree.map(jnp.multiply, mask, tree)


def partial_distance(distance: Distance, selection: Selection) -> Distance:
    """`distance` between the selected entries of two gradients: the others are zero in both.

    An attack that needs one selection for several evaluations, such as FedLeak for its probe, calls the selection
    itself and applies its mask.
    """

    def measured(observed: PyTree, simulated: PyTree) -> jax.Array:
        mask = selection(observed, simulated)
        return distance(apply_mask(mask, observed), apply_mask(mask, simulated))

    return measured


def magnitude_threshold(leaves: Sequence[jax.Array], percent: float) -> jax.Array:
    """The smallest magnitude among the `percent` largest of all entries of all leaves, exactly.

    `|leaf| >= threshold` holds for the k = ceil(n percent / 100) largest of n entries and for those that tie with the
    last of them, and for no others. One pass over the data per bit (31 in float32); may be jitted, vmapped and scanned.
    NaN counts as larger than infinity.

    Args:
        leaves: real arrays, at least one entry in all.
        percent: in (0, 100], a Python number.

    Returns:
        () in float32, or float64 if a leaf is; no gradient flows through it.

    Raises:
        ValueError: if there are no entries, or `percent` is not in (0, 100].
    """
    leaves = [jax.lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]
    count = _share(sum(leaf.size for leaf in leaves), percent)
    return jax.lax.bitcast_convert_type(_kth_largest(_magnitude_bits(leaves), count), _float_type(leaves))


def _share(total: int, percent: float) -> int:
    """How many of `total` entries `percent` of them are: at least one, rounded up."""
    _validate.positive(percent=percent)
    _validate.in_range(0, 100, percent=percent)
    if not total:
        raise ValueError("a share of the largest entries needs at least one entry, got none")
    return min(total, max(1, math.ceil(total * percent / 100 * (1 - _ROUNDING))))


def _float_type(leaves: Sequence[jax.Array]) -> jnp.dtype:
    return jnp.result_type(jnp.float32, *leaves)


def _magnitude_bits(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Magnitudes as non-negative integers of the same order."""
    dtype = _float_type(leaves)
    integer = {4: jnp.int32, 8: jnp.int64}[dtype.itemsize]
    return [jax.lax.bitcast_convert_type(jnp.abs(leaf).astype(dtype), integer) for leaf in leaves]


def _kth_largest(bits: Sequence[jax.Array], k: int) -> jax.Array:
    """The k-th largest of non-negative integers in several arrays, built from its highest bit down."""
    # One array: on CPU a reduction per leaf and pass costs half as much again, and so do several bits per pass.
    together = jnp.concatenate([b.ravel() for b in bits])
    dtype = together.dtype
    highest = jnp.iinfo(dtype).bits - 2  # the sign bit is never set

    def body(step: jax.Array, found: jax.Array) -> jax.Array:
        candidate = found | (jnp.ones((), dtype) << (highest - step).astype(dtype))
        reached = jnp.sum(together >= candidate, dtype=jnp.int32)
        return jnp.where(reached >= k, candidate, found)

    return jax.lax.fori_loop(0, highest + 1, body, jnp.zeros((), dtype))
