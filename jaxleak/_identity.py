"""What a computation depends on, in few letters, by which a later process asks whether it goes on with the same one."""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxleak._base import PyTree
from jaxleak._tree import named_leaves

#: Share of an array's norm by which its sketches may differ. Rounding on another device stays far below, and
#: other data far above.
_ROUNDING = 1e-3


def of_key(key: jax.Array) -> str:
    """A digest of a random key, whether it is typed or raw."""
    return _digest(repr(np.asarray(_without_type(key)).tolist()))


def of_arrays(tree: PyTree) -> dict[str, Any]:
    """A sketch of all arrays of a tree, to be compared by `same`.

    It is no hash: a device that sums in another order computes the same observation with other last bits.

    Returns:
        By the name of each array, its shape, its norm, and its inner product with fixed signs.
    """
    return {name: _sketch(leaf) for name, leaf in named_leaves(tree).items()}


def of_code(*parts: Any) -> str:
    """A digest of the settings that functions, such as those of an attack, carry with them.

    It knows the functions' names and, to any depth, the numbers, words and arrays that they are closed over or have as
    defaults, the fields of dataclasses and named tuples, and the numbers, words and functions that other objects
    hold. It does not know what the functions' code says. Arrays count to the last bit: an attack that is closed over
    weights goes on with the same file of them, and not with weights that were trained anew.
    """
    return _described(parts, {}, ())


def same(now: Any, then: Any) -> bool:
    """Whether two of these descriptions are of the same thing; `then` may come from a damaged file."""
    if not isinstance(now, dict):
        return bool(now == then)
    return isinstance(then, dict) and now.keys() == then.keys() and all(_close(now[name], then[name]) for name in now)


def _without_type(array: Any) -> Any:
    """The array, or the numbers of a typed random key."""
    typed = jax.dtypes.issubdtype(jax.numpy.result_type(array), jax.dtypes.prng_key)
    return jax.random.key_data(array) if typed else array


def _sketch(leaf: Any) -> list[Any]:
    # A state begins with infinite losses, which the file's JSON does not know.
    values = np.nan_to_num(np.asarray(_without_type(leaf), np.float64), nan=2.0, posinf=1.0, neginf=-1.0).ravel()
    signs = np.random.default_rng(0).integers(0, 2, values.size, dtype=np.int8) * 2 - 1
    return [list(np.shape(leaf)), float(np.linalg.norm(values)), float(values @ signs)]


def _close(now: list[Any], then: Any) -> bool:
    try:
        shape, norm, product = then
        return bool(shape == now[0] and max(abs(norm - now[1]), abs(product - now[2])) <= _ROUNDING * now[1])
    except (TypeError, ValueError):
        return False


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _described(value: Any, known: dict[int, tuple[str, Any]], above: tuple[int, ...]) -> str:
    """A digest of a value.

    Args:
        value: anything.
        known: digests of what was met before, with the object itself, so that no other one gets its number.
        above: what the value is a part of; a function may be closed over itself.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return _digest(repr(value))
    if id(value) in above:
        return _digest(_name(value))
    if id(value) not in known:
        inside = (_described(part, known, (*above, id(value))) for part in _parts(value))
        known[id(value)] = _digest(_name(value), *inside), value
    return known[id(value)][0]


def _name(value: Any) -> str:
    # An object's own repr may hold its address, which differs from process to process.
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _parts(value: Any) -> list[Any]:
    """What a value is made of, as far as it can be known."""
    if isinstance(value, type):
        return []
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(_without_type(value))
        return [array.dtype.str, array.shape, None if array.dtype.hasobject else array.tobytes()]
    if isinstance(value, Mapping):
        return [part for item in sorted(value.items(), key=lambda item: str(item[0])) for part in item]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (tuple, list)):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if hasattr(value, "__code__"):
        return [value.__defaults__, value.__kwdefaults__, *_closed_over(value), getattr(value, "__self__", None)]
    return [getattr(value, "__wrapped__", None), getattr(value, "__self__", None), *_attributes(value)]


def _attributes(value: Any) -> Iterator[Any]:
    """The numbers, words and functions that an object holds; the rest may be a cache, which grows as it is used."""
    if not isinstance(value, types.ModuleType):
        for name, held in sorted(getattr(value, "__dict__", {}).items()):
            if isinstance(held, (bool, int, float, complex, str)) or hasattr(held, "__code__"):
                yield from (name, held)


def _closed_over(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that was never given a value
            yield None
