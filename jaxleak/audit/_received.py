"""The update that candidate images would give, and how far it is from the update that arrived."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Batch, Observation, PyTree, Share, ShareFn
from jaxleak._tree import norm, where_seen
from jaxleak.attacks._inversion.gradient_term import Undone, to_explain


@functools.lru_cache(maxsize=8)  # one for all equal clients, so that nothing is compiled twice
def compiled(share: Share) -> ShareFn:
    """What a client sends of a batch, as a compiled function."""
    return jax.jit(share)


class Received(NamedTuple):
    """How the update of a candidate is simulated and compared, given the stated defense."""

    share: Share  # what the client sends, behind its defense where that can be simulated
    in_part: bool = False  # whether entries that arrived as zero were left out, and say nothing
    undone: Undone | None = None  # what is known of the gradient, where the payload itself is no gradient

    def of(
        self, seen: Observation, x: jax.Array, y: jax.Array, *, sharpness: jax.Array | float | None = None
    ) -> PyTree:
        """The update of images x (B, H, W, channels) and labels y (B,), limited to the leaves that were seen."""
        own = self.share(seen.params, Batch(x[:, None], y, jnp.arange(len(y))), sharpness=sharpness)
        own = where_seen(seen.payload, own)
        return jax.tree.map(lambda a, b: jnp.where(b == 0, 0.0, a), own, seen.payload) if self.in_part else own

    def told(self, seen: Observation) -> PyTree:
        """A tree like the payload, in which entries that say nothing of the gradient are zero."""
        return seen.payload if self.undone is None else self.undone.told(seen)

    def explained(self, seen: Observation, own: PyTree) -> PyTree:
        """The tree that an update from `of` must equal to explain what was seen."""
        return to_explain(self.undone, seen, own)


def misfit(explained: PyTree, own: PyTree) -> jax.Array:
    """() relative distance |g' - g| / |g| of an update g', from `Received.of`, to the tree g that it has to explain."""
    return norm(jax.tree.map(jnp.subtract, own, explained)) / norm(explained)
