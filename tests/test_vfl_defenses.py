"""Defenses of split vertical training: what survives them, how much noise they add, and their places."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxleak import models, protocols
from jaxleak._base import Batch
from jaxleak.attacks import adaptive
from jaxleak.defenses import chain, gaussian_noise, label_dp_scale, marvell, quantize, sparsify, vfl_defender
from jaxleak.defenses._marvell import label_noise, optimal_variances

T_MAX, T_MIN = 0.4, -0.3
KEY = jax.random.key(0)
GRADIENT = np.asarray(np.random.default_rng(0).normal(0, 0.5, (200, 4)), np.float32)


#: Compiled functions, since they would be many single operations.
_variances = jax.jit(optimal_variances, static_argnums=3)


@functools.partial(jax.jit, static_argnums=1)
def _defended(gradient, reading, key):
    return vfl_defender(T_MAX, T_MIN, reading=reading).apply(key, gradient)


def _defend(gradient, reading, key=KEY):
    return np.asarray(_defended(gradient, reading, key))


def _algorithm_2(gradient, draws):
    """Algorithm 2 as printed, step by step."""
    out = np.empty_like(gradient)
    for n, row in enumerate(np.clip(gradient, T_MIN, T_MAX)):
        row = row / np.linalg.norm(row)
        for i, element in enumerate(row):
            out[n, i] = draws[n, i] * (T_MAX if element > 0 else T_MIN)
    return out


def test_the_papers_reading_is_algorithm_2_and_keeps_nothing_but_signs():
    draws = np.asarray(jax.random.uniform(jax.random.fold_in(KEY, 0), GRADIENT.shape))
    defended = _defend(GRADIENT, "paper")
    np.testing.assert_allclose(defended, _algorithm_2(GRADIENT, draws), atol=1e-6)
    np.testing.assert_array_equal(np.sign(defended), np.sign(GRADIENT))
    # Any gradient with the same signs gives the same result, so only the signs survive.
    other = np.sign(GRADIENT) * np.random.default_rng(1).uniform(1e-6, 10, GRADIENT.shape).astype(np.float32)
    np.testing.assert_array_equal(_defend(other, "paper"), defended)
    assert (_defend(np.zeros_like(GRADIENT), "paper") < 0).all()  # a zero is negative, as in the algorithm


def test_the_papers_reading_leaves_the_label_at_the_output():
    y = np.arange(200) % 4
    gradient = np.asarray(jax.nn.softmax(jnp.asarray(4 * GRADIENT))) - np.eye(4)[y]
    np.testing.assert_array_equal(_defend(gradient, "paper").argmin(axis=1), y)


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e3])
def test_the_repaired_reading_keeps_the_direction_and_the_budget(size):
    gradient = np.float32(size) * GRADIENT
    defended = _defend(gradient, "direction").astype(np.float64)
    clipped = np.clip(gradient, np.float32(T_MIN), np.float32(T_MAX)).astype(np.float64)
    norms = np.linalg.norm(defended, axis=1)
    np.testing.assert_allclose(
        defended / norms[:, None], clipped / np.linalg.norm(clipped, axis=1, keepdims=True), atol=1e-6
    )
    assert (norms > 0).all()
    assert norms.max() <= 0.3 * (1 + 1e-6)
    assert (defended >= T_MIN).all()
    assert (defended <= T_MAX).all()


def test_a_samples_gradient_is_the_last_axis():
    deep = GRADIENT[:30].reshape(5, 6, 4)
    defended = _defend(deep, "direction").reshape(30, 4)
    clipped = np.clip(GRADIENT[:30], T_MIN, T_MAX)
    defended, clipped = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (defended, clipped))
    np.testing.assert_allclose(defended, clipped, atol=1e-6)


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e3])
def test_the_batch_reading_keeps_the_direction_of_the_whole_batch(size):
    gradient = np.float32(size) * GRADIENT
    defended = _defend(gradient, "batch").astype(np.float64)
    clipped = np.clip(gradient, np.float32(T_MIN), np.float32(T_MAX)).astype(np.float64)
    np.testing.assert_allclose(
        defended / np.linalg.norm(defended), clipped / np.linalg.norm(clipped), atol=1e-7, rtol=1e-5
    )
    norms = [np.linalg.norm(_defend(gradient, "batch", jax.random.key(i))) for i in range(60)]
    assert 0 < min(norms) < 0.05
    assert 0.25 < max(norms) <= 0.3 * (1 + 1e-6)


def test_the_repaired_sizes_are_uniform_whatever_the_sample():
    sizes = np.linalg.norm(_defend(np.tile(GRADIENT, (10, 1)), "direction"), axis=1)
    assert scipy.stats.kstest(sizes, "uniform", args=(0, 0.3)).pvalue > 1e-3
    assert scipy.stats.kstest(sizes, "uniform", args=(0, 0.2)).pvalue < 1e-9
    assert scipy.stats.kstest(sizes, "uniform", args=(0, 0.45)).pvalue < 1e-9
    assert abs(np.corrcoef(sizes, np.tile(np.linalg.norm(GRADIENT, axis=1), 10))[0, 1]) < 0.08


@pytest.mark.parametrize("place", ["bottom_output", "top_output", "top_output_gradient", "cut_gradient"])
def test_the_noise_has_the_stated_scale_and_the_test_would_notice_another(place):
    zeros = (jnp.zeros((40, 50)), jnp.zeros((3000, 1)))
    noise = gaussian_noise(0.7, place=place).apply(KEY, zeros)
    assert gaussian_noise(0.7, place=place).place == place
    flat = np.concatenate([np.ravel(leaf) for leaf in noise])
    p = {scale: scipy.stats.kstest(flat, scipy.stats.norm(0, 0.7 * scale).cdf).pvalue for scale in (2 / 3, 1, 3 / 2)}
    assert p[1] > 1e-3
    assert p[2 / 3] < 1e-9
    assert p[3 / 2] < 1e-9


def _delta(epsilon, sigma):
    """Delta of one Gaussian release of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    normal = scipy.stats.norm.cdf
    return normal(0.5 / sigma - epsilon * sigma) - np.exp(epsilon) * normal(-0.5 / sigma - epsilon * sigma)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("epochs", [1, 20])
