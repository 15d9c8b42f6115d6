"""Run the jobs behind FedLeak's tables, estimate their cost, and name the data that they depend on."""

import functools
import operator

from experiments._fedleak.jobs import Job
from jaxleak.attacks import LABEL_RULES
from jaxleak.study.runner import Cost, Result
from jaxleak.study.sources import Arrays, drawn
from jaxleak.study.updates import (
    COMPILE_SECONDS,
    Inversions,
    diagnostics,
    forward_seconds,
    parameter_count,
    sources_of_update,
)

#: Number of batches for the comparison of label rules.
LABEL_BATCHES = 10


class UpdateJobs(Inversions[Job]):
    """The jobs of FedLeak's tables: inversions, and measurements that explain them."""

    def sources(self, job: Job, seed: int) -> Arrays:
        """Arrays of data that the result depends on."""
        case = job.case
        if job.kind == "parameters":
            return drawn(case.data, 1, 0)
        if job.kind == "fig10":  # the parabola has no data
            return {}
        if job.kind == "labels":
            return drawn(case.data, None, seed)
        if job.kind == "fig9":
            return drawn(case.data, case.pool, seed)
        if job.kind == "fig1":
            attacked = [sources_of_update(case, of_image) for of_image in diagnostics.fig1_seeds(seed)]
            return functools.reduce(operator.or_, map(dict, attacked), dict(drawn(case.data, case.pool, seed)))
        return super().sources(job, seed)

    def require(self, job: Job, seed: int) -> None:
        """Refuse an inversion if its settings contradict each other or if this machine has too little memory."""
        if job.kind == "invert":
            super().require(job, seed)

    def cost(self, job: Job) -> Cost:
        """Estimated seconds, from the operations of a forward pass; seeds share a compilation."""
        case = job.case
        if job.kind in ("parameters", "fig10"):
            return Cost(0.0, 1.0)
        if job.kind == "labels":
            forward = LABEL_BATCHES * case.batch_size * forward_seconds(case)
            return Cost(COMPILE_SECONDS * (len(LABEL_RULES) / 3 - 1) + forward, COMPILE_SECONDS)
        if job.kind == "fig9":
            return Cost(case.pool * 1000 * forward_seconds(case), COMPILE_SECONDS)
        attacks = diagnostics.FIG1_ATTACKED if job.kind == "fig1" else 1
        one = super().cost(job)
        return one._replace(each=attacks * one.each)

    def run(self, job: Job, seed: int) -> Result:
        """Run a job: inversions give the result of `Inversions`, `path` and `fig10` also a path, all others scores."""
        if job.kind == "invert":
            return super().run(job, seed)
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
