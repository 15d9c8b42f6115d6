"""Time FedLeak's top-50-percent selection on numbers of ResNet10's shapes: bisection on bits against sorting.

All ways must select the same entries before any of them is timed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks._quiet import first_call, measure
from jaxleak import models
from jaxleak._magnitudes import share_count
from jaxleak.objectives import top_share

PERCENT = 50


def by_sort(leaf: jax.Array) -> jax.Array:
    """Threshold of a flat array."""
    return jnp.sort(jnp.abs(leaf))[leaf.size - share_count(leaf.size, PERCENT)]


def by_top_k(leaf: jax.Array) -> jax.Array:
    """Threshold of a flat array."""
    return jax.lax.top_k(jnp.abs(leaf), share_count(leaf.size, PERCENT))[0][-1]


def select(leaves: list[jax.Array], threshold, per_tensor: bool) -> list[jax.Array]:
    if per_tensor:
        limits = [threshold(leaf.ravel()) for leaf in leaves]
    else:
        limits = [threshold(jnp.concatenate([leaf.ravel() for leaf in leaves]))] * len(leaves)
    return [(jnp.abs(leaf) >= limit).astype(leaf.dtype) for leaf, limit in zip(leaves, limits, strict=True)]


def bisection(leaves: list[jax.Array], per_tensor: bool) -> list[jax.Array]:
    return top_share(PERCENT, per_tensor=per_tensor)(leaves, leaves)


WAYS = {
    "bisection": bisection,
    "sort": lambda leaves, per_tensor: select(leaves, by_sort, per_tensor),
    "top_k": lambda leaves, per_tensor: select(leaves, by_top_k, per_tensor),
}


@functools.cache
def gradient() -> list[jax.Array]:
    """4.9 million random numbers in the shapes of ResNet10's parameters."""
    model = models.build("resnet10", (32, 32, 3), 10)
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))["params"])
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]


@pytest.mark.parametrize("per_tensor", [False, True], ids=["global", "per tensor"])
@pytest.mark.parametrize("way", WAYS)
def test_selection(benchmark, way, per_tensor):
    leaves = gradient()
    chosen = jax.jit(functools.partial(WAYS[way], per_tensor=per_tensor))
    masks = first_call(benchmark, lambda: chosen(leaves))
    for mask, other in zip(masks, jax.jit(functools.partial(bisection, per_tensor=per_tensor))(leaves), strict=True):
        np.testing.assert_array_equal(mask, other)
    group = f"Selection of the largest {PERCENT} % of 4.9 million entries, {'per tensor' if per_tensor else 'global'}"
    measure(benchmark, lambda: chosen(leaves), group=group, name=way)
