"""Hostile configurations of the library: always a clear error or a valid result, and nothing is ever unpickled."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fuzzing import (  # noqa: F401
    CLASSES,
    FLOATS,
    INTEGERS,
    MODEL,
    NAMES,
    SHAPE,
    SHARE,
    TEMPLATE,
    VARIABLES,
    B,
    clear,
    few,
    fuzz,
    little_memory,
    nothing_is_unpickled,
    report,
)
from hypothesis import given
from hypothesis import strategies as st

from jaxleak import attacks, audit, data, defenses, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import presets

SPLIT = models.logistic((7,), parties=2, num_classes=3)


@fuzz(60, 1500)
@given(
    sizes=st.fixed_dictionaries({"num_samples": INTEGERS, "batch_size": INTEGERS}),
    options=st.fixed_dictionaries(
        {},
        optional={
            "workers": INTEGERS,
            "output_rounds": st.none() | INTEGERS,
            "feature_rounds": st.none() | INTEGERS,
            "solver": NAMES,
        },
    ),
)
def test_plans(sizes, options):
    plan = clear("plans", lambda: attacks.plan_cafe_exact(SPLIT, **sizes, **options))
    if plan is not None:
        assert 0 < plan.batch_size < plan.num_samples
        assert plan.output_rounds > 0
        assert plan.feature_rounds * min(plan.batch_size, SPLIT.width) >= plan.num_samples


WEIGHTS = ("tv", "activation", "l2", "batch_norm")
CHANGES = {
    **dict.fromkeys(WEIGHTS, FLOATS),
    "labels": NAMES | st.sampled_from(sorted(attacks.LABEL_RULES)),
    "consistency": FLOATS,
    "group": st.integers(-2, 3),
    "iterations": INTEGERS,
}


def changed(settings, changes):
    weights = {name: changes[name] for name in WEIGHTS if name in changes}
    return settings.weighing(**weights)._replace(**{k: v for k, v in changes.items() if k not in weights})


@fuzz(12, 100)
@given(
    changes=st.fixed_dictionaries({}, optional=CHANGES),
    payload=st.sampled_from(["whole", "nan", "missing", "shape", "empty", "none"]),
    batch_size=st.integers(-1, 3),
)
def test_settings_and_payloads(changes, payload, batch_size):
    """Trace the first step by shapes, on a payload that may be damaged; no program is compiled."""
    shown = {
        "whole": VARIABLES["params"],
        "nan": jax.tree.map(lambda leaf: leaf * np.nan, VARIABLES["params"]),
        "missing": {MODEL.head: VARIABLES["params"][MODEL.head]},
        "shape": jax.tree.map(lambda leaf: leaf[..., None], VARIABLES["params"]),
        "empty": {},
        "none": None,
    }[payload]

    def attempt():
        attack = attacks.inversion(
            MODEL,
            SHARE,
            changed(presets.fedleak(10, homotopy=False), changes),
            batch_size=batch_size,
        )
        template = jax.tree.map(lambda leaf: leaf, TEMPLATE)
        state = jax.eval_shape(lambda key: attack.init(key, template), jax.random.key(0))
        seen = Observation(jnp.zeros((), jnp.int32), VARIABLES, shown)
        return jax.eval_shape(attack.step, jax.random.key(0), state, seen)

    if clear("settings", attempt) is not None:
        assert payload in ("whole", "nan")


OPTIMIZERS = {"adam": optax.adam(0.1), "lbfgs": optax.lbfgs(), "huge": optax.sgd(1e30), "nan": optax.sgd(math.nan)}


def _two_steps(preset, optimizer, changes, restarts, damaged):
    """Run two steps. On bad numbers the attack stops moving or raises a clear error; it never fails half-way."""
    shown = jax.tree.map(lambda leaf: leaf * (np.inf if damaged else 1), VARIABLES["params"])

    def attempt():
        settings = changed(presets.preset(preset, 2), {"optimizer": OPTIMIZERS[optimizer], **changes})
        attack = attacks.inversion(MODEL, SHARE, settings, batch_size=B)
        seen = Observation(jnp.zeros((), jnp.int32), VARIABLES, shown)
        return audit.invert(attack, seen, TEMPLATE, key=jax.random.key(0), iterations=2, restarts=restarts)

    done = clear("steps", attempt)
    if done is not None:
        assert not damaged
        found, _, infos = done
        assert found.x.shape == (B, 1, *SHAPE)
        assert not np.isnan(found.x).any()
        assert len(infos["loss"]) == 2
        assert np.isfinite(infos["loss"][~np.asarray(infos["frozen"])]).all()


STEPS = {
    "preset": st.sampled_from(sorted(presets.PRESETS.keys() - {*presets.GENERATIVE, "fedleak_upstream"})),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "changes": few({k: CHANGES[k] for k in sorted(CHANGES.keys() - {"iterations", "labels"})}),
    "restarts": st.sampled_from([1, 1, 2]),
    "damaged": st.sampled_from([False, False, False, True]),
}


@fuzz(1, 1)
@given(**STEPS)
def test_two_steps(preset, optimizer, changes, restarts, damaged):
    _two_steps(preset, optimizer, changes, restarts, damaged)


@pytest.mark.slow
@fuzz(40, 40)
@given(**STEPS)
def test_many_two_steps(preset, optimizer, changes, restarts, damaged):
    _two_steps(preset, optimizer, changes, restarts, damaged)


#: Every constructor of a defense, as a function of two numbers.
DEFENSES = {
    "adaptive_dp_sgd": lambda a, b: defenses.adaptive_dp_sgd(a, b),
    "cancelling_noise": lambda a, b: defenses.cancelling_noise(a, b),
    "clipped_gaussian": defenses.clipped_gaussian,
    "dp_sgd": lambda a, b: defenses.dp_sgd(a, b),
    "expected_batch": lambda a, b: defenses.dp_sgd(1.0, a, expected_batch=b),
    "fake_gradients": lambda a, b: defenses.fake_gradients(b, a),
    "feature_dropout": lambda a, b: defenses.feature_dropout(a),
    "gaussian_noise": lambda a, b: defenses.gaussian_noise(a),
    "guardian": lambda a, b: defenses.guardian(a, probes=b),
    "laplace_noise": lambda a, b: defenses.laplace_noise(a),
    "magnitude_noise": lambda a, b: defenses.magnitude_noise(a),
    "marvell": lambda a, b: defenses.marvell(num_classes=b, power=a),
    "outpost": lambda a, b: defenses.outpost(a, decay=b),
    "quantize": lambda a, b: defenses.quantize(b),
    "soteria": lambda a, b: defenses.soteria(a),
    "sparsify": lambda a, b: defenses.sparsify(a),
    "vfl_defender": defenses.vfl_defender,
    "withhold_top": lambda a, b: defenses.withhold_top(a),
    "adam_step": lambda a, b: defenses.adam_step(a, weight_decay=b),
    **{kind: lambda a, b, kind=kind: defenses.client_defense(kind, a) for kind in defenses.CLIENT_DEFENSES},
}


def test_every_defense_is_among_them():
    made = {name for name in defenses.__all__ if name[0].islower()}
    others = {
        "bits_on_the_wire",
        "chain",
        "check_mechanism",
        "client_defense",
        "composed",
        "label_dp_scale",
        "mechanisms",
    }
    others |= {"classical_noise_multiplier", "per_leaf", "split_defense", "stateless", "true_epsilon"}
    assert {n for n in made if not n.startswith(("epsilon", "noise_multiplier"))} - others <= DEFENSES.keys()


@fuzz(80, 300)
@given(
    names=st.lists(st.sampled_from(sorted(DEFENSES)), min_size=1, max_size=2),
    first=FLOATS | st.sampled_from([0.5, 10.0, 50.0]),
    second=FLOATS | INTEGERS | st.sampled_from([1, 2, 8]),
    place=st.none() | NAMES | st.sampled_from([*defenses.HORIZONTAL_PLACES, *defenses.SPLIT_PLACES]),
)
def test_defenses(names, first, second, place):
    """Build, chain and move defenses to another place, and trace one round of a client by shapes."""

    def attempt():
        members = [DEFENSES[name](first, second) for name in names]
        defense = members[0] if len(members) == 1 else defenses.chain(*members)
        if place is not None:
            defense = defense._replace(place=place)
        protocol = protocols.client(SHARE, num_samples=B, batch_size=B, defense=defense)
        private = Batch(jnp.zeros((B, 1, *SHAPE)), jnp.zeros(B, jnp.int32), jnp.arange(B))
        state = jax.eval_shape(protocol.init, jax.random.key(0))
        return jax.eval_shape(protocol.round, jax.random.key(0), state, private)[1]

    seen = clear("defenses", attempt)
    if seen is not None:
        for leaf, weight in zip(jax.tree.leaves(seen.payload), jax.tree.leaves(VARIABLES["params"]), strict=True):
            assert leaf.shape == weight.shape


@fuzz(25, 400)
@given(
    name=NAMES | st.sampled_from(["mlp", "lenet", "convnet"]),
    shape=st.lists(st.integers(-1, 9), max_size=4).map(tuple),
    classes=st.integers(-1, 5) | st.sampled_from([10**6, 10**12]),
    options=st.fixed_dictionaries({}, optional={"activation": NAMES | st.just("sigmoid"), "init": NAMES}),
)
def test_models(name, shape, classes, options):
    model = clear("models", lambda: models.build(name, shape, classes, **options))
    if model is not None:
        assert model.image_shape == shape
        assert model.num_classes == classes >= 2


@fuzz(60, 900)
@given(
    kind=st.sampled_from(["", "npz:", "idx:", "folder:", "natural_patches:", "digits", "digits:", "mnist"]),
    rest=st.text(max_size=12) | st.sampled_from([".", "/dev/null", "~", ",", "/,/", "a,b,c", ".?size=0", "-1", "1e9"]),
    n=st.none() | INTEGERS | FLOATS,
    seed=INTEGERS,
)
def test_data_specifications(kind, rest, n, seed):
    found = clear("data", lambda: data.load(kind + rest, n, seed))
    if found is not None:
        assert found.x.dtype == np.float32
        assert found.y.shape == (len(found.x),)
        assert n is None or len(found.x) == n
