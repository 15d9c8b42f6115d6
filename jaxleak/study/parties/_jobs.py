"""Cases of vertical training as the jobs of a runner: every job runs once for every seed."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from jaxleak.attacks import party_records
from jaxleak.study.parties._case import VICTIM_RECORDS, SplitCase
from jaxleak.study.parties._problem import records_of, sources_of_parties, split_problem
from jaxleak.study.parties._runs import Runs, run_case, task_scores
from jaxleak.study.parties._truth import correlations
from jaxleak.study.runner import Cost, Result, named_before
from jaxleak.study.sources import Arrays

#: Measured seconds on two CPU cores that other work used as well. They only decide what fits a budget.
_FIRST, _PER_START, _TASK, _LABEL_HOLDER, _CKKS_STEP = 10.0, 8.0, 6.0, 5.0, 1.5


class SplitJob(NamedTuple):
    """A case, and the parts of it that have to run."""

    case: SplitCase
    runs: Runs


class SplitJobs:
    """Cases as jobs, for `jaxleak.study.runner`.

    A job has the scores of `run_case`, correlations if features are reconstructed, and the numbers of records used.
    """

    def __init__(self, pictured: Collection[tuple[SplitCase, int]] = ()):
        """Choose of which cases and seeds arrays are kept for figures."""
        self.pictured = frozenset(pictured)

    def identity(self, job: SplitJob, seed: int) -> dict[str, Any]:
        """Return what identifies a stored result: the case, the runs and the seed."""
        case = named_before(
            dataclasses.asdict(job.case), scales="entry", columns=(), missing="zero", top_output="logits"
        )
        runs = named_before(job.runs._asdict(), label_holder=False)
        if job.runs.comparisons and job.case.defense != "none":
            runs["comparisons"] = "of the real run"  # earlier results also had comparisons on undefended runs
        runs["baseline_network"] = "as long as R"  # earlier results had 30 epochs and one scale, whatever R had
        return {"case": case, "runs": runs, "seed": seed}

    def sources(self, job: SplitJob, seed: int) -> Arrays:
        """The data from which the case draws records."""
        return sources_of_parties(job.case)

    def require(self, job: SplitJob, seed: int) -> None:
        """Raise `ValueError`, `FileNotFoundError` or `ImportError` if the data are missing or do not fit the case."""
        split_problem(job.case, seed)

    def cost(self, job: SplitJob) -> Cost:
        """Estimated cost, see `seconds_of`."""
        return Cost(seconds_of(job.case, job.runs))

    def run(self, job: SplitJob, seed: int) -> Result:
        """Run all parts of the case once."""
        used = {f"{name}_records": float(count) for name, count in records_of(job.case)._asdict().items()}
        if not job.runs.shadow_init and not job.runs.features:
            return Result(task_scores(job.case, seed) | used, {})
        scores, arrays = run_case(job.case, seed, job.runs)
        scores |= used | (correlations(arrays, seed) if arrays else {})
        return Result(scores, arrays if (job.case, seed) in self.pictured else {})


def runs_for(scores: Iterable[str], shadow_init: tuple[party_records.ShadowInit, ...]) -> Runs:
    """Find the parts of a case that have to run to give these scores; scores of the task alone need no attack.

    Args:
        scores: names of scores of `run_case` and `correlations`.
        shadow_init: starts of the shadow runs; they run only if a score needs an attack.
    """
    names = list(scores)
    return Runs(
        shadow_init=shadow_init if any(not name.startswith("task") for name in names) else (),
        features=any(name.startswith(("feature_mse", "correlation")) and "_label_holder" not in name for name in names),
        task=any(name.startswith("task") for name in names),
        comparisons=any("_li_" in name or "_fu_" in name for name in names),
        timed="seconds_per_step" in names,
        label_holder=any("_label_holder" in name for name in names),
    )


def seconds_of(case: SplitCase, runs: Runs) -> float:
    """Estimate the seconds that the parts `runs` of a case take for one seed on two CPU cores."""
    starts = len(runs.shadow_init) * (2 if case.defense != "none" else 1)
    victims = case.victim_records or VICTIM_RECORDS
    size = min(2.0, victims / 1000)
    total = (_TASK * size if runs.task else 0.0) + (_FIRST if starts else 0.0)
    # Validation trains once per candidate, on nearly all records, and once more with the chosen fields.
    trainings = 1 + (len(party_records.FIELD_CANDIDATES) if case.select == "validation" else 0)
    network = size * (2 if runs.features else 1) * (4 if "parameters" in case.fields else 1)
    total += _PER_START * starts * network * trainings * max(1.0, case.shadow_runs * case.network_epochs / 10)
    if runs.label_holder:
        total += _LABEL_HOLDER * (2 if case.defense != "none" else 1)
    if case.cipher == "ckks":
        watched = 2 if runs.label_holder else 1
        total += watched * _CKKS_STEP * (case.parties - 1) * victims / case.batch_size
    return total * (4 if case.data == "cifar10" else 1)
