"""Time restarts of DLG on LeNet: how the cost grows with R and with how many run at once, and the same in PyTorch.

Every row first takes one step of all restarts from the same starts; the changes must agree.
"""

import functools

import pytest

from benchmarks import _limits, _problems
from benchmarks._quiet import first_call, measure
from jaxleak import models

CLASSES, RATE = 100, 1e-3
STRIDES = (2, 2, 1)
LAYERS = _limits.convnet(32, (12, 12, 12), STRIDES, 5, CLASSES)
#: Numbers of restarts by the number of devices. Two devices share restarts, so R begins at 2 there.
RESTARTS = {1: (1, 8, 32, 128), 2: (2, 8, 32, 128)}
#: Restarts that run at once on a device, by the number of devices: the fastest of `JAX_CASES`.
AT_ONCE = {1: 32, 2: 2}
NAMES = {1: "one device", 2: "two devices"}
ITERATIONS = 20
COMPARED = 32
#: Least number of iterations of a call, times restarts: a call far below 0.1 s would be timed on sleeping cores.
STEPS = 640
#: Form of the convolutions, restarts at once on a device, devices.
JAX_CASES = {
    "one by one": ("auto", 1, 1),
    "four at once": ("auto", 4, 1),
    "all at once": ("auto", COMPARED, 1),
    "all at once, lax.conv": ("lax", COMPARED, 1),
    "two devices, one by one": ("auto", 1, 2),
    "two devices, two at once": ("auto", 2, 2),
    "two devices, four at once": ("auto", 4, 2),
}
TORCH_CASES = ("PyTorch eager", "PyTorch torch.func.vmap", "PyTorch torch.compile of vmap")


@functools.cache
def problem_of(restarts: int, form: str, at_once: int, devices: int = 1) -> _problems.Inversion:
    model = models.build("lenet", (32, 32, 3), CLASSES, form=form, **_problems.LENET)
    settings = _problems.descent("dlg", RATE)
    return _problems.inversion(model, settings, 1, restarts=restarts, microbatch=at_once, devices=devices)


@functools.cache
def reference(restarts: int = COMPARED):
    """The objective's gradient at the start of every restart."""
    return problem_of(restarts, "auto", restarts).change(RATE)


@pytest.mark.parametrize(("devices", "restarts"), [(d, r) for d, counts in RESTARTS.items() for r in counts])
def test_cost_of_restarts(benchmark, devices, restarts):
    problem = problem_of(restarts, "auto", min(AT_ONCE[devices], restarts // devices), devices)
    iterations = max(ITERATIONS, STEPS // restarts)
    first_call(benchmark, lambda: problem.run("jit over the loop", iterations))
    for one, other in zip(reference(restarts), problem.change(RATE, "jit over the loop"), strict=True):
        _problems.assert_same_gradient(one, other)
    measure(
        benchmark,
        lambda: problem.run("jit over the loop", iterations),
        group=f"DLG by restarts, all on {NAMES[devices]}, one step of all of them, LeNet, B = 1, 32x32x3",
        name=f"R = {restarts}",
        per_call=iterations,
        base=restarts == RESTARTS[devices][0],
    )


@pytest.mark.parametrize("case", [*JAX_CASES, *TORCH_CASES])
def test_restarts_beside_pytorch(benchmark, case, request):
    work = _limits.matching_step(LAYERS, 1)
    # Restarts share the weights, but every restart writes and reads its own gradients by them.
    work = _limits.Work(COMPARED * work.flops, COMPARED * work.bytes)
    if case in TORCH_CASES:
        peers = request.getfixturevalue("peers")
        problem = problem_of(COMPARED, "auto", COMPARED)
        theirs = _problems.torch_problem(peers, problem, peers.convnet(STRIDES, peers.torch.sigmoid), RATE)
        start = _problems.torch_candidate(peers, problem)
        step = peers.eager_restarts(theirs) if case.endswith("eager") else peers.vmapped_restarts(theirs)
        if "compile" in case:
            request.getfixturevalue("compiler")
            step = peers.compiled(step)
        after = first_call(benchmark, lambda: step(start))
        changed = _problems.gradient(peers.images(start), peers.images(after), RATE)
        call = functools.partial(peers.descend, step, start, ITERATIONS)
    else:
        problem = problem_of(COMPARED, *JAX_CASES[case])
        first_call(benchmark, lambda: problem.run("jit over the loop", ITERATIONS))
        changed = problem.change(RATE, "jit over the loop")
        call = functools.partial(problem.run, "jit over the loop", ITERATIONS)
    for one, other in zip(reference(), changed, strict=True):
        _problems.assert_same_gradient(one, other)
    measure(
        benchmark,
        call,
        group=f"DLG, one step of {COMPARED} restarts, LeNet, B = 1, 32x32x3",
        name=case,
        per_call=ITERATIONS,
        **_limits.columns(work),
    )
