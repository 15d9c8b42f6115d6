import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jaxleak import _tree, attacks, models, protocols, threats
from jaxleak._base import Batch, Observation
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe.three_steps import feature_step, output_step
from jaxleak.attacks.aggregated import CafeOptimizers, CafeOptions
from jaxleak.objectives import cafe_objective

N, K, P = 12, 4, 2


def cafe(model, share, *, num_samples, **options):
    return attacks.cafe(model, share, num_samples=num_samples, options=CafeOptions(**options))


def cafe_features_only(model, share, *, num_samples):
    return cafe(model, share, num_samples=num_samples, alpha=0.0)


def cafe_cosine(model, share, *, num_samples, **options):
    return attacks.cafe(model, share, num_samples=num_samples, options=aggregated.cosine_options(**options))


def cafe_upstream(model, share, *, num_samples, **options):
    return attacks.cafe(model, share, num_samples=num_samples, options=aggregated.CAFE_UPSTREAM._replace(**options))


@pytest.fixture(scope="module")
def problem():
    return reference.tiny_problem(n=N, k=K, parties=P)


@pytest.fixture(scope="module")
def truth(problem):
    return reference.true_features_and_output_gradients(problem, K)


def _payloads(truth, rounds, seed=0):
    """Batches, and the first layer's gradients in each round: sums over samples of v_n and of h_n v_n^T."""
    H, V = truth
    rng = np.random.default_rng(seed)
    batches = np.stack([rng.permutation(N)[:K] for _ in range(rounds)])
    return jnp.asarray(batches), V[batches].sum(axis=1), np.einsum("tbpd,tbpe->tpde", H[batches], V[batches])


def _scan(attack, problem, truth, rounds, key=0):
    """Run an attack that observes only the first layer's gradients; returns the last state and all infos."""

    def one(state, data):
        index, bias, kernel = data
        payload = {"extractor": None, "first": {"bias": bias, "kernel": kernel}, "rest": None}
        observation = Observation(jnp.zeros((), jnp.int32), problem.params, payload, index)
        return attack.step(jax.random.key(0), state, observation)

    @jax.jit
    def run(key, data):
        return jax.lax.scan(one, attack.init(key, problem.template), data)

    state, infos = run(jax.random.key(key), _payloads(truth, rounds))
    return state, jax.tree.map(np.asarray, infos)


@pytest.fixture(scope="module")
def transcript(problem):
    return reference.first_transcript(problem)


@pytest.fixture(scope="module")
def small():
    problem = reference.small_problem()
    return problem, threats.view(threats.HONEST_BUT_CURIOUS_SERVER, reference.first_transcript(problem))


def test_the_first_layers_gradients_are_the_sums_that_steps_1_and_2_fit(transcript, truth):
    H, V = truth
    observation = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
    index = np.asarray(observation.index)
    np.testing.assert_allclose(observation.payload["first"]["bias"], V[index].sum(axis=0), atol=1e-6)
    kernel = np.einsum("bpd,bpe->pde", H[index], V[index])
    np.testing.assert_allclose(observation.payload["first"]["kernel"], kernel, atol=1e-6)


def test_gradients_of_steps_1_and_2_equal_slow_references():
    rng = np.random.default_rng(0)
    h, v = rng.standard_normal((3, 2, 2)), rng.standard_normal((3, 2, 4))
    bias, kernel = rng.standard_normal((2, 4)), rng.standard_normal((2, 2, 4))
    value, grad = jax.jit(output_step)(v, bias)
    np.testing.assert_allclose(value, reference.output_objective(v, bias), rtol=1e-5)
    slow = reference.numerical_gradient(lambda v: reference.output_objective(v, bias), v)
    np.testing.assert_allclose(grad, slow, rtol=1e-4, atol=1e-4)
    value, grad = jax.jit(feature_step)(h, v, kernel)
    np.testing.assert_allclose(value, reference.feature_objective(h, v, kernel), rtol=1e-5)
    slow = reference.numerical_gradient(lambda h: reference.feature_objective(h, v, kernel), h)
    np.testing.assert_allclose(grad, slow, rtol=1e-4, atol=1e-4)


