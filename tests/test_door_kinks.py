"""Kinks of users' networks: however a kink is written, it gets the smooth form of its hinges."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models
from jaxleak.models._door.piecewise import Hinge, Piecewise, larger, smaller

IMAGE, CLASSES, SHARPNESS = (2, 3, 2), 3, 2.0
X = reference.uniform(4, *IMAGE, seed=1)
W = {"w": 4 * reference.normal(12, CLASSES), "v": reference.normal(12, 3, seed=2)}
Z, V = (np.asarray(X.reshape(4, -1) @ W[name], np.float64) for name in "wv")


def door(network):
    """The classifier of a function of weights and images, and its outputs with exact and with smoothed kinks."""
    model, variables = models.from_function(lambda v, x: network(v["params"], x), {"params": W}, image_shape=IMAGE)
    exact, smooth, expected = jax.jit(
        lambda v, x: (*(model.apply(v, x, sharpness=s) for s in (None, SHARPNESS)), network(v["params"], x))
    )(variables, X)  # one program takes a fraction of the time of one per operation
    np.testing.assert_allclose(exact.logits, expected, rtol=1e-5, atol=1e-6)
    return model, exact, smooth


def dense(w, x):
    return x.reshape(len(x), -1) @ w


def soft_relu(z, of):
    """The smoothed ReLU of z, with the sharpness in units of the standard deviation of `of`."""
    beta = SHARPNESS / of.std()
    return np.logaddexp(0, beta * z) / beta


@jax.custom_jvp
def by_hand(z):
    return jax.lax.max(z, jax.lax.full_like(z, 0.0)) * 2.0


by_hand.defjvps(lambda dz, out, z: jnp.where(z > 0, 2 * dz, 0.0))


#: A function, its slope far to the left, its offset, and the places and slope changes of its hinges.
HINGES = {
    "a bound from above": (lambda z: jnp.minimum(z, 1.0), 1, 0, [(1, -1)]),
    "a bound that comes first": (lambda z: jnp.minimum(1.0, z), 1, 0, [(1, -1)]),
    "a bound from below": (lambda z: jnp.maximum(0.5, z), 0, 0.5, [(0.5, 1)]),
    "two bounds": (lambda z: jnp.clip(z, -1.0, 2.0), 0, -1, [(-1, 1), (2, -1)]),
    "a clamp": (lambda z: jax.lax.clamp(-1.0, z, 2.0), 0, -1, [(-1, 1), (2, -1)]),
    "a bound of a line": (lambda z: jnp.maximum(3 * z - 1, 2.0), 0, 2, [(1, 3)]),
    "a bound of a falling line": (lambda z: jnp.minimum(1 - 2 * z, 4.0), 0, 4, [(-1.5, -2)]),
    "a kink of a kink": (lambda z: jnp.minimum(jnp.maximum(z, -1.0) * 2, 3.0), 0, -2, [(-1, 2), (1.5, -2)]),
    "an absolute value": (lambda z: jnp.abs(z - 1), -1, 1, [(1, 2)]),
    "an absolute value of a falling line": (lambda z: jnp.abs(1 - z), -1, 1, [(1, 2)]),
    "an absolute value of another": (lambda z: jnp.abs(jnp.abs(z) - 1), -1, -1, [(-1, 2), (0, -2), (1, 2)]),
    "a negative one": (lambda z: -jnp.abs(z), 1, 0, [(0, -2)]),
    "a choice above": (lambda z: jnp.where(z >= 2, 3 * z - 4, z), 1, 0, [(2, 2)]),
    "a choice below": (lambda z: jnp.where(z <= 2, z, 3 * z - 4), 1, 0, [(2, 2)]),
    "a choice by a number that comes first": (lambda z: jnp.where(jnp.less(0.5, z), z - 0.5, 0.0), 0, 0, [(0.5, 1)]),
    "a choice by a falling line": (lambda z: jnp.where(-z > 1, z + 1, 0.0), 1, 1, [(-1, -1)]),
    "a choice by a line": (lambda z: jnp.where(2 * z + 1 < 0, 0.0, 4 * z + 2), 0, 0, [(-0.5, 4)]),
    "a choice between kinks": (
        lambda z: jnp.where(z > 0, jnp.minimum(z, 1.0), jnp.maximum(z, -2.0) / 4),
        *(0, -0.5, [(-2, 0.25), (0, 0.75), (1, -1)]),
    ),
    "a line and a kink": (lambda z: z / 4 + jnp.maximum(z, 0), 0.25, 0, [(0, 1)]),
    "a kink less a line": (lambda z: jnp.maximum(z, 0) - z / 2, -0.5, 0, [(0, 1)]),
    "a kink less a kink": (lambda z: jnp.maximum(z, 0) - jnp.maximum(z, 1.0), 0, -1, [(0, 1), (1, -1)]),
    "hard sigmoid": (jax.nn.hard_sigmoid, 0, 0, [(-3, 1 / 6), (3, -1 / 6)]),
    "a derivative by hand": (by_hand, 0, 0, [(0, 2)]),
    "hard tanh": (jax.nn.hard_tanh, 0, -1, [(-1, 1), (1, -1)]),
    "a product with what comes first": (lambda z: -3.0 * jnp.maximum(z, 0), 0, 0, [(0, -3)]),
    "a bound that binds never": (lambda z: jnp.maximum(jnp.minimum(z, 1e31), 0), 0, 0, [(0, 1)]),
    "a bound that binds never from below": (lambda z: jnp.minimum(jnp.maximum(z, -1e31), 0), 1, 0, [(0, -1)]),
}


@pytest.mark.parametrize("name", HINGES)
def test_the_smooth_form_is_that_of_the_hinges(name):
    written, slope, offset, hinges = HINGES[name]
    model, exact, smooth = door(lambda params, x: written(dense(params["w"], x)))
    line = slope * Z + offset
    np.testing.assert_allclose(exact.logits, line + sum(c * np.maximum(Z - at, 0) for at, c in hinges), atol=1e-5)
    np.testing.assert_allclose(smooth.logits, line + sum(c * soft_relu(Z - at, Z) for at, c in hinges), atol=1e-4)
    assert len(smooth.activations) == 1
    assert model.notes == ()


def small_functions():
    """Piecewise linear functions with none, one or two hinges, all with small integer coefficients."""
    changes = [()] + [(Hinge(at, c),) for at in (-1.0, 1.0) for c in (-2.0, 1.0)]
    changes += [(Hinge(-1.0, a), Hinge(1.0, b)) for a in (-2.0, 1.0) for b in (-2.0, 1.0)]
    return [Piecewise(0, *rest) for rest in itertools.product((-1.0, 0.0, 2.0), (-1.0, 0.0, 1.0), changes)]


GRID = np.linspace(-6, 6, 49)


def check(function, values):
    np.testing.assert_allclose([function.at(z) for z in GRID], values, atol=1e-12)
    places = [hinge.at for hinge in function.hinges]
    assert places == sorted(set(places))
    assert all(hinge.change for hinge in function.hinges)


def test_sums_maxima_and_parts_of_small_piecewise_linear_functions():
    functions = small_functions()
    tables = [np.array([f.at(z) for z in GRID]) for f in functions]
    for f, values in zip(functions, tables, strict=True):
        check(f.positive(), np.maximum(values, 0))
        check(f.scaled(-3.0), -3 * values)
        check(f.scaled(0.0), 0 * values)
        check(f.raised(0.5), values + 0.5)
        for place in (-2.0, -1.0, 0.0, 0.5, 1.0, 3.0):
            right = f.right_of(place)
            assert (right is None) == (f.at(place) != 0)
            if right is not None:
                check(right, np.where(place < GRID, values, 0))
        assert f.right_of(np.inf) is None
    pairs = list(zip(functions, tables, strict=True))
    for (f, left), (g, right) in zip(pairs[::2], pairs[1::2] + pairs[:1], strict=False):
        check(f.plus(g), left + right)
        check(f.plus(f.scaled(-1.0)), 0 * left)
        check(larger(f, g), np.maximum(left, right))
        check(smaller(f, g), np.minimum(left, right))


def test_pieces_are_the_lines_between_hinges():
    function = Piecewise(0, 1.0, 2.0, (Hinge(1.0, 2.0), Hinge(3.0, -4.0)))
    inf = np.inf
    assert list(function.pieces()) == [(-inf, 1.0, 1.0, 2.0), (1.0, 3.0, 3.0, 0.0), (3.0, inf, -1.0, 12.0)]


#: Functions that are not smoothed, by their name in the notes; spaces after a name distinguish cases.
STAYS = {
    "sign": lambda z, v: z * jnp.sign(z),
    "floor": lambda z, v: z + jnp.floor(z),
    "ceil": lambda z, v: z + jnp.ceil(z),
    "round": lambda z, v: z + jnp.round(z),
    "rem": lambda z, v: jax.lax.rem(z, 2.0 * jnp.ones_like(z)),
    "cummax": lambda z, v: jax.lax.cummax(z, axis=1),
    "cummin": lambda z, v: jax.lax.cummin(z, axis=1),
    "reduce_min": lambda z, v: z + z.min(axis=1, keepdims=True),
    "top_k": lambda z, v: jax.lax.top_k(z, 3)[0],
    "sort": lambda z, v: jnp.sort(z, axis=1),
    "clamp": lambda z, v: jax.lax.clamp(v - 1, z, v + 1),
    "select_n, a branch chosen by the sign of a number": lambda z, v: jnp.where(z > v, z, v),
    "select_n, a branch chosen by the sign of a number ": lambda z, v: jnp.where(z > 0, v, 0.0),
    "select_n, a branch chosen by the sign of a number  ": lambda z, v: jnp.where(z > 0, z + 1, z),
    "scan (with max inside)": lambda z, v: jax.lax.scan(lambda z, _: (jnp.maximum(z, 0), None), z, length=2)[0],
    "scan (with scan (with max inside) inside)": lambda z, v: jax.lax.scan(
        lambda z, _: (jax.lax.scan(lambda z, _: (jnp.maximum(z, 0), None), z, length=2)[0], None), z, length=2
    )[0],
    "scan (with dot_general, sign inside)": lambda z, v: jax.lax.scan(
        lambda z, _: (jnp.sign(z) * (z @ jnp.eye(3)), None), z, length=2
    )[0],
}


@pytest.mark.parametrize("name", STAYS)
def test_a_kink_without_a_smooth_form_stays_and_is_named(name):
    model, exact, smooth = door(lambda params, x: STAYS[name](dense(params["w"], x), dense(params["v"], x)))
    np.testing.assert_array_equal(smooth.logits, exact.logits)
    assert model.notes == (f"kinks that are not smoothed: 1 x {name.rstrip()}",)


#: Smooth non-linearities, made of one primitive or of many.
SMOOTH = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "exact gelu": lambda z: jax.nn.gelu(z, approximate=False),
    "softplus": jax.nn.softplus,
    "softplus of a line": lambda z: jax.nn.softplus(2 * z) / 2,
    "mish": jax.nn.mish,
    "scaled tanh": lambda z: 1.7 * jnp.tanh(z / 3) + 1,
    "exponential": lambda z: jnp.expm1(z / 8),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_non_linearity_is_one_activation(name):
    function = SMOOTH[name]
    model, exact, smooth = door(lambda params, x: function(dense(params["w"], x)) @ params["v"][:3])
    np.testing.assert_array_equal(smooth.logits, exact.logits)
    (found,) = exact.activations
    np.testing.assert_allclose(found, function(jnp.asarray(Z, jnp.float32)), rtol=1e-4, atol=1e-5)
    assert not any("kinks" in note for note in model.notes)
    assert not model.has_kinks


def test_an_exponential_linear_unit_is_one_choice_and_its_guard():
    """The inner choice of an ELU only keeps the exponential finite, and is no further kink."""
    model, exact, smooth = door(lambda params, x: jax.nn.elu(dense(params["w"], x)) @ params["v"][:3])
    np.testing.assert_array_equal(smooth.logits, exact.logits)
    assert model.notes[0] == "kinks that are not smoothed: 1 x select_n, a branch chosen by the sign of a number"
    (found,) = exact.activations  # the whole unit, not only its exponential branch
    np.testing.assert_allclose(found, np.where(Z > 0, Z, np.expm1(np.minimum(Z, 0))), rtol=1e-4, atol=1e-5)


def test_two_non_linearities_behind_each_other_are_two_activations():
    _, exact, _ = door(lambda params, x: jnp.tanh(jnp.maximum(dense(params["w"], x), 0) @ params["v"][:3]))
    first, second = exact.activations
    np.testing.assert_allclose(first, np.maximum(Z, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(second, exact.logits)


#: Networks with maxima that are no kinks in the derivative by images.
NO_KINKS = {
    "of weights alone": lambda w, v, x: dense(w, x) + jnp.abs(v).sum() + jnp.maximum(v, 0.1).mean(),
    "of two weights": lambda w, v, x: dense(w, x) + jnp.maximum(v, v[::-1]).mean() + jnp.minimum(v, v[::-1]).mean(),
    "behind a stopped derivative": lambda w, v, x: dense(w, x) + jax.lax.stop_gradient(jnp.maximum(dense(v, x), 0)),
    "of whole numbers": lambda w, v, x: dense(w, x) * jnp.maximum(dense(v, x).astype(jnp.int32), 0),
    "that keeps a division from failing": lambda w, v, x: dense(w, x) / jnp.maximum((dense(v, x)) ** 2, 1e-7),
    "inside a smooth function": lambda w, v, x: jax.nn.softplus(dense(w, x)),
}


@pytest.mark.parametrize("name", NO_KINKS)
def test_what_is_no_kink_of_images_stays_and_is_not_named(name):
    model, exact, smooth = door(lambda params, x: NO_KINKS[name](params["w"], params["v"], x))
    np.testing.assert_array_equal(smooth.logits, exact.logits)
    assert model.notes == ()


def mean(z):
    return z.mean(axis=1, keepdims=True)


def times_itself(z):
    return z * z


#: Arguments of a maximum with zero, and whether each is a mean of squares minus a squared mean.
VARIANCES = {
    "products": (lambda z: mean(z * z) - times_itself(mean(z)), True),
    "squares": (lambda z: mean(jnp.square(z)) - jnp.square(mean(z)), True),
    "powers": (lambda z: mean(jax.lax.integer_pow(z, 2)) - jax.lax.integer_pow(mean(z), 2), True),
    "fourth powers": (lambda z: mean(jax.lax.integer_pow(z, 4)) - jax.lax.integer_pow(mean(z), 2), False),
    "less a fourth power": (lambda z: mean(z * z) - jax.lax.integer_pow(mean(z), 4), False),
    "less a mean": (lambda z: mean(z * z) - mean(z), False),
    "a mean less a square": (lambda z: mean(z) - jnp.square(mean(z)), False),
    "no mean": (lambda z: z * z - jnp.square(mean(z)), False),
    "a sum": (lambda z: mean(z * z) + jnp.square(mean(z)), False),
    "products of two": (lambda z: mean(z * z[:, ::-1]) - jnp.square(mean(z)), False),
}


@pytest.mark.parametrize("name", VARIANCES)
def test_a_bound_is_none_where_only_rounding_meets_it(name):
    written, is_variance = VARIANCES[name]
    _, exact, smooth = door(lambda params, x: dense(params["w"], x) * jnp.maximum(written(dense(params["v"], x)), 0))
    assert (np.abs(smooth.logits - exact.logits).max() < 1e-5) == is_variance
    assert len(exact.activations) == (not is_variance)


@pytest.mark.parametrize(("name", "sign"), [("max", 1), ("min", -1)])
def test_the_larger_of_two_arrays_has_the_smooth_form_of_their_difference(name, sign):
    two = jnp.maximum if sign == 1 else jnp.minimum
    model, exact, smooth = door(lambda params, x: two(dense(params["w"], x), dense(params["v"], x)))
    np.testing.assert_allclose(exact.logits, np.maximum(sign * Z, sign * V) * sign, rtol=1e-5)
    np.testing.assert_allclose(smooth.logits, V + sign * soft_relu(sign * (Z - V), Z - V), rtol=1e-4, atol=1e-5)
    assert len(smooth.activations) == 1
    assert model.notes == ()
    assert model.has_kinks


def log_mean_exp(z, axis, beta):
    return np.log(np.exp(beta * z).mean(axis=axis)) / beta


@pytest.mark.parametrize("axes", [(1, 2), (2,), (3, 1)])
def test_a_maximum_over_axes_has_the_smooth_form_over_all_of_their_entries(axes):
    def network(params, x):
        z = x.max(axis=axes)
        return z.reshape(len(x), -1) @ params["w"][: z[0].size]

    model, _, smooth = door(network)
    x = np.asarray(X, np.float64)
    z = log_mean_exp(x, axes, SHARPNESS / x.std())
    np.testing.assert_allclose(smooth.logits, z.reshape(4, -1) @ W["w"][: z[0].size], rtol=1e-4)
    assert not smooth.activations
    assert not any("kinks" in note for note in model.notes)
    assert model.has_kinks


def test_images_that_are_taken_one_by_one_have_their_own_standard_deviations():
    """The program for one more image has more steps, so every array of two axes counts as belonging to images."""
    _, _, smooth = door(
        lambda params, x: jnp.concatenate([jnp.maximum(dense(params["w"], x[i : i + 1]), 0) for i in range(len(x))])
    )
    np.testing.assert_allclose(smooth.logits, [soft_relu(z, z) for z in Z], rtol=1e-4)
    assert len(smooth.activations) == 4
