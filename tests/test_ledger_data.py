"""The ledger stores which samples it was measured on, and refuses to compare or record results on other samples."""

import json

import numpy as np
import pytest
from fake_study import CELL, OTHER, FakeStudy, measurement, run

from experiments import reproduce
from experiments._ledger.papers import FOLDER, PAPERS, ledger_of
from experiments._ledger.studies import study_of
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study.ledger import MEASURED, DataSets, data_of, recheck


def _write(folder, seed, names=("yale32",)):
    """Write data sets of noise that depends on the seed; returns the folder."""
    folder.mkdir(exist_ok=True)
    noise = np.random.default_rng(seed)
    for name in names:
        np.savez(folder / f"{name}.npz", x=noise.integers(0, 256, (12, 4, 4, 1), np.uint8), y=np.arange(12) % 3)
    return folder


@pytest.fixture
def at(tmp_path, monkeypatch):
    """A function that makes the data of a seed the available ones; every seed has its own folder."""

    def choose(seed, names=("yale32",)):
        monkeypatch.setenv("JAXLEAK_DATA_DIR", str(_write(tmp_path / f"data{seed}", seed, names)))

    return choose


def test_other_samples_are_refused_by_name_with_what_was_expected_and_found(at, tmp_path):
    at(0)
    assert DataSets(tmp_path).compare(["yale32"]) == {"yale32": "no fingerprint is stored"}
    assert DataSets(tmp_path).add(["yale32", "yale32?size=8"]) == ["yale32"]
    known = DataSets(tmp_path)
    assert known.add(["yale32"]) == []
    assert known.compare(["yale32?size=8"]) == {"yale32": ""}
    assert known.known["yale32"].samples == 12
    known.require(["yale32", "mnist"])  # MNIST has no fingerprint
    assert known.unknown(["yale32", "mnist"]) == ["mnist"]
    at(1)
    here = DataSets(tmp_path / "other")
    here.path.parent.mkdir()
    here.add(["yale32"])
    then, now = known.known["yale32"].sha256[:12], here.known["yale32"].sha256[:12]
    message = rf"other samples in yale32 \(.* 12 samples with the SHA-256 {then}, .* 12 with {now}\); docs/data.md"
    with pytest.raises(ConfigMismatchError, match=message):
        known.require(["yale32"])
    before = known.path.read_bytes()
    with pytest.raises(ConfigMismatchError, match=message):
        known.add(["yale32"])
    assert known.path.read_bytes() == before


@pytest.mark.parametrize("change", ["order", "label", "table"])
def test_order_labels_and_columns_of_tables_count(change, tmp_path, monkeypatch):
    name = "sensorless" if change == "table" else "yale32"
    x, y = np.random.default_rng(0).random((12, 3)).astype(np.float32), np.arange(12) % 3
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / f"{name}.npz", x=x, y=y)
        monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path / folder))
        data_sets = DataSets(tmp_path)
        if folder == "before":
            data_sets.add([name])
        if change == "order":
            x, y = x[::-1], y[::-1]
        elif change == "label":
            y = np.roll(y, 1)
        else:
            x = 2 * x  # scaled to [0, 1], this table is unchanged
    assert "other samples" in data_sets.compare([name])[name]


@pytest.fixture
def ledger(tmp_path):
    return ledger_of("cafe", tmp_path)


def test_a_recheck_runs_nothing_on_other_samples_and_says_where_none_are_known(at, ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0, data=("yale32",)))
    run(study, ledger, tmp_path)
    entry = ledger.entries[CELL, "printed", ""]
    at(0)
    unknown = recheck("cafe", entry, FakeStudy(*study.own), DataSets(tmp_path))
    assert (unknown.agrees, unknown.note) == (
        True,
        "no fingerprint of yale32 is stored, so the samples may be other ones",
    )
    DataSets(tmp_path).add(["yale32"])
    same = recheck("cafe", entry, FakeStudy(*study.own), DataSets(tmp_path))
    assert str(same) == f"agrees: cafe/{CELL}/printed, seed 0: 40, again 40"
    at(1)
    other = recheck("cafe", entry, again := FakeStudy(*study.own), DataSets(tmp_path))
    assert (other.agrees, other.again, again.ran) == (None, None, [])
    assert str(other).startswith(f"could not run: cafe/{CELL}/printed: other samples in yale32 (")


