"""The jobs behind FedLeak's tables: what they depend on, what they cost, and how they are run."""

import functools
import operator
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from experiments._fedleak import diagnostics
from experiments._fedleak.jobs import Job
from jaxleak import data
from jaxleak._base import PyTree
from jaxleak.attacks import LABEL_RULES
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder, digest
from jaxleak.study.files import jsonable
from jaxleak.study.runner import Cost, Result
from jaxleak.study.sources import Arrays, drawn
from jaxleak.study.updates import (
    COMPILE_SECONDS,
    Case,
    attack,
    check,
    forward_seconds,
    parameter_count,
    require_memory_of_update,
    seconds_of_update,
    settings,
    sources_of_update,
    trained,
)

#: Only runs of more estimated seconds than this are checkpointed on their way.
CHECKPOINTED = 120.0
#: Label rules are compared over so many batches.
LABEL_BATCHES = 10


class UpdateJobs:
    """The jobs of FedLeak's tables, and attacks on the uploads of defended federations."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        fresh: bool,
        watch: Callable[[str, int, int], None] = lambda *_: None,
        federated: Callable[[Case, int], PyTree] | None = None,
    ):
        """Checkpoints and trained weights go below `folder`; `fresh` forgets those that are there.

        Args:
            folder: of the run.
            fresh: see above.
            watch: called as `watch(what, done, total)` along every attack.
            federated: `federated(case, seed)` gives the variables that a job with a federation attacks.
        """
        self.folder, self.fresh, self.watch, self.federated = folder, fresh, watch, federated

    def identity(self, job: Job, seed: int) -> dict[str, Any]:
        """The job, and the numbers of its preset: one that has changed since is another run."""
        return {**asdict(job), **_numbers_of_preset(job.case), "seed": seed}

    def sources(self, job: Job, seed: int) -> Arrays:
        """Arrays that the result comes from."""
        case = job.case
        if job.kind == "parameters":
            return drawn(case.data, 1, 0)
        if job.kind == "fig10":  # which has no data
            return {}
        if job.kind == "labels":
            return drawn(case.data, None, seed)
        if job.kind == "fig9":
            return drawn(case.data, case.pool, seed)
        if job.kind == "fig1":
            attacked = [sources_of_update(case, of_image) for of_image in diagnostics.fig1_seeds(seed)]
            return functools.reduce(operator.or_, map(dict, attacked), dict(drawn(case.data, case.pool, seed)))
        found = dict(sources_of_update(case, seed))
        if job.training is not None:
            found |= drawn(case.data, None, seed)
        if job.federation is not None:
            found |= job.federation.sources(case.data, seed)
        return found

    def require(self, job: Job, seed: int) -> None:
        """Refuse an attack whose parts do not go together, or for which this machine has too little memory."""
        if job.kind == "invert":
            check(job.case)
            require_memory_of_update(job.case)

    def cost(self, job: Job) -> Cost:
        """As `seconds` says; seeds share a compilation."""
        needed = seconds(job)
        return Cost(max(0.0, needed - COMPILE_SECONDS), min(needed, COMPILE_SECONDS))

    def run(self, job: Job, seed: int) -> Result:
        """`invert` leaves truth, estimate (B, H, W, C) and curve (iterations,); `path` and `fig10` leave a path."""
        if job.kind == "invert":
            return self._invert(job, seed)
        if job.kind == "path":
            along = diagnostics.path_steepness(job.case, seed)
            return Result(diagnostics.summary_of_ratios(along["ratio"]) | {"psnr": float(along["psnr"][-1])}, along)
        if job.kind == "fig10":
            path = diagnostics.parabola_path(job.case)
            return Result({"left": float(abs(path[-1]))}, {"x": path})
        scores = {
            "labels": lambda: diagnostics.label_rules(job.case, LABEL_BATCHES, seed, job.drawn_classes),
            "fig1": lambda: diagnostics.sign_noise(job.case, seed),
            "fig9": lambda: diagnostics.magnitude_sensitivity(job.case, seed),
            "parameters": lambda: {"parameters": float(parameter_count(job.case))},
        }[job.kind]()
        return Result(scores, {})

    def _invert(self, job: Job, seed: int) -> Result:
        variables, reached = None, dict[str, float]()
        if job.training is not None:
            variables, reached = trained(job.case, job.training, seed, self.folder.path / "weights")
        elif job.federation is not None and self.federated is not None:
            variables = self.federated(job.case, seed)
        what = f"{job.case.attack} {job.case.model} B={job.case.images} seed {seed}"
        saved = None
        if seconds(job) > CHECKPOINTED:
            where = self.folder.checkpoints / digest(self.identity(job, seed))
            saved = Checkpoints(where, jsonable(asdict(job)), fresh=self.fresh)
        outcome = attack(
            job.case,
            seed,
            variables=variables,
            callbacks=(lambda done, run, infos: self.watch(what, done, job.case.iterations),),
            checkpoints=saved,
        )
        images = {"truth": outcome.truth, "estimate": outcome.estimate, "curve": outcome.curve}
        return Result({**outcome.scores, **reached}, images)


def _numbers_of_preset(case: Case) -> dict[str, Any]:
    s = settings(case)
    numbers = {name: value for name, value in s._asdict().items() if not _has_code(value)}
    return numbers | {"priors": [(weight, prior.name, prior.kind) for weight, prior in s.priors if weight]}


def _has_code(value: Any) -> bool:
    return any(map(_has_code, value)) if isinstance(value, tuple) else callable(value)


def seconds(job: Job) -> float:
    """Estimated seconds on one core, from the operations of a forward pass."""
    case = job.case
    if job.kind in ("parameters", "fig10"):
        return 1.0
    if job.kind == "labels":
        forward = LABEL_BATCHES * case.batch_size * forward_seconds(case)
        return COMPILE_SECONDS * len(LABEL_RULES) / 3 + forward
    if job.kind == "fig9":
        return COMPILE_SECONDS + case.pool * 1000 * forward_seconds(case)
    needed = seconds_of_update(case, job.training)
    return needed + (diagnostics.FIG1_ATTACKED - 1) * (needed - COMPILE_SECONDS) if job.kind == "fig1" else needed


@functools.cache
def samples_in(spec: str) -> int:
    """How many samples a data specification has."""
    return len(data.load(spec).y)


@functools.cache
def unavailable(spec: str) -> str:
    """Why a data specification cannot be loaded, or nothing."""
    try:
        data.load(spec, 1)
    except (ValueError, OSError, MemoryError) as error:
        return str(error)
    return ""
