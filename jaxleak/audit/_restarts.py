"""Several trials of one attack: the randomness of each, and the best of their answers."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction


def trial_keys(key: jax.Array, restarts: int) -> jax.Array:
    """One key per trial (restarts,).

    The first is the key itself, and more trials add to fewer: what one trial finds is among what several find, so
    that more of them are never worse by the attacker's own score.
    """
    # Far from the small numbers with which a trial derives keys of its own.
    others = jax.random.split(jax.random.fold_in(key, 0x7121A1), restarts - 1)
    return jnp.concatenate([key[None], others])


def start_trials(attack: Attack, key: jax.Array, template: Batch, restarts: int) -> PyTree:
    """The attack's state before its first step; with several restarts, states with a leading axis of them."""
    if restarts == 1:
        return attack.init(key, template)
    return jax.vmap(lambda k: attack.init(k, template))(trial_keys(key, restarts))


def step_trials(
    attack: Attack,
    key: jax.Array,
    states: PyTree,
    observation: Observation,
    restarts: int,
    together: Callable[[jax.Array, PyTree, Observation], tuple[PyTree, dict[str, jax.Array]]] | None = None,
) -> tuple[PyTree, dict[str, jax.Array]]:
    """One step of every trial on the same observation.

    Args:
        attack: the attack whose step is made.
        key: random key of the step; every trial gets one of its `trial_keys`.
        states: the states of all trials, from `start_trials`.
        observation: what all trials see.
        restarts: how many trials there are.
        together: steps all of several trials, from their keys (restarts,), states and the observation; None vmaps.
    """
    if restarts == 1:
        new, info = step_of(attack, key, states, observation)
    else:
        step = jax.vmap(functools.partial(step_of, attack), in_axes=(0, 0, None)) if together is None else together
        new, info = step(trial_keys(key, restarts), states, observation)
    return of_types(new, states), info


def step_of(attack: Attack, key: jax.Array, state: PyTree, observation: Observation) -> tuple[PyTree, dict[str, Any]]:
    """One step of an attack, whose shapes are looked at while it is traced.

    Raises:
        ValueError: if it does not give a state like the one that it got, and a dict of scalars.
    """
    made = attack.step(key, state, observation)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)):
        raise ValueError(f"step of the attack must return (state, info), where info is a dict, got {_told(made)}")
    new, info = made
    before, after = str(jax.tree.structure(state)), str(jax.tree.structure(new))
    if before != after:
        raise ValueError(f"step of the attack must return a state of the structure that it got, {before}, got {after}")
    for was, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        if _form(was) != _form(leaf):
            raise ValueError(
                f"step of the attack must keep shapes and dtypes of its state: {_form(was)} became {_form(leaf)}"
            )
    for name, leaf in info.items():
        if jnp.shape(leaf):
            raise ValueError(f"step of the attack must return scalars as info, got {name!r} of shape {jnp.shape(leaf)}")
    return new, dict(info)


def _told(made: Any) -> str:
    if not isinstance(made, tuple):
        return "an array" if isinstance(made, jax.Array) else type(made).__name__
    return f"info of type {type(made[1]).__name__}" if len(made) == 2 else f"{len(made)} values"


def _form(leaf: Any) -> str:
    """Shape and kind of dtype: `of_types` makes 64-bit numbers those of the state again."""
    dtype = jnp.asarray(leaf).dtype
    kind = next((kind.__name__ for kind in (jnp.floating, jnp.integer) if jnp.issubdtype(dtype, kind)), str(dtype))
    return f"{kind} of shape {jnp.shape(leaf)}"


def of_types(new: PyTree, old: PyTree) -> PyTree:
    """The new state in the types of the old one, which differ where `jax_enable_x64` widens what is computed."""

    def one(leaf: jax.Array, was: jax.Array) -> jax.Array:
        wanted = jnp.asarray(was).dtype
        return leaf if jnp.asarray(leaf).dtype == wanted else jnp.asarray(leaf, wanted)

    return jax.tree.map(one, new, old)


def best_restart(reconstructions: Reconstruction) -> Reconstruction:
    """Choose per sample, of R stacked reconstructions, the one with the attacker's own lowest score; NaN is no score.

    The diagnosis, which need not be about single samples, stays that of all R.
    """
    chosen = _best_samples(reconstructions._replace(diagnosis=None))
    return chosen._replace(diagnosis=reconstructions.diagnosis)


@jax.jit  # else every field would have programs of its own
def _best_samples(stacked: Reconstruction) -> Reconstruction:
    choice = jnp.argmin(jnp.where(jnp.isnan(stacked.score), jnp.inf, stacked.score), axis=0)
    return jax.tree.map(lambda leaf: leaf[choice, jnp.arange(leaf.shape[1])], stacked)
