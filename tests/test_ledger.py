"""The ledger: verdicts by rule, entries that survive, a queue that nothing stops, and pages that say what it holds."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_studies import TINY, Killed, studies  # noqa: F401

from experiments import reproduce
from experiments._fedleak.jobs import Job
from experiments._ledger import check, pages, queue, sheets, status
from experiments._ledger.entry import Entry, as_record, from_record
from experiments._ledger.measurement import Measurement
from experiments._ledger.queue import Queue, impossible
from experiments._ledger.store import PAPERS, Ledger
from experiments._ledger.studies import study_of
from experiments._ledger.verdict import agrees, better, verdict
from jaxleak.study import Progress
from jaxleak.study._folder import take_back_folders
from jaxleak.study.cells import score_named
from jaxleak.study.runner import Result

CELL, OTHER, THIRD = "table2/cafe/cifar10", "table2/dlg/mnist", "table3/cafe/k10/cifar10"
PRINTED = {CELL: 31.83, OTHER: 7.96, THIRD: 30.83}


class FakeStudy:
    """Jobs are the numbers that they give, plus the seed; one that is an error is raised. It is its own runner."""

    def __init__(self, *measurements, slow=()):
        self.own, self.slow, self.ran, self.runner, self.spent = measurements, slow, [], self, 0.0

    def measurements(self):
        return iter(self.own)

    def impossible(self):
        return {THIRD: "a statement about other cells"}

    def each(self, job):
        return 100.0 if job in self.slow else 1.0

    def lacking(self, jobs, seeds):
        return sum(self.each(job) for job in jobs for seed in seeds if not self.done(job, seed))

    cost = lacking

    def done(self, job, seed):
        return (job, seed) in self.ran

    def __call__(self, job, seed):
        if isinstance(job, Exception):
            raise job
        if not self.done(job, seed):
            self.ran.append((job, seed))
        truth = np.full((3, 4, 4, 1), 0.1 if job < 20 else 0.9)
        images = {} if job == 9.0 else {"truth": truth, "estimate": np.full_like(truth, job / 100)}
        return Result({"value": job + seed}, images)


def measurement(cell, job, variant="printed", **fields):
    return Measurement(cell, variant, "", (job,), score_named("value"), **fields)


@pytest.fixture
def ledger(tmp_path):
    return Ledger("cafe", tmp_path)


def run(study, ledger, tmp_path, *, seeds=(0,), budget=10.0, record=True):
    with Progress() as progress:
        queue = Queue(study, ledger, tmp_path, record=record)
        return list(queue.run(list(study.measurements()), seeds, budget, progress))


@pytest.mark.parametrize(
    ("paper", "values", "how", "found"),
    [
        (30.0, [29.0, 31.0], "higher", "met"),  # 30 + 1
        (30.0, [29.0, 29.0], "higher", "missed"),
        (30.0, [29.0, 30.9], "higher", "met"),
        (0.1, [0.2, 0.08], "lower", "met"),  # .14 - .06
        (0.1, [0.11, 0.11], "lower", "missed"),
        (2.0, [2.09], "equal", "met"),  # within 5 %
        (2.0, [2.11], "equal", "missed"),
        (2.0, [1.89], "equal", "missed"),
        (2.0, [1.5, 2.3], "equal", "met"),  # 1.9 +- .4
        (30.0, [math.nan, 40.0], "higher", "missed"),
        (30.0, [math.inf], "higher", "missed"),
    ],
)
def test_verdicts_go_by_the_rule(paper, values, how, found):
    assert verdict(paper, values, how)[0] == found


def test_what_is_better_depends_on_the_cell():
    assert better("table2/cafe/cifar10", "dB") == "higher"
    assert better("table5/single/cifar10", "iterations") == "lower"  # of CAFE
    assert better("table5/fedleak/label-skew/3", "dB") == "higher"
    assert better("table6-feature/no-defense/sensorless", "1") == "lower"
    assert better("table6-label/vfldefender/cifar10", "%") == "equal"
    assert better("text-fake-gradients/fake/cifar10", "dB") == "equal"
    assert better("table11/true/iter8000", "nats") == "equal"


def test_entries_survive_the_file(ledger, tmp_path):
    entry = Entry(CELL, "ours", "missed", "why", 31.83, "dB", value=0.0, spread=math.nan, seeds={0: 0.0, 3: math.nan})
    ledger.record([entry])
    (again,) = Ledger("cafe", tmp_path).entries.values()
    assert as_record(again).keys() == as_record(entry).keys()
    assert again.value == 0.0
    assert math.isnan(again.seeds[3])
    assert list(again.seeds) == [0, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "table2/nosuch"}, "no printed cell"),
        ({"paper": 3.0}, "printed as 31.83 dB"),
        ({"status": "good"}, "status must be"),
        ({"variant": "mine"}, "variant must be"),
        ({"seeds": {}}, "does not go with"),
        ({"status": "not run"}, "does not go with"),
        ({"more": 1}, "unknown fields"),
        ({"why": None}, "lacks"),
    ],
)
def test_a_line_that_is_no_entry_is_refused_by_its_number(change, message, tmp_path):
    record = as_record(Entry(CELL, "ours", "met", "why", 31.83, "dB", value=40.0, spread=0.0, seeds={0: 40.0}))
    assert from_record(record)
    changed = {name: value for name, value in (record | change).items() if value is not None}
    (tmp_path / "cafe.jsonl").write_text(json.dumps(record) + "\n" + json.dumps(changed) + "\n")
    with pytest.raises(ValueError, match=f"line 2: .*{message}"):
        Ledger("cafe", tmp_path)


def test_a_failure_is_recorded_and_stops_nothing(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, ValueError("no such thing")), measurement(OTHER, 9.0))
    run(study, ledger, tmp_path)
    stored = Ledger("cafe", tmp_path).entries
    failed, met = stored[CELL, "printed", ""], stored[OTHER, "printed", ""]
    assert (failed.status, failed.why, failed.value) == ("failed", "ValueError: no such thing", None)
    assert (met.status, met.value, met.seeds) == ("met", 9.0, {0: 9.0})
    assert met.command.startswith(f"python -m experiments.reproduce --paper cafe --cell {OTHER} --variant printed")
    assert met.commit
    assert met.versions
    assert met.date
    # What failed is not tried again: nothing is repeated for its outcome.
    assert run(study, ledger, tmp_path) == []


def test_too_little_memory_is_impossible(ledger, tmp_path):
    (entry,) = run(FakeStudy(measurement(CELL, MemoryError("21 GB"))), ledger, tmp_path)
    assert entry.status == "impossible"
    assert "21 GB" in entry.why


def test_every_cell_gets_its_first_number_before_any_gets_a_second(ledger, tmp_path):
    run(FakeStudy(measurement(THIRD, 5.0)), ledger, tmp_path)
    of_three = [measurement(cell, job, "reduced") for cell, job in ((THIRD, 3.0), (CELL, 1.0), (OTHER, 2.0))]
    ended = run(FakeStudy(measurement(CELL, 4.0), *of_three, slow=(2.0, 4.0)), ledger, tmp_path, budget=1e6)
    assert [(entry.cell, entry.variant) for entry in ended] == [
        (CELL, "reduced"),
        (OTHER, "reduced"),
        (THIRD, "reduced"),  # has a number that was printed
        (CELL, "printed"),
    ]


def test_the_cheapest_run_first_and_what_does_not_fit_has_its_cost(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 9.0), slow=(40.0,))
    first, second = run(study, ledger, tmp_path, budget=50.0)
    assert (first.cell, first.status) == (OTHER, "met")
    assert (second.cell, second.status) == (CELL, "not run")
    assert "about 2 minutes" in second.why
    assert study.ran == [(9.0, 0)]


def test_compiled_programs_are_given_up_between_jobs_before_they_fill_the_memory_maps(ledger, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(queue, "forget_when_many", lambda: asked.append(len(study.ran)))
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 9.0))
    run(study, ledger, tmp_path)
    assert asked == [0, 1]


def test_a_job_that_serves_several_cells_goes_first(ledger, tmp_path):
    study = FakeStudy(measurement(THIRD, 1.0), measurement(CELL, 40.0), measurement(OTHER, 40.0))
    study.each = {1.0: 3.0, 40.0: 4.0}.get
    run(study, ledger, tmp_path)
    assert study.ran == [(40.0, 0), (1.0, 0)]


def test_further_seeds_are_added_and_an_estimate_never_replaces_a_number(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0))
    run(study, ledger, tmp_path)
    run(study, ledger, tmp_path, seeds=(0, 1, 2), budget=0.0)
    assert ledger.entries[CELL, "printed", ""].seeds == {0: 40.0}
    run(study, ledger, tmp_path, seeds=(0, 1, 2))
    entry = ledger.entries[CELL, "printed", ""]
    assert entry.seeds == {0: 40.0, 1: 41.0, 2: 42.0}
    assert (entry.value, round(entry.spread, 3)) == (41.0, 0.816)
    assert run(study, ledger, tmp_path, seeds=(0, 1)) == []
    assert study.ran == [(40.0, 0), (40.0, 1), (40.0, 2)]


def test_a_number_that_is_read_back_keeps_its_commit_and_time(ledger, tmp_path, monkeypatch):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 40.0))
    monkeypatch.setattr("experiments._ledger.queue.commit", lambda: "first")
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path)
    seconds = ledger.entries[CELL, "printed", ""].seconds
    study.ran = [(40.0, 0)]
    monkeypatch.setattr("experiments._ledger.queue.commit", lambda: "second")
    run(study, ledger, tmp_path, seeds=(0, 1))
    assert ledger.entries[OTHER, "printed", ""].commit == "first, second"
    assert ledger.entries[OTHER, "printed", ""].seconds >= seconds


def test_a_measurement_whose_set_up_changed_is_run_again(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0, "reduced")), ledger, tmp_path)
    changed = replace(measurement(CELL, 30.0, "reduced"), differs="half of the images")
    run(FakeStudy(changed), ledger, tmp_path, budget=0.0)
    assert ledger.entries[CELL, "reduced", ""].value == 40.0
    run(FakeStudy(changed), ledger, tmp_path)
    entry = ledger.entries[CELL, "reduced", ""]
    assert (entry.value, entry.differs) == (30.0, "half of the images")


def test_entries_that_no_measurement_has_are_forgotten(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 9.0)), ledger, tmp_path)
    ledger.forget_all_but({(OTHER, "printed", "")})
    ledger.record([])
    assert list(Ledger("cafe", tmp_path).entries) == [(OTHER, "printed", "")]


def test_nothing_is_written_without_record(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path, record=False)
    assert not ledger.path.exists()


def test_a_cells_status_is_that_of_its_most_faithful_measurement(ledger, tmp_path):
    study = FakeStudy(
        measurement(CELL, 20.0, "reduced"),
        measurement(CELL, 99.0, "ours"),
        measurement(CELL, 20.0, "printed", reason="asks for 9 images of 8"),
        measurement(OTHER, 9.0, "ours"),
    )
    run(study, ledger, tmp_path)
    ledger.record(impossible(study, ledger))
    assert status.cell_status(ledger, CELL)[0] == "missed"
    assert status.cell_status(ledger, OTHER)[0] == "met"
    assert status.cell_status(ledger, THIRD)[0] == "impossible"
    found = status.summary([ledger])
    assert (found["cells"], found["met"], found["missed"], found["impossible"]) == (186, 1, 1, 1)
    assert (found["measured"], found["paper_algorithm"], found["as_printed"]) == (2, 1, 0)
    assert sum(found[name] for name in ("met", "missed", "impossible", "no entry")) == 186


def test_a_recheck_runs_the_recorded_seed_and_notices_a_change(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 9.0))
    run(study, ledger, tmp_path, seeds=(3,))
    chosen, longer = check.drawn([ledger], 5, seed=0, longest=60.0)
    assert (len(chosen), longer) == (2, 0)
    assert check.drawn([ledger], 5, seed=0, longest=-1.0) == ([], 2)
    again = check.recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy(measurement(CELL, 40.0)))
    assert (again.seed, again.again, again.agrees) == (3, 43.0, True)
    changed = check.recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy(measurement(CELL, 50.0)))
    assert not changed.agrees
    assert not check.recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy()).agrees
    assert "random measurements whose run" not in pages.pages([ledger])["index.md"]
    check.record([again, changed], 30.0, tmp_path)
    overview = pages.pages([ledger])["index.md"]
    assert "2 random measurements whose run had taken at most 30 seconds were run again. 1 agree" in overview
    assert f"These differ: cafe/{CELL}/printed." in overview


def test_numbers_agree_within_the_spread_or_the_tolerance():
    assert agrees(100.0, 104.9, 0.0)
    assert not agrees(100.0, 105.1, 0.0)
    assert agrees(100.0, 109.0, 10.0)
    assert agrees(math.nan, math.nan, 0.0)
    assert not agrees(math.nan, 1.0, 0.0)


def test_pages_show_what_the_ledger_holds(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0, "ours", name="exact")), ledger, tmp_path, seeds=(0, 1))
    made = pages.pages([ledger])
    assert (
        "| table2/cafe/cifar10 | 31.83 dB | 40.5 +- 0.5 | 0: 40, 1: 41 | met | ours (exact) |" in made["cafe/table2.md"]
    )
    assert "no entry: " in made["cafe/table3.md"]
    assert pages.write([ledger], tmp_path / "docs")
    (tmp_path / "docs" / "cafe" / "table99.md").write_text("of a table that is no more")
    assert pages.write([ledger], tmp_path / "docs") == []
    assert not (tmp_path / "docs" / "cafe" / "table99.md").exists()


def test_the_committed_pages_are_those_of_the_ledger():
    for name, text in pages.pages([Ledger(paper) for paper in PAPERS]).items():
        path = pages.FOLDER / name
        assert path.exists(), f"{name} is missing; run python -m experiments.reproduce --pages"
        assert path.read_text() == text, f"{name} is out of date; run python -m experiments.reproduce --pages"


def test_every_committed_verdict_is_that_of_the_rule():
    for paper in PAPERS:
        for entry in Ledger(paper).entries.values():
            if entry.value is not None:
                how = better(entry.cell, entry.unit)
                assert (entry.status, entry.why) == verdict(entry.paper, list(entry.seeds.values()), how)


class TestCommand:
    """`python -m experiments.reproduce` on a ledger and a study of the test's own."""

    @pytest.fixture
    def reproduced(self, ledger, tmp_path, monkeypatch):
        """Run the command on two cells, one of which takes long and the other one is ours."""
        study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 9.0, "ours"), slow=(40.0,))
        monkeypatch.setattr(reproduce, "Ledger", lambda paper: ledger)
        monkeypatch.setattr(reproduce, "study_of", lambda paper, folder: study)

        def run(**options):
            return reproduce.main(reproduce.Args(paper=("cafe",), out=tmp_path / "out", **options))

        (tmp_path / "out" / "cafe").mkdir(parents=True)
        return run

    def test_a_budget_for_which_nothing_runs_is_an_error_and_none_is_an_estimate(self, reproduced, capsys):
        with pytest.raises(ValueError, match=r"nothing was measured: .* needs about 1 seconds .*; raise --budget"):
            reproduced(budget=0.001)
        assert reproduced(budget=0.0) == 0
        assert "measurements that were run: 0; not run: 2" in capsys.readouterr().out

    def test_a_queue_that_is_empty_since_all_is_measured_is_no_error(self, reproduced, capsys):
        assert reproduced(budget=10.0, record=True) == 0
        assert reproduced(budget=10.0, record=True) == 0
        assert "not tried again: 2" in capsys.readouterr().out
        with pytest.raises(ValueError, match="nothing was run: no cell that the options name has a measurement in"):
            reproduced(budget=10.0, cell=(CELL,), variant=("ours",))

    def test_nothing_but_failures_is_an_error(self, reproduced, ledger, monkeypatch, tmp_path):
        study = FakeStudy(measurement(CELL, FileNotFoundError("no such data")))
        monkeypatch.setattr(reproduce, "study_of", lambda paper, folder: study)
        with pytest.raises(ValueError, match="nothing was measured: FileNotFoundError: no such data"):
            reproduced(record=True)
        assert ledger.entries[CELL, "printed", ""].status == "failed"

    def test_a_check_draws_from_what_the_options_name_and_says_when_that_is_nothing(
        self, reproduced, ledger, tmp_path, capsys
    ):
        with pytest.raises(ValueError, match="nothing was run: no cell that the options name is recorded"):
            reproduced(check=5)
        reproduced(budget=10.0, record=True)
        ledger.record([replace(entry, seconds=60.0) for entry in ledger.entries.values()])
        with pytest.raises(ValueError, match=r"the 2 recorded .* took more than 0.012 seconds.*raise --budget"):
            reproduced(check=5, budget=0.001)
        capsys.readouterr()
        for named in ({"cell": (OTHER,)}, {"variant": ("ours",)}):
            assert reproduced(check=5, **named) == 0
            assert "1 of 1 agree" in (said := capsys.readouterr().out)
            assert OTHER in said
        assert reproduced(check=5, table=("table2",)) == 0
        assert "2 of 2 agree" in capsys.readouterr().out
        with pytest.raises(ValueError, match="no cell that the options name is recorded"):
            reproduced(check=5, table=("table3",))
        with pytest.raises(ValueError, match="table must be one of"):
            reproduced(check=5, table=("nosuch",))


