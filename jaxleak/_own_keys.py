"""Keys of what attackers draw for themselves, apart from every key of a victim.

Runs derive their keys from seeds by small numbers (`fold_in(key, 2)`), so an attacker that started from `key(0)` could
draw the very numbers that a victim of seed 0 drew.
"""

import jax

#: No run folds this number in: the letters "atck" as four bytes.
_ATTACKER = int.from_bytes(b"atck")

#: Draws of a random defense, which the candidate's payload is averaged over.
TRANSFORMS = 0
#: Masks of dropped features.
MASKS = 1
#: Weights that stand for those of the attacked model.
WEIGHTS = 2
#: Clients that the attacker makes up.
SHADOWS = 3
#: Samples that the attacker makes up, and their labels.
SAMPLES = 4


def own_key(purpose: int) -> jax.Array:
    """The attacker's key for one of the purposes above, the same in every run."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), _ATTACKER), purpose)
