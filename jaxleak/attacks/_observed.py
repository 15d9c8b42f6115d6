"""Whether an observation holds what an attack reads, and whether that belongs to the model."""

from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np

from jaxleak._base import Observation, PartyRecord, PyTree
from jaxleak._tree import below, named_leaves


class Reads(NamedTuple):
    """What an attack on one update reads of an observation besides the model's parameters."""

    who: str  # begins the messages
    leaves: Collection[str] | None = None  # paths of the payload, as in `check_payload`; None is the whole payload
    labels: bool = False  # the true labels
    statistics: bool = False  # the batch's activation statistics


def require(observation: Observation, reads: Reads) -> None:
    """Raise `ValueError` if the threat withholds what is read, or the payload does not fit the model."""
    params = require_params(observation)
    require_leaves(observation, params["params"], reads.leaves, why=reads.who)
    # A leaf that broadcasts against the model's would be compared without an error, and matched with nothing.
    check_shapes(observation.payload, params, reads.leaves)
    if reads.labels:
        require_labels(observation)
    if reads.statistics:
        require_statistics(observation)


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
    """All that `check_payload` compares but the values, hence also for traced arrays and for shapes alone.

    Raises:
        ValueError: naming the first leaf that is missing, unexpected, or of another shape or dtype.
    """
    weights, values = named_leaves(variables["params"]), named_leaves(payload)
    missing, extra = sorted(set(below(weights, read)) - values.keys()), sorted(values.keys() - weights.keys())
    if missing or extra:
        what = f"lacks {', '.join(missing[:3])}" if missing else f"has unknown {', '.join(extra[:3])}"
        raise ValueError(f"payload of another model: it {what} (of {len(missing) + len(extra)} differing leaves)")
    for name, value in values.items():
        weight = weights[name]
        if value.shape != weight.shape:
            raise ValueError(f"payload leaf {name} must have shape {weight.shape}, got {value.shape}")
        # Half-precision uploads are attacked too, but whoever widens them should know that they did.
        if value.dtype != weight.dtype:
            raise ValueError(f"payload leaf {name} must have the model's dtype {weight.dtype}, got {value.dtype}")


def require_params(observation: Observation) -> PyTree:
    """The model's parameters, or `ValueError`."""
    if observation.params is None:
        raise ValueError("the attack needs the model's parameters, which the observation does not hold")
    return observation.params


def require_leaf(observation: Observation, *path: str, why: str) -> jax.Array:
    """One leaf of the payload, or `ValueError` naming the missing grant and what it is for."""
    value = observation.payload
    for name in path:
        value = (value or {}).get(name)
    if value is None:
        raise ValueError(f"{why} reads the payload's {'/'.join(path)}, which the threat does not grant")
    return value


def require_leaves(
    observation: Observation, params: PyTree, read: Collection[str] | None = None, *, why: str
) -> PyTree:
    """The payload, or `ValueError` naming the leaves that the threat withholds.

    Args:
        observation: the observation with the payload.
        params: a tree with all leaves of the model.
        read: as in `check_payload`.
        why: begins the message.
    """
    missing = sorted(below(named_leaves(params).keys() - named_leaves(observation.payload).keys(), read))
    if missing:
        what = "the whole payload" if read is None else "parts of the payload"
        raise ValueError(f"{why} matches {what}, but the threat does not grant {', '.join(missing)}")
    return observation.payload


def require_index(observation: Observation) -> jax.Array:
    """The batch's indices, or `ValueError`: without them nobody knows which rows to update."""
    if observation.index is None:
        raise ValueError(
            "the attack aligns fake with private samples and needs batch indices; the threat must grant index"
        )
    return observation.index


def require_labels(observation: Observation) -> jax.Array:
    """The true labels of the batch, or `ValueError`."""
    if observation.labels is None:
        raise ValueError("the attack is given the true labels; the threat must grant labels")
    return observation.labels


def require_first_layer(observation: Observation, *, why: str) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Batch indices (K,) and the first dense layer's gradient, whose kernel may be missing; or `ValueError`."""
    require_leaf(observation, "first", "bias", why=why)
    return require_index(observation), observation.payload["first"]


def require_party(observation: Observation) -> tuple[jax.Array, PartyRecord]:
    """Sample ids and one party's own record, or `ValueError`."""
    if observation.party is None or observation.index is None:
        raise ValueError("this attack needs a threat that grants a party's record and the sample ids")
    return observation.index, observation.party


def require_statistics(observation: Observation) -> PyTree:
    """The batch's activation statistics, or `ValueError`."""
    if observation.statistics is None:
        raise ValueError("the objective matches activation statistics; the threat must grant statistics")
    return observation.statistics
