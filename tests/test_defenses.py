import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import scipy.stats

from jaxleak.defenses import (
    CLIENT_DEFENSES,
    Defense,
    bits_on_the_wire,
    chain,
    classical_noise_multiplier,
    client_defense,
    clipped_gaussian,
    composed,
    dp_sgd,
    fake_gradients,
    feature_dropout,
    gaussian_noise,
    guardian,
    laplace_noise,
    magnitude_noise,
    noise_multiplier_shorthand,
    outpost,
    per_leaf,
    quantize,
    soteria,
    sparsify,
    stateless,
    withhold_top,
)
from jaxleak.defenses._base import in_order
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, LaplaceNoise, Mechanism, ProportionalNoise, Replayed

CLIPPED = clipped_gaussian(3.0, 0.0)
PAYLOAD = {
    "first": {"kernel": jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)},
    "rest": {"bias": jnp.asarray(np.random.default_rng(1).standard_normal(5), jnp.float32)},
}


@functools.partial(jax.jit, static_argnums=0)
def _compiled(defense, key, payload):
    return defense.apply(key, payload)


def _applied(defense, payload, seed=0):
    """Apply a defense in one program, compiled once for all its keys and payloads."""
    return jax.tree.map(np.asarray, _compiled(defense, jax.random.key(seed), payload))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 0.0])
def test_clipping_never_exceeds_the_clip_and_leaves_short_payloads_alone(size):
    payload = jax.tree.map(lambda leaf: size * np.asarray(leaf), PAYLOAD)
    shared = reference.flat(_applied(CLIPPED, payload))
    truth = reference.flat(payload)
    norm = np.linalg.norm(truth)
    assert np.linalg.norm(shared) <= 3 * (1 + 1e-6)
    np.testing.assert_allclose(shared, truth * min(1.0, 3 / max(norm, 1e-30)), rtol=1e-5)


def test_the_noise_has_the_stated_scale_and_the_test_would_notice_another():
    zeros = {"a": jnp.zeros((40, 50)), "b": jnp.zeros(3000)}
    noise = reference.flat(_applied(clipped_gaussian(2.0, 0.7), zeros))
    p = {scale: scipy.stats.kstest(noise, scipy.stats.norm(0, 1.4 * scale).cdf).pvalue for scale in (2 / 3, 1, 3 / 2)}
    assert p[1] > 1e-3
    assert p[2 / 3] < 1e-9
    assert p[3 / 2] < 1e-9


def test_leaves_of_the_same_shape_get_different_noise():
    noise = _applied(clipped_gaussian(1.0, 1.0), {"a": np.zeros(100, np.float32), "b": np.zeros(100, np.float32)})
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 0.4


def test_chain_gives_each_member_a_key_of_its_own():
    zeros = jnp.zeros(20_000)
    # The second member only adds noise. Equal noise from both members would have scale 2.
    member = Defense("payload", _adding_noise())
    noise = _applied(chain(member, member), zeros)
    assert noise.std() == pytest.approx(np.sqrt(2), rel=0.03)
    three = _applied(chain(member, chain(member, member)), zeros)
    assert three.std() == pytest.approx(np.sqrt(3), rel=0.03)


def _adding_noise():
    def update(updates, state, params=None, *, key, **extra):
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def test_chain_applies_members_in_order():
    payload = jax.tree.map(lambda leaf: 100 * np.asarray(leaf), PAYLOAD)
    both = _applied(chain(clipped_gaussian(3.0, 0.0), clipped_gaussian(0.5, 0.0)), payload)
    assert np.linalg.norm(reference.flat(both)) == pytest.approx(0.5, rel=1e-5)
    noisy_then_clipped = chain(clipped_gaussian(3.0, 10.0), clipped_gaussian(0.5, 0.0))
    assert np.linalg.norm(reference.flat(_applied(noisy_then_clipped, payload))) == pytest.approx(0.5, rel=1e-5)
    clipped_then_noisy = chain(clipped_gaussian(0.5, 0.0), clipped_gaussian(3.0, 10.0))
    assert np.linalg.norm(reference.flat(_applied(clipped_then_noisy, payload))) > 10


def test_a_chain_of_several_says_nothing_of_its_output():
    assert chain(sparsify(20), quantize(8)).mechanism is None
    assert chain(sparsify(20)).mechanism == sparsify(20).mechanism


