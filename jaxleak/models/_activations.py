"""Non-linearities, exact or with their kinks rounded off.

An attacker who runs a copy of the victim's network may round the kinks: a gradient of a ReLU network is piecewise
constant in many directions, and second-order attacks see nothing of the pieces next door. `sharpness` beta says how
far: every smooth form deviates from the exact one by at most a constant / beta, and tends to it as beta grows.
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

#: Keeps a layer whose inputs are all equal from dividing by zero.
_SMALLEST_SPREAD = 1e-12


def in_units_of(z: jax.Array, sharpness: Sharpness) -> Sharpness:
    """A relative sharpness as an absolute one: divided by the standard deviation of z, or None.

    One number then rounds the kinks of every layer to the same degree, whatever the depth and the initialisation. No
    gradient flows through the standard deviation.
    """
    return None if sharpness is None else sharpness / (jax.lax.stop_gradient(z.std()) + _SMALLEST_SPREAD)


def soft_relu(z: jax.Array, sharpness: jax.Array | float) -> jax.Array:
    """softplus(beta z) / beta: above relu(z) by at most log(2) / beta. Any shape; beta > 0 a scalar."""
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

    Below the maximum by at most log(n) / beta, and equal to it where all n entries are equal. The other common choice,
    a mean weighted by softmax(beta z), is closer when one entry stands out, but not monotone: it falls while an entry
    far below the others rises. Here the derivative is softmax(beta z) itself: never negative, and adding up to one.

    Args:
        z: any shape.
        axis: the axis that disappears.
        sharpness: beta > 0, a scalar that may be traced.
        count: n, if entries that stand for nothing (far below all others) are not to be counted; its shape
            broadcasts against that of the result. Default: the size of the axis.

    Returns:
        The shape of z without `axis`, in the unit of z.
    """
    beta = jnp.asarray(sharpness, z.dtype)
    count = z.shape[axis] if count is None else count
    # Any constant near the maximum keeps the exponentials in range; the derivative does not depend on it.
    top = jax.lax.stop_gradient(z.max(axis=axis, keepdims=True))
    total = jnp.exp(beta * (z - top)).sum(axis=axis)
    return jnp.squeeze(top, axis) + jnp.log(total / jnp.asarray(count, z.dtype)) / beta
