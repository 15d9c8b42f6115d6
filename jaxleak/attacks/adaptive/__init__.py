"""What an attacker who knows a defense and its strength does with an update, with rounds or with a vertical run.

For an attack on one client's update, call `informed`. It takes the defense and what the client computes before it. It
gives the share that the attacker simulates, and the settings with which it attacks. `informed_rounds` is for the
aggregated gradients of many rounds. `informed_party` is for vertical training: it takes the defenses of the real run
and gives the protocol of the attacker's shadow run.

    defense = defenses.quantize(4)
    known = adaptive.informed(defense, model, share, presets.fedleak(800), batch_size=2)
    attack = attacks.inversion(model, known.share, known.settings, batch_size=2)

What is done to an update follows from the mechanism that the defense declares (`jaxleak.defenses.mechanisms`):

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

Labels are read by the rule that suits what the mechanism leaves of the last layer's gradient, if they are read by one.

Noise that is ordered like the gradient (`RankedNoise`) stands before the aggregated gradients of many rounds. There the
door is `informed_rounds`: from the defense, the split model and the plan to the attack on the rounds.

    known = adaptive.informed_rounds(defenses.fake_gradients(), model, plan, params=params)
    audit.run(known.attack, protocol, threats.FIRST_LAYER_ONLY, private, key=key, rounds=known.plan.rounds)

| mechanism `RankedNoise`                   | what the attacker does                                                |
|-------------------------------------------|-----------------------------------------------------------------------|
| small entries kept, unit 1 or each tensor | solves from the entries that arrived true (`attacks.cafe_censored`)   |
| small entries kept, one unit for all      | alternates between predictions and the order (`attacks.cafe_ordinal`) |
| none kept, unit of gradient or tensor     | the same, with the size of its own samples' gradients for the former  |

A likelihood is in nats, so priors that were weighed for another distance do not hold beside it. The variation prior of
photographs takes their place, unless `prior` or `weights` say otherwise; where a generator's latents have a prior, this
one, in nats, is all.

Gaussian noise without bias has the candidate's own gradient as its mean, so that expectation over transformations
changes nothing for it; there the likelihood of the noise is what knowledge buys. Whatever an attacker draws comes from
keys of its own, never from those of a client.
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

    share: Share  # what it takes for the client's share behind the defense
    settings: Settings  # how it compares


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
    """What an attacker who knows that the client has this defense, with this strength, runs.

    It is given nothing but that and the observation.

    Args:
        defense: as the client has it. Its mechanism is believed; `defenses.check_mechanism` compares one of your own
            with what the defense does.
        model: the model under attack.
        share: what the client computes before its defense.
        settings: settings of the attack that does not know.
        batch_size: B >= 1, the number of all images behind one payload, as `inversion` counts them.
        round: number >= 0 of the payload's round, for noise that decays.
        variables: variables of the model under attack, where `reads_weights` and they are not as drawn; None draws
            some.
        weights: weights >= 0 of priors by name, as of `Settings.weighing`, that hold beside a likelihood too, in nats;
            None leaves them to `prior`.
        prior: what stands beside a likelihood. "natural" is a quarter of the variation prior of photographs
            (`client_updates.natural_tv`). It shows more of photographs behind much noise (docs/defenses.md); images of
            more contrast, such as digits, may become flat there. "weak" is the variation of `presets.bayes`, next to
            none. No one strength suits all images, so report the attacker who sees more. None is "natural" for images
            and "weak" for tables, which are images of one row.

    Returns:
        An `Informed`.

    Raises:
        ValueError: on sizes out of range, a defense that declares no mechanism, orders noise like the gradient (see
            `informed_rounds`), is replayed and acts elsewhere than on the upload, or acts inside a step of a client
            that takes several, or settings that do not compare gradients where the attacker would compare them
            otherwise.
    """
    _validate.count(batch_size=batch_size)
    _validate.non_negative(round=round)
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
    """The label rule that suits what is left of the head's gradient; None where the defense does not harm it.

    The rules were chosen on 40 batches of digits, none of which is among those of the documentation's tables.
    """
    if mechanism.zeroes_head:
        return "joint"
    # Adam leaves little more than signs of the head's bias, whose entries are large, and noise in proportion has the
    # size of each. The many small entries of its kernel average such noise.
    if isinstance(mechanism.simulation, AdamStep) or isinstance(mechanism.noise, ProportionalNoise):
        return "corrected_counts"
    # Pruned or rounded tensor by tensor: of the bias, few entries or steps are left.
    by_tensor = isinstance(mechanism.simulation, Replayed) or isinstance(mechanism.noise, TensorNoise)
    return "averaged_counts" if by_tensor else None


def reads_weights(defense: Defense) -> bool:
    """Whether an attacker who knows this defense draws on the attacked model's weights, `informed`'s `variables`."""
    return defense.mechanism is not None and isinstance(defense.mechanism.noise, TensorNoise | PrivateNoise)


def reads_prior(defense: Defense) -> bool:
    """Whether an attacker who knows this defense compares by a likelihood, beside which `informed`'s `prior` stands."""
    return defense.mechanism is not None and isinstance(
        defense.mechanism.noise, GaussianNoise | LaplaceNoise | TensorNoise
    )


def _arrived(observed: PyTree, simulated: PyTree) -> PyTree:
    """The estimated mask of a defense that zeroes entries: those that arrived non-zero, the same in every iteration.

    Label rules need no such care where small entries are left out: the head's are among the largest, and a hole in them
    stands for a number near zero.
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
