import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe import slice_inverter
from jaxleak.attacks._cafe.decoder import synthetic_slices
from jaxleak.attacks._cafe.exact import factorises
from jaxleak.attacks._cafe.labels import recover_labels, true_output_gradients
from jaxleak.attacks._cafe.slice_inverter import SliceInverter
from jaxleak.attacks._cafe.worker_gauge import fix_worker_gauge
from jaxleak.defenses import clipped_gaussian
from jaxleak.threats import BIAS_GRADIENT_ONLY, FIRST_LAYER_ONLY, HONEST_BUT_CURIOUS_SERVER, SERVER_WITHOUT_INDICES

N, K, P = 24, 6, 4
KEY = jax.random.key(0)


@pytest.fixture(scope="module", autouse=True)
def few_decoder_slices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_inverter, "DECODER_SLICES", 1000)
        yield


def _problem(model, x, classes=3, n=N, k=K, **options):
    y = np.random.default_rng(7).integers(0, classes, n).astype(np.int32)
    private = Batch(jnp.asarray(x), jnp.asarray(y), jnp.arange(n))
    protocol = protocols.vertical(model, num_samples=n, batch_size=k, sampling="uniform", **options)
    params = jax.jit(model.init)(audit.init_key(KEY))
    return reference.Problem(model, protocol, private, params, audit.template_of(private))


def _watch(problem, plan, threats=((FIRST_LAYER_ONLY, None),), model=None):
    attack, state = attacks.cafe_exact(model or problem.model, plan), None
    for threat, rounds in threats:
        state, _ = audit.run(
            attack,
            problem.protocol,
            threat,
            problem.private,
            key=KEY,
            rounds=rounds or plan.rounds,
            state=state,
            chunk=200,
        )
    return state.attack


def _recovered(model, params, plan, state):
    return reference.recovered(attacks.cafe_exact(model, plan, invert=False), state, params)


@pytest.fixture(scope="module")
def problem():
    model = models.cafe_vertical((8, 8, 1), parties=P, num_classes=3, channels=(16, 32), width=64, hidden=32)
    return _problem(model, synthetic_slices(1, N * P, (8, 8, 1)).reshape(N, P, 8, 8, 1))


@pytest.fixture(scope="module")
def truth(problem):
    return reference.true_features_and_output_gradients(problem, K)


@pytest.fixture(scope="module")
def plan(problem):
    return attacks.plan_cafe_exact(problem.model, num_samples=N, batch_size=K)


@pytest.fixture(scope="module")
def state(problem, plan):
    return _watch(problem, plan)


@pytest.fixture(scope="module")
def recovery(problem, plan, state):
    return _recovered(problem.model, problem.params, plan, state)


@pytest.fixture(scope="module")
def head(problem, truth):
    """The same problem with the features as private data, so that rounds are quick to simulate."""
    model = models.frozen_features(problem.model)
    private = problem.private._replace(x=jnp.asarray(truth[0]))
    protocol = protocols.vertical(model, num_samples=N, batch_size=K, sampling="uniform")
    return problem._replace(model=model, private=private, protocol=protocol, template=audit.template_of(private))


def _relative(estimate, truth):
    return np.linalg.norm(estimate - truth, axis=-1) / (np.linalg.norm(truth, axis=-1) + 1e-12)


def test_steps_1_and_2_recover_gradients_features_and_labels(problem, truth, recovery):
    H, V = truth
    assert recovery.live.all()
    assert _relative(recovery.V, V).max() < 1e-4
    assert _relative(recovery.H, H).max() < 1e-3
    np.testing.assert_array_equal(recovery.labels, problem.private.y)
    assert recovery.consistency.max() < 1e-3
    assert recovery.label_margin.min() > 100
    assert recovery.answered.all()
    assert (recovery.output_rank, recovery.feature_rank) == (N, N)
    assert 1 < recovery.output_condition < 1e4
    assert 1 < recovery.feature_condition < 1e4
    again = aggregated.true_output_gradients(problem.model, problem.params, H, np.asarray(problem.private.y), K)
    np.testing.assert_allclose(again, V, atol=1e-7)


def test_step_3_recovers_the_data_and_certifies_it(problem, recovery):
    inverter = SliceInverter(problem.model, problem.params, options=aggregated.FeatureInversionOptions(max_restarts=1))
    index = np.arange(3)
    result = inverter(recovery.H[index], index)
    truth = np.asarray(problem.private.x[index]).reshape(-1, 8, 8, 1)
    certified = result.residual.reshape(-1) < 1e-5
    assert certified.mean() > 0.5
    assert reference.psnr_by_hand(result.x.reshape(-1, 8, 8, 1), truth)[certified].min() > 60
    # An answer depends on the sample's index and not on its chunk.
    chunk = np.array([2, 7, 0])
    other = inverter(recovery.H[chunk], chunk)
    for name in ("x", "residual", "steps"):
        np.testing.assert_array_equal(getattr(other, name)[[2, 0]], getattr(result, name)[[0, 2]])


