"""What a verdict does not claim: counts at a doubtful scale, attacks that had no time, copies of one image."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, audit, capture, models, protocols
from jaxleak.audit._verdict.verdict import Answer, copied


@pytest.fixture(scope="module")
def client():
    """A client of twelve samples, three local steps of four each."""
    model = models.mlp((4, 4, 1), 10, widths=(16, 8))
    variables = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(1), (12, 1, 4, 4, 1))
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


def test_counts_of_labels_are_not_claimed_of_an_update_with_momentum(client):
    model, variables, batch = client
    counts = np.bincount(batch.y, minlength=10)
    plain = audit.update(model, variables, _after_momentum(model, variables, batch, 0.0), minutes=1e-4)
    assert "The head's gradient proves" in plain.reasons[0]
    assert plain.labels.any()
    assert (plain.labels <= counts).all()
    verdict = audit.update(model, variables, _after_momentum(model, variables, batch, 0.9), minutes=1e-4)
    assert "holds samples of class" in verdict.reasons[0]
    assert "How many of each is not claimed" in verdict.reasons[0]
    assert any("momentum" in reason for reason in verdict.reasons)
    assert set(verdict.labels) == {0, 1}
    assert (verdict.labels <= counts).all()


def test_an_update_that_no_attack_had_time_for_is_not_called_safe(client, tmp_path):
    model, variables, batch = client
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    verdict = audit.update(
        model, variables, gradient, batch_size=12, defense="other", minutes=1e-4
    )  # no label is claimed of a defended update
    assert verdict.verdict == verdict.headline == "not attacked"
    assert audit.EXIT_STATUS[verdict.verdict] == 4
    page = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
    assert "before any attack came to its end" in page


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
    assert copied(uncertain) == []  # only one of them is certified


def test_a_private_mechanism_behind_batch_statistics_can_be_stated():
    from jaxleak.audit._verdict.stated import stated_defense

    model = models.convnet((8, 8, 3), 10, channels=(8,), strides=(2,), batch_norm=True)
    share = protocols.ClientShare(model)
    assert stated_defense(capture.Facts(defense="dp_update", strength=10.0), share) is not None
    with pytest.raises(ValueError, match="treats every example by itself"):
        stated_defense(capture.Facts(defense="dp_sgd", strength=10.0), share)
