"""The choice of an attack on aggregated gradients for an attacker who knows the defense."""

import functools

import jax
import jax.numpy as jnp
import pytest
import reference

from jaxleak import attacks, models
from jaxleak.attacks import adaptive, aggregated
from jaxleak.attacks.adaptive import _rounds
from jaxleak.defenses import CLIENT_DEFENSES, chain, fake_gradients, gaussian_noise
from jaxleak.defenses.mechanisms import Mechanism, RankedNoise

N, K = 20, 4
MODEL = models.all_dense((5,), parties=2, num_classes=3, width=8)
PLAN = attacks.plan_cafe_exact(MODEL, num_samples=N, batch_size=K)

#: Reading and unit to the attack that knows them, with its scale of kernels over biases (None: from its own samples).
KNOWN = {
    ("clamped", "absolute"): ("cafe_censored", {}),
    ("clamped", "tensor"): ("cafe_censored", {}),
    ("clamped", "gradient"): ("cafe_ordinal", {"reading": "clamped", "kernel_scale": 1.0}),
    ("paired", "tensor"): ("cafe_ordinal", {"reading": "paired", "kernel_scale": 1.0}),
    ("paired", "gradient"): ("cafe_ordinal", {"reading": "paired", "kernel_scale": None}),
    ("paired", "absolute"): (None, {}),
    ("printed", "absolute"): (None, {}),
    ("printed", "gradient"): (None, {}),
}


@pytest.fixture(scope="module")
def params():
    return reference.drawn(MODEL, seed=1)


@pytest.fixture
def made(monkeypatch):
    """A list of the names, plans and options of all attacks that are made."""
    found = []

    def noted(build, model, plan, **options):
        found.append((build.__name__, plan, options))
        return build(model, plan, **options)

    for build in (_rounds.cafe_censored, _rounds.cafe_ordinal):
        monkeypatch.setattr(_rounds, build.__name__, functools.partial(noted, build))
    return found


@pytest.mark.parametrize(("reading", "scale"), KNOWN)
def test_an_attack_follows_from_what_is_kept_and_in_which_unit(reading, scale, params, made):
    defense = fake_gradients(3, variance=2.0, reading=reading, scale=scale)
    name, expected = KNOWN[reading, scale]
    assert adaptive.rounds_attack(defense) == name
    if name is None:
        with pytest.raises(ValueError, match="must declare noise that is ordered like the gradient"):
            adaptive.informed_rounds(defense, MODEL, PLAN, params=params)
        return
    informed = adaptive.informed_rounds(defense, MODEL, PLAN, params=params, invert=False)
    ((built, plan, options),) = made
    assert (built, plan) == (name, informed.plan)
    assert options["invert"] is False
    if name == "cafe_censored":
        assert plan == PLAN
        return
    assert plan == PLAN._replace(output_rounds=2 * PLAN.output_rounds, feature_rounds=6 * 40)
    assert (options["variance"], options["sweeps"]) == (2.0, 6)
    if expected["kernel_scale"] is None:
        own = aggregated.kernel_to_bias_ratio(_rounds.own_gradient(MODEL, params, K))
        expected = expected | {"kernel_scale": own}
        assert own != 1.0
    assert {key: options[key] for key in expected} == expected


def test_a_mechanism_says_what_is_kept():
    capped, paired = fake_gradients(3, 2.0), fake_gradients(3, 2.0, reading="paired", scale="tensor")
    assert capped.mechanism == Mechanism(noise=RankedNoise("small", 2.0, "gradient"))
    assert paired.mechanism == Mechanism(noise=RankedNoise("none", 2.0, "tensor"))
    assert fake_gradients(3, reading="printed").mechanism is None


def test_small_entries_arrive_true_where_the_mechanism_says_so():
    gradient = jax.random.laplace(jax.random.key(1), (20, 10))
    sent = fake_gradients(1, scale="tensor").apply(jax.random.key(0), gradient)
    kept = sent == gradient
    assert 0.2 < kept.mean() < 0.99
    assert (jnp.sign(sent) == jnp.sign(gradient)).all()
    assert (jnp.abs(sent) <= jnp.abs(gradient)).all()
    none = fake_gradients(1, scale="tensor", reading="paired").apply(jax.random.key(0), gradient)
    assert not (none == gradient).any()
    assert (jnp.argsort(none.ravel()) == jnp.argsort(gradient.ravel())).all()


def test_defenses_that_order_no_noise_have_no_attacker_of_rounds():
    others = [known.build(known.strengths[0]) for known in CLIENT_DEFENSES.values()]
    for other in (*others, chain(fake_gradients(3), gaussian_noise(0.1))):
        assert adaptive.rounds_attack(other) is None
    assert adaptive.rounds_attack(chain(fake_gradients(3))) == "cafe_ordinal"
