"""PyTorch's elementwise operators, constants and reductions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._door.torch_table import OPERATORS, Array, dtype_of, register


def _unary(**functions: Callable[[Array], Array]) -> None:
    for name, function in functions.items():
        # The remaining arguments say how PyTorch stores the result.
        OPERATORS[name] = lambda x, *_, function=function, **__: function(x)


def _same(x: Array) -> Array:
    return x


_unary(
    relu=jax.nn.relu, sigmoid=jax.nn.sigmoid, tanh=jnp.tanh, silu=jax.nn.silu, mish=jax.nn.mish,
    selu=jax.nn.selu, hardswish=jax.nn.hard_swish, hardsigmoid=jax.nn.hard_sigmoid, log_sigmoid=jax.nn.log_sigmoid,
    abs=jnp.abs, neg=jnp.negative, exp=jnp.exp, log=jnp.log, sqrt=jnp.sqrt, rsqrt=jax.lax.rsqrt, erf=jax.lax.erf,
    sin=jnp.sin, cos=jnp.cos, reciprocal=jnp.reciprocal, square=jnp.square, sign=jnp.sign, floor=jnp.floor,
    logical_not=jnp.logical_not, clone=_same, contiguous=_same, detach=jax.lax.stop_gradient,
    alias=_same, lift_fresh_copy=_same, zeros_like=jnp.zeros_like, ones_like=jnp.ones_like,
)  # fmt: skip


def _binary(**functions: Callable[[Any, Any], Array]) -> None:
    for name, function in functions.items():
        OPERATORS[name] = lambda a, b, *_, function=function, **__: function(a, b)


_binary(
    mul=jnp.multiply, pow=jnp.power, maximum=jnp.maximum, minimum=jnp.minimum, gt=jnp.greater, ge=jnp.greater_equal,
    lt=jnp.less, le=jnp.less_equal, eq=jnp.equal, ne=jnp.not_equal, logical_and=jnp.logical_and,
    logical_or=jnp.logical_or, matmul=jnp.matmul, mm=jnp.matmul, bmm=jnp.matmul, mv=jnp.matmul, dot=jnp.matmul,
    remainder=jnp.remainder,
)  # fmt: skip


@register("add")
def add(a: Any, b: Any, *, alpha: float = 1) -> Array:
    """a + alpha b."""
    return jnp.add(a, b if alpha == 1 else alpha * b)


@register("sub")
def sub(a: Any, b: Any, *, alpha: float = 1) -> Array:
    """a - alpha b."""
    return jnp.subtract(a, b if alpha == 1 else alpha * b)


@register("rsub")
def rsub(a: Any, b: Any, alpha: float = 1) -> Array:
    """b - alpha a."""
    return jnp.subtract(b, a if alpha == 1 else alpha * a)


@register("div")
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Array:
    """a / b."""
    if rounding_mode is None:
        return jnp.true_divide(a, b)
    return jnp.floor_divide(a, b) if rounding_mode == "floor" else jnp.trunc(jnp.true_divide(a, b))


@register("clamp", "clip", "clamp_min")
def clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    """x clipped to bounds; the derivative at a bound is 1."""
    low = low if low is None or high is None else jnp.minimum(low, high)
    # Both comparisons read x itself, so that the smooth form of the two kinks is found.
    raised = x if low is None else jnp.where(x < low, low, x)
    return raised if high is None else jnp.where(x > high, high, raised)


@register("round")
def round_to(x: Array, *, decimals: int = 0) -> Array:
    """The nearest number with this many decimals."""
    return jnp.round(x, decimals)


@register("hardtanh")
def hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    """x clipped to bounds, with derivative 0 at a bound: behind zero biases, black pixels lie at a bound of 0."""
    return jnp.where(x >= high, high, jnp.where(x <= low, low, x))


OPERATORS["relu6"] = lambda x: hardtanh(x, 0.0, 6.0)
OPERATORS["clamp_max"] = lambda x, high: clamp(x, None, high)


@register("leaky_relu")
def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """x, or slope x where x is negative."""
    return jnp.where(x > 0, x, slope * x)  # the derivative at 0 is `slope`


@register("prelu")
def prelu(x: Array, weight: Array) -> Array:
    """x, or weight x where x is negative, with one weight for each channel."""
    shape = (1, -1, *(1,) * (x.ndim - 2)) if weight.size > 1 else (1,) * x.ndim
    return jnp.where(x > 0, x, weight.reshape(shape) * x)


@register("elu")
def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    """ELU, from which SELU and CELU are made."""
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.where(x > 0, 0.0, x)))


@register("gelu")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x times the normal distribution function."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@register("softplus")
def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """log(1 + exp(beta x)) / beta."""
    smooth = jax.nn.softplus(beta * x) / beta
    # At the usual threshold, x itself is the same number as the smooth form.
    return smooth if threshold >= 20 else jnp.where(beta * x > threshold, x, smooth)


@register("where")
def where(condition: Array, a: Any, b: Any) -> Array:
    """a where the condition holds, else b."""
    return jnp.where(condition, a, b)


@register("masked_fill")
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    """x with `value` where the mask is true."""
    return jnp.where(mask, value, x)


def _filled(value: float) -> Callable[..., Array]:
    return lambda shape, *_, **kwargs: jnp.full(tuple(shape), value, dtype_of(kwargs.get("dtype")))


OPERATORS["zeros"], OPERATORS["ones"] = _filled(0.0), _filled(1.0)
OPERATORS["empty"] = OPERATORS["empty_permuted"] = _filled(0.0)
OPERATORS["new_zeros"] = lambda x, shape, **kwargs: jnp.zeros(tuple(shape), x.dtype)
OPERATORS["new_ones"] = lambda x, shape, **kwargs: jnp.ones(tuple(shape), x.dtype)
OPERATORS["full"] = lambda shape, value, **kwargs: jnp.full(tuple(shape), value, dtype_of(kwargs.get("dtype")))
OPERATORS["full_like"] = lambda x, value, **kwargs: jnp.full_like(x, value)
OPERATORS["scalar_tensor"] = lambda value, **kwargs: jnp.asarray(value, dtype_of(kwargs.get("dtype")))


@register("arange")
def arange(*bounds: Any, dtype: Any = None, **_: Any) -> Array:
    """Equally spaced numbers."""
    return jnp.arange(*bounds).astype(dtype_of(dtype, None))


OPERATORS["sym_size"] = lambda x, axis: x.shape[axis]
OPERATORS["size"] = lambda x, axis=None: x.shape if axis is None else x.shape[axis]


@register("to", "_to_copy", "type_as", "to_copy")
def to(x: Array, *args: Any, **kwargs: Any) -> Array:
    """x in another dtype; devices and layouts are ignored."""
    wanted = [a for a in (*args, kwargs.get("dtype")) if str(a).startswith("torch.") and str(a) != "torch.strided"]
    known = [a for a in wanted if str(a).removeprefix("torch.") not in ("preserve_format", "contiguous_format")]
    return x.astype(dtype_of(known[0])) if known else x


OPERATORS["float"] = lambda x: x.astype(jnp.float32)


def _axes(axes: Any) -> tuple[int, ...] | None:
    return None if axes is None or (not isinstance(axes, int) and len(axes) == 0) else tuple(np.atleast_1d(axes))


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, axes: Any = None, keepdim: bool = False, **_: Any) -> Array:
        return function(x, axis=_axes(axes), keepdims=keepdim)

    return reduced


OPERATORS.update({"mean": _reduction(jnp.mean), "sum": _reduction(jnp.sum), "amax": _reduction(jnp.max)})
OPERATORS.update({"amin": _reduction(jnp.min), "logsumexp": _reduction(jax.nn.logsumexp)})


@register("max")
def max_(x: Array, axis: Any = None, keepdim: bool = False) -> Any:
    """The largest entry; along an axis, with its place; or the larger of two arrays."""
    if axis is None:
        return x.max()
    if not isinstance(axis, int):
        return jnp.maximum(x, axis)
    return x.max(axis=axis, keepdims=keepdim), x.argmax(axis=axis, keepdims=keepdim)


@register("var")
def var(x: Array, axes: Any = None, *args: Any, correction: float | None = None, keepdim: bool = False) -> Array:
    """Variance, unbiased unless said otherwise."""
    if isinstance(axes, bool):  # the form without axes
        axes, correction = None, float(axes)
    if args:
        correction, keepdim = float(args[0]), bool(args[1]) if len(args) > 1 else keepdim
    ddof = 1 if correction is None else int(correction)
    return jnp.var(x, axis=_axes(axes), ddof=ddof, keepdims=keepdim)


@register("linalg_vector_norm", "norm")
def norm(x: Array, order: Any = 2, axes: Any = None, keepdim: bool = False, **_: Any) -> Array:
    """Norms along axes."""
    return jnp.linalg.vector_norm(x, axis=_axes(axes), keepdims=keepdim, ord=2 if order is None else order)


@register("softmax", "_softmax")
def softmax(x: Array, axis: int, *_: Any) -> Array:
    """Exponentials divided by their sum."""
    return jax.nn.softmax(x, axis)


@register("log_softmax", "_log_softmax")
def log_softmax(x: Array, axis: int, *_: Any) -> Array:
    """Logarithm of `softmax`."""
    return jax.nn.log_softmax(x, axis)
