"""Trade-offs of defenses: the accuracy that a defense costs and the leak that it prevents, as cells of a study.

Every point is a training with the defense, an attack on one upload by an attacker who does not know the defense, and
an attack by one who does. An attacker who knows the noise attacks twice, with a prior of photographs and with a weak
prior, since no single prior suits all images.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxleak._base import PyTree
from jaxleak._own_files import short_name
from jaxleak.attacks.adaptive import reads_prior
from jaxleak.defenses import client_defense, true_epsilon
from jaxleak.study import RunFolder
from jaxleak.study.cells import Budget, Cell, Results, run_cells, score_named
from jaxleak.study.runner import ByType, Runner, runner_in
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._federation import Federation, Utilities, Utility, utility_of
from jaxleak.study.updates._inversions import Inversion, Inversions
from jaxleak.study.updates._own_defense import kind_of_defense, nobody_knew

#: Scores of an attack in a row. The suffix `_adaptive` marks the attacker who knows the defense, and `_adaptive_weak`
#: the attacker who knows the noise and has a weak prior.
SHOWN = ("psnr", "ssim", "recognised", "cosine_distance", "label_accuracy")
#: Suffixes of the names of the scores, one per attack of a cell, in the order of the cell's jobs after the training.
_SUFFIXES = ("", "_adaptive", "_adaptive_weak")


@dataclass(frozen=True)
class TradeOffPoint:
    """One point of a trade-off: a defense and its strength, or no defense, and how the client trains."""

    case: Case
    curve: str  # name of the curve in the legend
    strength: float  # number beside the point
    paper: tuple[tuple[str, str, str, float], ...] = ()  # (id, "test_accuracy" or "psnr", relation, value)

    @property
    def id(self) -> str:
        """The name of the point in tables and files."""
        habits = f"steps{self.case.local_steps}" + (f"-clients{self.case.clients}" if self.case.clients > 1 else "")
        what = "none" if self.case.defense is None else f"{short_name(self.case.defense)}/{self.case.strength:g}"
        return f"{what}/{habits}"


def cell_of_point(point: TradeOffPoint, federation: Federation, adaptive: Sequence[str] | None = None) -> Cell:
    """Make the cell of a point; the cell's number is the test accuracy of the first job, the training.

    The second job is the attack that does not know the defense. The third job, if there is one, is the attack that
    knows it. The fourth job is the attack with `prior="weak"`, if the defense has noise of a known likelihood.

    Args:
        point: one defense at one strength, or no defense.
        federation: federation that trains the model and whose upload is attacked.
        adaptive: names of the defenses that are also attacked by an attacker who knows them; None takes all.
    """
    attacked = [point.case]
    if point.case.defense is not None and (adaptive is None or point.case.defense in adaptive):
        kind = kind_of_defense(point.case.defense)
        defense = client_defense(kind, point.case.strength, local_steps=point.case.total_steps)
        if defense.mechanism is not None:  # only a user's own defense may declare none
            attacked.append(replace(point.case, adaptive=True))
        if reads_prior(defense):
            attacked.append(replace(point.case, adaptive=True, prior="weak"))
    trained = federation if point.case.attacked_round else None
    jobs = (utility_of(point.case), *(Inversion(case, federation=trained) for case in attacked))
    return Cell(point.id, None, "test accuracy", jobs, score_named("test_accuracy"))


def trade_off_runner(
    folder: RunFolder, utilities: Utilities, *, fresh: bool, watch: Callable[[str, int, int], None] = lambda *_: None
) -> Runner:
    """Make a runner of `Utility` and `Inversion` jobs; attacks on later rounds use the weights from `utilities`.

    Args:
        folder: folder of the run.
        utilities: the trainings of the federation.
        fresh: whether to delete the results that exist.
        watch: as in `Inversions`.
    """

    def federated(case: Case, seed: int) -> PyTree:
        runner(utility_of(case), seed)
        return utilities.variables(utility_of(case), seed)

    attacks: Inversions[Inversion] = Inversions(folder, fresh=fresh, watch=watch, federated=federated)
    runner = runner_in(folder, ByType({Inversion: attacks, Utility: utilities}), fresh=fresh)
    return runner


def run_trade_off(
    points: Sequence[TradeOffPoint],
    folder: RunFolder,
    runner: Runner,
    utilities: Utilities,
    *,
    seeds: tuple[int, ...],
    budget: Budget,
    adaptive: Sequence[str] | None = None,
    watch: Callable[[str, int, int, str], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """Run the points, and return one row per point: accuracy and leak, with means, spreads and values over the seeds.

    Rows are those of `run_cells`, and also have `curve`, `strength`, `defense`, `local_steps`, `clients` and
    `attacked_round`. The row of a point that ran has the following scores, each also with the suffixes `_spread` and
    `_values`:

    - `accuracy` in [0, 1].
    - `psnr` in dB, `ssim`, `recognised`, `cosine_distance` and `label_accuracy` of the attack that does not know the
      defense. The suffix `_adaptive` marks the attack that knows it, and `_adaptive_weak` the attack that knows the
      noise and has a weak prior.
    - `psnr_grey` and `psnr_average`, the PSNR in dB of a grey image and of the average training image, which show
      nothing of a single sample.
    - `leak`, the PSNR of the best attack, and `leak_best_match`, the same with every image matched to its best
      reconstruction.
    - `accuracy_change` and `leak_change` against the undefended point of the same local steps, if that point ran
      before.

    A row also has `diverged` (number of seeds), `bits_per_entry` and `printed` (the paper's numbers beside ours; a PSNR
    is compared with `leak_best_match`). A private defense has `true_epsilon`, or `true_epsilon_missing` with the
    reason.

    Args:
        points: points in the order in which they get the budget.
        folder: run folder, which logs every row.
        runner: runner that `trade_off_runner` has made.
        utilities: trainings of the federation.
        seeds: random seeds; each changes data, weights, batch, noise and start together.
        budget: budget from which the time of every run is taken.
        adaptive: as in `cell_of_point`.
        watch: as in `run_cells`.

    Raises:
        ValueError: if two points have the same id, or two defenses the same short name; nothing has run then.
    """
    names = sorted({point.case.defense for point in points if point.case.defense is not None})
    for one, other in itertools.combinations(names, 2):
        if short_name(one) == short_name(other):
            raise ValueError(f"{one} and {other} would have one name in tables; rename one of the files")
    by_id = {point.id: point for point in points}
    if len(by_id) < len(points):
        ids = [point.id for point in points]
        raise ValueError(f"points must have ids of their own, got {next(i for i in ids if ids.count(i) > 1)} twice")
    undefended: dict[int, dict[str, Any]] = {}  # undefended rows by their local steps

    def beside(cell: Cell, results: Sequence[Results]) -> dict[str, Any]:
        point = by_id[cell.id]
        row = {**_about(point), **_measured(point, utilities, results, seeds)}
        if row["defense"] is None and row["clients"] == 1:
            undefended[row["local_steps"]] = row
        return row | _change(row, undefended.get(row["local_steps"]))

    cells = [cell_of_point(point, utilities.federation, adaptive) for point in points]
    rows = run_cells(cells, runner, folder, seeds=seeds, budget=budget, beside=beside, watch=watch)
    return [{**_about(point), **row} for point, row in zip(points, rows, strict=True)]


def _about(point: TradeOffPoint) -> dict[str, Any]:
    """Return the entries that the row of a point has, whether the point ran or not."""
    of_case = {name: getattr(point.case, name) for name in ("defense", "local_steps", "clients", "attacked_round")}
    return {"curve": point.curve, "strength": point.strength, **of_case}


def _measured(
    point: TradeOffPoint, utilities: Utilities, results: Sequence[Results], seeds: Sequence[int]
) -> dict[str, Any]:
    trainings, *attacks = ([result.scores for result in of_job] for of_job in zip(*results, strict=True))
    accuracies = [scores["test_accuracy"] for scores in trainings]
    row = {**_statistics("accuracy", accuracies), "diverged": int(np.isnan(accuracies).sum())}
    row["bits_per_entry"] = utilities.bits_per_entry(point.case)
    row |= {"blind": True} if nobody_knew(point.case) else {}
    for suffix, of_attack in zip(_SUFFIXES, attacks, strict=False):
        for name in SHOWN:
            row |= _statistics(f"{name}{suffix}", [scores[name] for scores in of_attack])
        row |= _statistics("psnr_grey", [scores["psnr_grey"] for scores in of_attack])
    attacked = [of_seed[1].arrays["truth"] for of_seed in results]
    averages = [utilities.average_psnr(point.case, s, x) for s, x in zip(seeds, attacked, strict=True)]
    row |= _statistics("psnr_average", averages)
    # An attacker who knows the defense may still ignore it, so the defender has to expect the best of the attacks.
    for name, score in (("leak", "psnr"), ("leak_best_match", "psnr_best_match")):
        row |= _statistics(name, max(([scores[score] for scores in of_attack] for of_attack in attacks), key=_mean))
    row["printed"] = [
        {"id": name, "metric": metric, "relation": relation, "paper": value}
        | {"ours": row["accuracy" if metric == "test_accuracy" else "leak_best_match"]}
        for name, metric, relation, value in point.paper
    ]
    return row | _epsilon(point.case, utilities.federation)


def _mean(values: Sequence[float]) -> float:
    """Compute the mean; minus infinity if it is not finite, so that an attack without a score is never the best."""
    mean = float(np.mean(values))
    return mean if math.isfinite(mean) else -math.inf


def _epsilon(case: Case, federation: Federation) -> dict[str, Any]:
    if case.defense is None or not kind_of_defense(case.defense).private:
        return {}
    if case.own_defense:
        return {"true_epsilon_missing": f"no accounting is known of {case.defense}"}
    size = {"batch_size": federation.batch_size, "own_samples": federation.samples // federation.clients}
    try:
        return {"true_epsilon": true_epsilon(case.defense, case.strength, rounds=federation.rounds, **size)}
    except ImportError as error:
        return {"true_epsilon_missing": str(error)}


def _statistics(name: str, values: list[float]) -> dict[str, Any]:
    return {name: float(np.mean(values)), f"{name}_spread": float(np.std(values)), f"{name}_values": values}


def _change(row: dict[str, Any], undefended: dict[str, Any] | None) -> dict[str, Any]:
    """Compute how a row's accuracy and leak differ from those of the undefended run with the same local steps.

    Both runs have the same seeds, and therefore the same data, weights and batch. The spread is that of the differences
    seed by seed.
    """
    if undefended is None:
        return {}
    change: dict[str, Any] = {}
    for name in ("accuracy", "leak"):
        pairs = zip(row[f"{name}_values"], undefended[f"{name}_values"], strict=True)
        change |= _statistics(f"{name}_change", [own - without for own, without in pairs])
    return change
