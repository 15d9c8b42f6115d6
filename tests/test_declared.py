"""Mechanisms that defenses declare, compared with the computations of the defenses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import defenses
from jaxleak.defenses import CLIENT_DEFENSES, check_mechanism, per_leaf
from jaxleak.defenses.mechanisms import (
    Clipped,
    GaussianNoise,
    LaplaceNoise,
    Mechanism,
    ProportionalNoise,
    Recomputed,
    Replayed,
)

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
UPLOAD = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in {"a": (40, 50), "b": (30,)}.items()}


def declaring(change, **mechanism):
    return per_leaf("payload", change, mechanism=Mechanism(**mechanism))


def gaussian(deviation):
    return lambda key, leaf: leaf + deviation * jax.random.normal(key, leaf.shape)


def laplace(scale):
    return lambda key, leaf: leaf + scale * jax.random.laplace(key, leaf.shape)


def proportional(deviation):
    return lambda key, leaf: leaf * (1 + deviation * jax.random.normal(key, leaf.shape))


def holes(key, leaf):
    return jnp.where(jnp.abs(leaf) > 1, leaf, 0)


#: Built-in defenses on the upload with a mechanism that a comparison covers in full.
COMPARED = {
    *("quantization", "dp_update", "gaussian", "laplace", "magnitude_noise", "sparsification", "withhold_top"),
}


@pytest.mark.parametrize("name", CLIENT_DEFENSES)
def test_built_in_defenses_do_what_they_declare(name):
    for strength in CLIENT_DEFENSES[name].strengths[::2]:
        defense = CLIENT_DEFENSES[name].build(strength)
        assert bool(check_mechanism(defense, UPLOAD, key=KEY)) == (name in COMPARED)


@pytest.mark.parametrize(
    "defense",
    [
        declaring(gaussian(0.1), noise=GaussianNoise(0.1)),
        declaring(gaussian(0.1), noise=GaussianNoise(0.105)),
        declaring(laplace(0.1), noise=LaplaceNoise(0.1)),
        declaring(proportional(0.1), noise=ProportionalNoise(0.1)),
        declaring(holes, zeroes=True),
        declaring(lambda key, leaf: holes(key, gaussian(0.1)(key, leaf)), noise=GaussianNoise(0.1), zeroes=True),
        declaring(lambda key, leaf: jnp.sign(leaf), simulation=Replayed()),
        declaring(lambda key, leaf: leaf * jax.random.bernoulli(key, 0.3, leaf.shape), zeroes=True),
        defenses.clipped_gaussian(1.0, 0.1),
    ],
)
def test_right_declarations_pass(defense):
    assert check_mechanism(defense, UPLOAD, key=KEY)


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        (declaring(gaussian(0.1), noise=GaussianNoise(0.12)), "deviation of 0.12, and the defense adds noise of 0.09"),
        (declaring(gaussian(0.1), noise=GaussianNoise(0.08)), "deviation of 0.08, and the defense adds noise of 0.09"),
        (declaring(gaussian(0.1), noise=LaplaceNoise(0.1)), "deviation of 0.141, and the defense adds noise of 0.09"),
        (
            declaring(lambda key, leaf: leaf, noise=GaussianNoise(0.1)),
            "deviation of 0.1, and the defense adds noise of 0 to the leaf \\['a'\\]$",
        ),
        (declaring(gaussian(0.1), noise=ProportionalNoise(0.1)), "deviation of 0.1, and the defense adds"),
        (
            declaring(gaussian(0.1), noise=GaussianNoise(0.115)),
            "deviation of 0.115, and the defense adds noise of 0.09",
        ),
        (declaring(gaussian(0.1), noise=GaussianNoise(float("nan"))), "finite standard deviation > 0, got nan"),
        (declaring(gaussian(0.1), noise=GaussianNoise(0.0)), "finite standard deviation > 0, got 0"),
        (
            declaring(
                lambda key, leaf: leaf + 0.1 * jnp.sqrt(jnp.mean(leaf**2)) * jax.random.normal(key, leaf.shape),
                noise=GaussianNoise(0.1),
            ),
            "deviation of 0.1, and the defense adds noise of",
        ),
        (declaring(lambda key, leaf: jnp.clip(leaf, -5, 5)), "the defense changes them"),
        (declaring(lambda key, leaf: jnp.where(jnp.abs(leaf) < 1e-3, 0, leaf)), "does not say zeroes=True"),
        (declaring(lambda key, leaf: -leaf, simulation=Clipped(1.0)), "the defense changes them"),
        (
            defenses.clipped_gaussian(1.0, 0.1)._replace(
                mechanism=Mechanism(simulation=Clipped(100.0), noise=GaussianNoise(0.1))
            ),
            "the client's own but for its noise, and the defense changes them",
        ),
        (
            declaring(lambda key, leaf: gaussian(0.1)(key, leaf) if leaf.ndim > 1 else leaf, noise=GaussianNoise(0.1)),
            "deviation of 0.1, and the defense adds noise of 0 to the leaf \\['b'\\]$",
        ),
        (
            declaring(gaussian(0.1)),
            "declares nothing random, and what arrives differs from key to key; declare the noise",
        ),
        (declaring(gaussian(0.1), simulation=Replayed()), "declares nothing random"),
        (declaring(holes), r"leaves entries out, and mechanism does not say zeroes=True"),
        (declaring(lambda key, leaf: 0.99 * leaf), "are the client's own, and the defense changes them; declare a sim"),
        (
            declaring(lambda key, leaf: gaussian(0.1)(key, 0.5 * leaf), noise=GaussianNoise(0.1)),
            "are the client's own but for its noise, and the defense changes them",
        ),
        (declaring(lambda key, leaf: jnp.where(leaf > 1, 1.0, leaf), zeroes=True), "the defense changes them"),
    ],
)
def test_wrong_declarations_are_refused(defense, message):
    with pytest.raises(ValueError, match=message):
        check_mechanism(defense, UPLOAD, key=KEY)


@pytest.mark.parametrize(
    ("defense", "why"),
    [
        (per_leaf("payload", gaussian(0.1)), "declares no mechanism"),
        (
            per_leaf("per_example_gradient", gaussian(0.1), mechanism=Mechanism(noise=GaussianNoise(9.0))),
            "acts at per_example_gradient",
        ),
        (declaring(gaussian(0.1), simulation=Clipped(1.0, examples=True)), "every example's gradient is clipped"),
        (declaring(gaussian(0.1), simulation=Recomputed()), "no check is known for Recomputed"),
        (declaring(gaussian(0.1), noise=GaussianNoise(9.0, of_sum=True)), "of a sum over the batch"),
        (declaring(gaussian(0.1), noise=GaussianNoise(0.1, decay=0.5)), "the noise decays"),
        (declaring(gaussian(0.1), simulation=Replayed(random=True)), "Replayed(random=True), whose law"),
        (
            declaring(gaussian(0.1), simulation=Replayed(random=True), noise=GaussianNoise(0.1)),
            "beside the declared noise",
        ),
        (declaring(lambda key, leaf: 0.5 * leaf, carries=True), "carried over from earlier rounds"),
        (declaring(lambda key, leaf: 0 * leaf, zeroes=True), "no entry arrives"),
    ],
)
def test_what_cannot_be_compared_is_not_and_the_reason_is_said(defense, why):
    found = check_mechanism(defense, UPLOAD, key=KEY)
    assert not found
    assert why in found.uncompared


def test_every_refusal_of_random_rounding_names_the_declaration_that_passes():
    def rounded(key, leaf):
        return jnp.floor(leaf / 0.5 + jax.random.uniform(key, leaf.shape)) * 0.5

    for mechanism in (
        Mechanism(),
        Mechanism(simulation=Replayed()),
        Mechanism(noise=GaussianNoise(0.2)),
        Mechanism(noise=ProportionalNoise(0.2)),
    ):
        with pytest.raises(ValueError, match=r"rounds at random, .*simulation=Replayed\(random=True\)$"):
            check_mechanism(per_leaf("payload", rounded, mechanism=mechanism), UPLOAD, key=KEY)
    passes = per_leaf("payload", rounded, mechanism=Mechanism(simulation=Replayed(random=True)))
    assert "law is not declared" in check_mechanism(passes, UPLOAD, key=KEY).uncompared


def rotated(key, leaf):
    """A random rotation of the rows of a matrix, which keeps all that their lengths and angles say."""
    return leaf @ jnp.linalg.qr(jax.random.normal(key, (leaf.shape[-1],) * 2))[0] if leaf.ndim == 2 else leaf


@pytest.mark.parametrize(
    ("change", "random", "blind"),
    [
        (rotated, True, True),
        (lambda key, leaf: leaf * jax.random.rademacher(key, leaf.shape), True, True),
        (lambda key, leaf: jax.random.permutation(jax.random.key(3), leaf, axis=-1, independent=True), False, True),
        (lambda key, leaf: jnp.sign(leaf), False, False),
        (lambda key, leaf: leaf + 5.0, False, False),
        (lambda key, leaf: 10 * leaf * jax.random.bernoulli(key, 0.1, leaf.shape), True, False),
        (gaussian(0.1), True, False),
    ],
    ids=["rotation", "random signs", "fixed permutation", "signs", "offset", "one entry in ten", "noise"],
)
def test_a_replay_is_blind_exactly_where_what_arrives_does_not_follow_what_is_sent(change, random, blind):
    found = check_mechanism(declaring(change, simulation=Replayed(random=random)), UPLOAD, key=KEY)
    assert bool(found.blind) == blind
    assert ("does not arrive as a similar change" in found.blind) == blind


def test_no_built_in_defense_blinds_who_replays_it():
    for bits in (8, 4, 1):
        for stochastic in (False, True):
            assert not check_mechanism(defenses.quantize(bits, stochastic=stochastic), UPLOAD, key=KEY).blind


def test_what_is_no_defense_is_refused():
    with pytest.raises(ValueError, match=r"defense must be a Defense, as defenses\.per_leaf makes"):
        check_mechanism(gaussian(0.1), UPLOAD, key=KEY)


def test_few_numbers_tell_little():
    wrong = declaring(gaussian(0.1), noise=GaussianNoise(0.15))
    assert check_mechanism(wrong, {"a": UPLOAD["a"][0, :8]}, key=KEY)
    with pytest.raises(ValueError, match=r"standard deviation of 0\.15"):
        check_mechanism(wrong, UPLOAD, key=KEY)


def test_clipping_is_simulated_and_its_noise_compared():
    def clipped(declared):
        return defenses.clipped_gaussian(1.0, 0.1)._replace(
            mechanism=Mechanism(simulation=Clipped(1.0), noise=GaussianNoise(declared))
        )

    assert check_mechanism(clipped(0.1), UPLOAD, key=KEY)
    with pytest.raises(ValueError, match=r"standard deviation of 0\.3"):
        check_mechanism(clipped(0.3), UPLOAD, key=KEY)
