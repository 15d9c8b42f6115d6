"""The steps of Inverting Gradients, DLG and CAFE on an accelerator, by precision: `python -m benchmarks.report -m gpu`.

The models compute in float32; what is varied is the precision of their matrix products and convolutions,
`jax.default_matmul_precision`: "float32" and "bfloat16", whose products enter as bfloat16 and are summed in float32.
Before it is timed, float32 must give the CPU's gradient; how far bfloat16 is from it is a column, not a condition. The
peak is that of `JAXLEAK_PEAK_FLOPS`, of float32 and of bfloat16 with a comma between, or without it the rate of a large
matrix product measured in the same precision.
"""

import functools
import os

import jax
import numpy as np
import pytest

from benchmarks import _limits, _problems, test_cafe_step, test_inversion_step, test_restarts
from benchmarks._quiet import first_call, measure

PRECISIONS = ("float32", "bfloat16")
EXECUTORS = ("jit per step", "jit over the loop")
ITERATIONS = 20
#: Of the gradient's norm; accelerators sum in another order, which flips a few ReLUs.
TOLERANCE = 2e-2

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        jax.default_backend() == "cpu", reason="needs an accelerator; JAX has found none, only the processor"
    ),
]


def columns(work: _limits.Work, precision: str) -> dict[str, float]:
    """The time that the arithmetic would take at the peak."""
    if given := os.environ.get("JAXLEAK_PEAK_FLOPS"):
        peak = dict(zip(PRECISIONS, map(float, given.split(",")), strict=True))[precision]
    else:
        peak = _limits.matrix_rate(precision, size=8192)
    return {"limit_seconds": work.flops / peak, "TFLOP by hand": work.flops / 1e12, "peak, TFLOP/s": peak / 1e12}


@functools.cache
def inversion_problem(name: str) -> tuple[_problems.Inversion, _limits.Work]:
    batch = test_inversion_step.MODELS[name][2]
    work = _limits.matching_step(test_inversion_step.layers_of(name), batch)
    return test_inversion_step.problem_of(name), work


@functools.cache
def dlg_problem(restarts: int) -> tuple[_problems.Inversion, _limits.Work]:
    work = _limits.matching_step(test_restarts.LAYERS, 1)
    work = _limits.Work(restarts * work.flops, restarts * work.bytes)
    return test_restarts.problem_of(restarts, "auto", restarts), work


#: Group: (problem, step size of its descent).
PROBLEMS = {
    **{
        f"Inverting Gradients, one step, {name}, B = {case[2]}, 32x32x3": (
            functools.partial(inversion_problem, name),
            test_inversion_step.RATE,
        )
        for name, case in test_inversion_step.MODELS.items()
    },
    **{
        f"DLG, one step of {restarts} restarts, LeNet, B = 1, 32x32x3": (
            functools.partial(dlg_problem, restarts),
            test_restarts.RATE,
        )
        for restarts in (1, 32, 128)
    },
}


@functools.cache
def on_cpu(group: str) -> np.ndarray:
    build, rate = PROBLEMS[group]
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        problem = build()[0]
        here = jax.device_put((problem.begin, problem.observation), jax.devices("cpu")[0])
        return problem._replace(begin=here[0], observation=here[1]).change(rate)


@pytest.mark.parametrize("group", PROBLEMS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_inversion(benchmark, group, precision, executor):
    build, rate = PROBLEMS[group]
    problem, work = build()
    with jax.default_matmul_precision(precision):
        first_call(benchmark, lambda: problem.run(executor, ITERATIONS))
        far = _problems.relative_difference(on_cpu(group), problem.change(rate, executor))
        assert far < (TOLERANCE if precision == "float32" else np.inf)
        measure(
            benchmark,
            lambda: problem.run(executor, ITERATIONS),
            group=group,
            name=f"{executor}, {precision} products",
            per_call=ITERATIONS,
            **columns(work, precision),
            **{"gradient's distance from the CPU's": far},
        )


@functools.cache
def cafe_on_cpu() -> np.ndarray:
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        begin, loop = test_cafe_step.rounds_by("jit per step", "auto", 1)
        return np.asarray(loop(begin).attack.data.x_optimizer.rows[0].mu)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_cafe_step_by_precision(benchmark, precision, executor):
    with jax.default_matmul_precision(precision):
        begin, loop = test_cafe_step.rounds_by(executor, "auto", ITERATIONS)
        first_call(benchmark, lambda: loop(begin))
        # After one step Adam's first moment is a tenth of the gradient, which unlike Adam's step is continuous.
        _, one = test_cafe_step.rounds_by(executor, "auto", 1)
        there = np.asarray(one(begin).attack.data.x_optimizer.rows[0].mu)
        far = _problems.relative_difference(cafe_on_cpu(), there)
        assert far < (TOLERANCE if precision == "float32" else np.inf)
        measure(
            benchmark,
            lambda: loop(begin),
            group=test_cafe_step.GROUP,
            name=f"{executor}, {precision} products",
            per_call=ITERATIONS,
            **columns(test_cafe_step.work(), precision),
            **{"gradient's distance from the CPU's": far},
        )
