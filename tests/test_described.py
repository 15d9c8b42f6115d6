"""Descriptions of the settings of an attack in words, including numbers that a preset, a model or a defense decides."""

import json
import logging

import numpy as np
import optax
import pytest

from jaxleak import objectives
from jaxleak._in_words import in_words
from jaxleak.attacks import client_updates, presets
from jaxleak.study.updates import Case, resolved, settings_as_run
from jaxleak.study.updates import _problem as problem
from jaxleak.study.updates._described import described_settings, iterations_in_words, settings_in_rows

SMALL = ((8, 8, 1), 10)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (presets.signed(optax.sgd(0.25)), "scale_by_sign, then identity, then scale(step_size=-0.25)"),
        (
            presets.cosine_decay_adam(0.05, 7),
            "scale_by_adam(b1=0.9, b2=0.999, eps=1e-08, eps_root=0, nesterov=no), then scale_by_learning_rate("
            "learning_rate=cosine_decay_schedule(alpha=0, decay_steps=7, exponent=1, init_value=0.05), m=-1)",
        ),
        (objectives.weighted([(2.0, objectives.l1), (1.0, objectives.cosine)]), "2 l1 + 1 cosine"),
        (client_updates.smoothing(1.0, 30.0), "Smoothing(start=1, end=30, hold=0, finish=0)"),
        (client_updates.pixels("grey").init, "pixels(box=(0, 1), start=grey)"),
        ({"a": None, "b": (True, 10**9, np.float32(0.5))}, "{a: none, b: (yes, 1000000000, 0.5)}"),
        (np.zeros(3), "ndarray"),
    ],
)
def test_a_value_is_said_by_what_it_was_made_of(value, text):
    assert in_words(value) == text


def test_what_is_left_to_the_model_is_resolved():
    found = settings_as_run(Case(model="mlp", batch_size=4, labels="given", restarts=2), *SMALL)
    assert json.loads(json.dumps(found)) == found
    assert (found["iterations"], found["iterations_of_preset"], found["restarts"]) == (400, 1000, 2)
    assert found["comparison"] == "1 relative_l1 + 1 cosine"
    assert found["labels_from"] == "granted"
    assert found["smoothing"]["end"] == 100.0
    variation, activation = found["priors"]
    assert variation == {"name": "tv", "kind": "anisotropic", "weight": variation["weight"]}
    assert variation["weight"] > 0
    assert activation["weight"] == 1e-4
    rows = dict(settings_in_rows(found))
    assert rows["smoothing of kinks"] == "Smoothing(start=4, end=100, hold=0, finish=0)"
    assert rows["other priors"] == "activation (mean), weight 0.0001"
    assert rows["quantile made white"] == "0.999"


def test_an_attacker_who_knows_the_noise_is_described_as_it_compares():
    case = Case(model="mlp", attack="inverting_gradients", defense="gaussian", strength=0.1)
    unaware, aware = (settings_as_run(Case(**(vars(case) | {"adaptive": knows})), *SMALL) for knows in (False, True))
    assert unaware["comparison"] == "cosine"
    assert unaware["priors"] == [{"name": "tv", "kind": "anisotropic", "weight": 0.1}]
    assert "likelihood" in aware["comparison"]
    assert aware["priors"][0]["kind"] == "sum"


def test_a_closed_form_has_nothing_to_set():
    assert settings_in_rows(described_settings(Case(attack="patch_embedding"), None, None)) == [
        ("labels", "solved for together with the images")
    ]


@pytest.mark.parametrize(
    ("taken", "own", "text"),
    [
        (400, 4800, "400 iterations; the preset's own number is 4,800, so that this search is shorter"),
        (400, 300, "400 iterations; the preset's own number is 300, so that this search is longer"),
        (1, 1, "1 iteration"),
        (1200, None, "1,200 iterations"),
    ],
)
def test_iterations_are_said_beside_the_presets_own(taken, own, text):
    assert iterations_in_words({"iterations": taken, "iterations_of_preset": own}) == text


def test_pixels_that_an_attack_leaves_free_are_no_matter_of_units(caplog):
    free = {name: resolved(Case(attack=name)).free_pixels for name in ("dlg", "fedleak", "fedleak_upstream")}
    assert free == {"dlg": True, "fedleak": False, "fedleak_upstream": False}
    outside = np.array([-3.0, 0.25, 4.0])
    with caplog.at_level(logging.WARNING, "jaxleak"):
        np.testing.assert_array_equal(problem._within(Case(attack="dlg"), outside), [0, 0.25, 1])
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("67% of the estimate's pixels lie outside [0, 1] (-3 to 4)")
    assert message.endswith("are clipped, since dlg does not keep its pixels in [0, 1]")
    assert problem._within(Case(), outside) is outside  # only scoring checks for a wrong unit
