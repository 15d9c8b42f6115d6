"""Activations and their smoothed copies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models

KINKED = ("relu", "relu6", "leaky_relu")


def in_a_network(name, size):
    """A function (z (size,), sharpness) -> the network's non-linearity of z, smoothed in units of z's spread."""
    model, variables = models.from_function(
        lambda variables, x: models.ACTIVATIONS[name](x.reshape(len(x), -1)), {"params": {}}, image_shape=(1, 1, size)
    )
    return lambda z, sharpness: model.apply(variables, z.reshape(1, 1, 1, size), sharpness=sharpness).logits[0]


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_smoothed_activations_tend_to_the_exact_ones(name):
    z = jnp.linspace(-9.0, 9.0, 37)
    z = z[(z != 0) & (z != 6)]
    f = in_a_network(name, len(z))

    @jax.jit
    def both(beta):
        return [(f(z, s), jax.grad(lambda z, s=s: f(z, s).sum())(z)) for s in (beta * z.std(), None)]

    if name not in KINKED:
        np.testing.assert_array_equal(*both(3.0))
        return
    for beta in (1.0, 30.0, 1e6):
        (value, slope), (exact, exact_slope) = both(jnp.float32(beta))
        assert np.abs(value - exact).max() <= np.log(2) / beta + 1e-6
        # All points are half a unit away from the kinks.
        assert np.abs(slope - exact_slope).max() <= 2 * np.exp(-beta / 2) + 1e-6


def test_exact_activations_are_the_usual_ones():
    z = np.array([-2.0, -0.5, 0.5, 7.0], np.float32)
    expected = {
        "relu": [0, 0, 0.5, 7],
        "relu6": [0, 0, 0.5, 6],
        "leaky_relu": [-0.02, -0.005, 0.5, 7],
        "sigmoid": 1 / (1 + np.exp(-z)),
        "tanh": np.tanh(z),
        "gelu": [-0.0455003, -0.1542688, 0.3457312, 7],
        "silu": z / (1 + np.exp(-z)),
        "softplus": np.log1p(np.exp(z)),
    }
    assert set(expected) == set(models.ACTIVATIONS)
    ours = jax.jit(lambda z: {name: f(z) for name, f in models.ACTIVATIONS.items()})(z)
    for name, values in expected.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_activations_are_finite_in_two_derivatives(name):
    z = jnp.array([0.0, 6.0, 1e-30, -1e-30, 1e4, -1e4, 1e10, -1e10])
    f = in_a_network(name, len(z))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def orders(z, sharpness):
        slope = jax.grad(lambda z: f(z, sharpness).sum())
        return f(z, sharpness), slope(z), jax.grad(lambda z: slope(z).sum())(z)

    assert np.isfinite(orders(z, jnp.array([1e-3, 1.0, 1e8, 1e30]))).all()


def test_the_derivative_with_respect_to_sharpness():
    z = jnp.array([-2.0, -0.1, 0.0, 0.3, 4.0])
    f = functools.partial(models.soft_relu, z)
    slope, above, below = jax.jit(lambda b: (jax.jvp(f, (b,), (1.0,))[1], f(b + 0.01), f(b - 0.01)))(2.0)
    np.testing.assert_allclose(slope, (above - below) / 0.02, atol=1e-4)


def test_smooth_max_lies_below_the_maximum_and_equals_it_among_equals():
    z = reference.normal(5, 4)
    top = z.max(axis=1)
    smooth_max = jax.jit(models.smooth_max, static_argnums=1)
    for beta in (0.1, 1.0, 1e5):
        smooth = smooth_max(z, 1, beta)
        assert (smooth <= top + 1e-6).all()
        assert (smooth >= top - np.log(4) / beta - 1e-6).all()
        np.testing.assert_allclose(smooth_max(jnp.full((5, 4), 7.0), 1, beta), 7.0, rtol=1e-6)

    @jax.jit
    def orders(z, beta):
        f = functools.partial(models.smooth_max, axis=0, sharpness=beta)
        return f(z), jax.grad(f)(z), jax.hessian(f)(z)

    np.testing.assert_allclose(orders(z[0], 2.0)[1], jax.nn.softmax(2.0 * z[0]), rtol=1e-5)
    for beta in (1.0, 1e30):
        assert all(np.isfinite(leaf).all() for leaf in orders(jnp.array([1e10, 1e10, -1e10, 0.0]), beta))
