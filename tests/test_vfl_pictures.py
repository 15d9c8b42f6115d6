"""Pictures of vertical runs show the arrays: pixels at their places, labels over the steps."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments._vfl.study import table_of
from jaxleak.attacks import party_records
from jaxleak.study._data_names import data_in_short
from jaxleak.study.parties import ADVERSARY, SplitCase, score_name, split_problem
from jaxleak.study.parties import _pictures as pictures
from jaxleak.study.parties._problem import _rows, whole_table

CASE = SplitCase("digits", shadow_records=64, victim_records=32, parties=3)


@pytest.fixture
def problem():
    return split_problem(CASE, 0)


def scaled(columns, table, rows, fitted):
    """Columns of a table, scaled by the range of the attacker's rows."""
    low, high = table.numeric[fitted].min(axis=0), table.numeric[fitted].max(axis=0)
    return np.clip((table.numeric[rows][:, columns] - low[columns]) / (high - low)[columns], 0, 1)


def test_every_party_knows_which_columns_of_the_table_it_holds(problem):
    table = whole_table("digits")
    rows = _rows(table.y, False, 0)
    for party, columns in enumerate(problem.columns):
        held = np.asarray(problem.shadow.x)[:, party, : problem.model.widths[party]]
        np.testing.assert_allclose(held, scaled(columns, table, rows[:64], rows[:64]), atol=1e-6)
    everything = np.concatenate(problem.columns)
    assert len(set(everything)) == len(everything) == sum(problem.model.widths)


