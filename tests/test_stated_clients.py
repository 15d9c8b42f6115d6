"""An audit simulates what a client states: sums over the batch, and learning rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import perceptron

from jaxleak import Batch, audit, capture
from jaxleak.audit._verdict.stated import sent_update, stated_client

RATE = 0.2


@pytest.fixture(scope="module")
def summing():
    """A client with three steps of two samples each and a loss that is a sum over samples, written out by hand."""
    model = perceptron()
    variables = reference.drawn(model)
    x, y = reference.uniform(6, 4, 4, 1, seed=1), jnp.array([3, 1, 3, 7, 0, 5], jnp.int32)

    def loss(params, images, labels):
        logits = model.apply({**variables, "params": params}, images, mode="train").logits
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).sum()

    slope, after = jax.jit(jax.grad(loss)), [variables["params"]]
    for step in range(3):
        rows = slice(2 * step, 2 * step + 2)
        after.append(jax.tree.map(lambda w, g: w - RATE * g, after[-1], slope(after[-1], x[rows], y[rows])))
    return model, variables, np.asarray(x), np.asarray(y), after


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_client_that_sums_its_loss_is_simulated_with_its_own_steps(summing, steps):
    model, variables, x, y, after = summing
    x, y = x[: 2 * steps], y[: 2 * steps]
    facts = {"reduction": "sum", "learning_rate": RATE, "local_steps": steps, "batch_size": 2}
    sent = capture.as_update(after[steps], kind="weights", **facts)
    share = stated_client(sent.facts, model)
    simulated = share(variables, Batch(jnp.asarray(x)[:, None], jnp.asarray(y), jnp.arange(len(x))))
    moved = jax.tree.map(lambda w, g: w - share.learning_rate * steps * g, variables["params"], simulated)
    for leaf, wanted in zip(jax.tree.leaves(moved), jax.tree.leaves(after[steps]), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-5)
    verdict = audit.update(model, variables, sent, truth=(x, y), minutes=1e-4)
    assert [f.status for f in verdict.findings if f.name == "known images"] == ["passed"]
    options = {key: facts[key] for key in ("reduction", "learning_rate", "local_steps")}
    gradient = capture.gradient_of(sent, variables["params"])
    assert audit.check_client(model, variables, gradient, x, y, **options)[-1].status == "passed"


def test_a_module_is_read_as_what_is_stated_of_it():
    """The weights are read if these are the stated kind, and only in the module's own mode of batch normalisation."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    net(torch.ones(2, 4)).sum().backward()
    facts = {"kind": "weights", "learning_rate": RATE, "batch_size": 2}
    found = sent_update(net, {**facts, "batch_norm": None})
    np.testing.assert_array_equal(found.arrays["0.weight"], net[0].weight.detach())
    assert (found.facts.kind, found.facts.batch_norm) == ("weights", "train")
    with pytest.raises(ValueError, match="batch_norm must be train, the mode of 1"):
        sent_update(net, {**facts, "batch_norm": "eval"})


@pytest.mark.parametrize("steps", [{"local_steps": 3}, {"local_epochs": 2, "kind": "gradient"}])
def test_a_gradient_of_several_steps_needs_its_learning_rate(summing, steps):
    model, variables, *_ = summing
    with pytest.raises(ValueError, match=r"learning_rate must be given: a client of several steps .*--learning-rate"):
        audit.update(model, variables, variables["params"], batch_size=2, **steps)