def test_a_queue_that_was_killed_and_started_again_leaves_the_ledger_of_one_that_nobody_disturbed(tmp_path):
    class Killing(FakeStudy):
        def __call__(self, job, seed):
            if len(self.ran) == 2:
                raise Killed
            return super().__call__(job, seed)

    cells = [measurement(CELL, 40.0), measurement(OTHER, 9.0), measurement(THIRD, 5.0)]
    whole, resumed = Ledger("cafe", tmp_path / "whole"), Ledger("cafe", tmp_path / "resumed")
    for folder in ("whole", "resumed"):
        (tmp_path / folder).mkdir()
    run(FakeStudy(*cells), whole, tmp_path / "whole", seeds=(0, 1))
    with pytest.raises(Killed):
        run(killed := Killing(*cells), resumed, tmp_path / "resumed", seeds=(0, 1))
    again = FakeStudy(*cells)
    again.ran = killed.ran
    run(again, resumed := Ledger("cafe", tmp_path / "resumed"), tmp_path / "resumed", seeds=(0, 1))
    assert resumed.entries.keys() == whole.entries.keys()
    assert {entry.value for entry in resumed.entries.values()} == {40.5, 9.5, 5.5}
    for key, entry in whole.entries.items():
        assert replace(resumed.entries[key], seconds=0.0) == replace(entry, seconds=0.0)


