"""Attackers who know a defense and its strength, against one update, many rounds or a vertical run.

For an attack on one client's update, call `informed`. It takes the defense and the share that the client computes
before it. It returns the share that the attacker simulates, and the settings of the attack. `informed_rounds` is for
the aggregated gradients of many rounds. `informed_party` is for vertical training: it takes the defenses of the real
run and returns the protocol of the attacker's shadow run.

    defense = defenses.quantize(4)
    known = adaptive.informed(defense, model, share, presets.fedleak(800), batch_size=2)
    attack = attacks.inversion(model, known.share, known.settings, batch_size=2)

The mechanism that the defense declares (`jaxleak.defenses.mechanisms`) determines what the attacker does:

| mechanism                       | what the attacker does                                                          |
|---------------------------------|---------------------------------------------------------------------------------|
| `Replayed`                      | runs the defense on the candidate's payload, with the derivative straight       |
|                                 | through; averages draws of its own if the defense is random                     |
| `Recomputed`                    | averages the candidate's gradient over draws of its own                         |
| `Clipped`                       | clips the candidate's payload or its examples' gradients as the client does     |
| `AdamStep`                      | computes the gradient from the step, between the bounds that rounding leaves    |
| `GaussianNoise`, `LaplaceNoise` | compares by the likelihood of the noise                                         |
| `ProportionalNoise`             | the same, with the variance that an observed entry tells                        |
| `TensorNoise`                   | the same tensor by tensor, on the entries that are not noise alone              |
| `PrivateNoise`                  | weighs tensors by signal and noise, as measured on clients that it makes up     |
| `zeroes`                        | compares the entries that did not arrive as zero                                |
| `zeroes_head`                   | optimises the labels too, since label rules read what was left out              |

If the settings infer labels by a rule, the attacker takes the rule that suits what the mechanism leaves of the last
layer's gradient.

Noise that is ordered like the gradient (`RankedNoise`) defends the aggregated gradients of many rounds. Against it,
call `informed_rounds`, which takes the defense, the split model and the plan, and returns the attack on the rounds.

    known = adaptive.informed_rounds(defenses.fake_gradients(), model, plan, params=params)
    audit.run(known.attack, protocol, threats.FIRST_LAYER_ONLY, private, key=key, rounds=known.plan.rounds)

| mechanism `RankedNoise`                   | what the attacker does                                                |
|-------------------------------------------|-----------------------------------------------------------------------|
| small entries kept, unit 1 or each tensor | solves from the entries that arrived true (`attacks.cafe_censored`)   |
| small entries kept, one unit for all      | alternates between predictions and the order (`attacks.cafe_ordinal`) |
| none kept, unit of gradient or tensor     | the same, with the size of its own samples' gradients for the former  |

A likelihood is in nats, so the weights that priors had beside another distance no longer fit. The variation prior of
photographs replaces them, unless `prior` or `weights` say otherwise. If a generator's latents have a prior, that prior,
in nats, is the only one.

Unbiased Gaussian noise leaves the candidate's own gradient as the mean. Averaging over the attacker's own draws would
therefore change nothing, and knowing the noise helps only through its likelihood. Everything random that an attacker
draws comes from its own keys, never from a client's.
"""

from collections.abc import Mapping
from typing import NamedTuple, get_args

import jax

from jaxleak import _validate, objectives
from jaxleak._base import PyTree, Share
from jaxleak.attacks._inversion.label_rules import LABEL_RULES
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks.adaptive._adam import undone_by
from jaxleak.attacks.adaptive._client import KnownClient, PriorName, require_known
from jaxleak.attacks.adaptive._likelihood import comparing
from jaxleak.attacks.adaptive._party import informed_party
from jaxleak.attacks.adaptive._rounds import InformedRounds, RoundsAttack, informed_rounds, rounds_attack
from jaxleak.attacks.adaptive._simulation import simulated
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import (
    AdamStep,
    GaussianNoise,
    LaplaceNoise,
    Mechanism,
    PrivateNoise,
    ProportionalNoise,
    Replayed,
    TensorNoise,
)
from jaxleak.models import Classifier


class Informed(NamedTuple):
    """What an attacker who knows the defense runs: `attacks.inversion(model, share, settings, batch_size=B)`."""

    share: Share  # the attacker's simulation of the client's share behind the defense
    settings: Settings  # how the attack compares gradients


