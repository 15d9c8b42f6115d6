"""The defended client as the attacker knows it."""

from typing import Literal, NamedTuple, TypeAlias

from jaxleak._base import PyTree, Share, total_steps
from jaxleak.defenses import Defense
from jaxleak.defenses._base import one_defense
from jaxleak.defenses.mechanisms import RankedNoise, Replayed
from jaxleak.models import Classifier

#: Image priors beside a likelihood: a share of the variation prior of photographs, or almost none.
PriorName: TypeAlias = Literal["natural", "weak"]


class KnownClient(NamedTuple):
    """What an attacker who knows the defense knows of the client; nothing in it is private."""

    defense: Defense
    model: Classifier
    share: Share  # what the client computes before its defense
    batch_size: int  # images behind the payload
    round: int = 0
    variables: PyTree = None  # variables of the attacked model; None where the attacker draws its own
    natural: bool = False  # whether the prior beside a likelihood is that of photographs


def require_known(defense: Defense, share: Share) -> None:
    """Raise `ValueError` unless an attacker of one client's update can know this defense.

    Args:
        defense: as the client has it.
        share: what the client computes before its defense.
    """
    one_defense(defense=defense)
    mechanism = defense.mechanism
    if mechanism is None:
        raise ValueError(
            f"defense must declare its mechanism, since no attacker of a client's update is known otherwise; this one, "
            f"at {defense.place}, declares none: give the defense mechanism=, one of defenses.mechanisms. Chains of "
            "several defenses and defenses of vertical training have no mechanism"
        )
    if isinstance(mechanism.simulation, Replayed) and defense.place != "payload":
        raise ValueError(
            f"Replayed() runs a defense on the whole upload, so its place must be payload, got {defense.place}; "
            "declare another mechanism, or attack with a share of your own (TransformedShare)"
        )
    if isinstance(mechanism.noise, RankedNoise):
        raise ValueError(
            "noise that is ordered like the gradient is attacked over many rounds (`informed_rounds`); no attacker of "
            "one client's update is known"
        )
    if defense.in_step and (steps := total_steps(share)) > 1:
        raise ValueError(f"this defense acts inside a step: needs one local step in all, got {steps}")
