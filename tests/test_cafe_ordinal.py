import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, protocols
from jaxleak.attacks._cafe import ordinal
from jaxleak.defenses import fake_gradients
from jaxleak.threats import FIRST_LAYER_ONLY

N, K, P = 16, 4, 4
SWEEPS = 3
KEY = jax.random.key(0)
PAIRED = fake_gradients(pool_size=1, reading="paired", scale="tensor")
CAPPED = fake_gradients(pool_size=1, scale="gradient")


@pytest.fixture(scope="module")
def setting():
    model, private = reference.digit_tiles(N, P)
    plan = attacks.plan_cafe_exact(
        model, num_samples=N, batch_size=K, output_rounds=120, feature_rounds=SWEEPS * 40 - 10
    )
    return model, private, plan


def recovered(setting, attack, recover, defense=PAIRED, **options):
    model, private, plan = setting
    protocol = protocols.vertical(
        model,
        num_samples=N,
        batch_size=K,
        defense=defense,
        sampling="uniform",
    )
    state, _ = audit.run(
        attack(model, plan, **options), protocol, FIRST_LAYER_ONLY, private, key=KEY, rounds=plan.rounds
    )
    solved = {name: value for name, value in options.items() if name == "sweeps"}
    return state, recover(model, state.protocol.params, plan, state.attack, **solved)


def error(recovery, private):
    truth = np.asarray(private.x).reshape(N, P, -1)
    live = recovery.live & (np.linalg.norm(truth, axis=-1) > 0)
    return np.median((np.linalg.norm(recovery.H - truth, axis=-1) / np.linalg.norm(truth, axis=-1).clip(1e-6))[live])


@pytest.fixture(scope="module")
def adaptive(setting):
    return recovered(setting, attacks.cafe_ordinal, attacks.recover_ordinal, sweeps=SWEEPS)


def test_values_take_the_order_of_what_was_observed():
    observed = jnp.asarray([[0.1, -3.0], [2.0, 0.5]])
    values = jnp.asarray([[8.0, 1.0], [2.0, 4.0]])
    out = np.asarray(ordinal.in_order_of(observed, values))
    np.testing.assert_array_equal(np.argsort(out.ravel()), np.argsort(observed.ravel()))
    np.testing.assert_array_equal(np.sort(out.ravel()), [1.0, 2.0, 4.0, 8.0])


def test_the_order_is_nearly_enough(setting, adaptive):
    _, unaware = recovered(setting, attacks.cafe_exact, attacks.recover)
    state, knowing = adaptive
    assert error(unaware, setting[1]) > 0.2
    assert error(knowing, setting[1]) < 0.25 * error(unaware, setting[1])
    assert not unaware.recovered.any()
    assert np.abs(np.asarray(state.attack.H)).max() > 0


def test_knowledge_of_the_order_is_what_helps(setting, adaptive):
    # One sweep takes the noise for the gradient, as one does who does not know.
    _, single = recovered(setting, attacks.cafe_ordinal, attacks.recover_ordinal, sweeps=1)
    assert error(adaptive[1], setting[1]) < 0.6 * error(single, setting[1])


def test_capped_entries_come_back_by_their_order(setting):
    _, unaware = recovered(setting, attacks.cafe_exact, attacks.recover, CAPPED)
    options = {"reading": "clamped", "sweeps": SWEEPS}
    _, knowing = recovered(setting, attacks.cafe_ordinal, attacks.recover_ordinal, CAPPED, **options)
    assert error(unaware, setting[1]) > 0.3
    assert error(knowing, setting[1]) < 0.1 * error(unaware, setting[1])


def test_bad_input(setting, adaptive):
    model, _, plan = setting
    with pytest.raises(ValueError, match="workers"):
        attacks.cafe_ordinal(model, plan._replace(workers=2))
    with pytest.raises(ValueError, match="sweeps must be"):
        attacks.cafe_ordinal(model, plan, sweeps=0)
    with pytest.raises(ValueError, match="sweeps must be"):
        attacks.cafe_ordinal(model, plan, sweeps=plan.feature_rounds + 1)
    with pytest.raises(ValueError, match="reading must be one of clamped, paired, got 'printed'"):
        attacks.cafe_ordinal(model, plan, reading="printed")
    with pytest.raises(ValueError, match="variance must be > 0"):
        attacks.cafe_ordinal(model, plan, variance=0.0)
    state, _ = adaptive
    with pytest.raises(ValueError, match="has seen 3 of"):
        attacks.recover_ordinal(model, state.protocol.params, plan, state.attack._replace(seen=jnp.asarray(3)))
