"""Cut images into cells of one stride, so that strided windows become contiguous slices."""

import jax
import jax.numpy as jnp

Pair = tuple[int, int]


def in_cells(x: jax.Array, window: Pair, strides: Pair, pads: tuple[Pair, Pair], fill: float = 0.0) -> jax.Array:
    """Cut images into cells of one stride each, as many as the windows read.

    A strided slice of an image is a contiguous slice of its cells. It stays contiguous in every derivative.

    Args:
        x: (B, H, W, C), in any unit.
        window: (kh, kw).
        strides: (s, t), >= 1.
        pads: number of entries added before and after, on both axes.
        fill: value of the added entries.

    Returns:
        (B, h, s, w, t, C), in the unit of `x`, with h = H' + ceil(kh / s) - 1 for H' outputs, and w likewise.
    """
    cells, edges = [], []
    for size, k, s, (before, after) in zip(x.shape[1:3], window, strides, pads, strict=True):
        cells.append((size + before + after - k) // s + 1 + (k - 1) // s)
        # Negative padding cuts off a last row that no window reads.
        edges.append((before, cells[-1] * s - size - before, 0))
    x = jax.lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    return x.reshape(x.shape[0], cells[0], strides[0], cells[1], strides[1], x.shape[-1])