def test_label_noise_is_private_by_the_exact_formula_and_hardly_more_than_needed(epsilon, epochs):
    batch = 16
    scale = label_dp_scale(epsilon, delta=1e-5, epochs=epochs, batch_size=batch)
    y = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    sensitivity = np.linalg.norm((y[0] - y[1]) / batch)  # change of a row of (p - onehot(y)) / B with its label
    sigma = scale / sensitivity / np.sqrt(epochs)  # T releases equal one with sigma / sqrt(T)
    assert _delta(epsilon, sigma) <= 1e-5
    assert _delta(epsilon, 0.8 * sigma) > 1e-5


def _sum_kl(mean0, cov0, mean1, cov1):
    """The sum of both KL divergences between two Gaussians, from their full covariance matrices."""
    gap, d = mean1 - mean0, len(mean0)
    inverse0, inverse1 = np.linalg.inv(cov0), np.linalg.inv(cov1)
    spread = np.trace(inverse1 @ cov0) + np.trace(inverse0 @ cov1) - 2 * d
    return 0.5 * (spread + gap @ (inverse0 + inverse1) @ gap)


def _achieved(problem, along0, across0, along1, across1):
    u, v, gap, d, _, _ = problem
    mean = np.zeros(d)
    mean[0] = np.sqrt(gap)
    first = np.eye(d)[:, :1] @ np.eye(d)[:1]
    negative = u * np.eye(d) + along0 * first + across0 * (np.eye(d) - first)
    positive = v * np.eye(d) + along1 * first + across1 * (np.eye(d) - first)
    return _sum_kl(np.zeros(d), negative, mean, positive)


