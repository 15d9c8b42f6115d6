"""Describe a run's configuration by values that JSON can keep, and compare two descriptions."""

import dataclasses
import dis
import functools
import hashlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak._base import PyTree

#: Packages whose objects are described by their types alone, except modules of networks (`_is_module`).
_LIBRARIES = ("jax", "jaxlib", "flax", "torch", "equinox")
#: Packages whose functions are described by their names; those of all others, such as a user's, also by their code.
_NAMED = (*_LIBRARIES, "jaxleak", "experiments", "optax", "numpy", "builtins", "functools", "operator")
#: Types of values that describe themselves.
_PLAIN = (bool, int, float, str)
#: Characters that a message quotes of one entry of a configuration.
_LONGEST = 200


class ConfigMismatchError(RuntimeError):
    """A folder's checkpoints or results belong to another configuration, or come from other data."""


def fingerprint(tree: PyTree) -> str:
    """SHA-256 (64 hexadecimal digits) of the names, shapes, types and values of all arrays of a tree.

    In the `config` of `Checkpoints` a fingerprint binds the checkpoints to the arrays that were attacked, whatever
    their file is called.
    """
    from jaxleak._tree import named_leaves

    found = hashlib.sha256()
    for name, leaf in named_leaves(tree).items():
        array = np.ascontiguousarray(leaf)
        found.update(f"{name} {np.shape(leaf)} {array.dtype.str} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def described(value: Any, inside: tuple[int, ...] = (), *, coarse: bool = False) -> Any:
    """Describe a configuration by values that JSON can keep.

    A function is described by its name, its closure, its defaults and the object whose method it is, since settings are
    mostly functions that other functions have made. A function that is not from a known package is also described by
    its bytecode, and by what it reads from its module: numbers, texts, arrays, functions, lists and dictionaries, and
    that module's classes and their objects. So it can be told from the same function before an edit. Another version of
    Python has other bytecode. An object that a function was made of is described by its type and its fields, and a
    class that is not from a known package also by its methods and by the numbers and texts that it holds.

    Args:
        value: the configuration.
        inside: functions and objects that are being described, by their `id`.
        coarse: whether to leave out the last digits of numbers, which differ between devices.
    """
    within = functools.partial(described, inside=inside, coarse=coarse)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # Optax's schedules turn a whole number of their closure into a float when they are first called.
        return int(value) if value.is_integer() else f"{value:.4g}" if coarse else value
    if isinstance(value, dict):
        return {str(name): within(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [within(entry) for entry in value]
    if _is_array(value):
        return _of_array(value, coarse)
    if isinstance(value, functools.partial):
        return within([value.func, value.args, value.keywords])
    inner = functools.partial(described, inside=(*inside, id(value)), coarse=coarse)
    if not hasattr(value, "__qualname__"):
        if inside:  # a function may have been made of anything
            held = [] if id(value) in inside else _held_by(value)
            of_type = _type_of(value) if _is_named(type(value)) else inner(type(value))
            return [of_type, [inner(entry) for entry in held]] if held else of_type
        raise ValueError(
            "config must hold numbers, texts, functions, arrays, and lists and dictionaries of these, got "
            f"{type(value).__name__}"
        )
    name = value.__qualname__
    if id(value) in inside:  # a function that calls itself
        return name
    made_of = [inner(part) for part in _made_of(value)]
    return [f"{value.__module__}.{name}", made_of] if made_of else f"{value.__module__}.{name}"


def _made_of(function: Any) -> list[Any]:
    """The values in a function's closure, its defaults, and the object whose method it is; or the parts of a class."""
    if isinstance(function, type):
        return [] if _is_named(function) else [part for base in function.__mro__ for part in _parts_of(base)]
    found = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != types.CellType()]
    found += [more for name in ("__defaults__", "__kwdefaults__") if (more := getattr(function, name, None))]
    if not _is_named(function):
        if code := getattr(function, "__code__", None):
            found += [f"code {_digest_of_code(code)}", _read_by(function, code)]
        elif hasattr(function, "__wrapped__"):  # a function behind jax.jit
            found.append(function.__wrapped__)
    owner = getattr(function, "__self__", None)
    return found if owner is None or isinstance(owner, types.ModuleType) else [*found, owner]


def _is_named(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] in _NAMED


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all functions that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _digest_of_code(code: types.CodeType) -> str:
    """A digest of what a function does: no names of files, lines or comments, which an edit elsewhere changes."""
    found = hashlib.sha256()
    for part in _codes(code):
        constants = [
            sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
            for constant in part.co_consts
            if not isinstance(constant, types.CodeType)
        ]
        found.update(part.co_code)
        found.update(repr((part.co_names, part.co_varnames, part.co_freevars, constants)).encode())
    return found.hexdigest()[:16]


def _read_by(function: Any, code: types.CodeType) -> dict[str, Any]:
    """What a function reads of its module, by name: plain values, functions, and classes and objects of the module."""
    read = {step.argval for part in _codes(code) for step in dis.get_instructions(part) if step.opname == "LOAD_GLOBAL"}
    given = {name: function.__globals__[name] for name in sorted(read) if name in function.__globals__}
    plain = (*_PLAIN, tuple, list, dict, np.ndarray, np.generic, types.FunctionType, functools.partial)

    def counts(value: Any) -> bool:
        kind = value if isinstance(value, type) else type(value)
        return isinstance(value, plain) or _is_array(value) or kind.__module__ == function.__module__

    return {name: value for name, value in given.items() if counts(value)}


def _parts_of(kind: type) -> list[Any]:
    """The methods of a class, and the numbers and texts that it holds; none of a known package's class."""
    if _is_named(kind):
        return []
    parts = ((name, getattr(part, "__func__", getattr(part, "fget", part))) for name, part in vars(kind).items())
    return [
        {name: part}
        for name, part in parts
        if isinstance(part, types.FunctionType) or (isinstance(part, _PLAIN) and not name.startswith("__"))
    ]


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__array__")


def _held_by(value: Any) -> list[Any]:
    """The values of an object's fields; none for most of a library's objects: their caches differ from run to run."""
    if type(value).__module__.partition(".")[0] in _LIBRARIES and not _is_module(value):
        return []
    if dataclasses.is_dataclass(value):  # may have slots instead of a __dict__
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())


def _is_module(value: Any) -> bool:
    """Whether a library's object is a module of Flax Linen or Equinox, whose fields do not change when it is called.

    Strides, say, tell two networks apart whose weights have the same shapes. Modules of Flax NNX hold their state.
    """
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__)
    return dataclasses.is_dataclass(value) and not {("flax", "Module"), ("equinox", "Module")}.isdisjoint(bases)