def test_step_1_is_algorithm_1(problem, truth):
    attack = cafe(
        problem.model, problem.protocol.share, num_samples=N, alpha=0, iterations=100, output_learning_rate=0.1
    )
    start = attack.init(jax.random.key(0), problem.template)
    state, infos = _scan(attack, problem, truth, 20)
    batches, bias, _ = _payloads(truth, 20)
    np.testing.assert_allclose(state.V, reference.algorithm_1(start.V, np.asarray(batches), bias, 0.1), atol=1e-6)
    np.testing.assert_array_equal(state.H, start.H)
    np.testing.assert_array_equal(state.data.x, start.data.x)
    assert np.isinf(infos["F2"]).all()


def test_row_optimizers_touch_only_their_rows():
    table, index = np.asarray(reference.normal(6, 3)), np.array([1, 4])
    for rows in (_tree.row_optimizer(optax.adam(0.1)), aggregated.twice_corrected_adam(0.1)):

        @jax.jit
        def updated(table, rows=rows):
            state = rows.init(table)
            for _ in range(2):
                new, state = rows.update(jnp.ones((2, 3)), state, table, index)
            return new, state

        new, state = jax.tree.map(np.asarray, updated(table))
        others = np.array([0, 2, 3, 5])
        np.testing.assert_array_equal(new[others], table[others])
        assert (new[index] < table[index]).all()
        for leaf in jax.tree.leaves(state):
            if leaf.ndim:
                assert not leaf[others].any()


def test_nested_loops_recover_v_and_h_and_then_lower_the_misfit_of_the_data(problem, truth, transcript):
    # Tolerances: 1e-6 in V (entries up to 0.1) and 1e-3 in H (entries up to 0.7).
    attack = cafe(
        problem.model,
        problem.protocol.share,
        num_samples=N,
        batch_size=K,
        iterations=(400, 1600),
        output_learning_rate=0.15,
        feature_learning_rate=0.05,
        optimizers=CafeOptimizers(feature=lambda rate: optax.adam(optax.exponential_decay(rate, 150, 0.5), eps=1e-12)),
        alpha=0,
        beta=0,
    )
    state, infos = _scan(attack, problem, truth, 2300)
    H, V = truth
    np.testing.assert_allclose(state.V, V, atol=1e-6)
    np.testing.assert_allclose(state.H, H, atol=1e-3)
    assert [int((infos["phase"] == p).sum()) for p in range(3)] == [400, 1600, 300]
    assert infos["F3"][-20:].mean() < 0.1 * infos["F3"][2000:2020].mean()
    x = np.asarray(state.data.x)
    assert x.min() >= 0
    assert x.max() <= 1
    # The misfit per sample, in the attacker's own units, agrees with the objective's scale.
    seen = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
    reconstruction = jax.tree.map(np.asarray, jax.jit(attack.reconstruct)(state, seen))
    assert reconstruction.answered.all()
    assert reconstruction.score.shape == (N,)
    assert float(reconstruction.score.mean()) * K == pytest.approx(float(infos["features"][-20:].mean()), rel=0.5)


def test_single_loop_passes_on_by_thresholds_and_never_goes_back(problem, truth):
    attack = cafe(
        problem.model,
        problem.protocol.share,
        num_samples=N,
        loops="single",
        thresholds=(1e-3, 1e-2),
        output_learning_rate=0.15,
        feature_learning_rate=0.05,
        alpha=0,
        beta=0,
    )
    _, infos = _scan(attack, problem, truth, 300)
    phase = np.asarray(infos["phase"])
    assert phase[0] == 0
    assert phase[-1] == 2
    assert (np.diff(phase) >= 0).all()
    for p, name in enumerate(("F1", "F2", "F3")):
        np.testing.assert_array_equal(np.isfinite(infos[name]), phase == p)
    assert infos["F1"][phase == 0][-1] < 1e-2 < infos["F1"][0]


