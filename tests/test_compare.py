"""`jaxleak compare`: the verdicts of several audits side by side."""

import csv
import json

import pytest

from jaxleak.__main__ import main

ASKED = {
    "model": "mlp", "image": [4, 4, 1], "minutes": 1.0, "seed": 0, "samples": 2, "weights": 64 * "a",
    "defense": None, "strength": None,
}  # fmt: skip
FOUND = {"verdict": "leaks", "label_count": 2, "images_certified": 2, "attacked": True, "psnr": 31.26, "ssim": 0.96}


def audited(folder, headline, *, metrics=(), config=(), **changed):
    """Make a run folder like that of an audit; returns its path."""
    folder.mkdir()
    results = {
        "experiment": "audit",
        "headline": headline,
        "metrics": {**FOUND, **dict(metrics)},
        "config": {**ASKED, **dict(config)},
    }
    (folder / "results.json").write_text(json.dumps({**results, **changed}))
    return str(folder)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = audited(tmp_path / "plain", "leaks images and labels")
    noisy = audited(
        tmp_path / "noisy",
        "leaks labels",
        metrics={"images_certified": 0, "psnr": 12.0, "ssim": 0.1},
        config={"defense": "gaussian", "strength": 0.01},
    )
    return plain, noisy


def test_a_row_for_every_audit_and_the_defense_beside_it(folders, capsys, tmp_path):
    assert main(["compare", "plain", "noisy", "--csv", "both.csv"]) == 0
    shown = capsys.readouterr().out
    for text in ("2 of 2", "0 of 2", "31.3", "12.0", "0.96", "0.10"):
        assert text in shown
    assert "differ in" not in shown  # the defense may differ
    assert "proves no safety" in shown
    with open("both.csv", newline="") as file:
        plain, noisy = csv.DictReader(file)
    assert (plain["headline"], noisy["headline"]) == ("leaks images and labels", "leaks labels")
    assert (plain["defense"], noisy["defense"], noisy["strength"]) == ("not stated", "gaussian", "0.01")
    assert float(plain["psnr"]) == 31.26


def test_whatever_else_differs_is_named(folders, tmp_path, capsys):
    audited(
        tmp_path / "short",
        "leaks labels",
        metrics={"attacked": False},
        config={"minutes": 0.5, "seed": 1, "weights": 64 * "b"},
    )
    assert main(["compare", "plain", "short"]) == 0
    shown = capsys.readouterr().out
    assert "the audits differ in minutes (1.0, 0.5), seed (0, 1), weights." in shown
    assert "give more --minutes" in shown


def test_inconsistent_inputs_have_no_counts_and_scores_may_be_missing(tmp_path, capsys):
    without = {"psnr": None, "ssim": None}
    first = audited(tmp_path / "a", "inputs inconsistent", metrics={"verdict": "inputs inconsistent"})
    content = json.loads((tmp_path / "a" / "results.json").read_text())
    for name in without:
        del content["metrics"][name]
    (tmp_path / "a" / "results.json").write_text(json.dumps(content))
    assert main(["compare", first]) == 0
    shown = capsys.readouterr().out
    assert "PSNR" not in shown
    assert " of 2" not in shown


def test_what_is_no_audit_is_refused_by_name(folders, tmp_path, capsys):
    audited(tmp_path / "study", "", experiment="invert")
    older = audited(tmp_path / "older", "leaks labels", config={})
    content = json.loads((tmp_path / "older" / "results.json").read_text())
    del content["config"]
    (tmp_path / "older" / "results.json").write_text(json.dumps(content))
    for names, message in (
        (["plain", "nosuch"], "nosuch holds no results.json"),
        (["plain", "study"], "of the study 'invert'"),
        (["plain", older], "did not note what was asked"),
        (["plain", "plain"], "must be different ones"),
    ):
        assert main(["compare", *names]) == 1
        assert message in capsys.readouterr().err
