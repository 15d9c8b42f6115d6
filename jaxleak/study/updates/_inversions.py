"""Inversions as jobs of a `Runner`: identity, sources, requirements, cost and result of a job, and its pictures."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from jaxleak._base import PyTree
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder, digest, plots, sheets
from jaxleak.study.files import jsonable
from jaxleak.study.runner import Cost, Result
from jaxleak.study.sources import Arrays, drawn, form_of
from jaxleak.study.updates._attacker import check, resolved
from jaxleak.study.updates._building import attack_on
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._cost import COMPILE_SECONDS, seconds_of_update
from jaxleak.study.updates._federation import Federation, Training, refuse_overlap, trained
from jaxleak.study.updates._problem import attack
from jaxleak.study.updates._size import require_memory_of_update
from jaxleak.study.updates._sources import sources_of_update

#: Estimated seconds above which a run writes checkpoints.
CHECKPOINTED = 120.0


@dataclass(frozen=True)
class Inversion:
    """A job: one attack on one update, and the training of the attacked model if the case does not name its weights."""

    case: Case
    training: Training | None = None  # federated training on data that no client of the case has
    federation: Federation | None = None  # or the defended federation, trained up to the case's attacked round


Kind = TypeVar("Kind", bound=Inversion)


class Inversions(Generic[Kind]):
    """The `Jobs` of studies of inversions; a result has the scores, the true images, the estimate, and the curve."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        fresh: bool,
        watch: Callable[[str, int, int], None] = lambda *_: None,
        federated: Callable[[Case, int], PyTree] | None = None,
    ):
        """Take the folder below which checkpoints and trained weights are stored.

        Args:
            folder: folder of the run.
            fresh: whether to delete the checkpoints that exist.
            watch: called as `watch(what, done, total)` along every attack.
            federated: called as `federated(case, seed)`; returns the variables that a job with a federation attacks.
        """
        self.folder, self.fresh, self.watch, self.federated = folder, fresh, watch, federated

    def identity(self, job: Kind, seed: int) -> dict[str, Any]:
        """Return the job's fields and the numbers of its preset, so that a changed preset makes another run."""
        return {**asdict(job), **_numbers_of_preset(job.case), "seed": seed}

    def sources(self, job: Kind, seed: int) -> Arrays:
        """Return the arrays from which the result comes."""
        found = dict(sources_of_update(job.case, seed))
        if job.training is not None:
            found |= drawn(job.case.data, None, seed)
        if job.federation is not None:
            found |= job.federation.sources(job.case.data, seed)
        return found

    def require(self, job: Kind, seed: int) -> None:
        """Refuse an attack whose parts do not go together, or for which this machine has too little memory."""
        check(job.case)
        if job.training is not None:
            refuse_overlap(job.case)
        require_memory_of_update(job.case)
        if job.case.own_model or job.case.own_attack or job.case.own_defense:
            _require_attack(job.case)

    def cost(self, job: Kind) -> Cost:
        """Estimate the seconds as `seconds_of_update` does; all seeds share one compilation."""
        needed = seconds_of_update(job.case, job.training)
        return Cost(max(0.0, needed - COMPILE_SECONDS), min(needed, COMPILE_SECONDS))

    def run(self, job: Kind, seed: int) -> Result:
        """Run the attack; the result has the scores and `Outcome.arrays`, with images matched one to one."""
        variables, reached = None, dict[str, float]()
        if job.training is not None:
            variables, reached = trained(job.case, job.training, seed, self.folder.path / "weights")
        elif job.federation is not None and self.federated is not None:
            variables = self.federated(job.case, seed)
        what = f"{job.case.attack} {job.case.model} B={job.case.images} seed {seed}"
        saved = None
        if sum(self.cost(job)) > CHECKPOINTED:
            where = self.folder.checkpoints / digest(self.identity(job, seed))
            saved = Checkpoints(where, jsonable(asdict(job)), fresh=self.fresh)
        outcome = attack(
            job.case,
            seed,
            variables=variables,
            callbacks=(lambda done, run, infos: self.watch(what, done, resolved(job.case).iterations),),
            checkpoints=saved,
        )
        return Result({**outcome.scores, **reached}, outcome.arrays())


def _require_attack(case: Case) -> None:
    """Build the attack before anything is trained, so that errors in a user's own code are raised early."""
    if case.attack in presets.GENERATIVE:  # cannot be built yet: their generator comes from a training
        return
    form = form_of(case.data)
    try:
        attack_on(case, *form)
    except ValueError as error:
        if case.labels is not None:
            raise
        attack_on(replace(case, labels="given"), *form)  # raises again if other labels would not help
        raise ValueError(f"{error}; or say --labels given (granted) or joint (sought with the images)") from error


def _numbers_of_preset(case: Case) -> dict[str, Any]:
    s = resolved(case).settings
    numbers = {name: value for name, value in s._asdict().items() if not _has_code(value)}
    return numbers | {"priors": [(weight, prior.name, prior.kind) for weight, prior in s.priors if weight]}


def _has_code(value: Any) -> bool:
    return any(map(_has_code, value)) if isinstance(value, tuple) else callable(value)


def draw_reconstructions(path: Path, results: Mapping[str, Result]) -> None:
    """Draw a sheet of the private images, and below them every attack's reconstructions with their PSNR.

    Args:
        path: PNG to write.
        results: maps a label to the result of an `Inversion`; all of them attacked the same images.
    """
    rows = {"private images": next(iter(results.values())).arrays["truth"]}
    rows |= {f"{label}: mean PSNR {of.scores['psnr']:.1f} dB": of.arrays["estimate"] for label, of in results.items()}
    sheets.comparison_sheet(path, rows, title="What attacks reconstruct (a higher PSNR leaks more)")


def draw_distances(path: Path, results: Mapping[str, Result], *, relative: bool = False) -> None:
    """Draw the distance that each attack minimises over the iterations.

    Args:
        path: PNG to write.
        results: maps a label to the result of an `Inversion`; results without a curve (a closed form) are left out.
        relative: whether each distance is divided by its value at the start.
    """
    found = {label: of.arrays["curve"] for label, of in results.items() if len(of.arrays["curve"])}
    curves = {label: y / y[0] if relative else y for label, y in found.items()}
    plots.curves(
        path,
        {label: (np.arange(len(y)), np.maximum(y, 1e-12)) for label, y in curves.items()},
        title="How close each attack comes to the client's gradient",
        xlabel="iteration of the attack",
        ylabel="distance over that at the start (lower is closer)"
        if relative
        else "its own distance (lower is closer)",
        log_y=True,
    )
