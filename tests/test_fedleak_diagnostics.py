"""The measurements behind FedLeak's theory, against slower computations of the same numbers."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxleak import data, objectives
from jaxleak._base import Batch
from jaxleak.attacks import LABEL_RULES
from jaxleak.study.updates import Case, build_model, diagnostics, observe, victim

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
    assert {name for name, value in scores.items() if np.isnan(value)} == {
        "single_label",
        "longest_column",
        "yin",
        "sum_rule",
    }
    assert scores["calibrated"] >= scores["random"]
    assert 0 < scores["distinct"] <= 10 / 16
    with pytest.raises(ValueError, match="1797 samples, fewer than a batch of 1800"):
        diagnostics.label_rules(Case(model="mlp", data="digits", batch_size=1800), 1, 0)


def test_label_rules_are_scored_among_classes_that_the_data_do_not_have():
    case = Case(model="mlp", data="digits", batch_size=16)
    scores = diagnostics.label_rules(case, 2, 0, drawn_classes=100)
    assert {name for name, value in scores.items() if np.isnan(value)} == {
        "single_label",
        "longest_column",
        "counting_rule",
    }
    assert 10 / 16 < scores["distinct"] < 1  # there are labels that no digit has, and repeated labels
    assert scores["bias_rule"] > 0.9 > scores["random"]


@functools.partial(jax.jit, static_argnums=0)
def _gradient(model, variables, x, y):
    def loss(params):
        return objectives.cross_entropy(model.apply({**variables, "params": params}, x[None]).logits, y[None])

    return ravel_pytree(jax.grad(loss)(variables["params"]))[0]


def test_sign_noise_is_the_distance_of_gradients_at_noisy_truths(monkeypatch):
    monkeypatch.setattr(diagnostics, "STRENGTHS", (0, 16))
    monkeypatch.setattr(diagnostics, "NOISE_DRAWS", 1)
    scores = {"l2_distance": 3.0, "psnr": 7.0}
    monkeypatch.setattr(diagnostics, "attack", lambda case, seed: types.SimpleNamespace(scores=scores))
    case = replace(MLP, pool=2)
    found = diagnostics.sign_noise(case, 4)
    dataset = data.load("digits", 2, 4)
    model = build_model(case, dataset.x.shape[1:], 10)
    variables = model.init(jax.random.key(4))
    distances = []
    for key, x, y in zip(
        jax.random.split(jax.random.fold_in(jax.random.key(4), 16), 2), dataset.x, dataset.y, strict=True
    ):
        signs = np.asarray(jax.random.rademacher(key, x.shape, jnp.float32))
        assert set(np.unique(signs)) == {-1, 1}
        noisy = np.clip(x + 16 / 255 * signs, 0, 1)
        distances.append(np.linalg.norm(_gradient(model, variables, x, y) - _gradient(model, variables, noisy, y)))
    assert found["noise0"] == 0
    assert found["noise16"] == pytest.approx(np.mean(distances), rel=1e-3)
    assert (found["distance"], found["psnr"]) == (3.0, 7.0)
    entries = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    assert found["element"] == pytest.approx(3.0 / entries**0.5)


def test_steepness_is_the_step_that_would_lead_no_further_from_the_truth(monkeypatch):
    """||x' - eta d - x|| equals ||x' - x|| at eta = 2 <x' - x, d> / ||d||^2, with a separately computed gradient d."""
    monkeypatch.setattr(diagnostics.audit, "invert", _first_iterates)
    case = replace(MLP, attack="idlg", activation="sigmoid", optimizer="adam", iterations=2)
    path = diagnostics.path_steepness(case, 0, every=1)
    side = victim(case, 0)
    observation, truth = observe(case, 0, side)
    assert list(path["iteration"]) == [1, 2]

    @jax.jit
    def slope(x):
        def distance(x):
            simulated = side.share(observation.params, Batch(x[:, None], truth.y, truth.index))
            return objectives.squared_l2(observation.payload, simulated)

        return jax.grad(distance)(x)

    exact = np.asarray(truth.x[:, 0])
    for x, ratio, psnr in zip(_starts(exact), path["ratio"], path["psnr"], strict=True):
        d = np.asarray(slope(jnp.asarray(x)))
        assert ratio == pytest.approx(2 * ((x - exact) * d).sum() / (d**2).sum(), rel=1e-3)
        assert np.linalg.norm(x - ratio * d - exact) == pytest.approx(np.linalg.norm(x - exact), rel=1e-3)
        assert psnr == pytest.approx(-10 * np.log10(((np.clip(x, 0, 1) - exact) ** 2).mean()), abs=1e-3)


def _starts(exact):
    rng = np.random.default_rng(0)
    return [rng.random(exact.shape).astype(np.float32), (exact + rng.normal(0, 0.3, exact.shape)).astype(np.float32)]


def _first_iterates(engine, observation, template, *, callbacks, **options):
    """A stub of an attack that passes two iterates to the callback; the second leaves the box."""
    exact = np.asarray(data.load("digits", 1, 0).x)
    for done, x in enumerate(_starts(exact), start=1):
        attack = types.SimpleNamespace(variables={"x": jnp.asarray(x)})
        callbacks[0](done, types.SimpleNamespace(attack=attack), {})


def test_seeds_of_figure_1_are_those_of_no_other_measurement():
    assert diagnostics.fig1_seeds(0) == [0, 1, 2]
    assert diagnostics.fig1_seeds(2) == [2000, 2001, 2002]


def test_ratios_are_summarised_by_rank():
    found = diagnostics.summary_of_ratios(np.array([-1.0, 1.0, 2.0, 3.0, 100.0]))
    assert found == {"median": 2.0, "quartile_low": 1.0, "quartile_high": 3.0, "positive": 0.8}


def test_descent_on_a_parabola_is_that_of_the_papers_example():
    """In Appendix D, the gradients 1 and -1 blend to 0.4 from 0.5 at lambda' = 0.3, and plain descent oscillates."""
    plain = Case(iterations=3, step_size=1.0)
    paths = [
        diagnostics.parabola_path(case)
        for case in (plain, replace(plain, blend=0.3, probe="step"), replace(plain, blend=0.3, probe="ascent"))
    ]
    np.testing.assert_allclose(paths[0], [0.5, -0.5, 0.5, -0.5])
    np.testing.assert_allclose(paths[1], [0.5, 0.1, 0.02, 0.004], rtol=1e-5)
    np.testing.assert_allclose(paths[2], [0.5, -0.506, 0.512, -0.518], rtol=1e-5)  # 0.3 * 2 * 0.01 more each time


def test_a_curve_has_settled_where_nothing_behind_lies_above():
    assert diagnostics.settled_after(np.array([10.0, 5.0, 0.1, 0.0, 0.6, 0.2, 0.0])) == 5
    assert diagnostics.settled_after(np.array([1.0, 1.0])) == 0
    # A curve has settled when it is above its end by at most the share of its fall; a rising curve has no fall.
    assert diagnostics.settled_after(np.array([8.0, 3.0, 2.0, 0.0]), share=0.25) == 2
    assert diagnostics.settled_after(np.array([0.0, 3.0, 2.0])) == 2
