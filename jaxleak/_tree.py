"""PyTree arithmetic, and optimisers that act on selected rows of a table."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxleak._base import PyTree


def squared_norm(tree: PyTree) -> jax.Array:
    """Sum of squares over all leaves, in float32 at the least."""
    return dot(tree, tree)


def dot(a: PyTree, b: PyTree) -> jax.Array:
    """Inner product over all leaves of two trees of the same structure, in float32 at the least."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.vdot(wide(x), wide(y)), a, b)), jnp.zeros(()))


def wide(leaf: jax.Array) -> jax.Array:
    """The leaf in float32 or wider; in 16 bits the square of 300 overflows, and that of 1e-4 vanishes."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def where_seen(payload: PyTree, simulated: PyTree) -> PyTree:
    """The tree `simulated` without the leaves that the payload lacks."""
    return jax.tree.map(lambda a, b: None if a is None else b, payload, simulated, is_leaf=lambda a: a is None)


def norm(tree: PyTree) -> jax.Array:
    """Euclidean norm over all leaves; its gradient at zero is zero."""
    return root(squared_norm(tree))


def root(square: jax.Array) -> jax.Array:
    """Square root whose gradient at zero is zero instead of infinite; NaN stays NaN."""
    zero = square == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def clip_factor(tree: PyTree, clip: float) -> jax.Array:
    """min(1, clip / norm), the factor that brings the norm over all leaves of a tree to at most `clip`."""
    return jnp.minimum(1.0, clip / jnp.maximum(norm(tree), jnp.finfo(jnp.float32).tiny))


def all_finite(tree: PyTree) -> jax.Array:
    """True when every leaf is finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.array(True)


def where(condition: jax.Array, a: PyTree, b: PyTree) -> PyTree:
    """Choose leaf by leaf between two trees of the same structure."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def concrete(tree: PyTree) -> PyTree:
    """`tree` without the leaves that have no values yet because a transformation traces them."""
    return jax.tree.map(lambda leaf: None if isinstance(leaf, jax.core.Tracer) else leaf, tree)


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Every leaf by its path, like "head/kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def replaced(tree: PyTree, leaves: Mapping[str, Any]) -> PyTree:
    """The tree with other leaves under these names."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaves.get(jax.tree_util.keystr(path, simple=True, separator="/"), leaf), tree
    )


def below(names: Iterable[str], paths: Collection[str] | None) -> list[str]:
    """The names that are one of the paths or lie below one; all names if paths are None.

    Raises:
        ValueError: if `paths` is a text, since its letters would be taken for paths.
    """
    if isinstance(paths, str):
        raise ValueError(f"paths of leaves must be a tuple, such as ({paths!r},), got a text")
    return [name for name in names if paths is None or any(f"{name}/".startswith(f"{path}/") for path in paths)]


class RowState(NamedTuple):
    """Optimiser state of a table (N, ...): one row per sample, so that a batch touches only its own rows."""

    rows: Any  # optimiser state with leaves (N, ...)


class RowOptimizer(NamedTuple):
    """init(table) -> state; update(grads, state, table, index) -> (table, state)."""

    init: Any
    update: Any


def row_optimizer(transform: optax.GradientTransformation) -> RowOptimizer:
    """Apply `transform` to the rows of a table that a batch touches: gather, update, scatter.

    Every row carries a state of its own (moments and step count), so a row that is not in the batch does not drift.

    Args:
        transform: any optax transform; it sees one row at a time.

    Returns:
        A `RowOptimizer` whose `update` takes gradients (B, ...), the table (N, ...) and row numbers (B,).
    """

    def init(table: jax.Array) -> RowState:
        return RowState(jax.vmap(transform.init)(table))

    def update(grads: jax.Array, state: RowState, table: jax.Array, index: jax.Array) -> tuple[jax.Array, RowState]:
        rows = jax.tree.map(lambda leaf: leaf[index], state.rows)
        updates, rows = jax.vmap(transform.update)(grads, rows, table[index])
        table = table.at[index].add(updates)
        scattered = jax.tree.map(lambda leaf, new: leaf.at[index].set(new), state.rows, rows)
        return table, RowState(scattered)

    return RowOptimizer(init, update)
