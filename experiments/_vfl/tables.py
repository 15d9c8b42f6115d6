"""Runs the cells of the VFLRecon tables within a budget, and prints paper, ours and difference."""

import dataclasses
import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments._rows import BEYOND_BUDGET, NO_DATA, show_cells, value_of
from experiments._vfl.cell import FEATURE, LABEL, Cell
from experiments._vfl.problem import Case, sources_of, vertical_problem
from experiments._vfl.runs import Runs, run_case, task_scores
from experiments._vfl.truth import correlations
from jaxleak.attacks import party_records
from jaxleak.study import Progress, RunFolder, digest
from jaxleak.study.files import Stored, append_line, jsonable, read_lines, write_text

#: Scores that stand beside ours, by the name of the attack.
BESIDE = ("own_bottom", "independent", "free", "baseline", "baseline_network")
#: The same as columns of a table.
BESIDE_COLUMNS = {name.replace("_", " "): value_of(name, ".4g") for name in BESIDE}

#: Seconds on two CPU cores that other work shares, measured; only used to decide what fits a budget.
_FIRST, _PER_START, _TASK, _CKKS_STEP = 10.0, 8.0, 6.0, 1.5


def scores_and_arrays(case: Case, seed: int, runs: Runs) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """All scores of a case and seed, and the arrays of its features, where the runs reconstruct any."""
    if not runs.shadow_init and not runs.features:
        return task_scores(case, seed), {}
    scores, arrays = run_case(case, seed, runs)
    return scores | (correlations(arrays, seed) if arrays else {}), arrays


