"""The ledger of a study: verdicts by fixed rules, lasting entries, and a queue that continues after errors."""

import json
import math
import re
import subprocess
from dataclasses import replace

import pytest
from fake_study import CELL, OTHER, THIRD, FakeStudy, measurement, run
from tiny_studies import Killed

from experiments._ledger.papers import DIRECTIONS, PAPERS, in_sheets, ledger_of, sheet_title
from jaxleak.study import sheets as image_sheets
from jaxleak.study.ledger import (
    Directions,
    Entry,
    Ledger,
    agrees,
    as_record,
    beyond,
    beyond_counts,
    cell_status,
    commit_of,
    draw_sheets,
    from_record,
    impossible_entries,
    judge,
    summary,
)
from jaxleak.study.ledger import _queue as queue
from jaxleak.study.ledger._sheets import row_label


@pytest.fixture
def ledger(tmp_path):
    return ledger_of("cafe", tmp_path)


@pytest.mark.parametrize(
    ("paper", "values", "how", "found"),
    [
        (30.0, [29.0, 31.0], "higher", "met"),  # 30 + 1
        (30.0, [29.0, 29.0], "higher", "missed"),
        (30.0, [28.0, 31.5], "higher", "met"),  # 29.75 + 1.75, but at most 1.5 counts
        (30.0, [25.9, 31.0], "higher", "missed"),  # 28.45 + 2.55, but at most 1.5 counts
        (30.0, [29.0, 30.9], "higher", "met"),
        (0.1, [0.118, 0.09], "lower", "met"),  # .104 - .014, but at most .005 counts
        (0.1, [0.15, 0.09], "lower", "missed"),  # .12 - .03, but at most .005 counts
        (0.1, [0.2, 0.08], "lower", "missed"),  # .14 - .06, but at most .005 counts
        (0.1, [0.11, 0.11], "lower", "missed"),
        (2.0, [2.09], "equal", "met"),  # within 5 %
        (2.0, [2.11], "equal", "missed"),
        (2.0, [1.89], "equal", "missed"),
        (2.0, [1.55, 2.3], "equal", "met"),  # 1.925 +- .375, and .5 is allowed
        (2.0, [1.4, 2.0], "equal", "missed"),  # 1.7, whatever the spread
        (2.0, [1.4, 2.6], "equal", "missed"),  # 2 +- .6, and .5 is allowed
        (30.0, [10.0, 34.0], "higher", "missed"),  # 22 + 12, but at most 1.5 counts
        (30.0, [math.nan, 40.0], "higher", "missed"),
        (30.0, [math.inf], "higher", "missed"),
    ],
)
def test_verdicts_go_by_the_rule(paper, values, how, found):
    assert judge(paper, values, how)[0] == found


@pytest.mark.parametrize(
    ("paper", "value", "spread", "how", "found"),
    [
        (30.0, 31.6, 0.0, "higher", True),  # more than 5 %
        (30.0, 31.4, 0.0, "higher", False),
        (30.0, 31.6, 1.7, "higher", False),  # within the spread
        (30.0, 28.0, 0.0, "higher", False),
        (0.1, 0.09, 0.0, "lower", True),
        (0.1, 0.096, 0.0, "lower", False),
        (0.1, 0.2, 0.0, "lower", False),
        (2.0, 9.0, 0.0, "equal", False),
    ],
)
def test_a_number_lies_beyond_by_more_than_spread_and_tolerance(paper, value, spread, how, found):
    assert beyond(paper, value, spread, how) is found


def test_prints_of_attacks_that_fail_are_not_met_by_attacks_that_succeed():
    for cell in ("table11-psnr/bayes/none/mnist", "text-fig1-psnr/idlg/low", "table3/ig/b16/mnist", "table2/dlg/mnist"):
        assert DIRECTIONS.of(cell, "dB") == "equal"
    assert DIRECTIONS.of("table3/fedleak/b16/mnist", "dB") == "higher"


@pytest.mark.parametrize(
    ("relation", "value", "status"),
    [
        ("below", 5.4, "met"), ("at most", 10.0, "met"), ("below", 10.1, "missed"), ("about", 9.4, "missed"),
        ("above", 10.1, "met"), ("at least", 9.9, "missed"),
        ("order of magnitude", 31.0, "met"), ("order of magnitude", 32.0, "missed"),
        ("order of magnitude", 3.3, "met"), ("order of magnitude", 3.1, "missed"),
    ],
)  # fmt: skip
def test_a_bound_that_a_paper_gives_is_kept_or_not(relation, value, status):
    assert judge(10.0, [value], "equal", relation)[0] == status


