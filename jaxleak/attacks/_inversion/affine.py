"""Images from the inputs of a layer, if these are an affine map of the pixels.

If a network flattens and scales its images, the columns of this map's Jacobian are orthogonal: every number that the
layer reads depends on one pixel alone. Images of any size are then solved for pixel by pixel. Other maps are inverted
by the singular value decomposition of the Jacobian, for images of at most `LARGEST` numbers.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

#: Largest number H * W * channels of an image whose map has to be decomposed.
LARGEST = 1024
#: Singular value of a map, relative to the largest one, below which rounding hides what is read of some pixels.
_INJECTIVE_ABOVE = 1e-4
#: Relative size below which the remainder of a probe counts as rounding.
_ROUNDING = 1e-4

#: Largest deviation of a map from an affine one, relative to its change from grey. 8-bit rounding deviates by 0.004.
_BENT_BELOW = 0.01


def by_pixel(inputs: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> bool:
    """Whether an affine map (H, W, channels) -> (k,) reads pixels one by one.

    Args:
        inputs: the map; arrays inside it must be concrete, not traced.
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
    """The images that an affine map takes to the observed values, by least squares.

    Args:
        inputs: the map (H, W, channels) -> (k,).
        shape: (H, W, channels); H * W * channels at most `LARGEST` unless pixels are read one by one.
        observed: (B, k).
        one_by_one: what `by_pixel` says of the map.

    Returns:
        The images (B, H, W, channels), and () bool: whether no other images have the same values. If others do, the
        returned images are those nearest to grey. The bool is also False for a map that is not affine on all of [0, 1],
        such as one that clips dark values, since it may give the same values for other images.
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
    """Whether black, white and random images are mapped as the linear map around grey predicts: () bool.

    A clamp or a ReLU can be the identity around grey and still map many other images to the same values.
    """
    ends = jnp.stack([jnp.zeros(shape), jnp.ones(shape), jax.random.uniform(jax.random.key(1), shape)])

    def bent(x: jax.Array) -> jax.Array:
        change = forward(x - 0.5)
        return jnp.linalg.norm(inputs(x) - offset - change) / jnp.linalg.norm(change)

    return (jax.vmap(bent)(ends) < _BENT_BELOW).all()


def _linear(
    inputs: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array], Callable[[jax.Array], tuple[jax.Array]]]:
    """The map's values at a grey image, the linear map around it, and the transpose of the linear map."""
    grey = jnp.full(shape, 0.5)
    offset, forward = jax.linearize(inputs, grey)
    return offset, forward, jax.linear_transpose(forward, grey)
