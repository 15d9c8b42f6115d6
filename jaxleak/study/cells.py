"""Cells of a paper's tables: what is run for them within a budget, and the rows that come of it."""

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
    """How a cell reads one score of its first job.

    Args:
        name: what `Result.scores` calls the score.
        factor: number by which the score is multiplied, for example 100 for per cent.
    """
    return lambda results: factor * results[0].scores[name]


def best_match(results: Results) -> float:
    """PSNR in dB of a cell's first job, every image matched to its best reconstruction, as most papers report it."""
    return results[0].scores["psnr_best_match"]


def curve_at(iteration: int, column: int) -> Callable[[Results], float]:
    """How a cell reads the curve of its first job.

    Args:
        iteration: the value is that of the last point not after it, >= 0.
        column: which number of a point is read, >= 1; the first one, 0, is the iteration.
    """

    def read(results: Results) -> float:
        return float([point for point in results[0].arrays["curve"] if point[0] <= iteration][-1][column])

    return read


def iterations_to(threshold: float) -> Callable[[Results], float]:
    """How a cell reads at which iteration the curve of its first job reaches a value, or NaN if never.

    Args:
        threshold: the value, in the unit of the curve.
    """

    def read(results: Results) -> float:
        reached = [iteration for iteration, value in results[0].arrays["curve"] if value >= threshold]
        return float(reached[0]) if reached else float("nan")

    return read


@dataclass(frozen=True)
class Cell:
    """A number: the paper's, if it prints one, the jobs that give ours, and how it is read off their results."""

    id: str
    paper: float | None  # None: a figure's, or ours alone
    unit: str
    jobs: tuple[Any, ...] = ()  # hashable values; equal jobs run once
    read: Callable[[Results], float] = best_match
    note: str = ""  # how it is run
    reason: str = ""  # why it has no jobs


def over_rounds(same: Sequence[Cell]) -> Cell:
    """The mean of one cell over several attacked rounds, given the cell of each of them."""
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
    """The parts that are not empty, in one text: notes, or by hyphens the parts of a name."""
    return by.join(filter(None, parts))


@dataclass
class Budget:
    """Seconds that are left."""

    left: float

    def fill(
        self, row: dict[str, Any], folder: RunFolder, phase: str, need: float, measure: Callable[[], dict[str, Any]]
    ) -> None:
        """Add to a row what was measured, or `not_run`, why nothing was; what can be measured is logged.

        Args:
            row: gets the entries.
            folder: keeps the time under the phase's name.
            phase: the phase to which the time belongs.
            need: estimated seconds.
            measure: gives the entries. `ValueError`, `FloatingPointError` and `MemoryError` concern this row alone.

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
    """Run what fits the budget.

    Args:
        cells: in the order in which they get the budget; those with a `reason` are listed.
        runner: the runner of their jobs.
        folder: the run folder; it is told of every row, and refuses data that earlier results do not come from.
        seeds: every cell is repeated for these.
        budget: is charged with the time that cells take.
        beside: what else a row says, given the cell and the results by seed.
        watch: called as `watch("cells", number, total, id)` before a cell is run.

    Returns:
        One row per cell: `id`, `paper`, `unit` and `ours`, which is the mean over the seeds, with `spread` (standard
        deviation), `seeds`, `values` and `note`; or `not_run`, why it has none.

    Raises:
        ConfigMismatchError: if results at hand come from other data; nothing has been written then.
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
    """Why the cell's jobs cannot run here, or nothing."""
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
