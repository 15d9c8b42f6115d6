"""Defenses of the shared update: noise, quantization, sparsification, withheld entries, bits on the wire."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.stats

from jaxleak import _magnitudes
from jaxleak.defenses import (
    SPLIT_PLACES,
    bits_on_the_wire,
    cancelling_noise,
    chain,
    clipped_gaussian,
    fake_gradients,
    gaussian_noise,
    laplace_noise,
    magnitude_noise,
    outpost,
    quantize,
    sparsify,
    vfl_defender,
    withhold_top,
)
from jaxleak.defenses.mechanisms import Mechanism, Replayed

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
PAYLOAD = {"a": jnp.asarray(RNG.standard_normal((13, 4)), jnp.float32), "b": jnp.asarray(RNG.laplace(size=9) / 50)}


def _accepts_only(sample, distribution, scale):
    p = {factor: scipy.stats.kstest(sample, distribution(0, factor * scale).cdf).pvalue for factor in (2 / 3, 1, 1.5)}
    assert p[1] > 1e-3
    assert max(p[2 / 3], p[1.5]) < 1e-9


@pytest.mark.parametrize(
    ("build", "distribution"),
    [(gaussian_noise, scipy.stats.norm), (laplace_noise, scipy.stats.laplace)],
    ids=["gaussian", "laplace"],
)
def test_noise_has_the_stated_scale_and_the_test_would_notice_another(build, distribution):
    zeros = {"a": jnp.zeros((40, 50)), "b": jnp.zeros(3000)}
    _accepts_only(reference.flat(build(0.3).apply(KEY, zeros)), distribution, 0.3)


def test_magnitude_noise_is_proportional_and_keeps_zeros():
    payload = jnp.concatenate([jnp.full(4000, -2.0), jnp.full(4000, 1e-3), jnp.zeros(10)])
    relative = (magnitude_noise(0.5).apply(KEY, payload) - payload)[:8000] / jnp.abs(payload[:8000])
    _accepts_only(np.asarray(relative[:4000]), scipy.stats.norm, 0.5)
    _accepts_only(np.asarray(relative[4000:]), scipy.stats.norm, 0.5)
    assert (magnitude_noise(0.5).apply(KEY, payload)[8000:] == 0).all()


def test_cancelling_noise_sums_to_zero_and_hides_each_client():
    payload = jnp.asarray(RNG.standard_normal((3, 5000)), jnp.float32)
    shared = cancelling_noise(0.7, 3).apply(KEY, payload)
    np.testing.assert_allclose(shared.sum(axis=0), payload.sum(axis=0), atol=1e-5)
    # Client i carries its own noise and its predecessor's, each proportional to its owner's magnitudes.
    deviation = 0.7 * np.sqrt(payload**2 + np.roll(payload, 1, axis=0) ** 2)
    _accepts_only(np.ravel((shared - payload) / deviation), scipy.stats.norm, 1.0)


@pytest.mark.parametrize("build", [gaussian_noise, laplace_noise, magnitude_noise, quantize])
def test_strength_zero_is_the_identity(build):
    unchanged = build(32 if build is quantize else 0.0).apply(KEY, PAYLOAD)
    np.testing.assert_array_equal(reference.flat(unchanged), reference.flat(PAYLOAD))
    rows = jnp.ones((2, 3))
    np.testing.assert_array_equal(cancelling_noise(0.0, 2).apply(KEY, rows), rows)
    np.testing.assert_array_equal(reference.flat(sparsify(100).apply(KEY, PAYLOAD)), reference.flat(PAYLOAD))
    np.testing.assert_array_equal(reference.flat(withhold_top(0).apply(KEY, PAYLOAD)), reference.flat(PAYLOAD))


def _slow_quantize(leaf, bits):
    leaf = np.asarray(leaf, np.float64)
    if bits == 1:
        return np.where(leaf >= 0, 1.0, -1.0) * np.abs(leaf).mean()
    grid = np.arange(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1)) * np.abs(leaf).max() / (2 ** (bits - 1) - 1)
    return grid[np.argmin(np.abs(leaf.ravel()[:, None] - grid), axis=1)].reshape(leaf.shape)


@pytest.mark.parametrize("bits", [16, 8, 4, 1])
def test_quantization_goes_to_the_nearest_grid_point_of_each_tensor(bits):
    for quantized, leaf in zip(
        jax.tree.leaves(quantize(bits).apply(KEY, PAYLOAD)), jax.tree.leaves(PAYLOAD), strict=True
    ):
        np.testing.assert_allclose(quantized, _slow_quantize(leaf, bits), rtol=1e-5, atol=1e-7)
        assert len(np.unique(quantized)) <= 2**bits


def test_one_bit_takes_zero_for_positive_and_leaves_an_empty_tensor_empty():
    np.testing.assert_allclose(quantize(1).apply(KEY, jnp.array([0.0, -1.0, 5.0])), [2.0, -2.0, 2.0], rtol=1e-6)
    for bits in (1, 4):
        assert quantize(bits).apply(KEY, jnp.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("bits", [16, 8, 4, 1])
def test_stochastic_rounding_is_unbiased_and_stays_on_the_grid(bits):
    leaf = jnp.linspace(-1.0, 0.6, 7) * 3
    round_ = jax.jit(jax.vmap(lambda k: quantize(bits, stochastic=True).apply(k, leaf)))
    draws = np.asarray(round_(jax.random.split(KEY, 4000)), np.float64)
    step = 6.0 if bits == 1 else 3.0 / (2 ** (bits - 1) - 1)
    # A draw deviates by at most half a step from the middle; five standard errors of its mean.
    np.testing.assert_allclose(draws.mean(axis=0), leaf, atol=5 * step / 2 / np.sqrt(4000) + 1e-5)
    position = draws / 3 if bits == 1 else draws / step
    np.testing.assert_allclose(position, np.round(position), atol=2e-3)
    assert (np.abs(draws - np.asarray(leaf)) < step * (1 + 1e-3)).all()
    nearest = np.asarray(quantize(bits).apply(KEY, leaf))
    assert np.abs(nearest - np.asarray(leaf)).max() > np.abs(draws.mean(axis=0) - np.asarray(leaf)).max()


@pytest.mark.parametrize("percent", [0.5, 20, 50, 99])
def test_sparsify_keeps_the_largest_and_withhold_drops_them(percent):
    flat = reference.flat(PAYLOAD)
    count = int(np.ceil(flat.size * percent / 100))
    largest = np.argsort(-np.abs(flat))[:count]
    kept = np.zeros_like(flat)
    kept[largest] = flat[largest]
    np.testing.assert_array_equal(reference.flat(sparsify(percent).apply(KEY, PAYLOAD)), kept)
    for encrypted in (False, True):
        hidden = withhold_top(percent, encrypted=encrypted).apply(KEY, PAYLOAD)
        np.testing.assert_array_equal(reference.flat(hidden), flat - kept)


def test_encrypted_entries_are_hidden_from_the_server_only():
    assert withhold_top(20).place == "payload"
    assert withhold_top(20, encrypted=True).place == "server_view"


def test_thresholds_are_exact_over_the_whole_float_range():
    values = jnp.asarray([0.0, -3e38, 1e-38, 2e-30, -1.0, 1.0, 5.0, 1e-10], jnp.float32)
    ordered = np.sort(np.abs(np.asarray(values)))[::-1]
    threshold = _magnitudes.magnitude_threshold
    found = jax.jit(lambda v: [threshold([v[:3], v[3:]], 100 * k / 8) for k in range(1, 9)])(values)
    np.testing.assert_array_equal(found, ordered)
    assert _magnitudes.magnitude_threshold([jnp.zeros(4)], 50) == 0


def test_error_feedback_sends_everything_in_the_end():
    defense, plain = sparsify(25, error_feedback=True), sparsify(25)
    gradients = [jax.tree.map(lambda leaf, t=t: leaf * (1 + 0.2 * np.cos(t)), PAYLOAD) for t in range(6)]
    state, sent, slow_rest, slow_sent = defense.init(PAYLOAD), [], np.zeros(61), []
    for t, gradient in enumerate(gradients):
        upload, state = defense.update(jax.random.key(t), gradient, state)
        sent.append(reference.flat(upload))
        full = slow_rest + reference.flat(gradient)
        mask = np.abs(full) >= np.sort(np.abs(full))[-16]
        slow_sent.append(full * mask)
        slow_rest = full * ~mask
    np.testing.assert_allclose(sent, slow_sent, atol=1e-6)
    total = sum(reference.flat(g) for g in gradients)
    np.testing.assert_allclose(sum(sent) + reference.flat(state), total, atol=1e-5)
    # Feedback helps for gradients that hardly change: without it, the small entries never arrive.
    without = sum(reference.flat(plain.apply(KEY, g)) for g in gradients)
    assert np.linalg.norm(sum(sent) - total) < np.linalg.norm(without - total)
    # Without carried state every round is the first.
    np.testing.assert_array_equal(
        reference.flat(defense.apply(KEY, gradients[3])), reference.flat(plain.apply(KEY, gradients[3]))
    )


def test_a_chain_carries_the_state_of_its_members():
    defense = chain(clipped_gaussian(100.0, 0.0), sparsify(25, error_feedback=True))
    first, state = defense.update(KEY, PAYLOAD, defense.init(PAYLOAD))
    second, _ = defense.update(KEY, PAYLOAD, state)
    assert not np.allclose(reference.flat(first), reference.flat(second))


def test_bits_on_the_wire():
    n, tensors = 61, 2
    positions = min(16 * 6, n)  # six bits per index of 61 entries, or a bitmap of 61 bits
    for defense, bits in (
        (None, 32 * n),
        (gaussian_noise(1.0), 32 * n),
        (quantize(32), 32 * n),
        (quantize(8), 8 * n + 32 * tensors),
        (quantize(1, stochastic=True), n + 32 * tensors),
        (sparsify(25), 16 * 32 + positions),
        (sparsify(5), 4 * 32 + 4 * 6),
        (sparsify(100), 32 * n),
        (withhold_top(80), 13 * 32 + n),
        (withhold_top(80, encrypted=True), 32 * n),
        (withhold_top(100), 0),
        (chain(sparsify(50), withhold_top(50)), 0),
        (chain(sparsify(25), quantize(4)), 16 * 4 + positions + 32 * tensors),
        (chain(sparsify(25), quantize(1)), n + 32 * tensors),  # one bit cannot encode zero
        (chain(quantize(1), sparsify(25)), n + 32 * tensors),  # single bits tie, and ties are sent
        (chain(sparsify(25), gaussian_noise(1.0)), 32 * n),  # noise fills the zeros
    ):
        assert bits_on_the_wire(defense, PAYLOAD) == bits
    shapes = jax.eval_shape(lambda: PAYLOAD)
    assert bits_on_the_wire(quantize(4), shapes) == bits_on_the_wire(quantize(4), PAYLOAD)


@pytest.mark.parametrize(
    ("build", "options", "match"),
    [
        (gaussian_noise, {"scale": -1}, "scale must be >= 0, got -1"),
        (laplace_noise, {"scale": -0.1}, "scale must be >= 0"),
        (laplace_noise, {"scale": float("nan")}, "scale must be >= 0"),
        (magnitude_noise, {"scale": -1}, "scale must be >= 0"),
        (cancelling_noise, {"scale": -1, "clients": 2}, "scale must be >= 0"),
        (cancelling_noise, {"scale": 1, "clients": 1}, "clients must be >= 2, got 1"),
        (quantize, {"bits": 2}, "bits must be one of 32, 16, 8, 4, 1, got 2"),
        (quantize, {"bits": 0}, "bits must be one of"),
        (sparsify, {"percent": 0}, "percent must be > 0"),
        (sparsify, {"percent": 101}, "percent must be in"),
        (withhold_top, {"percent": -1}, "percent must be in"),
        (withhold_top, {"percent": 100.5}, "percent must be in"),
    ],
)
def test_values_out_of_range_are_refused(build, options, match):
    with pytest.raises(ValueError, match=match):
        build(**options)


def test_clients_are_counted_when_noise_cancels():
    assert float(cancelling_noise(1.0, 3).apply(KEY, jnp.ones(3)).sum()) == pytest.approx(3.0, abs=1e-5)
    for payload in (jnp.zeros((3, 2)), jnp.zeros(())):
        with pytest.raises(ValueError, match=r"leaves must be \(2, \.\.\.\)"):
            cancelling_noise(1.0, 2).apply(KEY, payload)


def test_defenses_of_different_places_are_not_chained():
    with pytest.raises(ValueError, match="one place"):
        chain(sparsify(20), withhold_top(20, encrypted=True))
    assert not {sparsify(20).place, cancelling_noise(1, 2).place} & set(SPLIT_PLACES)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_non_finite_payloads_are_refused_by_name(bad):
    with pytest.raises(FloatingPointError, match=r"payload: non-finite values in \['b'\]"):
        quantize(8).apply(KEY, {**PAYLOAD, "b": PAYLOAD["b"].at[2].set(bad)})


@pytest.mark.parametrize(
    ("defense", "mechanism"),
    [
        (quantize(32), Mechanism(Replayed(random=False, grid=2**31 - 1))),
        (quantize(8), Mechanism(Replayed(random=False, grid=127))),
        (quantize(1), Mechanism(Replayed(random=False))),
        (quantize(8, stochastic=True), Mechanism(Replayed(random=True, grid=127))),
        (sparsify(10), Mechanism(zeroes=True)),
        (sparsify(10, error_feedback=True), Mechanism(zeroes=True, carries=True)),
        (withhold_top(10), Mechanism(zeroes=True, zeroes_head=True)),
        (withhold_top(10, encrypted=True), Mechanism(zeroes=True, zeroes_head=True)),
        (withhold_top(0), Mechanism()),
    ],
)
def test_what_others_can_tell_of_a_compressed_update(defense, mechanism):
    assert defense.mechanism == mechanism


@pytest.mark.parametrize(
    "defense",
    [
        sparsify(50),
        outpost(0.5, noise_scale=0.0, decay=0.0),
        withhold_top(50),
        withhold_top(50, encrypted=True),
        *(vfl_defender(1.0, -1.0, reading=reading) for reading in ("paper", "direction", "batch")),
        fake_gradients(reading="paired", scale="absolute"),
    ],
    ids=["sparsify", "outpost", "withhold", "encrypt", "signs", "directions", "batch", "paired"],
)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_selection_of_entries_hides_no_broken_gradient(defense, bad):
    payload = {"w": jnp.array([[bad, bad, 1.0, 2.0, 3.0, 4.0]])}
    sent = jax.jit(lambda p: defense.apply(KEY, p, variables={"params": p}))(payload)["w"]
    assert not np.isfinite(sent).all()
