"""Common tests for every defense. A new defense needs one more line in `DEFENSES`."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_among

from jaxleak import models, protocols
from jaxleak.defenses import (
    HORIZONTAL_PLACES,
    SPLIT_PLACES,
    adam_step,
    adaptive_dp_sgd,
    cancelling_noise,
    chain,
    clipped_gaussian,
    composed,
    dp_sgd,
    fake_gradients,
    feature_dropout,
    gaussian_noise,
    guardian,
    laplace_noise,
    magnitude_noise,
    marvell,
    outpost,
    quantize,
    soteria,
    sparsify,
    vfl_defender,
    withhold_top,
)
from jaxleak.models import classifier

#: Name -> (defense, whether it draws random numbers).
DEFENSES = {
    "clip": (clipped_gaussian(0.5, 0.0), False),
    "gaussian": (clipped_gaussian(0.5, 1.0), True),
    "fake_gradients": (fake_gradients(pool_size=3), True),
    "fake_gradients_printed": (fake_gradients(pool_size=3, reading="printed"), True),
    "fake_gradients_relative": (fake_gradients(pool_size=3, scale="tensor"), True),
    "fake_gradients_paired": (fake_gradients(pool_size=3, reading="paired", scale="gradient"), True),
    "noise_on_outputs": (gaussian_noise(0.1, place="top_output"), True),
    "noise_on_gradients": (gaussian_noise(0.1, place="cut_gradient"), True),
    "noise_on_embeddings": (laplace_noise(0.1, place="bottom_output"), True),
    "vfl_defender": (vfl_defender(0.5, -0.4), True),
    "vfl_defender_printed": (vfl_defender(0.5, -0.4, reading="paper"), True),
    "vfl_defender_batch": (vfl_defender(0.5, -0.4, reading="batch"), True),
    "marvell": (marvell(num_classes=2), True),
    "marvell_of_four_classes": (marvell(num_classes=4), True),
    "gaussian_noise": (gaussian_noise(0.1), True),
    "laplace_noise": (laplace_noise(0.1), True),
    "magnitude_noise": (magnitude_noise(0.1), True),
    "cancelling_noise": (cancelling_noise(0.1, 2), True),
    "quantize_16": (quantize(16), False),
    "quantize_8": (quantize(8), False),
    "quantize_4_stochastic": (quantize(4, stochastic=True), True),
    "quantize_1": (quantize(1), False),
    "quantize_1_stochastic": (quantize(1, stochastic=True), True),
    "sparsify": (sparsify(30), False),
    "quantized_cut_gradients": (quantize(4, place="cut_gradient"), False),
    "sparse_cut_gradients": (sparsify(30, place="cut_gradient"), False),
    "sparsify_error_feedback": (sparsify(30, error_feedback=True), False),
    "withhold_top": (withhold_top(30), False),
    "encrypt_top": (withhold_top(30, encrypted=True), False),
    "clip_examples": (dp_sgd(0.5, 0.0), False),
    "dp_sgd": (dp_sgd(0.5, 1.0), True),
    "adaptive_dp_sgd": (adaptive_dp_sgd(0.5, 1.0, decay=0.9), True),
    "soteria": (soteria(0.5), False),
    "outpost": (outpost(0.5), True),
    "adam_step": (adam_step(1e-3, weight_decay=0.01), False),
    "guardian": (guardian(10.0, probes=1), True),
    "dp_before_soteria": (composed(dp_sgd(0.5, 1.0), soteria(0.5)), True),
    "feature_dropout": (feature_dropout(0.5), True),
    "compressed": (chain(sparsify(30), quantize(4)), False),
    "chain": (chain(clipped_gaussian(0.5, 0.1), fake_gradients(pool_size=3)), True),
}

PAYLOAD = {
    "extractor": {},
    "first": {
        "bias": jnp.array([[1.0, -2.0, 0.5], [0.0, 0.1, -0.3]]),
        "kernel": jnp.linspace(-1, 2, 24).reshape(2, 4, 3),
    },
}


class _Small(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(nn.sigmoid(nn.Dense(6, name="hidden")(x.reshape(len(x), -1))))


MODEL = classifier(_Small(), image_shape=(2, 2, 1), num_classes=3)
VARIABLES = reference.drawn(MODEL)
ROWS = jnp.array([[1.0, -2.0, 0.5], [0.3, 0.1, -0.3], [-1.0, 0.2, 0.0], [0.4, 0.4, -0.8]])
#: Place of a defense -> example of what passes there.
PAYLOADS = {
    "payload": PAYLOAD,
    "bottom_output": (ROWS, jnp.linspace(-1, 2, 20).reshape(4, 5)),
    "top_output": ROWS,
    "top_output_gradient": ROWS,
    "cut_gradient": (ROWS, jnp.linspace(-1, 2, 20).reshape(4, 5)),
    "per_example_gradient": PAYLOAD,
    "representation": jax.tree.map(
        lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), VARIABLES["params"]
    ),
    "client_payloads": PAYLOAD,
    "server_view": PAYLOAD,
}
LABELS = jnp.array([0, 1, 1, 0])
#: All values that a defender may know; a defense uses those that it needs.
KNOWN = {
    "labels": LABELS,
    "model": MODEL,
    "variables": VARIABLES,
    "x": reference.uniform(4, 2, 2, 1, seed=1),
    "y": LABELS,
    "round": 0,
}


@pytest.fixture(scope="module", params=DEFENSES)
def case(request):
    defense, random = DEFENSES[request.param]
    # The function also returns the state, so that one compilation serves all tests.
    update = jax.jit(lambda key, payload: defense.update(key, payload, defense.init(payload), **KNOWN))
    return defense, random, lambda key, payload: update(key, payload)[0], update


def _payload(case):
    return PAYLOADS[case[0].place]


def _differs(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def test_structure_shapes_and_dtypes_are_kept(case):
    chex.assert_trees_all_equal_shapes_and_dtypes(case[2](jax.random.key(0), _payload(case)), _payload(case))


def test_half_precision_stays_half_precision(case):
    defense, payload = case[0], jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _payload(case))
    shared = jax.eval_shape(lambda key: defense.apply(key, payload, **KNOWN), jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(shared, payload)


def test_it_changes_what_is_shared_and_stays_finite(case):
    shared = case[2](jax.random.key(0), _payload(case))
    assert _differs(shared, _payload(case))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(shared))


def test_the_key_is_the_only_randomness(case):
    _, random, apply, _ = case
    first = apply(jax.random.key(0), _payload(case))
    chex.assert_trees_all_equal(first, apply(jax.random.key(0), _payload(case)))
    assert _differs(first, apply(jax.random.key(1), _payload(case))) == random


#: Defenses that run one operation at a time only with -m slow: variants with the operations of another defense,
#: combinations of defenses that also run alone, and those that take longest.
VARIANTS = (
    "fake_gradients_printed", "fake_gradients_relative", "fake_gradients_paired", "vfl_defender_printed",
    "vfl_defender_batch", "dp_before_soteria", "chain", "marvell", "marvell_of_four_classes", "fake_gradients",
    "outpost", "guardian",
)  # fmt: skip


@pytest.mark.parametrize("case", slow_among(DEFENSES, VARIANTS), indirect=True)
def test_compiled_equals_eager(case):
    defense, _, apply, _ = case
    with jax.disable_jit():
        eager = defense.apply(jax.random.key(0), _payload(case), **KNOWN)
    chex.assert_trees_all_close(eager, apply(jax.random.key(0), _payload(case)), atol=1e-6)


def test_a_payload_of_zeros_is_no_problem(case):
    zeros = jax.tree.map(jnp.zeros_like, _payload(case))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(case[2](jax.random.key(0), zeros)))


def test_it_names_its_place(case):
    assert case[0].place in (*HORIZONTAL_PLACES, *SPLIT_PLACES)


def test_carried_state_keeps_its_structure(case):
    defense, _, _, update = case
    chex.assert_trees_all_equal_shapes_and_dtypes(
        update(jax.random.key(0), _payload(case))[1], defense.init(_payload(case))
    )


def test_non_finite_payloads_are_refused_before_compiling(case):
    poisoned = jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(jnp.nan), _payload(case))
    with pytest.raises(FloatingPointError, match="payload: non-finite"):
        case[0].apply(jax.random.key(0), poisoned, **KNOWN)


def _federation(defense):
    return protocols.federated_averaging(MODEL, [np.arange(2)] * 2, batch_size=1, learning_rate=1e-3, defense=defense)


def _linear(parties):
    return models.logistic((4,), parties=parties, num_classes=3)


SIZES = {"num_samples": 4, "batch_size": 2}
#: Protocol -> (constructor with a defense, the places for defenses that it has).
PROTOCOLS = {
    "vertical": (lambda d: protocols.vertical(_linear(2), defense=d, **SIZES), {"payload"}),
    "horizontal": (lambda d: protocols.horizontal(_linear(1), workers=2, defense=d, **SIZES), {"payload"}),
    "split_training": (
        lambda d: protocols.split_training(models.bottom_top((2, 3), 3), defenses=[d], **SIZES),
        set(SPLIT_PLACES),
    ),
    "client": (
        lambda d: protocols.client(protocols.ClientShare(MODEL), defense=d, **SIZES),
        set(HORIZONTAL_PLACES) - {"client_payloads"},
    ),
    "federated_averaging": (_federation, set(HORIZONTAL_PLACES)),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_takes_a_defense_exactly_where_it_has_the_place(protocol):
    build, places = PROTOCOLS[protocol]
    for made, _ in DEFENSES.values():
        defense = made._replace(num_classes=None)  # the protocols here have models of several numbers of classes
        if defense.place in places:
            build(defense)
        else:
            with pytest.raises(ValueError, match="place must be one of"):
                build(defense)
