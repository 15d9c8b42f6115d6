"""The jobs behind the VFLRecon tables, and the readings of their scores that the paper prints."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments._vfl.cell import FEATURE, LABEL, Reading
from experiments._vfl.problem import Case, sources_of, vertical_problem
from experiments._vfl.runs import Runs, run_case, task_scores
from experiments._vfl.truth import correlations
from jaxleak.attacks import party_records
from jaxleak.study import Progress, RunFolder
from jaxleak.study.cells import Budget, Cell, Results, run_cells, score_named
from jaxleak.study.rows import show_cells, value_of
from jaxleak.study.runner import Cost, Result, Runner, runner_in
from jaxleak.study.sources import Arrays

#: Scores that stand beside ours, by the name of the attack.
BESIDE = ("own_bottom", "independent", "free", "baseline", "baseline_network")
#: The same as columns of a table.
BESIDE_COLUMNS = {name.replace("_", " "): value_of(name, ".4g") for name in BESIDE}

#: Seconds on two CPU cores that other work shares, measured; only used to decide what fits a budget.
_FIRST, _PER_START, _TASK, _CKKS_STEP = 10.0, 8.0, 6.0, 1.5


class CaseJob(NamedTuple):
    """A case, and everything that has to run of it."""

    case: Case
    runs: Runs


class CaseJobs:
    """Cases as jobs. Scores are those of `run_case`, and correlations where features are reconstructed."""

    def __init__(self, pictured: Collection[tuple[Case, int]] = (), slowdown: Callable[[Case], float] = lambda _: 1.0):
        """Plan.

        Args:
            pictured: cases and seeds whose arrays are kept, for figures.
            slowdown: by how much a case takes longer than the estimate.
        """
        self.pictured, self.slowdown = frozenset(pictured), slowdown

    def identity(self, job: CaseJob, seed: int) -> dict[str, Any]:
        """Case and runs."""
        return {"case": dataclasses.asdict(job.case), "runs": job.runs._asdict(), "seed": seed}

    def sources(self, job: CaseJob, seed: int) -> Arrays:
        """The records that the case draws from."""
        return sources_of(job.case)

    def require(self, job: CaseJob, seed: int) -> None:
        """Refuse data that are not there or do not fit the case."""
        vertical_problem(job.case, seed)

    def cost(self, job: CaseJob) -> Cost:
        """As `seconds` says."""
        return Cost(self.slowdown(job.case) * seconds(job.case, job.runs))

    def run(self, job: CaseJob, seed: int) -> Result:
        """Run all of the case once."""
        if not job.runs.shadow_init and not job.runs.features:
            return Result(task_scores(job.case, seed), {})
        scores, arrays = run_case(job.case, seed, job.runs)
        scores |= correlations(arrays, seed) if arrays else {}
        return Result(scores, arrays if (job.case, seed) in self.pictured else {})


def plan(readings: Sequence[Reading], shadow_init: tuple[party_records.ShadowInit, ...]) -> dict[Case, Runs]:
    """Per case what its readings need: a case that only costs accuracy runs no attack."""
    runs: dict[Case, Runs] = {}
    for reading in readings:
        if reading.missing:
            continue
        attacked = not reading.metric.startswith("task")
        old = runs.get(reading.case, Runs((), False))
        runs[reading.case] = Runs(
            shadow_init=shadow_init if attacked else old.shadow_init,
            features=old.features or reading.metric.startswith((FEATURE, "correlation")),
            task=old.task or not attacked,
            comparisons=old.comparisons or "_li_" in reading.metric or "_fu_" in reading.metric,
        )
    return runs


def seconds(case: Case, runs: Runs) -> float:
    """Estimated seconds of one seed."""
    starts = len(runs.shadow_init) * (2 if case.defense != "none" else 1)
    size = min(2.0, case.victim_records / 1000)
    total = (_TASK * size if runs.task else 0.0) + (_FIRST if starts else 0.0)
    # One training per candidate, on nearly all records, and one more with the fields that won.
    trainings = 1 + (len(party_records.FIELD_CANDIDATES) if case.select == "validation" else 0)
    network = size * (2 if runs.features else 1) * (4 if "parameters" in case.fields else 1)
    total += _PER_START * starts * network * trainings * max(1.0, case.shadow_runs * case.network_epochs / 10)
    if case.cipher == "ckks":
        total += _CKKS_STEP * (case.parties - 1) * case.victim_records / case.batch_size
    return total * (4 if case.data == "cifar10" else 1)


def run_readings(
    readings: Sequence[Reading],
    folder: RunFolder,
    *,
    seeds: Sequence[int],
    budget: float,
    shadow_init: Any,
    pictured: Collection[Case] = (),
    fresh: bool = False,
) -> tuple[list[dict[str, Any]], Runner]:
    """Run what fits.

    Args:
        readings: in the order in which they get the budget.
        folder: where finished cases are kept.
        seeds: every reading is repeated for these.
        budget: minutes.
        shadow_init: which starts of the shadow run; the first is "ours" of the attack's cells.
        pictured: cases whose arrays a figure shows; those of the first seed are kept.
        fresh: forget finished cases.

    Returns:
        The rows of `run_cells`, with what stands beside ours; and the runner.
    """
    runs = plan(readings, shadow_init)
    by_id = {reading.id: reading for reading in readings}
    jobs = CaseJobs({(case, seeds[0]) for case in pictured})
    runner = runner_in(folder, jobs, fresh=fresh)
    with Progress() as progress:
        rows = run_cells(
            [_cell(reading, runs) for reading in readings],
            runner,
            folder,
            seeds=seeds,
            budget=Budget(60.0 * budget),
            beside=lambda cell, results: _beside(by_id[cell.id], results),
            watch=progress.update,
        )
    return rows, runner


def _cell(reading: Reading, runs: dict[Case, Runs]) -> Cell:
    jobs = () if reading.missing else (CaseJob(reading.case, runs[reading.case]),)
    read = score_named(reading.metric, reading.factor)
    return Cell(reading.id, reading.paper, reading.unit, jobs, read, reading.note, reading.missing)


def arrays_of(runner: Runner, case: Case, seed: int) -> Mapping[str, np.ndarray] | None:
    """What a figure shows of a pictured case that ran, in this sitting or an earlier one; None of others."""
    for (job, of_seed), result in runner.memory.items():
        if (job.case, of_seed) == (case, seed) and result.arrays:
            return result.arrays
    return None


def _beside(reading: Reading, results: Sequence[Results]) -> dict[str, Any]:
    """Means over the seeds of what else the attack scores; `variance` is that of the features."""
    scores = [of_seed[0].scores for of_seed in results]

    def mean(name: str) -> float | None:
        values = [of_seed[name] for of_seed in scores if name in of_seed]
        return reading.factor * float(np.mean(values)) if values else None

    stem = next((stem for stem in (LABEL, FEATURE) if reading.metric.startswith(stem)), None)
    if stem is not None:
        adaptive = "_adaptive" if reading.metric.endswith("_adaptive") else ""
        found = {
            name: mean(f"{stem}_{name}{adaptive if name in ('own_bottom', 'independent') else ''}") for name in BESIDE
        }
        return found | ({"variance": mean("feature_variance")} if stem == FEATURE else {})
    if reading.metric.startswith("task"):
        return {name: mean(name) for name in ("task_accuracy", "task_accuracy_undefended")}
    return {}


def show(rows: list[dict[str, Any]]) -> None:
    """Print paper, ours and difference, and what stands beside it; then what was not run and why."""
    show_cells(rows, BESIDE_COLUMNS)
