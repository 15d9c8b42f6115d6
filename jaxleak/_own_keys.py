"""Random keys for what attackers draw themselves, which differ from every key of a victim.

Runs derive their keys from seeds by small numbers (`fold_in(key, 2)`), so an attacker that started from `key(0)` could
draw the very numbers that a victim of seed 0 drew.
"""

import enum

import jax

from jaxleak._random_streams import stream_of

#: A number that no run folds in: the letters "atck" as four bytes.
_ATTACKER = int.from_bytes(b"atck")


class Purpose(enum.IntEnum):
    """What an attacker draws random numbers for."""

    TRANSFORMS = 0  #: draws of a random defense, over which the candidate's payload is averaged
    MASKS = 1  #: payloads that a defense computes again, such as under masks of dropped features
    WEIGHTS = 2  #: weights that stand for those of the attacked model
    SHADOWS = 3  #: clients that the attacker makes up
    SAMPLES = 4  #: samples that the attacker makes up, and their labels


def own_key(purpose: Purpose) -> jax.Array:
    """The attacker's key () for a purpose; it is the same in every run, and no run derives it from its seed."""
    return stream_of(jax.random.fold_in(jax.random.key(0), _ATTACKER), purpose)
