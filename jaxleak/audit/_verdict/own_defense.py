"""A user's own defense in an audit: whether the client can have it, and what its attacker can believe about it."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import PyTree
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks.adaptive._client import require_known
from jaxleak.audit._verdict.stated import OTHER_DEFENSE, stated_defense
from jaxleak.capture import FactOptions, Facts
from jaxleak.defenses import CLIENT_DEFENSES, ClientDefense, Defense, check_mechanism, client_defense
from jaxleak.defenses._base import HORIZONTAL_PLACES, one_defense
from jaxleak.defenses._representation import OfClient
from jaxleak.protocols import ClientShare

#: Name in the facts for a defense that a program has passed without a name.
UNNAMED = "own"


def with_own_defense(defense: Defense | None, facts: FactOptions) -> FactOptions:
    """The facts, with a name for a user's own defense if there is one.

    Raises:
        ValueError: if it is no `Defense`, or another defense is stated beside it.
    """
    if defense is None:
        return facts
    one_defense(own_defense=defense)
    name = facts.get("defense") or UNNAMED
    if name in ("none", OTHER_DEFENSE, *CLIENT_DEFENSES):
        raise ValueError(f"own_defense is given and defense is {name!r}: state one of them")
    for beside in ("clip", "noise_multiplier"):
        if facts.get(beside) is not None:
            raise ValueError(f"{beside} must be part of own_defense, got {facts[beside]:g} beside it")
    return facts | FactOptions(defense=name)


def known_defense(
    own: Defense | None, known: Facts, share: ClientShare, variables: PyTree
) -> tuple[Defense | None, list[str]]:
    """The defense that an attacker knows, and a sentence on the mechanism that a user's own defense declares.

    Args:
        own: as `audit.update` takes it; None takes what the facts state (`stated_defense`).
        known: the facts of the client, with the defense's name.
        share: what the client computes before its defense.
        variables: weights of the network; the defense is tried on random numbers of their shapes.

    Raises:
        ValueError: as `stated_defense`; if such a client does not have the defense's place or number of steps; if the
            mechanism is missing, if no attacker of one update can know it, or if the defense contradicts it; or if the
            defense fails on such an update.
    """
    if own is None:
        return stated_defense(known, share), []
    _require_known(own, share)
    with _failing_by_name():
        compared = check_mechanism(own, _normal(variables["params"]), key=jax.random.key(0))
    knows = f"The attacker who knows the defense ({known.defense})"
    if compared.blind:
        return own, [
            f"{knows} runs it on candidates of its own and learns next to nothing: {compared.blind}. That this "
            "attacker finds little says nothing about the defense."
        ]
    believes = f"{knows} believes the mechanism that it declares"
    if compared:
        return own, [f"{believes}, which was compared with what the defense does to random numbers."]
    return own, [
        f"{believes}, not all of which could be compared: {compared.uncompared}. If it is wrong, more may leak than is "
        "found."
    ]


def _require_known(defense: Defense, share: ClientShare) -> None:
    """Refuse a defense that such a client cannot have, or that no attacker of its update can know."""
    if defense.place not in HORIZONTAL_PLACES:
        raise ValueError(f"own_defense must act at one of {', '.join(HORIZONTAL_PLACES)}, got {defense.place}")
    kind = ClientDefense(lambda _: defense, (), "strength")
    client_defense(
        kind, 1.0, local_steps=share.total_steps, mixes_examples=share.model.mixes_images(share.batch_norm),
        claims_epsilon=False,
    )  # fmt: skip
    if defense.mechanism is None:
        raise ValueError(
            "own_defense must declare its mechanism, which its attacker reads. State one that declares none as "
            f"defense={OTHER_DEFENSE!r} (--defense {OTHER_DEFENSE}): the update is then attacked as if it had none"
        )
    require_known(defense, share)


def identity_of(defense: Defense | None, share: ClientShare, variables: PyTree) -> dict[str, dict[str, list[str]]]:
    """What tells a user's own defense from other defenses: its output for fixed numbers in the place of an update.

    For every leaf these are the norms of what is sent and of what the defense has changed. They have three digits, so
    that a machine with another number of cores, which rounds in another order, can go on with the same audit.

    Raises:
        ValueError: if the defense fails on such an update.
    """
    if defense is None:
        return {}
    numbers = _normal(variables["params"])
    extra: dict[str, Any] = {}
    if defense.place in ("per_example_gradient", "client_payloads"):
        numbers = jax.tree.map(lambda leaf: np.stack([leaf, leaf[..., ::-1]]), numbers)
    if defense.place == "representation":
        x = jnp.linspace(0, 1, 2 * math.prod(share.model.image_shape)).reshape(2, *share.model.image_shape)
        mode, loss = share.batch_norm, share.loss
        extra = dict(OfClient(model=share.model, variables=variables, x=x, y=jnp.arange(2), mode=mode, loss=loss))
    with _failing_by_name():
        defended = defense.apply(jax.random.key(0), numbers, **extra, round=0)
    sent, own = named_leaves(defended), named_leaves(numbers)
    return {"defense": {name: [f"{norm(part):.3g}" for part in (sent[name], sent[name] - own[name])] for name in own}}


@contextlib.contextmanager
def _failing_by_name() -> Iterator[None]:
    """Turn errors of a user's own code into a `ValueError` that says what it failed on."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"own_defense fails on an update of this network: {error!r}") from error


def _normal(tree: PyTree) -> PyTree:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.standard_normal(np.shape(leaf)).astype(np.float32), tree)
