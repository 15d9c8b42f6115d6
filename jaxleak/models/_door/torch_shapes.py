"""PyTorch's operators that only move numbers."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._door.torch_table import OPERATORS, Array, register


@register("view", "reshape", "_unsafe_view", "view_copy")
def view(x: Array, shape: Sequence[int]) -> Array:
    """The same numbers in another shape."""
    return x.reshape(tuple(shape))


@register("flatten")
def flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    """Axes start to end as one."""
    end = end % x.ndim
    return x.reshape(*x.shape[: start % x.ndim], -1, *x.shape[end + 1 :])


@register("unflatten")
def unflatten(x: Array, axis: int, sizes: Sequence[int]) -> Array:
    """One axis as several."""
    axis = axis % x.ndim
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


@register("permute", "permute_copy")
def permute(x: Array, axes: Sequence[int]) -> Array:
    """Axes in another order."""
    return jnp.transpose(x, tuple(axes))


@register("transpose", "transpose_copy")
def transpose(x: Array, a: int, b: int) -> Array:
    """Two axes exchanged."""
    return jnp.swapaxes(x, a, b)


OPERATORS["t"] = lambda x: x.T
OPERATORS["numpy_T"] = lambda x: x.T


@register("unsqueeze", "unsqueeze_copy")
def unsqueeze(x: Array, axis: int) -> Array:
    """A new axis of one entry."""
    return jnp.expand_dims(x, axis)


@register("squeeze", "squeeze_copy")
def squeeze(x: Array, axes: int | Sequence[int] | None = None) -> Array:
    """x without axes of one entry."""
    chosen = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    return jnp.squeeze(x, tuple(a % x.ndim for a in chosen if x.shape[a] == 1))


@register("expand", "expand_copy")
def expand(x: Array, shape: Sequence[int], *, implicit: bool = False) -> Array:
    """x repeated along axes of one entry; -1 keeps an axis."""
    del implicit
    before = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(n if m == -1 else m for n, m in zip(before, shape, strict=True)))


OPERATORS["expand_as"] = lambda x, other: jnp.broadcast_to(x, other.shape)
OPERATORS["view_as"] = OPERATORS["reshape_as"] = lambda x, other: x.reshape(other.shape)
OPERATORS["repeat"] = lambda x, repeats: jnp.tile(x, tuple(repeats))


@register("cat", "concat", "concatenate")
def cat(parts: Sequence[Array], axis: int = 0) -> Array:
    """Arrays joined along an axis."""
    return jnp.concatenate(parts, axis)


OPERATORS["stack"] = lambda parts, axis=0: jnp.stack(parts, axis)


@register("slice", "slice_copy")
def slice_(x: Array, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """Part of an axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]


@register("select", "select_copy")
def select(x: Array, axis: int, index: int) -> Array:
    """One entry of an axis."""
    return jnp.take(x, index, axis) if not isinstance(index, int) else x[(slice(None),) * (axis % x.ndim) + (index,)]


OPERATORS["narrow"] = lambda x, axis, start, length: slice_(x, axis, start, start + length)


@register("split", "split_with_sizes", "split_copy", "split_with_sizes_copy")
def split(x: Array, sizes: int | Sequence[int], axis: int = 0) -> list[Array]:
    """x split along an axis into parts of these sizes."""
    if isinstance(sizes, int):
        total = x.shape[axis]
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    return list(jnp.split(x, [int(i) for i in np.cumsum(sizes)[:-1]], axis))


@register("chunk")
def chunk(x: Array, count: int, axis: int = 0) -> list[Array]:
    """x split along an axis into `count` parts."""
    return split(x, -(-x.shape[axis] // count), axis)


@register("unbind")
def unbind(x: Array, axis: int = 0) -> list[Array]:
    """The entries of an axis."""
    return [jnp.take(x, i, axis) for i in range(x.shape[axis])]


@register("pad", "constant_pad_nd")
def pad(x: Array, widths: Sequence[int], mode: Any = "constant", value: float | None = None) -> Array:
    """Borders around the last axes, the last one first."""
    if not isinstance(mode, str):  # constant_pad_nd has the value at this place
        mode, value = "constant", mode
    pairs = [(0, 0)] * (x.ndim - len(widths) // 2) + list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode in modes:
        return jnp.pad(x, pairs, mode=modes[mode])
    return jax.lax.pad(x, jnp.asarray(value or 0, x.dtype), [(a, b, 0) for a, b in pairs])


@register("roll")
def roll(x: Array, shifts: Sequence[int], axes: Sequence[int] = ()) -> Array:
    """Entries shifted cyclically."""
    return jnp.roll(x, tuple(shifts), tuple(axes) or None)


@register("flip")
def flip(x: Array, axes: Sequence[int]) -> Array:
    """Axes reversed."""
    return jnp.flip(x, tuple(axes))


@register("index")
def index(x: Array, indices: Sequence[Array | None]) -> Array:
    """Entries at these places."""
    return x[tuple(slice(None) if i is None else i for i in indices)]


@register("pixel_shuffle")
def pixel_shuffle(x: Array, factor: int) -> Array:
    """(B, C r r, H, W) to (B, C, H r, W r)."""
    *batch, channels, height, width = x.shape
    x = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    axes = [*range(len(batch)), *(len(batch) + i for i in (0, 3, 1, 4, 2))]
    return x.transpose(axes).reshape(*batch, channels // factor**2, height * factor, width * factor)
