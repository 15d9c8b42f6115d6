"""Cells of a paper's tables: the jobs that are run for each cell within a budget, and the resulting rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import RunFolder
from jaxleak.study.rows import BEYOND_BUDGET, NO_DATA
from jaxleak.study.runner import Result, Runner

__all__ = [
    "Budget",
    "Cell",
    "Results",
    "best_match",
    "curve_at",
    "iterations_to",
    "joined",
    "over_rounds",
    "run_cells",
    "score_named",
]

#: The results of a cell's jobs for one seed, in their order.
Results = Sequence[Result]


def score_named(name: str, factor: float = 1.0) -> Callable[[Results], float]:
    """Make a function that reads one score from the results of a cell's first job.

    Args:
        name: name of the score in `Result.scores`.
        factor: number by which the score is multiplied, for example 100 for per cent.
    """
    return lambda results: factor * results[0].scores[name]


def best_match(results: Results) -> float:
    """PSNR in dB of a cell's first job: every image is matched to its best reconstruction, as in most papers."""
    return results[0].scores["psnr_best_match"]


def curve_at(iteration: int, column: int) -> Callable[[Results], float]:
    """Make a function that reads one value from the curve of a cell's first job.

    Args:
        iteration: iteration >= 0; the value is read at the last point of the curve that is not after it.
        column: which number of a point is read, >= 1; number 0 is the iteration.
    """

    def read(results: Results) -> float:
        return float([point for point in results[0].arrays["curve"] if point[0] <= iteration][-1][column])

    return read


def iterations_to(threshold: float) -> Callable[[Results], float]:
    """Make a function that finds the iteration at which the curve of a cell's first job reaches a value, or NaN.

    Args:
        threshold: the value to reach, in the unit of the curve; NaN means that the curve never reaches it.
    """

    def read(results: Results) -> float:
        reached = [iteration for iteration, value in results[0].arrays["curve"] if value >= threshold]
        return float(reached[0]) if reached else float("nan")

    return read


@dataclass(frozen=True)
class Cell:
    """One number of a table: the paper's value, if any, the jobs that give ours, and how ours is read from them."""

    id: str
    paper: float | None  # None: a figure's, or ours alone
    unit: str
    jobs: tuple[Any, ...] = ()  # hashable values; equal jobs run once
    read: Callable[[Results], float] = best_match
    note: str = ""  # how it is run
    reason: str = ""  # why it has no jobs


def over_rounds(same: Sequence[Cell]) -> Cell:
    """Make the cell that averages one number over several attacked rounds, given the cell of each round."""
    first = same[0]
    if len(same) == 1 or first.reason or all(cell.jobs == first.jobs for cell in same):
        return first
    size = len(first.jobs)

    def read(results: Results) -> float:
        own = [results[size * number : size * (number + 1)] for number in range(len(same))]
        return float(np.mean([cell.read(part) for cell, part in zip(same, own, strict=True)]))

    notes = dict.fromkeys(part for cell in same for part in cell.note.split("; "))
    return replace(
        first,
        jobs=tuple(job for cell in same for job in cell.jobs),
        read=read,
        note=joined(*notes, f"mean over {len(same)} rounds"),
    )


def joined(*parts: str, by: str = "; ") -> str:
    """Join the parts that are not empty into one text: notes, or with `by="-"` the parts of a name."""
    return by.join(filter(None, parts))


@dataclass
class Budget:
    """The seconds that are left for measurements."""

    left: float

    def fill(
        self, row: dict[str, Any], folder: RunFolder, phase: str, need: float, measure: Callable[[], dict[str, Any]]
    ) -> None:
        """Measure one row and log it; a row that cannot be measured gets the reason in `not_run`.

        Args:
            row: the row, which gets the measured entries.
            folder: run folder, which logs the row and keeps the time that was spent.
            phase: name of the phase to which the time belongs.
            need: estimated seconds of the measurement.
            measure: function that returns the entries. If it raises `ValueError`, `FloatingPointError` or
                `MemoryError`, only this row is not run.

        Raises:
            ConfigMismatchError: if earlier results come from other data, which concerns all rows.
            OSError: if results cannot be written.
        """
        if need > max(self.left, 0.0):
            minutes = max(1, round(need / 60))
            row["not_run"] = f"{BEYOND_BUDGET}: needs about {minutes} minute{'s' if minutes > 1 else ''}"
            return
        before = sum(folder.seconds.values())
        try:
            with folder.phase(phase):
                row |= measure()
            folder.log(**row)
        except ConfigMismatchError:
            raise
        except (ValueError, FloatingPointError, MemoryError) as error:
            row["not_run"] = str(error)
        finally:
            self.left -= sum(folder.seconds.values()) - before


def run_cells(
    cells: Sequence[Cell],
    runner: Runner,
    folder: RunFolder,
    *,
    seeds: Sequence[int],
    budget: Budget,
    beside: Callable[[Cell, Sequence[Results]], dict[str, Any]] = lambda *_: {},
    watch: Callable[[str, int, int, str], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """Run the cells that fit the budget.

    Args:
        cells: cells in the order in which they get the budget; one with a `reason` is listed and not run.
        runner: runner of the cells' jobs.
        folder: run folder, which logs every measured row.
        seeds: seeds for which every cell is repeated.
        budget: budget from which the time of the cells is taken.
        beside: function that returns further entries of a row, given the cell and its results by seed.
        watch: called as `watch("cells", number, total, id)` before a cell is run.

    Returns:
        One row per cell with `id`, `paper`, `unit` and `ours`. A cell that ran has in `ours` the mean over the seeds,
        and also `spread` (standard deviation), `seeds`, `values` and `note`. For any other cell `ours` is None, and
        `not_run` says why.

    Raises:
        ConfigMismatchError: if stored results come from other data; nothing has been written then.
    """
    runner.check((job for cell in cells if not cell.reason for job in cell.jobs), seeds)
    folder.log_again()
    rows = []
    for number, cell in enumerate(cells):
        row: dict[str, Any] = {"id": cell.id, "paper": cell.paper, "unit": cell.unit, "ours": None}
        rows.append(row)
        need = 0.0 if cell.reason else runner.cost(cell.jobs, seeds)
        if why := cell.reason or (_why_not(cell, runner, seeds) if need <= max(budget.left, 0.0) else ""):
            row["not_run"] = why
            continue
        watch("cells", number, len(cells), cell.id)
        budget.fill(row, folder, cell.id.partition("/")[0], need, lambda: _measured(cell, runner, seeds, beside))  # noqa: B023
    return rows


def _why_not(cell: Cell, runner: Runner, seeds: Sequence[int]) -> str:
    """Say why the cell's jobs cannot run here, or return an empty text if they can."""
    try:
        for seed in seeds:
            for job in cell.jobs:
                runner.jobs.require(job, seed)
    except (OSError, ImportError, ValueError, MemoryError) as error:
        return (NO_DATA if isinstance(error, FileNotFoundError) else "") + str(error)
    return ""


def _measured(
    cell: Cell, runner: Runner, seeds: Sequence[int], beside: Callable[[Cell, Sequence[Results]], dict[str, Any]]
) -> dict[str, Any]:
    results = [[runner(job, seed) for job in cell.jobs] for seed in seeds]
    values = [float(cell.read(of_seed)) for of_seed in results]
    row = {"ours": float(np.mean(values)), "spread": float(np.std(values)), "seeds": list(seeds), "values": values}
    return {**row, "note": cell.note, **beside(cell, results)}
