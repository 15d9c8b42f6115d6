"""A function that is no distance is refused before an attack minimises it, since the client would look safe."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import attacks, models, objectives, protocols
from jaxleak.attacks import presets
from jaxleak.attacks._inversion import gradient_term
from jaxleak.objectives import check_distance

LIKE = {"kernel": jax.ShapeDtypeStruct((6, 4), jnp.float32), "bias": jax.ShapeDtypeStruct((4,), jnp.float32)}


def scaled_cosine(observed, simulated, scale=2.0):
    return scale * objectives.cosine(observed, simulated)


def narrow_kernel(observed, simulated):
    """A valid distance that is flat between gradients that are far apart."""
    return 1 - jnp.exp(-1e4 * objectives.squared_l2(observed, simulated))


def swapped(observed, simulated):
    return objectives.squared_l2(observed, observed)


def flat_far_away(observed, simulated):
    """A distance that is flat unless the gradients are near to each other, relative to their size."""
    near = 0.05 * jnp.sum(observed["kernel"] ** 2)
    return jnp.minimum(objectives.squared_l2(observed, simulated), near)


def flat_for_large_ones(observed, simulated):
    return jnp.minimum(objectives.squared_l2(observed, simulated), 1e-6)


WRONG = {
    "a similarity that jaxleak weighs": (
        objectives.weighted([(1.0, lambda o, s: 1 - objectives.cosine(o, s))]),
        "smaller the more alike",
    ),
    "a similarity": (lambda o, s: 1 - objectives.cosine(o, s), "smaller the more alike"),
    "the wrong sign": (lambda o, s: -objectives.squared_l2(o, s), "smaller the more alike"),
    "a constant": (lambda o, s: jnp.zeros(()), "depend on its second argument"),
    "the first argument twice": (swapped, "depend on its second argument"),
    "a stopped gradient": (lambda o, s: jax.lax.stop_gradient(objectives.cosine(o, s)), "depend on its second"),
    "no number": (lambda o, s: jnp.nan * objectives.cosine(o, s), "must be a finite number .* it is nan"),
    "a slope without number": (lambda o, s: objectives.l1(o, s) + jnp.sqrt(0.0 * s["bias"][0]), "finite slope"),
    "a tree": (lambda o, s: jax.tree.map(objectives.cosine, o, s), "one real number, .* got dict"),
    "a vector": (lambda o, s: jnp.abs(o["bias"] - s["bias"]), r"one real number, .* got ShapeDtypeStruct\(shape=\(4,"),
    "a whole number": (lambda o, s: jnp.sum(o["bias"] > s["bias"]), "one real number"),
    "another model's layer": (lambda o, s: s["conv"].sum(), "fails on two gradients .* KeyError: 'conv'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_distance_is_refused(name):
    distance, why = WRONG[name]
    with pytest.raises(ValueError, match=f"distance .*{why}"):
        check_distance(distance, LIKE)


@pytest.mark.parametrize(
    "distance",
    [
        objectives.cosine,
        objectives.squared_l2,
        objectives.l1,
        objectives.relative_l1,
        objectives.gaussian_kernel,
        objectives.laplace_likelihood(0.1),
        objectives.weighted([(1.0, objectives.relative_l1), (0.5, objectives.cosine)]),
        scaled_cosine,
        functools.partial(scaled_cosine, scale=0.5),
        narrow_kernel,
        flat_far_away,
        flat_for_large_ones,
    ],
)
def test_distances_pass(distance):
    check_distance(distance, LIKE)
    check_distance(distance, jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), LIKE))


class Unhashable:
    """An unhashable callable, such as a dataclass with settings."""

    __hash__ = None

    def __call__(self, observed, simulated):
        return objectives.cosine(observed, simulated)


class TestAttack:
    model = models.mlp((4, 4, 1), 3)
    share = protocols.ClientShare(model)

    def build(self, distance):
        settings = presets.inverting_gradients(4).comparing(distance=distance)
        return attacks.inversion(self.model, self.share, settings, batch_size=1)

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda f: f,
            lambda f: functools.partial(f),
            lambda f: objectives.weighted([(1.0, f)]),
            lambda f: objectives.layer_weighted(f, lambda number: 1.0),
        ],
    )
    def test_an_inversion_refuses_them(self, wrap):
        with pytest.raises(ValueError, match="depend on its second argument"):
            self.build(wrap(swapped))

    def test_it_takes_them_inside_of_a_compiled_program(self):
        @jax.jit
        def made(x):
            self.build(scaled_cosine)
            return x

        assert made(jnp.ones(())) == 1

    def test_a_distance_that_reads_a_traced_number_is_taken_as_it_is(self):
        @jax.jit
        def made(weight):
            self.build(lambda o, s: weight * objectives.cosine(o, s))
            return weight

        assert made(jnp.ones(())) == 1

    def test_jaxleaks_own_are_not_called(self, monkeypatch):
        monkeypatch.setattr(gradient_term, "check_distance", None)
        for distance in (objectives.cosine, objectives.weighted([(1.0, objectives.l1), (0.5, objectives.cosine)])):
            self.build(distance)

    def test_it_checks_in_the_shapes_of_the_model(self):
        self.build(lambda o, s: objectives.cosine(o["head"], s["head"]))
        self.build(Unhashable())
        with pytest.raises(ValueError, match="KeyError: 'no_layer'"):
            self.build(lambda o, s: objectives.cosine(o["no_layer"], s["no_layer"]))
