import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, data, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe import censored, exact, ordinal
from jaxleak.attacks._cafe.feature_inversion import FeatureInversionOptions
from jaxleak.attacks._cafe.least_squares import solve_features
from jaxleak.attacks.adaptive._rounds import own_gradient
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


def recovered(setting, build, defense=PAIRED, **options):
    model, private, plan = setting
    protocol = protocols.vertical(
        model,
        num_samples=N,
        batch_size=K,
        defense=defense,
        sampling="uniform",
    )
    attack = build(model, plan, invert=False, **options)
    state, _ = audit.run(attack, protocol, FIRST_LAYER_ONLY, private, key=KEY, rounds=plan.rounds)
    return state, reference.recovered(attack, state.attack, state.protocol.params)


def error(recovery, private):
    truth = np.asarray(private.x).reshape(N, P, -1)
    live = recovery.live & (np.linalg.norm(truth, axis=-1) > 0)
    return np.median((np.linalg.norm(recovery.H - truth, axis=-1) / np.linalg.norm(truth, axis=-1).clip(1e-6))[live])


@pytest.fixture(scope="module")
def adaptive(setting):
    return recovered(setting, attacks.cafe_ordinal, sweeps=SWEEPS)


def test_values_take_the_order_of_what_was_observed():
    observed = jnp.asarray([[0.1, -3.0], [2.0, 0.5]])
    values = jnp.asarray([[8.0, 1.0], [2.0, 4.0]])
    out = np.asarray(ordinal.in_order_of(observed, values))
    np.testing.assert_array_equal(np.argsort(out.ravel()), np.argsort(observed.ravel()))
    np.testing.assert_array_equal(np.sort(out.ravel()), [1.0, 2.0, 4.0, 8.0])


@pytest.mark.slow
def test_the_order_is_nearly_enough(setting, adaptive):
    _, unaware = recovered(setting, attacks.cafe_exact)
    state, knowing = adaptive
    assert error(unaware, setting[1]) > 0.2
    assert error(knowing, setting[1]) < 0.25 * error(unaware, setting[1])
    assert not unaware.answered.any()
    assert np.abs(np.asarray(state.attack.H)).max() > 0


@pytest.mark.slow
def test_knowledge_of_the_order_is_what_helps(setting, adaptive):
    # One sweep takes the noise for the gradient, as does an attacker who does not know the defense.
    _, single = recovered(setting, attacks.cafe_ordinal, sweeps=1)
    assert error(adaptive[1], setting[1]) < 0.6 * error(single, setting[1])


@pytest.mark.slow
def test_capped_entries_come_back_by_their_order(setting):
    _, unaware = recovered(setting, attacks.cafe_exact, CAPPED)
    options = {"reading": "clamped", "sweeps": SWEEPS}
    _, knowing = recovered(setting, attacks.cafe_ordinal, CAPPED, **options)
    assert error(unaware, setting[1]) > 0.3
    assert error(knowing, setting[1]) < 0.1 * error(unaware, setting[1])


@pytest.mark.slow
def test_rounds_beyond_the_plan_change_nothing(setting):
    model, private, _ = setting
    reference.assert_later_rounds_change_nothing(attacks.cafe_ordinal, model, private, batch_size=K, key=KEY)


def test_bad_input(setting):
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


@pytest.mark.slow
def test_an_attack_that_is_not_finished_has_no_answer(setting, adaptive):
    model, _, plan = setting
    state, _ = adaptive
    with pytest.raises(ValueError, match="has seen 3 of"):
        reference.recovered(
            attacks.cafe_ordinal(model, plan), state.attack._replace(seen=jnp.asarray(3)), state.protocol.params
        )


