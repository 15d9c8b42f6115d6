"""PyTorch's operators that change the size of images: linear in the images, with weights that are constants."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxleak.models._door.torch_table import Array, register


class _Axis(NamedTuple):
    """One axis of images, before and after resizing."""

    number: int
    before: int
    after: int
    step: np.float32  # pixels before for one pixel after; in single precision as in PyTorch, since this decides ties


def _axes(x: Array, size: Sequence[int] | None, scales: Sequence[Any]) -> list[_Axis]:
    """The axes of the images (B, C, ...); `scales` are their factors, in one list or separately, or None."""
    sizes = x.shape[2:]
    factors = [f for part in scales for f in (part if isinstance(part, (list, tuple)) else [part])]
    if len(factors) != len(sizes):
        factors = [None] * len(sizes)
    if size is None:
        size = [int(n * f) for n, f in zip(sizes, factors, strict=True)]
    # If a factor is given, PyTorch uses it, and not the ratio of the sizes.
    return [
        _Axis(i, n, m, np.float32(1 / f) if f else np.float32(n) / np.float32(m))
        for i, (n, m, f) in enumerate(zip(sizes, size, factors, strict=True), start=2)
    ]


def _nearest(offset: float) -> Callable[..., Array]:
    """Make nearest-neighbour resizing, which counts a pixel's place from its corner (offset 0) or middle (0.5)."""

    def resized(x: Array, size: Sequence[int] | None = None, *scales: Any) -> Array:
        for axis in _axes(x, size, scales):
            places = (np.arange(axis.after, dtype=np.float32) + np.float32(offset)) * axis.step
            places = np.minimum(places.astype(int), axis.before - 1)
            if axis.before == axis.after and x.ndim == 4 and not offset:
                continue  # if a factor such as 1.1 keeps the size, PyTorch copies, in this case only
            times = axis.after // axis.before
            if np.array_equal(places, np.arange(axis.before).repeat(times)):
                x = jnp.repeat(x, times, axis.number)  # derivatives of a repetition are sums and need no scatter
            else:
                x = x[(slice(None),) * axis.number + (places,)]
        return x

    return resized


register("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")(_nearest(0.0))
register("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")(_nearest(0.5))


@register("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def upsample_linear(x: Array, size: Sequence[int] | None, align_corners: bool, *scales: Any) -> Array:
    """Linear resizing: a mean of the two nearest pixels before on every axis, weighed by their distances."""
    for axis in _axes(x, size, scales):
        if axis.before == axis.after:
            continue
        places = np.maximum(_places(axis, align_corners), 0)
        below = np.minimum(places.astype(int), axis.before - 1)
        share = np.clip(places - below, 0, 1)
        x = _weighed(x, axis, ((below, 1 - share), (below + 1, share)))
    return x


@register("upsample_bicubic2d")
def upsample_bicubic(x: Array, size: Sequence[int] | None, align_corners: bool, *scales: Any) -> Array:
    """Cubic resizing: cubic convolution of the four nearest pixels before on every axis."""
    for axis in _axes(x, size, scales):
        places = _places(axis, align_corners)
        below = np.minimum(np.floor(places).astype(int), axis.before - 1)
        share = np.clip(places - below, 0, 1)
        x = _weighed(x, axis, [(below + i, _cubic(np.abs(share - i))) for i in (-1, 0, 1, 2)])
    return x


def _cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """The cubic kernel, with PyTorch's constant."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, far)


def _places(axis: _Axis, align_corners: bool) -> np.ndarray:
    """Places of the new pixels among the old ones, with corner on corner (`align_corners`) or edge on edge."""
    after = np.arange(axis.after)
    return after * (axis.before - 1) / max(axis.after - 1, 1) if align_corners else (after + 0.5) * axis.step - 0.5


def _weighed(x: Array, axis: _Axis, taps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Array:
    """Weighted sums of pixels along an axis, by a matrix; a pixel beyond the border is the border's pixel."""
    matrix = np.zeros((axis.before, axis.after), np.float32)
    for places, weights in taps:
        np.add.at(matrix, (np.clip(places, 0, axis.before - 1), np.arange(axis.after)), weights)
    return jnp.moveaxis(jnp.tensordot(x, jnp.asarray(matrix, x.dtype), (axis.number, 0)), -1, axis.number)