def test_a_verdict_names_the_spread_where_there_is_one():
    assert judge(31.83, [13.41], "higher")[1] == "13.41 against at least 31.83"
    assert judge(0.1, [0.2, 0.4], "lower")[1] == "0.3 with a spread of 0.1 against at most 0.1"
    assert judge(2.0, [1.5, 2.3], "equal")[1] == "1.9 with a spread of 0.4 against 2 within 0.1"


def test_entries_survive_the_file(ledger, tmp_path):
    entry = Entry(CELL, "ours", "missed", "why", 31.83, "dB", value=0.0, spread=math.nan, seeds={0: 0.0, 3: math.nan})
    ledger.record([entry])
    (again,) = ledger_of("cafe", tmp_path).entries.values()
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
        ledger_of("cafe", tmp_path)


def test_a_failure_is_recorded_and_stops_nothing(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, ValueError("no such thing")), measurement(OTHER, 8.0))
    run(study, ledger, tmp_path)
    stored = ledger_of("cafe", tmp_path).entries
    failed, met = stored[CELL, "printed", ""], stored[OTHER, "printed", ""]
    assert (failed.status, failed.why, failed.value) == ("failed", "ValueError: no such thing", None)
    assert (met.status, met.value, met.seeds) == ("met", 8.0, {0: 8.0})
    assert met.command.startswith(f"python -m experiments.reproduce --paper cafe --cell {OTHER} --variant printed")
    assert met.commit
    assert met.versions
    assert met.date
    # A failed measurement is not repeated, since no outcome leads to a repetition.
    assert run(study, ledger, tmp_path) == []


def test_missing_data_are_no_outcome_and_are_asked_for_again(ledger, tmp_path):
    (entry,) = run(FakeStudy(measurement(CELL, FileNotFoundError("mnist.npz is missing"))), ledger, tmp_path)
    assert (entry.status, entry.why) == ("not run", "mnist.npz is missing")
    (entry,) = run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path)
    assert entry.status == "met"


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
        (THIRD, "reduced"),  # the paper prints a number for it
        (CELL, "printed"),
    ]


def test_the_cheapest_run_first_and_what_does_not_fit_has_its_cost(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 8.0), slow=(40.0,))
    first, second = run(study, ledger, tmp_path, budget=50.0)
    assert (first.cell, first.status) == (OTHER, "met")
    assert (second.cell, second.status) == (CELL, "not run")
    assert "about 2 minutes" in second.why
    assert study.ran == [(8.0, 0)]


def test_compiled_programs_are_given_up_between_jobs_before_they_fill_the_memory_maps(ledger, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(queue, "forget_when_many", lambda: asked.append(len(study.ran)))
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 8.0))
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


def test_a_recorded_seed_does_not_run_again_where_its_run_is_gone(ledger, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path / "one", seeds=(0, 3), commit="first")
    before = ledger.entries[CELL, "printed", ""]
    elsewhere = FakeStudy(measurement(CELL, 40.0), slow=(40.0,))
    # A budget of one slow seed is enough, since only one seed is missing.
    run(elsewhere, ledger, tmp_path / "two", seeds=(0, 1), budget=100.0, commit="second")
    assert elsewhere.ran == [(40.0, 1)]
    entry = ledger.entries[CELL, "printed", ""]
    assert entry.seeds == {0: 40.0, 1: 41.0, 3: 43.0}
    assert (entry.value, entry.commit, entry.versions) == (pytest.approx(124 / 3), "first, second", before.versions)
    assert entry.command.endswith("--seeds 0 1 3 --record")
    assert entry.seconds >= before.seconds


def test_a_number_that_is_read_back_keeps_its_commit_and_time(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 40.0))
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path, commit="first")
    seconds = ledger.entries[CELL, "printed", ""].seconds
    study.ran = [(40.0, 0)]
    run(study, ledger, tmp_path, seeds=(0, 1), commit="second")
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
    run(FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 8.0)), ledger, tmp_path)
    ledger.forget_all_but({(OTHER, "printed", "")})
    ledger.record([])
    assert list(ledger_of("cafe", tmp_path).entries) == [(OTHER, "printed", "")]


