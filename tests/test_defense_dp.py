"""DP-SGD, its variant with decaying noise, and the epsilon of both."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from slowness import slow_but

from jaxleak import defenses
from jaxleak.defenses import (
    CLIENT_DEFENSES,
    SHORTHAND_DELTA,
    adaptive_dp_sgd,
    classical_noise_multiplier,
    dp_sgd,
    epsilon_of,
    epsilon_of_schedule,
    noise_multiplier_of,
    noise_multiplier_shorthand,
    true_epsilon,
)

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
EXAMPLES = {
    "a": jnp.asarray(RNG.standard_normal((6, 3, 2)) * np.logspace(-3, 3, 6)[:, None, None], jnp.float32),
    "b": jnp.asarray(RNG.standard_normal((6, 4)), jnp.float32),
}


def _rows(tree):
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(tree)], axis=1)


def _slow_clip(rows, clip):
    return np.stack([row * min(1.0, clip / np.linalg.norm(row)) for row in rows])


@pytest.mark.parametrize("clip", [0.1, 1.0, 50.0])
def test_every_example_is_clipped_and_short_ones_stay(clip):
    rows = _rows(jax.jit(dp_sgd(clip, 0.0).apply)(KEY, EXAMPLES))
    assert (np.linalg.norm(rows, axis=1) <= clip * (1 + 1e-6)).all()
    np.testing.assert_allclose(rows, _slow_clip(_rows(EXAMPLES), clip), rtol=1e-5, atol=1e-7)


def test_owners_of_split_training_clip_their_own_parts():
    parts = (EXAMPLES["a"], {}, EXAMPLES["b"])
    shared = dp_sgd(2.0, 0.0).apply(KEY, parts, owners=True)
    for part, truth in ((shared[0], parts[0]), (shared[2], parts[2])):
        np.testing.assert_allclose(_rows(part), _slow_clip(_rows(truth), 2 / np.sqrt(2)), rtol=1e-5)
    assert (np.linalg.norm(_rows(shared), axis=1) <= 2 * (1 + 1e-6)).all()
    # The parameters of a function may also be a tuple, which then counts as one tree.
    whole = dp_sgd(2.0, 0.0).apply(KEY, (EXAMPLES["a"], EXAMPLES["b"]))
    np.testing.assert_allclose(_rows(whole), _slow_clip(_rows(EXAMPLES), 2.0), rtol=1e-5)


@pytest.mark.parametrize("size", [3e3, 1e-5])
def test_gradients_of_16_bits_are_clipped_by_their_norm(size):
    example = {"w": jnp.full((1, 4), size, jnp.float16)}
    found = np.asarray(dp_sgd(size, 0.0).apply(KEY, example)["w"], np.float64)  # their norm is twice the clip
    np.testing.assert_allclose(found, size / 2, rtol=2e-2)


@pytest.mark.parametrize("defense", [dp_sgd(2.0, 0.7), adaptive_dp_sgd(2.0, 2.8, decay=0.5)], ids=["dp", "adaptive"])
def test_the_mean_carries_noise_of_the_stated_scale_and_the_test_would_notice_another(defense):
    zeros = {"a": jnp.zeros((4, 50, 60)), "b": jnp.zeros((4, 3000))}
    mean = np.ravel(_rows(defense.apply(KEY, zeros, round=2)).mean(axis=0))
    p = {f: scipy.stats.kstest(mean, scipy.stats.norm(0, f * 1.4 / 4).cdf).pvalue for f in (2 / 3, 1, 1.5)}
    assert p[1] > 1e-3
    assert max(p[2 / 3], p[1.5]) < 1e-9


def test_masked_examples_do_not_count_and_the_divisor_is_the_expected_batch():
    mask = jnp.array([True, False, True, True, False, True])
    shared = dp_sgd(1.0, 0.0, expected_batch=2.5).apply(KEY, EXAMPLES, mask=mask)
    expected = _slow_clip(_rows(EXAMPLES), 1.0)[np.asarray(mask)].sum(axis=0) / 2.5
    np.testing.assert_allclose(_rows(shared).mean(axis=0), expected, rtol=1e-5, atol=1e-7)
    for wrong in (mask.astype(jnp.float32), mask[:1], mask[:, None]):
        with pytest.raises(ValueError, match=r"mask must be \(6,\) truth values"):
            dp_sgd(1.0, 0.0).apply(KEY, EXAMPLES, mask=wrong)
    others = jax.tree.map(lambda leaf: leaf.at[1].set(7.0), EXAMPLES)
    noisy = dp_sgd(1.0, 2.0, expected_batch=2.5)
    np.testing.assert_array_equal(*(_rows(noisy.apply(KEY, e, mask=mask)) for e in (EXAMPLES, others)))


def test_adaptive_noise_decays_with_the_round():
    zeros = jnp.zeros((1, 20_000))
    defense = adaptive_dp_sgd(1.0, 2.0, decay=0.5)
    spread = jax.jit(jax.vmap(lambda t: defense.apply(KEY, zeros, round=t).std()))(jnp.arange(3))
    np.testing.assert_allclose(spread, [2, 1, 0.5], rtol=0.03)
    with pytest.raises(ValueError, match="needs the keyword round"):
        adaptive_dp_sgd(1.0, 2.0).apply(KEY, zeros)


def test_gradients_without_an_example_axis_are_refused():
    for payload in ({"a": jnp.zeros((3, 2)), "b": jnp.zeros((2, 2))}, {"a": jnp.zeros(())}, {}):
        with pytest.raises(ValueError, match="same leading example axis"):
            dp_sgd().apply(KEY, payload)


def _gaussian_epsilon(mu, delta):
    """Balle and Wang (2018), Theorem 8, solved for epsilon: exact for one Gaussian release of sensitivity mu."""
    cdf = scipy.stats.norm.cdf
    return scipy.optimize.brentq(lambda e: cdf(mu / 2 - e / mu) - np.exp(e) * cdf(-mu / 2 - e / mu) - delta, 1e-6, 100)


def test_without_sampling_epsilon_is_near_that_of_one_gaussian_release():
    for noise, steps in ((1.0, 1), (4.0, 16), (8.0, 9)):
        exact = _gaussian_epsilon(np.sqrt(steps) / noise, 1e-5)
        assert exact <= epsilon_of(noise_multiplier=noise, sampling_rate=1, steps=steps, delta=1e-5) < 1.2 * exact


PRIVATE = [name for name, entry in CLIENT_DEFENSES.items() if entry.private]


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("name", PRIVATE)
def test_the_true_epsilon_of_whole_batches_is_that_of_gaussian_releases(name, rounds):
    """Replacing an example moves the clipped sum by twice the clip; squared signal-to-noise ratios of releases add."""
    sigma = noise_multiplier_shorthand(2.0, SHORTHAND_DELTA)
    sigmas = [sigma * (0.99**t if name.startswith("adaptive") else 1.0) for t in range(rounds)]
    exact = _gaussian_epsilon(np.sqrt(sum((2 / sigma) ** 2 for sigma in sigmas)), SHORTHAND_DELTA)
    found = true_epsilon(name, 2.0, batch_size=50, own_samples=50, rounds=rounds)
    assert exact <= found < 1.2 * exact


@pytest.mark.parametrize("name", slow_but(PRIVATE, ("adaptive_dp", "dp_update")))
def test_the_true_epsilon_is_that_of_dp_accounting(name):
    package = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(neighboring_relation=package.NeighboringRelation.REPLACE_ONE)
    for t in range(3):
        sigma = noise_multiplier_shorthand(2.0, SHORTHAND_DELTA) * (0.99**t if name.startswith("adaptive") else 1.0)
        release = package.GaussianDpEvent(sigma / 2)
        # The clip of a whole update bounds any replaced example, so sampling of batches does not amplify privacy.
        whole = name == "dp_update"
        accountant.compose(release if whole else package.SampledWithoutReplacementDpEvent(40, 8, release))
    found = true_epsilon(name, 2.0, batch_size=8, own_samples=40, rounds=3)
    assert found == pytest.approx(accountant.get_epsilon(SHORTHAND_DELTA), rel=1e-3)


@pytest.mark.slow
def test_a_batch_without_replacement_holds_one_example_at_least():
    package = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    for rate, batch in ((0.001, 1), (0.05, 2)):
        accountant = rdp.RdpAccountant(neighboring_relation=package.NeighboringRelation.REPLACE_ONE)
        accountant.compose(package.SampledWithoutReplacementDpEvent(40, batch, package.GaussianDpEvent(0.75)), 3)
        plan = {"sampling_rate": rate, "steps": 3, "delta": 1e-5, "sampling": "without_replacement", "examples": 40}
        assert epsilon_of(noise_multiplier=1.5, **plan) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
        assert epsilon_of_schedule(
            noise_multipliers=[1.5] * 3, **{name: plan[name] for name in plan if name != "steps"}
        ) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
        noise = noise_multiplier_of(epsilon=2.0, **plan)
        assert epsilon_of(noise_multiplier=noise, **plan) == pytest.approx(2.0, rel=1e-4)


def test_a_defense_without_noise_for_examples_has_no_epsilon():
    with pytest.raises(ValueError, match="gaussian has no epsilon"):
        true_epsilon("gaussian", 1.0, batch_size=1, own_samples=2, rounds=1)


def test_epsilon_knows_steps_sampling_and_delta():
    plan = {"noise_multiplier": 1.1, "sampling_rate": 0.01, "steps": 1000, "delta": 1e-5}
    base = epsilon_of(**plan)
    assert 1.0 < base < 2.5
    assert epsilon_of(**{**plan, "steps": 4000}) > base
    assert epsilon_of(**{**plan, "sampling_rate": 0.02}) > base
    assert epsilon_of(**{**plan, "delta": 1e-6}) > base
    assert epsilon_of(**{**plan, "noise_multiplier": 2.0}) < base


def test_replacing_an_example_costs_twice_the_clip():
    full = {"sampling_rate": 1, "steps": 1, "delta": 1e-5}
    replaced = epsilon_of(noise_multiplier=2.0, sampling="without_replacement", examples=50, **full)
    assert replaced == pytest.approx(epsilon_of(noise_multiplier=1.0, **full), rel=1e-6)


def test_a_batch_that_is_no_whole_number_is_rounded_up():
    plan = {"noise_multiplier": 2.0, "steps": 3, "delta": 1e-5, "sampling": "without_replacement", "examples": 10}
    assert epsilon_of(sampling_rate=0.25, **plan) == epsilon_of(sampling_rate=0.3, **plan)
    assert epsilon_of(sampling_rate=0.25, **plan) > epsilon_of(sampling_rate=0.2, **plan)


@pytest.mark.parametrize("epsilon", [0.1, 10.0, 1e5])
def test_the_noise_for_an_epsilon_gives_it(epsilon):
    plan = {"sampling_rate": 0.05, "steps": 60, "delta": 1e-5}
    noise = noise_multiplier_of(epsilon=epsilon, **plan)
    assert epsilon_of(noise_multiplier=noise, **plan) <= epsilon
    assert epsilon_of(noise_multiplier=0.99 * noise, **plan) > epsilon


def test_a_constant_schedule_is_no_schedule_and_decay_costs():
    plan = {"sampling_rate": 0.05, "delta": 1e-5}
    constant = epsilon_of(noise_multiplier=1.5, steps=5, **plan)
    assert epsilon_of_schedule(noise_multipliers=[1.5] * 5, **plan) == pytest.approx(constant, rel=1e-9)
    assert epsilon_of_schedule(noise_multipliers=[1.5 * 0.9**t for t in range(5)], **plan) > constant


def test_the_shorthand_of_the_papers_is_no_accounting():
    assert noise_multiplier_shorthand(100.0, 1e-5) == pytest.approx(np.sqrt(2 * np.log(1e5)) / 100)
    assert classical_noise_multiplier(0.5, 1e-5) == pytest.approx(np.sqrt(2 * np.log(1.25e5)) / 0.5)
    shorthand = noise_multiplier_shorthand(1.0, 1e-5)
    assert epsilon_of(noise_multiplier=shorthand, sampling_rate=1, steps=100, delta=1e-5) > 10


def test_a_missing_package_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install"):
        epsilon_of(noise_multiplier=1.0, sampling_rate=1, steps=1, delta=1e-5)


GOOD = {"sampling_rate": 0.1, "steps": 10, "delta": 1e-5}


@pytest.mark.parametrize(
    ("build", "options", "match"),
    [
        (dp_sgd, {"clip": 0}, "clip must be > 0, got 0"),
        (dp_sgd, {"clip": -1}, "clip must be > 0"),
        (dp_sgd, {"noise_multiplier": -1}, "noise_multiplier must be >= 0"),
        (dp_sgd, {"expected_batch": 0}, "expected_batch must be > 0"),
        (adaptive_dp_sgd, {"decay": 0}, "decay must be > 0"),
        (adaptive_dp_sgd, {"decay": 1.1}, "decay must be in"),
        (epsilon_of, {**GOOD, "noise_multiplier": 0}, "noise_multiplier must be > 0"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "sampling_rate": 0}, "sampling_rate must be > 0"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "sampling_rate": 1.5}, "sampling_rate must be <= 1"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "steps": 0}, "steps must be > 0"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "steps": 1.5}, "steps must be a whole number"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "delta": 0}, "delta must be > 0"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "delta": 1}, "delta must be < 1"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "sampling": "epoch"}, "sampling must be one of"),
        (epsilon_of, {**GOOD, "noise_multiplier": 1, "sampling": "without_replacement"}, "needs examples"),
        (noise_multiplier_of, {**GOOD, "epsilon": 0}, "epsilon must be > 0"),
        (noise_multiplier_of, {**GOOD, "epsilon": -1}, "epsilon must be > 0"),
        (noise_multiplier_of, {**GOOD, "epsilon": 1, "delta": 2}, "delta must be < 1"),
        (noise_multiplier_shorthand, {"epsilon": 0, "delta": 0.1}, "epsilon must be > 0"),
        (noise_multiplier_shorthand, {"epsilon": 1, "delta": 1}, "delta must be < 1"),
        (
            epsilon_of_schedule,
            {"noise_multipliers": [], "sampling_rate": 1, "delta": 0.1},
            "the number of noise_multipliers must be > 0",
        ),
        (epsilon_of_schedule, {"noise_multipliers": [1, -1], "sampling_rate": 1, "delta": 0.1}, "must be > 0, got -1"),
    ],
)
def test_values_out_of_range_are_refused(build, options, match):
    with pytest.raises(ValueError, match=match):
        build(**options)


def test_the_place_is_where_single_examples_are():
    assert dp_sgd().place == adaptive_dp_sgd().place == "per_example_gradient"
    assert dp_sgd().place in defenses.HORIZONTAL_PLACES
    with pytest.raises(ValueError, match="one place"):
        defenses.chain(dp_sgd(), defenses.quantize(8))
