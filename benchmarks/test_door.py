"""A step through the door for any model beside the same step through jaxleak's own layers.

The networks behind the door are written in plain Flax. A network and its twin have the same weights and attack the same
gradient; what they change in the steps of one call must agree before they are timed. The two rows take turns.
"""

import functools

import jax
import pytest

from benchmarks import _problems
from benchmarks._quiet import in_turns, store, timed_first_call
from benchmarks.test_inversion_step import MODELS, RATE, ROUNDS, problem_of
from examples.networks.flax_networks import PlainResNet, PlainStack, flat_variables
from jaxleak import models

ROWS = ("jaxleak's layers", "plain Flax, from_flax")
#: Largest difference of the two changes, relative to the norm. Rounding flips a few ReLUs.
TOLERANCE = 2e-3
#: The networks of `MODELS` in plain Flax.
PLAIN = {
    "ConvNet": PlainStack(**_problems.CONVNET),
    "ResNet10": PlainResNet(),
    "ResNet18": PlainResNet((2, 2, 2, 2)),
}


@functools.cache
def timed(name: str) -> dict[str, tuple[float, list[float], list[bool]]]:
    """By row: seconds of the first call, seconds of the timed ones, and which of these were spoiled."""
    problem = problem_of(name)
    own, (_, _, batch, per_call, _) = problem.model, MODELS[name]
    # Steps in training mode read no running statistics, which the server does not see.
    given = {**jax.jit(own.init)(_problems.KEY), "params": problem.observation.params["params"]}
    twin, _ = models.from_flax(PLAIN[name], flat_variables(given), image_shape=own.image_shape)
    problems = dict(zip(ROWS, (problem, _problems.inversion(twin, problem.settings, batch)), strict=True))
    calls = {row: functools.partial(each.run, "jit over the loop", per_call) for row, each in problems.items()}
    first, changes = {}, {}
    for row, call in calls.items():
        (after, _), first[row] = timed_first_call(call)
        before = problems[row].begin.attack.variables["x"]
        changes[row] = _problems.gradient(before, after.attack.variables["x"], RATE)
    _problems.assert_same_gradient(changes[ROWS[0]], changes[ROWS[1]], TOLERANCE)
    return {row: (first[row], *taken) for row, taken in in_turns(calls, ROUNDS).items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", ROWS)
def test_step_through_the_door(benchmark, name, row):
    """Store a row of the table of one network."""
    _, _, batch, per_call, _ = MODELS[name]
    first, seconds, spoiled = timed(name)[row]
    group = f"Step through the door for any model, {name}, B = {batch}, 32x32x3"
    columns = {"first_call_seconds": first, "base": row == ROWS[0]}
    store(benchmark, seconds, spoiled, group=group, name=row, per_call=per_call, **columns)