def test_algorithm_4_as_printed_runs_all_steps_and_lowers_them(problem, truth):
    attack = cafe(
        problem.model,
        problem.protocol.share,
        num_samples=N,
        loops="single",
        switch=False,
        output_learning_rate=0.1,
        feature_learning_rate=0.02,
        alpha=0,
        beta=0,
    )
    state, infos = _scan(attack, problem, truth, 200)
    for name in ("F1", "F2"):
        assert np.isfinite(infos[name]).all()
        assert infos[name][-20:].mean() < 0.1 * infos[name][0]
    assert np.isfinite(infos["F3"]).all()
    assert float(state.F1) < infos["F1"][0]


@pytest.mark.parametrize(
    ("build", "falling"),
    [
        (cafe_upstream, ("F1", "F2")),
        (aggregated.aligned_dlg, ("F3",)),
        (aggregated.aligned_sapag, ("F3",)),
    ],
)
def test_full_gradients_of_one_batch_lower_the_objective(small, build, falling):
    # Upstream's F3 uses an H that still moves, so F3 must decrease only over its own steps.
    problem, observation = small
    attack = build(problem.model, problem.protocol.share, num_samples=6)
    state = attack.init(jax.random.key(0), problem.template)
    step = jax.jit(lambda state: attack.step(jax.random.key(0), state, observation))
    infos = []
    for _ in range(60):
        state, info = step(state)
        infos.append(info)
    for name in falling:
        assert infos[-1][name] < 0.9 * infos[0][name]
    assert np.isfinite(infos[-1]["F3"])


@pytest.mark.parametrize("build", [cafe, aggregated.aligned_dlg])
def test_a_sample_that_no_batch_held_has_no_answer(small, build):
    problem, observation = small
    options = {"loops": "single", "switch": False} if build is cafe else {}
    attack = build(problem.model, problem.protocol.share, num_samples=6, **options)
    state, _ = attack.step(jax.random.key(0), attack.init(jax.random.key(0), problem.template), observation)
    found = attack.reconstruct(state, observation)
    seen = np.isin(np.arange(6), observation.index)
    assert 0 < seen.sum() < 6
    np.testing.assert_array_equal(found.answered, seen)
    np.testing.assert_array_equal(np.isfinite(found.score), seen)


def test_inner_updates_are_steps_on_the_same_batch(small):
    problem, observation = small
    states = []
    for inner_updates, rounds in [(1, 3), (3, 1)]:
        attack = aggregated.aligned_dlg(
            problem.model, problem.protocol.share, num_samples=6, inner_updates=inner_updates
        )
        state = attack.init(jax.random.key(0), problem.template)
        step = jax.jit(attack.step)
        for _ in range(rounds):
            state, _ = step(jax.random.key(0), state, observation)
        states.append(state.data.x)
    np.testing.assert_allclose(*states, atol=1e-5)


def test_upstream_is_adam_with_the_bias_correction_applied_twice():
    table = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    rows = aggregated.twice_corrected_adam(0.01)
    slow, fast, state = reference.TwiceCorrectedAdam(table, 0.01), jnp.asarray(table), jax.jit(rows.init)(table)
    update = jax.jit(rows.update)
    rng = np.random.default_rng(1)
    for _ in range(12):
        index, gradients = rng.permutation(5)[:2], rng.standard_normal((2, 2, 3)).astype(np.float32)
        slow.update(gradients, index)
        fast, state = update(gradients, state, fast, index)
    np.testing.assert_allclose(fast, slow.table, atol=2e-6)