def _type_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _of_array(array: Any, coarse: bool) -> Any:
    """Describe a scalar by its value, and an array by its fingerprint or, if coarse, by its shape and norm."""
    import jax  # for its kinds of arrays alone

    if isinstance(array, jax.core.Tracer):  # an attack may be built inside of a compiled function
        return _type_of(array)
    array = without_type(array)
    if array.shape == ():
        return described(array.item(), coarse=coarse)
    if not coarse or array.dtype.kind not in "biufc":
        return fingerprint(array)
    return [list(array.shape), f"{np.linalg.norm(np.asarray(array, np.float64)):.3g}"]


def without_type(array: Any) -> Any:
    """The array as it is; for a typed random key, the numbers of the key."""
    import jax  # for its keys alone

    typed = isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if typed else array


def check_same(now: dict[str, Any], then: dict[str, Any], fields: dict[str, tuple[str, ...]], folder: Path) -> None:
    """Raise `ConfigMismatchError` where two configurations differ.

    Args:
        now: the configuration of this run, as `described` gives it.
        then: the configuration that the folder has.
        fields: names of the fields of the entries that are named tuples.
        folder: where the checkpoints are.
    """
    differing = [
        difference(name, then.get(name), now.get(name), fields.get(name, ()))
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name)
    ]
    if differing:
        raise ConfigMismatchError(
            f"{folder} holds checkpoints of another configuration ({'; '.join(differing)}); "
            "choose another folder or start over with fresh=True (--fresh)"
        )


def difference(name: str, then: Any, now: Any, fields: tuple[str, ...] = ()) -> str:
    """Say where two entries of a configuration first differ, since one entry may describe whole settings."""
    inside = ""
    if fields and isinstance(then, list) and len(then) == len(now):
        field, then, now = next(entry for entry in zip(fields, then, now, strict=True) if entry[1] != entry[2])
        name = f"{name}.{field}"
    while isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        if isinstance(now[0], str) and then[0] == now[0] and isinstance(now[-1], list):  # a function with what made it
            inside = f" (in {now[0].replace('.<locals>', '')})"
        differing = [(one, other) for one, other in zip(then, now, strict=True) if repr(one) != repr(other)]
        if not differing:  # NaN differs from NaN
            break
        then, now = differing[0]
    texts = [repr(then), repr(now)]
    same = next((i for i in range(min(map(len, texts))) if texts[0][i] != texts[1][i]), 0)
    start = 0 if max(map(len, texts)) <= _LONGEST else max(0, same - _LONGEST // 2)
    said = [f"{'...' * (start > 0)}{text[start:][:_LONGEST]}{'...' * (len(text) > start + _LONGEST)}" for text in texts]
    return f"{name}: {said[0]} there, {said[1]} now{inside}"
