"""What attacks a case: the attack that is built of its model, its client and its settings, and these in words."""

import functools
from dataclasses import replace
from typing import Any, cast

from jaxleak import attacks, defenses, models, protocols
from jaxleak._base import Attack, PyTree, Share
from jaxleak.attacks import adaptive, client_updates
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.study.updates._attacker import resolved
from jaxleak.study.updates._case import HELD_OUT, Case
from jaxleak.study.updates._client import client_of
from jaxleak.study.updates._described import described_settings
from jaxleak.study.updates._own_defense import kind_of_defense


def attack_of(
    case: Case,
    image_shape: tuple[int, ...],
    num_classes: int,
    generator: client_updates.PublicGenerator | None,
    variables: PyTree,
) -> Attack:
    """The attack of a case, as `attack_on` builds it; kept for all seeds unless the attacker reads `variables`."""
    case, known = _compiled(case), known_defense(case)
    if variables is not None and known is not None and adaptive.reads_weights(known):
        return attack_on(case, image_shape, num_classes, generator, variables)
    return _compiled_attack(case, image_shape, num_classes, generator)


def known_defense(case: Case) -> defenses.Defense | None:
    """The defense that the attacker knows, if there is one."""
    if not case.adaptive or case.defense is None:
        return None
    return defenses.client_defense(kind_of_defense(case.defense), case.strength)


def attack_on(
    case: Case,
    image_shape: tuple[int, ...],
    num_classes: int,
    generator: client_updates.PublicGenerator | None = None,
    variables: PyTree = None,
) -> Attack:
    """Build the attack of a case.

    Args:
        case: what is attacked, and with what.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
        generator: trained generator for attacks that need one.
        variables: weights under attack, which some attackers who know a defense read.

    Raises:
        ValueError: on settings, a model and a defense that do not go together.
    """
    if variables is None:
        model, share, settings = _drawn_parts(case, image_shape, num_classes, generator)
    else:
        model, share, settings = _parts_of_attack(case, image_shape, num_classes, generator, variables)
    if settings is None or not case.adaptive or case.defense is None:
        return resolved(case, generator).build(model, cast(protocols.ClientShare, share))
    return attacks.inversion(model, share, settings, batch_size=case.images)


def _parts_of_attack(
    case: Case,
    image_shape: tuple[int, ...],
    num_classes: int,
    generator: client_updates.PublicGenerator | None = None,
    variables: PyTree = None,
) -> tuple[models.Classifier, Share, attacks.Settings | None]:
    """The model, what the attacker takes for the client's share, and its settings; arguments as in `attack_on`."""
    # The client is built without its defense: only `adaptive.informed` may know of it.
    model, share, _ = client_of(replace(case, defense=None, strength=0.0), image_shape, num_classes)
    shown = protocols.averaged_share(share) if case.estimate else share
    if not case.adaptive or case.defense is None:
        return model, shown, resolved(case, generator).iterative
    chosen = {"tv": case.tv, "activation": case.activation_penalty}
    known = adaptive.informed(
        defenses.client_defense(kind_of_defense(case.defense), case.strength, local_steps=shown.total_steps),
        model,
        shown,
        resolved(case, generator).settings,
        batch_size=case.images,
        round=case.attacked_round,
        variables=variables,
        weights={name: weight for name, weight in chosen.items() if weight is not None},
        prior=case.prior,
    )
    adapted = known.settings
    if case.labels is not None:  # the case's label rule has precedence over the one that the defense suggests
        adapted = adapted._replace(labels=case.labels)
    return model, known.share, adapted


# What an attacker knows of a private defense is measured, which takes seconds; attack and description share it.
_drawn_parts = functools.lru_cache(maxsize=32)(_parts_of_attack)
# A generator has its trained weights; those of seeds that are done with are let go.
_compiled_attack = functools.lru_cache(maxsize=32)(attack_on)


@functools.lru_cache(maxsize=32)
def settings_as_run(case: Case, image_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """What the attack of a case runs with, in words and numbers that JSON can keep; what a preset leaves to the model
    or to the defense is resolved.

    Weights have no unit: they multiply a term of the objective. An attacker who knows a defense by the weights of the
    model is described for weights that it draws. A trained generator is described as it is before its training.

    Args:
        case: what is attacked, and with what.
        image_shape: (H, W, channels).
        num_classes: C >= 2.

    Raises:
        ValueError: on settings, a model and a defense that do not go together.
    """
    model, share, settings = _drawn_parts(_compiled(case), image_shape, num_classes, None)
    return described_settings(case, settings, Setup(model, share, case.images))


def _compiled(case: Case) -> Case:
    # Options that the attack's program does not depend on are reset, so that equal programs are compiled once.
    if not case.adaptive:
        case = replace(case, defense=None, strength=0.0, attacked_round=0)  # the attacker does not know it
    return replace(
        case,
        weights=case.weights if case.own_model else None,  # constants of one's own network
        restarts=1,
        microbatch=None,
        data="natural_patches",
        pool=case.images,
        skip=0,
        partition="iid",
        federation=100,
        public_data=HELD_OUT,
    )