@pytest.mark.slow
def test_bias_gradients_alone_do_for_step_1(problem, head, plan, state):
    throughout = _watch(head, plan)
    in_turn = _watch(head, plan, ((BIAS_GRADIENT_ONLY, plan.output_rounds), (FIRST_LAYER_ONLY, None)))
    for variant in (throughout, in_turn):
        np.testing.assert_array_equal(variant.batches, state.batches)
        np.testing.assert_allclose(variant.V, state.V, atol=1e-6)
        np.testing.assert_allclose(variant.projected, state.projected, rtol=1e-3, atol=1e-6)
    granted = _watch(head, plan, ((HONEST_BUT_CURIOUS_SERVER, None),))
    np.testing.assert_allclose(granted.projected, throughout.projected, rtol=1e-3, atol=1e-6)


def test_rounds_beyond_the_plan_change_nothing(head, plan):
    exactly = _watch(head, plan)
    jax.tree.map(np.testing.assert_array_equal, _watch(head, plan, ((FIRST_LAYER_ONLY, plan.rounds + 3),)), exactly)


def test_matrix_free_solvers_give_the_same_answer(head, recovery):
    free = attacks.plan_cafe_exact(head.model, num_samples=N, batch_size=K, solver="matrix_free")
    assert not free.direct
    other = _recovered(head.model, head.params, free, _watch(head, free))
    np.testing.assert_allclose(other.V, recovery.V, atol=1e-6)
    assert _relative(other.H, recovery.H).max() < 1e-3
    np.testing.assert_array_equal(other.labels, recovery.labels)
    assert (other.output_rank, other.feature_rank) == (N, N)
    assert other.output_condition == pytest.approx(recovery.output_condition, rel=0.05)
    assert other.answered.all()


def test_a_dead_slice_is_not_answered(head, plan):
    # Features that switch off every unit of the next layer, so that no gradient flows back to this slice.
    kernel = np.asarray(head.params["first"]["kernel"][1], np.float64)
    x = np.array(head.private.x)
    x[5, 1] = -np.ones(kernel.shape[1]) @ np.linalg.pinv(kernel)
    problem = head._replace(private=head.private._replace(x=jnp.asarray(x)))
    state = _watch(problem, plan)
    recovery = _recovered(head.model, head.params, plan, state)
    expected = np.ones((N, P), bool)
    expected[5, 1] = False
    np.testing.assert_array_equal(recovery.live, expected)
    assert (recovery.H[5, 1] == 0).all()
    np.testing.assert_array_equal(recovery.answered, np.arange(N) != 5)
    assert _relative(recovery.H, x)[expected].max() < 1e-3
    observation = Observation(state.seen, head.params)
    answer = attacks.cafe_exact(head.model, plan).reconstruct(state, observation)
    assert np.isnan(answer.x[5]).all()
    assert np.isinf(answer.score[5])
    assert not answer.answered[5]
    assert not np.isnan(np.delete(answer.x, 5, axis=0)).any()
    # Without Step III the answer has labels but no data.
    stopped = attacks.cafe_exact(head.model, plan, invert=False).reconstruct(state, observation)
    assert np.isnan(stopped.x).all()
    assert (stopped.x.shape, stopped.x.dtype) == (answer.x.shape, answer.x.dtype)
    np.testing.assert_array_equal(stopped.score, np.where(recovery.answered, recovery.consistency, np.inf))
    np.testing.assert_array_equal(stopped.y, answer.y)
    np.testing.assert_array_equal(stopped.answered, answer.answered)


@pytest.mark.slow
def test_noise_on_the_payload_flags_samples(head, plan):
    noisy = protocols.vertical(
        head.model, num_samples=N, batch_size=K, sampling="uniform", defense=clipped_gaussian(3.0, 0.1)
    )
    recovery = _recovered(head.model, head.params, plan, _watch(head._replace(protocol=noisy), plan))
    assert not recovery.answered.any()
    assert recovery.consistency.min() > 0.1


