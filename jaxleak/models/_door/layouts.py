"""Postpone transposes, so that networks of other layouts run in the library's layout (B, H, W, C) throughout.

PyTorch's images are (B, C, H, W), and the fast convolutions read (B, H, W, C). To move every image there and back
around each layer costs a quarter of a step. So a result keeps the order of axes in which it was computed, with a note
of the order that it should have. Elementwise functions, reductions and concatenations compute in the former. All other
steps get their inputs in the order that they should have.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak.models._door.program import Step

#: Primitives that act entry by entry and whose parameters say nothing of shapes.
_ELEMENTWISE = frozenset(
    [
        *("add", "sub", "mul", "div", "neg", "max", "min", "clamp", "select_n", "abs", "sign", "rem", "square"),
        *("exp", "exp2", "log", "log1p", "expm1", "logistic", "tanh", "erf", "erfc", "sin", "cos", "pow"),
        *("integer_pow", "sqrt", "rsqrt", "cbrt", "floor", "ceil", "round", "is_finite", "and", "or", "not"),
        *("gt", "ge", "lt", "le", "eq", "ne", "convert_element_type", "stop_gradient", "copy"),
    ]
)

_REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"])


class Moved(NamedTuple):
    """An array that stands for `transpose(array, axes)`, which is not computed yet."""

    array: jax.Array
    axes: tuple[int, ...]


def moved(array: jax.Array, axes: Sequence[int]) -> Any:
    """`transpose(array, axes)`, postponed."""
    return array if list(axes) == list(range(len(axes))) else Moved(array, tuple(axes))


def plain(value: Any) -> Any:
    """The value after its postponed transpose, if it has one."""
    return jnp.transpose(value.array, value.axes) if isinstance(value, Moved) else value


def in_order(value: Any, order: Sequence[int]) -> jax.Array:
    """`transpose(value, order)`, at no cost where it was computed in that order."""
    if isinstance(value, Moved):
        value, order = value.array, [value.axes[axis] for axis in order]
    return value if list(order) == list(range(len(order))) else jnp.transpose(value, tuple(order))


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The order of axes that undoes `axes`."""
    return tuple(sorted(range(len(axes)), key=lambda i: axes[i]))


def entry_by_entry(function: Callable[[jax.Array], jax.Array], value: Any) -> Any:
    """Apply a function that is elementwise or does not depend on the order of axes."""
    return moved(function(value.array), value.axes) if isinstance(value, Moved) else function(value)


def bind(step: Step, inputs: Sequence[Any]) -> list[Any]:
    """Apply the step's primitive, in the order of axes in which its inputs were computed if it can."""
    if step.name == "transpose":
        (value,), order = inputs, step.params["permutation"]
        if isinstance(value, Moved):
            return [moved(value.array, [value.axes[axis] for axis in order])]
        return [moved(value, order)]
    first = next((value for value in inputs if isinstance(value, Moved)), None)
    if first is None:
        return step.bind(inputs)
    axes, ranks = first.axes, {value.array.ndim if isinstance(value, Moved) else jnp.ndim(value) for value in inputs}
    if step.name in _ELEMENTWISE and ranks <= {0, len(axes)}:
        back = inverse(axes)
        (out,) = step.bind([in_order(v, back) if isinstance(v, Moved) or jnp.ndim(v) else v for v in inputs])
        return [moved(out, axes)]
    if step.name == "concatenate" and all(isinstance(value, Moved) and value.axes == axes for value in inputs):
        dimension = axes[step.params["dimension"]]
        return [moved(jax.lax.concatenate([value.array for value in inputs], dimension), axes)]
    if step.name in _REDUCTIONS:
        gone = tuple(sorted(axes[axis] for axis in step.params["axes"]))
        left = [axis for i, axis in enumerate(axes) if i not in step.params["axes"]]
        out = step.equation.primitive.bind(first.array, **{**step.params, "axes": gone})
        return [moved(out, [sorted(left).index(axis) for axis in left])]
    return step.bind([plain(value) for value in inputs])
