"""Runs the points of a study within a budget: training with the defense, and the attack without and with knowing it."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments._defenses.accounting import true_epsilon
from experiments._defenses.studies import Point
from experiments._defenses.utility import Utilities, utility_of
from experiments._fedleak.federation import Federation
from experiments._fedleak.jobs import Job
from experiments._fedleak.runs import unavailable
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import RunFolder
from jaxleak.study.cells import Budget
from jaxleak.study.rows import NO_DATA
from jaxleak.study.runner import Runner
from jaxleak.study.updates import Case, check, require_memory_of_update

#: Scores of an attack that stand in a row; with `_adaptive` behind the name for the attacker who knows.
SHOWN = ("psnr", "ssim", "recognised", "cosine_distance", "label_accuracy")


def attack_job(case: Case, federation: Federation) -> Job:
    """The attack on one upload of that federation."""
    return Job("invert", case, federation=federation if case.attacked_round else None)


def jobs_of(point: Point, federation: Federation, adaptive: tuple[str, ...] | None) -> dict[str, Job]:
    """The attacks on a point, by what is behind the names of their scores; `adaptive` as in `run_points`."""
    jobs = {"": attack_job(point.case, federation)}
    if point.case.defense is not None and (adaptive is None or point.case.defense in adaptive):
        jobs["_adaptive"] = attack_job(replace(point.case, adaptive=True), federation)
    return jobs


def run_points(
    points: Sequence[Point],
    folder: RunFolder,
    runner: Runner,
    utilities: Utilities,
    *,
    seeds: tuple[int, ...],
    budget: Budget,
    adaptive: tuple[str, ...] | None,
) -> list[dict[str, Any]]:
    """One row per point: means, spreads and values over the seeds, or `not_run`, the reason why it has none.

    Args:
        points: in the order in which they get the budget.
        folder: told of every row.
        runner: of the attacks and utilities.
        utilities: says what the trainings are of.
        seeds: each changes data, weights, batch, noise and start together.
        budget: is charged with what was needed.
        adaptive: defenses that are also attacked by who knows them; None takes all.
    """
    rows: list[dict[str, Any]] = []
    for point in points:
        row = {
            "id": point.id,
            "curve": point.curve,
            "defense": point.case.defense,
            "strength": point.strength,
            "local_steps": point.case.local_steps,
            "clients": point.case.clients,
            "attacked_round": point.case.attacked_round,
        }
        rows.append(row)
        if why := unavailable(point.case.data):
            row["not_run"] = NO_DATA + why
            continue
        jobs = jobs_of(point, utilities.federation, adaptive)
        need = runner.cost([utility_of(point.case), *jobs.values()], seeds)
        phase = point.curve.replace("/", "-")
        measure = functools.partial(_measure, point, jobs, runner, utilities, seeds, rows)
        budget.fill(row, folder, phase, need, measure)
    return rows


def _measure(
    point: Point,
    jobs: dict[str, Job],
    runner: Runner,
    utilities: Utilities,
    seeds: tuple[int, ...],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """What the last one of the rows gets."""
    check(point.case)
    require_memory_of_update(point.case)
    accuracies = [runner(utility_of(point.case), seed).scores["test_accuracy"] for seed in seeds]
    row: dict[str, Any] = {"seeds": list(seeds), **_statistics("accuracy", accuracies)}
    row["bits_per_entry"] = utilities.bits_per_entry(point.case)
    row["diverged"] = int(np.isnan(row["accuracy_values"]).sum())
    for suffix, job in jobs.items():
        scores = [runner(job, seed).scores for seed in seeds]
        for name in SHOWN:
            row |= _statistics(f"{name}{suffix}", [score[name] for score in scores])
        row |= _statistics("psnr_grey", [score["psnr_grey"] for score in scores])
    leaks = [row[f"psnr{suffix}_values"] for suffix in jobs]
    # An attacker may know the defense and still ignore it: the defender has to reckon with the better of both.
    row |= _statistics("leak", max(leaks, key=np.mean))
    if point.case.defense is not None and CLIENT_DEFENSES[point.case.defense].private:
        f = utilities.federation
        try:
            row["true_epsilon"] = true_epsilon(
                point.case.defense,
                point.case.strength,
                batch_size=f.batch_size,
                own_samples=f.samples // f.clients,
                rounds=f.rounds,
            )
        except ImportError as error:
            row["true_epsilon_missing"] = str(error)
    row["paper"] = [
        {"id": name, "metric": metric, "relation": relation, "paper": value}
        | {"ours": row["accuracy" if metric == "test_accuracy" else "leak"]}
        for name, metric, relation, value in point.paper
    ]
    return row | _change(rows, {**rows[-1], **row})


def _statistics(name: str, values: list[float]) -> dict[str, Any]:
    return {name: float(np.mean(values)), f"{name}_spread": float(np.std(values)), f"{name}_values": values}


def _change(rows: list[dict[str, Any]], new: dict[str, Any]) -> dict[str, Any]:
    """The new row's accuracy and leak against those of the undefended run with the same local steps.

    Both have the same seeds, and with them data, weights and batch: spreads are of the differences seed by seed.
    """
    change: dict[str, Any] = {}
    for row in [*rows, new]:
        plain = row["defense"] is None and row["clients"] == 1 and row["local_steps"] == new["local_steps"]
        if plain and "accuracy" in row:
            for name in ("accuracy", "leak"):
                pairs = zip(new[f"{name}_values"], row[f"{name}_values"], strict=True)
                change |= _statistics(f"{name}_change", [own - without for own, without in pairs])
    return change