@pytest.mark.parametrize("network", [pytest.param("dense", marks=pytest.mark.slow), "logistic"])
def test_without_extractor_steps_1_and_2_recover_the_data(network):
    """The private columns are standardised, so half of the numbers are negative."""
    build = {
        "dense": lambda: models.all_dense((7,), parties=2, num_classes=3, width=16, hidden=8),
        "logistic": lambda: models.logistic((7,), parties=2, num_classes=3),
    }[network]
    problem = _problem(build(), reference.normal(N, 2, 7, seed=3))
    plan = attacks.plan_cafe_exact(problem.model, num_samples=N, batch_size=K)
    state = _watch(problem, plan)
    attack = attacks.cafe_exact(problem.model, plan)
    params = audit.start(attack, problem.protocol, problem.private, key=KEY).protocol.params
    answer = attack.reconstruct(state, Observation(round=jnp.zeros((), jnp.int32), params=params))
    np.testing.assert_array_equal(answer.answered, True)
    np.testing.assert_allclose(answer.x, problem.private.x, atol=1e-3)
    np.testing.assert_array_equal(answer.y, problem.private.y)
    assert answer.score.max() < 1e-3


@pytest.mark.slow
def test_horizontal_rounds_are_recovered_although_shares_are_fixed():
    model = models.all_dense((7,), num_classes=3, width=24, hidden=16)
    problem = _problem(model, reference.uniform(N, 1, 7, seed=4))
    protocol = protocols.horizontal(model, workers=3, num_samples=N, batch_size=K)
    problem = problem._replace(protocol=protocol)
    plan = attacks.plan_cafe_exact(model, num_samples=N, batch_size=K, workers=3)
    state = _watch(problem, plan)
    recovery = _recovered(model, problem.params, plan, state)
    resolved = np.asarray(state.resolved)
    assert resolved.sum() > 10
    _, V = reference.true_features_and_output_gradients(problem, K)
    np.testing.assert_allclose(recovery.V[:, resolved], V[:, resolved], atol=1e-5)
    assert recovery.output_rank == N - 3 + 1
    good = recovery.answered
    assert good.mean() > 0.9
    np.testing.assert_allclose(recovery.H[good], problem.private.x[good], atol=1e-3)
    np.testing.assert_array_equal(recovery.labels[good], problem.private.y[good])


def test_plans_refuse_what_cannot_work(problem):
    def refuses(match, model=problem.model, **options):
        with pytest.raises(ValueError, match=match):
            attacks.plan_cafe_exact(model, **{"num_samples": N, "batch_size": K, **options})

    refuses(r"batch_size must be < num_samples=24: .*\(CAFE, Theorem 1 needs K < N\)", batch_size=N)
    refuses("batch_size must be <= num_samples=24, got 25", batch_size=25)
    refuses("batch_size must be > 0, got 0", batch_size=0)
    fewest = {"output_rounds": 32, "feature_rounds": 4}
    plan = attacks.plan_cafe_exact(problem.model, num_samples=N, batch_size=K, **fewest)
    assert plan.rounds >= 32
    refuses("output_rounds=31 is too few: Step I needs at least 32 rounds", output_rounds=31)
    refuses("output_rounds=10 is too few: Step I needs at least 32 rounds", output_rounds=10)
    refuses("feature_rounds=3 is too few: Step II needs at least 4 rounds", feature_rounds=3)
    narrow = models.logistic((7,), parties=2, num_classes=3)
    refuses(r"d2=3 < K=6.*Step II needs at least 8 rounds", narrow, feature_rounds=7)
    refuses("multiples of workers=5, got 24 and 6", workers=5)
    refuses("every worker must have 3 samples or more, got num_samples=24 for workers=12", workers=12, batch_size=12)
    refuses("solver must be one of auto, direct, matrix_free, got 'magic'", solver="magic")
    assert attacks.plan_cafe_exact(problem.model, num_samples=N, batch_size=K, output_rounds=32).output_rounds == 32