class Runner:
    """Runs every (case, seed) once; what a killed run of the same folder has finished is read from there."""

    def __init__(self, folder: RunFolder, runs: dict[Case, Runs], pictured: Collection[tuple[Case, int]] = ()):
        """Plan.

        Args:
            folder: keeps finished scores in `cases.jsonl`.
            runs: per case all that any of its cells needs.
            pictured: cases and seeds whose arrays are kept too, for figures.
        """
        self.runs, self.pictured = runs, pictured
        self.file: Path = folder.path / "cases.jsonl"
        self.pictures: Path = folder.path / "pictures"
        self.done: dict[str, dict[str, float]] = {}
        if self.file.exists():
            finished = read_lines(self.file, lambda entry: (str(entry["key"]), _numbers(entry["scores"])))
            self.done = {key: Stored(self.file, scores) for _, (key, scores) in finished}
            write_text(self.file, "".join(line for line, _ in finished))

    def key(self, case: Case, seed: int) -> str:
        """What a score depends on."""
        return json.dumps([dataclasses.asdict(case), seed, self.runs[case]._asdict()], sort_keys=True)

    def finished(self, case: Case, seed: int) -> bool:
        """Whether `scores` costs nothing."""
        return self.key(case, seed) in self.done

    def scores(self, case: Case, seed: int) -> dict[str, float]:
        """All scores of a case and seed."""
        key = self.key(case, seed)
        if key not in self.done:
            runs = self.runs[case]
            scores, arrays = scores_and_arrays(case, seed, runs)
            if arrays and (case, seed) in self.pictured:
                self.pictures.mkdir(exist_ok=True)
                np.savez(self._picture(case, seed), **arrays)  # type: ignore[arg-type]
            self.done[key] = scores
            append_line(self.file, json.dumps(jsonable({"key": key, "scores": scores})))
        return self.done[key]

    def arrays(self, case: Case, seed: int) -> dict[str, np.ndarray] | None:
        """What a figure shows of a case and seed that are pictured and finished, in this sitting or an earlier one."""
        if case not in self.runs or not self._picture(case, seed).exists():
            return None
        with np.load(self._picture(case, seed), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def _picture(self, case: Case, seed: int) -> Path:
        return self.pictures / f"{digest({'key': self.key(case, seed)})}.npz"


def _numbers(stored: Any) -> dict[str, float]:
    return {name: float(value) for name, value in stored.items()}


def plan(cells: Sequence[Cell], shadow_init: tuple[party_records.ShadowInit, ...]) -> dict[Case, Runs]:
    """Per case what its cells need: a case that only costs accuracy runs no attack."""
    runs: dict[Case, Runs] = {}
    for cell in cells:
        if cell.missing:
            continue
        attacked = not cell.metric.startswith("task")
        old = runs.get(cell.case, Runs((), False))
        runs[cell.case] = Runs(
            shadow_init=shadow_init if attacked else old.shadow_init,
            features=old.features or cell.metric.startswith((FEATURE, "correlation")),
            task=old.task or not attacked,
            comparisons=old.comparisons or "_li_" in cell.metric or "_fu_" in cell.metric,
        )
    return runs


def cost(case: Case, runs: Runs) -> float:
    """Estimated seconds of one seed."""
    starts = len(runs.shadow_init) * (2 if case.defense != "none" else 1)
    size = min(2.0, case.victim_records / 1000)
    seconds = (_TASK * size if runs.task else 0.0) + (_FIRST if starts else 0.0)
    # One training per candidate, on nearly all records, and one more with the fields that won.
    trainings = 1 + (len(party_records.FIELD_CANDIDATES) if case.select == "validation" else 0)
    network = size * (2 if runs.features else 1) * (4 if "parameters" in case.fields else 1)
    seconds += _PER_START * starts * network * trainings * max(1.0, case.shadow_runs * case.network_epochs / 10)
    if case.cipher == "ckks":
        seconds += _CKKS_STEP * (case.parties - 1) * case.victim_records / case.batch_size
    return seconds * (4 if case.data == "cifar10" else 1)


def run_cells(
    cells: Sequence[Cell],
    folder: RunFolder,
    *,
    seeds: Sequence[int],
    budget: float,
    shadow_init: Any,
    pictured: Collection[Case] = (),
) -> tuple[list[dict[str, Any]], Runner]:
    """Run what fits.

    Args:
        cells: in the order in which they get the budget.
        folder: where finished cases are kept.
        seeds: every cell is repeated for these.
        budget: minutes.
        shadow_init: which starts of the shadow run; the first is "ours" of the attack's cells.
        pictured: cases whose arrays a figure shows; those of the first seed are kept.

    Returns:
        One row per cell: paper, ours, spread, what stands beside it, or why it was not run; and the runner.
    """
    runner = Runner(folder, plan(cells, shadow_init), {(case, seeds[0]) for case in pictured})
    for cell in cells:
        if not cell.missing:
            folder.sources.check(sources_of(cell.case))
    folder.log_again()
    left, rows = 60.0 * budget, []
    with Progress() as progress:
        for number, cell in enumerate(cells):
            row: dict[str, Any] = {"id": cell.id, "paper": cell.paper, "unit": cell.unit, "ours": None}
            rows.append(row)
            progress.update("cells", number, len(cells), cell.id)
            if cell.missing:
                row["not_run"] = cell.missing
                continue
            need = sum(cost(cell.case, runner.runs[cell.case]) for s in seeds if not runner.finished(cell.case, s))
            if need > max(left, 0.0):
                row["not_run"] = f"{BEYOND_BUDGET}, needs about {max(1, round(need / 60))} minutes"
                continue
            begin = time.perf_counter()
            try:
                for seed in seeds:
                    vertical_problem(cell.case, seed)
            except (OSError, ImportError, ValueError) as error:  # nothing has been trained
                row["not_run"] = (NO_DATA if isinstance(error, FileNotFoundError) else "") + str(error)
                continue
            folder.sources.bind(sources_of(cell.case))
            try:
                with folder.phase(cell.id.split("/")[0]):
                    scores = [runner.scores(cell.case, seed) for seed in seeds]
            except FloatingPointError as error:
                row["not_run"] = f"diverged: {error}"
                continue
            left -= time.perf_counter() - begin
            row |= _filled(cell, scores) | {"seeds": list(seeds), "note": cell.note}
            folder.log(**row)
    return rows, runner


def _filled(cell: Cell, scores: list[dict[str, float]]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        values = [score[name] for score in scores if name in score]
        return cell.factor * float(np.mean(values)) if values else None

    values = [cell.factor * score[cell.metric] for score in scores]
    ours = float(np.mean(values))
    filled: dict[str, Any] = {"ours": ours, "spread": float(np.std(values)), "values": values}
    if cell.paper is not None:
        filled["difference"] = ours - cell.paper
    stem = next((stem for stem in (LABEL, FEATURE) if cell.metric.startswith(stem)), None)
    if stem is not None:
        adaptive = "_adaptive" if cell.metric.endswith("_adaptive") else ""
        for name in BESIDE:
            filled[name] = mean(f"{stem}_{name}{adaptive if name in ('own_bottom', 'independent') else ''}")
        if stem == FEATURE:
            filled["variance"] = mean("feature_variance")
    elif cell.metric.startswith("task"):
        filled |= {name: mean(name) for name in ("task_accuracy", "task_accuracy_undefended")}
    return filled


def show(rows: list[dict[str, Any]]) -> None:
    """Print paper, ours and difference, and what stands beside it; then what was not run and why."""
    show_cells(rows, BESIDE_COLUMNS)
