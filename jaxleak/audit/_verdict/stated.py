"""What a client says of itself, in the forms that an audit needs: its update, its network, its defense."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxleak import capture
from jaxleak._base import PyTree
from jaxleak._own_files import is_own
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER
from jaxleak.capture._facts import check_loss
from jaxleak.capture._names import matching
from jaxleak.capture._update import per_weight
from jaxleak.defenses import CLIENT_DEFENSES, Defense, client_defense
from jaxleak.models import Classifier, freeze
from jaxleak.protocols import ClientShare

#: What a client states if no attacker here knows its defense.
OTHER_DEFENSE = "other"
#: What a client states if its loss is no cross-entropy, and if it is a binary cross-entropy of each output.
OTHER_LOSS, BINARY_LOSS = "other", "binary_cross_entropy"


def sent_update(update: Any, facts: capture.FactOptions) -> capture.Update:
    """The update with all that is known of its client; `facts` that are not None override those of the file.

    Raises:
        ValueError: on facts that are unknown, out of range, missing, or such that no audit takes them.
        FileNotFoundError: if the update is a path and there is no such file.
    """
    if isinstance(update, str | Path):
        update = capture.load(update)
    if not isinstance(update, capture.Update):
        of_module = capture.FactOptions()
        if facts.get("kind") is not None:
            of_module["kind"] = facts["kind"]
        if facts.get("batch_norm") is not None:
            of_module["batch_norm"] = facts["batch_norm"]
        update = capture.as_update(update, **of_module)
    unknown = sorted(facts.keys() - {field.name for field in dataclasses.fields(capture.Facts)})
    if unknown:
        raise ValueError(f"{unknown[0]} is not a fact about a client; see capture.Facts")
    known = dataclasses.replace(update.facts, **{name: fact for name, fact in facts.items() if fact is not None})
    for name in ("strength", "clip", "noise_multiplier"):
        value = getattr(known, name)
        if value is not None and not is_defended(known):
            raise ValueError(f"{name} must be given with the defense that it is of, got {value:g} alone")
    if known.batch_size is None:
        raise ValueError(
            "batch_size must be given (--batch-size): the update does not say how many samples are behind it"
        )
    check_loss(known.loss)
    update = update._replace(facts=known)
    if known.kind != "gradient":
        per_weight(update)  # raises now: later, an error of `gradient_of` is taken for a mistake in the arrays
    elif known.learning_rate is None and (known.local_steps or 1) * (known.local_epochs or 1) > 1:
        raise ValueError(
            f"{update.source}: learning_rate must be given: a client of several steps moves its weights by it between "
            "them, which an audit simulates (--learning-rate)"
        )
    return update


def options_stated(known: capture.Facts) -> tuple[str, ...]:
    """The general options that are stated already, so that no finding need advise them."""
    stated = ((known.loss == OTHER_LOSS, LOSS_OTHER), (known.defense == OTHER_DEFENSE, DEFENSE_OTHER))
    return tuple(option for given, option in stated if given)


def parts_of_a_sum(known: capture.Facts) -> int:
    """The stated loss over the mean loss, in every step: B if the client sums over the batch, and 1 for a mean."""
    assert known.batch_size is not None
    return known.batch_size if known.reduction == "sum" else 1


def stated_client(known: capture.Facts, model: Classifier) -> ClientShare:
    """What the client computes, as a client of the mean loss, since attacks and checks simulate this loss.

    A step on a sum over the batch is B times as long as one on the mean, so that the learning rate is B times as large.

    Raises:
        ValueError: if the client had layers in evaluation mode that the model has in training mode.
    """
    stated = known.eval_layers or ()
    if known.batch_norm != "eval" and not all(_within(layer, model.eval_layers) for layer in stated):
        raise ValueError(
            f"eval_layers: the client had {', '.join(stated)} in evaluation mode while other layers trained, and the "
            f"model has not: make it with from_torch(net, ..., eval_layers={list(stated)!r})"
        )
    # One step gives its gradient whatever the learning rate; `sent_update` has refused several without one.
    rate = 1e-4 if known.learning_rate is None else known.learning_rate * parts_of_a_sum(known)
    return ClientShare(
        model, local_steps=known.local_steps or 1, local_epochs=known.local_epochs or 1, learning_rate=rate,
        momentum=known.momentum or 0.0, batch_norm=known.batch_norm or "train",  # type: ignore[arg-type]
    )  # fmt: skip


def _within(layer: str, parts: tuple[str, ...]) -> bool:
    """Whether a layer is one of these parts of a module or lies in one, whatever wraps the client's module."""
    layer, *others = (name.removeprefix("module.").removeprefix("_orig_mod.") for name in (layer, *parts))
    return any(f"{layer}.".startswith(f"{part}.") for part in others)


