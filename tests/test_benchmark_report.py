"""The stored timings of several devices and runs, and the table made of them."""

import json

from benchmarks import report


def run(device="cpu", date="2026-01-01", **versions):
    return {"device": device, "commit": "abc", "date": date, "versions": {"jax": "1", **versions}, "threads": {}}


def entry(name, group, data=(1.0, 2.0, 3.0, 4.0, 5.0), spoiled=0, **extra):
    info = {
        "spoiled": [i < spoiled for i in range(len(data))],
        "rounds_per_call": 2,
        "first_call_seconds": 9.0,
        **extra,
    }
    return report._entry({"name": name, "group": group, "extra_info": info, "stats": {"data": list(data)}})


EMPTY = {"runs": [], "benchmarks": []}


def test_a_part_replaces_its_groups_on_its_own_device_only():
    stored = report.merged(EMPTY, run(), [entry("a", "one"), entry("a", "two")])
    stored = report.merged(stored, run("gpu"), [entry("a", "one")])
    again = report.merged(stored, run(date="2026-02-02"), [entry("b", "one")])
    found = [(again["runs"][e["run"]]["device"], e["group"], e["name"]) for e in again["benchmarks"]]
    assert found == [("cpu", "two", "a"), ("gpu", "one", "a"), ("cpu", "one", "b")]
    text = report.table(again)
    assert text.count("### one") == 2
    assert text.index("## cpu") < text.index("## gpu")
    assert "Measured 2026-02-02, commit abc." in text
    # A run disappears once all its groups were replaced.
    last = report.merged(again, run(date="2026-03-03"), [entry("a", "two"), entry("a", "one")])
    assert [r["date"] for r in last["runs"]] == ["2026-01-01", "2026-03-03"]
    assert last["runs"][0]["device"] == "gpu"


def test_a_group_says_with_what_it_was_measured_where_that_differs():
    stored = report.merged(EMPTY, run(), [entry("a", "one")])
    assert report.table(stored).count("jax 1") == 1
    text = report.table(report.merged(stored, run(torch="2"), [entry("a", "two")]))
    assert "Measured 2026-01-01, commit abc. jax 1, torch 2." in text


def test_rows():
    quick = entry("jit", "one", matrix_rate=2e9, copy_rate=1e9, limit_seconds=0.5)
    anew = entry("op by op", "one", (8.0, 8.0, 8.0), **{report.COMPILING: 3.0})
    text = report.table(report.merged(EMPTY, run(), [quick, anew]))
    assert "Matrix product 2 GFLOP/s, copy 1.0 GB/s" in text
    assert "| jit | 1.5 | 66.7 | 2.67 | 2.67 | 9.0 | 0.33 |" in text
    assert report.ANEW in text
    assert report.ANEW not in report.table(report.merged(EMPTY, run(), [quick]))


def test_the_summary_has_the_fastest_compiled_form_beside_eager_and_peers():
    members = [entry("op by op", "one", (16.0,) * 3), entry("jit", "one", (4.0,) * 3), entry("slow", "one", (6.0,) * 3)]
    peers = [entry("PyTorch eager", "one", (9.0,) * 3), entry("PyTorch torch.compile", "one", (8.0,) * 3)]
    alone = [entry("sort", "two"), entry("bisection", "two")]
    text = report.table(report.merged(EMPTY, run(), [*members, *peers, *alone]))
    assert "| one | 8 | 2 | 4 | jit | 4.00 | 2.00 |" in text
    assert "| two |" not in text


def test_the_summary_as_numbers_is_that_of_the_table():
    members = [entry("op by op", "A, one step", (16.0,) * 3), entry("jit", "A, one step", (4.0,) * 3)]
    peers = [entry("PyTorch eager", "A, one step", (9.0,) * 3), entry("PyTorch compile", "A, one step", (8.0,) * 3)]
    less = [entry("op by op", "two", (6.0,) * 3, **{report.COMPILING: 2.0}), entry("jit", "two", (4.0,) * 3)]
    noisy = [entry("op by op", "three", (400.0,) * 3, spoiled=2), entry("jit", "three", (4.0,) * 3)]
    stored = report.merged(EMPTY, run(), [*members, *peers, *less, *noisy, entry("sort", "four")])
    made = report.summary(stored)
    assert [cell["id"] for cell in made["cells"]] == ["a-one-step", "two", "three"]
    found = {name: value for name, value in made["cells"][0].items() if not isinstance(value, (str, dict, bool))}
    assert found == {
        "op_by_op": 8, "compiled": 2, "pytorch_eager": 4.5, "pytorch_best": 4, "over_op_by_op": 4, "over_pytorch": 2,
    }  # fmt: skip
    assert [cell["loaded"] for cell in made["cells"]] == [False, False, True]
    assert [cell.get("op_by_op_compiling") for cell in made["cells"]] == [None, 2, None]
    assert made["least"] == {"over_op_by_op": 1.5, "over_pytorch": 2}
    assert made["most"] == {"over_op_by_op": 4, "over_pytorch": 2}


def test_a_group_of_several_devices_is_named_with_its_device():
    members = [entry("op by op", "one", (16.0,) * 3), entry("jit", "one", (4.0,) * 3)]
    stored = report.merged(report.merged(EMPTY, run(), members), run("gpu (H)"), members)
    assert [cell["id"] for cell in report.summary(stored)["cells"]] == ["one-cpu", "one-gpu-h"]
    assert report.summary(EMPTY) == {"least": {}, "most": {}, "cells": []}


def test_what_is_written_is_up_to_date():
    stored = json.loads(report.RESULTS.read_text())
    made = report.summary(stored)
    assert json.loads(report.SUMMARY.read_text()) == made, "run python -m benchmarks.report"
    assert (report.FOLDER / "README.md").read_text() == report.table(stored), "run python -m benchmarks.report"
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


def test_spoiled_rounds_do_not_count_unless_too_few_are_left():
    assert entry("a", "one", spoiled=3)["stats"]["median"] == 4.5
    loaded = entry("a", "one", spoiled=4)
    assert loaded["stats"]["median"] == 3
    assert "1 of 1 entries were timed under load" in report.table(report.merged(EMPTY, run(), [loaded]))
