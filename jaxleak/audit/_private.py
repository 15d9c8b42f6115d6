"""Checks of a protocol's private set, before compiled code hides its values."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree
from jaxleak._base import Batch, Protocol

#: What each axis of x (N, P, *slice) and of labels counts, by the number of axes.
_AXES = {
    "x": {3: ("sample", "party", "column"), 5: ("sample", "party", "row", "column", "channel")},
    "y": {1: ("sample",), 2: ("sample", "class")},
}

_all_finite = jax.jit(_tree.all_finite)  # compiled, so that no array of truth values as large as x is made


def check_private(protocol: Protocol, private: Batch) -> None:
    """Check a private set once, before its rounds are compiled.

    Raises:
        ValueError: if the protocol does not take the set, for example with labels out of range, or if the set's index
            is out of range or its values are not finite.
    """
    if protocol.check is not None:
        protocol.check(private)
    if private.index is not None and not isinstance(private.index, jax.core.Tracer):
        index = np.asarray(private.index)
        if index.size and (index.min() < 0 or index.max() >= len(index)):
            raise ValueError(f"private.index must be in [0, {len(index)}), got {index.min()} to {index.max()}")
    for name, axes in _AXES.items():
        values = jnp.asarray(getattr(private, name))  # in the precision in which the rounds read the values
        if isinstance(values, jax.core.Tracer) or bool(_all_finite(values)):
            continue
        there = np.asarray(values)  # only now, since this copies all values to the host
        first = tuple(int(i) for i in np.argwhere(~np.isfinite(there))[0])
        words = axes.get(there.ndim, tuple(f"axis {axis}" for axis in range(there.ndim)))
        where = ", ".join(f"{word} {i}" for word, i in zip(words, first, strict=True))
        raise ValueError(f"private.{name} must be finite, got {there[first]} at {where}")
