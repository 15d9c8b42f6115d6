"""Descent of images on the distance between their update and another one, without any prior."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxleak._base import Observation, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks._inversion.smoothing import next_sharpness, smoothing
from jaxleak.audit._received import Received, misfit

_RATE = 0.02
_SMOOTHING = smoothing(4.0, 100.0, finish=0.2)
#: Other images explain an update as well as an answer if their misfit is at most so many times the answer's, or at most
#: the second number in any case: an answer may be exact where a descent of some hundred steps is not.
_AS_WELL, _IN_ANY_CASE = 2.0, 0.01


def explains_as_well(misfit: float, answer_misfit: float) -> bool:
    """Whether other images explain an update as well as an answer: a misfit of at most 0.01 or twice the answer's.

    A misfit that is NaN counts as explaining, too, since a descent that broke down has shown nothing.
    """
    return not misfit > max(_AS_WELL * answer_misfit, _IN_ANY_CASE)


#: Number of nearby images at which a descent finds out which of an image's numbers change the update.
LOOKS = 3

_Carry: TypeAlias = tuple[jax.Array, PyTree, jax.Array, jax.Array]


class Fit(NamedTuple):
    """How well images explain an update."""

    misfit: jax.Array  # |g' - g| / |g|
    parts: dict[str, jax.Array]  # the same for every leaf; NaN where the leaf is zero
    norms: dict[str, jax.Array]  # |g| for every leaf


class Descent(NamedTuple):
    """Where images end, and how they fit before and after."""

    x: jax.Array  # (N, H, W, C)
    before: Fit
    after: Fit
    read: jax.Array  # (N, H, W, C) bool, numbers that change the update at one or more of the nearby images


@jitted_for_few(0, 6)
def descend(
    received: Received, seen: Observation, start: jax.Array, places: jax.Array, y: jax.Array, bounds: jax.Array,
    iterations: int, nearby: jax.Array,
) -> Descent:  # fmt: skip
    """Descend on |g' - g|^2 / |g|^2 by Adam, with the kinks of the network smoothed at first.

    Args:
        received: how an update is computed and compared.
        seen: params and payload of the round.
        start: (N, H, W, C) the images at the start.
        places: (N,) int32, number of the image in every place of the batch; two places may share an image.
        y: (N,) int32, the labels of the places.
        bounds: lowest and highest value that pixels may take on the way.
        iterations: number of steps, > 0.
        nearby: (LOOKS, N, H, W, C) images at which the descent finds, with exact kinks, the numbers that change the
            update.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, iterations))

    def distance(x: jax.Array, sharpness: jax.Array) -> jax.Array:
        own = received.of(seen, x[places], y, sharpness=sharpness)
        return misfit(received.explained(seen, own), own)

    def fit(x: jax.Array) -> Fit:
        own = received.of(seen, x[places], y)
        explained = received.explained(seen, own)
        wanted = named_leaves(explained)
        norms = {name: norm(leaf) for name, leaf in wanted.items()}
        off = {name: norm(leaf - wanted[name]) / norms[name] for name, leaf in named_leaves(own).items()}
        return Fit(misfit(explained, own), off, norms)

    gradient = jax.grad(lambda x, sharpness: distance(x, sharpness) ** 2)

    def step(carry: _Carry, iteration: jax.Array) -> tuple[_Carry, None]:
        # After the last step, when the kinks are exact, LOOKS iterations take the gradient at the nearby images. They
        # share the loop, so that one gradient is compiled for both.
        x, state, sharpness, read = carry
        looking = iteration >= iterations
        at = jnp.where(looking, nearby[jnp.maximum(iteration - iterations, 0)], x)
        slope = gradient(at, sharpness)
        change, next_state = optimizer.update(slope, state)
        sharper = next_sharpness(_SMOOTHING, sharpness, iteration, iterations, jnp.zeros(()))
        moved = (jnp.clip(x + change, *bounds), next_state, sharper, read)
        looked = (x, state, sharpness, read | (slope != 0))
        return jax.tree.map(lambda new, kept: jnp.where(looking, kept, new), moved, looked), None

    begin = (start, optimizer.init(start), jnp.float32(_SMOOTHING.start), jnp.zeros(start.shape, bool))
    (x, _, _, read), _ = jax.lax.scan(step, begin, jnp.arange(iterations + LOOKS))
    return Descent(x[places], fit(start), fit(x), read)
