"""Our convolutions by Winograd, Fourier and patches against XLA's, with all derivatives and batched axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_but

from jaxleak.models import _fourier, conv2d

WINDOWS = {"winograd": (3, 3), "fourier": (5, 3), "patches": (3, 2)}
PRIMITIVES = {"winograd": "winograd_conv", "fourier": "fourier_conv", "patches": "product"}
ALGORITHMS = pytest.mark.parametrize("form", WINDOWS)
FAST = pytest.mark.parametrize("form", ["winograd", "fourier"])


def _loss(form, x, kernel):
    return jnp.sum(jnp.tanh(conv2d(x, kernel, form=form)) ** 2)


def _matching(form, x, kernel, observed):
    """The distance of a gradient to an observed one, as every inversion computes it."""
    simulated = jax.grad(functools.partial(_loss, form), argnums=1)(x, kernel)
    return jnp.sum((simulated - observed) ** 2)


def _assert_same(results):
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * float(jnp.abs(y).max()))


def _algorithms(x_shape, kernel_shape, **options):
    """The names of the algorithms that a convolution of these shapes uses."""
    jaxpr = jax.make_jaxpr(functools.partial(conv2d, **options))(jnp.zeros(x_shape), jnp.zeros(kernel_shape))
    return {name for name, primitive in PRIMITIVES.items() if primitive in str(jaxpr)}


@ALGORITHMS
@pytest.mark.parametrize("size", [(4, 6), *(pytest.param(size, marks=pytest.mark.slow) for size in ((5, 3), (1, 1)))])
def test_values_and_derivatives_of_every_mode_are_those_of_lax(form, size):
    x, kernel = reference.normal(2, *size, 3), reference.normal(*WINDOWS[form], 3, 2, seed=1)
    arguments = x, kernel, reference.normal(*kernel.shape, seed=2)
    tangents = tuple(reference.normal(*a.shape, seed=3 + i) for i, a in enumerate(arguments))

    def all_of(form):
        matching = functools.partial(_matching, form)
        gradient = jax.grad(matching, argnums=(0, 1, 2))
        return (
            conv2d(x, kernel, form=form),
            jax.grad(functools.partial(_loss, form), argnums=(0, 1))(x, kernel),
            gradient(*arguments),
            jax.jvp(gradient, arguments, tangents),  # forward over reverse over reverse
        )

    assert _algorithms(x.shape, kernel.shape, form=form) == {form}
    _assert_same(jax.jit(lambda: (all_of(form), all_of("lax")))())


AXES = {
    "images": (0, None, None),
    "kernels": (None, 0, None),
    "observed": (None, None, 0),
    "all": (0, 0, 0),
    "last": (4, 4, 4),
}


@ALGORITHMS
@pytest.mark.parametrize("axes", slow_but(AXES, ("observed",)))
def test_batching_inside_and_outside_of_derivatives(form, axes):
    shape = *WINDOWS[form], 3, 2
    arguments = reference.normal(2, 4, 5, 3), reference.normal(*shape, seed=1), reference.normal(*shape, seed=2)
    stacked = tuple(
        a if axis is None else jnp.stack([a, 0.5 * a, a - 1], axis)
        for a, axis in zip(arguments, AXES[axes], strict=True)
    )

    def all_of(form):
        matching = functools.partial(_matching, form)
        outside = jax.vmap(jax.grad(matching, argnums=(0, 1)), AXES[axes])(*stacked)
        total = lambda *a: jnp.sum(jax.vmap(matching, AXES[axes])(*a))  # noqa: E731
        return outside, jax.grad(total, argnums=(0, 1))(*stacked)

    _assert_same(jax.jit(lambda: (all_of(form), all_of("lax")))())


@ALGORITHMS
def test_rounding_errors_are_those_of_the_plain_sum(form):
    kh, kw = WINDOWS[form]
    x, kernel = (
        jax.nn.relu(reference.normal(4, 8, 8, 64)),
        reference.normal(kh, kw, 64, 32, seed=1) / (kh * kw * 64) ** 0.5,
    )
    convolved = jax.jit(conv2d, static_argnames="form")
    with jax.enable_x64(True):
        exact = np.asarray(convolved(np.asarray(x, np.float64), np.asarray(kernel, np.float64), form="lax"))
    assert exact.dtype == np.float64
    errors = [np.sqrt(np.mean((np.asarray(convolved(x, kernel, form=f)) - exact) ** 2)) for f in (form, "lax")]
    assert 0 < errors[0] < 3 * errors[1]


@FAST
def test_dark_parts_of_an_image_stay_dark(form):
    # Rounding errors in dark parts would open ReLUs that a plain sum keeps closed.
    kernel = reference.normal(*WINDOWS[form], 8, 6, seed=1)
    x = reference.normal(3, 9, 8, 8).at[:, :5].set(0).at[2].set(0)

    @functools.partial(jax.jit, static_argnums=0)
    def passed(form):
        y, pull = jax.vjp(lambda x: jax.nn.relu(conv2d(x, kernel, form=form)), x)
        return y == 0, pull(jnp.ones_like(y))[0], jax.jvp(lambda x: conv2d(x, kernel, form=form), (x,), (x + 1,))[1]

    (zero, gradient, tangent), (zero_lax, gradient_lax, tangent_lax) = passed(form), passed("lax")
    np.testing.assert_array_equal(zero, zero_lax)
    _assert_same(((gradient, tangent), (gradient_lax, tangent_lax)))


def test_fouriers_products_are_counted_without_making_the_transforms():
    for size in [(7, 7), (8, 8), (4, 6), (5, 2), (1, 1)]:
        for window in [(5, 5), (3, 3), (3, 1), (1, 1)]:
            assert _fourier.num_products(size, window) == len(_fourier._transforms(size, window)[0])


@FAST
def test_layers_that_do_not_fit_take_patches(form):
    window = WINDOWS[form]
    assert _algorithms((1, 4, 4, 2), (*window, 2, 2), form=form) == {form}
    assert _algorithms((1, 4, 4, 2), (*window, 2, 2), form=form, stride=2) == {"patches"}
    assert _algorithms((1, 5, 5, 2), (*window, 2, 2), form=form, padding=0) == {"patches"}
    assert _algorithms((1, 4, 4, 2), (4, 4, 2, 2), form=form) == {"patches"}
    assert not _algorithms((1, 4, 4, 2), (*window, 1, 2), form=form, groups=2)


def test_other_backends_take_their_own_convolutions_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for form in PRIMITIVES:
        shapes = (1, 16, 16, 64), (*WINDOWS[form], 64, 64)
        assert not _algorithms(*shapes)
        assert _algorithms(*shapes, form=form) == {form}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have fast convolutions")
def test_the_default_takes_an_algorithm_where_it_pays():
    assert _algorithms((1, 16, 16, 64), (3, 3, 64, 64)) == {"winograd"}
    assert _algorithms((40, 7, 7, 64), (5, 5, 64, 128)) == {"fourier"}
    assert _algorithms((16, 5, 5, 16), (3, 3, 16, 16)) == {"fourier"}
    # Too few tiles: a single image would bear the cost of all spectra.
    assert _algorithms((1, 8, 8, 64), (3, 3, 64, 64)) == {"patches"}
    assert _algorithms((40, 14, 14, 1), (5, 5, 1, 64)) == {"patches"}  # too narrow
    assert _algorithms((16, 4, 4, 512), (3, 3, 512, 512)) == {"patches"}  # the spectra of the kernel are too large
    assert _algorithms((16, 224, 224, 16), (3, 3, 16, 16)) == {"patches"}  # images too large for dense transforms
    assert _algorithms((40, 7, 7, 64), (1, 1, 64, 64)) == {"patches"}
