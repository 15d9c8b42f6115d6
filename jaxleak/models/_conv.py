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

#: Pads odd sizes before pooling. Finite, since infinity times a zero weight would be NaN.
PADDING = -1e30


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


def pool_windows(z: jax.Array) -> jax.Array:
    """The 2x2 windows of stride 2, 'SAME' padded: (B, H, W, C) -> (B, ceil(H/2), ceil(W/2), 4, C)."""
    batch, height, width, channels = z.shape
    pad = ((0, 0), (0, height % 2), (0, width % 2), (0, 0))
    z = jnp.pad(z, pad, constant_values=PADDING)
    h, w = (height + 1) // 2, (width + 1) // 2
    z = z.reshape(batch, h, 2, w, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return z.reshape(batch, h, w, 4, channels)


def max_pool(z: jax.Array) -> jax.Array:
    """2x2 max pooling, stride 2, 'SAME' padding: (B, H, W, C) -> (B, ceil(H/2), ceil(W/2), C).

    Written as a reshape and a maximum, because the transpose of XLA's windowed reduction (select-and-scatter) has no
    efficient second derivative.
    """
    return pool_windows(z).max(axis=3)


@jax.custom_jvp
def smoothed_max_pool_relu(z: jax.Array, temperature: jax.Array) -> jax.Array:
    """relu(max_pool(z)), exact in value, with a smoothed derivative.

    The exact derivative selects one of five branches, the four window entries or zero, and is blind to how close the
    others are. Here it weighs them by softmax([z_1, ..., z_4, 0] / temperature), the branch probabilities under noise
    of that scale. A Gauss-Newton step then sees across the kinks that lie within `temperature`; as the temperature
    falls to zero the derivative becomes exact.

    Args:
        z: (B, H, W, C) pre-activations.
        temperature: (B,) > 0, in units of z.
    """
    del temperature
    return jax.nn.relu(max_pool(z))


@smoothed_max_pool_relu.defjvp
def _smoothed_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple:
    z, temperature = primals
    windows = pool_windows(z)
    branches = jnp.concatenate([windows, jnp.zeros_like(windows[:, :, :, :1])], axis=3)
    weights = jax.nn.softmax(branches / temperature[:, None, None, None, None], axis=3)[:, :, :, :4]
    # Padded entries have weight zero, so the constant that pool_windows pads with does not matter in the tangent.
    tangent = (weights * (pool_windows(tangents[0]) * (windows > PADDING))).sum(axis=3)
    return jax.nn.relu(windows.max(axis=3)), tangent
