"""The only door from a protocol's transcript to an attacker's observation.

A threat is a list of grants. `view` copies exactly what is granted and leaves every other field None; nothing else in
jaxleak hands transcript fields to an attack. A test fills the transcript's private part with NaN and checks that NaN
reaches an observation only where a threat grants it.
"""

import numbers
from collections.abc import Mapping
from typing import NamedTuple

import jax

from jaxleak import _validate
from jaxleak._base import Observation, PyTree, Transcript
from jaxleak._tree import below, named_leaves

__all__ = [
    "BIAS_GRADIENT_ONLY",
    "FIRST_LAYER_ONLY",
    "HONEST_BUT_CURIOUS_SERVER",
    "SERVER_WITHOUT_INDICES",
    "Threat",
    "label_holder_view",
    "party_view",
    "view",
]


class Threat(NamedTuple):
    """What an attacker may see of each round.

    Attributes:
        index: whether it sees which samples took part (CAFE's data-index alignment).
        labels: whether it sees the true labels of the batch.
        statistics: whether it sees means and variances of the batch's activations.
        running_statistics: whether it sees the running statistics of batch normalisation, if params hold any.
        payload: paths of gradient leaves, such as "first/kernel", or of groups, such as "first" for all leaves below;
            None grants all.
        party: number of the party of split vertical learning that the attacker is: it sees its own record instead of
            params and payload. None is no party.
        label_holder: whether the attacker is the label holder of split vertical learning: it sees what its top model
            receives.
    """

    index: bool = True  # type: ignore[assignment]
    labels: bool = False
    statistics: bool = False
    running_statistics: bool = False
    payload: tuple[str, ...] | None = None
    party: int | None = None
    label_holder: bool = False


#: CAFE's attacker: the server, which follows the protocol, chose the indices and sees the aggregated gradient.
HONEST_BUT_CURIOUS_SERVER = Threat()

#: The same server, looking only at the first dense layer's bias gradient (all that CAFE's Step I reads).
BIAS_GRADIENT_ONLY = Threat(payload=("first/bias",))

#: The same server, looking only at the first dense layer (all that CAFE's Steps I and II read).
FIRST_LAYER_ONLY = Threat(payload=("first/bias", "first/kernel"))

#: The server of gradient inversion (FedLeak, section 2): the model and one upload; no indices, no statistics.
SERVER_WITHOUT_INDICES = Threat(index=False)


def party_view(party: int, *, active: bool = False) -> Threat:
    """VFLRecon's attacker (section III): a participant that follows the protocol and looks at its own side only.

    Args:
        party: number of the party, >= 0. A party knows which samples take part, since parties align their samples
            before training.
        active: whether the party has the labels as well. It is not granted what a label holder receives at its top
            model; `label_holder_view` grants that.

    Raises:
        ValueError: if party is not a whole number >= 0.
    """
    _check_party(party)
    return Threat(labels=active, party=party)


def label_holder_view(party: int | None = None) -> Threat:
    """The label holder of split vertical learning, which runs the top model and follows the protocol.

    The label holder has the labels and knows which samples take part. It sees what every party sends, unless a cipher
    hides it, the output of its own first layer, and its own parameters.

    Args:
        party: number of the label holder's own party, >= 0, with a record that it sees as well; None if it holds no
            features.

    Raises:
        ValueError: if party is not a whole number >= 0.
    """
    if party is not None:
        _check_party(party)
    return Threat(labels=True, party=party, label_holder=True)


def view(threat: Threat, transcript: Transcript) -> Observation:
    """The observation that `threat` grants of one round.

    Args:
        threat: the grants.
        transcript: the round's record.

    Returns:
        An `Observation`; ungranted fields, and ungranted leaves of the payload, are None.

    Raises:
        ValueError: if statistics are granted but the protocol did not record them, a payload path does not exist or
            is granted to a party, the threat is a party that the transcript does not have, or it is a label holder
            where the protocol has none.
    """
    if threat.statistics and transcript.statistics is None:
        raise ValueError("threat grants statistics, but the protocol was built with with_statistics=False")
    if threat.party is not None or threat.label_holder:
        if threat.payload is not None:
            raise ValueError(f"threat grants leaves of the payload, {threat.payload}, and a party sees no payload")
        if threat.party is not None and not 0 <= threat.party < len(transcript.parties):
            raise ValueError(f"threat is party {threat.party}, but {len(transcript.parties)} parties kept records")
        if threat.label_holder and transcript.label_holder is None:
            raise ValueError("threat is a label holder, but the protocol has none (protocols.split_training has one)")
        return Observation(
            round=transcript.round,
            index=transcript.index if threat.index else None,
            labels=transcript.private.y if threat.labels else None,
            party=None if threat.party is None else transcript.parties[threat.party],
            label_holder=transcript.label_holder if threat.label_holder else None,
        )
    payload = transcript.payload if threat.payload is None else _select(transcript.payload, threat.payload)
    params = transcript.params
    if isinstance(params, Mapping) and "batch_stats" in params and not threat.running_statistics:
        params = {**params, "batch_stats": None}
    return Observation(
        round=transcript.round,
        params=params,
        payload=payload,
        index=transcript.index if threat.index else None,
        labels=transcript.private.y if threat.labels else None,
        statistics=transcript.statistics if threat.statistics else None,
    )


def _check_party(party: int) -> None:
    if isinstance(party, bool) or not isinstance(party, numbers.Integral):
        raise ValueError(f"party must be the number of a party, a whole number, got {party!r}")
    _validate.count_or_zero(party=party)


def _select(payload: PyTree, paths: tuple[str, ...]) -> PyTree:
    # Unselected leaves become None. If this is compiled together with the protocol, XLA then drops the work behind
    # them.
    leaves = named_leaves(payload)
    granted = set(below(leaves, paths))
    for path in paths:
        if not below(leaves, [path]):
            groups = dict.fromkeys(name.split("/")[0] for name in leaves)
            raise ValueError(f"payload has no leaf {path!r}; top-level groups are {list(groups)}")
    kept = [leaf if name in granted else None for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(payload), kept)
