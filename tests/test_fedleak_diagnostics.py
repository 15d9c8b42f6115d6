"""The measurements behind FedLeak's theory, against slower ways to get the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import _fedleak_diagnostics as diagnostics
from experiments._inversion_case import Case
from experiments._inversion_problem import build_model
from jaxleak import data, objectives
from jaxleak.attacks import LABEL_RULES

MLP = Case(model="mlp", data="digits", pool=1)


def test_sensitivity_is_the_jacobian_of_the_last_layers_gradient():
    dataset = data.load("digits", 1, 0)
    model = build_model(MLP, dataset.x.shape[1:], 10)
    variables = model.init(jax.random.key(0))

    def kernel_gradient(x):
        def loss(kernel):
            head = {**variables["params"][model.head], "kernel": kernel}
            weights = {**variables["params"], model.head: head}
            logits = model.apply({**variables, "params": weights}, x[None]).logits
            return objectives.cross_entropy(logits, jnp.asarray(dataset.y))

        return jax.grad(loss)(variables["params"][model.head]["kernel"]).ravel()

    x = jnp.asarray(dataset.x[0])
    magnitude = np.abs(jax.jit(kernel_gradient)(x))
    sensitivity = np.abs(jax.jit(jax.jacfwd(kernel_gradient))(x)).reshape(len(magnitude), -1).sum(axis=1)
    expected = np.corrcoef(magnitude, sensitivity)[0, 1]
    assert diagnostics.magnitude_sensitivity(MLP, 0)["pearson"] == pytest.approx(expected, abs=1e-4)


def test_label_rules_are_scored_where_they_apply():
    scores = diagnostics.label_rules(Case(model="mlp", data="digits", batch_size=16), 2, 0)
    assert scores.keys() == {*LABEL_RULES, "distinct"}
    assert {name for name, value in scores.items() if np.isnan(value)} == {"idlg", "yin", "sum_rule"}
    assert scores["calibrated"] >= scores["random"]
    assert 0 < scores["distinct"] <= 10 / 16
    with pytest.raises(ValueError, match="1797 samples, fewer than a batch of 1800"):
        diagnostics.label_rules(Case(model="mlp", data="digits", batch_size=1800), 1, 0)


def test_ratios_are_summarised_by_rank():
    found = diagnostics.summary_of_ratios(np.array([-1.0, 1.0, 2.0, 3.0, 100.0]))
    assert found == {"median": 2.0, "quartile_low": 1.0, "quartile_high": 3.0, "positive": 0.8}
