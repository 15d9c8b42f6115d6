"""Claims that a verdict does not make: counts at a doubtful scale, safety without time for attacks, copies of one image
as several images, and contradictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import perceptron

from jaxleak import Batch, audit, capture, models, protocols
from jaxleak.audit._checks import Finding
from jaxleak.audit._checks.differences import said_of
from jaxleak.audit._checks.equations import RANK
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._verdict.update import _time_of_checks
from jaxleak.audit._verdict.verdict import Answer
from jaxleak.audit._verdict.warnings import contradicted, copied, out_of_range


@pytest.fixture(scope="module")
def client():
    """A client of twelve samples, in three local steps of four each."""
    model = perceptron()
    variables = reference.drawn(model)
    x = reference.uniform(12, 1, 4, 4, 1, seed=1)
    y = jnp.array([1, 1, 4, 6, 8, 2, 3, 6, 0, 4, 1, 9], jnp.int32)
    return model, variables, Batch(x, y, jnp.arange(12))


def _after_momentum(model, variables, batch, momentum, rate=0.01):
    """The difference of weights after three steps of gradient descent with momentum, as PyTorch defines it."""
    gradient, params, velocity = jax.jit(protocols.ClientShare(model)), variables["params"], None
    for step in range(3):
        part = jax.tree.map(lambda leaf, step=step: leaf[4 * step : 4 * step + 4], batch)
        now = gradient({**variables, "params": params}, part._replace(index=jnp.arange(4)))
        velocity = now if velocity is None else jax.tree.map(lambda v, g: momentum * v + g, velocity, now)
        params = jax.tree.map(lambda w, v: w - rate * v, params, velocity)
    difference = jax.tree.map(jnp.subtract, params, variables["params"])
    return capture.as_update(difference, kind="difference", learning_rate=rate, local_steps=3, batch_size=4)


@pytest.mark.slow
def test_counts_of_labels_are_not_claimed_of_an_update_with_momentum(client):
    model, variables, batch = client
    counts = np.bincount(batch.y, minlength=10)
    plain = audit.update(model, variables, _after_momentum(model, variables, batch, 0.0), minutes=1e-4)
    assert "the head's gradient proves" in plain.reasons[0]
    assert "a sample may have been in several local steps" in plain.reasons[0]
    assert plain.labels.any()
    assert (plain.labels <= counts).all()
    verdict = audit.update(model, variables, _after_momentum(model, variables, batch, 0.9), minutes=1e-4)
    assert "holds samples of class" in verdict.reasons[0]
    assert "How many of each is not claimed" in verdict.reasons[0]
    assert any("momentum" in reason for reason in verdict.reasons)
    assert set(verdict.labels) == {0, 1}
    assert (verdict.labels <= counts).all()


@pytest.mark.slow
def test_momentum_and_epochs_explain_an_update_where_they_are_stated(client):
    model, variables, batch = client
    truth = np.asarray(batch.x[:, 0]), np.asarray(batch.y)
    share = protocols.ClientShare(model, local_steps=3, local_epochs=2, learning_rate=0.01)
    difference = jax.tree.map(lambda g: -0.06 * g, jax.jit(share)(variables, batch))
    of_epochs = capture.as_update(difference, kind="difference", learning_rate=0.01, local_steps=3, batch_size=4)
    of_momentum = _after_momentum(model, variables, batch, 0.9)
    stated = ((of_epochs, {"local_epochs": 2}, "passed"), (of_momentum, {"momentum": 0.9}, "passed"))
    for sent, facts, status in (*stated, (of_epochs, {}, "suspicious")):
        verdict = audit.update(model, variables, sent, truth=truth, minutes=1e-4, **facts)
        assert [f.status for f in verdict.findings if f.name == "known images"] == [status]
        assert "How many of each is not claimed" in verdict.reasons[0]
        begins = "without weight decay, and the momentum is as stated and begins at zero, the"
        granted = begins if "momentum" in facts else "without momentum and weight decay, the"
        assert f"{granted} head's gradient proves" in verdict.reasons[0]


def test_an_update_that_no_attack_had_time_for_is_not_called_safe(client, tmp_path):
    model, variables, batch = client
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    verdict = audit.update(
        model, variables, gradient, batch_size=12, defense="other", minutes=1e-4
    )  # no label is claimed for a defended update
    assert verdict.verdict == verdict.headline == "not attacked"
    assert audit.EXIT_STATUS[verdict.verdict] == 4
    (spent,) = (one for one in verdict.reasons if "the budget of --minutes 0.0001 (0 s) is spent" in one)
    assert "Extend the budget to --minutes 1, which" in spent
    page = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
    assert "before any attack came to its end" in page


def test_what_took_the_time_of_an_audit_without_attacks_is_said():
    said = _time_of_checks(0.5, 40.0, seconds=35.0, compiling=30.0)
    assert said == (
        "No attack has ended, since the budget of --minutes 0.5 (30 s) is spent: the audit has run for 40 s in all. "
        "The checks took 35 s, and 30 s of that were the compiling of programs. Extend the budget to --minutes 2, "
        "which would leave 80 s for an attack."
    )
    # The advice never names less time than was given, here used up by attacks that were cut short.
    assert "--minutes 4, which would leave 180 s" in _time_of_checks(3.0, 60.0, seconds=9.0, compiling=1.0)


def test_a_difference_needs_its_learning_rate(client):
    model, variables, _ = client
    sent = capture.as_update(variables["params"], kind="difference", batch_size=4)
    with pytest.raises(ValueError, match="learning_rate must be given: it turns a difference of weights into"):
        audit.update(model, variables, sent)
    with pytest.raises(ValueError, match="learning_rate must be given: it turns weights into"):
        audit.update(model, variables, sent, kind="weights")


def test_copies_among_certified_images_are_a_warning():
    images = np.random.default_rng(0).random((3, 12, 12, 1))
    labels = np.zeros(4, np.int32)

    def answer(*order, **changes):
        fields = {"misfit": 0.0, "cosine_distance": 0.0, "solved": True} | changes
        return Answer("dense_inputs", images[list(order)], labels[: len(order)], **fields)

    assert copied(None) == copied(answer(0)) == copied(answer(0, 1, 2)) == []
    (found,) = copied(answer(0, 1, 0, 1))
    assert found.status == "suspicious"
    assert found.evidence == "2 of 4 certified images are copies of another one."
    assert found.option == "--batch-size 2"
    (one,) = copied(answer(0, 1, 1))
    assert one.evidence == "1 of 3 certified images is a copy of another one."
    uncertain = answer(0, 0, solved=False, agreement=np.array([0.99, 0.5]))
    assert copied(uncertain) == []  # only one of the images is certified
    (alike,) = copied(answer(0, 1, 1), [Finding(RANK, "passed", "")])  # no smaller batch has the head's rank
    assert alike.cause.startswith("images of the client that are alike")
    assert alike.option == "--minutes"


def test_a_private_mechanism_behind_batch_statistics_can_be_stated():
    from jaxleak.audit._verdict.stated import stated_defense

    model = models.convnet((8, 8, 3), 10, channels=(8,), strides=(2,), batch_norm=True)
    share = protocols.ClientShare(model)
    assert stated_defense(capture.Facts(defense="dp_update", strength=10.0), share) is not None
    with pytest.raises(ValueError, match="treats every example by itself"):
        stated_defense(capture.Facts(defense="dp_sgd", strength=10.0), share)


def _pictures(count):
    """Equal images (count, 4, 4, 1) with brightness from 0 to 1."""
    return np.broadcast_to(np.linspace(0, 1, 16).reshape(1, 4, 4, 1), (count, 4, 4, 1))


def test_an_answer_that_contradicts_the_proven_labels_takes_the_proof_away():
    answer = Answer("dense_inputs", _pictures(2), np.array([0, 4]), 0.0, 0.0, solved=True)
    labels = Labels(np.eye(10, dtype=int)[0] + np.eye(10, dtype=int)[3], np.zeros(10, int), 2)
    (found,) = contradicted(answer, labels)
    assert "1 of class 0, 1 of class 4; the head's gradient would prove 1 of class 0, 1 of class 3" in found.evidence
    assert "label smoothing" in found.cause
    assert contradicted(answer, labels._replace(proven=np.eye(10, dtype=int)[4])) == []
    assert contradicted(answer._replace(cosine_distance=1.0), labels) == []  # this answer explains nothing
    assert contradicted(None, labels) == []


def test_inputs_outside_of_the_range_of_pixels_are_named():
    answer = Answer("dense_inputs", 3 * _pictures(1) - 1, np.zeros(1, int), 0.0, 0.0, solved=True)
    (found,) = out_of_range(answer)
    assert "are -1 to 2, and not in [0, 1]" in found.evidence
    assert found.option == "--mean and --std"
    assert out_of_range(answer._replace(x=1.009 * _pictures(1))) == []
    assert out_of_range(None) == []
    better = answer._replace(x=_pictures(1), remainder=0.06, beyond=0.01)
    (found,) = out_of_range(better)
    assert "leave 6.0% of the update unexplained, and 1.0% where their values may be outside" in found.evidence
    assert found.options[0] == "--mean and --std"
    assert out_of_range(better._replace(beyond=0.05)) == []


def test_starts_that_agree_on_a_flat_image_certify_nothing():
    agreed = {"agreement": np.array([1.0]), "cosine_distance": 0.0, "misfit": 0.0, "y": np.zeros(1, int)}
    flat = Answer("peeling", 0.3 + 0.02 * _pictures(1), **agreed)
    assert not flat.shown.any()
    assert flat._replace(solved=True).shown.all()
    assert Answer("peeling", 0.3 + 0.2 * _pictures(1), **agreed).shown.all()


@pytest.mark.parametrize("attack", ["peeling", "peeling_alone"])
def test_starts_of_peeling_must_agree_more_closely(attack):
    """The smoothing of peeling blurs both starts in the same way."""
    agreed = {"cosine_distance": 0.0, "misfit": 0.0, "y": np.zeros(1, int)}
    answer = Answer(attack, _pictures(1), agreement=np.array([0.989]), **agreed)
    assert not answer.shown.any()
    assert answer._replace(agreement=np.array([0.99])).shown.all()
    assert answer._replace(attack="fedleak").shown.all()


def test_the_array_that_differs_most_is_named_in_one_sentence():
    assert said_of(250.0, "fc/kernel", 0.03) == (
        "The array that differs most from what this client would send is fc/kernel: by 3.0e-02 of its norm, which is "
        "2.5e+02 times as much as rounding explains."
    )
