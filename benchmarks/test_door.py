"""A step through the door for any model beside the same step through jaxleak's own layers.

The networks behind the door are written in plain Flax. A network and its twin have the same weights and attack the same
gradient; what they change in the steps of one call must agree before they are timed. The two rows take turns.
"""

import functools
from typing import Any

import jax
import pytest

from benchmarks import _problems
from benchmarks._quiet import in_turns, store, timed_first_call
from examples.networks.flax_networks import PlainConvNet, PlainResNet, flat
from jaxleak import models

RATE = 1.0
IMAGE = (32, 32, 3)
ROWS = ("jaxleak's layers", "plain Flax, from_flax")
#: How often each row is timed.
ROUNDS = 7
#: Relative to the norm of the change. Rounding flips a few ReLUs.
TOLERANCE = 2e-3

# name: (jaxleak's model, its options, the plain module, attack, B, iterations per call)
CASES: dict[str, tuple[str, dict[str, Any], Any, str, int, int]] = {
    "ConvNet": ("convnet", _problems.CONVNET, PlainConvNet(**_problems.CONVNET), "inverting_gradients", 8, 8),
    "ResNet10": ("resnet10", {}, PlainResNet(), "inverting_gradients", 16, 2),
    "ResNet18": ("resnet18", {}, PlainResNet((2, 2, 2, 2)), "inverting_gradients", 16, 1),
}


@functools.cache
def timed(name: str) -> dict[str, tuple[float, list[float], list[bool]]]:
    """By row: seconds of the first call, seconds of the timed ones, and which of these were spoiled."""
    kind, options, module, attack, batch, per_call = CASES[name]
    own = models.build(kind, IMAGE, 10, **options)
    settings = _problems.descent(attack, RATE)
    problem = _problems.inversion(own, settings, batch)
    # Steps in training mode read no running statistics, which the server does not see.
    given = {**jax.jit(own.init)(_problems.KEY), "params": problem.observation.params["params"]}
    twin, _ = models.from_flax(module, flat(given), image_shape=IMAGE, num_classes=10)
    problems = dict(zip(ROWS, (problem, _problems.inversion(twin, settings, batch)), strict=True))
    calls = {row: functools.partial(each.run, "jit over the loop", per_call) for row, each in problems.items()}
    first, changes = {}, {}
    for row, call in calls.items():
        (after, _), first[row] = timed_first_call(call)
        before = problems[row].begin.attack.variables["x"]
        changes[row] = _problems.gradient(before, after.attack.variables["x"], RATE)
    _problems.assert_same_gradient(changes[ROWS[0]], changes[ROWS[1]], TOLERANCE)
    return {row: (first[row], *taken) for row, taken in in_turns(calls, ROUNDS).items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("row", ROWS)
def test_step_through_the_door(benchmark, name, row):
    """Store a row of the table of one network."""
    batch, per_call = CASES[name][4:]
    first, seconds, spoiled = timed(name)[row]
    group = f"Step through the door for any model, {name}, B = {batch}, 32x32x3"
    columns = {"first_call_seconds": first, "base": row == ROWS[0]}
    store(benchmark, seconds, spoiled, group=group, name=row, per_call=per_call, **columns)
    jax.clear_caches()
