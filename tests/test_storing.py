"""Runs that the pages cite are copied completely, with their command, and only if they are the recorded ones."""

import json

import numpy as np
import pytest
from fake_study import CELL, FakeStudy, measurement, run

from docs import _nulls as nulls
from docs import _storing as storing
from experiments._ledger.papers import ledger_of
from jaxleak import metrics
from jaxleak.study.runner import Result


class CurveStudy(FakeStudy):
    """A `FakeStudy` with a curve and with the name of the job."""

    jobs = type("Jobs", (), {"identity": staticmethod(lambda job, seed: {"job": job, "seed": seed})})()

    def __call__(self, job, seed):
        return Result(super().__call__(job, seed).scores, {"curve": np.asarray([[0, 1.0], [25, 2.123456]])})


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    study, ledger = CurveStudy(measurement(CELL, 40.0)), ledger_of("cafe", tmp_path)
    run(study, ledger, tmp_path, seeds=(0, 1))
    monkeypatch.setattr(storing, "study_of", lambda paper, folder: study)
    monkeypatch.setattr(storing, "ledger_of", lambda paper: ledger)
    return study, tmp_path / "cafe"


def test_a_finished_run_is_copied_without_its_folder(tmp_path):
    options = {"seeds": [0], "audits": "/home/me/audited", "data": "runs/data"}
    content = {"status": "complete", "config": options | {"out": "/home/me"}, "provenance": {"commit": "0ff1ce"}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    path = storing.store_run(tmp_path, "kept", tmp_path)
    assert json.loads(path.read_text()) == content | {"config": options | {"audits": "audited", "out": None}}


def test_a_run_of_code_that_nobody_has_is_refused(tmp_path):
    content = {"status": "complete", "config": {}, "provenance": {"commit": "0ff1ce-dirty"}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="0ff1ce-dirty, which nobody else has"):
        storing.store_run(tmp_path, "kept", tmp_path)
    assert not (tmp_path / "kept.json").exists()


def test_a_run_that_was_stopped_is_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"status": "interrupted", "config": {}}))
    with pytest.raises(ValueError, match="the run is interrupted; run its command to the end"):
        storing.store_run(tmp_path, "kept", tmp_path)
    assert not (tmp_path / "kept.json").exists()


def test_a_cell_is_stored_with_the_scores_of_its_seed(recorded, tmp_path):
    _, runs = recorded
    stored = json.loads(storing.store_cell(runs, f"{CELL}@printed", seed=1, name="kept", results=tmp_path).read_text())
    assert stored["metrics"] == {"value": 41.0}
    assert stored["job"] == {"job": 40.0, "seed": 1}
    assert stored["curve"] == [[0.0, 1.0], [25.0, 2.123456]]
    assert stored["cell"] == CELL
    assert stored["paper"] == 31.83
    assert "--seeds 0 1 --record" in stored["command"]
    assert stored["provenance"]["machine"]


@pytest.mark.parametrize(
    ("cell", "seed", "message"),
    [
        (f"{CELL}@ours", 0, "is no measurement of cafe"),
        (f"{CELL}@printed", 2, "was not measured with seed 2"),
    ],
)
def test_a_cell_that_was_not_measured_is_refused(recorded, tmp_path, cell, seed, message):
    with pytest.raises(ValueError, match=message):
        storing.store_cell(recorded[1], cell, seed=seed, name="kept", results=tmp_path)


def test_a_run_that_is_not_the_recorded_one_is_refused(recorded, tmp_path):
    study, runs = recorded
    study.own = (measurement(CELL, 40.5),)
    with pytest.raises(ValueError, match="does not hold the run"):
        storing.store_cell(runs, f"{CELL}@printed", seed=0, name="kept", results=tmp_path)
    study.ran.append((40.5, 0))
    with pytest.raises(ValueError, match="holds another run"):
        storing.store_cell(runs, f"{CELL}@printed", seed=0, name="kept", results=tmp_path)


def test_a_folder_of_no_paper_is_refused(tmp_path):
    with pytest.raises(ValueError, match="name of the folder of runs must be one of cafe, cafe-iclr"):
        storing.store_cell(tmp_path / "runs", f"{CELL}@printed", seed=0, name="kept", results=tmp_path)


def test_what_knows_nothing_is_scored_as_by_trying_every_level():
    images = np.random.default_rng(0).random((5, 4, 4, 3)) ** 3
    found = nulls.null_scores(images, np.arange(5) % 3)
    tried = [np.mean(metrics.psnr(images, np.full_like(images, level))) for level in np.linspace(0, 1, 256)]
    assert found["best_constant"] == pytest.approx(max(tried), rel=1e-6)
    assert found["black"] == pytest.approx(tried[0])
    assert found["grey"] == pytest.approx(np.mean(metrics.psnr(images, np.full_like(images, 0.5))))
    mean = np.broadcast_to(images.mean(axis=0), images.shape)
    assert found["mean_image"] == pytest.approx(np.mean(metrics.psnr(images, mean)))
    assert found["mean_image"] > found["best_constant"]


def test_what_knows_the_label_alone_is_scored_on_the_other_images_of_the_class():
    images = np.random.default_rng(0).random((6, 7, 7, 1))
    images[5] = images[2] = np.clip(images[1] + 0.01, 0, 1)
    found = nulls.null_scores(images, np.array([0, 1, 1, 2, 0, 1]))  # image 3 is alone
    with_others = {0: [4], 4: [0], 1: [2, 5], 2: [1, 5], 5: [1, 2]}
    means = [np.mean(metrics.psnr(images[[i]], images[own].mean(axis=0)[None])) for i, own in with_others.items()]
    assert found["class_mean"] == pytest.approx(np.mean(means))
    following = [(0, 4), (4, 0), (1, 2), (2, 5), (5, 1)]
    others = [np.mean(metrics.psnr(images[[i]], images[[j]])) for i, j in following]
    assert found["same_class"] == pytest.approx(np.mean(others))
    assert found["class_mean_recognised"] == found["same_class_recognised"] == 0.6
    assert found["mean_image_recognised"] == 0