def test_missing_rounds_and_grants_are_named(head, plan, state):
    early = state._replace(seen=jnp.asarray(plan.rounds - 3, jnp.int32))
    with pytest.raises(ValueError, match=f"has seen {plan.rounds - 3} of {plan.rounds} rounds; run the rest first"):
        _recovered(head.model, head.params, plan, early)
    blind = state._replace(V=jnp.zeros_like(state.V), projected=jnp.zeros_like(state.projected))
    with pytest.raises(ValueError, match="rounds the threat must grant first/kernel as well"):
        _recovered(head.model, head.params, plan, blind)
    for build in (attacks.cafe_censored, attacks.cafe_ordinal):
        attack = build(head.model, plan, invert=False)
        unseen = attack.init(KEY, head.template)._replace(seen=jnp.asarray(plan.rounds, jnp.int32))
        with pytest.raises(
            ValueError, match=r"^Step II saw no gradient: after .* rounds the threat must grant first/k"
        ):
            reference.recovered(attack, unseen, head.params)
    for threat, match in (
        (SERVER_WITHOUT_INDICES, "needs batch indices; the threat must grant index"),
        (
            HONEST_BUT_CURIOUS_SERVER._replace(payload=("first/kernel",)),
            "reads parts of the payload, but the threat does not grant first/bias",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            _watch(head, plan, ((threat, None),))


@pytest.mark.parametrize("build", [attacks.cafe_exact, attacks.cafe_censored, attacks.cafe_ordinal])
@pytest.mark.parametrize("size", [1, K - 1, K + 1])
def test_a_batch_of_another_size_than_the_plans_is_refused(head, plan, build, size):
    attack = build(head.model, plan)
    state = jax.eval_shape(attack.init, KEY, head.template)
    first = {"bias": jnp.zeros((P, 64))}
    seen = Observation(jnp.int32(0), payload={"first": first}, index=jnp.arange(size))
    with pytest.raises(ValueError, match=rf"batch_size of the rounds must be the attack's, 6, got index \({size},\)"):
        jax.eval_shape(attack.step, KEY, state, seen)


def test_labels_are_those_of_the_nearest_gradient_with_its_misfit_and_margin():
    """The example is a logistic model of two parties, with gradients computed in NumPy."""
    model = models.logistic((3,), parties=2, num_classes=4)
    params = reference.drawn(model)
    rng = np.random.default_rng(0)
    h, y = rng.random((5, 2, 3)).astype(np.float32), np.array([3, 0, 1, 2, 2])
    kernel, bias = (np.asarray(params["first"][name], np.float64) for name in ("kernel", "bias"))
    logits = np.einsum("npd,pdc->nc", h, kernel) + bias.sum(axis=0)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    v = np.repeat(((p - np.eye(4)[y]) / 6)[:, None], 2, axis=1)
    np.testing.assert_allclose(true_output_gradients(model, params, h, y, 6), v, atol=1e-6)
    live = np.ones((5, 2), bool)
    live[1, 1] = False
    resolved = np.array([True, True, True, False])
    noisy = v + 0.01 * rng.standard_normal(v.shape)
    labels, misfit, margin = recover_labels(model, params, noisy.astype(np.float32), h, live, resolved, 6, chunk=2)
    weight = live[:, :, None] & resolved
    for n in range(5):
        candidates = np.repeat(((p[n] - np.eye(4)) / 6)[:, None], 2, axis=1)
        misfits = np.sqrt((((candidates - noisy[n]) * weight[n]) ** 2).sum(axis=(1, 2)))
        best, second = np.sort(misfits)[:2]
        assert labels[n] == misfits.argmin()
        size = np.sqrt(((noisy[n] * weight[n]) ** 2).sum())
        np.testing.assert_allclose([misfit[n], margin[n]], [best / size, second / best], rtol=1e-3)


def test_rounds_of_a_plan_by_hand():
    model = models.all_dense((7,), parties=2, num_classes=3, width=4)
    plan = attacks.plan_cafe_exact(model, num_samples=24, batch_size=6)
    # ceil(23 * 24 / 18) + 1 = 32 rounds are needed, and the plan has twice as many; 20 visits of 24 samples, 6 a round.
    assert plan == (24, 6, 1, 64, 80, True)
    assert plan.rounds == 144
    free = attacks.plan_cafe_exact(model, num_samples=24, batch_size=6, solver="matrix_free")
    assert free == (24, 6, 1, 64, 24, False)  # six visits, or four times 24 / d2 if that is more
    assert attacks.plan_cafe_exact(model, num_samples=24, batch_size=6, feature_rounds=6).feature_rounds == 6
    with pytest.raises(ValueError, match=r"feature_rounds=5 is too few: d2=4 < K=6.*needs at least 6 rounds"):
        attacks.plan_cafe_exact(model, num_samples=24, batch_size=6, feature_rounds=5)
    assert [factorises(n, "auto") for n in (20_000, 20_001)] == [True, False]
    assert (factorises(10**6, "direct"), factorises(2, "matrix_free")) == (True, False)


def test_shifts_of_workers_are_taken_off_where_enough_zeros_agree():
    rng = np.random.default_rng(0)
    v = rng.uniform(1, 2, (60, 1, 3))
    v[[0, 7, 11], 0, 0] = v[[30, 41, 59], 0, 0] = 0  # three zeros per worker: a tenth of thirty
    v[[0, 7], 0, 1] = v[[30, 41, 59], 0, 1] = 0  # two zeros are too few
    v[[0, 7, 11], 0, 2], v[[30, 41, 59], 0, 2] = 0, [0, 0, 1e-3]  # and three that differ do not count
    shifted = v.copy()
    shifted[:30] += [0.5, -1, 2]
    shifted[30:] -= [0.25, -1, 2]
    found, resolved = jax.jit(fix_worker_gauge, static_argnums=1)(shifted, 2)
    np.testing.assert_array_equal(resolved, [[True, False, False]])
    np.testing.assert_allclose(found[:, :, 0], v[:, :, 0], atol=1e-6)
    assert not np.asarray(found)[:, :, 1:].any()
