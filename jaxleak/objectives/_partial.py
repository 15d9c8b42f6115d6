"""Partial gradient matching: which entries of the gradients an attack compares (FedLeak, section 4.2).

A `Selection` returns a mask with the gradient's structure: 1 for entries that count, and 0 for the others. Both
gradients are multiplied by the mask before their distance is computed.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._magnitudes import kth_largest, magnitude_bits, share_count
from jaxleak.objectives._distances import Distance

#: `(observed, simulated) -> mask`, a tree of the gradients' structure and shapes that holds 0.0 and 1.0.
Selection = Callable[[PyTree, PyTree], PyTree]
SelectBy = Literal["simulated", "observed"]


def top_share(
    percent: float, *, per_tensor: bool = False, by: SelectBy = "simulated", bottom: bool = False
) -> Selection:
    """Select the entries largest in magnitude, FedLeak's set Lambda.

    The paper recomputes Lambda in every iteration from the simulated gradient; its released code selects per tensor.
    No gradient flows through the selection. Of n entries k = ceil(n percent / 100) are selected, and with them all
    ties of the last one. If a gradient has fewer than k non-zero entries, all of its entries are selected, because
    zeros tie with each other.

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
    share_count(1, percent)
    _validate.one_of(("simulated", "observed"), by=by)

    def mask_together(leaves: Sequence[jax.Array]) -> list[jax.Array]:
        bits = magnitude_bits(leaves)
        total = sum(leaf.size for leaf in leaves)
        count = share_count(total, percent)
        # Compare bit patterns as integers: float comparisons may flush subnormal numbers to zero and lose their order.
        threshold = kth_largest(bits, total - count + 1 if bottom else count)
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
    """Select the same entries always, e.g. those that reach a server which sees only a part of the model.

    Args:
        mask: tree of the gradients' structure and shapes with entries 0 and 1 (or weights in between).
    """
    mask = jax.lax.stop_gradient(jax.tree.map(jnp.asarray, mask))
    return lambda observed, simulated: mask


def apply_mask(mask: PyTree, tree: PyTree) -> PyTree:
    """`tree` with every entry multiplied by that of the mask; entries that are masked out get gradient 0."""
    return jax.tree.map(jnp.multiply, mask, tree)


def partial_distance(distance: Distance, selection: Selection) -> Distance:
    """`distance` between the selected entries of two gradients; all other entries are set to zero in both.

    Some attacks need one selection for several evaluations, as FedLeak does for its probe. They call the selection
    themselves and apply its mask.
    """

    def measured(observed: PyTree, simulated: PyTree) -> jax.Array:
        mask = selection(observed, simulated)
        return distance(apply_mask(mask, observed), apply_mask(mask, simulated))

    return measured
