"""The only door from a protocol's transcript to an attacker's observation.

A threat is a list of grants. `view` copies exactly what is granted and leaves every other field None; nothing else in
jaxleak hands transcript fields to an attack. A test fills the transcript's private part with NaN and checks that NaN
reaches an observation only where a threat grants it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax

from jaxleak._base import Observation, PyTree, Transcript
from jaxleak._tree import below, named_leaves

__all__ = [
    "BIAS_GRADIENT_ONLY",
    "FIRST_LAYER_ONLY",
    "HONEST_BUT_CURIOUS_SERVER",
    "SERVER_WITHOUT_INDICES",
    "Threat",
    "party_view",
    "view",
]


class Threat(NamedTuple):
    """What the attacker is granted of each round."""

    index: bool = True  # type: ignore[assignment]  # which samples took part (data-index alignment)
    labels: bool = False  # the true labels of the batch
    statistics: bool = False  # activation statistics of the batch
    running_statistics: bool = False  # batch normalisation's running statistics, where params hold any
    # Paths like "first/kernel" of gradient leaves, or like "first" of all that lies below; None grants all.
    payload: tuple[str, ...] | None = None
    # The attacker is this party of split vertical learning: it sees its own record instead of params and payload.
    party: int | None = None


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
        party: number of the party, >= 0. It knows which samples take part: parties align their samples before training.
        active: it is the label holder and has the labels. Its own bottom model leaks features of the others; what the
            top model shows beyond that is not granted.

    Raises:
        ValueError: if party < 0.
    """
    if party < 0:
        raise ValueError(f"party must be >= 0, got {party}")
    return Threat(labels=active, party=party)


def view(threat: Threat, transcript: Transcript) -> Observation:
    """What `threat` grants of one round.

    Args:
        threat: the grants.
        transcript: the round's record.

    Returns:
        An `Observation`; ungranted fields, and ungranted leaves of the payload, are None.

    Raises:
        ValueError: if statistics are granted but the protocol did not record them, a payload path does not exist, or
            the threat is a party that the transcript does not have.
    """
    if threat.statistics and transcript.statistics is None:
        raise ValueError("threat grants statistics, but the protocol was built with with_statistics=False")
    if threat.party is not None:
        if not 0 <= threat.party < len(transcript.parties):
            raise ValueError(f"threat is party {threat.party}, but {len(transcript.parties)} parties kept records")
        return Observation(
            round=transcript.round,
            index=transcript.index if threat.index else None,
            labels=transcript.private.y if threat.labels else None,
            party=transcript.parties[threat.party],
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


def _select(payload: PyTree, paths: tuple[str, ...]) -> PyTree:
    # Unselected leaves become None. Compiled together with the protocol, XLA then drops the work behind them.
    leaves = named_leaves(payload)
    for path in paths:
        if not below(leaves, [path]):
            groups = dict.fromkeys(name.split("/")[0] for name in leaves)
            raise ValueError(f"payload has no leaf {path!r}; top-level groups are {list(groups)}")
    granted = set(below(leaves, paths))
    kept = [leaf if name in granted else None for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(payload), kept)
