"""Every defense through the same tests. A new defense is one more line in `DEFENSES`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak.defenses import (
    SPLIT_PLACES,
    chain,
    clipped_gaussian,
    fake_gradients,
    gaussian_noise,
    marvell,
    vfl_defender,
)

#: Name -> (defense, whether it draws random numbers).
DEFENSES = {
    "clip": (clipped_gaussian(0.5, 0.0), False),
    "gaussian": (clipped_gaussian(0.5, 1.0), True),
    "fake_gradients": (fake_gradients(pool_size=3), True),
    "fake_gradients_printed": (fake_gradients(pool_size=3, repair=False), True),
    "noise_on_outputs": (gaussian_noise(0.1), True),
    "noise_on_gradients": (gaussian_noise(0.1, place="cut_gradient"), True),
    "vfl_defender": (vfl_defender(0.5, -0.4), True),
    "vfl_defender_printed": (vfl_defender(0.5, -0.4, reading="paper"), True),
    "marvell": (marvell(num_classes=2), True),
    "chain": (chain(clipped_gaussian(0.5, 0.1), fake_gradients(pool_size=3)), True),
}

PAYLOAD = {
    "extractor": {},
    "first": {
        "bias": jnp.array([[1.0, -2.0, 0.5], [0.0, 0.1, -0.3]]),
        "kernel": jnp.linspace(-1, 2, 24).reshape(2, 4, 3),
    },
}
ROWS = jnp.array([[1.0, -2.0, 0.5], [0.3, 0.1, -0.3], [-1.0, 0.2, 0.0], [0.4, 0.4, -0.8]])
#: Place -> what passes there; `LABELS` come along, as `split_training` passes them.
PAYLOADS = {
    "payload": PAYLOAD,
    "top_output": ROWS,
    "top_output_gradient": ROWS,
    "cut_gradient": (ROWS, jnp.linspace(-1, 2, 20).reshape(4, 5)),
}
LABELS = jnp.array([0, 1, 1, 0])


@pytest.fixture(scope="module", params=DEFENSES)
def case(request):
    defense, random = DEFENSES[request.param]
    return defense, random, jax.jit(lambda key, payload: defense.apply(key, payload, labels=LABELS))


def _payload(case):
    return PAYLOADS[case[0].place]


def _differs(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def test_structure_shapes_and_dtypes_are_kept(case):
    chex.assert_trees_all_equal_shapes_and_dtypes(case[2](jax.random.key(0), _payload(case)), _payload(case))


def test_it_changes_what_is_shared_and_stays_finite(case):
    shared = case[2](jax.random.key(0), _payload(case))
    assert _differs(shared, _payload(case))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(shared))


def test_the_key_is_the_only_randomness(case):
    _, random, apply = case
    first = apply(jax.random.key(0), _payload(case))
    chex.assert_trees_all_equal(first, apply(jax.random.key(0), _payload(case)))
    assert _differs(first, apply(jax.random.key(1), _payload(case))) == random


def test_compiled_equals_eager(case):
    defense, _, apply = case
    with jax.disable_jit():
        eager = defense.apply(jax.random.key(0), _payload(case), labels=LABELS)
    chex.assert_trees_all_close(eager, apply(jax.random.key(0), _payload(case)), atol=1e-6)


def test_a_payload_of_zeros_is_no_problem(case):
    zeros = jax.tree.map(jnp.zeros_like, _payload(case))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(case[2](jax.random.key(0), zeros)))


def test_it_names_its_place(case):
    assert case[0].place in ("payload", *SPLIT_PLACES)
