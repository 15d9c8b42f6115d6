"""Depthwise convolutions whose derivatives, to any order, are depthwise convolutions and correlations again.

A depthwise convolution is a sum of shifted images, each times one weight per channel. XLA:CPU runs this sum as one
loop. Automatic differentiation turns the shifts into paddings, with the operations before them fused in. This takes
more than twice as long in one layer (benchmarks/README.md: "depthwise layer"), and longer still behind several layers.
So this module makes two primitives with rules written by hand, as in `jaxleak.models._bilinear`. The derivative by the
kernel is summed row by row, which keeps it in cache.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jaxleak.models._bilinear import Window, by_groups, by_rows, primitive_of
from jaxleak.models._cells import in_cells

Pads = tuple[tuple[int, int], tuple[int, int]]


class _Geometry(NamedTuple):
    """Which entries of an image a convolution reads."""

    window: Window
    pads: Pads  # zeros before and after, on both axes; a negative number cuts entries off
    turned: bool = False  # whether the kernel is read backwards

    def adjoint(self) -> "_Geometry":
        """The convolution that is the derivative of this one with respect to its image."""
        pads = [(k - 1 - before, k - 1 - after) for k, (before, after) in zip(self.window, self.pads, strict=True)]
        return _Geometry(self.window, (pads[0], pads[1]), not self.turned)


def _shifted(x: jax.Array, geometry: _Geometry) -> tuple[jax.Array, int, int]:
    """Pad images (G, B, H, W, C) with zeros; also return how many rows and columns the result of a convolution has."""
    padded = jax.lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *((*p, 0) for p in geometry.pads), (0, 0, 0))
    )
    rows, columns = (n - k + 1 for n, k in zip(padded.shape[2:4], geometry.window, strict=True))
    # Without the barrier XLA computes the padding, and all that comes before it, anew for every shift.
    return jax.lax.optimization_barrier(padded), rows, columns


def _convolve(x: jax.Array, kernel: jax.Array, *, geometry: _Geometry) -> jax.Array:
    """(G, B, H, W, C) and (G, kh, kw, C) to (G, B, H', W', C)."""
    padded, rows, columns = _shifted(x, geometry)
    kernel = (kernel[:, ::-1, ::-1] if geometry.turned else kernel)[:, :, :, None, None, None]
    places = itertools.product(*map(range, geometry.window))
    terms = (padded[:, :, i : i + rows, j : j + columns] * kernel[:, i, j] for i, j in places)
    return jax.lax.optimization_barrier(functools.reduce(jnp.add, terms))


def _correlate(x: jax.Array, y: jax.Array, *, geometry: _Geometry) -> jax.Array:
    """The derivative of `<y, _convolve(x, kernel)>` by a kernel that is not turned: (G, kh, kw, C)."""
    padded, rows, columns = _shifted(x, geometry)
    height, width = geometry.window

    def add_row(row: jax.Array, total: jax.Array) -> jax.Array:
        read = jax.lax.dynamic_slice_in_dim(padded, row, height, axis=2)
        factor = jax.lax.dynamic_index_in_dim(y, row, axis=2, keepdims=False)
        places = itertools.product(range(height), range(width))
        return total + jnp.stack([(read[:, :, i, j : j + columns] * factor).sum(axis=1) for i, j in places], axis=1)

    total = jnp.zeros((x.shape[0], height * width, columns, x.shape[-1]), x.dtype)
    return jax.lax.fori_loop(0, rows, add_row, total).sum(axis=2).reshape(x.shape[0], height, width, x.shape[-1])


def _image_shape(x: jax.Array, _: jax.Array, geometry: _Geometry) -> tuple[int, ...]:
    sides = (n + sum(p) - k + 1 for n, p, k in zip(x.shape[2:4], geometry.pads, geometry.window, strict=True))
    return (*x.shape[:2], *sides, x.shape[-1])


_conv = primitive_of("depthwise_conv", _convolve, _image_shape)
_correlation = primitive_of(
    "depthwise_conv_by_kernel", _correlate, lambda x, _, geometry: (x.shape[0], *geometry.window, x.shape[-1])
)


def _by_kernel(y: jax.Array, x: jax.Array, geometry: _Geometry) -> jax.Array:
    if geometry.turned:
        return _correlation.bind(y, x, geometry=geometry.adjoint())
    return _correlation.bind(x, y, geometry=geometry)


# Each rule maps the cotangent and both operands to a derivative: one by the first operand, one by the second.
ad.defbilinear(
    _conv,
    lambda y, _, kernel, *, geometry: _conv.bind(y, kernel, geometry=geometry.adjoint()),
    lambda y, x, kernel, *, geometry: _by_kernel(y, x, geometry),
)
ad.defbilinear(
    _correlation,
    lambda kernel, _, y, *, geometry: _conv.bind(y, kernel, geometry=geometry.adjoint()),
    lambda kernel, x, _, *, geometry: _conv.bind(x, kernel, geometry=geometry),
)

batching.primitive_batchers[_conv] = functools.partial(by_rows, _conv)
batching.primitive_batchers[_correlation] = functools.partial(by_groups, _correlation)


def depthwise_conv(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads) -> jax.Array:
    """A 2-D cross-correlation of every channel with its own kernel.

    Args:
        x: (B, H, W, C), in any unit.
        kernel: (kh, kw, C).
        stride: s >= 1, on both axes.
        pads: zeros before and after, on both axes.

    Returns:
        (B, H', W', C), in the unit of `x` times that of `kernel`.
    """
    kh, kw, channels = kernel.shape
    common = jnp.promote_types(x.dtype, kernel.dtype)  # the rules above are for two arrays of one dtype
    x, kernel = x.astype(common), kernel.astype(common)
    if stride == 1:
        return _conv.bind(x[None], kernel[None], geometry=_Geometry((kh, kw), pads))[0]
    # With a larger stride the pixels of a cell become channels.
    s, spans = stride, (-(-kh // stride), -(-kw // stride))
    edges = ((0, spans[0] * s - kh), (0, spans[1] * s - kw))
    x = _as_channels(in_cells(x, (kh, kw), (s, s), pads))
    kernel = _as_channels(in_cells(kernel[None], (s, s), (s, s), edges))[0]
    parts = _conv.bind(x[None], kernel[None], geometry=_Geometry(spans, ((0, 0), (0, 0))))[0]
    return parts.reshape(*parts.shape[:-1], stride**2, channels).sum(axis=-2)


def _as_channels(cells: jax.Array) -> jax.Array:
    """(B, h, s, w, t, C) to (B, h, w, s t C)."""
    batch, height, s, width, t, channels = cells.shape
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height, width, s * t * channels)
