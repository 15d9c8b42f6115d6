"""Matching arrays, by another library's names, with the tree of parameters that a model expects."""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxleak._base import PyTree
from jaxleak.capture._arrays import COUNTER

#: Prefixes that wrappers put before names: a tree of variables, and PyTorch's parallel and compiled modules.
_PREFIXES = ("params.", "batch_stats.", "module.", "_orig_mod.", "model.")
#: Largest number of prefixes that are removed; with this number, they are removed from the model's own names too.
_MOST_PREFIXES = 4


def fit(arrays: Mapping[str, np.ndarray], like: PyTree, *, names: Sequence[str] | None = None, what: str) -> PyTree:
    """Arrange arrays as a tree of the structure and the shapes of `like`.

    Two names agree if their parts do, whether a dot or a slash separates the parts. If names are missing, the prefixes
    that wrappers put before names ("params", "module") are ignored. A list of arrays, as Flower sends it, gets `names`
    in order; see `in_order`.

    Args:
        arrays: arrays by name, for example from `read_arrays`.
        like: tree of arrays or shapes, for example a model's parameters.
        names: names for the entries of a list, in order. They may be more than `like` has, since a state dict also
            holds running statistics. Take `listed` of a `jaxleak.models.Classifier` or `list(net.state_dict())`. None
            refuses lists.
        what: beginning of every message, which says what the arrays are and where they come from.

    Returns:
        The tree of `like` with arrays of the dtypes of `like`.

    Raises:
        ValueError: naming the first leaf that is missing or of another shape, and what the arrays hold instead; for a
            list, as in `in_order`.
    """
    import jax
    import jax.numpy as jnp

    from jaxleak._tree import named_leaves

    expected = named_leaves(like)
    arrays = in_order(arrays, names, list(expected), what=what)
    found, plain = _by_name(arrays, list(expected), what)
    leaves = []
    missing = [name for name in expected if plain(name) not in found]
    if missing:
        there = difflib.get_close_matches(plain(missing[0]), found, n=1) or sorted(found)[:1]
        if len(missing) == len(expected):
            raise ValueError(
                f"{what} has no name of the model, so it is of another one: it holds {found[there[0]]}, and the model "
                f"{missing[0]}"
            )
        raise ValueError(
            f"{what}: {missing[0]} is missing ({len(missing)} of {len(expected)} are); it holds {len(arrays)} arrays, "
            f"such as {found[there[0]]}"
        )
    for name, leaf in expected.items():
        array = arrays[found[plain(name)]]
        if array.shape != tuple(leaf.shape):
            hint = _hint(array.shape, tuple(leaf.shape))
            raise ValueError(f"{what}: {name} must have shape {tuple(leaf.shape)}, got {array.shape}{hint}")
        leaves.append(jnp.asarray(array, leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def held_of(
    arrays: Mapping[str, np.ndarray], expected: list[str], names: Sequence[str] | None, *, what: str
) -> dict[str, np.ndarray]:
    """Select the arrays that the model expects, by the model's names; missing and unexpected arrays are left out.

    Args:
        arrays: arrays by name, or a list as in `in_order`.
        expected: the model's names.
        names: names for the entries of a list, in order.
        what: beginning of every message.

    Raises:
        ValueError: as in `in_order`, or if two names differ only by a prefix.
    """
    arrays = in_order(arrays, names, expected, what=what)
    found, plain = _by_name(arrays, expected, what)
    return {name: arrays[found[plain(name)]] for name in expected if plain(name) in found}


def _hint(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if sorted(found) == sorted(expected):
        return "; the axes look transposed, as between PyTorch (out, in, H, W) and Flax (H, W, in, out)"
    return ""


def in_order(
    arrays: Mapping[str, np.ndarray], names: Sequence[str] | None, parameters: Sequence[str], *, what: str
) -> dict[str, np.ndarray]:
    """Give the entries of a list of arrays their names; arrays that have names stay as they are.

    Arrays are a list if their names are 0, 1, 2, ..., or arr_0, arr_1, ..., as `numpy.savez` gives them.

    Args:
        arrays: arrays by name.
        names: names of all entries that a list may hold, in order: parameters, running statistics, counters.
        parameters: the names that are parameters. A list may hold these alone, or all entries but PyTorch's counters.
        what: beginning of every message.

    Raises:
        ValueError: if the arrays are a list, and the names are unknown or do not fit its number of entries.
    """
    listed = next((p for p in ("", "arr_") if set(arrays) == {f"{p}{i}" for i in range(len(arrays))}), None)
    if listed is None:
        return dict(arrays)
    if names is None:
        raise ValueError(
            f"{what}: it is a list of {len(arrays)} arrays, whose order is not known: give names, such as the listed "
            "of a model"
        )
    own = {dotted(name) for name in parameters}
    choices = [list(names), [n for n in names if not n.endswith(COUNTER)], [n for n in names if dotted(n) in own]]
    fitting = next((choice for choice in choices if len(choice) == len(arrays)), None)
    if fitting is None:
        raise ValueError(
            f"{what}: it is a list of {len(arrays)} arrays, but the model has {len(names)} names, {len(choices[-1])} "
            "of parameters"
        )
    return {name: arrays[f"{listed}{i}"] for i, name in enumerate(fitting)}


def matching(layers: Iterable[str], names: Sequence[str], *, what: str) -> list[str]:
    """Find the names that belong to the given layers or parameters, or that lie below one of them.

    Raises:
        ValueError: naming a layer to which no name belongs.
    """
    found: dict[str, None] = {}
    for layer in layers:
        for most in range(_MOST_PREFIXES + 1):
            top = _without_prefixes(layer, most)
            below = [name for name in names if f"{dotted(name)}.".startswith(f"{top}.")]
            if below:
                break
        else:
            raise ValueError(f"{what}: the model has no layer {layer!r}; its names are such as {', '.join(names[:3])}")
        found.update(dict.fromkeys(below))
    return list(found)


def dotted(name: str) -> str:
    """Return the name with dots between its parts."""
    return name.replace("/", ".")


def _by_name(
    arrays: Mapping[str, np.ndarray], expected: list[str], what: str
) -> tuple[dict[str, str], Callable[[str], str]]:
    """Map the shortened names that are compared to the arrays' names, and return the function that shortens a name.

    In some networks a prefix is a part of the name ("model.fc" beside "fc"), so as few as possible are removed.
    """
    for most in range(_MOST_PREFIXES):
        found = {_without_prefixes(name, most): name for name in arrays}
        if all(dotted(name) in found for name in expected):
            break
    else:
        most = _MOST_PREFIXES
        found = {_without_prefixes(name, most): name for name in arrays}
    plain = dotted if most < _MOST_PREFIXES else functools.partial(_without_prefixes, most=most)
    wanted = set(map(plain, expected))
    for name in arrays:
        same = _without_prefixes(name, most)
        if same in wanted and found[same] != name:
            raise ValueError(f"{what}: {name} and {found[same]} differ only by a prefix")
    return found, plain


def _without_prefixes(name: str, most: int) -> str:
    plain = dotted(name)
    while most and plain.startswith(_PREFIXES):
        plain, most = plain.split(".", 1)[1], most - 1
    return plain