def test_normalized_descent_takes_steps_of_its_rate_and_rests_at_zero():
    transform = aggregated.normalized_sgd(0.1)
    for scale in (1e-8, 1.0, 1e4):
        updates, _ = transform.update(jnp.array([3.0, 4.0]) * scale, transform.init(jnp.zeros(2)))
        np.testing.assert_allclose(updates, [-0.06, -0.08], rtol=1e-5)
    updates, _ = transform.update(jnp.zeros(2), transform.init(jnp.zeros(2)))
    np.testing.assert_array_equal(updates, 0)


def test_table9_is_the_printed_one():
    text = (Path(__file__).parents[1] / "experiments/paper/cafe_neurips.toml").read_text()
    printed = {cell["id"]: cell["value"] for table in tomllib.loads(text)["reference"] for cell in table["cell"]}
    for name, row in aggregated.TABLE9.items():
        rates = [printed[f"table9-lr/{name}/step{step}"] for step in (1, 2, 3)]
        weights = [printed[f"table9-weights/{name}/{weight}"] for weight in ("alpha", "beta", "gamma", "xi")]
        assert [*row] == [*rates, *weights], name


def test_options_are_those_of_their_papers_and_of_the_published_code():
    usual, iclr, upstream = aggregated.CafeOptions(), aggregated.CAFE_ICLR, aggregated.CAFE_UPSTREAM
    row = aggregated.TABLE9["cifar10"]._asdict()
    assert {name: getattr(usual, name) for name in row} == row
    assert usual.lengths == (8000, 8000)
    assert usual._replace(iterations=(3, 5)).lengths == (3, 5)
    of_numpy = usual._replace(iterations=np.int64(7))
    assert of_numpy.lengths == (7, 7)
    of_numpy.check(num_samples=N)
    assert (usual.thresholds, usual.output_scale, usual.feature_scale) == ((1e-9, 5e-9), 8e-4, 8e-2)
    assert (usual.loops, usual.switch, usual.inner_updates) == ("nested", True, 1)
    assert (usual.label_mode, usual.box) == ("joint", (0.0, 1.0))
    data = {"data_learning_rate": 0.1, "alpha": 1.0}
    assert iclr == usual._replace(loops="single", switch=False, optimizers=iclr.optimizers, **data)
    rates = {"output_learning_rate": 5e-3, "feature_learning_rate": 1e-2, "data_learning_rate": 1e-2}
    weights = {"alpha": 1e-2, "beta": 1e-4, "gamma": 1e-3, "xi": 25.0}
    changed = {
        "loops": "single",
        "switch": False,
        "label_mode": "fixed",
        "box": None,
        "optimizers": upstream.optimizers,
    }
    assert upstream == usual._replace(**rates, **weights, **changed)
    gradient = jnp.array([[3.0, -4.0]])
    for optimizers, step, expected in (
        (iclr.optimizers, "data", [[-0.06, 0.08]]),  # normalised
        (upstream.optimizers, "output", [[-0.3, 0.4]]),  # plain
    ):
        transform = getattr(optimizers, step)(0.1)
        np.testing.assert_allclose(transform.update(gradient, transform.init(gradient))[0], expected, rtol=1e-5)


def test_table9_fits_cafe_and_names_its_datasets(problem):
    for name in aggregated.TABLE9:
        cafe(
            problem.model,
            problem.protocol.share,
            num_samples=N,
            **aggregated.published_hyperparameters(name)._asdict(),
        )
    with pytest.raises(ValueError, match="dataset must be one of cifar10, linnaeus5, mnist, yale32, got 'svhn'"):
        aggregated.published_hyperparameters("svhn")


