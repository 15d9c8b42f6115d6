import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import scipy.stats

from jaxleak.defenses import (
    Defense,
    chain,
    clipped_gaussian,
    fake_gradients,
    noise_multiplier_for,
    soteria,
    withhold_top,
)

PAYLOAD = {
    "first": {"kernel": jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)},
    "rest": {"bias": jnp.asarray(np.random.default_rng(1).standard_normal(5), jnp.float32)},
}


def _flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 0.0])
def test_clipping_never_exceeds_the_clip_and_leaves_short_payloads_alone(size):
    payload = jax.tree.map(lambda leaf: size * leaf, PAYLOAD)
    shared = _flat(clipped_gaussian(3.0, 0.0).apply(jax.random.key(0), payload))
    truth = _flat(payload)
    norm = np.linalg.norm(truth)
    assert np.linalg.norm(shared) <= 3 * (1 + 1e-6)
    np.testing.assert_allclose(shared, truth * min(1.0, 3 / max(norm, 1e-30)), rtol=1e-5)


def test_the_noise_has_the_stated_scale_and_the_test_would_notice_another():
    zeros = {"a": jnp.zeros((40, 50)), "b": jnp.zeros(3000)}
    noise = _flat(clipped_gaussian(2.0, 0.7).apply(jax.random.key(0), zeros))
    p = {scale: scipy.stats.kstest(noise, "norm", args=(0, 1.4 * scale)).pvalue for scale in (2 / 3, 1, 3 / 2)}
    assert p[1] > 1e-3
    assert p[2 / 3] < 1e-9
    assert p[3 / 2] < 1e-9


def test_leaves_of_the_same_shape_get_different_noise():
    noise = clipped_gaussian(1.0, 1.0).apply(jax.random.key(0), {"a": jnp.zeros(100), "b": jnp.zeros(100)})
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 0.4


def test_chain_gives_each_member_a_key_of_its_own():
    zeros = jnp.zeros(20_000)
    # The clip is far above the noise, so the second member only adds. The same noise twice would have scale 2.
    member = Defense("payload", _adding_noise())
    noise = np.asarray(chain(member, member).apply(jax.random.key(0), zeros))
    assert noise.std() == pytest.approx(np.sqrt(2), rel=0.03)
    three = np.asarray(chain(member, chain(member, member)).apply(jax.random.key(0), zeros))
    assert three.std() == pytest.approx(np.sqrt(3), rel=0.03)


def _adding_noise():
    def update(updates, state, params=None, *, key, **extra):
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def test_chain_applies_members_in_order():
    payload = jax.tree.map(lambda leaf: 100 * leaf, PAYLOAD)
    both = chain(clipped_gaussian(3.0, 0.0), clipped_gaussian(0.5, 0.0)).apply(jax.random.key(0), payload)
    assert np.linalg.norm(_flat(both)) == pytest.approx(0.5, rel=1e-5)
    noisy_then_clipped = chain(clipped_gaussian(3.0, 10.0), clipped_gaussian(0.5, 0.0))
    assert np.linalg.norm(_flat(noisy_then_clipped.apply(jax.random.key(0), payload))) == pytest.approx(0.5, rel=1e-5)
    clipped_then_noisy = chain(clipped_gaussian(0.5, 0.0), clipped_gaussian(3.0, 10.0))
    assert np.linalg.norm(_flat(clipped_then_noisy.apply(jax.random.key(0), payload))) > 10


def test_chain_refuses_nothing_and_mixed_places():
    with pytest.raises(ValueError, match="no defense"):
        chain()
    with pytest.raises(ValueError, match=r"one place, got \['data', 'payload'\]"):
        chain(clipped_gaussian(), clipped_gaussian()._replace(place="data"))


def _pool(key, payload, pool_size, variance, redraw=0):
    """The defense's own pool, drawn with its keys: unsorted candidates, as lists of leaves."""
    leaves = jax.tree.leaves(payload)
    return [
        [
            variance**0.5 * np.asarray(jax.random.normal(jax.random.fold_in(k, i), (g.size,)))
            for i, g in enumerate(leaves)
        ]
        for k in jax.random.split(jax.random.fold_in(key, redraw), pool_size)
    ]


