"""Runs every job once: a finished job is read back from the run folder, so that a killed study can continue.

A study says what its jobs are (`Jobs`). This module keeps their results, binds the results to the data from which they
come, and estimates how much time the other jobs need.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from jaxleak.study import RunFolder, digest
from jaxleak.study.files import jsonable, read_json, read_npz, read_numbers, write_json, write_npz
from jaxleak.study.sources import Arrays, Sources

__all__ = [
    "ByType",
    "Cost",
    "Jobs",
    "Result",
    "Runner",
    "named_before",
    "runner_in",
]

#: Seconds of jobs after which the measured pace of this machine counts as much as the estimates do.
_SURE_AFTER = 60.0
#: Version of the format of a result's files; files of another version have other names, and their jobs run again.
_FORMAT = 2
Kind = TypeVar("Kind", bound=Hashable, contravariant=True)


class Result(NamedTuple):
    """The result of a job for one seed."""

    scores: Mapping[str, float]
    arrays: Mapping[str, np.ndarray]  # images, curves and whatever else figures and cells read


class Cost(NamedTuple):
    """Estimated seconds of a job."""

    each: float  # seconds for one seed
    once: float = 0.0  # seconds that all seeds share, such as those of a compilation


class Jobs(Protocol[Kind]):
    """Description of a study's jobs; a job is any hashable value."""

    def identity(self, job: Kind, seed: int) -> Mapping[str, Any]:
        """Return everything on which the result depends, except for the data's contents, as JSON values."""

    def sources(self, job: Kind, seed: int) -> Arrays:
        """Return the arrays from which the result comes."""

    def require(self, job: Kind, seed: int) -> None:
        """Raise the reason why a job cannot run here: `OSError`, `ImportError`, `ValueError` or `MemoryError`.

        Nothing is computed, so the job itself may still fail.
        """

    def cost(self, job: Kind) -> Cost:
        """Estimate the seconds that the job takes."""

    def run(self, job: Kind, seed: int) -> Result:
        """Compute the result of the job for one seed."""


def named_before(fields: Mapping[str, Any], **before: Any) -> dict[str, Any]:
    """Leave out of a job's identity every later field that has its original value.

    Results that were stored before such a field existed keep their file names.

    Args:
        fields: all fields of the identity.
        **before: for every later field, the value that gives the same result as before the field existed.
    """
    return {name: value for name, value in fields.items() if name not in before or value != before[name]}


class ByType:
    """Jobs of several types; every call is passed to the `Jobs` of the job's type."""

    def __init__(self, of: Mapping[type, Jobs[Any]]):
        """Take the mapping `of` from every type of job to its `Jobs`."""
        self._of = of

    def identity(self, job: Hashable, seed: int) -> Mapping[str, Any]:
        """Return everything on which the result depends, with the name of the job's type, which keeps types apart."""
        return {"type": type(job).__name__, **self._of[type(job)].identity(job, seed)}

    def sources(self, job: Hashable, seed: int) -> Arrays:
        """Return the arrays from which the result comes."""
        return self._of[type(job)].sources(job, seed)

    def require(self, job: Hashable, seed: int) -> None:
        """Raise the reason why a job cannot run here."""
        self._of[type(job)].require(job, seed)

    def cost(self, job: Hashable) -> Cost:
        """Estimate the seconds that the job takes."""
        return self._of[type(job)].cost(job)

    def run(self, job: Hashable, seed: int) -> Result:
        """Compute the result of the job for one seed."""
        return self._of[type(job)].run(job, seed)


