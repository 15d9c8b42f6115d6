"""Images that descend on the distance of their update to another one alone, without any prior."""

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
#: How many times as large as the answer's the misfit of other images may be that explain the update as well, and up to
#: which misfit they do so in any case: an answer may be exact where a descent of some hundred steps is not.
_AS_WELL, _IN_ANY_CASE = 2.0, 0.01


def explains_as_well(misfit: float, answer_misfit: float) -> bool:
    """Whether other images explain an update as well as an answer: a misfit below 0.01, or at most twice its own.

    So it is taken to be of a misfit that is no number, since a descent that broke down has shown nothing.
    """
    return not misfit > max(_AS_WELL * answer_misfit, _IN_ANY_CASE)


#: At how many images nearby a descent asks which numbers are read.
LOOKS = 3

_Carry: TypeAlias = tuple[jax.Array, PyTree, jax.Array, jax.Array]


class Fit(NamedTuple):
    """How well images explain an update."""

    misfit: jax.Array  # |g' - g| / |g|
    parts: dict[str, jax.Array]  # the same of every leaf; NaN where it is zero
    norms: dict[str, jax.Array]  # |g| of every leaf


class Descent(NamedTuple):
    """Where images end, and how they fit before and after."""

    x: jax.Array  # (N, H, W, C)
    before: Fit
    after: Fit
    read: jax.Array  # (N, H, W, C) bool, the numbers that change the update at all at one of the images nearby


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
        places: (N,) int32, which of the images stands in every place of the batch: two places may share one.
        y: (N,) int32, the labels of the places.
        bounds: lowest and highest value that pixels may take on the way.
        iterations: > 0, how many steps there are.
        nearby: (LOOKS, N, H, W, C) images of which is asked, with exact kinks, what numbers change the update.
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
        # The steps behind the last one, when the kinks are exact, take the gradient at the images nearby: in the same
        # loop, one gradient is compiled for both.
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
