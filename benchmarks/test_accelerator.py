"""The steps of Inverting Gradients, DLG and CAFE on an accelerator, by precision and beside PyTorch on the same device.

    python -m benchmarks.report -m gpu benchmarks/test_accelerator.py

All arrays are float32; the rows differ in how the factors of products and convolutions are rounded. In float32 they are
not rounded. By default JAX takes what its compiler finds fastest, and PyTorch is allowed to round as well: to TF32 on
NVIDIA's GPUs since Ampere, to bfloat16 on TPUs. Before a row in float32 is timed, its gradient must agree with that of
PyTorch on the same GPU, or else of JAX on the CPU. A column says how far a row's gradient differs. `JAXLEAK_PEAK_FLOPS`
gives the peaks in float32 and by default, separated by a comma. Without it the peak is the measured rate of a large
matrix product in the same precision.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import _limits, _problems, test_cafe_step, test_inversion_step, test_restarts
from benchmarks._quiet import first_call, measure

#: Precisions of JAX, with their names in `jax.default_matmul_precision`.
PRECISIONS = {"products in float32": "float32", "products by default": "default"}
TORCH = "PyTorch eager"
#: Executor and precision of every row.
EXACT, ROUNDED = PRECISIONS
ROWS = (
    ("jit per step", EXACT),
    ("jit over the loop", EXACT),
    ("jit over the loop", ROUNDED),
    (TORCH, EXACT),
    (TORCH, ROUNDED),
)
ITERATIONS, ROUNDS = 20, 5
#: Largest difference of gradients, as a share of the norm; accelerators sum in another order, which flips a few ReLUs.
TOLERANCE = 2e-2

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        jax.default_backend() == "cpu", reason="needs an accelerator; JAX has found none, only the processor"
    ),
]


def columns(work: _limits.Work, precision: str) -> dict[str, float]:
    """Columns about the time that the arithmetic would take at the peak."""
    if given := os.environ.get("JAXLEAK_PEAK_FLOPS"):
        peak = dict(zip(PRECISIONS, map(float, given.split(",")), strict=True))[precision]
    else:
        peak = _limits.matrix_rate(PRECISIONS[precision], size=8192)
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


#: Group: (problem, step size of its descent, PyTorch's network given the peers, how PyTorch takes a step).
PROBLEMS: dict[str, tuple[Callable, float, Callable[[Any], Any], str]] = {
    **{
        f"Inverting Gradients, one step, {name}, B = {case[2]}, 32x32x3": (
            functools.partial(inversion_problem, name),
            test_inversion_step.RATE,
            lambda peers, network=case[4]: getattr(peers, network[0])(network[1]),
            "eager_step",
        )
        for name, case in test_inversion_step.MODELS.items()
    },
    **{
        f"DLG, one step of {restarts} restarts, LeNet, B = 1, 32x32x3": (
            functools.partial(dlg_problem, restarts),
            test_restarts.RATE,
            lambda peers: peers.convnet(test_restarts.STRIDES, peers.torch.sigmoid),
            "eager_step" if restarts == 1 else "vmapped_restarts",
        )
        for restarts in (1, 128)
    },
}


@functools.cache
def peers_on_gpu() -> Any:
    """The module `benchmarks.peers`, or None if PyTorch is missing or sees no GPU."""
    with contextlib.suppress(ImportError):
        from benchmarks import peers

        if peers.torch.cuda.is_available():
            return peers
    return None


@functools.cache
def torch_run(group: str) -> tuple[Callable[[int], Any], Any]:
    """A function that makes a number of steps and waits for the candidate; and the candidate before them."""
    build, rate, network, how = PROBLEMS[group]
    peers, (problem, _) = peers_on_gpu(), build()
    theirs = peers.on_device(_problems.torch_problem(peers, problem, network(peers), rate), "cuda")
    start = peers.on_device(_problems.torch_candidate(peers, problem), "cuda")
    step = getattr(peers, how)(theirs)

    def run(steps: int) -> Any:
        after = peers.descend(step, start, steps)
        peers.torch.cuda.synchronize()
        return after

    return run, start


def torch_gradient(group: str) -> np.ndarray:
    peers, (run, start) = peers_on_gpu(), torch_run(group)
    return _problems.gradient(peers.images(start), peers.images(run(1)), PROBLEMS[group][1])


@contextlib.contextmanager
def on_cpu():
    """Run the block on the CPU with default products, which are in float32; asking for float32 slows convolutions."""
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("default"):
        yield


@functools.cache
def reference(group: str) -> np.ndarray:
    """The gradient in float32 from another library or device than that of JAX's rows."""
    if (peers := peers_on_gpu()) is not None:
        with peers.precision(exact=True):
            found = torch_gradient(group)
        return found.reshape(PROBLEMS[group][0]()[0].begin.attack.variables["x"].shape)
    build, rate, *_ = PROBLEMS[group]
    with on_cpu():
        problem = build()[0]
        here = jax.device_put((problem.begin, problem.observation), jax.devices("cpu")[0])
        return problem._replace(begin=here[0], observation=here[1]).change(rate)


