"""Labels that a defended update proves: only what the signs that survive the stated defense can prove."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import perceptron, sent_by

from jaxleak import audit
from jaxleak.audit._checks.defended import certain
from jaxleak.audit._checks.equations import check_defended_head
from jaxleak.audit._checks.head import Head, head_of
from jaxleak.audit._checks.labels import defended_labels
from jaxleak.audit._checks.precision import Precision
from jaxleak.defenses import CLIENT_DEFENSES, client_defense
from jaxleak.defenses.mechanisms import Mechanism, Replayed
from jaxleak.protocols import ClientShare


@pytest.fixture(scope="module")
def client():
    """A client of three images of classes 3, 4 and 5."""
    model = perceptron()
    variables, batch, gradient = sent_by(model, images=3)
    alone = jax.jit(
        jax.vmap(lambda x, y: ClientShare(model)(variables, batch._replace(x=x[None], y=y[None], index=jnp.zeros(1))))
    )
    return model, variables, batch, gradient, alone(batch.x, batch.y)


def defended(client, defense, key):
    """The gradient after the defense; any other clients send the negated gradient, where all signs are wrong."""
    model, variables, batch, gradient, examples = client
    known = {"variables": variables, "x": batch.x[:, 0], "y": batch.y}
    if defense.place == "per_example_gradient":
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), defense.apply(key, examples, model=model, **known, round=0))
    if defense.place == "client_payloads":
        payloads = jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), gradient)
        return jax.tree.map(lambda leaf: leaf[0], _applied(defense, model, key, payloads, known))
    if defense.place == "representation":
        return _applied(defense, model, key, gradient, known)
    return defense.apply(key, gradient, model=model, **known, round=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _applied(defense, model, key, payload, known):
    """Apply a defense in one program for all keys."""
    return defense.apply(key, payload, model=model, **known, round=0)


#: Strengths by kind at which the proof holds. Defenses of other kinds leave no information on signs.
STANDS = {
    "soteria": 0.5, "outpost": 0.5, "quantization": 8.0, "stochastic_quantization": 8.0, "dp_sgd": 1e5,
    "adaptive_dp": 1e5, "dp_soteria": 1e5, "adaptive_dp_soteria": 1e5, "dp_update": 1e5, "gaussian": 1e-3,
    "laplace": 1e-3, "magnitude_noise": 0.1, "sparsification": 20.0, "encrypt_bottom": 60.0,
    "adam_step": 1e-3, "adamw_step": 1e-3,
}  # fmt: skip


#: One kind of defense for every way to change an entry; other kinds change entries in the same ways.
EVERY_WAY = (
    *("gaussian", "laplace", "magnitude_noise", "sparsification"),
    *("dp_update", "feature_dropout", "error_feedback"),
)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in EVERY_WAY else pytest.mark.slow) for kind in CLIENT_DEFENSES]
)
def test_no_defense_lets_a_label_be_proven_that_is_not_there(client, kind):
    counts = np.bincount(client[2].y, minlength=10)
    for strength in CLIENT_DEFENSES[kind].strengths:
        defense = client_defense(kind, strength)
        for seed in range(4):
            found = defended_labels(_head(client, defended(client, defense, jax.random.key(seed))), 3, defense)
            assert (found.proven <= found.if_stated).all()
            assert (found.if_stated <= counts).all()
            assert bool(found.withheld) != bool(found.proven.any())


@pytest.mark.parametrize("kind", CLIENT_DEFENSES)
def test_a_defense_that_leaves_signs_leaves_the_proof(client, kind):
    defense = client_defense(kind, STANDS.get(kind, CLIENT_DEFENSES[kind].strengths[0]))
    found = defended_labels(_head(client, defended(client, defense, jax.random.key(0))), 3, defense)
    assert found.proven.any() == (kind in STANDS)
    assert found.stated == (("defense",) if kind in STANDS or "neither the defense" in found.withheld else ())


def _head(client, payload):
    model, variables, *_ = client
    return head_of(model, payload, variables)


@pytest.mark.parametrize(
    ("kind", "strength", "error"),
    [
        ("gaussian", 0.01, 0.06),
        ("laplace", 0.01, 0.2),
        ("quantization", 4, 0.5 / 14),
        ("stochastic_quantization", 4, 0.5 / 7),
        ("sparsification", 10, 0.0),
        ("dp_sgd", 1e4, 6 * client_defense("dp_sgd", 1e4).mechanism.noise.deviation),
    ],
)
def test_an_entry_counts_beyond_what_the_stated_defense_can_move_it(kind, strength, error):
    sent = np.array([-0.5, 0.3, 0.2, 0.0])
    left = certain(Head(np.zeros((2, 4)), sent, np.zeros((2, 4)), np.zeros(4)), client_defense(kind, strength))
    np.testing.assert_allclose(left.bias_gradient, np.sign(sent) * np.maximum(np.abs(sent) - error, 0))


def test_what_is_relative_to_an_entry_keeps_its_sign_up_to_a_sixth():
    head = Head(np.zeros((2, 2)), np.array([-0.5, 0.5]), np.zeros((2, 2)), np.zeros(2))
    np.testing.assert_allclose(
        certain(head, client_defense("magnitude_noise", 0.1)).bias_gradient, [-0.5 / 1.6, 0.5 / 1.6]
    )
    assert certain(head, client_defense("magnitude_noise", 0.2)) is None


@pytest.mark.parametrize(
    "mechanism",
    [None, Mechanism(Replayed()), Mechanism(Replayed(random=True)), Mechanism(zeroes=True, carries=True)],
)  # fmt: skip
def test_a_mechanism_that_bounds_nothing_proves_nothing(mechanism):
    head = Head(np.zeros((2, 2)), np.array([-0.5, 0.5]), np.zeros((2, 2)), np.zeros(2))
    defense = client_defense("sparsification", 10)._replace(mechanism=mechanism)
    assert "changed entries by any amount" in defended_labels(head, 3, defense).withheld


def test_a_verdict_grants_the_defense_that_is_stated_or_says_why_it_claims_no_label(client):
    model, variables, _, gradient, _ = client
    sent = client_defense("sparsification", 20.0).apply(jax.random.key(0), gradient)
    facts = {"batch_size": 3, "minutes": 1e-4}

    def audited(**stated):
        return audit.update(model, variables, sent, **facts, **stated)

    told = audited(defense="sparsification", strength=20.0)
    assert told.headline == "leaks labels"
    assert "without momentum and weight decay, and the defense is as stated, the head's" in told.reasons[0]
    assert "the client's defense breaks the equations that count them" in told.reasons[0]
    unknown = audited(defense="other")
    assert unknown.headline == "not attacked"
    assert unknown.reasons[-1].startswith("No label is claimed: the client's defense is not known, and")
    sent = client_defense("gaussian", 0.2).apply(jax.random.key(0), gradient)
    loud = audit.update(model, variables, sent, **facts, defense="gaussian", strength=0.2)
    assert loud.reasons[-1].startswith("No label is claimed: no entry of the head's bias gradient is so far below zero")


def test_more_labels_than_samples_are_not_those_of_the_stated_defense(client):
    model, variables, _, gradient, _ = client
    sent = client_defense("quantization", 8.0).apply(jax.random.key(0), jax.tree.map(jnp.negative, gradient))
    verdict = audit.update(model, variables, sent, batch_size=3, defense="quantization", strength=8.0, minutes=1e-4)
    (wrong,) = (finding for finding in verdict.findings if finding.status == "failed")
    assert wrong.name == "labels in the batch"
    assert "a defense that moves entries by more than is stated" in wrong.cause


@pytest.mark.parametrize(("kind", "right", "wrong"), [("gaussian", 1e-2, 1e-3), ("dp_update", 1e3, 1e5)])
def test_more_noise_than_is_stated_is_refused(client, kind, right, wrong):
    model, variables, _, gradient, _ = client
    small = jax.tree.map(lambda leaf: 0.1 * leaf, gradient)  # shorter than every clip, and consistent with all noise
    for seed in range(3):
        sent = client_defense(kind, right).apply(jax.random.key(seed), small)
        for strength, status in ((right, "passed"), (wrong, "failed")):
            found = check_defended_head(_head(client, sent), 3, client_defense(kind, strength), uneven=False)
            assert (found[0].name, found[0].status) == ("stated noise", status)
            assert all(finding.status in ("passed", "not applicable") for finding in found[1:])
    verdict = audit.update(model, variables, sent, batch_size=3, defense=kind, strength=wrong, minutes=1e-4)
    assert "its strength is not in units of the gradient of the mean loss" in " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("kind", "added", "stated"),
    [("gaussian", 1e-4, 1e-2), ("laplace", 1e-4, 1e-2), ("dp_sgd", 1e5, 1e3)],
)
def test_less_noise_than_is_stated_is_refused(client, kind, added, stated):
    """An audit that trusts absent noise would mislead its attacker and call the client safe."""
    model, variables, _, gradient, _ = client
    examples = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (3, *leaf.shape)), gradient)
    for seed in range(3):
        for strength, status in ((stated, "passed"), (added, "failed")):
            defense = client_defense(kind, strength)
            if kind == "dp_sgd":
                sent = jax.tree.map(lambda leaf: leaf.mean(0), defense.apply(jax.random.key(seed), examples))
            else:
                sent = defense.apply(jax.random.key(seed), gradient)
            found = check_defended_head(_head(client, sent), 3, client_defense(kind, stated), uneven=False)
            assert (found[0].name, found[0].status) == ("stated noise", status)
    assert "there is less noise than is stated" in found[0].cause
    verdict = audit.update(model, variables, sent, batch_size=3, defense=kind, strength=stated, minutes=1e-4)
    assert verdict.verdict == "inputs inconsistent"


def test_noise_in_proportion_to_the_entries_shows_in_a_head_of_many_features():
    rng, stated = np.random.default_rng(0), client_defense("magnitude_noise", 0.3)
    of_softmax = rng.normal(size=(2, 10))
    of_softmax -= of_softmax.mean(axis=1, keepdims=True)
    for features in np.maximum(rng.normal(size=(20, 2, 256)), 0):
        gradient = features.T @ of_softmax
        for added, expected in ((0.3, "passed"), (0.03, "failed"), (0.0, "failed")):
            sent = gradient * (1 + added * rng.normal(size=gradient.shape))
            head = Head(sent, None, np.zeros_like(sent), None)
            (found,) = check_defended_head(head, 2, stated, uneven=False)
            assert (found.name, found.status) == ("stated noise", expected)
    assert "there is less noise than is stated" in found.cause


def test_noise_that_decays_from_round_to_round_may_be_small(client):
    """The round of an update is not stated, and the attacker assumes the first."""
    defense = client_defense("adaptive_dp", 1e3)
    (found, *_) = check_defended_head(_head(client, client[3]), 3, defense, uneven=False)
    assert (found.name, found.status) == ("stated noise", "suspicious")
    assert "the update is of a later round" in found.cause


def test_laplace_noise_of_two_classes_is_seldom_taken_for_less():
    """A sum of two Laplace variables is near zero more often than a Gaussian variable of the same deviation."""
    rng, features = np.random.default_rng(0), 64
    defense, zero = client_defense("laplace", 1.0), np.zeros(2)
    for _ in range(3000):
        noise = rng.laplace(size=(features, 2))
        (found, *_) = check_defended_head(Head(np.ones((features, 2)), zero, noise, zero), 3, defense, uneven=True)
        assert found.status == "passed"


def test_weights_in_16_bits_prove_nothing_behind_a_stated_defense_either(client):
    model, variables, _, gradient, _ = client
    after = jax.tree.map(lambda w, g: (w - 1e-3 * g).astype(jnp.bfloat16), variables["params"], gradient)
    facts = {"kind": "weights", "learning_rate": 1e-3, "batch_size": 3, "minutes": 1e-4}
    verdict = audit.update(model, variables, after, defense="sparsification", strength=100.0, **facts)
    assert verdict.verdict == "inputs inconsistent"
    assert "too coarse for what one step changes" in verdict.reasons[0]
    assert audit.update(model, variables, after, defense="other", **facts).verdict == "not attacked"


def test_an_entry_counts_beyond_what_rounding_can_move_it():
    sent = np.array([-0.5, 0.5])
    head = Head(np.zeros((2, 2)), sent, np.zeros((2, 2)), np.zeros(2), Precision("bfloat16", 2.0**-8))
    left = certain(head, client_defense("sparsification", 10.0))
    np.testing.assert_allclose(left.bias_gradient, sent - np.sign(sent) * head.bias_rounding)
    assert head.bias_rounding > 1e-3


def test_noise_on_one_logit_does_not_show_in_its_sums():
    sent = np.array([0.5, -0.5])
    head = Head(np.outer(np.ones(400), sent), sent, np.zeros((400, 2)), np.zeros(2))
    assert check_defended_head(head, 1, client_defense("gaussian", 0.01), uneven=False)[0].status == "failed"
    alone = check_defended_head(head._replace(one_logit=True), 1, client_defense("gaussian", 0.01), uneven=False)
    assert [finding.status for finding in alone] == ["not applicable", "passed"]


def test_noise_by_the_weights_of_one_logit_is_that_of_its_own_bias():
    sent, weights = np.array([0.5, -0.5]), np.array([0.0, 8.0])
    head = Head(np.zeros((4, 2)), sent, np.zeros((4, 2)), weights)
    outpost = client_defense("outpost", 0.5)
    assert not certain(head, outpost).bias_gradient.any()
    np.testing.assert_array_equal(certain(head._replace(one_logit=True), outpost).bias_gradient, sent)
