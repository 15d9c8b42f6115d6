"""Time the iterations of every family of gradient inversions, from op by op to one loop compiled by XLA.

All executors must report the same losses in every iteration before any of them is timed. CAFE, VFLRecon, the feature
inversion and the attacks that solve equations have tables of their own (test_cafe_step.py, test_vfl.py,
test_feature_inversion.py, test_solving_attacks.py). GGL appears twice: by Adam, and by CMA-ES as published, where one
generation is 50 evaluations without a gradient.
"""

import functools
from typing import Any

import numpy as np
import pytest

from benchmarks import _problems
from benchmarks._quiet import first_call, measure
from jaxleak import data, models
from jaxleak.attacks import client_updates, presets

EVOLUTION = "ggl by CMA-ES"
FAMILIES = (
    "dlg",
    "inverting_gradients",
    "sapag",
    "gradinversion",
    "bayes",
    "fedleak",
    "fedleak_paper",
    "row_space",
    "ggl",
    EVOLUTION,
    "rog",
)

#: Number of iterations that schedules are made for; it is more than any preset takes to try shifts.
LONG = 5000

#: Iterations per call, by executor. A step of the first two takes seconds, most of all with L-BFGS's line search.
LENGTHS = dict(zip(_problems.EXECUTORS, (1, 1, 10, 50), strict=True))

#: Changes to FedLeak on LeNet, B = 1, 32x32, one at a time: (model, batch, side).
SWEEP = {
    "B = 8": ("lenet", 8, 32),
    "B = 32": ("lenet", 32, 32),
    "16x16": ("lenet", 1, 16),
    "64x64": ("lenet", 1, 64),
    "ConvNet": ("convnet", 1, 32),
    "ResNet10": ("resnet10", 1, 32),
}


@functools.cache
def generator() -> client_updates.PublicGenerator:
    """A generator that is hardly trained, since its images do not matter here."""
    images = data.load("natural_patches:32", 64, 1).x
    return client_updates.train_generator(_problems.KEY, images, 32, epochs=1, kl=0.1)


@functools.cache
def problem_of(family: str, kind: str = "lenet", batch: int = 1, side: int = 32) -> _problems.Inversion:
    preset = family.split()[0]
    options: dict[str, Any] = {"generator": generator()} if preset in presets.GENERATIVE else {}
    if preset == "ggl":
        options["search"] = "cma_es" if family == EVOLUTION else "adam"
    model = models.build(kind, (side, side, 3), 10)
    return _problems.inversion(model, presets.preset(preset, LONG, **options), batch)


@functools.cache
def reference(*case) -> np.ndarray:
    """Losses of the first ten iterations; later ones may drift apart, as rounding is amplified."""
    return problem_of(*case).run("jit over the loop", 10)[1]["loss"]


def time_executor(benchmark, executor: str, group: str, *case) -> None:
    problem, length = problem_of(*case), LENGTHS[executor]
    _, infos = first_call(benchmark, lambda: problem.run(executor, length))
    compared = min(length, 10)
    np.testing.assert_allclose(infos["loss"][:compared], reference(*case)[:compared], rtol=2e-3)
    rounds = 3 if executor in _problems.EXECUTORS[:2] else None
    call = functools.partial(problem.run, executor, length)
    measure(benchmark, call, group=group, name=executor, per_call=length, rounds=rounds)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("executor", _problems.EXECUTORS)
def test_family(benchmark, executor, family):
    time_executor(benchmark, executor, f"{family}, one step, LeNet, B = 1, 32x32x3", family)


@pytest.mark.slow
@pytest.mark.parametrize("change", SWEEP)
@pytest.mark.parametrize("executor", _problems.EXECUTORS[1:])
def test_sweep(benchmark, executor, change):
    kind, batch, side = SWEEP[change]
    group = f"fedleak, one step, {kind}, B = {batch}, {side}x{side}x3"
    time_executor(benchmark, executor, group, "fedleak", kind, batch, side)
