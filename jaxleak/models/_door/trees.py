"""Trees of other libraries as nested dictionaries, and back."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxleak._base import PyTree


def as_dict(tree: PyTree) -> dict[str, Any]:
    """Turn any PyTree of arrays into nested dictionaries, by the names of fields and the numbers of entries.

    Gradients of Equinox modules and states of Flax NNX get the form that the parameters of their classifiers have.
    Leaves that are None are left out.

    Raises:
        ValueError: if the tree is a single array.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = _names(path)
        if not names:
            raise ValueError("tree must hold named arrays, got a single one")
        at = found
        for name in names[:-1]:
            at = at.setdefault(name, {})
        at[names[-1]] = leaf
    return found


def filled(like: PyTree, values: Mapping[str, Any]) -> PyTree:
    """The tree `like` with its leaves taken from `values`, which has the form of `as_dict(like)`."""

    def found(path: Any, _: Any) -> Any:
        at: Any = values
        for name in _names(path):
            at = at[name]
        return at

    return jax.tree_util.tree_map_with_path(found, like)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)
