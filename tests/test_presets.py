"""Presets: the hyper-parameters that their papers print, and the processing of an answer."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from jaxleak import objectives
from jaxleak._base import Observation
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion.median_filter import median_5x5
from jaxleak.study.updates._attacker import _OPTIMIZERS, _beginning_anew, _untrained

#: Fields of `Settings` from the papers or from the presets' docstrings; unlisted fields are off.
PRINTED = {
    "dlg": {"iterations": 300, "labels": "joint"},
    "idlg": {"iterations": 300, "labels": "single_label"},
    "inverting_gradients": {"iterations": 4800, "labels": "calibrated"},
    "sapag": {"iterations": 4000, "labels": "joint"},
    "gradinversion": {"iterations": 20_000, "labels": "yin", "group": 4, "consistency": 0.01},
    "bayes": {"iterations": 1000, "labels": "calibrated"},
    "fedleak": {"iterations": 1000, "labels": "calibrated", "smoothing": "auto", "white_point": 0.999},
    "any_loss": {
        "iterations": 1000, "labels": "none", "smoothing": "auto", "white_point": 0.999,
    },
    "row_space": {
        "iterations": 4250, "labels": "calibrated", "white_point": 0.999, "smoothing": (1.0, 60.0, 0.0, 0.0, None),
        "compare": client_updates.RowSpaces(layers=4, ridge=0.01),
        "shifts": ((0.2, (6, 3, 30)), (0.3, (6, 3, 30)), (0.4, (2, 1, 30))),
    },
    "fedleak_paper": {"iterations": 10_000, "labels": "fedleak"},
    "fedleak_upstream": {"iterations": 10_000, "labels": "given"},
    "ggl": {"iterations": 500, "labels": "calibrated", "gradient_free": True},
    "rog": {"iterations": 1000, "labels": "calibrated"},
}  # fmt: skip
#: Priors of each preset: weight, name and kind.
PRIORS = {
    "inverting_gradients": [(0.1, "tv", "anisotropic")],
    "gradinversion": [(1e-4, "tv", "anisotropic"), (1e-6, "l2", "")],
    "bayes": [(0.1, "tv", "anisotropic")],
    "fedleak": [("auto", "tv", "anisotropic"), (1e-4, "activation", "mean")],
    "any_loss": [("auto", "tv", "anisotropic"), (1e-4, "activation", "mean")],
    "row_space": [(0.1, "tv", "relative")],
    "fedleak_paper": [(1e-5, "tv", "sum"), (1e-4, "activation", "sum")],
    "fedleak_upstream": [(1e-5, "tv", "anisotropic")],
    "ggl": [(0.1, "latent", "")],
}
BLENDS = {"fedleak_paper": (0.7, 0.01, "ascent"), "fedleak_upstream": (0.3, 0.01, "step")}
OFF = {"group": 1, "consistency": 0.0, "smoothing": None, "shifts": (), "gradient_free": False, "white_point": 0.0}


def preset(name, **options):
    if name in presets.GENERATIVE:
        options["generator"] = _untrained(4)
    return presets.preset(name, **options)


def test_a_selection_compares_what_it_picks_and_keeps_its_choice():
    observed = {"a": jnp.array([3.0, -5.0, 1.0]), "b": jnp.array([2.0])}
    simulated = jax.tree.map(lambda leaf: 0.5 * leaf, observed)
    payload = Observation(jnp.zeros((), jnp.int32), payload=observed)
    setup = SimpleNamespace(batch_size=1, share=lambda params, batch, sharpness: simulated)
    picked = {"a": jnp.array([0.0, 1.0, 0.0]), "b": jnp.array([1.0])}
    first = {"a": jnp.array([1.0, 0.0, 0.0]), "b": jnp.array([0.0])}

    def compared(selection, mask):
        term = client_updates.Gradients(objectives.l1, selection).term(setup)
        return term.compare(payload, jnp.zeros((1, 2, 2, 1)), jnp.zeros(1, jnp.int32), mask, None)

    whole = compared(None, None)
    assert whole.mask is None
    assert float(whole.distance) == pytest.approx(5.5)
    chosen = compared(objectives.fixed_share(picked), None)
    assert float(chosen.distance) == pytest.approx(3.5)
    np.testing.assert_array_equal(chosen.mask["a"], picked["a"])
    kept = compared(objectives.fixed_share(picked), first)  # the choice of an earlier probe is kept
    assert float(kept.distance) == pytest.approx(1.5)
    np.testing.assert_array_equal(kept.mask["a"], first["a"])


@pytest.mark.parametrize("name", presets.PRESETS)
def test_hyper_parameters_are_those_that_are_printed(name):
    s = preset(name)
    expected = OFF | PRINTED[name]
    assert {field: getattr(s, field) for field in expected} == expected
    assert [(weight, prior.name, prior.kind) for weight, prior in s.priors if weight] == PRIORS.get(name, [])
    blend, length, probe = BLENDS.get(name, (0.0, 0.01, "ascent"))
    assert (s.regularization.blend, s.regularization.length, s.regularization.probe) == (blend, length, probe)
    assert (getattr(s.compare, "selection", None) is not None) == (name in BLENDS)


#: Distance of a candidate's gradient by preset; test_distances.py compares these distances with computations by hand.
DISTANCES = {
    "dlg": objectives.squared_l2,
    "idlg": objectives.squared_l2,
    "inverting_gradients": objectives.cosine,
    "sapag": objectives.gaussian_kernel,
    "gradinversion": lambda a, b: 1e-3 * objectives.layer_norms(a, b),
    "bayes": objectives.gaussian_likelihood(0.01),
    "fedleak": lambda a, b: objectives.relative_l1(a, b) + objectives.cosine(a, b),
    "any_loss": lambda a, b: objectives.relative_l1(a, b) + objectives.cosine(a, b),
    "fedleak_paper": lambda a, b: objectives.l1(a, b) + objectives.cosine(a, b),
    "fedleak_upstream": lambda a, b: 2 * objectives.mean_l1(a, b) + objectives.cosine(a, b),
    "ggl": objectives.squared_l2,
    "rog": objectives.squared_l2,
}


@pytest.mark.parametrize("name", DISTANCES)
def test_gradients_are_compared_as_is_printed(name):
    rng = np.random.default_rng(0)
    a, b = ({"w": jnp.asarray(rng.standard_normal(7)), "b": jnp.asarray(rng.standard_normal(3))} for _ in range(2))
    found = float(preset(name).compare.distance(a, b))
    assert found == pytest.approx(float(DISTANCES[name](a, b)), rel=1e-5)


def test_laplace_noise_has_its_own_likelihood_and_a_search_may_be_far():
    a, b = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.5, 0.0])}
    found = presets.bayes(noise="laplace", noise_scale=0.5, tv=0.2)
    assert float(found.gradients.distance(a, b)) == float(objectives.laplace_likelihood(0.5)(a, b))
    assert [weight for weight, _ in found.priors] == [0.2]
    far = ((0.2, (6, 3, 30)), (0.3, (6, 3, 30)), (0.4, (12, 4, 30)), (0.45, (6, 3, 30)), (0.5, (2, 1, 30)))
    assert presets.row_space(far=True).shifts == far


def test_the_second_moment_of_row_spaces_is_short():
    """After a gradient of one and one of two, the second moment is that of a decay of 0.99."""
    optimizer, x = preset("row_space").optimizer, np.zeros(1, np.float32)
    state = optimizer.init(x)
    for gradient in (1.0, 2.0):
        update, state = optimizer.update(np.full(1, gradient, np.float32), state, x)
    mean = (0.9 * 0.1 + 0.1 * 2) / (1 - 0.9**2)
    square = (0.99 * 0.01 + 0.01 * 4) / (1 - 0.99**2)
    assert float(update[0]) == pytest.approx(-0.03 * mean / square**0.5, rel=1e-4)


@pytest.mark.parametrize(("name", "bound"), [("ggl", 3.0), ("rog", 5.0)])
def test_latents_are_searched_within_bounds(name, bound):
    z = preset(name).candidate.project(jnp.full((1, 4), 9.0))
    np.testing.assert_array_equal(z, bound)


def test_granted_statistics_are_matched_as_strongly_as_their_paper_does():
    weights = [[w for w, _ in presets.gradinversion(granted_statistics=granted).priors] for granted in (False, True)]
    assert weights == [[1e-4, 1e-6, 0.0], [1e-4, 1e-6, 0.1]]
    assert presets.gradinversion(group=1).consistency == 0.0


#: Length of the optimizer's first step for a gradient of one; for Adam and its variants, this is the learning rate.
RATES = {
    "inverting_gradients": 0.1, "sapag": 0.05, "gradinversion": 0.1, "bayes": 0.05, "fedleak": 0.05, "row_space": 0.03,
    "any_loss": 0.1,
    "fedleak_paper": 1e-4, "fedleak_upstream": 1e-2, "rog": 0.05,
}  # fmt: skip


def test_learning_rates_are_those_that_are_printed():
    for name, rate in RATES.items():
        optimizer, x = preset(name).optimizer, np.zeros(1, np.float32)
        updates, _ = optimizer.update(np.ones(1, np.float32), optimizer.init(x), x)
        np.testing.assert_allclose(updates, -rate, rtol=1e-4, err_msg=name)


def rates_of(optimizer, steps):
    """The learning rate of every step: for a gradient of one, it is the step length of Adam and its variants."""
    x = np.zeros(1, np.float32)
    state, rates = optimizer.init(x), []
    for _ in range(steps):
        updates, state = optimizer.update(np.ones(1, np.float32), state, x)
        rates.append(-updates.item())
    return rates


def test_learning_rates_fall_as_is_printed():
    steps = np.arange(16)
    cosine = 0.5 * (1 + np.cos(np.pi * steps / 16))
    for name in ("sapag", "gradinversion", "bayes", "fedleak", "fedleak_upstream", "rog"):
        np.testing.assert_allclose(
            rates_of(preset(name, iterations=16).optimizer, 16), RATES[name] * cosine, atol=1e-6, err_msg=name
        )
    tenths = (steps[:, None] >= [6, 10, 14]).sum(axis=1)  # 3/8, 5/8 and 7/8 of 16
    falling = rates_of(preset("inverting_gradients", iterations=16).optimizer, 16)
    np.testing.assert_allclose(falling, 0.1 * 0.1**tenths, rtol=1e-3)
    np.testing.assert_allclose(rates_of(preset("fedleak_paper", iterations=16).optimizer, 16), 1e-4, rtol=1e-3)
    held = rates_of(preset("row_space", iterations=10).optimizer, 10)
    np.testing.assert_allclose(held, [0.03] * 7 + [0.03, 0.0225, 0.0075], rtol=1e-3)
    np.testing.assert_allclose(rates_of(preset("ggl", iterations=9, search="adam").optimizer, 3), 0.1, rtol=1e-3)


def test_optimizers_that_take_the_place_of_a_presets_own():
    cosine = 0.5 * (1 + np.cos(np.pi * np.arange(8) / 8))
    for name in ("adam", "descent"):
        np.testing.assert_allclose(rates_of(_OPTIMIZERS[name](0.2, 8), 8), 0.2 * cosine, rtol=1e-3)
    annealed = _beginning_anew(0.2)
    found = [float(annealed(count)) for count in (0, 500, 999, 1000, 1500)]
    np.testing.assert_allclose(found, [0.2, 0.1, 0.1 * (1 + np.cos(0.999 * np.pi)), 0.2, 0.1], rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize("name", ["inverting_gradients", "fedleak_upstream"])
def test_signs_of_the_gradients_are_all_that_is_read_where_it_is_printed(name):
    optimizer, x = preset(name).optimizer, np.zeros(2, np.float32)
    state = optimizer.init(x)
    for gradient in ([1.0, -1e-3], [1e-2, -5.0]):  # without signs, the second step would have another length
        updates, state = optimizer.update(np.array(gradient, np.float32), state, x)
        np.testing.assert_allclose(updates, [-RATES[name], RATES[name]], rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 7, 9, 3), (1, 3, 2, 1)])
def test_the_median_filter_is_that_of_scipy(shape):
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    expected = scipy.ndimage.median_filter(x, size=(1, 5, 5, 1), mode="mirror")
    np.testing.assert_array_equal(jax.jit(median_5x5)(x), expected)


def test_only_large_images_are_filtered_unless_asked_for():
    small, large = (np.random.default_rng(0).random((1, size, 64, 1)).astype(np.float32) for size in (63, 64))
    by_size = presets.fedleak_upstream().enhance
    np.testing.assert_array_equal(by_size(small), small)
    np.testing.assert_array_equal(by_size(large), median_5x5(large))
    assert presets.fedleak_upstream(median_filter=True).enhance is median_5x5
    assert presets.fedleak_upstream(median_filter=False).enhance is None


@pytest.mark.parametrize("wrong", [0, -1, "many", 2.5])
def test_a_number_of_iterations_is_checked_where_the_schedule_is_made(wrong):
    for preset in (
        presets.inverting_gradients, presets.sapag, presets.fedleak, presets.row_space, presets.fedleak_upstream,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="iterations must be"):
            preset(wrong)
