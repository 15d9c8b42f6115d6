"""Every study refuses other data, weights or payloads than those of its run folder, and no file there is lost."""

import dataclasses
import json
import subprocess

import jax
import pytest
from tiny_studies import TINY, Killed, killed, studies, write_images  # noqa: F401

from experiments import cafe_scale, invert
from experiments._fedleak.jobs import Job
from experiments._ledger.studies import study_of
from jaxleak import audit, models
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import RunFolder
from jaxleak.study.parties import Runs, SplitCase, SplitJob
from jaxleak.study.rounds.runs import Setting
from jaxleak.study.sources import drawn, unavailable
from jaxleak.study.updates import sources_of_update

#: Studies tested here. `test_resumed` tests the others at the end of runs that it needs anyway. There, CAFE's tables
#: belong to the slow studies, and `cafe_scale` cannot be resumed, since its stub ends the run. `cafe_scale` takes long,
#: and the same code checks the data of all studies.
STUDIES = ("cafe_tables", "cafe_scale, exact", "cafe_scale, nested")


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_changed_data_are_refused_by_name_and_nothing_is_lost(studies, name):  # noqa: F811
    studies.draw(name, 0)
    studies.run(name)
    studies.refuse_other_data(name)


def test_results_on_other_data_can_be_made_anew(studies):  # noqa: F811
    studies.draw("invert", 0)
    first = studies.run("invert")
    studies.draw("invert", 1)
    second = studies.run("invert", fresh=True)
    assert first["psnr_grey"] != second["psnr_grey"]
    assert studies.run("invert")["psnr_grey"] == second["psnr_grey"]
    studies.draw("invert", 0)
    with pytest.raises(ConfigMismatchError):
        studies.run("invert")


def test_the_folder_of_named_data_is_said(studies, tmp_path, monkeypatch):  # noqa: F811
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_images(folder / "mnist.npz", number)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path / "0"))
    case = dataclasses.replace(TINY, data="mnist")
    invert.main(invert.Args(case, out=studies.out))
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path / "1"))
    with pytest.raises(ConfigMismatchError, match=f"the data mnist .*JAXLEAK_DATA_DIR is {tmp_path / '1'}"):
        invert.main(invert.Args(case, out=studies.out))


@pytest.mark.parametrize("paper", ["cafe", "fedleak", "vflrecon"])
def test_finished_runs_behind_the_ledger_are_bound_to_their_data(studies, paper):  # noqa: F811
    job = {
        "cafe": Setting("exact", num_samples=8),
        "fedleak": Job(dataclasses.replace(TINY, data=studies.spec)),
        "vflrecon": SplitJob(SplitCase("sensorless"), Runs(("shared",), True)),
    }[paper]
    studies.draw(paper, 0)
    study_of(paper, studies.out).runner(job, 0)
    study_of(paper, studies.out).runner(job, 0)
    assert studies.calls == 1
    studies.draw(paper, 1)
    with pytest.raises(ConfigMismatchError, match="results on other contents of the data"):
        study_of(paper, studies.out).runner(job, 0)


def test_given_weights_and_payloads_are_told_apart(tmp_path, monkeypatch):
    model = models.build("mlp", (8, 8, 1), 4)
    weights, payload, out = tmp_path / "weights.safetensors", tmp_path / "payload.npz", tmp_path / "out"
    write_images(tmp_path / "d.npz", 0)
    case = dataclasses.replace(TINY, data=f"npz:{tmp_path / 'd.npz'}", weights=weights)
    args = invert.Args(case, payload=payload, image_shape=(8, 8, 1), num_classes=4, out=out)

    def draw(seed):
        models.save_weights(weights, model.init(jax.random.key(seed)))

    def save(seed):
        saving = invert.Args(case, seeds=(seed,), save_payload=payload, out=tmp_path / "client", fresh=True)
        invert.main(saving)

    monkeypatch.setattr(audit, "invert", killed)
    draw(0)
    save(0)
    with pytest.raises(Killed):
        invert.main(args)
    save(1)
    with pytest.raises(ConfigMismatchError, match=r"other contents of the payload \(SHA"):
        invert.main(args)
    save(0)
    draw(1)
    with pytest.raises(ConfigMismatchError, match=r"other contents of the weights \(SHA"):
        invert.main(args)
    with pytest.raises(ConfigMismatchError, match=r"other contents of the weights .*weights.safetensors \(SHA"):
        invert.main(invert.Args(case, save_payload=payload, out=tmp_path / "client"))


def test_public_images_are_among_the_sources(tmp_path):
    case = dataclasses.replace(TINY, attack="ggl", data="digits", public_data="held_out")
    own, public = sources_of_update(case, 0).items()
    assert own[0] == "the data digits (8 samples drawn with seed 0)"
    assert public[0] == "the public images digits (at most 2048, drawn with seed 0)"
    assert len(public[1]()["x"]) > 1000
    assert len(sources_of_update(dataclasses.replace(case, public_data="synthetic"), 0)) == 1


def test_a_sweep_ends_with_the_status_of_the_size_that_is_refused(tmp_path, monkeypatch):
    refused = subprocess.CompletedProcess([], returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(SystemExit) as end:
        cafe_scale.main(cafe_scale.Args(preset="scale", out=tmp_path))
    assert end.value.code == 1
    assert not (tmp_path / "results.json").exists()


class TestFile:
    def test_arrays_bind_once_work_has_begun(self, tmp_path):
        RunFolder(tmp_path, "study", {}, fresh=False).sources.bind(drawn("digits", 4, 0))
        assert not (tmp_path / "sources.json").exists()  # nothing was computed on these data
        folder = RunFolder(tmp_path, "study", {}, fresh=False)
        folder.log(cell=1)
        folder.sources.bind(drawn("digits", 4, 0))
        stored = json.loads((tmp_path / "sources.json").read_text())
        assert list(stored) == ["the data digits (4 samples drawn with seed 0)"]

    @pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', "[" * 100_000])
    def test_a_damaged_one_is_refused(self, tmp_path, content):
        (tmp_path / "sources.json").write_text(content)
        with pytest.raises(ConfigMismatchError, match=r"sources.json is damaged, so nobody knows which data.*--fresh"):
            RunFolder(tmp_path, "study", {}, fresh=False)
        RunFolder(tmp_path, "study", {}, fresh=True)

    def test_results_without_one_are_refused(self, tmp_path):
        RunFolder(tmp_path, "study", {}, fresh=False).log(cell=1)
        (tmp_path / "sources.json").unlink()
        with pytest.raises(ConfigMismatchError, match=r"no sources.json says which data they come from; .*--fresh"):
            RunFolder(tmp_path, "study", {}, fresh=False).sources.bind(drawn("digits", 4, 0))
        RunFolder(tmp_path, "study", {}, fresh=True).sources.bind(drawn("digits", 4, 0))


def test_what_cannot_be_loaded_from_one_folder_may_be_in_another(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    assert "it is not set" in unavailable("mnist")
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    assert "it is not set" not in unavailable("mnist")