def test_what_a_machine_lacks_is_no_disagreement(at, ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path)
    entry = ledger.entries[CELL, "printed", ""]
    for error in (FileNotFoundError("mnist.npz is missing"), MemoryError("21 GB"), ImportError("no optax")):
        assert recheck("cafe", entry, FakeStudy(measurement(CELL, error))).agrees is None
    assert recheck("cafe", entry, FakeStudy(measurement(CELL, ValueError("broken")))).agrees is False
    short = measurement(CELL, 40.0, reason="asks for 800 images of 12")
    assert recheck("cafe", entry, FakeStudy(short)).note == "asks for 800 images of 12"


class TestCommand:
    """`python -m experiments.reproduce` with other data than the ledger's, or with missing data."""

    @pytest.fixture
    def reproduced(self, ledger, tmp_path, monkeypatch):
        study = FakeStudy(measurement(CELL, 40.0, data=("yale32",)), measurement(OTHER, 9.0, data=("mnist",)))
        monkeypatch.setattr(reproduce, "ledger_of", lambda paper: ledger)
        monkeypatch.setattr(reproduce, "study_of", lambda paper, folder: study)
        monkeypatch.setattr(reproduce, "FOLDER", tmp_path)

        def run(**options):
            study.ran = []
            return reproduce.main(reproduce.Args(paper=("cafe",), out=tmp_path / "out", budget=10.0, **options))

        (tmp_path / "out" / "cafe").mkdir(parents=True)
        run.study = study
        return run

    def test_a_check_on_other_samples_counts_nothing_and_ends_with_an_error(self, reproduced, at, tmp_path, capsys):
        at(0, ("yale32", "mnist"))
        assert reproduced(record=True) == 0
        assert "no fingerprint is stored of mnist, yale32; --data-sets --record stores it" in capsys.readouterr().out
        assert reproduced(data_sets=True) == 1
        assert reproduced(data_sets=True, record=True) == 0
        assert capsys.readouterr().out.endswith(
            "mnist: the 12 samples of the ledger\nyale32: the 12 samples of the ledger\n"
        )
        assert reproduced(check=2) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.partition(" ")[0] for line in said] == ["1/2", "agrees:", "2/2", "agrees:", "2"]
        assert said[0].endswith(" runs again")
        at(1, ("yale32",))
        assert reproduced(check=2, record=True) == 1
        said = capsys.readouterr().out
        assert f"could not run: cafe/{CELL}/printed: other samples in yale32" in said
        assert f"could not run: cafe/{OTHER}/printed: mnist needs " in said
        assert "0 of 0 agree, 2 could not run\n" in said
        assert "DIFFERS" not in said
        assert not (tmp_path / "checked.json").exists()
        assert reproduced.study.ran == []

    def test_nothing_is_recorded_on_other_samples(self, reproduced, at, ledger, tmp_path):
        at(0)
        DataSets(tmp_path).add(["yale32"])
        at(1)
        with pytest.raises(ConfigMismatchError, match="other samples in yale32"):
            reproduced(record=True, cell=(CELL,))
        assert reproduced.study.ran == []
        assert not ledger.path.exists()
        assert reproduced(cell=(CELL,)) == 0  # other data may be measured but are not recorded


def test_every_measured_cell_has_data_whose_fingerprint_is_stored(tmp_path):
    stored = json.loads((FOLDER / "data.json").read_text())
    assert all(len(found["sha256"]) == 64 and found["samples"] > 0 for found in stored.values())
    for paper in PAPERS:
        assert set(data_of(study_of(paper, tmp_path / paper), ledger_of(paper))) <= set(stored)


@pytest.mark.parametrize("paper", ["cafe", "cafe-iclr", "vflrecon"])
def test_a_measurement_names_all_data_that_its_jobs_read(paper, tmp_path):
    study, ledger = study_of(paper, tmp_path), ledger_of(paper)
    measured = {key for key, entry in ledger.entries.items() if entry.status in MEASURED}
    for m in study.measurements():
        if m.key in measured:
            read = {name for job in m.jobs for name in study.runner.jobs.sources(job, 0)}
            assert {name.split()[2] for name in read} == set(m.data)
