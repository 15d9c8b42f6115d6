"""Runs jobs, each once: finished ones are read back from the run folder, so that a killed study goes on."""

import functools
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments._fedleak import diagnostics
from experiments._fedleak.jobs import Job
from experiments._fedleak.weights import trained
from jaxleak import data
from jaxleak._base import PyTree
from jaxleak.attacks import LABEL_RULES, presets
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder, digest
from jaxleak.study.files import jsonable, read_npz, read_numbers, write_json, write_npz
from jaxleak.study.sources import Arrays, drawn
from jaxleak.study.updates import Case, attack, build_model, require_memory_of_update, settings, sources_of_update

#: Measured: floating-point operations per second of attacks on one busy CPU core, and on an accelerator (a guess).
RATE = {"cpu": 4e10, "other": 4e12}
#: Forward passes that one gradient of a gradient distance is worth, and evaluations of an L-BFGS iteration.
SECOND_ORDER, LINE_SEARCH = 8.0, 5.0
#: Forward passes that one gradient of the loss is worth: what an attack without second derivatives evaluates.
FIRST_ORDER = 3.0
#: Forward passes of a generator's training per public image and epoch, in units of the model's: a rough guess.
GENERATOR = 10.0
#: Seconds that a compilation takes, and an iteration at least.
COMPILE, OVERHEAD = 30.0, 2e-3
#: Only runs of more estimated seconds than this are checkpointed on their way.
CHECKPOINTED = 120.0
#: Label rules are compared over so many batches.
LABEL_BATCHES = 10


class Result(NamedTuple):
    """What a job left for one seed."""

    scores: dict[str, float]
    # A job "invert" leaves truth, estimate (B, H, W, C) and curve (iterations,), "path" arrays along the path, and the
    # others nothing.
    images: dict[str, np.ndarray]