@pytest.mark.parametrize(
    ("place", "transform", "mechanism", "message"),
    [
        ("paylod", optax.identity(), None, "place must be one of payload, .*, got 'paylod'"),
        ("payload", lambda payload: payload, None, "transform must be one of optax"),
        ("payload", optax.identity(), Replayed(), r"mechanism must be a .*got Replayed\(random=False, "),
    ],
)
def test_what_is_no_defense_is_refused_when_it_is_made(place, transform, mechanism, message):
    with pytest.raises(ValueError, match=message):
        Defense(place, transform, mechanism=mechanism)


def test_a_transform_of_optax_that_takes_no_key_is_a_defense():
    halved = Defense("payload", optax.scale(0.5)).apply(jax.random.key(0), {"w": jnp.array([2.0, 4.0])})
    np.testing.assert_array_equal(halved["w"], [1.0, 2.0])


def test_defenses_may_come_from_a_generator_and_are_checked_one_by_one():
    assert len(in_order(quantize(bits) for bits in (8, 4))) == 2
    with pytest.raises(ValueError, match=r"defense must be made by jaxleak\.defenses"):
        chain([quantize(8)])


def test_chain_refuses_nothing_and_mixed_places():
    with pytest.raises(ValueError, match="no defense"):
        chain()
    with pytest.raises(ValueError, match=r"one place, got \['data', 'payload'\]"):
        chain(clipped_gaussian(), clipped_gaussian()._replace(place="data"))


