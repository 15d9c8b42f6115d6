"""The table of PyTorch's operators in JAX, and what Python computes with sizes in a graph."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array

#: Functions by the name behind "aten::", without the underscore of operators that act in place.
OPERATORS: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into the table under these names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return enter


def dtype_of(dtype: Any, otherwise: Any = jnp.float32) -> Any:
    """JAX's dtype for PyTorch's; double precision becomes single."""
    names = {"float64": "float32", "int64": "int32", "long": "int32"}
    name = str(dtype).removeprefix("torch.")
    return otherwise if dtype is None else jnp.dtype(names.get(name, name))


#: Python's operators, with which graphs compute sizes.
PYTHON: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
        operator.neg, operator.eq, operator.ne, operator.ge, operator.le, operator.gt, operator.lt, operator.pow,
    )
}  # fmt: skip
PYTHON["sym_max"], PYTHON["sym_min"], PYTHON["sym_not"] = max, min, operator.not_
PYTHON["sym_float"], PYTHON["sym_int"] = float, int
PYTHON["sym_sum"] = lambda parts: functools.reduce(operator.add, parts)
