"""The ledgers of the papers: their rule and verdicts, their pages, and the command that maintains them."""

import json
import re
from dataclasses import replace

import pytest
from fake_study import CELL, OTHER, FakeStudy, measurement, run
from tiny_studies import TINY, studies  # noqa: F401

from experiments import reproduce
from experiments._by_path import module_at
from experiments._fedleak.jobs import Job
from experiments._ledger.papers import DIRECTIONS, FOLDER, PAPERS, in_sheets, ledger_of
from experiments._ledger.studies import study_of
from jaxleak.study._folder import take_back_folders
from jaxleak.study.ledger import draw_entries, judge, recheck, record_rechecks

pages = module_at("docs/_reproduction.py")


@pytest.fixture
def ledger(tmp_path):
    return ledger_of("cafe", tmp_path)


def test_what_is_better_depends_on_the_cell():
    assert DIRECTIONS.of("table2/cafe/cifar10", "dB") == "higher"
    assert DIRECTIONS.of("table5/single/cifar10", "iterations") == "lower"  # of CAFE
    assert DIRECTIONS.of("table5/fedleak/label-skew/3", "dB") == "higher"
    assert DIRECTIONS.of("table6-feature/no-defense/sensorless", "1") == "lower"
    assert DIRECTIONS.of("table10-lpips/fedleak", "1") == "lower"
    assert DIRECTIONS.of("table10-lpips/rogs", "1") == "equal"  # an attack for comparison in the paper
    assert DIRECTIONS.of("table6-label/vfldefender/cifar10", "%") == "equal"
    assert DIRECTIONS.of("text-fake-gradients/fake/cifar10", "dB") == "equal"
    assert DIRECTIONS.of("table11/true/iter8000", "nats") == "equal"


def test_sheets_show_every_run_once_and_no_difference_of_two():
    entries = list(ledger_of("fedleak").entries.values())
    assert any(entry.table == "text-capacity-gain" for entry in entries)
    shown = {entry.table for entry in entries if in_sheets(entry)}
    assert "table3" in shown
    assert "text-capacity-gain" not in shown
    assert not any("channel-peak" in e.name for e in ledger_of("cafe").entries.values() if in_sheets(e))


def test_a_recheck_runs_the_recorded_seed_and_notices_a_change(ledger, tmp_path):
    study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 8.0))
    run(study, ledger, tmp_path, seeds=(3,))
    chosen, longer = draw_entries([ledger], 5, seed=0, longest=60.0)
    assert (len(chosen), longer) == (2, 0)
    assert draw_entries([ledger], 5, seed=0, longest=-1.0) == ([], 2)
    again = recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy(measurement(CELL, 40.0)))
    assert (again.seed, again.again, again.agrees) == (3, 43.0, True)
    changed = recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy(measurement(CELL, 50.0)))
    assert not changed.agrees
    assert not recheck("cafe", ledger.entries[CELL, "printed", ""], FakeStudy()).agrees
    assert "random measurements whose run" not in pages.pages([ledger])["index.md"]
    record_rechecks([again, changed], 30.0, tmp_path, "abc")
    overview = pages.pages([ledger])["index.md"]
    assert "2 random measurements whose run had taken at most 30 seconds were run again. 1 agree" in overview
    assert f"These differ: cafe/{CELL}/printed." in overview


def test_pages_show_what_the_ledger_holds(ledger, tmp_path):
    run(FakeStudy(measurement(CELL, 40.0, "ours", name="exact")), ledger, tmp_path, seeds=(0, 1))
    made = pages.pages([ledger])
    row = "| cafe/cifar10 | 31.83 dB | 40.5 +- 0.5 dB | 0: 40.0, 1: 41.0 | **met, beyond** | ours (exact) |"
    assert row in made["cafe/table2.md"]
    assert "1 is met (1 of them beyond the printed number)" in made["cafe/table2.md"]
    assert "| CAFE, NeurIPS 2021 | 186 | 1 | 1 | 0 |" in made["index.md"]
    assert "| ours | 1 | 1 | 1 | 0 |" in made["index.md"]
    assert "The measurements are 1 of the kind *ours*." in made["cafe/table2.md"]
    assert "no entry: " in made["cafe/table3.md"]
    assert pages.write([ledger], tmp_path / "docs")
    (tmp_path / "docs" / "cafe" / "table99.md").write_text("of a table that is no more")
    assert pages.write([ledger], tmp_path / "docs") == []
    assert not (tmp_path / "docs" / "cafe" / "table99.md").exists()


