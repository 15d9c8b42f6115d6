"""Describe settings in one line that a person can read: functions by their names and their numbers."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any


def in_words(value: Any) -> str:
    """One line for a value of some settings, such as `top_share(per_tensor=no, percent=50)`.

    A function that was made by another function has the maker's name, with the numbers, texts and functions that it was
    made of. An optimizer of optax is written as the parts that it applies one after the other. A weighted sum of
    distances looks like `1 relative_l1 + 1 cosine`.

    Args:
        value: a number, a text, a function, an optimizer, a named tuple, or tuples, lists and dictionaries of these;
            anything else is the name of its type.
    """
    return _said(value, ())


def _said(value: Any, inside: tuple[int, ...]) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_said(name, inside)}: {_said(entry, inside)}" for name, entry in value.items()) + "}"
    if isinstance(value, tuple) and hasattr(value, "update") and hasattr(value, "init"):
        return _said(value.update, inside)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _called(type(value).__name__, value._asdict().items(), inside)
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_said(entry, inside) for entry in value) + ")"
    if getattr(value, "shape", None) == ():
        return f"{float(value):g}"
    if isinstance(value, functools.partial):
        given = [*((f"argument {i}", entry) for i, entry in enumerate(value.args)), *value.keywords.items()]
        return _called(_name(value.func), given, inside)
    if not hasattr(value, "__qualname__"):
        return type(value).__name__
    return _function(value, inside)


def _function(value: Callable[..., Any], inside: tuple[int, ...]) -> str:
    name = _name(value)
    if id(value) in inside:  # a function that calls itself
        return name
    within = (*inside, id(value))
    made_of = dict(_made_of(value))
    if name == "with_extra_args_support":  # optax wraps transforms without other arguments, to no effect
        return _said(made_of["tx"], within) if "tx" in made_of else name
    if name == "chain" and isinstance(parts := made_of.get("update_fns"), tuple):
        return ", then ".join(_said(part, within) for part in parts)
    if name == "weighted" and isinstance(terms := made_of.get("used"), list | tuple):
        return " + ".join(f"{_said(weight, within)} {_said(distance, within)}" for weight, distance in terms)
    if name == "scale_by_schedule" and _name(rate := made_of.get("step_size_fn")) == "scale_by_learning_rate":
        return _said(rate, within)
    # Functions that a maker defines for its own use are left out: the maker's name stands for them.
    told = [(of, entry) for of, entry in made_of.items() if entry is not None and not _is_part(entry, name)]
    return _called(name, told, within)


def _made_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values in a function's closure."""
    code, cells = getattr(value, "__code__", None), getattr(value, "__closure__", None)
    for name, cell in zip(code.co_freevars, cells, strict=True) if code and cells else ():
        if cell != types.CellType():
            yield name, cell.cell_contents


def _is_part(value: Any, of: str) -> bool:
    if isinstance(value, tuple) and hasattr(value, "update") and hasattr(value, "init"):
        return False
    return callable(value) and "<locals>" in getattr(value, "__qualname__", "") and _name(value) in of


def _name(value: Any) -> str:
    """The name of a function, or of the function that made it."""
    return str(getattr(value, "__qualname__", "")).partition(".<locals>")[0].rpartition(".")[2]


def _called(name: str, made_of: Any, inside: tuple[int, ...]) -> str:
    told = ", ".join(f"{of}={_said(entry, inside)}" for of, entry in made_of if entry is not None)
    return f"{name}({told})" if told else name
