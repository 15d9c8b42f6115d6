"""The part of a change of images that leaves an update as it is, to first order."""

from typing import TypeAlias

import jax
import jax.numpy as jnp

from jaxleak._base import Observation, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import norm, squared_norm
from jaxleak.audit._received import Received

#: Relative change of the update, per unit of the images' norm, below which a direction counts as open. Without such a
#: limit, the rounding of an open direction would be divided by rounding.
_DAMPING = 1e-4

_Carry: TypeAlias = tuple[jax.Array, PyTree, jax.Array, jax.Array]


@jitted_for_few(0, 5)
def open_part(
    received: Received, seen: Observation, x: jax.Array, y: jax.Array, change: jax.Array, iterations: int
) -> jax.Array:
    """What is left of a change of images without the part that changes the update, to first order.

    Let J be the Jacobian, by all images together, of the update divided by its norm. The part that changes the update
    is the damped least squares solution e of J e = J change, found by conjugate gradients (CGLS; Bjoerck, "Numerical
    Methods for Least Squares Problems", SIAM 1996, algorithm 7.4.1). Too few iterations also leave directions in which
    the update changes.

    Args:
        received: how an update is computed and compared.
        seen: params and payload of the round.
        x: (N, H, W, C) images, at which J is taken.
        y: (N,) int32, their labels.
        change: (N, H, W, C) the change of the images.
        iterations: > 0, each of which computes one product with J and one with its transpose.
    """
    scale = 1 / jnp.maximum(norm(received.of(seen, x, y)), jnp.finfo(jnp.float32).tiny)
    own, transposed = jax.vjp(lambda images: jax.tree.map(lambda leaf: scale * leaf, received.of(seen, images, y)), x)

    def times(images: jax.Array) -> PyTree:
        # The transpose of J is linear in the update, and its derivative is J. A network may lack forward derivatives.
        return jax.vjp(lambda update: transposed(update)[0], own)[1](images)[0]

    def damped(left: jax.Array, residual: PyTree) -> jax.Array:
        return squared_norm(residual) + _DAMPING**2 * squared_norm(change - left)

    def step(carry: _Carry, _: None) -> tuple[_Carry, None]:
        left, residual, direction, square = carry
        changed = times(direction)
        length = _ratio(square, squared_norm(changed) + _DAMPING**2 * squared_norm(direction))
        next_left, next_residual = (
            left - length * direction,
            jax.tree.map(lambda r, c: r - length * c, residual, changed),
        )
        slope = transposed(next_residual)[0] - _DAMPING**2 * (change - next_left)
        next_square = squared_norm(slope)
        stepped = (next_left, next_residual, slope + _ratio(next_square, square) * direction, next_square)
        # Once nothing but rounding is left, directions are no longer conjugate, and steps would grow without limit.
        done = (left, residual, jnp.zeros_like(direction), jnp.zeros(()))
        falls = damped(next_left, next_residual) < damped(left, residual)
        return jax.tree.map(lambda new, old: jnp.where(falls, new, old), stepped, done), None

    residual = times(change)
    slope = transposed(residual)[0]
    (left, *_), _ = jax.lax.scan(step, (change, residual, slope, squared_norm(slope)), None, length=iterations)
    return left


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 0.0)
