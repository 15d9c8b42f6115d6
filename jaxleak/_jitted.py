"""Compile functions of short-lived objects, such as models that are audited one after the other."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def jitted_for_few(
    *static: int, kept: int = 8
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a `jax.jit` that forgets old static arguments; `static` are their places, in ascending order.

    JAX's own cache keeps every static argument, such as a model with its weights, until the process ends. Here only the
    `kept` values that were used last stay, with their programs. Callers give all arguments by position.
    """

    def wrapped(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.lru_cache(maxsize=kept)
        def compiled(*values: Any) -> Any:
            def bound(*others: Any) -> Any:
                arguments = list(others)
                for place, value in zip(static, values, strict=True):
                    arguments.insert(place, value)
                return function(*arguments)  # type: ignore[call-arg]

            return jax.jit(bound)

        @functools.wraps(function)
        def called(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            assert not named, "arguments are given by position"
            others = [argument for place, argument in enumerate(arguments) if place not in static]
            return compiled(*(arguments[place] for place in static))(*others)

        return called

    return wrapped
