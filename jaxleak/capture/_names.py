"""Arrays by somebody's names as the tree that a model expects."""

import difflib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxleak._base import PyTree

#: What wrappers put in front of the names: a tree of variables, PyTorch's parallel and compiled modules.
_PREFIXES = ("params.", "batch_stats.", "module.", "_orig_mod.", "model.")


def fit(arrays: Mapping[str, np.ndarray], like: PyTree, *, names: Sequence[str] | None = None, what: str) -> PyTree:
    """The arrays as a tree of the structure and the shapes of `like`.

    Names agree where their parts do, whether a dot or a slash separates them, and without what wrappers put in front
    ("params", "module"). Arrays that are called 0, 1, 2, ... are a list, as Flower sends it, and take `names` in order.

    Args:
        arrays: by name, for example from `read_arrays`.
        like: a tree of arrays or shapes, for example a model's parameters.
        names: names for the entries of a list, in order. There may be more than `like` has, since a state dict also
            holds running statistics. None takes the names of `like` in order.
        what: what the arrays are and where they come from, begins every message.

    Returns:
        The tree of `like` with arrays of the dtypes of `like`.

    Raises:
        ValueError: naming the first leaf that is missing or of another shape, and what is there instead.
    """
    import jax
    import jax.numpy as jnp

    from jaxleak._tree import named_leaves

    expected = named_leaves(like)
    if set(arrays) == {str(i) for i in range(len(arrays))}:
        arrays = _listed(arrays, list(expected) if names is None else list(names), what)
    found = {_plain(name): name for name in arrays}
    if len(found) != len(arrays):
        raise ValueError(f"{what}: two of its names differ only by a prefix")
    leaves = []
    missing = [name for name in expected if _plain(name) not in found]
    if missing:
        there = difflib.get_close_matches(_plain(missing[0]), found, n=1) or sorted(found)[:1]
        raise ValueError(
            f"{what}: {missing[0]} is missing ({len(missing)} of {len(expected)} are); it holds {len(arrays)} arrays, "
            f"such as {found[there[0]]}"
        )
    for name, leaf in expected.items():
        array = arrays[found[_plain(name)]]
        if array.shape != tuple(leaf.shape):
            hint = _hint(array.shape, tuple(leaf.shape))
            raise ValueError(f"{what}: {name} must have shape {tuple(leaf.shape)}, got {array.shape}{hint}")
        leaves.append(jnp.asarray(array, leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _hint(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if math.prod(found) == math.prod(expected) and sorted(found) == sorted(expected):
        return "; the axes look transposed, as between PyTorch (out, in, H, W) and Flax (H, W, in, out)"
    return ""


def _listed(arrays: Mapping[str, np.ndarray], names: list[str], what: str) -> dict[str, np.ndarray]:
    if len(arrays) != len(names):
        raise ValueError(f"{what}: it is a list of {len(arrays)} arrays, but the model has {len(names)} names")
    return {name: arrays[str(i)] for i, name in enumerate(names)}


def _plain(name: str) -> str:
    plain = name.replace("/", ".")
    while plain.startswith(_PREFIXES):
        plain = plain.split(".", 1)[1]
    return plain