def test_cafe_refuses_bad_arguments(problem):
    def build(**options):
        return cafe(problem.model, problem.protocol.share, **{"num_samples": N, **options})

    with pytest.raises(ValueError, match=r"batch_size must be < num_samples=12, got 12: .* \(Theorem 1\)"):
        build(batch_size=N)
    for name in ("alpha", "beta", "gamma", "xi"):
        with pytest.raises(ValueError, match=f"{name} must be >= 0"):
            build(**{name: -1e-3})
    for name in ("output_learning_rate", "output_scale", "num_samples", "inner_updates", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be > 0"):
            build(**{name: 0})
    with pytest.raises(ValueError, match=r"iterations\[1\] must be > 0"):
        build(iterations=(10, 0))
    for iterations in ((10,), (1, 2, 3)):
        with pytest.raises(ValueError, match="iterations must be one number or two, for Steps I and II, got"):
            build(iterations=iterations)
    with pytest.raises(ValueError, match=r"iterations\[0\] must be a whole number, got 2\.5"):
        build(iterations=2.5)
    with pytest.raises(ValueError, match=r"switch must be True with loops='nested', .* got False: give loops='single'"):
        build(switch=False)
    with pytest.raises(ValueError, match="loops must be one of nested, single, got 'double'"):
        build(loops="double")
    with pytest.raises(ValueError, match="label_mode must be one of joint, given, fixed"):
        build(label_mode="guessed")
    with pytest.raises(ValueError, match="box must be"):
        build(box=(1.0, 0.0))
    with pytest.raises(ValueError, match=r"private set must have shape \(6, 2, 8, 8, 1\)"):
        build(num_samples=6).init(jax.random.key(0), problem.template)


def _first_step(attack, problem, observation):
    state = jax.eval_shape(attack.init, jax.random.key(0), problem.template)
    return jax.eval_shape(attack.step, jax.random.key(0), state, observation)


def test_missing_grants_are_named(problem, transcript):
    model, share = problem.model, problem.protocol.share

    def refuses(build, match, **grants):
        with pytest.raises(ValueError, match=match):
            _first_step(build(model, share, num_samples=N), problem, threats.view(threats.Threat(**grants), transcript))

    for build in (cafe, aggregated.aligned_dlg, cafe_upstream):
        refuses(build, "the threat must grant index", index=False)
    refuses(aggregated.aligned_idlg, "the threat must grant labels")
    refuses(aggregated.aligned_batch_statistics, "the threat must grant statistics")
    refuses(cafe_features_only, "cafe reads parts of the payload, but .* grant first/kernel", payload=("first/bias",))
    refuses(cafe, r"\(alpha\) reads the whole payload, but .*kernel_0", payload=("first/bias", "first/kernel"))
    refuses(aggregated.aligned_dlg, "does not grant", payload=("first/bias",))
    first = transcript.payload["first"]
    narrow = transcript._replace(payload={**transcript.payload, "first": {**first, "bias": first["bias"][:, :1]}})
    with pytest.raises(ValueError, match="payload leaf first/bias must have shape"):
        _first_step(cafe(model, share, num_samples=N), problem, threats.view(threats.Threat(), narrow))
    with pytest.raises(ValueError, match="parameters"):
        _first_step(
            cafe(model, share, num_samples=N), problem, threats.view(threats.Threat(), transcript)._replace(params=None)
        )


def test_labels_are_searched_for_given_or_left_as_they_started(small):
    problem, observation = small
    index = np.asarray(observation.index)
    others = np.setdiff1d(np.arange(6), index)
    given = threats.view(threats.Threat(labels=True), reference.first_transcript(problem))
    for mode, seen in (("joint", observation), ("given", given), ("fixed", observation)):
        attack = aggregated.aligned_dlg(problem.model, problem.protocol.share, num_samples=6, label_mode=mode)
        start = attack.init(jax.random.key(0), problem.template)
        state, _ = jax.jit(attack.step)(jax.random.key(0), start, seen)
        before, after = np.asarray(start.data.y), np.asarray(state.data.y)
        answered = np.asarray(attack.reconstruct(state, seen).y)
        assert (answered == (-1 if mode == "fixed" else after.argmax(axis=-1))).all()
        np.testing.assert_array_equal(after[others], before[others])
        if mode == "joint":
            assert (after[index] != before[index]).all()
            assert np.ptp(np.abs(after[index] - before[index])) < 1e-4  # Adam's first step has one length
        else:
            one_hot = np.eye(2)[np.asarray(problem.private.y)[index]]
            np.testing.assert_array_equal(after[index], one_hot if mode == "given" else before[index])


@pytest.mark.slow
def test_switching_the_gradient_term_off_needs_the_first_layer_only(problem, transcript):
    attack = cafe(problem.model, problem.protocol.share, num_samples=N, alpha=0, loops="single", switch=False)
    state = attack.init(jax.random.key(0), problem.template)
    step = jax.jit(attack.step)
    seen = [threats.view(t, transcript) for t in (threats.FIRST_LAYER_ONLY, threats.HONEST_BUT_CURIOUS_SERVER)]
    (narrow, info), (wide, _) = (step(jax.random.key(0), state, observation) for observation in seen)
    for a, b in zip(*map(jax.tree.leaves, (narrow, wide)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (attack.reconstruct(narrow, seen[0]).y == -1).all()  # no label was inferred
    assert np.isfinite(info["F3"])
    assert (narrow.data.x != state.data.x).any()


def test_k_equal_n_is_refused_when_seen(problem):
    protocol = protocols.vertical(problem.model, num_samples=N, batch_size=N)
    state = jax.eval_shape(protocol.init, jax.random.key(1))
    transcript = jax.eval_shape(protocol.round, jax.random.key(2), state, problem.template)[1]
    observation = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
    with pytest.raises(ValueError, match="Theorem 1"):
        _first_step(cafe(problem.model, protocol.share, num_samples=N), problem, observation)
    _first_step(aggregated.aligned_dlg(problem.model, protocol.share, num_samples=N), problem, observation)


def test_horizontal_models_are_the_case_of_one_party():
    model = models.cafe_horizontal((8, 8, 1), num_classes=3, channels=(2,), width=8, hidden=4)
    protocol = protocols.horizontal(model, workers=2, num_samples=8, batch_size=4)
    template = Batch(
        jax.ShapeDtypeStruct((8, 1, 8, 8, 1), jnp.float32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
    )
    state = jax.eval_shape(protocol.init, jax.random.key(1))
    transcript = jax.eval_shape(protocol.round, jax.random.key(2), state, template)[1]
    attack = attacks.cafe(
        model,
        protocol.share,
        num_samples=8,
        options=aggregated.CAFE_ICLR._replace(batch_size=4, inner_updates=10),
    )
    attack_state = jax.eval_shape(attack.init, jax.random.key(0), template)
    observation = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
    after, _ = jax.eval_shape(attack.step, jax.random.key(0), attack_state, observation)
    assert after == attack_state


def test_tables_need_beta_zero():
    model = models.all_dense((5,), parties=2, num_classes=3, width=8)
    share = protocols.vertical(model, num_samples=6, batch_size=2).share
    with pytest.raises(ValueError, match="set its weight beta to 0"):
        cafe(model, share, num_samples=6)
    with pytest.raises(ValueError, match="set its weight beta to 0"):
        aggregated.aligned_cosine_tv(model, share, num_samples=6)
    cafe(model, share, num_samples=6, beta=0)
    aggregated.aligned_cosine_tv(model, share, num_samples=6, beta=0)
    with pytest.raises(ValueError, match="extractor records none"):
        aggregated.aligned_batch_statistics(model, share, num_samples=6)


def test_baselines_refuse_what_they_cannot_do(problem):
    with pytest.raises(ValueError, match="use cafe for objectives with gamma > 0"):
        aggregated.aligned_matching(problem.model, problem.protocol.share, num_samples=N, objective=cafe_objective())
    with pytest.raises(ValueError, match="candidates must be >= 2, got 1"):
        aggregated.aligned_group_consistency(problem.model, problem.protocol.share, num_samples=N, candidates=1)