def _pool(key, payload, pool_size, variance, redraw=0):
    """The pool of the defense, drawn with the same keys: unsorted candidates, each a list of leaves."""
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
    defense = fake_gradients(pool_size=20, variance=0.8, reading=reading, scale="absolute")
    for seed in range(3):
        fake = _applied(defense, PAYLOAD, seed)
        gradients = [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]
        slow = reference.algorithm_5(gradients, _pool(jax.random.key(seed), PAYLOAD, 20, 0.8), reading=reading)
        for a, b in zip(jax.tree.leaves(fake), slow, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("pool_size", [1, 4])
def test_the_unit_of_fake_noise_is_a_root_mean_square(pool_size):
    rng, sizes = np.random.default_rng(0), {"a": 4000, "b": 1000}
    payload = {name: np.float32(10.0**i * rng.laplace(size=n)) for i, (name, n) in enumerate(sizes.items())}

    def rms(x):
        return np.sqrt(np.mean(np.square(reference.flat(x))))

    fake = _applied(fake_gradients(pool_size, 1.1, reading="paired", scale="tensor"), payload)
    for name, true in payload.items():
        assert rms(fake[name]) == pytest.approx(1.1**0.5 * rms(true), rel=0.1)
    fake = _applied(fake_gradients(pool_size, 1.1, reading="paired", scale="gradient"), payload)
    for name in payload:
        assert rms(fake[name]) == pytest.approx(1.1**0.5 * rms(payload), rel=0.1)


def test_paired_noise_keeps_the_order_and_nothing_else():
    true, defense = {"g": np.asarray(reference.normal(50))}, fake_gradients(3, reading="paired", scale="absolute")
    fake = _applied(defense, true)["g"]
    np.testing.assert_array_equal(np.argsort(fake), np.argsort(true["g"]))
    other = _applied(defense, {"g": true["g"] ** 3})["g"]
    # The pool and the order are the same, so at most the nearest member differs.
    pool = _pool(jax.random.key(0), true, 3, 1.1)
    assert any(np.allclose(np.sort(other), np.sort(member[0]), atol=1e-6) for member in pool)


def test_as_printed_the_smallest_entries_become_negative_noise():
    payload = {"g": np.linspace(1e-3, 1.0, 40, dtype=np.float32)}  # ascending and all positive
    fake = _applied(fake_gradients(pool_size=5, reading="printed", scale="absolute"), payload)["g"]
    psi = [np.sort(member[0]) for member in _pool(jax.random.key(0), payload, 5, 1.1)]
    # The lower half of psi is negative: whichever member was chosen, those entries are psi itself.
    assert (fake[:12] < 0).all()
    assert any(np.allclose(fake[:12], member[:12], atol=1e-6) for member in psi)
    assert np.abs(fake[0]) > 100 * payload["g"][0]
    assert (fake[-10:] > 0).all()


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_the_default_changes_gradients_of_any_size(size):
    payload = {"g": np.float32(size * np.random.default_rng(0).laplace(size=500))}
    fake = _applied(fake_gradients(pool_size=1), payload, seed=1)["g"]
    assert np.linalg.norm(fake - payload["g"]) > 0.1 * np.linalg.norm(payload["g"])


def test_clamped_every_sign_stays_and_no_magnitude_grows():
    defense = fake_gradients(pool_size=3)
    for seed in range(4):
        truth, fake = reference.flat(PAYLOAD), reference.flat(_applied(defense, PAYLOAD, seed))
        assert (truth * fake >= 0).all()
        assert (np.abs(fake) <= np.abs(truth) * (1 + 1e-6)).all()
        assert not np.allclose(fake, truth)


@pytest.mark.parametrize("size", [pytest.param(4, marks=pytest.mark.slow), 1])
def test_pools_are_drawn_again_until_one_is_near_enough(size):
    key, gradients = jax.random.key(0), [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]
    nearest = [
        min(
            reference.algorithm_5_distance(gradients, member, reading="clamped")
            for member in _pool(key, PAYLOAD, size, 1.1, r)
        )
        for r in range(6)
    ]
    chosen = int(np.argmin(nearest))
    assert chosen > 0, "choose another key: the first pool is the nearest already"
    threshold = nearest[chosen] * 1.001
    stop = next(r for r in range(6) if nearest[r] <= threshold)
    nearest_before = int(np.argmin(nearest[:stop]))
    # If no pool is near enough, the nearest member of all pools is used.
    for max_redraws, used in ((10, stop), (stop - 1, nearest_before), (0, 0)):
        fake = _applied(fake_gradients(size, 1.1, threshold, max_redraws, scale="absolute"), PAYLOAD)
        slow = reference.algorithm_5(gradients, _pool(key, PAYLOAD, size, 1.1, used), reading="clamped")
        for a, b in zip(jax.tree.leaves(fake), slow, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_larger_pool_is_nearer():
    gradients = [np.asarray(g) for g in jax.tree.leaves(PAYLOAD)]

    def distance(size):
        fake = _applied(fake_gradients(pool_size=size), PAYLOAD)
        return np.linalg.norm(reference.flat(fake) - np.concatenate([g.ravel() for g in gradients]))

    assert distance(500) < distance(1)


RATIOS, BITS = (0.1, 0.3, 0.5, 0.7, 0.9), (32.0, 16.0, 8.0, 4.0, 1.0)
EPSILONS, NOISES, RELATIVE = (1e5, 1e4, 1e3, 1e2, 10.0, 5.0, 1.0, 0.1), (1e-4, 1e-3, 1e-2, 1e-1), (0.1, 0.3, 1.0, 3.0)
RATES = (1e-2, 1e-3, 1e-4)
#: Strengths that the papers sweep, from weak to strong.
SWEPT = {
    "soteria": RATIOS, "outpost": RATIOS, "quantization": BITS, "stochastic_quantization": BITS,
    "guardian": (0.1, 1.0, 10.0, 100.0, 1000.0), "dp_sgd": EPSILONS, "adaptive_dp": EPSILONS[:4],
    "dp_soteria": EPSILONS[:4], "adaptive_dp_soteria": EPSILONS[:4], "dp_update": EPSILONS, "gaussian": NOISES,
    "laplace": NOISES, "magnitude_noise": RELATIVE, "cancelling_noise": RELATIVE,
    "sparsification": (50.0, 20.0, 10.0, 5.0, 1.0), "error_feedback": (50.0, 20.0, 10.0, 5.0, 1.0),
    "feature_dropout": (0.1, 0.3, 0.5), "withhold_top": (20.0, 50.0, 80.0), "encrypt_top": (20.0, 40.0, 60.0, 80.0),
    "encrypt_bottom": (20.0, 40.0, 60.0, 80.0), "adam_step": RATES, "adamw_step": RATES,
}  # fmt: skip


def test_named_defenses_sweep_what_the_papers_sweep():
    assert {name: entry.strengths for name, entry in CLIENT_DEFENSES.items()} == SWEPT
    private = {name for name, entry in CLIENT_DEFENSES.items() if entry.private}
    assert private == {"dp_sgd", "adaptive_dp", "dp_soteria", "adaptive_dp_soteria", "dp_update"}
    assert {name for name, entry in CLIENT_DEFENSES.items() if entry.of_rate} == {"adam_step", "adamw_step"}
    assert {name for name, entry in CLIENT_DEFENSES.items() if entry.memory} == {"error_feedback"}
    assert {name: entry.neighbours for name, entry in CLIENT_DEFENSES.items() if entry.neighbours} == {
        "cancelling_noise": 1
    }


def test_named_defenses_are_those_that_their_number_asks_for():
    key, rows = jax.random.key(0), {"w": jnp.linspace(-3.0, 6.0, 10)}
    for name, strength, same in (
        ("quantization", 4.0, quantize(4)),
        ("stochastic_quantization", 4.0, quantize(4, stochastic=True)),
        ("gaussian", 0.3, gaussian_noise(0.3)),
        ("laplace", 0.3, laplace_noise(0.3)),
        ("magnitude_noise", 0.3, magnitude_noise(0.3)),
        ("sparsification", 30.0, sparsify(30.0)),
        ("error_feedback", 30.0, sparsify(30.0, error_feedback=True)),
        ("withhold_top", 30.0, withhold_top(30.0)),
        ("encrypt_top", 30.0, withhold_top(30.0, encrypted=True)),
        ("encrypt_bottom", 20.0, sparsify(80.0)._replace(place="server_view")),
    ):
        found = client_defense(name, strength)
        assert found.place == same.place
        one, other = jax.jit(lambda rows, two=(found, same): [of.apply(key, rows)["w"] for of in two])(rows)
        np.testing.assert_array_equal(one, other, err_msg=name)
        for a, b in zip(jax.tree.leaves(found.init(rows)), jax.tree.leaves(same.init(rows)), strict=True):
            np.testing.assert_array_equal(a, b)
    sigma = noise_multiplier_shorthand(7.0, 1e-5)
    of_examples = Clipped(1.0, examples=True), GaussianNoise(sigma, of_sum=True)
    assert client_defense("dp_sgd", 7.0).mechanism == Mechanism(*of_examples)
    assert client_defense("dp_soteria", 7.0).mechanism == Mechanism(*of_examples, zeroes=True)
    decaying = of_examples[0], GaussianNoise(sigma, 0.99, of_sum=True)
    assert client_defense("adaptive_dp", 7.0).mechanism == Mechanism(*decaying)
    assert client_defense("adaptive_dp_soteria", 7.0).mechanism == Mechanism(*decaying, zeroes=True)
    assert client_defense("dp_update", 7.0).mechanism == Mechanism(Clipped(1.0), GaussianNoise(sigma))
    # Ciphertexts are also sent; dropped entries are not.
    assert bits_on_the_wire(client_defense("encrypt_bottom", 20.0), rows) == 320
    assert bits_on_the_wire(client_defense("sparsification", 80.0), rows) == 8 * 32 + 10


def test_named_defenses_are_refused_to_clients_that_have_no_place_for_them():
    inside, mixing = "needs one local step in all, got 2", "batch normalisation mixes them"
    for name, strength, steps, statistics in (
        ("dp_sgd", 1.0, inside, mixing),
        ("feature_dropout", 0.5, inside, mixing),
        ("dp_soteria", 1.0, inside, mixing),
        ("dp_update", 1.0, None, "has no epsilon here, since the client also sends"),
        ("soteria", 0.5, None, None),
        ("adam_step", 1e-3, inside, None),
        ("gaussian", 0.1, None, None),
    ):
        for options, message in (({"local_steps": 2}, steps), ({"mixes_examples": True}, statistics)):
            if message is None:
                client_defense(name, strength, **options)
            else:
                with pytest.raises(ValueError, match=message):
                    client_defense(name, strength, **options)
        client_defense(name, strength)
    with pytest.raises(ValueError, match=r"bits must be an integer, got 8\.5"):
        client_defense("quantization", 8.5)


def test_a_mechanism_is_what_others_can_tell():
    for defense, mechanism in (
        (clipped_gaussian(2.0, 0.25), Mechanism(Clipped(2.0), GaussianNoise(0.5))),
        (clipped_gaussian(2.0, 0.0), Mechanism(Clipped(2.0))),
        (dp_sgd(2.0, 0.25), Mechanism(Clipped(2.0, examples=True), GaussianNoise(0.5, of_sum=True))),
        (dp_sgd(2.0, 0.0), Mechanism(Clipped(2.0, examples=True))),
        (dp_sgd(2.0, 0.25, expected_batch=3.0), None),
        (gaussian_noise(0.3), Mechanism(noise=GaussianNoise(0.3))),
        (laplace_noise(0.3), Mechanism(noise=LaplaceNoise(0.3))),
        (laplace_noise(0.3, place="cut_gradient"), None),
        (magnitude_noise(0.3), Mechanism(noise=ProportionalNoise(0.3))),
        (outpost(0.5, noise_scale=0.0, decay=0.0), Mechanism(zeroes=True)),
        (outpost(0.5), None),
        (soteria(0.5), Mechanism(zeroes=True)),
        (composed(dp_sgd(), guardian(1.0)), None),
        (composed(dp_sgd(), feature_dropout(0.5)), None),
        (composed(dp_sgd(expected_batch=2.0), soteria(0.5)), None),
        (composed(dp_sgd(), chain(soteria(0.5), soteria(0.5))), None),
    ):
        assert defense.mechanism == mechanism
    noise = outpost(0.5, noise_scale=0.4, decay=0.0).mechanism.noise
    assert noise.deviation(jnp.array([0.1, 0.3])) == pytest.approx(0.4 * 0.02)
    np.testing.assert_array_equal(noise.kept(jnp.array([1.0, -4.0, 3.0, 2.0])), [False, True, True, False])


def test_the_noise_multiplier_is_the_classical_one():
    assert classical_noise_multiplier(0.5, 1e-5) == pytest.approx(np.sqrt(2 * np.log(1.25e5)) / 0.5, rel=1e-6)


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
        (classical_noise_multiplier, {"epsilon": 0, "delta": 1e-5}, "epsilon must be > 0"),
        (classical_noise_multiplier, {"epsilon": 1, "delta": 1}, "delta must be < 1, got 1"),
        (classical_noise_multiplier, {"epsilon": 1, "delta": 0}, "delta must be > 0"),
    ):
        with pytest.raises(ValueError, match=match):
            build(**options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: soteria(None), "ratio must be a number, got a NoneType: None"),
        (lambda: withhold_top("5"), "percent must be a number, got a str: '5'"),
        (lambda: fake_gradients(pool_size=1.5), "pool_size must be a whole number, got 1.5"),
    ],
)
def test_what_is_no_number_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: jax.tree.map(jnp.mean, tree), r"must keep the shapes .* makes \(\) of \(3,\) in a"),
        (lambda tree: {"b": tree["a"]}, "must keep the payload's tree, and changes a, b"),
    ],
)
def test_a_defense_that_changes_shapes_is_refused_before_it_is_broadcast_over_the_weights(change, message):
    changing = Defense("payload", optax.stateless(lambda tree, _: change(tree)))
    with pytest.raises(ValueError, match=message):
        changing.apply(jax.random.key(0), {"a": jnp.ones(3)})