def test_what_was_computed_for_the_ledger_survives_a_refusal(studies):  # noqa: F811
    studies.draw("fedleak", 0)
    study = study_of("fedleak", studies.out)
    job = Job("invert", replace(TINY, data=studies.spec))
    study.runner(job, 0)
    take_back_folders()
    assert study_of("fedleak", studies.out).runner.done(job, 0)


def test_unknown_cells_and_tables_are_refused():
    with pytest.raises(ValueError, match="--cell nosuch is no printed cell"):
        reproduce.main(reproduce.Args(cell=("nosuch",)))
    with pytest.raises(ValueError, match="table must be one of"):
        reproduce.main(reproduce.Args(table=("nosuch",)))


@pytest.mark.parametrize("paper", ["cafe", "cafe-iclr", "vflrecon"])
def test_every_printed_cell_has_a_run_or_a_reason(paper, tmp_path):
    study, printed = study_of(paper, tmp_path), Ledger(paper, tmp_path).printed
    measurements = list(study.measurements())
    assert {m.cell for m in measurements} | set(study.impossible()) == set(printed)
    assert not {m.cell for m in measurements} & set(study.impossible())
    keys = [m.key for m in measurements]
    assert len(keys) == len(set(keys))
    for m in measurements:
        assert m.jobs
        assert m.differs or m.variant == "printed"


def test_a_sheet_shows_the_images_that_most_measurements_of_a_table_have_in_common(ledger, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        sheets.sheets, "comparison_sheet", lambda path, rows, **how: drawn.update({path.name: (rows, how["title"])})
    )
    study = FakeStudy(
        measurement(CELL, 31.0),  # other images
        measurement(OTHER, 5.0, "reduced"),
        measurement(OTHER, 6.0, "stand-in"),
        measurement(THIRD, 9.0),  # none
    )
    run(study, ledger, tmp_path)
    paths = sheets.draw(study, ledger, tmp_path / "sheets")
    assert [path.name for path in paths] == ["cafe-table2.png"] == list(drawn)
    rows, title = drawn["cafe-table2.png"]
    assert title == "cafe, table2"
    assert list(rows) == ["private images", "dlg/mnist (reduced): 5.0 dB", "dlg/mnist (stand-in): 6.0 dB"]
    assert [float(images[0, 0, 0, 0]) for images in rows.values()] == [0.1, 0.05, 0.06]
    assert sheets.draw(FakeStudy(measurement(CELL, 31.0, "ours")), ledger, tmp_path) == []  # nothing is finished here
