"""The points of a study as cells: a training with the defense, and attacks that do not know it and that do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments._defenses.studies import Point
from experiments._fedleak.jobs import Job
from jaxleak.defenses import CLIENT_DEFENSES, true_epsilon
from jaxleak.study import RunFolder
from jaxleak.study.cells import Budget, Cell, Results, run_cells, score_named
from jaxleak.study.runner import Runner
from jaxleak.study.updates import Case, Federation, Utilities, utility_of

#: Scores of an attack that stand in a row; with `_adaptive` behind the name for the attacker who knows.
SHOWN = ("psnr", "ssim", "recognised", "cosine_distance", "label_accuracy")
#: What stands behind the names of the scores of a cell's attacks, in the order of its jobs behind the training.
_SUFFIXES = ("", "_adaptive")


def attack_job(case: Case, federation: Federation) -> Job:
    """The attack on one upload of that federation."""
    return Job("invert", case, federation=federation if case.attacked_round else None)


def cell_of(point: Point, federation: Federation, adaptive: Sequence[str] | None) -> Cell:
    """A point as a cell, whose number is the test accuracy of the training; its other jobs are attacks.

    Args:
        point: one defense at one strength.
        federation: that trains.
        adaptive: defenses that are also attacked by who knows them; None takes all.
    """
    jobs: list[Any] = [utility_of(point.case), attack_job(point.case, federation)]
    if point.case.defense is not None and (adaptive is None or point.case.defense in adaptive):
        jobs.append(attack_job(replace(point.case, adaptive=True), federation))
    return Cell(point.id, None, "test accuracy", tuple(jobs), score_named("test_accuracy"))


def run_points(
    points: Sequence[Point],
    folder: RunFolder,
    runner: Runner,
    utilities: Utilities,
    *,
    seeds: tuple[int, ...],
    budget: Budget,
    adaptive: Sequence[str] | None,
    watch: Callable[[str, int, int, str], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """One row per point, as `run_cells` has them, with what `about` says and means, spreads and values over the seeds.

    Args:
        points: in the order in which they get the budget.
        folder: told of every row.
        runner: of the attacks and utilities.
        utilities: says what the trainings are of.
        seeds: each changes data, weights, batch, noise and start together.
        budget: is charged with what was needed.
        adaptive: as in `cell_of`.
        watch: as in `run_cells`.
    """
    by_id = {point.id: point for point in points}
    undefended: dict[int, dict[str, Any]] = {}  # rows by local steps

    def beside(cell: Cell, results: Sequence[Results]) -> dict[str, Any]:
        point = by_id[cell.id]
        row = {**about(point), **_measured(point, utilities, results)}
        if row["defense"] is None and row["clients"] == 1:
            undefended[row["local_steps"]] = row
        return row | _change(row, undefended.get(row["local_steps"]))

    cells = [cell_of(point, utilities.federation, adaptive) for point in points]
    rows = run_cells(cells, runner, folder, seeds=seeds, budget=budget, beside=beside, watch=watch)
    return [{**about(point), **row} for point, row in zip(points, rows, strict=True)]


def about(point: Point) -> dict[str, Any]:
    """What the row of a point says of it whether it ran or not."""
    of_case = {name: getattr(point.case, name) for name in ("defense", "local_steps", "clients", "attacked_round")}
    return {"curve": point.curve, "strength": point.strength, **of_case}


def _measured(point: Point, utilities: Utilities, results: Sequence[Results]) -> dict[str, Any]:
    trainings, *attacks = ([result.scores for result in of_job] for of_job in zip(*results, strict=True))
    accuracies = [scores["test_accuracy"] for scores in trainings]
    row = {**_statistics("accuracy", accuracies), "diverged": int(np.isnan(accuracies).sum())}
    row["bits_per_entry"] = utilities.bits_per_entry(point.case)
    for suffix, of_attack in zip(_SUFFIXES, attacks, strict=False):
        for name in SHOWN:
            row |= _statistics(f"{name}{suffix}", [scores[name] for scores in of_attack])
        row |= _statistics("psnr_grey", [scores["psnr_grey"] for scores in of_attack])
    # An attacker may know the defense and still ignore it: the defender has to reckon with the better of both.
    row |= _statistics("leak", max(([scores["psnr"] for scores in of_attack] for of_attack in attacks), key=np.mean))
    row["printed"] = [
        {"id": name, "metric": metric, "relation": relation, "paper": value}
        | {"ours": row["accuracy" if metric == "test_accuracy" else "leak"]}
        for name, metric, relation, value in point.paper
    ]
    return row | _epsilon(point.case, utilities.federation)


def _epsilon(case: Case, federation: Federation) -> dict[str, Any]:
    if case.defense is None or not CLIENT_DEFENSES[case.defense].private:
        return {}
    size = {"batch_size": federation.batch_size, "own_samples": federation.samples // federation.clients}
    try:
        return {"true_epsilon": true_epsilon(case.defense, case.strength, rounds=federation.rounds, **size)}
    except ImportError as error:
        return {"true_epsilon_missing": str(error)}


def _statistics(name: str, values: list[float]) -> dict[str, Any]:
    return {name: float(np.mean(values)), f"{name}_spread": float(np.std(values)), f"{name}_values": values}


def _change(row: dict[str, Any], undefended: dict[str, Any] | None) -> dict[str, Any]:
    """A row's accuracy and leak against those of the undefended run with the same local steps.

    Both have the same seeds, and with them data, weights and batch: spreads are of the differences seed by seed.
    """
    change: dict[str, Any] = {}
    for name in ("accuracy", "leak") if undefended is not None else ():
        pairs = zip(row[f"{name}_values"], undefended[f"{name}_values"], strict=True)
        change |= _statistics(f"{name}_change", [own - without for own, without in pairs])
    return change
