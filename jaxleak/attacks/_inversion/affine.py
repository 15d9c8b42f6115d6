"""Images from what a layer reads of them, where that is an affine map of their pixels.

A network that flattens and scales its images has a map whose Jacobian's columns are orthogonal: every number that the
layer reads is of one pixel alone, and images of any size are solved for pixel by pixel. Other maps are inverted by the
singular value decomposition of the Jacobian, up to a number of pixels.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

#: Most pixels of an image whose map has to be decomposed.
LARGEST = 1024
#: Smallest singular value of a map over its largest one, below which rounding hides what is read of some pixels.
_INJECTIVE_ABOVE = 1e-4
#: Relative size below which what is left of a probe is rounding.
_ROUNDING = 1e-4

#: How far a map may be from an affine one, of what it changes from grey. Inputs rounded to 8 bits are at 0.004.
_BENT_BELOW = 0.01


def by_pixel(inputs: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> bool:
    """Whether an affine map (H, W, channels) -> (k,) reads pixels one by one.

    Args:
        inputs: the map, of concrete arrays.
        shape: (H, W, channels).
    """

    @jax.jit
    def misfit() -> jax.Array:
        _, forward, backward = _linear(inputs, shape)
        sizes, probe = backward(forward(jnp.ones(shape)))[0], jax.random.normal(jax.random.key(0), shape)
        rest = backward(forward(probe))[0] - sizes * probe
        return jnp.linalg.norm(rest) / jnp.linalg.norm(sizes * probe)

    return bool(misfit() < _ROUNDING)


def images_of(
    inputs: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], observed: jax.Array, *, one_by_one: bool
) -> tuple[jax.Array, jax.Array]:
    """The images of which an affine map gives what was observed, by least squares.

    Args:
        inputs: the map (H, W, channels) -> (k,).
        shape: (H, W, channels); H * W * channels at most `LARGEST` unless pixels are read one by one.
        observed: (B, k).
        one_by_one: what `by_pixel` says of the map.

    Returns:
        (B, H, W, channels), and whether no other images have the same: () bool. Where other images have, those that
        are returned are the nearest to grey. A map that is no affine one on all of [0, 1], such as one that cuts off
        what is dark, may give the same for others.
    """
    offset, forward, backward = _linear(inputs, shape)
    change = observed - offset
    affine = _is_affine(inputs, shape, offset, forward)
    if one_by_one:
        sizes = backward(forward(jnp.ones(shape)))[0]
        read = sizes > _INJECTIVE_ABOVE**2 * sizes.max()
        found = jax.vmap(lambda one: backward(one)[0])(change) / jnp.where(read, sizes, 1)
        return 0.5 + jnp.where(read, found, 0), read.all() & affine
    pixels = math.prod(shape)
    jacobian = jax.vmap(forward)(jnp.eye(pixels).reshape(pixels, *shape)).T  # (k, pixels)
    left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
    kept = singular > _INJECTIVE_ABOVE * singular[0]
    found = (change @ left) * jnp.where(kept, 1 / jnp.where(kept, singular, 1), 0) @ right
    return 0.5 + found.reshape(-1, *shape), kept.all() & (len(jacobian) >= pixels) & affine


def _is_affine(
    inputs: Callable[[jax.Array], jax.Array],
    shape: tuple[int, ...],
    offset: jax.Array,
    forward: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Whether black, white and random images are mapped as the linear map around grey says: () bool.

    A clamp or a ReLU is the identity around grey, and elsewhere gives the same for many images.
    """
    ends = jnp.stack([jnp.zeros(shape), jnp.ones(shape), jax.random.uniform(jax.random.key(1), shape)])

    def bent(x: jax.Array) -> jax.Array:
        change = forward(x - 0.5)
        return jnp.linalg.norm(inputs(x) - offset - change) / jnp.linalg.norm(change)

    return (jax.vmap(bent)(ends) < _BENT_BELOW).all()


def _linear(
    inputs: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array], Callable[[jax.Array], tuple[jax.Array]]]:
    """What a grey image gives, and the linear map around it with its transpose."""
    grey = jnp.full(shape, 0.5)
    offset, forward = jax.linearize(inputs, grey)
    return offset, forward, jax.linear_transpose(forward, grey)
