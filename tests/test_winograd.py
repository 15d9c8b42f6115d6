"""Winograd's form of 3x3 convolutions: against XLA's own, derived in every mode, and batched in every way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak.models import conv2d

FORMS = ("winograd", "lax")


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def _loss(form, x, kernel):
    return jnp.sum(jnp.tanh(conv2d(x, kernel, form=form)) ** 2)


def _matching(form, x, kernel, observed):
    """The gradient of a gradient's distance: what every inversion computes."""
    simulated = jax.grad(functools.partial(_loss, form), argnums=1)(x, kernel)
    return jnp.sum((simulated - observed) ** 2)


def _assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * float(jnp.abs(y).max()))


@pytest.mark.parametrize("size", [(4, 6), (5, 3), (1, 1)])
def test_values_and_derivatives_of_every_mode_are_those_of_lax(size):
    x, kernel = _random(2, *size, 3), _random(3, 3, 3, 2, seed=1)
    arguments = x, kernel, _random(*kernel.shape, seed=2)
    tangents = tuple(_random(*a.shape, seed=3 + i) for i, a in enumerate(arguments))

    def all_of(form):
        matching = functools.partial(_matching, form)
        gradient = jax.grad(matching, argnums=(0, 1, 2))
        return (
            conv2d(x, kernel, form=form),
            jax.grad(functools.partial(_loss, form), argnums=(0, 1))(x, kernel),
            gradient(*arguments),
            jax.jvp(gradient, arguments, tangents),  # forward over reverse over reverse
        )

    _assert_same(*jax.jit(lambda: tuple(all_of(form) for form in FORMS))())


AXES = {
    "images": (0, None, None),
    "kernels": (None, 0, None),
    "observed": (None, None, 0),
    "all": (0, 0, 0),
    "last": (4, 4, 4),
}


@pytest.mark.parametrize("axes", AXES)
def test_batching_inside_and_outside_of_derivatives(axes):
    arguments = _random(2, 4, 5, 3), _random(3, 3, 3, 2, seed=1), _random(3, 3, 3, 2, seed=2)
    stacked = tuple(
        a if axis is None else jnp.stack([a, 0.5 * a, a - 1], axis)
        for a, axis in zip(arguments, AXES[axes], strict=True)
    )

    def all_of(form):
        matching = functools.partial(_matching, form)
        outside = jax.vmap(jax.grad(matching, argnums=(0, 1)), AXES[axes])(*stacked)
        total = lambda *a: jnp.sum(jax.vmap(matching, AXES[axes])(*a))  # noqa: E731
        return outside, jax.grad(total, argnums=(0, 1))(*stacked)

    _assert_same(*jax.jit(lambda: tuple(all_of(form) for form in FORMS))())


def test_rounding_errors_are_those_of_the_plain_sum():
    x, kernel = jax.nn.relu(_random(4, 8, 8, 64)), _random(3, 3, 64, 32, seed=1) / 24
    with jax.enable_x64(True):
        exact = np.asarray(conv2d(x.astype(jnp.float64), kernel.astype(jnp.float64), form="lax"))
    assert exact.dtype == np.float64
    errors = {form: np.sqrt(np.mean((np.asarray(conv2d(x, kernel, form=form)) - exact) ** 2)) for form in FORMS}
    assert 0 < errors["winograd"] < 3 * errors["lax"]


def test_other_layers_take_patches_and_the_default_takes_it_where_it_pays():
    def used(x_shape, kernel_shape, **options):
        jaxpr = jax.make_jaxpr(functools.partial(conv2d, **options))(jnp.zeros(x_shape), jnp.zeros(kernel_shape))
        return "winograd_conv" in str(jaxpr)

    assert used((1, 4, 4, 2), (3, 3, 2, 2), form="winograd")
    assert not used((1, 4, 4, 2), (3, 3, 2, 2), form="winograd", stride=2)
    assert not used((1, 4, 4, 2), (3, 3, 2, 2), form="winograd", padding=0)
    assert not used((1, 4, 4, 2), (5, 5, 2, 2), form="winograd")
    assert not used((1, 4, 4, 2), (3, 3, 1, 2), form="winograd", groups=2)
    if jax.default_backend() == "cpu":
        assert used((1, 16, 16, 64), (3, 3, 64, 64))
        assert not used((1, 8, 8, 64), (3, 3, 64, 64))  # too few tiles
        assert not used((1, 16, 16, 16), (3, 3, 16, 64))  # too narrow
