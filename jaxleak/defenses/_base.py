"""The contract of a defense: an optax transform of the payload that takes a fresh key every round."""

from typing import NamedTuple

import jax
import optax

from jaxleak._base import PyTree

#: Where a defense may act in split vertical training, all of them at the label holder: the top's output before the
#: loss, the loss gradient at that output, and the tuple of gradients (one (B, e) per party) that leave for the bottoms.
SPLIT_PLACES = ("top_output", "top_output_gradient", "cut_gradient")


class Defense(NamedTuple):
    """What a defense is: where it acts, and the transform.

    place: "payload", the only place CAFE's defenses need: each party's gradient before it is uploaded; or one of
        `SPLIT_PLACES` in split vertical training. A protocol refuses a defense whose place it does not have.
    transform: an `optax.GradientTransformationExtraArgs` whose `update` takes the keyword `key`.
    """

    place: str
    transform: optax.GradientTransformationExtraArgs

    def apply(self, key: jax.Array, payload: PyTree, **extra: object) -> PyTree:
        """Transform one round's payload; `key` must be new every round. The clients keep no state between rounds.

        `extra` reaches the transform as keywords: whatever the defender knows besides, e.g. `labels`.
        """
        updates, _ = self.transform.update(payload, self.transform.init(payload), None, key=key, **extra)
        return updates


def chain(*defenses: Defense) -> Defense:
    """Apply defenses one after the other, each with a key of its own.

    `optax.chain` would hand the same key to every member: two members' noises would be the same noise.

    Raises:
        ValueError: if the members act at different places, or there is none.
    """
    places = {defense.place for defense in defenses}
    if len(places) != 1:
        raise ValueError(f"chain needs defenses that act at one place, got {sorted(places) or 'no defense'}")

    def init(params: PyTree) -> tuple:
        return tuple(defense.transform.init(params) for defense in defenses)

    def update(
        updates: PyTree, state: tuple, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, tuple]:
        new = []
        for member, (defense, member_state) in enumerate(zip(defenses, state, strict=True)):
            updates, member_state = defense.transform.update(
                updates, member_state, params, key=jax.random.fold_in(key, member), **extra
            )
            new.append(member_state)
        return updates, tuple(new)

    return Defense(places.pop(), optax.GradientTransformationExtraArgs(init, update))
