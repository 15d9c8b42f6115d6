import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.stats

from jaxleak import attacks, audit, protocols
from jaxleak._base import Observation
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe import censored
from jaxleak.defenses import fake_gradients
from jaxleak.threats import FIRST_LAYER_ONLY

N, K, P = 16, 4, 4
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def setting():
    model, private = reference.digit_tiles(N, P)
    return model, private, attacks.plan_cafe_exact(model, num_samples=N, batch_size=K, output_rounds=60)


def run(setting, build, **defense):
    model, private, plan = setting
    protocol = protocols.vertical(
        model, num_samples=N, batch_size=K, defense=fake_gradients(pool_size=1, **defense), sampling="uniform"
    )
    attack = build(model, plan, invert=False)
    state, _ = audit.run(attack, protocol, FIRST_LAYER_ONLY, private, key=KEY, rounds=plan.rounds)
    return state, reference.recovered(attack, state.attack, state.protocol.params)


def error(recovery, private):
    truth = np.asarray(private.x).reshape(N, P, -1)
    return np.linalg.norm(recovery.H - truth, axis=-1) / np.maximum(np.linalg.norm(truth, axis=-1), 1e-6)


@pytest.fixture(scope="module")
def adaptive(setting):
    return run(setting, attacks.cafe_censored, scale="tensor")


@pytest.mark.parametrize("size", [400, 100_000])
def test_visible_entries_are_true(size):
    rng = np.random.default_rng(0)
    true = jnp.asarray(rng.standard_normal(size) * np.exp(1.5 * rng.standard_normal(size)), jnp.float32)
    upload = fake_gradients(pool_size=1, scale="tensor").apply(KEY, true)
    visible = np.asarray(aggregated.visible_entries(upload))
    capped = np.asarray(upload != true)
    assert capped.mean() > 0.01  # the defense does something
    assert not (visible & capped).any()
    assert visible.mean() > 0.7
    assert np.asarray(aggregated.visible_entries(true)).mean() > 0.95


def _slow_visible(upload, sample=2**16):
    """A slow reference that compares ranks with the half-normal curve one by one, from the largest down."""
    magnitudes = np.abs(np.asarray(upload, np.float64)).ravel()
    ranked = magnitudes
    if len(ranked) > sample:
        ranked = ranked[np.random.default_rng(0).choice(len(ranked), sample, replace=False)]
    ranked = np.sort(ranked)[::-1]
    count = len(ranked)
    curve = scipy.stats.halfnorm.isf((np.arange(count) + 0.5) / count)
    scale = np.median((ranked / curve)[: max(8, round(count / 100))])
    allowed = (1 - min(0.1 + 3 / np.sqrt(count), 0.5)) * scale
    least = next(value for value, height in zip(ranked[::-1], curve[::-1], strict=True) if value >= allowed * height)
    return magnitudes < least


@pytest.mark.parametrize("size", [8, 30, 600, 2500])
@pytest.mark.parametrize("sample", [2**16, 500])
def test_visible_entries_are_those_below_the_curve_of_the_noise(monkeypatch, size, sample):
    monkeypatch.setattr(censored, "_SAMPLE", sample)
    rng, shares = np.random.default_rng(size), []
    for _ in range(8):
        true, noise = rng.laplace(size=size) ** 3, np.abs(rng.standard_normal(size))
        capped = np.minimum(np.sort(np.abs(true)), np.sort(noise) * 1.5)[rng.permutation(size)] * rng.choice(
            [-1, 1], size
        )
        upload = jnp.asarray(capped, jnp.float32)
        expected = _slow_visible(upload, sample)
        np.testing.assert_array_equal(aggregated.visible_entries(upload.reshape(2, -1)), expected.reshape(2, -1))
        shares.append(expected.mean())
    assert 0.1 < np.mean(shares) < 0.95


@pytest.mark.slow
def test_fake_gradients_stop_the_attacker_who_does_not_know_them(setting):
    _, recovery = run(setting, attacks.cafe_exact, scale="tensor")
    assert np.median(error(recovery, setting[1])) > 0.03
    assert not recovery.answered.any()