class Runner:
    """Runs jobs and keeps their results, in memory and in a folder."""

    def __init__(
        self,
        jobs: Jobs[Any],
        folder: Path,
        sources: Sources,
        *,
        fresh: bool,
        begin: Callable[[], None] | None = None,
    ):
        """Make the folder if it is missing, and empty it if `fresh`.

        Args:
            jobs: description of the jobs.
            folder: folder for the results, which no other runner uses.
            sources: the run folder's sources, to which results are bound.
            fresh: whether to delete the results that are there.
            begin: called before a result is computed or read, which is when work begins; None begins the sources.
        """
        self.jobs, self.folder, self.sources = jobs, folder, sources
        self._begin = begin or sources.begin
        self.memory: dict[tuple[Any, int], Result] = {}  # by job and seed, all results that this runner returned
        self.spent = 0.0  # seconds of the jobs that this runner ran
        self._predicted = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for file in (*folder.glob("*.json"), *folder.glob("*.npz")):
                file.unlink()

    def path(self, job: Hashable, seed: int) -> Path:
        """Return the path of the file that holds a result's scores."""
        return self.folder / f"{digest({'format': _FORMAT, **self.jobs.identity(job, seed)})}.json"

    def done(self, job: Hashable, seed: int) -> bool:
        """Whether the result is in memory or in the folder."""
        return (job, seed) in self.memory or self.path(job, seed).exists()

    def __call__(self, job: Hashable, seed: int) -> Result:
        """Return the result of a job for one seed; a job without a stored result is run.

        Raises:
            ConfigMismatchError: if stored results come from other data.
            ValueError: naming the file, if a stored result is damaged.
            Exception: any exception of the job; nothing is stored then.
        """
        if (job, seed) not in self.memory:
            self.sources.bind(self.jobs.sources(job, seed))
            self._begin()
            path = self.path(job, seed)
            self.memory[job, seed] = _read(path) if path.exists() else self._run(job, seed, path)
        return self.memory[job, seed]

    def check(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> None:
        """Raise `ConfigMismatchError` if stored results come from other data, before anything is run or written."""
        for job in jobs:
            for seed in seeds:
                self.sources.check(self.jobs.sources(job, seed))

    def lacking(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> float:
        """Estimate the seconds of the jobs that are not done."""
        total = 0.0
        for job in dict.fromkeys(jobs):
            if left := sum(not self.done(job, seed) for seed in seeds):
                cost = self.jobs.cost(job)
                total += cost.once + left * cost.each
        return total

    def cost(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> float:
        """Estimate as `lacking` does, corrected by the measured time of this runner's jobs over their estimates."""
        return (_SURE_AFTER + self.spent) / (_SURE_AFTER + self._predicted) * self.lacking(jobs, seeds)

    def _run(self, job: Hashable, seed: int, path: Path) -> Result:
        self.jobs.require(job, seed)
        begin = time.perf_counter()
        known = any(other == job for other, _ in self.memory)
        result = self.jobs.run(job, seed)
        cost = self.jobs.cost(job)
        self.spent += time.perf_counter() - begin
        self._predicted += cost.each + (0.0 if known else cost.once)
        if result.arrays:
            write_npz(path.with_suffix(".npz"), dict(result.arrays))
        kept = {"job": jsonable(dict(self.jobs.identity(job, seed))), "scores": dict(result.scores)}
        write_json(path, {**kept, "arrays": sorted(result.arrays)})
        return result


def runner_in(folder: RunFolder, jobs: Jobs[Any], *, fresh: bool) -> Runner:
    """Make a runner that keeps its results in the subfolder `cells` of a run folder.

    Args:
        folder: the run's folder; its sources are bound to the data that the jobs read.
        jobs: description of the jobs.
        fresh: whether to delete the results that are there.
    """
    # If a command is refused before its work has begun, its run folder is emptied again.
    return Runner(jobs, folder.path / "cells", folder.sources, fresh=fresh, begin=folder.begin)


def _read(path: Path) -> Result:
    scores = read_numbers(path, lambda content: content["scores"])
    has_arrays = read_json(path, lambda content: bool(list(content["arrays"])))
    return Result(scores, read_npz(path.with_suffix(".npz")) if has_arrays else {})