@contextlib.contextmanager
def rounding(executor: str, precision: str):
    """Inside the block, round the products of the row's library as the row says."""
    if executor == TORCH:
        if (peers := peers_on_gpu()) is None:
            pytest.skip("needs torch, with a GPU that it sees")
        with peers.precision(exact=precision == EXACT):
            yield
    else:
        with jax.default_matmul_precision(PRECISIONS[precision]):
            yield


@pytest.mark.parametrize("group", PROBLEMS)
@pytest.mark.parametrize(("executor", "precision"), ROWS)
def test_inversion(benchmark, group, executor, precision):
    build, rate, *_ = PROBLEMS[group]
    with rounding(executor, precision):
        problem, work = build()
        call = functools.partial(problem.run, executor, ITERATIONS)
        if executor == TORCH:
            call = functools.partial(torch_run(group)[0], ITERATIONS)
        first_call(benchmark, call)
        changed = torch_gradient(group) if executor == TORCH else problem.change(rate, executor)
        far = _problems.relative_difference(reference(group), changed.reshape(reference(group).shape))
        assert far < (TOLERANCE if precision == EXACT else np.inf)
        measure(
            benchmark,
            call,
            group=f"{group}, {precision}",
            name=executor,
            per_call=ITERATIONS,
            rounds=ROUNDS,
            **columns(work, precision),
            **{"distance of the gradient": far},
        )


@functools.cache
def cafe_on_cpu() -> np.ndarray:
    with on_cpu():
        begin, loop = test_cafe_step.rounds_by("jit per step", "auto", 1)
        return np.asarray(loop(begin).attack.data.x_optimizer.rows[0].mu)


@pytest.mark.parametrize(("executor", "precision"), [row for row in ROWS if row[0] != TORCH])
def test_cafe_step_by_precision(benchmark, executor, precision):
    with rounding(executor, precision):
        begin, loop = test_cafe_step.rounds_by(executor, "auto", ITERATIONS)
        first_call(benchmark, lambda: loop(begin))
        # After one step Adam's first moment is a tenth of the gradient. Unlike Adam's step it is continuous.
        _, one = test_cafe_step.rounds_by(executor, "auto", 1)
        there = np.asarray(one(begin).attack.data.x_optimizer.rows[0].mu)
        far = _problems.relative_difference(cafe_on_cpu(), there)
        assert far < (TOLERANCE if precision == EXACT else np.inf)
        measure(
            benchmark,
            lambda: loop(begin),
            group=f"{test_cafe_step.GROUP}, {precision}",
            name=executor,
            per_call=ITERATIONS,
            rounds=ROUNDS,
            **columns(test_cafe_step.work(), precision),
            **{"distance of the gradient": far},
        )