def test_the_committed_pages_are_those_of_the_ledger():
    for name, text in pages.pages([ledger_of(paper) for paper in PAPERS]).items():
        path = pages.FOLDER / name
        assert path.exists(), f"{name} is missing; run python -m experiments.reproduce --pages"
        assert path.read_text() == text, f"{name} is out of date; run python -m experiments.reproduce --pages"


def test_every_committed_verdict_is_that_of_the_rule():
    for paper in PAPERS:
        ledger = ledger_of(paper)
        for entry in ledger.entries.values():
            if entry.value is not None:
                how, relation = DIRECTIONS.of(entry.cell, entry.unit), ledger.printed[entry.cell].get("relation", "")
                assert (entry.status, entry.why) == judge(entry.paper, list(entry.seeds.values()), how, relation)


class TestCommand:
    """`python -m experiments.reproduce` on a ledger and a study that the tests make."""

    @pytest.fixture
    def reproduced(self, ledger, tmp_path, monkeypatch):
        """A function that runs the command on two cells: one takes long, and the other is of our variant."""
        study = FakeStudy(measurement(CELL, 40.0), measurement(OTHER, 8.0, "ours"), slow=(40.0,))
        monkeypatch.setattr(reproduce, "ledger_of", lambda paper: ledger)
        monkeypatch.setattr(reproduce, "study_of", lambda paper, folder: study)

        def run(**options):
            return reproduce.main(reproduce.Args(paper=("cafe",), out=tmp_path / "out", **options))

        (tmp_path / "out" / "cafe").mkdir(parents=True)
        run.study = study
        return run

    def test_a_budget_for_which_nothing_runs_is_an_error_and_none_is_an_estimate(self, reproduced, capsys):
        with pytest.raises(ValueError, match=r"nothing was measured: .* needs about 1 seconds .*; raise --budget"):
            reproduced(budget=0.001)
        assert reproduced(budget=0.0) == 0
        assert "measurements that were run: 0; not run: 2" in capsys.readouterr().out

    def test_a_queue_that_is_empty_since_all_is_measured_is_no_error(self, reproduced, capsys):
        assert reproduced(budget=10.0, record=True) == 0
        assert reproduced(budget=10.0, record=True) == 0
        assert "recorded before: 2; --check 1 runs" in capsys.readouterr().out
        assert reproduced(budget=10.0, cell=(CELL,)) == 0
        assert f"recorded before: met        {CELL} (printed): " in capsys.readouterr().out

    def test_a_recorded_cell_is_shown_and_its_other_readings_wait_for_record(self, ledger, reproduced, capsys):
        assert reproduced(budget=10.0, record=True, variant=("printed",)) == 0
        reproduced.study.own = (*reproduced.study.own, replace(measurement(CELL, 41.0), name="again"))
        capsys.readouterr()
        assert reproduced(budget=10.0, cell=(CELL,)) == 0
        said = capsys.readouterr().out
        assert "not recorded yet: 1 more of these cells, which --record runs and keeps\n" in said
        assert "measurements that were run: 0; not run: 0\nrecorded before: 1;" in said
        assert (41.0, 0) not in reproduced.study.ran
        assert reproduced(budget=10.0, cell=(CELL,), record=True) == 0
        assert (41.0, 0) in reproduced.study.ran
        with pytest.raises(ValueError, match="nothing was run: no cell that the options name has a measurement in"):
            reproduced(budget=10.0, cell=(CELL,), variant=("ours",))

    @pytest.mark.parametrize("error", [FileNotFoundError("no such data"), ValueError("no such cell")])
    def test_nothing_but_errors_is_an_error(self, error, reproduced, ledger, monkeypatch):
        monkeypatch.setattr(reproduce, "study_of", lambda paper, folder: FakeStudy(measurement(CELL, error)))
        with pytest.raises(ValueError, match=rf"nothing was measured: {CELL}: .*{error}$"):
            reproduced(record=True)

    def test_sheets_of_nothing_are_an_error(self, reproduced):
        with pytest.raises(ValueError, match=r"nothing was drawn: no run in .*out has images"):
            reproduced(sheets=True)

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


