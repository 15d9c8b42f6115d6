"""Convolution of small images as products in the frequency domain.

A cyclic correlation of length L = n + k // 2 per axis equals the zero-padded one on n pixels: what wraps around is read
from the padding. Its real Fourier transform has L^2 numbers, and a complex product takes three real ones (Karatsuba).
So a pair of channels costs about 1.5 L^2 products: 121 instead of 1,225 for 7x7 pixels and 5x5 kernels. The transforms
are small dense matrices. They are applied with pixels or frequencies as the first axis, so that they are products of
matrices without a copy. They are orthogonal up to scale, so rounding errors are those of the plain sum.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._bilinear import Window, closed_convolution


def num_products(size: tuple[int, int], window: Window) -> int:
    """F, the number of products that a pair of channels takes."""
    lengths = [n + k // 2 for n, k in zip(size, window, strict=True)]
    real = math.prod(2 - length % 2 for length in lengths)
    return real + (math.prod(lengths) - real) * 3 // 2


def _convolve(x: jax.Array, kernel: jax.Array, adjoint: bool) -> jax.Array:
    """(G, B, H, W, C) and (G, kh, kw, C, O) to (G, B, H, W, O); the adjoint maps O channels back to C."""
    groups, batch, height, width, _ = x.shape
    images, kernels, outputs = _transforms((height, width), kernel.shape[1:3])
    if adjoint:
        kernel = kernel[:, ::-1, ::-1].swapaxes(3, 4)
    products = jax.lax.dot_general(
        _apply(images, _pixels_first(x)), _apply(kernels, _taps_first(kernel)), (((3,), (2,)), ((0, 1), (0, 1)))
    )
    y = _apply(outputs, products)
    return y.reshape(height, width, groups, batch, -1).transpose(2, 3, 0, 1, 4)


def _correlate(x: jax.Array, y: jax.Array, window: Window) -> jax.Array:
    """The derivative of <y, conv(x, kernel)> by the kernel: (G, B, H, W, C), (G, B, H, W, O) to (G, kh, kw, C, O)."""
    images, kernels, outputs = _transforms(x.shape[2:4], window)
    products = jax.lax.dot_general(
        _apply(images, _pixels_first(x)), _apply(outputs.T, _pixels_first(y)), (((2,), (2,)), ((0, 1), (0, 1)))
    )
    out = _apply(kernels.T, products)
    return out.reshape(*window, *out.shape[1:]).transpose(2, 0, 1, 3, 4)


def _apply(matrix: np.ndarray, x: jax.Array) -> jax.Array:
    """(M, N) and (N, ...) to (M, ...)."""
    y = jnp.asarray(matrix, x.dtype) @ x.reshape(len(x), -1)
    return y.reshape(-1, *x.shape[1:])


def _pixels_first(x: jax.Array) -> jax.Array:
    """(G, B, H, W, C) to (H W, G, B, C)."""
    groups, batch, height, width, channels = x.shape
    return x.transpose(2, 3, 0, 1, 4).reshape(height * width, groups, batch, channels)


def _taps_first(kernel: jax.Array) -> jax.Array:
    """(G, kh, kw, C, O) to (kh kw, G, C, O)."""
    return kernel.transpose(1, 2, 0, 3, 4).reshape(-1, kernel.shape[0], *kernel.shape[3:])


@functools.cache
def _transforms(size: tuple[int, int], window: Window) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices (F, H W), (F, kh kw) and (H W, F) with conv(x, w) = outputs ((images x) * (kernels w))."""
    lengths = tuple(n + k // 2 for n, k in zip(size, window, strict=True))
    middle = tuple(k // 2 for k in window)
    images, kernels, outputs = [], [], []
    for frequency in np.ndindex(lengths):
        opposite = tuple(-f % n for f, n in zip(frequency, lengths, strict=True))
        if opposite < frequency:  # the complex conjugate is there already
            continue
        of_pixels = _angles(frequency, lengths, size, (0, 0))
        of_taps = _angles(frequency, lengths, window, middle)
        a, b = np.cos(of_pixels), -np.sin(of_pixels)
        c, d = np.cos(of_taps), np.sin(of_taps)
        if opposite == frequency:
            images.append(a)
            kernels.append(c)
            outputs.append(a)
        else:
            # (a + ib)(c + id) = (p - r) + i(p + q) with p = (a + b) c, q = a (d - c), r = b (c + d).
            images += [a + b, a, b]
            kernels += [c, d - c, c + d]
            outputs += [2 * (a + b), 2 * b, -2 * a]
    return np.stack(images), np.stack(kernels), np.stack(outputs, axis=1) / np.prod(lengths)


def _angles(frequency: tuple[int, ...], lengths: tuple[int, ...], size: Window, origin: tuple[int, ...]) -> np.ndarray:
    """2 pi (u (r - r0) / L + v (c - c0) / L'), flattened."""
    rows, columns = (
        2 * np.pi * f / length * (np.arange(n) - start)
        for f, length, n, start in zip(frequency, lengths, size, origin, strict=True)
    )
    return (rows[:, None] + columns).ravel()


#: 2-D cross-correlation of stride 1 with zero padding: (B, H, W, C) and (kh, kw, C, O), odd kh and kw, to (B, H, W, O).
fourier_conv = closed_convolution("fourier_conv", _convolve, _correlate)