def test_complex_numbers_are_refused():
    defense = per_leaf("payload", lambda key, leaf: leaf * 1j)
    with pytest.raises(ValueError, match="must give real numbers, and makes complex ones in"):
        defense.apply(jax.random.key(0), PAYLOAD)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: per_leaf("payload", lambda leaf: leaf),
            r"change must be a function of \(key, leaf\), got .* \(leaf",
        ),
        (lambda: per_leaf("payload", 0.1), "change must be a function, got a float"),
        (
            lambda: stateless("payload", lambda key, payload, state: payload),
            r"update must be a function of \(key, payload, \*\*extra\), got one of \(key, payload, state\)",
        ),
        (lambda: stateless("payload", lambda key, payload: payload), r"update must be .* got one of \(key, payload\)"),
    ],
)
def test_a_function_that_takes_other_arguments_is_refused_when_the_defense_is_made(made, message):
    with pytest.raises(ValueError, match=message):
        made()


def test_a_transform_that_makes_nan_or_returns_no_state_is_named():
    payload = {"a": jnp.ones(3)}
    with pytest.raises(FloatingPointError, match=r"the transform of a defense makes of a finite payload: .*\['a'\]"):
        per_leaf("payload", lambda key, leaf: jnp.log(leaf - 2)).apply(jax.random.key(0), payload)
    without_state = optax.GradientTransformationExtraArgs(lambda _: (), lambda updates, *_, **__: updates)
    with pytest.raises(ValueError, match="must return a payload and its new state, a tuple of two, got a dict"):
        Defense("payload", without_state).apply(jax.random.key(0), payload)
