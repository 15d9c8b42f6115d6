"""Several trials of one attack: the randomness of each, and the best of their answers."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction


def trial_keys(key: jax.Array, restarts: int) -> jax.Array:
    """One key per trial (restarts,).

    The first one is the given key, and more trials add keys to those of fewer trials. What one trial finds is therefore
    among what several trials find, and more trials are never worse by the attacker's own score.
    """
    # This number is far from the small numbers with which a trial derives its own keys.
    others = jax.random.split(jax.random.fold_in(key, 0x7121A1), restarts - 1)
    return jnp.concatenate([key[None], others])


def start_trials(attack: Attack, key: jax.Array, template: Batch, restarts: int) -> PyTree:
    """The attack's state before its first step; with several restarts, all states with a leading axis of restarts."""
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
        attack: the attack that makes the step.
        key: random key of the step; every trial gets one of its `trial_keys`.
        states: the states of all trials, from `start_trials`.
        observation: what all trials see.
        restarts: how many trials there are.
        together: function that steps several trials, from their keys (restarts,), states and the observation; None
            vmaps the step.
    """
    if restarts == 1:
        new, info = step_of(attack, key, states, observation)
    else:
        step = jax.vmap(functools.partial(step_of, attack), in_axes=(0, 0, None)) if together is None else together
        new, info = step(trial_keys(key, restarts), states, observation)
    return of_types(new, states), info


def step_of(attack: Attack, key: jax.Array, state: PyTree, observation: Observation) -> tuple[PyTree, dict[str, Any]]:
    """One step of an attack; the shapes of its result are checked while it is traced.

    Raises:
        ValueError: if the step does not return a state like the one that it got, and a dict of scalars.
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
    """Shape and kind of dtype, without the number of bits, which `of_types` restores."""
    dtype = jnp.asarray(leaf).dtype
    kind = next((kind.__name__ for kind in (jnp.floating, jnp.integer) if jnp.issubdtype(dtype, kind)), str(dtype))
    return f"{kind} of shape {jnp.shape(leaf)}"


def of_types(new: PyTree, old: PyTree) -> PyTree:
    """The new state in the dtypes of the old one; the two differ where `jax_enable_x64` widens what is computed."""

    def one(leaf: jax.Array, was: jax.Array) -> jax.Array:
        wanted = jnp.asarray(was).dtype
        return leaf if jnp.asarray(leaf).dtype == wanted else jnp.asarray(leaf, wanted)

    return jax.tree.map(one, new, old)


def best_restart(reconstructions: Reconstruction) -> Reconstruction:
    """Choose for each sample, among R stacked reconstructions, the one with the lowest score of the attacker's own.

    A score of NaN counts as infinite. The diagnosis need not be about single samples, and stays that of all R.
    """
    chosen = _best_samples(reconstructions._replace(diagnosis=None))
    return chosen._replace(diagnosis=reconstructions.diagnosis)


@jax.jit  # without it, every field would have its own programs
def _best_samples(stacked: Reconstruction) -> Reconstruction:
    choice = jnp.argmin(jnp.where(jnp.isnan(stacked.score), jnp.inf, stacked.score), axis=0)
    return jax.tree.map(lambda leaf: leaf[choice, jnp.arange(leaf.shape[1])], stacked)
