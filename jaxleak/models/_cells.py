"""Images that windows of a stride read, cut into cells of one stride."""

import jax
import jax.numpy as jnp

Pair = tuple[int, int]


def in_cells(x: jax.Array, window: Pair, strides: Pair, pads: tuple[Pair, Pair], fill: float = 0.0) -> jax.Array:
    """Cells of one stride each, as many as the windows read.

    A strided slice of an image is a contiguous slice of its cells, and so it stays in every derivative.

    Args:
        x: (B, H, W, C), in any unit.
        window: (kh, kw).
        strides: (s, t), >= 1.
        pads: entries before and after, of both axes.
        fill: what is put there.

    Returns:
        (B, h, s, w, t, C), in the unit of `x`, with h = H' + ceil(kh / s) - 1 for H' outputs, and w likewise.
    """
    cells, edges = [], []
    for size, k, s, (before, after) in zip(x.shape[1:3], window, strides, pads, strict=True):
        cells.append((size + before + after - k) // s + 1 + (k - 1) // s)
        # A last row that no window reads is cut off: negative padding.
        edges.append((before, cells[-1] * s - size - before, 0))
    x = jax.lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    return x.reshape(x.shape[0], cells[0], strides[0], cells[1], strides[1], x.shape[-1])
