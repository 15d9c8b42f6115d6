"""Run an attack along a protocol, in jitted chunks: the protocol runs, the threat grants a view, the attack watches.

Step t of protocol and attack gets `fold_in(key, t)` and nothing else random, and a chunk's length changes no result. A
run that is resumed from a checkpoint therefore ends with the same bits as one that was never interrupted.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _identity, _tree, _validate
from jaxleak._base import Attack, Batch, Protocol, ProtocolState, PyTree
from jaxleak._memory import require_bytes, within_memory
from jaxleak._random_streams import stream_of
from jaxleak.audit._chunks import EXECUTORS, Executor, in_chunks, one_by_one
from jaxleak.audit._private import check_private
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._restarts import start_trials, step_trials
from jaxleak.checkpoint import Checkpoints
from jaxleak.threats import Threat, view


class RunState(NamedTuple):
    """All that a run carries from one round to the next; a checkpoint holds exactly this.

    Attributes:
        protocol: the state of the protocol, with `round` and `params`.
        attack: the state of the attack, with a leading axis of restarts if there are several.
        bad_round: () int32, the first round whose payload was not finite, or -1.
    """

    protocol: ProtocolState
    attack: PyTree
    bad_round: jax.Array


Callback = Callable[[int, RunState, dict[str, np.ndarray]], None]


def template_of(private: Batch) -> Batch:
    """The shapes of a private set; an attack is initialised from these alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), private)


def init_key(key: jax.Array) -> jax.Array:
    """The scalar key from which a run with the scalar `key` draws the protocol's initial parameters."""
    return stream_of(key, Stream.PARAMETERS)


def start(attack: Attack, protocol: Protocol, private: Batch, *, key: jax.Array, restarts: int = 1) -> RunState:
    """The state before round 0; `restarts` independent initial states of the attack share every observation.

    Args:
        attack: the attack that watches the rounds.
        protocol: the protocol that runs the rounds.
        private: the private set; the attack is initialised from its shapes alone.
        key: random key of the audit; `init_key` draws the protocol's parameters from it.
        restarts: number of initial states of the attack, >= 1.

    Raises:
        MemoryError: if the attack's state does not fit into memory; raised before any of it is allocated.
        ValueError: on a number of restarts that is not whole or < 1, or a private set that the protocol does not take,
            such as one with labels out of range, or one that is not finite.
    """
    _validate.count(restarts=restarts)
    _validate.made(Attack, "jaxleak.attacks", attack=attack)
    _validate.made(Protocol, "jaxleak.protocols", protocol=protocol)
    _validate.made(Batch, "jaxleak.Batch", private=private)
    _validate.random_key(key=key)
    check_private(protocol, private)
    template = template_of(private)
    attack_key = stream_of(key, Stream.ATTACK_START)
    carried = jax.tree.leaves(jax.eval_shape(lambda k: attack.init(k, template), attack_key))
    need = restarts * sum(leaf.size * leaf.dtype.itemsize for leaf in carried)
    require_bytes(need, jax.local_devices()[0], "attack fewer samples (num_samples), or with fewer restarts")
    attack_state = start_trials(attack, attack_key, template, restarts)
    return RunState(protocol.init(init_key(key)), attack_state, jnp.full((), -1, jnp.int32))