class Runner:
    """Runs jobs and remembers them, in memory and in the run folder."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        fresh: bool,
        watch: Callable[[str, int, int], None] = lambda *_: None,
        federated: Callable[[Case, int], PyTree] | None = None,
    ):
        """Results go below `folder`; `fresh` forgets those that are there. `watch(what, done, total)` is told.

        `federated(case, seed)` gives the variables that a job with a federation attacks.
        """
        self.folder, self.fresh, self.watch, self.federated = folder, fresh, watch, federated
        self.cells = folder.path / "cells"
        self.cells.mkdir(exist_ok=True)
        self.memory: dict[tuple[Job, int], Result] = {}
        self._predicted, self._spent = 0.0, 0.0
        if fresh:
            for file in self.cells.glob("*.json"):
                file.unlink()

    def done(self, job: Job, seed: int) -> bool:
        """Whether the result is at hand."""
        return (job, seed) in self.memory or self._path(job, seed).exists()

    def __call__(self, job: Job, seed: int) -> Result:
        """The result of a job with one seed."""
        if (job, seed) not in self.memory:
            self.folder.sources.bind(sources_of_job(job, seed))
            self.folder.sources.begin()
            path = self._path(job, seed)
            if path.exists():
                scores = read_numbers(path, lambda content: content["scores"])
                self.memory[job, seed] = Result(scores, read_npz(path.with_suffix(".npz")))
            else:
                self.memory[job, seed] = self._run(job, seed, path)
        return self.memory[job, seed]

    def check(self, jobs: Iterable[Job], seeds: Sequence[int]) -> None:
        """Raise `ConfigMismatchError` if results at hand come from other data, before anything is run or written."""
        for job in jobs:
            for seed in seeds:
                self.folder.sources.check(sources_of_job(job, seed))

    def cost(self, job: Job, seeds: Sequence[int]) -> float:
        """Estimated seconds of what is not done, corrected by how earlier jobs of this sitting took against theirs."""
        missing = sum(not self.done(job, seed) for seed in seeds)
        pace = self._spent / self._predicted if self._predicted else 1.0
        # Seeds share a compilation.
        return pace * (COMPILE + missing * max(0.0, cost(job) - COMPILE)) if missing else 0.0

    def _path(self, job: Job, seed: int) -> Path:
        return self.cells / f"{digest({**asdict(job), **_numbers_of_preset(job.case), 'seed': seed})}.json"

    def _run(self, job: Job, seed: int, path: Path) -> Result:
        begin = time.perf_counter()
        if job.kind == "invert":
            result = self._invert(job, seed)
        elif job.kind == "labels":
            result = Result(diagnostics.label_rules(job.case, LABEL_BATCHES, seed, job.drawn_classes), {})
        elif job.kind == "fig1":
            result = Result(diagnostics.sign_noise(job.case, seed), {})
        elif job.kind == "path":
            along = diagnostics.path_steepness(job.case, seed)
            result = Result(diagnostics.summary_of_ratios(along["ratio"]) | {"psnr": float(along["psnr"][-1])}, along)
        elif job.kind == "fig9":
            result = Result(diagnostics.magnitude_sensitivity(job.case, seed), {})
        else:
            result = Result({"parameters": float(parameters(job.case))}, {})
        self._spent += time.perf_counter() - begin
        self._predicted += cost(job)
        write_npz(path.with_suffix(".npz"), result.images)
        write_json(path, {"job": jsonable(asdict(job)), "seed": seed, "scores": result.scores})
        return result

    def _invert(self, job: Job, seed: int) -> Result:
        require_memory_of_update(job.case)
        variables, reached = None, dict[str, float]()
        if job.training is not None:
            variables, reached = trained(job.case, job.training, seed, self.folder.path / "weights")
        elif job.federation is not None and self.federated is not None:
            variables = self.federated(job.case, seed)
        what = f"{job.case.attack} {job.case.model} B={job.case.images} seed {seed}"
        saved = None
        if cost(job) > CHECKPOINTED:
            where = self.folder.checkpoints / self._path(job, seed).stem
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


def sources_of_job(job: Job, seed: int) -> Arrays:
    """Arrays that the results of one job and seed come from."""
    case = job.case
    if job.kind == "parameters":
        return drawn(case.data, 1, 0)
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


def _numbers_of_preset(case: Case) -> dict[str, Any]:
    # A preset whose numbers have changed since is another run.
    s = settings(case)
    numbers = {name: value for name, value in s._asdict().items() if not _has_code(value)}
    return numbers | {"priors": [(weight, prior.name, prior.kind) for weight, prior in s.priors if weight]}


def _has_code(value: Any) -> bool:
    return any(map(_has_code, value)) if isinstance(value, tuple) else callable(value)


def cost(job: Job) -> float:
    """Estimated seconds on one core, from the operations of a forward pass."""
    case = job.case
    if job.kind == "parameters":
        return 1.0
    rate = RATE.get(jax.default_backend(), RATE["other"])
    # Nothing else of a case changes the model, and to count is to trace.
    built = {name: getattr(case, name) for name in ("model", "activation", "width", "init", "mean", "std", "data")}
    forward = forward_operations(Case(**built)) / rate
    if job.kind == "labels":
        return COMPILE * len(LABEL_RULES) / 3 + LABEL_BATCHES * case.batch_size * forward
    if job.kind == "fig9":
        return COMPILE + case.pool * 1000 * forward
    s = settings(case)
    evaluations: float = s.group * case.restarts * (2 if s.regularization.blend else 1)
    if case.attack in ("dlg", "idlg") and case.optimizer is None:
        evaluations *= LINE_SEARCH
    if s.gradient_free:
        evaluations *= presets.GGL_POPULATION * FIRST_ORDER / SECOND_ORDER
    each = max(OVERHEAD, SECOND_ORDER * case.images * forward) * evaluations
    learning = 0.0
    if case.attack in presets.GENERATIVE:
        learning += GENERATOR * forward * case.public_samples * case.generator_epochs
    if job.training is not None:
        t = job.training
        learning += 4 * forward * t.rounds * t.clients_per_round * t.local_steps * t.batch_size
    many = diagnostics.FIG1_ATTACKED if job.kind == "fig1" else 1
    return COMPILE + many * case.iterations * each + learning


@functools.cache
def forward_operations(case: Case) -> float:
    """Floating-point operations of one image's forward pass, as XLA counts them."""
    shape, classes = shape_of(case.data)
    model = build_model(case, shape, classes)
    variables = jax.eval_shape(model.init, jax.random.key(0))
    one = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    lowered = jax.jit(lambda v, x: model.apply(v, x).logits).lower(variables, one)
    analysis: Any = lowered.cost_analysis()
    return float(analysis["flops"])


@functools.cache
def shape_of(spec: str) -> tuple[tuple[int, ...], int]:
    """Image shape and number of classes of a data specification."""
    dataset = data.load(spec, 1)
    return dataset.x.shape[1:], len(dataset.classes)


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


def parameters(case: Case) -> int:
    """Entries of the model's parameters."""
    shape, classes = shape_of(case.data)
    model = build_model(case, shape, classes)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))["params"]))
