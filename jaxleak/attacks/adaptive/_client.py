"""The defended client as the attacker knows it."""

from typing import Literal, NamedTuple, TypeAlias

from jaxleak._base import PyTree, Share
from jaxleak.defenses import Defense
from jaxleak.models import Classifier

#: What may stand beside a likelihood: a share of the variation prior of photographs, or next to none.
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