def run(
    attack: Attack,
    protocol: Protocol,
    threat: Threat,
    private: Batch,
    *,
    key: jax.Array,
    rounds: int,
    state: RunState | None = None,
    chunk: int = 50,
    restarts: int = 1,
    callbacks: Iterable[Callback] = (),
    checkpoints: Checkpoints | None = None,
    executor: Executor = "scan",
) -> tuple[RunState, dict[str, np.ndarray]]:
    """Run `attack` against `protocol` until `rounds` rounds have been observed.

    Args:
        attack: the attack to run.
        protocol: the protocol that is attacked.
        threat: what the attacker is granted of each round.
        private: the whole private set, `index` = 0 ... N-1.
        key: the run's only source of randomness.
        rounds: total number of rounds, counted from round 0.
        state: where to continue; None starts afresh, or from the newest of `checkpoints`.
        chunk: rounds per compiled chunk, > 0; callbacks and checkpoints happen between chunks.
        restarts: number of independent attack states, vmapped over the same observations.
        callbacks: called as `callback(rounds_done, state, infos_of_chunk)` after every chunk.
        checkpoints: saves the state after every chunk. Without `state`, an existing one is resumed if it had the same
            key, private set and restarts. With `state`, the caller must know what run it belongs to: a run may
            have several threats in turn.
        executor: "scan" compiles a whole chunk, "step" one round, "eager" nothing (for debugging).

    Returns:
        The final `RunState`, and the stacked infos of the rounds run in this call (empty if none were left). With one
        restart, `attack.reconstruct(state.attack, observation)` is the attack's answer. There the attacks of CAFE read
        the parameters alone: `Observation(state.protocol.round, state.protocol.params)`.

    Raises:
        ConfigMismatchError: naming what differs, if the checkpoints are from another run.
        FloatingPointError: if a payload was not finite; the message names the round. Checkpoints written before stay.
        MemoryError: before the first round, with the estimated need, if the compiled program does not fit.
        ValueError: on arguments out of range, or a private set that the protocol does not take, such as one with labels
            out of range.
    """
    _validate.count(rounds=rounds, chunk=chunk)
    _validate.one_of(EXECUTORS, executor=executor)
    _validate.made(Threat, "jaxleak.threats", threat=threat)
    _validate.granted_paths(**{"threat.payload": threat.payload})
    callbacks = _validate.members("functions", callbacks=callbacks)
    if checkpoints is not None:
        _validate.made(Checkpoints, "jaxleak.checkpoint", checkpoints=checkpoints)
    if state is not None:
        check_private(protocol, private)
    else:  # `start` checks the private set
        state = start(attack, protocol, private, key=key, restarts=restarts)
        if checkpoints is not None:
            checkpoints.bind(
                {
                    "key": _identity.of_key(key),
                    "private set": _identity.of_arrays(private),
                    "number of restarts": restarts,
                }
            )
            state = checkpoints.restore_latest(state)
    programs = _programs(attack, protocol, threat, restarts)
    one_step = programs.one_round if executor == "eager" else programs.step

    def run_chunk(carry: RunState, length: int) -> tuple[RunState, dict[str, Any]]:
        if executor == "scan":
            return programs.scan(carry, private, key, length)
        return one_by_one(lambda c: one_step(c, private, key), carry, length)

    done = int(state.protocol.round)
    # Donation would delete the caller's arrays (parameters are often shared between runs).
    state = jax.tree.map(jnp.copy, state)

    def checked_chunk(carry: RunState, length: int) -> tuple[RunState, dict[str, Any]]:
        first = int(carry.protocol.round)
        carry, infos = run_chunk(carry, length)
        if (bad := int(carry.bad_round)) >= 0:
            raise FloatingPointError(
                f"round {bad}: the shared gradient is not finite (in rounds {first} to {first + length - 1}); "
                f"rounds before {first} are unaffected"
            )
        return carry, infos

    lowered = None
    if done < rounds and executor == "scan":
        lowered = programs.scan.lower(state, private, key, min(chunk, rounds - done))
    elif done < rounds and executor == "step":
        lowered = programs.step.lower(state, private, key)
    advice = f"lower restarts (now {restarts}), the batch size or the number of samples"
    with within_memory(lowered, advice):
        return in_chunks(checked_chunk, state, done, rounds, chunk, callbacks, checkpoints)


class _Programs(NamedTuple):
    """The programs of `run`: one round, the same round compiled, and a compiled chunk of rounds."""

    one_round: Callable[..., tuple[RunState, dict[str, jax.Array]]]
    step: Any
    scan: Any


@functools.lru_cache(maxsize=4)  # so that a second run of the same attack on the same protocol compiles nothing
def _programs(attack: Attack, protocol: Protocol, threat: Threat, restarts: int) -> _Programs:
    def one_round(carry: RunState, private: Batch, key: jax.Array) -> tuple[RunState, dict[str, jax.Array]]:
        protocol_key, step_key = stream_of(key, Stream.ROUNDS), stream_of(key, Stream.ATTACK_STEPS)
        t = carry.protocol.round
        protocol_state, transcript = protocol.round(protocol_key, carry.protocol, private)
        observation = view(threat, transcript)
        bad = ~_tree.all_finite((observation.payload, observation.party, observation.label_holder))
        bad_round = jnp.where((carry.bad_round < 0) & bad, t, carry.bad_round)
        k = jax.random.fold_in(step_key, t)
        attack_state, info = step_trials(attack, k, carry.attack, observation, restarts)
        return RunState(protocol_state, attack_state, bad_round), info

    # The carry holds the attack's tables: donating it updates them in place instead of copying them every chunk.
    @functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
    def scan(carry: RunState, private: Batch, key: jax.Array, length: int) -> tuple[RunState, dict[str, jax.Array]]:
        return jax.lax.scan(lambda c, _: one_round(c, private, key), carry, length=length)

    return _Programs(one_round, jax.jit(one_round, donate_argnums=0), scan)
