"""PyTorch's layers: linear ones, normalisation, pooling, dropout. Images are (B, C, H, W)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._door.torch_entries import add
from jaxleak.models._door.torch_table import OPERATORS, Array, register


@register("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x weight^T + bias."""
    y = jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else y + bias


@register("addmm")
def addmm(bias: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta bias + alpha a b."""
    return add(alpha * (a @ b) if alpha != 1 else a @ b, bias if beta == 1 else beta * bias)


OPERATORS["baddbmm"] = addmm
OPERATORS["einsum"] = lambda equation, operands, **_: jnp.einsum(equation, *operands)


@register("convolution")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """A cross-correlation over any number of axes, or its derivative by the input (`transposed`)."""
    axes = x.ndim - 2
    strides, dilations = ([*s] * axes if len(s) == 1 else [*s] for s in (stride, dilation))
    if transposed:
        y = _transposed(x, weight, strides, padding, dilations, output_padding, groups)
        return y if bias is None else y + bias.reshape(1, -1, *(1,) * axes)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        pads = [(t // 2, t - t // 2) if padding == "same" else (0, 0) for t in total]
    else:
        pads = [(p, p) for p in ([*padding] * axes if len(padding) == 1 else padding)]
    spatial = "DHW"[-axes:]
    names = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    y = jax.lax.conv_general_dilated(
        x, weight, strides, pads, rhs_dilation=dilations, dimension_numbers=names, feature_group_count=groups
    )
    return y if bias is None else y + bias.reshape(1, -1, *(1,) * axes)


@register("conv1d", "conv2d", "conv3d")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """A convolution: `torch.conv1d`, `conv2d` or `conv3d` with the arguments that PyTorch gives them."""
    strides, pads, dilations = _listed(stride, padding, dilation)
    return convolution(x, weight, bias, strides, pads, dilations, False, (), groups)


@register("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """A transposed convolution with the arguments that PyTorch gives it."""
    strides, pads, more, dilations = _listed(stride, padding, output_padding, dilation)
    return convolution(x, weight, bias, strides, pads, dilations, True, more, groups)


def _listed(*values: Any) -> list[Any]:
    """Put each single number, which PyTorch gives for all axes, into a list; lists and names stay."""
    return [[value] if isinstance(value, int) else value for value in values]


def _transposed(
    x: Array,
    weight: Array,
    strides: Sequence[int],
    padding: Sequence[int] | str,
    dilations: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """A transposed convolution: every entry of x adds the kernel, times that entry, to the output."""
    assert not isinstance(padding, str)
    axes, sizes = x.ndim - 2, weight.shape[2:]
    pads, more = ([*p] * axes if len(p) == 1 else [*p] for p in (padding, output_padding))
    none = (0, 0, 0)
    if groups == 1 and all(k == s and (k == 1 or d == 1) for k, s, d in zip(sizes, strides, dilations, strict=True)):
        # If nothing overlaps, this is a dense layer that makes several pixels of every pixel.
        y = jax.lax.dot_general(x, weight, (((1,), (0,)), ((), ())))  # (B, *before, C_out, *sizes)
        order = [0, axes + 1, *(i for axis in range(axes) for i in (1 + axis, axes + 2 + axis))]
        after = [n * k for n, k in zip(x.shape[2:], sizes, strict=True)]
        y = jnp.transpose(y, order).reshape(len(x), weight.shape[1], *after)
        edges = [(-p, m - p, 0) for p, m in zip(pads, more, strict=True)]
        return y if not any(map(any, edges)) else jax.lax.pad(y, jnp.zeros((), y.dtype), [none, none, *edges])
    # Otherwise it is a convolution of x, with zeros between its entries, by the kernel turned round.
    edges = []
    for k, s, d, p, m in zip(sizes, strides, dilations, pads, more, strict=True):
        edge = d * (k - 1) - p
        edges.append((edge, edge + m, s - 1))
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [none, none, *edges])
    kernel = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)  # (groups, C_out, C_in, *sizes) of a group
    kernel = jnp.flip(kernel.reshape(-1, *kernel.shape[2:]), range(2, 2 + axes))
    return convolution(x, kernel, None, (1,), (0,), dilations, False, (), groups)


@register("scaled_dot_product_attention")
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """softmax(q k^T scale + mask) v."""
    if enable_gqa:
        raise NotImplementedError("attention with grouped queries")
    no_dropout(dropout_p, True)
    weights = query @ jnp.swapaxes(key, -1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(weights.shape[-2:], bool))
    if attn_mask is not None:
        weights = jnp.where(attn_mask, weights, -jnp.inf) if attn_mask.dtype == bool else weights + attn_mask
    return jax.nn.softmax(weights, axis=-1) @ value


@register("embedding")
def embedding(weight: Array, indices: Array, padding_idx: int = -1, *_: Any) -> Array:
    """Rows of a table; the row for padding has no gradient."""
    rows = weight[indices]
    if padding_idx < 0:
        return rows
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


def normalised(x: Array, mean: Array, variance: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """Batch normalisation by these statistics; channels are the second axis."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    scale = jax.lax.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    y = (x - mean.reshape(shape)) * scale.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


@register("layer_norm")
def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> Array:
    """Layer normalisation over the last axes."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    y = centred * jax.lax.rsqrt((centred**2).mean(axis=axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


OPERATORS["native_layer_norm"] = lambda *args: (layer_norm(*args), None, None)


@register("group_norm")
def group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> Array:
    """Group normalisation: over groups of channels of each image."""
    split = x.reshape(x.shape[0], groups, -1)
    centred = split - split.mean(axis=2, keepdims=True)
    y = (centred * jax.lax.rsqrt((centred**2).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


OPERATORS["native_group_norm"] = lambda x, weight, bias, n, c, hw, groups, eps: (
    group_norm(x, groups, weight, bias, eps),
    None,
    None,
)


@register("instance_norm")
def instance_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    variance: Array | None,
    of_input: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Array:
    """Instance normalisation: every channel of every image is normalised by its own mean and variance."""
    del mean, variance, momentum
    if not of_input:
        raise NotImplementedError("instance normalisation by running statistics")
    return group_norm(x, x.shape[1], weight, bias, eps)


@register("rms_norm")
def rms_norm(x: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None) -> Array:
    """Normalisation by the root of the mean square over the last axes."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    small = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    y = x * jax.lax.rsqrt((x**2).mean(axis=axes, keepdims=True) + small)
    return y if weight is None else y * weight


def _pairs(value: Any, otherwise: Any = None) -> tuple[int, int]:
    value = otherwise if value is None or (not isinstance(value, int) and len(value) == 0) else value
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]


