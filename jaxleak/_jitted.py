"""Compiled functions of objects that come and go, such as models that are audited one after the other."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def jitted_for_few(
    *static: int, kept: int = 8
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """`jax.jit` with static arguments at these places, in ascending order, which are forgotten after some others.

    A cache of JAX's own keeps every static argument, such as a model with its weights, until the process ends. Here
    the values that were used last stay with their programs, so many as are `kept`. Arguments are given by position.
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