def trained_part(model: Classifier, variables: PyTree, frozen: tuple[str, ...] | None) -> tuple[Classifier, PyTree]:
    """The network and its weights, with the parameters that the client did not train as constants.

    Raises:
        ValueError: naming a layer that the network does not have, or if nothing is left.
    """
    if not frozen:
        return model, variables
    names = matching(frozen, list(named_leaves(variables["params"])), what="frozen")
    return freeze(model, variables, names)


def stated_defense(known: capture.Facts, share: ClientShare) -> Defense | None:
    """The defense that the client states, or None where it has none or says only that it has one.

    Raises:
        ValueError: on a defense that no attacker knows, without a strength, or that such a client cannot have.
    """
    if not is_defended(known) or known.defense == OTHER_DEFENSE:
        return None
    if known.defense is not None and is_own(known.defense):
        raise ValueError(
            f"defense is stated as the function {known.defense}, and a name that is only stated runs no code: give the "
            f"command --defense {known.defense} --strength S, or in Python pass what the function makes, as own_defense"
        )
    kinds = ", ".join(CLIENT_DEFENSES)
    if known.defense not in CLIENT_DEFENSES:
        raise ValueError(
            f"defense must be one that an attacker can know ({kinds}), none, {OTHER_DEFENSE} for any other, or one of "
            f"your own (own_defense=..., --defense FILE.py:NAME); got {known.defense!r}"
        )
    return client_defense(
        known.defense, _strength(known), clip=known.clip, noise_multiplier=known.noise_multiplier,
        local_steps=share.total_steps, mixes_examples=share.model.mixes_images(share.batch_norm), claims_epsilon=False,
    )  # fmt: skip


def _strength(known: capture.Facts) -> float | None:
    """The stated strength; for a step of Adam this is the learning rate, which may be stated in its place."""
    assert known.defense is not None
    if not CLIENT_DEFENSES[known.defense].of_rate:
        return known.strength
    if known.reduction == "sum":
        raise ValueError(f"reduction must be mean with {known.defense}, got sum: a step of Adam has no scale to divide")
    if None not in (known.strength, known.learning_rate) and known.strength != known.learning_rate:
        raise ValueError(
            f"strength of {known.defense} is its learning rate (--learning-rate), so the two must be equal, got "
            f"{known.strength:g} and {known.learning_rate:g}"
        )
    return known.learning_rate if known.strength is None else known.strength


def is_defended(known: capture.Facts) -> bool:
    """Whether the client states a defense of any kind."""
    return known.defense not in (None, "none")


def threat_of(known: capture.Facts, samples: int) -> str:
    """What the attacker is granted, in a sentence."""
    defended = f", the defense ({known.defense}) and its strength" if is_defended(known) else ""
    but = ", but for its loss" if known.loss == OTHER_LOSS else ""
    return (
        f"The attacker knows the network and its weights, one update of {samples} "
        f"sample{'s' if samples > 1 else ''}, and how the client computed it{but}{defended}; "
        "it knows no image and no label."
    )