@pytest.mark.parametrize("slice_shape", [(8, 8, 1), (8, 8, 3), (5,)], ids=["grey", "colour", "table"])
def test_the_ratio_of_sizes_is_measured_on_nobodys_data(slice_shape, monkeypatch):
    """The ratio needs no data to load, and it is near the victim's, since both gradients come from the same network."""
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("somebody's data were loaded"))
    model = models.all_dense(slice_shape, parties=2, num_classes=3, width=8)
    params = reference.drawn(model, seed=1)
    gradient = own_gradient(model, params, 4)
    kernel, bias = (np.asarray(gradient["first"][name], np.float64) for name in ("kernel", "bias"))
    ratio = aggregated.kernel_to_bias_ratio(gradient)
    assert ratio == pytest.approx(np.sqrt((kernel**2).mean() / (bias**2).mean()), rel=1e-5)
    # The kernel's gradient is the bias's gradient times a feature, and features lie in [0, 1].
    assert 0.1 < ratio < 1
    again = own_gradient(model, params, 4)
    np.testing.assert_array_equal(again["first"]["kernel"], gradient["first"]["kernel"])


@pytest.mark.slow
def test_the_ratio_of_sizes_scales_what_the_kernel_says(setting):
    model, private, plan = setting
    rng = np.random.default_rng(0)
    first = {name: jnp.asarray(rng.standard_normal((P, *shape)), jnp.float32) for name, shape in
             {"kernel": (model.feature_size, model.width), "bias": (model.width,)}.items()}  # fmt: skip
    observation = Observation(jnp.zeros((), jnp.int32), None, {"first": first}, jnp.arange(K))
    V, projected = jnp.asarray(rng.standard_normal((N, P, model.width)), jnp.float32), []
    for scale in (1.0, 0.25):
        attack = attacks.cafe_ordinal(model, plan, sweeps=SWEEPS, kernel_scale=scale)
        state = attack.init(KEY, audit.template_of(private))
        second = state._replace(seen=jnp.asarray(plan.output_rounds + 1, jnp.int32), V=V)
        projected.append(jax.jit(attack.step)(KEY, second, observation)[0].projected)
    assert np.abs(projected[0]).max() > 0
    np.testing.assert_allclose(projected[1], 0.25 * projected[0], rtol=1e-5)


def test_a_prediction_is_brought_into_the_uploads_order_and_scale():
    upload = jnp.asarray([[0.5, -2.0], [3.0, 1.0]])
    predicted = jnp.asarray([[1.0, 0.0], [-0.5, 0.25]])
    ordered = np.array([[0.0, -0.5], [1.0, 0.25]])
    scale = np.linalg.norm(upload) / np.linalg.norm(predicted)
    np.testing.assert_allclose(ordinal._completed(upload, predicted, "paired"), scale * ordered, rtol=1e-6)
    np.testing.assert_array_equal(ordinal._completed(upload, jnp.zeros((2, 2)), "paired"), np.zeros((2, 2)))


def test_true_entries_stay_and_tell_the_scale_of_the_others(monkeypatch):
    visible = jnp.asarray([[True, False], [False, True]])
    monkeypatch.setattr(ordinal, "visible_entries", lambda upload: visible)
    upload, predicted = jnp.asarray([[0.5, -2.0], [3.0, 1.0]]), jnp.asarray([[1.0, 0.0], [-0.5, 0.25]])
    unit = (1.0 * 0.5 + 0.25 * 1.0) / (1.0 + 0.25**2)
    assert float(ordinal._unit(upload, predicted, visible)) == pytest.approx(unit)
    found = ordinal._completed(upload, predicted, "clamped")
    np.testing.assert_allclose(found, [[0.5, -0.5 * unit], [1.0 * unit, 1.0]], rtol=1e-6)
    assert float(ordinal._unit(upload, predicted, jnp.zeros((2, 2), bool))) == 1.0