def test_true_entries_are_enough(setting, adaptive):
    _, recovery = adaptive
    _, private, _ = setting
    trusted = recovery.answered
    assert trusted.mean() > 0.7
    assert np.median(error(recovery, private)[trusted]) < 1e-4
    np.testing.assert_array_equal(recovery.labels[trusted], np.asarray(private.y)[trusted])


def test_step_one_is_least_squares_without_the_missing_equations(setting, adaptive):
    _, _, plan = setting
    attack = adaptive[0].attack
    incidence = np.zeros((plan.output_rounds, N))
    for row, batch in zip(incidence, np.asarray(attack.batches), strict=False):
        row[batch] = 1.0
    seen = np.asarray(attack.bias_gradients, np.float64)
    compared = 0
    for party, unit in np.argwhere(np.asarray(attack.resolved))[::5]:
        g = seen[:, party, unit]
        rows = np.asarray(attack.visible)[:, party, unit]
        v = np.linalg.lstsq(incidence[rows], g[rows])[0]
        np.testing.assert_allclose(attack.V[:, party, unit], v, rtol=1e-3, atol=1e-4 * np.abs(v).max() + 1e-9)
        compared += not rows.all()
    assert compared > 5


@pytest.mark.slow
def test_rounds_beyond_the_plan_change_nothing(setting):
    model, private, _ = setting
    reference.assert_later_rounds_change_nothing(attacks.cafe_censored, model, private, batch_size=K, key=KEY)


def test_bad_input(setting, adaptive):
    model, _, plan = setting
    with pytest.raises(ValueError, match="workers"):
        attacks.cafe_censored(model, plan._replace(workers=2))
    with pytest.raises(ValueError, match="at least 8 entries"):
        aggregated.visible_entries(jnp.ones(7))
    state, _ = adaptive
    with pytest.raises(ValueError, match="has seen 3 of"):
        reference.recovered(
            attacks.cafe_censored(model, plan), state.attack._replace(seen=jnp.asarray(3)), state.protocol.params
        )


def test_entries_that_determine_no_unit_give_no_answer_and_no_error(setting, adaptive):
    model, _, plan = setting
    state, _ = adaptive
    attack = attacks.cafe_censored(model, plan)
    nothing = {name: jnp.zeros_like(getattr(state.attack, name)) for name in ("V", "resolved", "normal", "projected")}
    answer = attack.reconstruct(state.attack._replace(**nothing), Observation(state.attack.seen, state.protocol.params))
    assert not answer.answered.any()
    assert np.isnan(answer.x).all()
    assert not answer.diagnosis.live.any()


def test_equations_of_a_batch_are_sums_over_visible_entries():
    rng = np.random.default_rng(0)
    v, kernel = rng.standard_normal((3, 2, 5)), rng.standard_normal((2, 4, 5))
    weight = (rng.random((2, 4, 5)) < 0.5).astype(float)
    gram, rhs = censored._equations(*(jnp.asarray(part, jnp.float32) for part in (v, kernel, weight)))
    np.testing.assert_allclose(gram, np.einsum("kpe,lpe,pie->klpi", v, v, weight), atol=1e-5)
    np.testing.assert_allclose(rhs, np.einsum("kpe,pie,pie->kpi", v, weight, kernel), atol=1e-5)


def test_features_solve_their_own_equations_and_undetermined_ones_are_zero():
    rng = np.random.default_rng(0)
    n, p, d1 = 3, 2, 2
    v = rng.standard_normal((n, p, 4)) * np.array([1.0, 10.0, 0.1])[:, None, None]
    v[1, 1] = 0  # a slice without gradient
    h = rng.random((n, p, d1))
    normal = np.einsum("kpe,lpe->klp", v, v)[..., None] * np.array([1.0, 2.0])
    normal[:, :, 0, 1] = np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])  # rank one: these equations do not determine h
    projected = np.einsum("klpi,lpi->kpi", normal, h)
    found, determined = censored._features(*(jnp.asarray(part, jnp.float32) for part in (v, normal, projected)))
    np.testing.assert_array_equal(determined, [[True, False], [True, True]])
    expected = h.copy()
    expected[:, 0, 1] = 0
    expected[1, 1] = 0
    np.testing.assert_allclose(found, expected, atol=1e-3)
