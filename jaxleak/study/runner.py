"""Runs jobs, each once: a finished one is read back from the run folder, so that a killed study goes on.

A study says what its jobs are (`Jobs`); this module keeps their results, binds them to the data that they come from,
and estimates what is left.
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

#: Seconds of jobs after which the pace of this machine counts as much as the estimates do.
_SURE_AFTER = 60.0
#: The form of a result's files; those of another form have other names, and their jobs are run again.
_FORMAT = 2
Kind = TypeVar("Kind", bound=Hashable, contravariant=True)


class Result(NamedTuple):
    """What a job left for one seed."""

    scores: Mapping[str, float]
    arrays: Mapping[str, np.ndarray]  # images, curves and whatever else figures and readings need


class Cost(NamedTuple):
    """Estimated seconds of a job."""

    each: float  # seconds for one seed
    once: float = 0.0  # what seeds share, such as a compilation


class Jobs(Protocol[Kind]):
    """What a study says about its jobs, which are any hashable values."""

    def identity(self, job: Kind, seed: int) -> Mapping[str, Any]:
        """Everything that the result depends on, apart from the data's contents, in the form of JSON."""

    def sources(self, job: Kind, seed: int) -> Arrays:
        """The arrays that the result comes from."""

    def require(self, job: Kind, seed: int) -> None:
        """Raise what says why a job cannot run here (`OSError`, `ImportError`, `ValueError` or `MemoryError`).

        Nothing is computed; the job itself may still fail.
        """

    def cost(self, job: Kind) -> Cost:
        """Estimated seconds."""

    def run(self, job: Kind, seed: int) -> Result:
        """Compute the result."""


def named_before(fields: Mapping[str, Any], **before: Any) -> dict[str, Any]:
    """The fields of a job's identity, less those that have the value of before there was a choice.

    Results that were stored then keep their names.

    Args:
        fields: all fields.
        **before: for every later field the value that gives what there was without it.
    """
    return {name: value for name, value in fields.items() if name not in before or value != before[name]}


class ByType:
    """Jobs of several types; each type has a `Jobs` of its own, which answers for it."""

    def __init__(self, of: Mapping[type, Jobs[Any]]):
        """`of` has the `Jobs` of every type."""
        self._of = of

    def identity(self, job: Hashable, seed: int) -> Mapping[str, Any]:
        """What the result depends on, with the name of the job's type, which keeps types apart."""
        return {"type": type(job).__name__, **self._of[type(job)].identity(job, seed)}

    def sources(self, job: Hashable, seed: int) -> Arrays:
        """The arrays that the result comes from."""
        return self._of[type(job)].sources(job, seed)

    def require(self, job: Hashable, seed: int) -> None:
        """Raise what says why a job cannot run here."""
        self._of[type(job)].require(job, seed)

    def cost(self, job: Hashable) -> Cost:
        """Estimated seconds."""
        return self._of[type(job)].cost(job)

    def run(self, job: Hashable, seed: int) -> Result:
        """Compute the result."""
        return self._of[type(job)].run(job, seed)


class Runner:
    """The results of jobs, in memory and in a folder."""

    def __init__(
        self,
        jobs: Jobs[Any],
        folder: Path,
        sources: Sources,
        *,
        fresh: bool,
        begin: Callable[[], None] | None = None,
    ):
        """Results go to `folder`.

        Args:
            jobs: what there is to run.
            folder: a folder for this runner alone.
            sources: the run folder's sources, which results are bound to.
            fresh: forget the results that are there.
            begin: called before a result is computed or read, which is when work begins; None begins the sources.
        """
        self.jobs, self.folder, self.sources = jobs, folder, sources
        self._begin = begin or sources.begin
        self.memory: dict[tuple[Any, int], Result] = {}  # by job and seed, all that this sitting asked for
        self.spent = 0.0  # seconds of the jobs that this sitting ran
        self._predicted = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for file in (*folder.glob("*.json"), *folder.glob("*.npz")):
                file.unlink()

    def path(self, job: Hashable, seed: int) -> Path:
        """The file of a result's scores."""
        return self.folder / f"{digest({'format': _FORMAT, **self.jobs.identity(job, seed)})}.json"

    def done(self, job: Hashable, seed: int) -> bool:
        """Whether the result is at hand."""
        return (job, seed) in self.memory or self.path(job, seed).exists()

    def __call__(self, job: Hashable, seed: int) -> Result:
        """The result of a job with one seed.

        Raises:
            ConfigMismatchError: if results at hand come from other data.
            ValueError: naming the file, if a stored result is damaged.
            Exception: what the job raises; nothing is stored then.
        """
        if (job, seed) not in self.memory:
            self.sources.bind(self.jobs.sources(job, seed))
            self._begin()
            path = self.path(job, seed)
            self.memory[job, seed] = _read(path) if path.exists() else self._run(job, seed, path)
        return self.memory[job, seed]

    def check(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> None:
        """Raise `ConfigMismatchError` if results at hand come from other data, before anything is run or written."""
        for job in jobs:
            for seed in seeds:
                self.sources.check(self.jobs.sources(job, seed))

    def lacking(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> float:
        """Estimated seconds of what is not done."""
        total = 0.0
        for job in dict.fromkeys(jobs):
            if left := sum(not self.done(job, seed) for seed in seeds):
                cost = self.jobs.cost(job)
                total += cost.once + left * cost.each
        return total

    def cost(self, jobs: Iterable[Hashable], seeds: Sequence[int]) -> float:
        """As `lacking`, corrected by how the jobs of this sitting took against their estimates."""
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
    """A runner that keeps its results in the `cells` of a run folder.

    Args:
        folder: the run's folder; its sources are bound to what the jobs read.
        jobs: what there is to run.
        fresh: forget the results that are there.
    """
    # A folder whose work has not begun is emptied again when its command is refused.
    return Runner(jobs, folder.path / "cells", folder.sources, fresh=fresh, begin=folder.begin)


def _read(path: Path) -> Result:
    scores = read_numbers(path, lambda content: content["scores"])
    has_arrays = read_json(path, lambda content: bool(list(content["arrays"])))
    return Result(scores, read_npz(path.with_suffix(".npz")) if has_arrays else {})
