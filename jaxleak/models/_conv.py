"""Convolution and pooling in forms whose higher derivatives stay fast.

On CPU, XLA runs the gradients of a convolution's gradients several times slower than the same arithmetic written
as patches times a matrix, and convolutions inside `lax.scan` or under `vmap` over weights slower still
(benchmarks/README.md has the ratios). Second-order attacks live there, so the patch form is the default on CPU
and `lax.conv` elsewhere. Both compute the same function; tests hold them together up to second derivatives.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxleak import _validate

Form = Literal["auto", "patches", "lax"]


def conv2d(x: jax.Array, kernel: jax.Array, *, form: Form = "auto") -> jax.Array:
    """2-D cross-correlation, stride 1, 'SAME' zero padding.

    Args:
        x: (B, H, W, C_in).
        kernel: (kh, kw, C_in, C_out), odd kh and kw.
        form: "patches" (im2col), "lax", or "auto": patches on CPU, lax elsewhere.

    Returns:
        (B, H, W, C_out).
    """
    _validate.one_of(("auto", "patches", "lax"), form=form)
    if form == "auto":
        form = "patches" if jax.default_backend() == "cpu" else "lax"
    if form == "lax":
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    kh, kw, c_in, c_out = kernel.shape
    height, width = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (kh // 2, kh // 2), (kw // 2, kw // 2), (0, 0)))
    shifts = [padded[:, i : i + height, j : j + width] for i in range(kh) for j in range(kw)]
    return jnp.concatenate(shifts, axis=-1) @ kernel.reshape(kh * kw * c_in, c_out)


def max_pool(x: jax.Array) -> jax.Array:
    """2x2 max pooling, stride 2, 'SAME' padding: (B, H, W, C) -> (B, ceil(H/2), ceil(W/2), C).

    Written as a reshape and a maximum, because the transpose of XLA's windowed reduction (select-and-scatter) has
    no efficient second derivative.
    """
    batch, height, width, channels = x.shape
    pad = ((0, 0), (0, height % 2), (0, width % 2), (0, 0))
    x = jnp.pad(x, pad, constant_values=-jnp.inf)
    x = x.reshape(batch, (height + 1) // 2, 2, (width + 1) // 2, 2, channels)
    return x.max(axis=(2, 4))