def test_features_of_a_sweep_are_least_squares_with_a_small_ridge():
    rng = np.random.default_rng(0)
    batches = np.array([[0, 1], [1, 2], [0, 2], [2, 3], [1, 3]])
    v, h = rng.standard_normal((4, 2, 6)), rng.random((4, 2, 3))
    v[2, 1] = 0  # a slice without gradient
    v[0] *= 20
    incidence = np.zeros((5, 4))
    np.put_along_axis(incidence, batches, 1.0, axis=1)
    normal = (incidence.T @ incidence)[:, :, None] * np.einsum("kpe,lpe->klp", v, v)
    projected = np.einsum("klp,lpi->kpi", normal, h)
    found = ordinal._features(batches, jnp.asarray(v, jnp.float32), jnp.asarray(projected, jnp.float32))
    expected = h.copy()
    expected[2, 1] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3)
    # The ridge is 1e-5 times the mean eigenvalue of the normal matrix of unit rows.
    unit = v[:, 0] / np.linalg.norm(v[:, 0], axis=1, keepdims=True)
    plain = (incidence.T @ incidence) * (unit @ unit.T)
    ridge = 1e-5 * np.trace(plain) / 4 * np.eye(4)
    norms = np.linalg.norm(v[:, 0], axis=1, keepdims=True)
    exact = np.linalg.solve(plain + ridge, projected[:, 0] / norms) / norms
    np.testing.assert_allclose(found[:, 0], exact, rtol=2e-5)


@pytest.mark.parametrize(("rounds", "sweeps", "length"), [(12, 3, 4), (13, 3, 5), (14, 4, 4), (5, 5, 1)])
def test_only_the_last_sweep_may_be_shorter(setting, rounds, sweeps, length):
    assert ordinal.sweep_length(setting[2]._replace(feature_rounds=rounds), sweeps) == length


def _capped(rng, shape):
    """Random entries; the largest are capped at 1.2 times the noise of the same rank."""
    true, noise = rng.laplace(size=shape) ** 3, np.abs(rng.standard_normal(shape))
    ranked = np.empty(true.size)
    ranked[np.argsort(np.abs(true).ravel())] = np.sort(noise.ravel())
    return np.sign(true) * np.minimum(np.abs(true), 1.2 * ranked.reshape(shape))


def _slow_output_gradients(batches, uploads, reading, n):
    """A slow reference that alternates between sorting predictions into the observed order and least squares."""
    incidence = np.zeros((len(batches), n))
    np.put_along_axis(incidence, batches, 1.0, axis=1)
    observed, solve = uploads.reshape(len(uploads), -1), np.linalg.pinv(incidence)
    visible = np.array([ordinal.visible_entries(jnp.asarray(row, jnp.float32)) for row in observed])
    v = solve @ observed
    for _ in range(30):
        predicted = incidence @ v
        ordered = np.empty_like(predicted)
        for row, seen, out in zip(predicted, observed, ordered, strict=True):
            out[np.argsort(seen)] = np.sort(row)
            out *= row @ out / (out @ out)
        if reading == "clamped":
            unit = np.sum(visible * predicted * observed) / np.sum((visible * predicted) ** 2)
            v = solve @ np.where(visible, observed, unit * ordered)
        else:
            v = solve @ ordered
            v *= np.linalg.norm(observed) / np.linalg.norm(incidence @ v)
    return v.reshape(n, *uploads.shape[1:]), visible.mean()


@pytest.mark.parametrize("reading", ["paired", "clamped"])
def test_output_gradients_alternate_between_order_and_least_squares(reading):
    rng = np.random.default_rng(0)
    batches = np.stack([rng.permutation(5)[:2] for _ in range(14)])
    draw = _capped if reading == "clamped" else (lambda rng, shape: rng.standard_normal(shape))
    uploads = np.stack([draw(rng, (2, 20)) for _ in batches])
    expected, visible = _slow_output_gradients(batches, uploads, reading, 5)
    found = jax.jit(ordinal._output_gradients, static_argnums=(2, 3))(
        jnp.asarray(batches), jnp.asarray(uploads, jnp.float32), reading, 5
    )
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    assert reading == "paired" or 0.1 < visible < 0.9