def test_a_measurement_of_several_settings_names_each_difference_once():
    text = "\n".join(pages.pages([ledger_of("cafe"), ledger_of("cafe-iclr")]).values())
    lists = [line.split(" | ")[-1].rstrip(" |").split(", ") for line in text.splitlines() if line.startswith("| ")]
    letters = [names for names in lists if all(re.fullmatch("[a-z]{1,2}", name) for name in names)]
    assert max(map(len, letters)) > 3
    assert all(len(set(names)) == len(names) for names in letters)


def test_the_overview_tells_the_papers_algorithm_from_ours_and_says_what_was_run_as_printed(ledger, tmp_path, capsys):
    study = FakeStudy(
        measurement(CELL, 40.0, "reduced"), measurement(CELL, 9.0, "ours"), measurement(OTHER, 8.0, "ours")
    )
    run(study, ledger, tmp_path)
    overview = pages.pages([ledger])["index.md"]
    for row in (
        "printed | 0 | 0 | 0 | 0",
        "reduced | 1 | 1 | 1 | 0",
        "stand-in | 0 | 0 | 0 | 0",
        "ours | 1 | 1 | 0 | 0",
    ):
        assert f"| {row} |" in overview
    committed = pages.pages([ledger_of(paper) for paper in PAPERS])["index.md"]
    assert "| numbers | measured as printed | met |" in committed
    assert re.search(r"\| \[Table 2\]\(cafe/table2.md\) \| [^|]+ \| 18 \| 11 \| ", committed)
    assert "Of the reconstructions by FedLeak's own algorithm none is met." in committed
    ledgers = [ledger_of(paper) for paper in PAPERS]
    nothing, (one_seed, one_seed_met) = pages.met_by_nothing(ledgers), pages.decided_by_one_seed(ledgers)
    cells = {cell for ledger in ledgers for cell in ledger.printed}
    for part in (
        part for parts in module_at("docs/_reproduction_counts.py")._NO_BETTER_THAN_NOTHING.values() for part in parts
    ):
        assert any(part in cell for cell in cells), part
    readme = " ".join((FOLDER.parents[1] / "README.md").read_text().split())
    assert f"{sum(nothing.values())} met numbers are no better than those of an answer that knows nothing" in readme
    assert f"One seed decides {one_seed} of the measured numbers and {one_seed_met} of the met ones" in readme
    assert "| yale32 | 165 | " in committed
    assert reproduce.main(reproduce.Args(status=True)) == 0
    said = capsys.readouterr().out
    printed = said.partition(" 90 as printed (of ")[2].partition(")")[0].split(", ")
    assert printed == [
        *(f"cafe/table{number}" for number in (2, 3, 4, 5, 6, "8-psnr", "8-loss", "8-accuracy")),
        "cafe/text-fake-gradients",
        "cafe/text-claims",
        "cafe-iclr/table3b",
        *(f"fedleak/{table}" for table in ("table11-gd", "table11-psnr", "text-overdetermination")),
    ]
    assert "met, by the variant of a cell's most faithful measurement: 16 of 90 printed (6 beyond), " in said
    cells, met, missed = map(int, re.search(r"│ all +│ +│ (\d+) +│ (\d+) +│ (\d+) ", said).groups())
    *theirs, (ours_met, ours) = re.findall(r"(\d+) of (\d+) (?:printed|reduced|stand-in|ours) \(", said)
    by_papers, met_by_papers = sum(int(n) for _, n in theirs), sum(int(m) for m, _ in theirs)
    assert (by_papers + int(ours), met_by_papers + int(ours_met)) == (met + missed, met)
    assert f"Of {cells} numbers in the four papers, [{met + missed} were measured]" in readme
    printed_met, printed = map(int, re.search(r"(\d+) of (\d+) printed \(", said).groups())
    for counted in (
        f"with all that the paper prints | {printed} | {printed_met} |",
        f"other data or other weights | {by_papers - printed} | {met_by_papers - printed_met} |",
        f"our algorithm alone | {ours} | {ours_met} |",
        f"of the {met} met numbers are better for the attacker than printed",
    ):
        assert counted in readme