@pytest.mark.parametrize("seed", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_images_have_every_pixel_at_its_place(seed, monkeypatch, tmp_path):
    """The seed decides which pixels are constant and therefore dropped."""
    drawn, problem = {}, split_problem(CASE, seed)
    monkeypatch.setattr(pictures.sheets, "comparison_sheet", lambda path, rows, **_: drawn.update(rows))
    victims = np.asarray(party_records.victims_features(problem.model, problem.victim.x, ADVERSARY))
    arrays = {
        "own": problem.own(problem.victim), "victims": victims, "estimate": victims, "baseline": np.zeros_like(victims),
    }  # fmt: skip
    captions = pictures.draw_pictures(tmp_path, "digits", CASE, [{}], [arrays], seed=seed)
    assert set(captions) == {"digits-features.png", "digits-images.png"}
    table = whole_table("digits")
    rows = _rows(table.y, False, seed)
    everything = np.sort(np.concatenate(problem.columns))
    truth = np.zeros((pictures.SHOWN, 64))
    truth[:, everything] = scaled(everything, table, rows[64:96], rows[:64])[: pictures.SHOWN]
    np.testing.assert_allclose(drawn["private images"].reshape(-1, 64), truth, atol=1e-6)
    exact, regression = (
        next(images for label, images in drawn.items() if name in label) for name in ("VFL", "own features")
    )
    np.testing.assert_array_equal(exact, drawn["private images"])
    own = regression.reshape(-1, 64) != 0
    assert not own[:, np.concatenate(problem.columns[1:])].any()
    held = next(images for label, images in drawn.items() if "attacker holds" in label).reshape(-1, 64)
    assert (held[:, np.concatenate(problem.columns[1:])] == 0.5).all()


def test_the_label_holder_has_a_panel_and_rows_with_its_own_truth(problem, monkeypatch, tmp_path):
    drawn, titles = {}, []
    monkeypatch.setattr(pictures.sheets, "comparison_sheet", lambda path, rows, **_: drawn.update(rows))
    monkeypatch.setattr(
        pictures.plots, "save_figure", lambda figure, path: titles.extend(a.get_title(loc="left") for a in figure.axes)
    )
    theirs, last = party_records.victims_features(problem.model, problem.victim.x, 2), problem.victim.x[:, 2]
    victims = np.asarray(party_records.victims_features(problem.model, problem.victim.x, ADVERSARY))
    arrays = {
        "own": problem.own(problem.victim), "victims": victims, "estimate": victims, "baseline": victims,
        "label_holder_own": np.asarray(last)[:, : problem.model.widths[2]],
        "label_holder_victims": np.asarray(theirs), "label_holder_estimate": np.asarray(theirs) + 0.5,
    }  # fmt: skip
    captions = pictures.draw_pictures(tmp_path, "digits", CASE, [{}], [arrays], seed=0)
    assert all("label holder" in text for text in captions.values())
    (panel,) = (title for title in titles if "label holder" in title)
    assert "error 0.2500" in panel
    assert f"{np.asarray(theirs).var(axis=0).mean():.4f} by always" in panel
    held, found = (images.reshape(-1, 64) for label, images in drawn.items() if "label holder" in label)
    own, truth = problem.columns[2], drawn["private images"].reshape(-1, 64)
    np.testing.assert_allclose(held[:, own], truth[:, own])
    np.testing.assert_allclose(found[:, own], truth[:, own])
    others = np.concatenate(problem.columns[:2])
    np.testing.assert_allclose(found[:, others], np.minimum(truth[:, others] + 0.5, 1), rtol=1e-6)


def test_labels_over_the_epoch_are_means_over_steps_and_seeds(monkeypatch, tmp_path):
    shown = {}
    monkeypatch.setattr(pictures.plots, "curves", lambda path, series, **options: shown.update(series, **options))
    first, second = np.zeros((30, 2), bool), np.zeros((30, 2), bool)
    first[15:], second[15:, 0] = True, True
    scores = [{"label_accuracy_baseline": 0.5}, {"label_accuracy_baseline": 0.7}]
    arrays = [{"right_free": first}, {"right_free": second}]
    captions = pictures.draw_pictures(tmp_path, "adult", SplitCase("adult"), scores, arrays, seed=3)
    assert set(captions) == {"adult-labels.png"}
    steps, percent = shown[pictures.ATTACK_LABELS["free"]]
    assert (steps[0], steps[-1], len(steps)) == (3, 30, 28)
    np.testing.assert_allclose(percent[:13], 0, atol=1e-9)
    np.testing.assert_allclose(percent[13:16], [25, 50, 75])
    np.testing.assert_allclose(percent[16:], 75)
    assert shown["levels"] == {pictures.ATTACK_LABELS["baseline"]: pytest.approx(60)}


def test_captions_name_the_file_of_a_table_and_not_its_whole_specification(monkeypatch, tmp_path):
    monkeypatch.setattr(pictures.plots, "curves", lambda *_, **__: None)
    case = SplitCase("csv:/home/me/patients.csv?label=income&categorical=zip,street&drop=id")
    arrays = {"right_free": np.ones((30, 2), bool)}
    captions = pictures.draw_pictures(
        tmp_path, "slug-of-it", case, [{"label_accuracy_baseline": 0.5}], [arrays], seed=0
    )
    assert captions["slug-of-it-labels.png"].startswith(
        "The share of the labels of patients.csv that each attack finds"
    )


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("csv:a/b,c.csv?label=x&drop=y", "b,c.csv"),
        ("folder:images/mine/?size=32", "mine"),
        ("idx:a/images.gz,a/labels.gz", "images.gz"),
        ("npz:x.npz", "x.npz"),
        ("photographs:64", "photographs:64"),
        ("digits", "digits"),
    ],
)
def test_data_are_named_by_their_file(spec, short):
    assert data_in_short(spec) == short


def test_one_seed_has_no_spread_and_clocks_and_sizes_are_no_scores():
    once = {"digits": [{"a": 0.5, "seconds_per_step": 1.0}], "adult": [{"b": 0.25, "shadow_records": 9.0}]}
    assert table_of(once) == [["a", "0.5000", "-"], ["b", "-", "0.2500"]]
    assert table_of({"digits": [{"a": 0.5}, {"a": 0.7}]}) == [["a", "0.6000 +- 0.1000"]]


def test_scores_have_the_names_that_a_person_would_say():
    stored = json.loads((Path(__file__).parent.parent / "docs" / "results" / "vflrecon.json").read_text())
    data = [f"_{name}{end}" for name in ("digits", "breast_cancer") for end in ("", "_std")]
    kept = [name for name in stored["metrics"] if not name.endswith((*data, "_per_step"))]
    others = ["label_accuracy_shared_adaptive", "chose_gradient_labels_own_bottom", "task_accuracy_change"]
    said = {name: score_name(name) for name in [*kept, *others]}
    assert len(kept) > 12
    assert len(set(said.values())) == len(said)
    assert not any("_" in text or text == name.replace("_", " ") for name, text in said.items())
    assert said["label_accuracy_shared_adaptive"].endswith("all initial parameters, and knows the defense")
    assert said["feature_mse_free_labels"] == "error of features: regression on own features and recovered labels"
    assert score_name("some_new_score") == "some new score"