def test_nothing_is_written_without_record(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path, record=False)
    assert not ledger.path.exists()


def test_a_cells_status_is_that_of_its_most_faithful_measurement(ledger, tmp_path):
    study = FakeStudy(
        measurement(CELL, 20.0, "reduced"),
        measurement(CELL, 99.0, "ours"),
        measurement(CELL, 20.0, "printed", reason="asks for 9 images of 8"),
        measurement(OTHER, 8.0, "ours"),
    )
    run(study, ledger, tmp_path)
    ledger.record(impossible_entries(study, ledger))
    assert cell_status(ledger, CELL)[0] == "missed"
    assert cell_status(ledger, OTHER)[0] == "met"
    assert cell_status(ledger, THIRD)[0] == "impossible"
    found = summary([ledger])
    assert (found["cells"], found["met"], found["missed"], found["impossible"]) == (186, 1, 1, 1)
    assert (found["measured"], found["paper_algorithm"], found["as_printed"]) == (2, 1, 0)
    assert (found["beyond"], found["variants"]["ours"]["beyond"]) == (0, 0)  # a baseline's number has no beyond
    run(FakeStudy(measurement(CELL, 40.0)), ledger, tmp_path)
    assert beyond_counts(ledger, ["table2"]) == {"table2": 1}
    assert summary([ledger])["variants"]["printed"]["beyond"] == 1
    assert sum(found[name] for name in ("met", "missed", "impossible", "no entry")) == 186


def test_what_is_lacking_here_was_not_run_and_is_kept_where_it_was(ledger, tmp_path):
    lacking = FakeStudy(measurement(CELL, 20.0, reason="lacks what it is computed by"))
    run(lacking, ledger, tmp_path)
    assert cell_status(ledger, CELL)[0] == "not run"
    run(FakeStudy(measurement(CELL, 20.0)), ledger, tmp_path)
    run(lacking, ledger, tmp_path)
    assert cell_status(ledger, CELL)[0] == "missed"


def test_numbers_agree_within_the_spread_or_the_tolerance():
    assert agrees(100.0, 104.9, 0.0)
    assert not agrees(100.0, 105.1, 0.0)
    assert agrees(100.0, 109.0, 10.0)
    assert agrees(math.nan, math.nan, 0.0)
    assert not agrees(math.nan, 1.0, 0.0)


def test_a_queue_that_was_killed_and_started_again_leaves_the_ledger_of_one_that_nobody_disturbed(tmp_path):
    class Killing(FakeStudy):
        def __call__(self, job, seed):
            if len(self.ran) == 2:
                raise Killed
            return super().__call__(job, seed)

    cells = [measurement(CELL, 40.0), measurement(OTHER, 8.0), measurement(THIRD, 5.0)]
    whole, resumed = ledger_of("cafe", tmp_path / "whole"), ledger_of("cafe", tmp_path / "resumed")
    for folder in ("whole", "resumed"):
        (tmp_path / folder).mkdir()
    run(FakeStudy(*cells), whole, tmp_path / "whole", seeds=(0, 1))
    with pytest.raises(Killed):
        run(killed := Killing(*cells), resumed, tmp_path / "resumed", seeds=(0, 1))
    again = FakeStudy(*cells)
    again.ran = killed.ran
    run(again, resumed := ledger_of("cafe", tmp_path / "resumed"), tmp_path / "resumed", seeds=(0, 1))
    assert resumed.entries.keys() == whole.entries.keys()
    assert {entry.value for entry in resumed.entries.values()} == {40.5, 8.5, 5.5}
    for key, entry in whole.entries.items():
        assert replace(resumed.entries[key], seconds=0.0) == replace(entry, seconds=0.0)


