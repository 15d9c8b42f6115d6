"""Building a case's attack from the model, the client and the settings, and describing the settings in words."""

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
    """Build a case's attack as `attack_on` does; all seeds share it unless the attacker reads `variables`."""
    case, known = _compiled(case), known_defense(case)
    if variables is not None and known is not None and adaptive.reads_weights(known):
        return attack_on(case, image_shape, num_classes, generator, variables)
    return _compiled_attack(case, image_shape, num_classes, generator)


def known_defense(case: Case) -> defenses.Defense | None:
    """Return the defense that the attacker knows, or None."""
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
        case: the case, which says what is attacked and with which attack.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
        generator: trained generator for attacks that need one.
        variables: weights under attack; some attackers who know a defense read them.

    Raises:
        ValueError: if settings, model and defense do not go together.
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
    """Return the model, the attacker's simulation of the client, and the settings; arguments as in `attack_on`."""
    # The client is built without its defense: only `adaptive.informed` may know the defense.
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


# The attacker's knowledge of a private defense is measured, which takes seconds; attack and description share it.
_drawn_parts = functools.lru_cache(maxsize=32)(_parts_of_attack)
# A cached attack holds its generator's trained weights, so the cache is bounded to forget those of finished seeds.
_compiled_attack = functools.lru_cache(maxsize=32)(attack_on)


@functools.lru_cache(maxsize=32)
def settings_as_run(case: Case, image_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """Describe the settings with which a case's attack runs, in words and numbers that JSON can keep.

    Settings that a preset leaves to the model or to the defense are resolved. Weights have no unit: they multiply a
    term of the objective. If the attacker's knowledge of a defense depends on the model's weights, it is described for
    drawn weights. A trained generator is described as it is before its training.

    Args:
        case: the case, which says what is attacked and with which attack.
        image_shape: (H, W, channels).
        num_classes: C >= 2.

    Raises:
        ValueError: if settings, model and defense do not go together.
    """
    model, share, settings = _drawn_parts(_compiled(case), image_shape, num_classes, None)
    return described_settings(case, settings, Setup(model, share, case.images))


def _compiled(case: Case) -> Case:
    # Options on which the attack's program does not depend are reset, so that equal programs are compiled once.
    if not case.adaptive:
        case = replace(case, defense=None, strength=0.0, attacked_round=0)  # the attacker does not know it
    return replace(
        case,
        weights=case.weights if case.own_model else None,  # they give the constants of a user's own network
        restarts=1,
        microbatch=None,
        data="natural_patches",
        pool=case.images,
        skip=0,
        partition="iid",
        federation=100,
        public_data=HELD_OUT,
    )
