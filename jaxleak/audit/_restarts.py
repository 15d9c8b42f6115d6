"""Several trials of one attack: the randomness of each, and the best of their answers."""

import jax
import jax.numpy as jnp

from jaxleak._base import Reconstruction


def trial_keys(key: jax.Array, restarts: int) -> jax.Array:
    """One key per trial (restarts,).

    The first is the key itself, and more trials add to fewer: what one trial finds is among what several find, so
    that more of them are never worse by the attacker's own score.
    """
    # Far from the small numbers with which a trial derives keys of its own.
    others = jax.random.split(jax.random.fold_in(key, 0x7121A1), restarts - 1)
    return jnp.concatenate([key[None], others])


def best_restart(reconstructions: Reconstruction) -> Reconstruction:
    """Of R stacked reconstructions, per sample the one with the lowest score of the attacker's own; NaN is no score."""
    score = reconstructions.score
    choice = jnp.argmin(jnp.where(jnp.isnan(score), jnp.inf, score), axis=0)
    return jax.tree.map(lambda leaf: leaf[choice, jnp.arange(leaf.shape[1])], reconstructions)
