"""Checks of an update before any attack: every mistake is named, and a right update passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, audit, models, protocols
from jaxleak.audit._checks import check_known_images, failed


class Client:
    """A client of four images, the weights before and after another round, and its gradient."""

    def __init__(self, batch_norm, batch_size=4):
        self.model = models.convnet((8, 8, 3), 10, channels=(8, 8, 8), strides=(1, 2, 2), batch_norm=batch_norm)
        self.variables = jax.jit(self.model.init)(jax.random.key(0))
        self.share, self.batch_size = protocols.ClientShare(self.model), batch_size
        x = jax.random.uniform(jax.random.key(1), (batch_size, 1, 8, 8, 3))
        self.batch = Batch(x, jnp.arange(batch_size, dtype=jnp.int32) + 2, jnp.arange(batch_size))
        self.gradient = jax.jit(self.share)(self.variables, self.batch)

    def check(self, payload=None, **changes):
        options = {"share": self.share, "variables": self.variables, "batch_size": self.batch_size} | changes
        return audit.check_update(payload=self.gradient if payload is None else payload, **options)


@pytest.fixture(scope="module")
def plain():
    return Client(batch_norm=False)


@pytest.fixture(scope="module")
def normalised():
    return Client(batch_norm=True)


def _changed(tree, path, change):
    layer, name = path.split("/")
    return {**tree, layer: {**tree[layer], name: change(tree[layer][name])}}


def _mixed(variables, other, share):
    return jax.tree.map(lambda a, b: (1 - share) * a + share * b, variables, other)


def test_a_right_update_passes(plain, normalised):
    for client in (plain, normalised):
        assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}


MISTAKES = {
    "sum": (lambda c: {"payload": jax.tree.map(lambda g: 4 * g, c.gradient)}, "sum over the batch"),
    "too small a batch": (lambda c: {"batch_size": 2}, "batch is larger"),
    "kernel's axes": (
        lambda c: {"payload": _changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))},
        "conv_1/kernel is stored in another layout",
    ),
    "rows of the head": (
        lambda c: {
            "payload": _changed(
                c.gradient, "head/kernel", lambda g: g.reshape(2, 2, 8, 10).transpose(2, 0, 1, 3).reshape(32, 10)
            )
        },
        "head/kernel is stored in another layout",
    ),
    "another round": (
        lambda c: {"variables": _mixed(c.variables, c.model.init(jax.random.key(9)), 0.02)},
        "weights of another round",
    ),
    "weight decay": (
        lambda c: {"payload": jax.tree.map(lambda g, w: g + 1e-3 * w, c.gradient, c.variables["params"])},
        "weight decay",
    ),
    "reversed sign": (lambda c: {"payload": jax.tree.map(jnp.negative, c.gradient)}, "sign"),
    "weights": (lambda c: {"payload": c.variables["params"]}, "holds weights"),
    "noise": (
        lambda c: {
            "payload": jax.tree.map(
                lambda g: g + 0.01 * jax.random.normal(jax.random.key(g.size), g.shape) * jnp.abs(g).max(), c.gradient
            )
        },
        "noise",
    ),
    "NaN": (lambda c: {"payload": _changed(c.gradient, "head/bias", lambda g: g.at[0].set(jnp.nan))}, "overflowed"),
    "missing leaf": (lambda c: {"payload": _changed(c.gradient, "head/bias", lambda g: None)}, "lacks a layer"),
    "zero": (lambda c: {"payload": jax.tree.map(jnp.zeros_like, c.gradient)}, "cleared"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(plain, mistake):
    change, cause = MISTAKES[mistake]
    wrong = failed(plain.check(**change(plain)))
    assert any(cause in finding.cause for finding in wrong), [str(finding) for finding in wrong]


def test_the_mode_of_batch_normalisation_is_named(normalised):
    eval_share = protocols.ClientShare(normalised.model, batch_norm="eval")
    payload = jax.jit(eval_share)(normalised.variables, normalised.batch)
    assert any("--batch-norm eval" in f.option for f in failed(normalised.check(payload)))
    assert any("--batch-norm train" in f.option for f in failed(normalised.check(share=eval_share)))
    assert not failed(normalised.check(payload, share=eval_share))


def test_one_samples_equations_give_the_scale_and_the_weights():
    client = Client(batch_norm=False, batch_size=1)
    assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}
    scaled = failed(client.check(jax.tree.map(lambda g: 0.01 * g, client.gradient)))
    assert [finding.name for finding in scaled] == ["one sample's equations"]
    assert "0.01 times" in scaled[0].cause
    other = client.model.init(jax.random.key(9))
    assert {"one sample's equations"} <= {f.name for f in failed(client.check(variables=other))}


def test_of_two_rounds_updates_the_one_of_these_weights_passes(plain):
    step = lambda w, g: w - 0.01 * g  # noqa: E731
    later = {**plain.variables, "params": jax.tree.map(step, plain.variables["params"], plain.gradient)}
    next_update = jax.jit(plain.share)(later, plain.batch)
    for variables, right, wrong in (
        (plain.variables, plain.gradient, next_update),
        (later, next_update, plain.gradient),
    ):
        assert not failed(plain.check(right, variables=variables))
        assert any("another round" in f.cause for f in failed(plain.check(wrong, variables=variables)))


def test_known_images_may_be_channels_first_and_order_matters_after_several_steps(plain):
    x = np.asarray(plain.batch.x[:, 0])
    found = audit.check_client(
        plain.model, plain.variables, plain.gradient, x.transpose(0, 3, 1, 2), np.asarray(plain.batch.y)
    )
    assert found[-1].status == "passed"
    two_steps = protocols.ClientShare(plain.model, local_steps=2, learning_rate=0.1)
    payload = jax.jit(two_steps)(plain.variables, plain.batch)
    for order, status in (([0, 1, 2, 3], "passed"), ([2, 3, 0, 1], "suspicious")):
        truth = x[order], np.asarray(plain.batch.y)[order]
        (finding,) = check_known_images(two_steps, plain.variables, payload, truth, defended=False)
        assert finding.status == status
    assert "another order" in finding.cause
    assert check_known_images(two_steps, plain.variables, payload, truth, defended=True) == []


@pytest.mark.parametrize("stated", [1, 2])
def test_a_batch_size_that_is_too_small_is_one_mistake(plain, stated):
    (wrong,) = (finding for finding in plain.check(batch_size=stated) if finding.cause)
    assert wrong.name == "batch size by rank"
    others = [f for f in plain.check(batch_size=stated) if "batch size by rank, has refuted" in f.evidence]
    assert {finding.status for finding in others} == {"not applicable"}
    assert len(others) == 2 if stated == 1 else others


def test_a_sum_over_the_batch_is_one_mistake(plain):
    (wrong,) = (f for f in plain.check(jax.tree.map(lambda g: 4 * g, plain.gradient)) if f.cause)
    assert (wrong.name, wrong.option) == ("mean over the batch", "--reduction sum")


def test_one_samples_factor_is_said_where_its_gradient_is_too_large():
    client = Client(batch_norm=False, batch_size=1)
    found = {f.name: f for f in failed(client.check(jax.tree.map(lambda g: 100 * g, client.gradient)))}
    assert set(found) == {"mean over the batch", "one sample's equations"}
    assert "100 times" in found["one sample's equations"].cause


def test_fewer_samples_than_stated_are_suspicious(plain):
    found = {finding.name: finding for finding in plain.check(batch_size=8)}
    assert found["batch size by rank"].status == "suspicious"
    assert "4 samples" in found["batch size by rank"].cause


def test_a_stated_defense_is_not_reported_as_a_mistake(plain):
    payload = jax.tree.map(lambda g: jnp.asarray(np.where(np.abs(g) > np.median(np.abs(g)), g, 0)), plain.gradient)
    assert failed(plain.check(payload))
    assert not failed(plain.check(payload, defended=True))


def test_known_images_show_the_mistake_exactly(normalised):
    c, x = normalised, normalised.batch.x[:, 0]

    def check(payload, **options):
        return audit.check_client(c.model, c.variables, payload, x, c.batch.y, **options)[-1]

    assert check(c.gradient).status == "passed"  # biases in front of batch statistics are rounding on both sides
    shifted = _changed(c.gradient, "conv_0/bias", lambda g: g + 1e-3)
    assert "conv_0/bias" in check(shifted).evidence
    assert "sum over the batch" in check(jax.tree.map(lambda g: 4 * g, c.gradient)).cause
    assert check(jax.tree.map(lambda g: 4 * g, c.gradient), reduction="sum").status == "passed"
    assert "--batch-norm train" in check(c.gradient, batch_norm="eval").option
    assert "conv_1/kernel" in check(_changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))).cause
