"""The private set of a protocol, looked at before a compiler takes its values away."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree
from jaxleak._base import Batch, Protocol

#: What the axes of x (N, P, *slice) and of soft labels (N, C) count, by the number of axes.
_AXES = {
    "x": {3: ("sample", "party", "column"), 5: ("sample", "party", "row", "column", "channel")},
    "y": {1: ("sample",), 2: ("sample", "class")},
}

_all_finite = jax.jit(_tree.all_finite)  # compiled, so that no array of truth values as large as x is made


def check_private(protocol: Protocol, private: Batch) -> None:
    """Look at a private set once, before its rounds are compiled.

    Raises:
        ValueError: if the protocol does not take it, such as one with labels out of range, or if its index is out of
            range or values are not finite.
    """
    if protocol.check is not None:
        protocol.check(private)
    if private.index is not None and not isinstance(private.index, jax.core.Tracer):
        index = np.asarray(private.index)
        if index.size and (index.min() < 0 or index.max() >= len(index)):
            raise ValueError(f"private.index must be in [0, {len(index)}), got {index.min()} to {index.max()}")
    for name, axes in _AXES.items():
        values = jnp.asarray(getattr(private, name))  # with the precision in which the rounds read them
        if isinstance(values, jax.core.Tracer) or bool(_all_finite(values)):
            continue
        there = np.asarray(values)  # only now, since all of it comes to the host
        first = tuple(int(i) for i in np.argwhere(~np.isfinite(there))[0])
        words = axes.get(there.ndim, tuple(f"axis {axis}" for axis in range(there.ndim)))
        where = ", ".join(f"{word} {i}" for word, i in zip(words, first, strict=True))
        raise ValueError(f"private.{name} must be finite, got {there[first]} at {where}")