def test_what_was_computed_for_the_ledger_survives_a_refusal(studies):  # noqa: F811
    studies.draw("fedleak", 0)
    study = study_of("fedleak", studies.out)
    job = Job(replace(TINY, data=studies.spec))
    study.runner(job, 0)
    take_back_folders()
    assert study_of("fedleak", studies.out).runner.done(job, 0)


def test_unknown_cells_and_tables_are_refused():
    def refusal(**named):
        with pytest.raises(ValueError, match="is no printed cell of cafe") as caught:
            reproduce.main(reproduce.Args(**named))
        said, *cells = str(caught.value).splitlines()
        return said, [cell.strip() for cell in cells]

    of_table = [cell for cell in ledger_of("cafe").printed if cell.startswith("table4/")]
    said, cells = refusal(paper=("cafe",), table=("table4",), cell=("nosuch",))
    assert said == "--cell nosuch is no printed cell of cafe, table4; the cells there are"
    assert cells == of_table
    assert refusal(paper=("cafe",), cell=("table4/full/cifar",))[1] == of_table
    said, cells = refusal(paper=("cafe",), cell=("tabel4/full/cifar10",))
    assert "all cells of T are listed" in said
    assert cells[0] == "table4/full/cifar10"
    assert len(cells) == 5
    # A cell of another table is no cell of the named table.
    said, cells = refusal(paper=("cafe",), table=("table4",), cell=("table2/cafe/cifar10",))
    assert said == "--cell table2/cafe/cifar10 is no printed cell of cafe, table4; the cells there are"
    assert cells == of_table
    with pytest.raises(ValueError, match="table must be one of"):
        reproduce.main(reproduce.Args(table=("nosuch",)))


def test_the_status_is_that_of_the_papers_and_tables_that_are_named(capsys):
    def shown(**options):
        assert reproduce.main(reproduce.Args(status=True, json=True, **options)) == 0
        return json.loads(capsys.readouterr().out)

    every = shown()
    found = shown(table=("table3",))
    assert list(found["papers"]) == ["cafe", "fedleak", "vflrecon"]  # the submission to ICLR has tables 3a and 3b
    assert all(list(counts["tables"]) == ["table3"] for counts in found["papers"].values())
    assert found["cells"] == sum(counts["cells"] for counts in found["papers"].values()) == 15 + 48 + 8
    assert found["met"] + found["missed"] == found["measured"] < every["measured"]
    assert found["papers"]["cafe"]["tables"]["table3"] == every["papers"]["cafe"]["tables"]["table3"]
    (counts,) = shown(paper=("fedleak",), table=("text-overdetermination",))["papers"].values()
    assert (counts["cells"], counts["measured"], counts["as_printed"]) == (5, 5, 5)
    with pytest.raises(ValueError, match="table must be one of"):
        shown(table=("nosuch",))
    with pytest.raises(ValueError, match="leave out --cell and --variant"):
        shown(variant=("ours",))


@pytest.mark.parametrize("paper", ["cafe", "cafe-iclr", "vflrecon"])
def test_every_printed_cell_has_a_run_or_a_reason(paper, tmp_path):
    study, printed = study_of(paper, tmp_path), ledger_of(paper, tmp_path).printed
    measurements = list(study.measurements())
    assert {m.cell for m in measurements} | set(study.impossible()) == set(printed)
    assert not {m.cell for m in measurements} & set(study.impossible())
    keys = [m.key for m in measurements]
    assert len(keys) == len(set(keys))
    for m in measurements:
        assert m.jobs
        assert m.differs or m.variant == "printed"
