"""Record what an attacker sees of a protocol, and show the record to attacks."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import Attack, Batch, Observation, Protocol, ProtocolState, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._random_streams import stream_of
from jaxleak.audit._private import check_private
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._restarts import step_of
from jaxleak.audit._rounds import template_of
from jaxleak.threats import Threat, view


def watch(
    protocol: Protocol, threat: Threat, private: Batch, state: ProtocolState, *, key: jax.Array, rounds: int
) -> tuple[ProtocolState, Observation]:
    """Run `protocol` and keep what `threat` grants of every round; all rounds are one compiled scan.

    An attacker runs a shadow of the protocol on its own data in this way. What the threat does not grant is never
    stacked, and a second call with the same protocol, threat and shapes compiles nothing.

    Args:
        protocol: the protocol to run.
        threat: says what is kept of every round.
        private: the whole set to run on.
        state: the state to start from, such as `protocol.init(init_key)`.
        key: random key of the rounds; it must differ from the key of the start. Round t draws its batch from
            `fold_in(key, t)`.
        rounds: number of rounds, > 0.

    Returns:
        The state after the last round, and an `Observation` whose leaves have a leading axis of rounds.

    Raises:
        FloatingPointError: if a round showed values that are not finite.
        ValueError: on a number of rounds that is not whole or < 1, or a private set that the protocol does not take,
            such as one with labels out of range, or one that is not finite.
    """
    _validate.count(rounds=rounds)
    _validate.granted_paths(**{"threat.payload": threat.payload})
    check_private(protocol, private)
    state, observations = _watch(protocol, threat, private, state, key, rounds)
    finite = np.asarray(_all_finite(observations))
    if not finite.all():
        raise FloatingPointError(f"round {int(np.argmin(finite))}: what the attacker sees is not finite")
    return state, observations


@jitted_for_few(0, 1, 5, kept=64)  # a study goes through the runs of a cell anew for every seed
def _watch(
    protocol: Protocol, threat: Threat, private: Batch, state: ProtocolState, key: jax.Array, rounds: int
) -> tuple[ProtocolState, Observation]:
    def one_round(carry: ProtocolState, _: None) -> tuple[ProtocolState, Observation]:
        carry, transcript = protocol.round(key, carry, private)
        return carry, view(threat, transcript)

    return jax.lax.scan(one_round, state, length=rounds)


@jax.jit
def _all_finite(observations: Observation) -> jax.Array:
    return jax.vmap(lambda shown: _tree.all_finite((shown.payload, shown.party, shown.label_holder)))(observations)


def replay(
    attack: Attack, observations: Observation, template: Batch, *, key: jax.Array
) -> tuple[PyTree, dict[str, jax.Array]]:
    """Show recorded rounds to an attack, in one compiled scan, so that several attacks can watch the very same run.

    Args:
        attack: the attack that watches.
        observations: from `watch`, with leaves that have a leading axis of rounds.
        template: shapes of the private set, from `template_of`; of arrays, only the shapes are read.
        key: the attack's randomness; the same key in `run` results in the same state.

    Returns:
        The attack's state after the last round, and its stacked infos.
    """
    state = attack.init(stream_of(key, Stream.ATTACK_START), template_of(template))
    return _replayed(attack)(state, observations, stream_of(key, Stream.ATTACK_STEPS))


@functools.lru_cache(maxsize=4)  # so that a second replay of the same attack compiles nothing
def _replayed(attack: Attack) -> Callable[..., tuple[PyTree, dict[str, jax.Array]]]:
    @jax.jit
    def replayed(state: PyTree, observations: Observation, key: jax.Array) -> tuple[PyTree, dict[str, jax.Array]]:
        def one_round(state: PyTree, observation: Observation) -> tuple[PyTree, dict[str, jax.Array]]:
            return step_of(attack, jax.random.fold_in(key, observation.round), state, observation)

        return jax.lax.scan(one_round, state, observations)

    return replayed
