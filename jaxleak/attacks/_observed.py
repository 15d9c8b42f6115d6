"""Whether an observation holds what an attack reads, and whether that belongs to the model."""

from collections.abc import Collection

import jax
import numpy as np

from jaxleak._base import Observation, PyTree
from jaxleak._tree import below, named_leaves


def check_payload(payload: PyTree, variables: PyTree, read: Collection[str] | None = None) -> None:
    """Compare a payload with the model before a long run.

    Args:
        payload: a gradient tree, e.g. captured from another framework. A leaf that is None is missing.
        variables: of the model that it should belong to.
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
        observation: whose payload.
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


def require_statistics(observation: Observation) -> PyTree:
    """The batch's activation statistics, or `ValueError`."""
    if observation.statistics is None:
        raise ValueError("the objective matches activation statistics; the threat must grant statistics")
    return observation.statistics
