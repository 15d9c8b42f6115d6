"""Checks that an observation holds what an attack reads, and that the payload belongs to the model.

Grants are checked here and nowhere else: an attack declares what it reads (`Reads`), and calls `require` where it sees
an observation.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxleak import _validate
from jaxleak._base import LabelHolderRecord, Observation, PartyRecord, PyTree
from jaxleak._tree import below, named_leaves


class Reads(NamedTuple):
    """What an attack reads of an observation: its one declaration, which `require` checks. The default is nothing."""

    who: str  # begins the messages
    params: bool = False  # the model's parameters
    leaves: Collection[str] | None = ()  # paths of the payload, as in `check_payload`; None is the whole payload
    index: bool = False  # type: ignore[assignment]  # which samples took part
    labels: bool = False  # the true labels
    statistics: bool = False  # the batch's activation statistics
    party: bool = False  # one party's own record
    label_holder: bool = False  # the label holder's record of its top model


class Granted(NamedTuple):
    """An `Observation` that has passed `require`: every field that the attack reads is present."""

    round: jax.Array
    params: PyTree
    payload: PyTree
    index: jax.Array  # type: ignore[assignment]
    labels: jax.Array
    statistics: PyTree
    party: PartyRecord
    label_holder: LabelHolderRecord


#: The error message for each field that an attack reads but the observation lacks. The attack's name precedes it.
_MISSING = {
    "params": "needs the model's parameters, which the observation does not hold",
    "index": "aligns its answer with the private samples and needs batch indices; the threat must grant index",
    "labels": "is given the true labels; the threat must grant labels",
    "statistics": "matches activation statistics; the threat must grant statistics",
    "party": "reads one party's own record; the threat must grant that of a party (threats.party_view)",
    "label_holder": "reads what the label holder receives; the threat must grant it (threats.label_holder_view)",
}


def require(observation: Observation, reads: Reads) -> Granted:
    """Check that the observation holds everything that the attack reads, and return it.

    Args:
        observation: what the threat granted, possibly traced.
        reads: what the attack reads. The whole payload, or a path with several leaves below it, can be checked only if
            the model's parameters are read too.

    Raises:
        ValueError: naming the grants that the threat withholds, or the first leaf of the payload that does not fit the
            parameters. Also if the payload is a tree of other names, such as a gradient in its framework's own form.
    """
    _validate.made(Observation, "threats.view", observation=observation)
    for name, message in _MISSING.items():
        if getattr(reads, name) and getattr(observation, name) is None:
            raise ValueError(f"{reads.who} {message}")
    weights = _weights(observation.params) if reads.params else dict.fromkeys(reads.leaves or ())
    missing = sorted(below(weights.keys() - named_leaves(observation.payload).keys(), reads.leaves))
    if missing and isinstance(observation.payload, Mapping) and "params" in observation.payload:
        raise ValueError(
            "payload must be the tree of the parameters' gradient alone: give payload['params'] of a gradient by all "
            "variables"
        )
    unknown = sorted(named_leaves(observation.payload).keys() - weights.keys()) if reads.params else []
    if missing and unknown:
        raise ValueError(
            f"payload must be a tree with the names of the model's parameters, such as {missing[0]}, got {unknown[0]}; "
            "capture.gradient_of(capture.as_update(gradient), variables['params']) makes such a tree of a gradient "
            "that Flax or Equinox computed"
        )
    if missing:
        of = "the whole payload" if reads.leaves is None else "parts of the payload"
        raise ValueError(f"{reads.who} reads {of}, but the threat does not grant {', '.join(missing)}")
    if reads.params and reads.leaves != ():
        # A leaf whose shape broadcasts against the model's would be compared without an error, but could never match.
        _check_fit(observation.payload, weights, reads.leaves)
    return Granted(*observation)  # type: ignore[arg-type]  # those of them that are read are there


def check_payload(payload: PyTree, variables: PyTree, read: Collection[str] | None = None) -> None:
    """Compare a payload with the model before a long run.

    Args:
        payload: a gradient tree, e.g. captured from another framework. A leaf that is None is missing.
        variables: variables of the model that it should belong to.
        read: paths like "head/kernel", or "head" for all below, that must be there; others may be missing, but what
            is there must fit. None asks for all.

    Raises:
        ValueError: naming the first leaf that is missing, unexpected, of another shape or dtype, or not finite.
    """
    check_shapes(payload, variables, read)
    for name, value in named_leaves(payload).items():
        if not np.all(np.isfinite(np.asarray(value))):
            raise ValueError(f"payload leaf {name} holds values that are not finite")


def check_shapes(payload: PyTree, variables: PyTree, read: Collection[str] | None = None) -> None:
    """Compare as `check_payload` does, but not the values: for traced arrays, or for shapes alone.

    Raises:
        ValueError: naming the first leaf that is missing, unexpected, or of another shape or dtype.
    """
    _check_fit(payload, _weights(variables), read)


def _weights(variables: PyTree) -> dict[str, Any]:
    """The trained leaves by name. `variables` are a classifier's variables or a split model's parameters."""
    if not isinstance(variables, Mapping):
        raise ValueError(
            "the observation's params must be the model's variables, such as models.from_flax or a model's init give "
            f"them, got {_validate.kind_of(variables)}"
        )
    return named_leaves(variables.get("params", variables))


def _check_fit(payload: PyTree, weights: Mapping[str, Any], read: Collection[str] | None) -> None:
    values = named_leaves(payload)
    missing, extra = sorted(set(below(weights, read)) - values.keys()), sorted(values.keys() - weights.keys())
    if missing or extra:
        what = f"lacks {', '.join(missing[:3])}" if missing else f"has unknown {', '.join(extra[:3])}"
        raise ValueError(f"payload of another model: it {what} (of {len(missing) + len(extra)} differing leaves)")
    for name, value in values.items():
        weight = weights[name]
        if value.shape != weight.shape:
            raise ValueError(f"payload leaf {name} must have shape {weight.shape}, got {value.shape}")
        # Half-precision uploads can be attacked too, but the caller has to widen them explicitly.
        if value.dtype != weight.dtype:
            raise ValueError(f"payload leaf {name} must have the model's dtype {weight.dtype}, got {value.dtype}")
