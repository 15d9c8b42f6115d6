"""Sweeps: the command of each line, refused inputs, and the merged table."""

import csv
import json
import os
import sys

import pytest

from experiments import sweep
from jaxleak.__main__ import STUDIES as COMMANDS
from jaxleak.__main__ import main as jaxleak
from jaxleak._command.sweep import options
from jaxleak.study import RunFolder

LINES = [
    {"study": "cafe_scale", "options": {"num_samples": 24, "preset": "demo", "data": None}},
    {"study": "invert", "options": {"seeds": [0, 1], "exact-kinks": True, "generator": False}},
    {"study": "homotopy"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def started(monkeypatch):
    """A list of the commands that would have replaced this process."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda program, words: commands.append(words))
    return commands


def test_a_line_becomes_its_command(file, tmp_path, started):
    for i in range(3):
        sweep.main(sweep.Args(file, index=i, out=tmp_path / "out"))
    python = [sys.executable, "-m"]
    out = [["--out", str(tmp_path / "out" / str(i))] for i in range(3)]
    assert started == [
        [*python, "experiments.cafe_scale", "--num-samples", "24", "--preset", "demo", *out[0]],
        [*python, "experiments.invert", "--seeds", "0", "1", "--exact-kinks", "--no-generator", *out[1]],
        [*python, "experiments.homotopy", *out[2]],
    ]


def test_the_installed_command_starts_commands_of_its_own(file, tmp_path, started, capsys):
    file.write_text(json.dumps({"study": "demo", "options": {"num-samples": 24}}) + "\n" + json.dumps(LINES[0]))
    words = ["sweep", "--sweep", str(file), "--out", str(tmp_path / "out"), "--index"]
    assert jaxleak([*words, "0"]) == 0
    out = str(tmp_path / "out" / "0")
    assert started == [[sys.executable, "-m", "jaxleak", "demo", "--num-samples", "24", "--out", out]]
    with pytest.raises(SystemExit, match="line 1: study must be one of audit, demo, invert, got 'cafe_scale'"):
        jaxleak([*words, "1"])


def test_every_command_that_reads_options_of_its_own_can_be_a_line():
    assert set(options.PROGRAMS) == {"audit", *COMMANDS} - {"sweep"}


def test_merging_names_what_is_missing(file, tmp_path, started, capsys):
    args = sweep.Args(file, "merge", out=tmp_path / "out")
    for i in (0, 2):
        sweep.main(sweep.Args(file, index=i, out=args.out))
        RunFolder(args.out / str(i), "study", {}, fresh=False).finish({"psnr": 30.0 + i, "nan": float("nan")})
    with pytest.raises(ValueError, match=r"1 of 3 runs are not complete: 1$"):
        sweep.main(args)
    assert "2 of 3 runs merged" in capsys.readouterr().out
    rows = list(csv.DictReader((args.out / "merged.csv").open()))
    assert [row["status"] for row in rows] == ["complete", "missing", "complete"]
    assert [row["psnr"] for row in rows] == ["30.0", "", "32.0"]
    assert rows[0]["num_samples"] == "24"
    RunFolder(args.out / "1", "study", {}, fresh=False).finish({"psnr": 31.0})
    sweep.main(args)
    assert [row["metrics"]["psnr"] for row in json.loads((args.out / "merged.json").read_text())] == [30, 31, 32]


def test_a_line_with_more_minutes_goes_on_in_its_folder(file, tmp_path, started):
    def lines(minutes, seed=0):
        file.write_text(json.dumps({"study": "mistakes", "options": {"minutes": minutes, "seed": seed}}) + "\n")

    args = sweep.Args(file, index=0, out=tmp_path / "out")
    for minutes in (0.7, 3.0):
        lines(minutes)
        sweep.main(args)
    assert [words[words.index("--minutes") + 1] for words in started] == ["0.7", "3.0"]
    lines(3.0, seed=1)
    with pytest.raises(ValueError, match="0 belongs to another line"):
        sweep.main(args)


def test_a_line_that_changed_is_not_mixed_up(file, tmp_path, started):
    args = sweep.Args(file, index=2, out=tmp_path / "out")
    sweep.main(args)
    RunFolder(args.out / "2", "study", {}, fresh=False).finish({})
    file.write_text(file.read_text().replace("homotopy", "invert"))
    with pytest.raises(ValueError, match="2 belongs to another line"):
        sweep.main(args)
    with pytest.raises(ValueError, match="3 of 3 runs are not complete: 0-2"):
        sweep.main(sweep.Args(file, "merge", out=args.out))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines"),
        ("{", "line 0: no JSON object"),
        ("[1]", "line 0: must be"),
        ('{"study": "invert", "seed": 1}', "line 0: must be"),
        ('{"study": "sweep"}', "study must be one of .*cafe_scale.*, got 'sweep'"),
        ('{"study": ["invert"]}', "study must be one of"),
        ('{"options": {}}', "line 0: must be"),
        ('{"study": "invert", "options": [1]}', "options must be an object"),
        ('{"study": "invert", "options": {"fresh": true}}', "without out and fresh"),
        ('{"study": "invert", "options": {"1a": 1}}', "'1a' is no name of an option"),
        ('{"study": "invert", "options": {"a": [1, [2]]}}', "a must be a value or a list of values"),
        ('{"study": "invert", "options": {"a": [{"b": 1}, 2]}}', "a must be a value or a list of values"),
        ('{"study": "invert", "options": {"out": "x"}}', "without out and fresh"),
        ('{"study": "invert", "options": {"a b": 1}}', "'a b' is no name of an option"),
        ('{"study": "invert", "options": {"a": {"b": 1}}}', "a must be a value or a list of values"),
    ],
)
def test_other_lines_are_refused(tmp_path, text, message):
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        sweep.main(sweep.Args(file, index=0))


def test_a_wrong_line_holds_up_no_other(tmp_path, started, capsys):
    file = tmp_path / "runs.jsonl"
    file.write_text('{"study": "os"}\n{"study": "invert", "options": {"seeds": [1]}}\n')
    args = sweep.Args(file, index=1, out=tmp_path / "out")
    sweep.main(args)
    assert started[0][2:5] == ["experiments.invert", "--seeds", "1"]
    with pytest.raises(ValueError, match="line 0: study must be one of"):
        sweep.main(sweep.Args(file, index=0, out=args.out))
    RunFolder(args.out / "1", "study", {}, fresh=False).finish({"psnr": 31.0})
    with pytest.raises(ValueError, match=r"1 of 2 runs are not complete: 0$"):
        sweep.main(sweep.Args(file, "merge", out=args.out))
    assert "line 0: study must be one of" in capsys.readouterr().err
    rows = list(csv.DictReader((args.out / "merged.csv").open()))
    assert [(row["status"], row["psnr"]) for row in rows] == [("wrong line", ""), ("complete", "31.0")]


def test_the_index_is_checked(file):
    with pytest.raises(ValueError, match=r"--index is missing; .* has lines 0 to 2"):
        sweep.main(sweep.Args(file))
    with pytest.raises(ValueError, match=r"index must be in \[0, 2\], got 3"):
        sweep.main(sweep.Args(file, index=3))
    with pytest.raises(ValueError, match=r"index must be in \[0, 2\], got -1"):
        sweep.main(sweep.Args(file, index=-1))


def test_runs_that_are_missing_are_named_as_array_jobs_take_them(tmp_path):
    file, out = tmp_path / "runs.jsonl", tmp_path / "out"
    file.write_text((json.dumps(LINES[2]) + "\n") * 8)
    for done in (1, 4):
        RunFolder(out / str(done), "study", {}, fresh=False).finish({"psnr": 30.0})
    with pytest.raises(ValueError, match=r"6 of 8 runs are not complete: 0,2-3,5-7$"):
        sweep.main(sweep.Args(file, "merge", out=out))