PROBLEMS = [  # u, v, squared gap, d, share of positives, power
    (0.5, 2.0, 1.0, 6, 0.3, 1.5),
    (2.0, 0.5, 3.0, 6, 0.2, 4.0),
    (0.01, 1.0, 4.0, 20, 0.05, 0.8),
    (1.0, 1.0, 2.0, 3, 0.5, 2.0),
    (0.2, 0.3, 1.0, 1, 0.7, 1.0),
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_marvells_variances_are_feasible_and_no_other_noise_of_the_same_power_is_better(problem):
    u, v, gap, d, share, power = problem
    best = _variances(u, v, gap, d, share, power)
    along0, across0, along1, across1, sum_kl = (float(value) for value in best)
    assert along0 >= across0 >= 0
    assert along1 >= across1 >= 0

    def spent(along0, across0, along1, across1):
        return share * (along1 + (d - 1) * across1) + (1 - share) * (along0 + (d - 1) * across0)

    assert spent(along0, across0, along1, across1) == pytest.approx(power, rel=1e-4)
    ours = _achieved(problem, along0, across0, along1, across1)
    assert sum_kl == pytest.approx(ours, rel=1e-3)
    isotropic = _achieved(problem, *[power / d] * 4)
    assert ours < (0.95 * isotropic if d > 1 else isotropic * (1 + 1e-5))
    rng = np.random.default_rng(0)
    for _ in range(300):
        draw = rng.exponential(size=4) ** 3
        draw[1::2] = np.minimum(draw[1::2], draw[::2])
        draw *= power / spent(*draw)
        assert ours <= _achieved(problem, *draw) * (1 + 1e-4)
    near = np.array([along0, across0, along1, across1])
    for _ in range(300):
        draw = np.abs(near * np.exp(rng.normal(0, 0.1, 4)) + rng.normal(0, 1e-3, 4) * power)
        draw[1::2] = np.minimum(draw[1::2], draw[::2])
        assert ours <= _achieved(problem, *(draw * power / spent(*draw))) * (1 + 1e-4)


@jax.jit  # one program for all batches of a size
def _noises(keys, gradient, positive):
    return jax.vmap(lambda key: label_noise(key, gradient, positive, 0.4))(keys)


@pytest.mark.parametrize(("size", "members"), [(12, 4), (12, 1), (12, 0), (12, 12), (3, 0), (3, 3)])
def test_marvells_noise_has_the_covariance_that_was_solved_for(size, members):
    """A class without members counts as half a member with gradient zero and the other class's variance."""
    rng = np.random.default_rng(0)
    positive = np.arange(size) < members
    spread = np.where(positive, 0.6, 0.1)[:, None]  # so unequal that the negative class also gets much noise across
    gradient = np.float32(spread * rng.normal(size=(size, 3)) + np.outer(positive, [0.0, 0.6, 0.8]))
    keys = jax.random.split(KEY, 96_000 // size)
    noise = np.asarray(_noises(keys, np.float32(1e-9) * gradient, positive), np.float64) * 1e9
    g, own = np.asarray(gradient, np.float64), np.asarray(positive)
    there = [rows for rows in (~own, own) if rows.any()]
    means = [g[rows].mean(axis=0) if rows.any() else np.zeros(3) for rows in (~own, own)]
    difference = means[1] - means[0]
    unit = difference / np.linalg.norm(difference)
    variances = [np.mean((g[rows] - g[rows].mean(axis=0)) ** 2) for rows in there]
    u, v = variances * (3 - len(there))
    gap, share = difference @ difference, np.clip(members / size, 0.5 / size, 1 - 0.5 / size)
    best = _variances(u, v, gap, 3, share, 0.4 * gap)
    assert members != 4 or best.negative_across > 0.2 * best.negative_along
    for rows, along, across in ((~own, best[0], best[1]), (own, best[2], best[3])):
        if not rows.any():
            continue
        expected = float(along) * np.outer(unit, unit) + float(across) * (np.eye(3) - np.outer(unit, unit))
        found = np.cov(noise[:, rows].reshape(-1, 3).T)
        np.testing.assert_allclose(found, expected, atol=0.03 * float(along))
    if len(there) == 2:
        assert np.mean(np.sum(noise**2, axis=-1)) == pytest.approx(0.4 * gap, rel=0.03)


def test_marvell_adds_the_noise_of_its_binary_problems():
    labels = jnp.array([0, 1, 2, 2, 1, 0, 0, 1])  # class 3 of 4 is absent
    gradient = jnp.asarray(GRADIENT[:8]) + jax.nn.one_hot(labels, 4)
    own, draw = jax.random.fold_in(KEY, 0), jax.jit(label_noise)
    two = draw(own, gradient, labels == 1, 0.7)
    several = sum(draw(jax.random.fold_in(own, c), gradient, labels == c, 0.7 / 4) for c in range(3))
    for classes, noise in ((2, two), (4, several)):
        defense = marvell(num_classes=classes, power=0.7)
        (found,) = jax.jit(lambda g, defense=defense: defense.apply(KEY, (g,), labels=labels))(gradient)
        np.testing.assert_allclose(found, gradient + noise, rtol=1e-4, atol=1e-5)


def test_marvell_grows_its_power_until_the_divergence_is_met():
    positive = jnp.arange(8) < 3
    gradient = jnp.asarray(GRADIENT[:8]) + positive[:, None] * 1.0
    bounded = jax.jit(lambda max_sum_kl: label_noise(KEY, gradient, positive, 0.1, max_sum_kl))
    sizes = [float(jnp.linalg.norm(bounded(max_sum_kl))) for max_sum_kl in (1e9, 2.0, 0.1, 1e-3)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 5 * sizes[0]
    # The power is the first of 0.1, 0.15, 0.225, ... that is enough.
    g, own = np.asarray(gradient, np.float64), np.asarray(positive)
    u, v = (np.mean((g[rows] - g[rows].mean(axis=0)) ** 2) for rows in (~own, own))
    gap = np.sum((g[own].mean(axis=0) - g[~own].mean(axis=0)) ** 2)
    powers = 0.1 * 1.5 ** np.arange(30)
    solve = jax.jit(jax.vmap(lambda power: optimal_variances(u, v, jnp.float32(gap), 4, 3 / 8, power).sum_kl))
    enough = float(powers[np.argmax(np.asarray(solve(jnp.asarray(powers * gap, jnp.float32))) <= 0.1)])
    assert 0.1 < enough < powers[-1]
    at_once = jax.jit(label_noise)(KEY, gradient, positive, enough)
    np.testing.assert_allclose(bounded(0.1), at_once, rtol=1e-3, atol=1e-4)


def test_marvell_also_protects_batches_of_one_class():
    gradient = jnp.asarray(GRADIENT[:8]) + 1.0
    apply = jax.jit(lambda labels: marvell(num_classes=2).apply(KEY, (gradient,), labels=labels)[0])
    for label in (0, 1):
        noise = np.asarray(apply(jnp.full(8, label)) - gradient)
        assert np.isfinite(noise).all()
        assert np.linalg.norm(noise) > 0.1


def test_one_class_against_the_rest_hides_every_class_and_fits_into_training():
    labels = jnp.array([0, 1, 2, 2, 1, 0, 0, 1])  # class 3 of 4 is absent
    gradient = jnp.asarray(GRADIENT[:8]) + jax.nn.one_hot(labels, 4)
    defense = marvell(num_classes=4)
    noises = jax.jit(jax.vmap(lambda key: defense.apply(key, (gradient,), labels=labels)[0] - gradient))(
        jax.random.split(KEY, 300)
    )
    power = np.mean(np.sum(np.asarray(noises) ** 2, axis=-1), axis=0)
    assert (power > 0.1).all()

    model = models.bottom_top((2, 3), 4, bottom=(4,), top=(5,))
    protocol = protocols.split_training(model, num_samples=8, batch_size=8, defenses=[defense])
    private = Batch(jnp.ones((8, 2, 3)).at[:, 0, 2].set(0.0), labels, jnp.arange(8))
    jax.eval_shape(lambda key: protocol.round(key, protocol.init(key), private), KEY)


def test_vfl_defender_acts_in_training():
    private = Batch(np.float32(np.random.default_rng(0).random((6, 2, 3))), np.array([0, 1, 2, 2, 1, 0]), np.arange(6))

    def cut(model, params, defense):
        protocol = protocols.split_training(model, num_samples=6, batch_size=6, defenses=[defense])
        _, transcript = jax.jit(protocol.round)(KEY, protocols.split_state(params), private)
        return protocol, transcript.private, np.asarray(transcript.parties[0].output_gradient)

    # A top without parameters passes the output's gradient on as it is.
    model = models.bottom_top((2, 3), 3, bottom=(4,), top=None)
    _, batch, signs = cut(model, jax.jit(model.init)(KEY), vfl_defender(1.0, -1.0, reading="paper"))
    np.testing.assert_array_equal(signs.argmin(axis=1), batch.y)
    # Backpropagation through the top is linear in the gradient, so its direction also reaches the parties.
    model = models.bottom_top((2, 3), 3, bottom=(4,), top=(5,))
    params = jax.jit(model.init)(KEY)
    protocol, batch, kept = cut(model, params, vfl_defender(1.0, -1.0))
    plain = np.asarray(jax.jit(protocol.share)(params, batch)[0])
    kept, plain = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (kept, plain))
    np.testing.assert_allclose(kept, plain, atol=1e-5)


@pytest.mark.slow
def test_who_knows_the_defense_has_it_in_the_shadow_run_as_it_is():
    """The test compares one label holder's defense at a time, on the same shadow records and with the same key."""
    private = Batch(np.float32(np.random.default_rng(0).random((6, 2, 3))), np.array([0, 1, 2, 2, 1, 0]), np.arange(6))
    model = models.bottom_top((2, 3), 3, bottom=(4,), top=(5,))
    params = jax.jit(model.init)(KEY)
    shadow = functools.partial(protocols.split_training, model, num_samples=6, batch_size=6)

    def received(protocol):
        _, transcript = jax.jit(protocol.round)(KEY, protocols.split_state(params), private)
        return np.asarray(transcript.parties[0].output_gradient)

    for defense in (gaussian_noise(0.5, place="cut_gradient"), marvell(num_classes=3)):
        known = received(adaptive.informed_party([defense], shadow))
        np.testing.assert_array_equal(known, received(shadow(defenses=[defense])))
        assert np.abs(known - received(shadow())).max() > 1e-3


def test_a_defense_is_made_for_the_classes_of_the_model():
    """Marvell for 50 classes would give each of the model's classes only a fiftieth of the power."""
    model = models.bottom_top((2, 3), 3, bottom=(4,), top=(5,))
    shadow = functools.partial(protocols.split_training, model, num_samples=6, batch_size=6)
    other = marvell(num_classes=50)
    message = "num_classes of a defense must be that of the model, 3, got 50"
    for defense in (other, chain(other, gaussian_noise(0.1, place="cut_gradient"))):
        with pytest.raises(ValueError, match=message):
            shadow(defenses=defense)
        with pytest.raises(ValueError, match=message):
            adaptive.informed_party(defense, shadow)
    noise = gaussian_noise(0.1, place="cut_gradient")
    shadow(defenses=[noise, marvell(num_classes=3), chain(noise, marvell(num_classes=3))])
    with pytest.raises(ValueError, match=r"num_classes of the chained defenses must be one number, got \[3, 50\]"):
        chain(marvell(num_classes=3), other)


def test_cut_gradients_are_compressed_where_they_leave():
    """The largest entries over all parties are sent, and compression is not taken for that of a client's upload."""
    private = Batch(np.float32(np.random.default_rng(0).random((6, 2, 3))), np.array([0, 1, 2, 2, 1, 0]), np.arange(6))
    model = models.bottom_top((2, 3), 3, bottom=(4,), top=(5,))
    params = jax.jit(model.init)(KEY)

    def sent(defense):
        protocol = protocols.split_training(model, num_samples=6, batch_size=6, defenses=defense)
        _, transcript = jax.jit(protocol.round)(KEY, protocols.split_state(params), private)
        return np.stack([np.asarray(record.output_gradient) for record in transcript.parties])

    plain, sparse = sent(()), sent(sparsify(25, place="cut_gradient"))
    kept = np.abs(plain) >= np.sort(np.abs(plain), axis=None)[-12]
    np.testing.assert_array_equal(sparse, np.where(kept, plain, 0))
    coarse = sent(quantize(4, place="cut_gradient"))
    assert all(len(np.unique(np.abs(own))) <= 8 for own in coarse)
    assert 0 < np.abs(coarse - plain).max() < np.abs(plain).max() / 7
    for defense in (sparsify(25), quantize(4), quantize(32)):
        assert defense.mechanism is not None
    for defense in (sparsify(25, place="cut_gradient"), *(quantize(bits, place="top_output") for bits in (4, 32))):
        assert defense.mechanism is None


def test_a_party_that_knows_nothing_of_vertical_training_is_refused():
    shadow = functools.partial(pytest.fail, "made a protocol")
    with pytest.raises(ValueError, match="defenses must be at least one"):
        adaptive.informed_party([], shadow)
    with pytest.raises(ValueError, match=r"place must be one of bottom_output, .*, got 'payload'"):
        adaptive.informed_party([quantize(4)], shadow)
    with pytest.raises(ValueError, match=r"place must be one of bottom_output, .*, got 'payload'"):
        adaptive.informed_party(quantize(4), shadow)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="one place"):
        chain(vfl_defender(1.0, -1.0), marvell(num_classes=3))
    for labels in (None, jnp.zeros((4, 2)), jnp.zeros(4)):
        with pytest.raises(ValueError, match="marvell needs the keyword labels"):
            marvell(num_classes=2).apply(KEY, (jnp.ones((4, 3)),), labels=labels)


def test_values_out_of_range_are_refused():
    for build, match in (
        (lambda: vfl_defender(-1.0, -1.0), "t_max must be > 0, got -1.0"),
        (lambda: vfl_defender(0.0, -1.0), "t_max must be > 0, got 0.0"),
        (lambda: vfl_defender(1.0, 0.5), "t_min must be < 0, got 0.5"),
        (lambda: vfl_defender(1.0, 0.0), "t_min must be < 0, got 0.0"),
        (lambda: vfl_defender(1.0, -float("inf")), "t_min must be < 0"),
        (lambda: vfl_defender(1.0, -1.0, reading="signs"), "reading must be one of paper, direction, batch"),
        (lambda: gaussian_noise(-0.1), "scale must be >= 0, got -0.1"),
        (lambda: gaussian_noise(0.1, place="gradients"), "place must be one of payload, bottom_output"),
        (lambda: label_dp_scale(0.0, delta=1e-5, epochs=1, batch_size=16), "epsilon must be > 0, got 0.0"),
        (lambda: label_dp_scale(-1.0, delta=1e-5, epochs=1, batch_size=16), "epsilon must be > 0, got -1.0"),
        (lambda: label_dp_scale(1.0, delta=1.0, epochs=1, batch_size=16), "delta must be < 1"),
        (lambda: quantize(4, place="cut"), "place must be one of payload, bottom_output"),
        (lambda: sparsify(10, place="cut"), "place must be one of payload, bottom_output"),
        (
            lambda: sparsify(10, error_feedback=True, place="cut_gradient"),
            "error_feedback must be False but at the place",
        ),
        (lambda: marvell(num_classes=1), "num_classes must be in"),
        (lambda: marvell(num_classes=2.5), "num_classes must be a whole number, got 2.5"),
        (lambda: marvell(num_classes=2, power=0.0), "power must be > 0"),
        (lambda: marvell(num_classes=2, max_sum_kl=0.0), "max_sum_kl must be > 0"),
        (lambda: marvell(num_classes=2, max_sum_kl=-1.0), "max_sum_kl must be > 0"),
    ):
        with pytest.raises(ValueError, match=match):
            build()