def informed(
    defense: Defense,
    model: Classifier,
    share: Share,
    settings: Settings,
    *,
    batch_size: int,
    round: int = 0,
    variables: PyTree = None,
    weights: Mapping[str, float] | None = None,
    prior: PriorName | None = None,
) -> Informed:
    """The attack of someone who knows the client's defense and its strength.

    Beyond that the attacker has only the observation.

    Args:
        defense: the client's defense. The mechanism that it declares is believed without a check; use
            `defenses.check_mechanism` to compare the mechanism of your own defense with what the defense does.
        model: the model under attack.
        share: what the client computes before its defense.
        settings: settings of the attack without knowledge of the defense. A label rule of theirs is replaced if another
            one suits what the defense leaves of the last layer's gradient.
        batch_size: B >= 1, the number of all images behind one payload, counted as by `inversion`.
        round: number >= 0 of the payload's round, for noise that decays.
        variables: variables of the model under attack. Only defenses with `reads_weights` need them; None draws random
            ones, as of an untrained model.
        weights: weights >= 0 of priors by name, as for `Settings.weighing`, which also apply beside a likelihood, in
            nats; None leaves the choice to `prior`.
        prior: the image prior beside a likelihood. "natural" is a quarter of the variation prior of photographs
            (`client_updates.natural_tv`). It reveals more of photographs behind strong noise (docs/defenses.md), but
            may flatten images of higher contrast, such as digits. "weak" is the variation of `presets.bayes`, which is
            almost no prior. No single strength suits all images, so report the attacker that reconstructs more. None is
            "natural" for images and "weak" for tables, which are images of one row.

    Returns:
        An `Informed`.

    Raises:
        ValueError: on sizes out of range, or settings that do not compare gradients although the attacker has to change
            that comparison. Also on a defense that declares no mechanism, orders noise like the gradient (see
            `informed_rounds`), is `Replayed` but does not act on the upload, or acts inside a step of a client with
            several steps.
    """
    _validate.count(batch_size=batch_size)
    _validate.count_or_zero(round=round)
    require_known(defense, share)
    mechanism = defense.mechanism
    assert mechanism is not None
    if prior is None:
        prior = "natural" if min(model.image_shape[:2]) > 1 else "weak"
    _validate.one_of(get_args(PriorName), prior=prior)
    client = KnownClient(defense, model, share, batch_size, round, variables, prior == "natural")
    known = comparing(mechanism.noise, client, settings)
    if weights:
        own = settings.weighing(**weights)
        known = known.weighing(*(chosen for _, chosen in own.priors if chosen.name in weights), **weights)
    if (undone := undone_by(defense)) is not None:
        known = known.comparing(undone=undone)
    if mechanism.zeroes:
        known = known.comparing(selection=_arrived, arrived=_arrived)
    if known.labels in LABEL_RULES:
        known = known._replace(labels=_label_rule(mechanism) or known.labels)
    return Informed(simulated(mechanism.simulation, client), known)


def _label_rule(mechanism: Mechanism) -> str | None:
    """The label rule that suits what the defense leaves of the head's gradient; None keeps the rule of the settings.

    The rules were chosen on 40 batches of digits. None of these batches appears in the documentation's tables.
    """
    if mechanism.zeroes_head:
        return "joint"
    # Adam leaves little more than the signs of the head's bias, whose entries are large. Proportional noise is as large
    # as each entry. The kernel has many small entries, over which such noise averages out.
    if isinstance(mechanism.simulation, AdamStep) or isinstance(mechanism.noise, ProportionalNoise):
        return "corrected_counts"
    # A defense that prunes or rounds tensor by tensor leaves few entries or few distinct values of the bias.
    by_tensor = isinstance(mechanism.simulation, Replayed) or isinstance(mechanism.noise, TensorNoise)
    return "averaged_counts" if by_tensor else None


def reads_weights(defense: Defense) -> bool:
    """Whether an attacker who knows this defense uses the attacked model's weights (`variables` of `informed`)."""
    return defense.mechanism is not None and isinstance(defense.mechanism.noise, TensorNoise | PrivateNoise)


def reads_prior(defense: Defense) -> bool:
    """Whether an attacker who knows this defense compares by a likelihood, so that `prior` of `informed` applies."""
    return defense.mechanism is not None and isinstance(
        defense.mechanism.noise, GaussianNoise | LaplaceNoise | TensorNoise
    )


def _arrived(observed: PyTree, simulated: PyTree) -> PyTree:
    """The mask of entries that arrived non-zero, which estimates what the defense kept; it never changes.

    Label rules need no mask if the defense leaves out small entries: the head's entries are among the largest, and a
    missing one was close to zero.
    """
    mask = jax.tree.map(lambda leaf: (leaf != 0).astype(leaf.dtype), observed)
    return objectives.fixed_share(mask)(observed, simulated)


__all__ = [
    "Informed",
    "InformedRounds",
    "RoundsAttack",
    "informed",
    "informed_party",
    "informed_rounds",
    "reads_prior",
    "reads_weights",
    "rounds_attack",
]
