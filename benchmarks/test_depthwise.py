"""Time a matching step behind a depthwise convolution, as in MobileNets, by how the layer is differentiated.

The layer is that of MobileNetV2 on 32x32 pixels: a 1x1 convolution to 144 channels, ReLU6, a 3x3 depthwise one, ReLU6
and a mean. Rows take turns, and their results must agree.
"""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks._quiet import in_turns, store, timed_first_call
from jaxleak.models import conv2d
from jaxleak.objectives import cosine

BATCH, SIDE, CHANNELS, HIDDEN = 2, 32, 24, 144
ROUNDS = 7
CASES = ("rules by hand", "automatic differentiation", "lax.conv")

Weights = dict[str, jax.Array]


def shifted(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The same sum of shifted images, left to automatic differentiation."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    places = itertools.product(range(3), range(3))
    return functools.reduce(jnp.add, (padded[:, i : i + height, j : j + width] * kernel[i, j, 0] for i, j in places))


def depthwise(case: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    if case == "automatic differentiation":
        return shifted
    return functools.partial(conv2d, padding=1, groups=HIDDEN, form="lax" if case == "lax.conv" else "auto")


def drawn(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@functools.cache
def problem() -> tuple[Weights, jax.Array, jax.Array]:
    """Weights and two batches: the client's, and a candidate of an attack."""
    weights = {"expand": drawn(0, CHANNELS, HIDDEN) / 5, "depthwise": drawn(1, 3, 3, 1, HIDDEN) / 3}
    return weights, drawn(2, BATCH, SIDE, SIDE, CHANNELS), drawn(3, BATCH, SIDE, SIDE, CHANNELS)


def step(case: str) -> Callable[[], jax.Array]:
    """The gradient, with respect to images, of the cosine distance between two gradients with respect to weights."""
    weights, secret, candidate = problem()
    convolve = depthwise(case)

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu6(x @ weights["expand"])
        return jnp.sum(jax.nn.relu6(convolve(hidden, weights["depthwise"])).mean((1, 2)) ** 2)

    observed = jax.jit(jax.grad(loss))(weights, secret)
    slope = jax.jit(jax.grad(lambda x: cosine(observed, jax.grad(loss)(weights, x))))
    return lambda: slope(candidate)


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[float, list[float], list[bool]]]:
    """For each case the seconds of the first call, the seconds of the rounds, and which rounds were spoiled."""
    calls = {case: step(case) for case in CASES}
    first = {case: timed_first_call(call) for case, call in calls.items()}
    for found, _ in first.values():
        np.testing.assert_allclose(found, first["lax.conv"][0], rtol=1e-3, atol=1e-4 * float(jnp.abs(found).max()))
    taken = in_turns(calls, ROUNDS)
    return {case: (first[case][1], *taken[case]) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_a_depthwise_layer(benchmark, rows, case):
    first, seconds, spoiled = rows[case]
    group = f"one step behind a depthwise layer, {HIDDEN} channels, B = {BATCH}, {SIDE}x{SIDE}"
    store(benchmark, seconds, spoiled, group=group, name=case, per_call=1, first_call_seconds=first)