def _pool_pads(x: Array, window: Any, stride: Any, padding: Any, ceil: bool) -> list[tuple[int, int]]:
    """Padding of the two axes; with `ceil` a last window may begin inside the image and end outside."""
    pads = []
    for n, k, s, p in zip(x.shape[-2:], window, stride, padding, strict=True):
        more = 0
        if ceil:
            count = -(-(n + 2 * p - k) // s) + 1
            count -= (count - 1) * s >= n + p
            more = max((count - 1) * s + k - (n + 2 * p), 0)
        pads.append((p, p + more))
    return pads


@register("max_pool2d")
def max_pool2d(
    x: Array, window: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Array:
    """Maxima of windows."""
    size = _pairs(window)
    steps, holes = _pairs(stride, size), _pairs(dilation)
    reach = [d * (k - 1) + 1 for d, k in zip(holes, size, strict=True)]
    pads = _pool_pads(x, reach, steps, _pairs(padding), ceil_mode)
    around = [(0, 0)] * (x.ndim - 2)
    ones = (1,) * (x.ndim - 2)
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        (*ones, *size),
        (*ones, *steps),
        [*around, *pads],
        window_dilation=(*ones, *holes),
    )


OPERATORS["max_pool2d_with_indices"] = lambda *args, **kwargs: (max_pool2d(*args, **kwargs), None)


@register("avg_pool2d")
def avg_pool2d(
    x: Array,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Means of windows."""
    size = _pairs(window)
    steps, inner = _pairs(stride, size), _pairs(padding)
    pads = _pool_pads(x, size, steps, inner, ceil_mode)
    if size == steps and not any(map(any, pads)) and divisor_override is None:
        rows, columns = (n // k for n, k in zip(x.shape[-2:], size, strict=True))
        return adaptive_avg_pool2d(x[..., : rows * size[0], : columns * size[1]], (rows, columns))
    counted = [(p, p) for p in inner] if count_include_pad else [(0, 0), (0, 0)]
    beyond = [(a - c, b - d) for (a, b), (c, d) in zip(pads, counted, strict=True)]
    inside = np.pad(np.pad(np.ones(x.shape[-2:], np.float32), counted, constant_values=1.0), beyond)
    count = np.lib.stride_tricks.sliding_window_view(inside, size)[:: steps[0], :: steps[1]].sum(axis=(2, 3))
    # The mean is a convolution with ones, since its derivatives of any order are fast.
    y = x.reshape(-1, 1, *x.shape[-2:])
    y = jax.lax.conv_general_dilated(
        y, jnp.ones((1, 1, *size), x.dtype), steps, pads, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return y.reshape(*x.shape[:-2], *y.shape[-2:]) / (divisor_override or count)


@register("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Array, size: Any) -> Array:
    """Means of as many regions as `size` says; regions may overlap."""
    return _adaptive(x, size, jnp.mean)


@register("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Array, size: Any) -> tuple[Array, None]:
    """Maxima of as many regions as `size` says; regions may overlap."""
    return _adaptive(x, size, jnp.max), None


def _adaptive(x: Array, size: Any, function: Callable[..., Array]) -> Array:
    height, width = x.shape[-2:]
    rows, columns = _pairs(size)
    if rows == columns == 1:
        return function(x, axis=(-2, -1), keepdims=True)
    if height % rows == width % columns == 0:
        cells = x.reshape(*x.shape[:-2], rows, height // rows, columns, width // columns)
        return function(cells, axis=(-3, -1))

    def edges(n: int, count: int) -> list[slice]:
        return [slice(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]

    parts = [[function(x[..., r, c], axis=(-2, -1)) for c in edges(width, columns)] for r in edges(height, rows)]
    return jnp.stack([jnp.stack(row, -1) for row in parts], -2)


class ActiveDropoutError(ValueError):
    """Dropout is active, and nobody outside of the client knows its masks."""


def no_dropout(p: float, train: bool | None) -> None:
    """Raise `ActiveDropoutError` if dropout would act."""
    if train is not False and p > 0:
        raise ActiveDropoutError(f"dropout with p = {p:g}")


@register("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(x: Array, p: float, train: bool) -> Array:
    """Return x unchanged, or raise `ActiveDropoutError` if dropout would act."""
    no_dropout(p, train)
    return x


@register("native_dropout")
def native_dropout(x: Array, p: float, train: bool | None) -> tuple[Array, None]:
    """Return x unchanged, or raise `ActiveDropoutError` if dropout would act."""
    no_dropout(p, train)
    return x, None


@register("bernoulli", "rand", "rand_like", "randn", "randn_like")
def random(*_: Any, **__: Any) -> Array:
    """Always raise `ActiveDropoutError`."""
    raise ActiveDropoutError("random numbers, as of stochastic depth or of noise")


#: Replacements of these operators if dropout is off: a mask is its own mean, by which PyTorch divides it.
WITHOUT_DROPOUT: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), lambda x, *_: x),
    "native_dropout": lambda x, *_: (x, None),
    "bernoulli": lambda x, p=None, **_: x if p is None else jnp.full_like(x, p),
    "scaled_dot_product_attention": lambda *args, **kwargs: attention(
        *args[:4], *([0.0] if len(args) > 4 else []), *args[5:], **{k: v for k, v in kwargs.items() if k != "dropout_p"}
    ),
}
