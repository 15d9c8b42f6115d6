"""Time a step of Inverting Gradients (cosine distance and total variation) beside PyTorch and the machine's rates.

Rows of a table take turns. Each row first takes the steps of one call from the same start on the same gradient; the
changes must agree. The optimizer is plain gradient descent in all of them.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from benchmarks import _limits, _problems
from benchmarks._quiet import in_turns, store, timed_first_call
from jaxleak import models
from jaxleak.models import _conv

#: Gradients of a cosine are small: at this rate a step is still far above the rounding of the pixels.
RATE = 1.0

# name: (jaxleak's model, its options, B, iterations per call, (PyTorch's network, its argument))
MODELS = {
    "ConvNet": ("convnet", _problems.CONVNET, 8, 8, ("convnet", _problems.CONVNET["strides"])),
    "ResNet10": ("resnet10", {}, 16, 2, ("resnet", (1, 1, 1, 1))),
    "ResNet18": ("resnet18", {}, 16, 1, ("resnet", (2, 2, 2, 2))),
}
JAX_CASES = (
    "jit over the loop",
    "jit over the loop, plain products",
    "jit over the loop, two devices",
    "jit per step",
    "jit per step, lax.conv",
)
TORCH_CASES = ("PyTorch eager", "PyTorch eager, channels last", "PyTorch torch.func", "PyTorch torch.compile")
# Compiling the long graph of ResNet18 takes minutes.
CASES = [
    pytest.param(model, case, marks=[pytest.mark.slow] if (model, case) == ("ResNet18", TORCH_CASES[3]) else [])
    for model in MODELS
    for case in (*JAX_CASES, *TORCH_CASES)
]


#: Timed rounds of each row.
ROUNDS = 7

#: Rounding flips a few ReLUs, and more in deeper networks: our own two forms of ResNet18 differ by 3e-3 of the norm.
TOLERANCE = {"ConvNet": 2e-3, "ResNet10": 2e-3, "ResNet18": 1e-2}


@functools.cache
def problem_of(name: str, form: str = "auto", devices: int = 1) -> _problems.Inversion:
    kind, options, batch, _, _ = MODELS[name]
    model = models.build(kind, (32, 32, 3), 10, form=form, **options)
    return _problems.inversion(model, _problems.descent("inverting_gradients", RATE), batch, devices=devices)


@functools.cache
def reference(name: str):
    return problem_of(name).change(RATE, length=MODELS[name][3])


def layers_of(name: str) -> list[_limits.Layer]:
    kind, options, _, _, (_, blocks) = MODELS[name]
    if kind == "convnet":
        return _limits.convnet(32, options["channels"], options["strides"], 3, 10)
    return _limits.resnet(32, blocks, 10)


def peers_for(case: str, request):
    """The PyTorch code of a case; the test is skipped if it cannot run."""
    if case.endswith("compile"):
        request.getfixturevalue("compiler")
    return request.getfixturevalue("peers")


def torch_step(peers, name: str, case: str):
    network, argument = MODELS[name][4]
    problem = problem_of(name)
    theirs = _problems.torch_problem(peers, problem, getattr(peers, network)(argument), RATE)
    start = _problems.torch_candidate(peers, problem)
    if case.endswith("channels last"):
        params, observed = map(peers.channels_last, (theirs.params, theirs.observed))
        theirs = theirs._replace(params=params, observed=observed)
        start = start._replace(x=peers.channels_last({"x": start.x})["x"])
    if "eager" in case:
        return peers.eager_step(theirs), start
    step = peers.functional_step(theirs)
    return (peers.compiled(step) if case.endswith("compile") else step), start


def prepared(name: str, case: str, request) -> tuple[Callable, dict[str, Any]]:
    """The call of a row and its columns; the call was made once, and its result agreed with the other rows'."""
    _, _, batch, per_call, _ = MODELS[name]
    work = _limits.matching_step(layers_of(name), batch)
    extra = _limits.columns(work)
    if case in TORCH_CASES:
        peers = peers_for(case, request)
        step, start = torch_step(peers, name, case)
        call = functools.partial(peers.descend, step, start, per_call)
        after, seconds = timed_first_call(call)
        before, after = peers.images(start), peers.images(after)
    else:
        executor, _, special = case.partition(", ")
        form, devices = "lax" if special == "lax.conv" else "auto", 2 if special == "two devices" else 1
        problem = problem_of(name, form, devices)
        call = functools.partial(problem.run, executor, per_call)
        if special == "plain products":  # left to automatic differentiation
            jax.clear_caches()  # forget what was traced with the library's products
            with mock.patch.object(_conv, "product", jnp.matmul):
                call = problem.compiled_loop(per_call)
        (state, _), seconds = timed_first_call(call)
        before, after = (run.attack.variables["x"] for run in (problem.begin, state))
        if executor == "jit per step":
            compiled = problem.compiled_step()
            extra.update(_limits.xla_counts(compiled, work))
            extra["temporary MB"] = _limits.temporary_megabytes(compiled)
    _problems.assert_same_gradient(reference(name), _problems.gradient(before, after, RATE), TOLERANCE[name])
    return call, {**extra, "first_call_seconds": seconds}


@pytest.fixture(scope="module")
def rows(request):
    """A function that gives, for a model, the columns, seconds and spoiled rounds of the cases that will run."""
    selected = [item.callspec.params for item in request.session.items if item.module is request.module]

    @functools.cache
    def of(name: str) -> dict[str, tuple[dict[str, Any], list[float], list[bool]]]:
        ready = {}
        for case in (params["case"] for params in selected if params["name"] == name):
            with contextlib.suppress(pytest.skip.Exception):  # its own test skips, too
                ready[case] = prepared(name, case, request)
        taken = in_turns({case: call for case, (call, _) in ready.items()}, ROUNDS)
        return {case: (columns, *taken[case]) for case, (_, columns) in ready.items()}

    return of


@pytest.mark.parametrize(("name", "case"), CASES)
def test_inverting_gradients_step(benchmark, rows, name, case, request):
    _, _, batch, per_call, _ = MODELS[name]
    if case in TORCH_CASES:
        peers_for(case, request)
    columns, seconds, spoiled = rows(name)[case]
    group = f"Inverting Gradients, one step, {name}, B = {batch}, 32x32x3"
    store(benchmark, seconds, spoiled, group=group, name=case, per_call=per_call, **columns)
