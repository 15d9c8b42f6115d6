"""report.md of a study: the command gives the same options back, and everything that ran or did not is in it."""

import dataclasses
import importlib
import shlex
from pathlib import Path

import pytest
import tyro

from experiments import fedleak, vflrecon
from experiments._report import write_cells, write_rows
from experiments._rows import value_of
from jaxleak.study import RunFolder, plots
from jaxleak.study.reports import Section, command_line, write_markdown

CHANGED = {
    "cafe_tables": {"table": ("table2",), "seeds": (1, 2), "datasets": ("mnist",), "budget": 2.5},
    "fedleak": {"table": ("table15",), "exact_kinks": True, "only": "a b"},
    "vflrecon": {"features": False, "shadow_init": ("shared",), "data": ("npz:a file",)},
}


@pytest.mark.parametrize("study", CHANGED)
def test_the_command_of_a_report_gives_the_options_back(study):
    arguments = importlib.import_module(f"experiments.{study}").Args
    options = dataclasses.replace(arguments(), **CHANGED[study])
    program, *words = shlex.split(command_line("study", dataclasses.replace(options, fresh=True, out=Path("away"))))
    assert program == "study"
    assert tyro.cli(arguments, args=words) == options


def test_options_of_dataclasses_in_options_have_their_prefix():
    changed = fedleak.Args(warm=dataclasses.replace(fedleak.Args().warm, rounds=7))
    words = shlex.split(command_line("study", changed))
    assert words == ["study", "--warm.rounds", "7"]
    assert tyro.cli(fedleak.Args, args=words[1:]) == changed


def test_a_report_has_the_sections_the_reasons_and_every_picture_with_its_caption(tmp_path):
    folder = RunFolder(tmp_path / "run", "study", {}, fresh=False)
    for name in ("loss-a.png", "other.png"):
        plots.curves(folder.figure(name), {"a": ([1, 2], [1, 2])}, xlabel="x", ylabel="y")
    sections = [
        Section("Found", ("A sentence.",), ("what", "value"), [["one", "1"]]),
        Section("Nothing", (), ("what",)),
    ]
    write_markdown(
        folder, "A study", command="study --a 1", seeds=(0, 3), sections=sections, not_run={"no data": ["b", "c"]},
        captions={"loss-*": "The loss.", "nothing.png": "Not drawn."},
    )  # fmt: skip
    text = (folder.path / "report.md").read_text()
    assert text.startswith("# A study\n\n```\nstudy --a 1\n```\n\nSeeds: 0, 3. Commit ")
    assert "## Found\n\nA sentence.\n\n| what | value |\n| --- | --- |\n| one | 1 |\n" in text
    assert "## Nothing\n\n## What was not run\n\n* no data: b, c\n" in text
    assert "![The loss.](figures/loss-a.png)\n\n*The loss.*" in text
    assert "![other.png](figures/other.png)" in text
    assert "Not drawn" not in text
    assert str(folder.path / "report.md") in folder.contents()


def test_cells_stand_beside_the_papers_and_one_seed_has_no_spread(tmp_path):
    folder = RunFolder(tmp_path / "run", "vflrecon", {}, fresh=False)
    row = {"unit": "%", "paper": 50.0, "ours": 60.25, "spread": 1.5, "note": ""}
    rows = [
        row | {"id": "table1/a", "seeds": [0, 1], "free": 99.5},
        row | {"id": "table2/b", "seeds": [0], "paper": None, "note": "with less"},
        {"id": "table2/c", "unit": "%", "paper": 1.0, "ours": None, "not_run": "no data: x"},
    ]
    write_cells(
        folder,
        "Tables",
        vflrecon.Args(seeds=2),
        rows,
        {"free": value_of("free"), "never": value_of("never")},
        seeds=range(2),
    )
    text = (folder.path / "report.md").read_text()
    assert "python -m experiments.vflrecon --seeds 2\n" in text
    assert "| a | 50 | 60.25 | 1.5 | +10.2 | % | 99.5 |" in text
    assert "| b | - | 60.25 | - | - | % |" in text
    assert "with less: table2/b." in text
    assert "* no data: x: table2/c" in text


def test_rows_of_any_study_show_their_numbers_and_words_and_leave_lists_out(tmp_path):
    folder = RunFolder(tmp_path / "run", "basin", {}, fresh=False)
    rows = [{"id": "a", "reach": 0.123456, "by_seed": [1.0], "right": True}, {"id": "b", "seeds_run": 3}]
    write_rows(folder, "Any", vflrecon.Args(), rows, seeds=(7,))
    text = (folder.path / "report.md").read_text()
    assert "python -m experiments.basin\n" in text
    assert "| id | reach | right | seeds run |\n" in text
    assert "| a | 0.1235 | True | - |\n| b | - | - | 3 |" in text
