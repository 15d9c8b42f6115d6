"""A stated defense explains its changes to an update, and an impossible statement is noticed."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import sent_by

from jaxleak import attacks, audit, models
from jaxleak._base import Batch
from jaxleak.attacks import adaptive
from jaxleak.audit._checks.contents import check_contents
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._checks.statement import check_statement
from jaxleak.defenses import client_defense
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, Mechanism
from jaxleak.protocols import ClientShare

#: Per kind of defense: a strength, a stated strength that would have changed more, and name and status of the finding.
CHECKED = {
    "sparsification": (50.0, 10.0, "stated share", "suspicious"),
    "quantization": (8.0, 4.0, "stated bits", "suspicious"),
    "stochastic_quantization": (4.0, 1.0, "stated bits", "suspicious"),
    "dp_update": (1e2, 1e5, "norm of the clipped update", "failed"),
}


@pytest.fixture(scope="module")
def client():
    """A client of three images with an update of norm 3 and a layer of more than 2000 entries."""
    model = models.mlp((8, 8, 1), 10, widths=(40,))
    variables, _, gradient = sent_by(model, images=3)
    norm = np.sqrt(sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(gradient)))
    return model, variables, jax.tree.map(lambda leaf: 3 * leaf / norm, gradient)


@pytest.mark.parametrize("kind", CHECKED)
def test_a_statement_is_believed_where_it_can_be(client, kind):
    _, variables, gradient = client
    right, wrong, name, status = CHECKED[kind]
    for seed in range(3):
        sent = client_defense(kind, right).apply(jax.random.key(seed), gradient)
        (found,) = check_statement(client_defense(kind, right), sent, variables, FULL)
        assert (found.name, found.status) == (name, "passed")
        (found,) = check_statement(client_defense(kind, wrong), sent, variables, FULL)
        assert (found.name, found.status) == (name, status)
        assert "--strength" in found.option
        contents = check_contents(sent, variables, client_defense(kind, right))
        assert {finding.status for finding in contents} == {"passed"}
    assert check_statement(None, sent, variables, FULL) == []
    noisy = client_defense("gaussian", 0.1).apply(jax.random.key(0), gradient)
    assert check_statement(client_defense("gaussian", 0.1), noisy, variables, FULL) == []


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_an_array_without_the_noise_that_is_stated_is_refused(client, kind):
    """Units that are dead for the whole batch leave zeros; noise leaves none, and its rounding to 16 bits only few."""
    _, variables, gradient = client
    defense = client_defense(kind, 1e-2)
    sent = defense.apply(jax.random.key(0), gradient)
    for arrived in (sent, jax.tree.map(lambda leaf: leaf.astype(jnp.float16).astype(jnp.float32), sent)):
        assert not [f for f in check_statement(defense, arrived, variables, FULL) if f.status != "passed"]
    bare = {**sent, "dense_0": {**sent["dense_0"], "kernel": gradient["dense_0"]["kernel"]}}
    (found,) = check_statement(defense, bare, variables, FULL)
    assert (found.name, found.status) == ("noise on every entry", "failed")
    zero = int((gradient["dense_0"]["kernel"] == 0).sum())
    assert zero > 100
    assert f"dense_0/kernel has {zero} entries of 2560" in found.evidence
    clipping_alone = client_defense(kind, 1e-6)
    assert check_statement(clipping_alone, bare, variables, FULL) == []


def test_zeros_that_rounding_to_weights_leaves_are_no_missing_noise(client):
    """Large weights lose a small step to rounding, and its noise too."""
    _, variables, gradient = client
    rate, defense = 1e-4, client_defense("gaussian", 1e-2)
    sent = defense.apply(jax.random.key(0), gradient)
    large = jax.tree.map(lambda leaf: leaf + 1.0, variables)
    arrived = jax.tree.map(lambda w, g: (w - (w - rate * g)) / rate, large["params"], sent)
    assert float((arrived["dense_0"]["kernel"] == 0).mean()) > 0.01
    assert check_statement(defense, arrived, large, Precision(scale=1 / rate, of_weights=True)) == []
    (found,) = check_statement(defense, arrived, large, FULL)
    assert found.name == "noise on every entry"


def test_noise_on_a_sum_is_a_bth_of_it_in_the_mean(client):
    _, variables, gradient = client
    bare = jax.tree.map(lambda leaf: leaf.at[..., 0].set(0.0), gradient)
    defense = client_defense("dp_sgd", clip=100, noise_multiplier=1e-4)
    names = [[f.name for f in check_statement(defense, bare, variables, FULL, samples=n)] for n in (1, 10_000)]
    assert names == [["norm of the clipped update", "noise on every entry"], ["norm of the clipped update"]]


def test_an_update_that_was_clipped_at_another_norm_is_refused_with_the_remedy(client):
    model, variables, gradient = client
    facts = {"defense": "dp_update", "noise_multiplier": 0, "batch_size": 3, "minutes": 1e-4}
    verdict = audit.update(model, variables, gradient, **facts)
    assert verdict.verdict == "inputs inconsistent"
    assert "the client clips at another norm than 1" in verdict.reasons[0]
    assert "--clip" in str(verdict.findings)
    (found,) = check_statement(client_defense("dp_update", clip=3, noise_multiplier=0), gradient, variables, FULL)
    assert found.status == "passed"


def test_the_clip_is_that_of_the_statement(client):
    """If no example reaches the clip, an update divided by the clip is not that of a client with a clip of 1."""
    model, variables, _ = client
    assert client_defense("dp_update", clip=10, noise_multiplier=0).mechanism == Mechanism(Clipped(10), None)
    dp_sgd = client_defense("dp_sgd", clip=10, noise_multiplier=0.8).mechanism
    assert dp_sgd == Mechanism(Clipped(10, examples=True), GaussianNoise(8.0, of_sum=True))
    by_epsilon = client_defense("dp_sgd", 1e3, clip=2).mechanism.noise.deviation
    assert by_epsilon == 2 * client_defense("dp_sgd", 1e3).mechanism.noise.deviation
    settings = attacks.presets.fedleak(2)
    known = adaptive.informed(
        client_defense("dp_update", clip=10, noise_multiplier=0), model, ClientShare(model), settings, batch_size=3
    )
    batch = Batch(jnp.full((3, 1, 8, 8, 1), 0.5), jnp.arange(3), jnp.arange(3))
    chex.assert_trees_all_close(known.share(variables, batch), ClientShare(model)(variables, batch))


@pytest.mark.parametrize(
    ("kind", "given", "match"),
    [
        ("gaussian", {"strength": 1, "clip": 2}, r"clip is of a defense that clips \(dp_sgd.*got 2 with gaussian"),
        ("gaussian", {"noise_multiplier": 2}, "noise_multiplier is of a defense that clips"),
        ("dp_sgd", {"strength": 1, "noise_multiplier": 2}, "give one of them, got 1 and 2"),
        ("dp_sgd", {"clip": 2}, "strength of dp_sgd must be given: its epsilon .*or noise_multiplier"),
        ("gaussian", {}, r"strength of gaussian must be given: its standard deviation \(--strength\)$"),
        ("dp_sgd", {"noise_multiplier": 1, "clip": 0}, "clip must be > 0"),
        ("dp_sgd", {"noise_multiplier": -1}, "noise_multiplier must be >= 0"),
    ],
)  # fmt: skip
def test_a_statement_that_is_incomplete_or_of_another_kind_is_refused(kind, given, match):
    with pytest.raises(ValueError, match=match):
        client_defense(kind, **given)
    with pytest.raises(ValueError, match=r"clip must be given with the defense that it is of, got 2 alone"):
        audit.update(None, None, {"w": np.ones(3)}, batch_size=1, clip=2)


def test_zeros_and_few_values_are_put_down_to_the_defense_where_one_is_stated(client):
    _, variables, gradient = client
    few = client_defense("sparsification", 0.1).apply(jax.random.key(0), gradient)
    coarse = client_defense("quantization", 4.0).apply(jax.random.key(0), gradient)
    for sent, kind, strength, name in (
        (few, "sparsification", 0.1, "zeros"),
        (coarse, "quantization", 4.0, "quantisation"),
    ):
        silent, told = (
            {finding.name: finding for finding in check_contents(sent, variables, defense)}[name]
            for defense in (None, client_defense(kind, strength))
        )
        assert (silent.status, told.status) == ("suspicious", "passed")
        assert "--defense" in silent.option
        assert "defense that is stated" in told.evidence


def test_values_that_the_rounding_of_weights_moves_apart_count_once(client):
    _, variables, gradient = client
    defense, rate = client_defense("quantization", 4.0), 0.01
    sent = defense.apply(jax.random.key(0), gradient)
    after = jax.tree.map(lambda w, g: w - rate * g, variables["params"], sent)
    read = jax.tree.map(lambda w, a: (w - a) / rate, variables["params"], after)
    (found,) = check_statement(defense, read, variables, FULL)
    assert found.status == "suspicious"
    (found,) = check_statement(defense, read, variables, Precision(scale=1 / rate, of_weights=True))
    assert found.status == "passed"


def test_entries_that_tie_are_all_sent_and_shares_of_tensors_are_rounded_up(client):
    _, variables, gradient = client
    ones = jax.tree.map(jnp.ones_like, gradient)
    (found,) = check_statement(client_defense("sparsification", 10.0), ones, variables, FULL)
    assert found.status == "passed"
    each = jax.tree.map(lambda leaf: client_defense("sparsification", 10.0).apply(jax.random.key(0), leaf), gradient)
    (found,) = check_statement(client_defense("sparsification", 10.0), each, variables, FULL)
    assert found.status == "passed"


def test_an_audit_without_time_does_not_suspect_its_inputs(client):
    model, variables, gradient = client
    sent = client_defense("gaussian", 1.0).apply(jax.random.key(0), gradient)
    verdict = audit.update(model, variables, sent, batch_size=3, defense="gaussian", strength=1.0, minutes=1e-4)
    assert verdict.verdict == "not attacked"
    assert "No time was left for FedLeak by an attacker who knows the defense." in verdict.reasons
    assert not any("a search that failed" in reason for reason in verdict.reasons)
    (explained,) = (finding for finding in verdict.findings if finding.name == "gradient explained")
    assert explained.status == "not applicable"
