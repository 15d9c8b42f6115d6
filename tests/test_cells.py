"""The runner that all studies share: what it runs, reads back, refuses and lists. Jobs here are numbers or errors."""

import json

import numpy as np
import pytest

from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import RunFolder
from jaxleak.study.cells import Budget, Cell, run_cells, score_named
from jaxleak.study.runner import ByType, Cost, Result, runner_in


class Numbers:
    """A runner's jobs: a number gives itself plus the seed; a name raises the error of that name."""

    def __init__(self, data=0.0, once=0.0):
        self.ran, self.data, self.once = [], data, once
        self.errors = {"diverged": FloatingPointError("diverged"), "disk": OSError("the disk is full")}
        self.missing = {"absent": FileNotFoundError("nowhere.npz"), "large": MemoryError("needs 21 GB")}

    def identity(self, job, seed):
        return {"job": job, "seed": seed}

    def sources(self, job, seed):
        return {"the numbers": lambda: {"x": np.asarray(self.data)}}

    def require(self, job, seed):
        if job in self.missing:
            raise self.missing[job]

    def cost(self, job):
        return Cost(each=60.0, once=self.once)

    def run(self, job, seed):
        if job in self.errors:
            raise self.errors[job]
        self.ran.append((job, seed))
        return Result({"psnr_best_match": job + seed}, {"truth": np.full(2, job)} if job > 5 else {})


def _run(tmp_path, jobs, cells, *, seeds=(0, 1), budget=1e4, **options):
    folder = RunFolder(tmp_path, "study", {}, fresh=False)
    runner = runner_in(folder, jobs, fresh=False)
    rows = run_cells(cells, runner, folder, seeds=seeds, budget=Budget(budget), **options)
    return rows, runner


def _cell(name, *jobs, **fields):
    return Cell(f"table1/{name}", 2.0, "dB", jobs, **fields)


def test_a_row_is_the_mean_over_the_seeds_and_jobs_are_shared(tmp_path):
    jobs, watched = Numbers(), []
    second = _cell("b", 3.0, 9.0, read=lambda r: r[1].scores["psnr_best_match"] - r[0].scores["psnr_best_match"])
    rows, _ = _run(
        tmp_path,
        jobs,
        [_cell("a", 3.0, note="as it is"), second],
        beside=lambda cell, results: {"arrays": [sorted(of_seed[-1].arrays) for of_seed in results]},
        watch=lambda *said: watched.append(said),
    )
    assert (rows[0]["ours"], rows[0]["spread"], rows[0]["values"]) == (3.5, 0.5, [3.0, 4.0])
    assert (rows[0]["seeds"], rows[0]["note"], rows[0]["paper"]) == ([0, 1], "as it is", 2.0)
    assert (rows[1]["ours"], rows[1]["arrays"]) == (6.0, [["truth"], ["truth"]])
    assert jobs.ran == [(3.0, 0), (3.0, 1), (9.0, 0), (9.0, 1)]
    assert watched == [("cells", 0, 2, "table1/a"), ("cells", 1, 2, "table1/b")]
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["id"] for row in logged] == ["table1/a", "table1/b"]


def test_what_fails_or_is_missing_is_listed_with_its_reason_and_the_others_run(tmp_path):
    listed = {"said": _cell("said", reason="not asked for")}
    listed |= {name: _cell(name, name) for name in ("diverged", "absent", "large")}
    rows, _ = _run(tmp_path, Numbers(), [*listed.values(), _cell("last", 1.0)])
    why = {row["id"].partition("/")[2]: row.get("not_run") for row in rows}
    assert why == {
        "said": "not asked for",
        "diverged": "diverged",
        "absent": "no data: nowhere.npz",
        "large": "needs 21 GB",
        "last": None,
    }
    assert [row["ours"] for row in rows] == [None] * 4 + [1.5]


def test_a_disk_that_is_full_ends_the_table(tmp_path):
    with pytest.raises(OSError, match="the disk is full"):
        _run(tmp_path, Numbers(), [_cell("a", "disk"), _cell("b", 1.0)])


def test_finished_jobs_are_read_back_bit_by_bit_and_cost_nothing(tmp_path):
    jobs = Numbers()
    rows, _ = _run(tmp_path, jobs, [_cell("a", 9.1)])
    jobs.ran.clear()
    again, runner = _run(tmp_path, jobs, [_cell("a", 9.1)], budget=0.0)
    assert again == rows
    assert jobs.ran == []
    np.testing.assert_array_equal(runner(9.1, 0).arrays["truth"], np.full(2, 9.1))


def test_results_of_other_data_are_refused_before_anything_is_written(tmp_path):
    _run(tmp_path, Numbers(data=0.0), [_cell("a", 1.0)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigMismatchError, match="other contents of the numbers"):
        _run(tmp_path, Numbers(data=1.0), [_cell("b", 2.0), _cell("a", 1.0)])
    assert {path: path.read_bytes() for path in before} == before
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_the_budget_is_in_seconds_and_what_seeds_share_counts_once(tmp_path):
    jobs = Numbers(once=30.0)
    cells = [_cell("a", 1.0, 2.0, 2.0)]  # 30 s for both seeds of either job, and 60 s for each
    (row,), _ = _run(tmp_path, jobs, cells, budget=299.0)
    assert row["not_run"] == "beyond the budget: needs about 5 minutes"
    (row,), _ = _run(tmp_path, jobs, cells, budget=301.0)
    assert row["ours"] == 1.5
    _, runner = _run(tmp_path, jobs, [], seeds=(0,))
    assert runner.lacking([1.0, 3.0, 3.0], (0, 1, 2)) == (30 + 60) + (30 + 180)


def test_jobs_that_took_less_than_estimated_make_the_next_ones_cheaper(tmp_path):
    _, runner = _run(tmp_path, Numbers(), [_cell("a", 1.0)], seeds=(0,))
    assert runner.spent < 1.0
    assert runner.cost([2.0], (0,)) == pytest.approx(30.0, rel=0.02)  # (60 + 0) / (60 + 60) of a minute
    assert runner.lacking([2.0], (0,)) == 60.0


def test_jobs_of_two_types_do_not_share_a_file(tmp_path):
    folder = RunFolder(tmp_path, "study", {}, fresh=False)
    both = ByType({float: Numbers(), int: Numbers()})
    runner = runner_in(folder, both, fresh=False)
    assert runner.path(1.0, 0) != runner.path(1, 0)
    assert runner(2, 0).scores == {"psnr_best_match": 2}
    assert (both.cost(1), score_named("psnr_best_match", 10.0)([runner(1.5, 1)])) == (Cost(60.0), 25.0)