def test_a_sheet_shows_the_images_that_most_measurements_of_a_table_have_in_common(ledger, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        image_sheets, "comparison_sheet", lambda path, rows, **how: drawn.update({path.name: (rows, how["title"])})
    )
    study = FakeStudy(
        measurement(CELL, 31.0),  # other images
        measurement(OTHER, 5.0, "reduced"),
        measurement(OTHER, 6.0, "stand-in"),
        measurement(OTHER, 7.0, "stand-in", name="narrow"),
        measurement(THIRD, 9.0),  # no images
    )
    run(study, ledger, tmp_path)
    paths = draw_sheets(study, ledger, tmp_path / "sheets")
    assert [path.name for path in paths] == ["cafe-table2.png"] == list(drawn)
    rows, title = drawn["cafe-table2.png"]
    assert title == "table2"
    assert list(rows) == [
        "private images",
        "DLG, MNIST (reduced): 5.0 dB",
        "DLG, MNIST (stand-in): 6.0 dB",
        "DLG, MNIST (stand-in, narrow): 7.0 dB",
    ]
    assert [float(images[0, 0, 0, 0]) for images in rows.values()] == [0.1, 0.05, 0.06, 0.07]
    # A measurement from another folder is not run again for a picture.
    elsewhere = FakeStudy(measurement(OTHER, 5.0, "reduced"), measurement(OTHER, 6.0, "stand-in"))
    assert draw_sheets(elsewhere, ledger, tmp_path) == elsewhere.ran == []


def test_sheets_of_the_papers_have_titles_and_rows_of_their_own_that_name_stand_ins():
    for paper in PAPERS:
        recorded = ledger_of(paper)
        entries = [e for e in recorded.entries.values() if e.unit == "dB" and e.value is not None and in_sheets(e)]
        labels = [(entry.table, row_label(recorded, entry)) for entry in entries]
        assert len(set(labels)) == len(labels)
        titles = {table: sheet_title(paper, table) for table, _ in labels}
        assert len(set(titles.values())) == len(titles)
        assert not any(table in title for table, title in titles.items())  # no id, like "table3"
        for entry, (_, label) in zip(entries, labels, strict=True):
            assert ("in place of SVHN" in label) == (" for SVHN" in entry.differs)
    svhn = ledger_of("fedleak").entries["table3/ig/b16/svhn", "stand-in", "reduced"]
    assert row_label(ledger_of("fedleak"), svhn).startswith(
        "Inverting Gradients, SVHN, batch size 16 (stand-in, reduced, images of CIFAR-10 in place of SVHN): "
    )


def test_a_ledger_of_another_paper_has_cells_and_directions_of_its_own(tmp_path):
    printed = {
        "table1/attack": {"value": 20.0, "unit": "dB"},
        "table1/distance": {"value": 0.1, "unit": "1"},
        "table2/defended": {"value": 9.0, "unit": "dB"},
        "table2/rounds": {"value": 50.0, "unit": "rounds"},
    }
    directions = Directions(
        lower=("table1/distance",), lower_units=("rounds",), equal=("table3",), equal_parts=("/defended/",)
    )
    mine = Ledger("mine", tmp_path, printed, directions)
    jobs = {"table1/attack": 21.0, "table1/distance": 0.2, "table2/defended": 12.0, "table2/rounds": 40.0}
    study = FakeStudy(*(measurement(cell, job) for cell, job in jobs.items()), slow=(40.0,))
    run(study, mine, tmp_path, budget=10.0)
    found = Ledger("mine", tmp_path, printed, directions)
    assert {cell: cell_status(found, cell)[0] for cell in printed} == {
        "table1/attack": "met",
        "table1/distance": "missed",
        "table2/defended": "missed",
        "table2/rounds": "not run",
    }
    assert found.of("table2/rounds")[0].why == "needs about 2 minutes on this machine for 1 seed"
    run(FakeStudy(measurement("table2/rounds", 40.0)), mine, tmp_path)
    assert mine.entries["table2/rounds", "printed", ""].status == "met"
    with pytest.raises(ValueError, match="table9/a is no printed cell of mine"):
        mine.record([Entry("table9/a", "ours", "not run", "why", 1.0, "dB")])


def test_the_commit_of_a_clone_is_said_with_what_changed_in_it(tmp_path):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    assert commit_of(tmp_path / "nowhere") == "unknown"
    git("init")
    (tmp_path / "ledger").mkdir()
    for name in ("code.py", "ledger/a.jsonl"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "ledger" / "a.jsonl").write_text("2")
    assert (commit_of(tmp_path), commit_of(tmp_path, but_for=("ledger",))) == (f"{clean}-dirty", clean)
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path, but_for=("ledger",)) == f"{clean}-dirty"
