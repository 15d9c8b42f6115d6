"""Every defense through the same tests. A new defense is one more line in `DEFENSES`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak.defenses import chain, clipped_gaussian, fake_gradients

#: Name -> (defense, whether it draws random numbers).
DEFENSES = {
    "clip": (clipped_gaussian(0.5, 0.0), False),
    "gaussian": (clipped_gaussian(0.5, 1.0), True),
    "fake_gradients": (fake_gradients(pool_size=3), True),
    "fake_gradients_printed": (fake_gradients(pool_size=3, repair=False), True),
    "chain": (chain(clipped_gaussian(0.5, 0.1), fake_gradients(pool_size=3)), True),
}

PAYLOAD = {
    "extractor": {},
    "first": {
        "bias": jnp.array([[1.0, -2.0, 0.5], [0.0, 0.1, -0.3]]),
        "kernel": jnp.linspace(-1, 2, 24).reshape(2, 4, 3),
    },
}


@pytest.fixture(scope="module", params=DEFENSES)
def case(request):
    defense, random = DEFENSES[request.param]
    return defense, random, jax.jit(defense.apply)


def _differs(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def test_structure_shapes_and_dtypes_are_kept(case):
    chex.assert_trees_all_equal_shapes_and_dtypes(case[2](jax.random.key(0), PAYLOAD), PAYLOAD)


def test_it_changes_what_is_shared_and_stays_finite(case):
    shared = case[2](jax.random.key(0), PAYLOAD)
    assert _differs(shared, PAYLOAD)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(shared))


def test_the_key_is_the_only_randomness(case):
    _, random, apply = case
    first = apply(jax.random.key(0), PAYLOAD)
    chex.assert_trees_all_equal(first, apply(jax.random.key(0), PAYLOAD))
    assert _differs(first, apply(jax.random.key(1), PAYLOAD)) == random


def test_compiled_equals_eager(case):
    defense, _, apply = case
    with jax.disable_jit():
        eager = defense.apply(jax.random.key(0), PAYLOAD)
    chex.assert_trees_all_close(eager, apply(jax.random.key(0), PAYLOAD), atol=1e-6)


def test_a_payload_of_zeros_is_no_problem(case):
    zeros = jax.tree.map(jnp.zeros_like, PAYLOAD)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(case[2](jax.random.key(0), zeros)))


def test_it_names_its_place(case):
    assert case[0].place == "payload"
