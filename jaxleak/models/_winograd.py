"""3x3 convolution by Winograd's minimal filtering.

An output tile of 2x2 pixels takes 16 products per pair of channels instead of 36: images, kernels and outputs are
transformed by sums of a few entries, with 16 products of matrices over the channels in between (S. Winograd,
*Arithmetic Complexity of Computations*, 1980; A. Lavin and S. Gray, *Fast Algorithms for Convolutional Neural
Networks*, 2016). Rounding errors are those of the plain sum: the transforms only add and halve.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._bilinear import Window, closed_convolution
from jaxleak.models._products import contract

# F(2, 3) of one axis: evaluation at 0, 1, -1 and infinity.
_IMAGE = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_KERNEL = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_OUTPUT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
#: Rows of _KERNEL in the order that reads a kernel backwards.
_TURNED = (3, 1, 2, 0)


def tiles(shape: tuple[int, ...]) -> int:
    """Number of tiles of images (..., B, H, W, C), which is the number of rows of each of the 16 matrices."""
    *_, batch, height, width, _ = shape
    return batch * -(-height // 2) * -(-width // 2)


def _convolve(x: jax.Array, kernel: jax.Array, adjoint: bool) -> jax.Array:
    """(G, B, H, W, C) and (G, 3, 3, C, O) to (G, B, H, W, O); the adjoint maps O channels back to C."""
    groups, batch, height, width, _ = x.shape
    h, w, out = -(-height // 2), -(-width // 2), kernel.shape[3 if adjoint else 4]
    kernel = jax.lax.optimization_barrier(kernel)
    entries = [kernel[:, i, j] for i in range(3) for j in range(3)]
    kernels = _both_axes(_KERNEL, entries)
    if adjoint:  # turning the kernel round exchanges only the ends of its transform
        kernels = [[kernels[i][j] for j in _TURNED] for i in _TURNED]
    pairs = zip(_image_tiles(x), (u for row in kernels for u in row), strict=True)
    products = [contract(v, u, 2, 2 if adjoint else 1) for v, u in pairs]
    rows = _both_axes(_OUTPUT, [p.reshape(groups, batch, h, w, out) for p in products])
    y = jnp.stack([jnp.stack(row, axis=4) for row in rows], axis=3)
    return y.reshape(groups, batch, 2 * h, 2 * w, out)[:, :, :height, :width]


def _correlate(x: jax.Array, y: jax.Array, _: Window) -> jax.Array:
    """The derivative of <y, conv(x, kernel)> by the kernel: (G, B, H, W, C), (G, B, H, W, O) to (G, 3, 3, C, O)."""
    pairs = zip(_image_tiles(x), _output_tiles(y), strict=True)
    rows = _both_axes(_KERNEL.T, [contract(v, e, 1, 1) for v, e in pairs])
    return jnp.stack([jnp.stack(row, axis=1) for row in rows], axis=1)


def _image_tiles(x: jax.Array) -> list[jax.Array]:
    """The 16 transformed images, each (G, tiles, C): separate arrays, since stacking them costs a copy."""
    groups, batch, height, width, channels = x.shape
    h, w = -(-height // 2), -(-width // 2)
    x = jnp.pad(x, ((0, 0), (0, 0), (1, 2 * h + 1 - height), (1, 2 * w + 1 - width), (0, 0)))
    x = jax.lax.optimization_barrier(x)  # without the barrier XLA computes x anew for every entry
    # After the cut into cells of 2x2, entry (i, j) of every 4x4 window is a contiguous slice of cells.
    x = x.reshape(groups, batch, h + 1, 2, w + 1, 2, channels)
    entries = [x[:, :, i // 2 : i // 2 + h, i % 2, j // 2 : j // 2 + w, j % 2] for i in range(4) for j in range(4)]
    return [v.reshape(groups, -1, channels) for row in _both_axes(_IMAGE, entries) for v in row]


def _output_tiles(y: jax.Array) -> list[jax.Array]:
    """The transpose of the outputs' transform: 16 arrays (G, tiles, O)."""
    groups, batch, height, width, out = y.shape
    y = jax.lax.optimization_barrier(jnp.pad(y, ((0, 0), (0, 0), (0, height % 2), (0, width % 2), (0, 0))))
    y = y.reshape(groups, batch, -(-height // 2), 2, -(-width // 2), 2, out)
    entries = [y[:, :, :, i, :, j] for i in range(2) for j in range(2)]
    return [e.reshape(groups, -1, out) for row in _both_axes(_OUTPUT.T, entries) for e in row]


def _both_axes(matrix: np.ndarray, entries: list[jax.Array]) -> list[list[jax.Array]]:
    """matrix E matrix^T, where E is a square of arrays, given row by row."""
    size = matrix.shape[1]
    columns = [_combine(matrix, entries[j::size]) for j in range(size)]
    return [_combine(matrix, list(row)) for row in zip(*columns, strict=True)]


def _combine(matrix: np.ndarray, entries: list[jax.Array]) -> list[jax.Array]:
    def times(factor: float, x: jax.Array) -> jax.Array:
        return x if factor == 1 else -x if factor == -1 else float(factor) * x

    return [functools.reduce(jnp.add, (times(c, entries[i]) for i, c in enumerate(row) if c)) for row in matrix]


#: 2-D cross-correlation of stride 1 with one zero on each side: (B, H, W, C) and (3, 3, C, O) to (B, H, W, O).
winograd_conv = closed_convolution("winograd_conv", _convolve, _correlate)
