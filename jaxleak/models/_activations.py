"""Non-linearities, exact or with their kinks rounded off.

An attacker who runs a copy of the victim's network may round the kinks. The gradient of a ReLU network is piecewise
constant in many directions, so without rounding a second-order attack cannot see the neighbouring pieces. `sharpness`
(beta) says how far the kinks are rounded: every smooth form deviates from the exact one by at most a constant / beta,
and tends to it as beta grows.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Sharpness = jax.Array | float | None

#: Non-linearities by name, each elementwise on any shape. "relu6" is in [0, 6], "sigmoid" in [0, 1], "tanh" in [-1, 1];
#: "leaky_relu" has PyTorch's slope of 0.01 at negative inputs, and "gelu" is exact, by the error function.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=0.01),
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}

#: Added to a standard deviation, so that a layer whose inputs are all equal does not divide by zero.
_SMALLEST_SPREAD = 1e-12


def in_units_of(z: jax.Array, sharpness: Sharpness) -> Sharpness:
    """Turn a relative sharpness into an absolute one: divide it by the standard deviation of z; None stays None.

    One number then rounds the kinks of every layer to the same degree, whatever the depth and the initialisation. No
    gradient flows through the standard deviation.
    """
    return None if sharpness is None else sharpness / (jax.lax.stop_gradient(z.std()) + _SMALLEST_SPREAD)


def soft_relu(z: jax.Array, sharpness: jax.Array | float) -> jax.Array:
    """softplus(beta z) / beta, which exceeds relu(z) by at most log(2) / beta. Any shape; beta > 0 a scalar."""
    return _soft_relu(z, jnp.asarray(sharpness, z.dtype))


@jax.custom_jvp
def _soft_relu(z: jax.Array, beta: jax.Array) -> jax.Array:
    # Exact even where beta z overflows, unlike the logarithm of 1 + exp(beta z).
    return jax.nn.relu(z) + jnp.log1p(jnp.exp(-beta * jnp.abs(z))) / beta


@_soft_relu.defjvp
def _soft_relu_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple:
    z, beta = primals
    dz, dbeta = tangents
    value = _soft_relu(z, beta)
    slope = jax.nn.sigmoid(beta * z)
    return value, slope * dz + (z * slope - value) / beta * dbeta


def smooth_max(
    z: jax.Array, axis: int, sharpness: jax.Array | float, *, count: jax.Array | np.ndarray | int | None = None
) -> jax.Array:
    """log(mean(exp(beta z))) / beta over one axis: a maximum without kinks.

    The result lies below the maximum by at most log(n) / beta, and equals it where all n entries are equal. The other
    common choice is a mean weighted by softmax(beta z). It is closer when one entry stands out, but it is not monotone:
    it falls while an entry far below the others rises. The derivative of the function here is softmax(beta z), which is
    never negative and adds up to one.

    Args:
        z: any shape.
        axis: the axis that disappears.
        sharpness: beta > 0, a scalar that may be traced.
        count: n, the number of entries that count, if others are only padding far below them. Its shape broadcasts
            against that of the result. Default: the size of the axis.

    Returns:
        The shape of z without `axis`, in the unit of z.
    """
    beta = jnp.asarray(sharpness, z.dtype)
    count = z.shape[axis] if count is None else count
    # Any constant near the maximum keeps the exponentials in range; the derivative does not depend on it.
    top = jax.lax.stop_gradient(z.max(axis=axis, keepdims=True))
    total = jnp.exp(beta * (z - top)).sum(axis=axis)
    return jnp.squeeze(top, axis) + jnp.log(total / jnp.asarray(count, z.dtype)) / beta