@pytest.mark.parametrize("reading", ["printed", "clamped", "paired"])
def test_fake_gradients_follow_the_paper(reading):
    for seed in range(3):
        key = jax.random.key(seed)
        fake = fake_gradients(pool_size=20, variance=0.8, reading=reading, scale="absolute").apply(key, PAYLOAD)
        gradients = [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]
        slow = reference.algorithm_5(gradients, _pool(key, PAYLOAD, 20, 0.8), reading=reading)
        for a, b in zip(jax.tree.leaves(fake), slow, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("pool_size", [1, 4])
def test_the_unit_of_fake_noise_is_a_root_mean_square(pool_size):
    key, sizes = jax.random.key(0), {"a": 4000, "b": 1000}
    payload = {name: 10.0**i * jax.random.laplace(key, (n,)) for i, (name, n) in enumerate(sizes.items())}

    def rms(x):
        return np.sqrt(np.mean(np.square(_flat(x))))

    fake = fake_gradients(pool_size, 1.1, reading="paired", scale="tensor").apply(key, payload)
    for name, true in payload.items():
        assert rms(fake[name]) == pytest.approx(1.1**0.5 * rms(true), rel=0.1)
    fake = fake_gradients(pool_size, 1.1, reading="paired", scale="gradient").apply(key, payload)
    for name in payload:
        assert rms(fake[name]) == pytest.approx(1.1**0.5 * rms(payload), rel=0.1)


def test_paired_noise_keeps_the_order_and_nothing_else():
    key, true = jax.random.key(0), {"g": jax.random.normal(jax.random.key(1), (50,))}
    fake = fake_gradients(pool_size=3, reading="paired", scale="absolute").apply(key, true)["g"]
    np.testing.assert_array_equal(np.argsort(fake), np.argsort(true["g"]))
    other = fake_gradients(pool_size=3, reading="paired", scale="absolute").apply(key, {"g": true["g"] ** 3})["g"]
    # The same pool and the same order: at most the nearest member differs.
    assert any(np.allclose(np.sort(other), np.sort(m[0]), atol=1e-6) for m in _pool(key, true, 3, 1.1))


def test_as_printed_the_smallest_entries_become_negative_noise():
    payload = {"g": jnp.linspace(1e-3, 1.0, 40)}  # ascending and all positive
    fake = np.asarray(
        fake_gradients(pool_size=5, reading="printed", scale="absolute").apply(jax.random.key(0), payload)["g"]
    )
    psi = [np.sort(member[0]) for member in _pool(jax.random.key(0), payload, 5, 1.1)]
    # The lower half of psi is negative: whichever member was chosen, those entries are psi itself.
    assert (fake[:12] < 0).all()
    assert any(np.allclose(fake[:12], member[:12], atol=1e-6) for member in psi)
    assert np.abs(fake[0]) > 100 * payload["g"][0]
    assert (fake[-10:] > 0).all()


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_the_default_changes_gradients_of_any_size(size):
    payload = {"g": size * jax.random.laplace(jax.random.key(0), (500,))}
    fake = fake_gradients(pool_size=1).apply(jax.random.key(1), payload)["g"]
    assert np.linalg.norm(fake - payload["g"]) > 0.1 * np.linalg.norm(payload["g"])


def test_clamped_every_sign_stays_and_no_magnitude_grows():
    for seed in range(4):
        truth, fake = _flat(PAYLOAD), _flat(fake_gradients(pool_size=3).apply(jax.random.key(seed), PAYLOAD))
        assert (truth * fake >= 0).all()
        assert (np.abs(fake) <= np.abs(truth) * (1 + 1e-6)).all()
        assert not np.allclose(fake, truth)


def test_pools_are_drawn_again_until_one_is_near_enough():
    key, gradients = jax.random.key(0), [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]
    nearest = [
        min(
            reference.algorithm_5_distance(gradients, member, reading="clamped")
            for member in _pool(key, PAYLOAD, 4, 1.1, r)
        )
        for r in range(6)
    ]
    chosen = int(np.argmin(nearest))
    assert chosen > 0, "choose another key: the first pool is the nearest already"
    threshold = nearest[chosen] * 1.001
    stop = next(r for r in range(6) if nearest[r] <= threshold)
    for max_redraws, used in ((10, stop), (stop - 1, stop - 1), (0, 0)):
        fake = fake_gradients(4, 1.1, threshold, max_redraws, scale="absolute").apply(key, PAYLOAD)
        slow = reference.algorithm_5(gradients, _pool(key, PAYLOAD, 4, 1.1, used), reading="clamped")
        for a, b in zip(jax.tree.leaves(fake), slow, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_larger_pool_is_nearer():
    gradients = [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]

    def distance(size):
        fake = fake_gradients(pool_size=size).apply(jax.random.key(0), PAYLOAD)
        return np.linalg.norm(_flat(fake) - np.concatenate([g.ravel() for g in gradients]))

    assert distance(500) < distance(1)


def test_the_noise_multiplier_is_the_classical_one():
    assert noise_multiplier_for(0.5, 1e-5) == pytest.approx(np.sqrt(2 * np.log(1.25e5)) / 0.5, rel=1e-6)


def test_values_out_of_range_are_refused():
    for build, options, match in (
        (clipped_gaussian, {"clip": 0}, "clip must be > 0, got 0"),
        (clipped_gaussian, {"noise_multiplier": -1}, "noise_multiplier must be >= 0, got -1"),
        (fake_gradients, {"pool_size": 0}, "pool_size must be > 0"),
        (fake_gradients, {"variance": -0.1}, "variance must be > 0"),
        (fake_gradients, {"threshold": 0}, "threshold must be > 0, got 0"),
        (fake_gradients, {"reading": "sorted"}, "reading must be one of"),
        (fake_gradients, {"scale": "leaf"}, "scale must be one of"),
        (fake_gradients, {"threshold": float("nan")}, "threshold must be > 0, got nan"),
        (fake_gradients, {"max_redraws": -1}, "max_redraws must be >= 0"),
        (noise_multiplier_for, {"epsilon": 0, "delta": 1e-5}, "epsilon must be > 0"),
        (noise_multiplier_for, {"epsilon": 1, "delta": 1}, "delta must be < 1, got 1"),
        (noise_multiplier_for, {"epsilon": 1, "delta": 0}, "delta must be > 0"),
    ):
        with pytest.raises(ValueError, match=match):
            build(**options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: soteria(None), "ratio must be in"),
        (lambda: withhold_top("5"), "percent must be in"),
        (lambda: fake_gradients(pool_size=1.5), "pool_size must be a whole number, got 1.5"),
    ],
)
def test_what_is_no_number_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
