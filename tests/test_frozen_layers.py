"""Layers that a client states as frozen are compared with its upload."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import audit, capture
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.frozen import check_frozen


@pytest.fixture(scope="module")
def client(perceptron):
    """The weights before, the named weights after a step of only the head, and the full named gradient."""
    _, variables, _, gradient = perceptron
    before, slope = named_leaves(variables["params"]), named_leaves(gradient)
    after = {name: leaf - 0.1 * slope[name] * name.startswith("head") for name, leaf in before.items()}
    return variables["params"], {name: np.asarray(leaf) for name, leaf in after.items()}, slope


def _findings(params, arrays, **facts):
    sent = capture.as_update(arrays, batch_size=1, **facts)
    return check_frozen(sent, params, list(named_leaves(params)))


@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_a_gradient_of_a_frozen_layer_is_zero_or_left_out(client, kind):
    params, _, slope = client
    zeros = {name: jnp.zeros_like(leaf) if name.startswith("dense_0") else leaf for name, leaf in slope.items()}
    left_out = {name: leaf for name, leaf in slope.items() if not name.startswith("dense_0")}
    for arrays in (zeros, left_out):
        assert _findings(params, arrays, kind=kind, frozen=("dense_0",)) == []
    (found,) = _findings(params, slope, kind=kind, frozen=("dense_0",))
    assert found.status == "failed"
    assert found.evidence == (
        "dense_0/bias and 1 more are said to be frozen, and the update has entries other than zero there."
    )
    assert found.option == "--frozen, or --weights"


def test_a_list_of_what_is_trained_has_nothing_of_the_frozen_layers(client):
    params, _, slope = client
    trained = [np.asarray(leaf) for name, leaf in slope.items() if not name.startswith("dense_0")]
    assert _findings(params, trained, frozen=("dense_0",)) == []
    (found,) = _findings(params, [np.asarray(leaf) for leaf in slope.values()], frozen=("dense_0",))
    assert found.status == "failed"


def test_frozen_weights_are_those_before_the_step_however_they_were_saved(client):
    params, after, _ = client
    facts = {"kind": "weights", "learning_rate": 0.1, "frozen": ("dense_0", "dense_1")}
    half = {name: leaf.astype(np.float16) for name, leaf in after.items()}
    for arrays in (after, half):
        assert _findings(params, arrays, **facts) == []
    (found,) = _findings(params, after, **{**facts, "frozen": ("head/bias",)})
    assert "has other weights than --weights there" in found.evidence
    assert "of another round" in found.cause
    moved = {**after, "dense_1/bias": after["dense_1/bias"] + 1e-6}
    assert _findings(params, moved, **facts)[0].evidence.startswith("dense_1/bias is said to be frozen")


def test_an_audit_refuses_what_a_frozen_layer_would_hide(perceptron):
    """The attacker has the whole file, so an audit of only the other layers would underestimate the leak."""
    model, variables, _, gradient = perceptron
    verdict = audit.update(model, variables, gradient, batch_size=1, frozen=("dense_0",))
    assert verdict.verdict == "inputs inconsistent"
    assert verdict.reasons[0].startswith("frozen layers: failed. dense_0/bias")
    noisy = audit.update(
        model, variables, gradient, batch_size=1, frozen=("dense_0",), defense="gaussian", strength=1e-3, minutes=1e-4
    )
    assert all(finding.name != "frozen layers" for finding in noisy.findings)


def test_nothing_is_compared_where_nothing_is_frozen(client):
    params, _, slope = client
    assert _findings(params, slope) == []
    assert jax.tree.structure(params).num_leaves == len(slope)
