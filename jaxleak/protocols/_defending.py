"""The functions with which all protocols check and apply their defenses."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Loss, PyTree
from jaxleak.defenses import Defense
from jaxleak.defenses._base import one_defense
from jaxleak.defenses._representation import check_mean


def check_defense(
    defense: Defense | None,
    places: Collection[str],
    *,
    num_classes: int,
    local_steps: int = 1,
    inside: bool = True,
    mixes_examples: bool = False,
    loss: Loss | None = None,
) -> None:
    """Refuse a defense that the protocol has no place for.

    Args:
        defense: the protocol's defense, or None.
        places: the places that the protocol has.
        num_classes: C of the model.
        local_steps: E, the local steps of a client.
        inside: whether the protocol can apply a defense of single examples inside each of several local steps.
        mixes_examples: whether the model has batch normalisation in training mode.
        loss: the client's loss, which must be a mean over the batch for a defense of single examples; None skips this
            check.

    Raises:
        ValueError: if `defense` is not a `Defense`, or naming the place, the number of classes, the number of steps or
            the loss that the defense needs.
    """
    if defense is None:
        return
    one_defense(defense=defense)
    _validate.one_of(tuple(places), place=defense.place)
    if defense.num_classes not in (None, num_classes):
        raise ValueError(
            f"num_classes of a defense must be that of the model, {num_classes}, got {defense.num_classes}"
        )
    by_example = defense.place == "per_example_gradient"
    if local_steps > 1 and (defense.one_step or (by_example and not inside)):
        raise ValueError(f"this defense acts inside a step: needs one local step in all, got {local_steps}")
    if by_example and mixes_examples:
        raise ValueError(
            "batch normalisation mixes examples, and a defense acts on each: take batch_norm='eval', and layers that "
            "keep running statistics"
        )
    if by_example and loss is not None:
        check_mean(loss, num_classes)


def acts_at(defense: Defense | None, *places: str) -> bool:
    """Whether the defense acts at one of these places."""
    return defense is not None and defense.place in places


def defended(
    defense: Defense | None, place: str, key: jax.Array, value: PyTree, state: PyTree = None, **known: object
) -> tuple[PyTree, PyTree]:
    """The defended value at `place`, and the defense's new state; both unchanged if the defense acts elsewhere.

    Args:
        defense: the protocol's defense, or None.
        place: one of `HORIZONTAL_PLACES` or `SPLIT_PLACES`.
        key: random key of this round and place.
        value: the value at that place, see `Defense`.
        state: state of the defense from the rounds before; None or () if no state is kept.
        known: what the defender knows besides, by name.

    Raises:
        ValueError: if the defense has a state but none is given.
    """
    if defense is None or defense.place != place:
        return value, state
    if not jax.tree.leaves(state):
        if jax.tree.leaves(jax.eval_shape(defense.init, value)):
            raise ValueError(
                f"this defense remembers earlier rounds, and no state of it is kept here, at {place}: it needs "
                "protocols.client, vertical or horizontal from the state that init gives, or federated_averaging at "
                "payload or representation"
            )
        return defense.apply(key, value, **known), state
    return defense.update(key, value, state, **known)


def memory(defense: Defense | None, params: PyTree, *leading: int) -> PyTree:
    """The state of a defense before the first round, or () if it keeps no state.

    Args:
        defense: the protocol's defense, or None.
        params: a tree with the shapes of one client's payload.
        leading: sizes of the leading axes, of examples or of clients, that values at the defense's place have.
    """
    if defense is None:
        return ()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), params)
    if not jax.tree.leaves(jax.eval_shape(defense.init, shapes)):
        return ()
    return defense.init(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))


def mean_of_examples(gradients: PyTree) -> PyTree:
    """The gradient of a batch from the gradients of its examples, which have a leading axis B."""
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), gradients)


def defended_upload(
    defense: Defense | None,
    key: jax.Array,
    payload: PyTree,
    state: PyTree = None,
    *,
    round: jax.Array,
    **client: object,
) -> tuple[PyTree, PyTree]:
    """One client's upload behind a defense at "payload" or "representation", and the defense's state after it.

    Args:
        defense: the protocol's defense, or None.
        key: random key of this round and client.
        payload: what the client would upload.
        state: see `defended`.
        round: () int32.
        client: the client's model, variables, x, y, mode and loss, for a defense at "representation".
    """
    payload, state = defended(defense, "payload", key, payload, state, round=round)
    return defended(defense, "representation", key, payload, state, round=round, **client)