@pytest.mark.parametrize(
    ("reading", "feature_rounds", "sweeps"),
    [pytest.param("paired", 22, 3, marks=pytest.mark.slow), ("paired", 16, 2), ("clamped", 15, 2)],
)
def test_rounds_are_taken_as_by_a_plain_loop(reading, feature_rounds, sweeps):
    """The loop runs Step I once, then sweeps that predict from the previous sweep's features (the first from none)."""
    n, k, variance, scale = 6, 2, 1.3, 0.7
    model = models.all_dense((5,), parties=2, num_classes=3, width=8)
    plan = aggregated.CafeExactPlan(n, k, 1, output_rounds=9, feature_rounds=feature_rounds, direct=True)
    rng, length = np.random.default_rng(0), -(-feature_rounds // sweeps)
    batches = np.stack([rng.permutation(n)[:k] for _ in range(plan.rounds)]).astype(np.int32)
    first = [{"kernel": jnp.asarray(_capped(rng, (2, 5, 8)), jnp.float32),
              "bias": jnp.asarray(_capped(rng, (2, 8)), jnp.float32)} for _ in batches]  # fmt: skip
    attack = attacks.cafe_ordinal(
        model, plan, reading=reading, variance=variance, kernel_scale=scale, sweeps=sweeps, invert=False
    )
    x = jnp.zeros((n, 2, 5))
    state = attack.init(KEY, audit.template_of(Batch(x, jnp.zeros(n, jnp.int32), jnp.arange(n))))
    step, phases = jax.jit(attack.step), []
    params = jax.jit(model.init)(KEY)
    for t, (index, tensors) in enumerate(zip(batches, first, strict=True)):
        state, infos = step(KEY, state, Observation(jnp.int32(t), params, {"first": tensors}, jnp.asarray(index)))
        phases.append(int(infos["phase"]))
        assert float(infos["bias_gradient_norm"]) == pytest.approx(float(jnp.linalg.norm(tensors["bias"])), rel=1e-5)
    assert phases == [1] * 9 + [2] * feature_rounds

    unit = variance**-0.5 if reading == "paired" else 1.0
    biases = unit * jnp.stack([tensors["bias"] for tensors in first[:9]])
    v = jax.jit(ordinal._output_gradients, static_argnums=(2, 3))(batches[:9], biases, reading, n)
    solve, complete = jax.jit(ordinal._features), jax.jit(ordinal._completed, static_argnums=2)
    features, projected, v = np.zeros((n, 2, 5)), np.zeros((n, 2, 5)), np.asarray(v)
    for done in range(feature_rounds):
        t = 9 + done
        if done and done % length == 0:
            features, projected = np.asarray(solve(batches[t - length : t], v, projected)), 0 * projected
        kernel = np.float32(scale * unit) * np.asarray(first[t]["kernel"])
        if done >= length:
            predicted = sum(features[m, :, :, None] * v[m, :, None, :] for m in batches[t])
            kernel = np.asarray(complete(kernel, predicted, reading))
        for m in batches[t]:
            projected[m] += (kernel * v[m, :, None, :]).sum(axis=-1)
    np.testing.assert_allclose(state.V, v, atol=1e-4)
    np.testing.assert_allclose(state.H, features, atol=1e-2 * np.abs(features).max())
    np.testing.assert_allclose(state.projected, projected, atol=1e-2 * np.abs(projected).max())
    last = batches[9 + (feature_rounds - 1) // length * length :]
    solved = solve_features(last, v, projected, direct=True)
    found = reference.recovered(attack, state, params)
    np.testing.assert_allclose(found.H, solved.table, atol=1e-2 * np.abs(solved.table).max())


@pytest.mark.parametrize("module", [exact, censored, ordinal])
def test_step_three_is_run_unless_it_is_asked_not_to(setting, monkeypatch, module):
    model, _, plan = setting
    asked = []
    monkeypatch.setattr(module, "_recovered", lambda *_: "recovered")
    monkeypatch.setattr(module, "answer_of", lambda *given, **options: asked.append((given[2:], options)))
    build = getattr(module, f"cafe_{module.__name__.rpartition('.')[2]}")
    chosen = FeatureInversionOptions(max_steps=3)
    for options in ({}, {"invert": False, "inversion": chosen, "seed": 4}):
        build(model, plan, **options).reconstruct(None, Observation(jnp.int32(0), params={"first": 1}))
    assert asked == [(("recovered", None, 0), {"invert": True}), (("recovered", chosen, 4), {"invert": False})]
