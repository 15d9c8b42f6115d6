"""What a record of one step may hold, and how it becomes the input of the reconstruction network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxleak._base import PartyRecord

#: Fields that a record may hold, and which attributes of a `PartyRecord` each one reads. "differences" is b' - b: the
#: output after the step minus the output before it.
_READS = {
    "gradient": ("output_gradient",),
    "outputs": ("output", "output_after"),
    "parameters": ("params", "params_after"),
    "inputs": ("x",),
    "differences": ("output", "output_after"),
}
FIELDS = tuple(_READS)
#: The paper's fields, which make up six items.
PAPER_FIELDS: Final = ("gradient", "outputs", "parameters", "inputs")


def same_features(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Where two arrays of features, of one shape, differ by rounding at most; bool of that shape."""
    return np.isclose(a, b, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Record:
    """Function from a party's record to the input of the reconstruction network; equal fields compile once."""

    fields: tuple[str, ...]

    def __call__(self, seen: PartyRecord) -> jax.Array:
        """(B, width); parameters are repeated for every sample."""
        return jnp.concatenate(_items(seen, self.fields), axis=1)


def _items(seen: PartyRecord, fields: Sequence[str]) -> list[jax.Array]:
    """A list of the items of a record, (B, width) each; raise `ValueError` if the record does not hold them all."""
    held = [field for field in FIELDS if all(getattr(seen, name) is not None for name in _READS[field])]
    if lacking := [field for field in fields if field not in held]:
        raise ValueError(f"fields must be some of what the record holds, {', '.join(held)}, got {', '.join(lacking)}")
    batch = seen.x.shape[0]
    parts = []
    for field in fields:
        if field == "gradient":
            parts.append(seen.output_gradient)
        elif field == "outputs":
            parts += [seen.output, seen.output_after]
        elif field == "differences":
            parts.append(seen.output_after - seen.output)
        elif field == "inputs":
            parts.append(seen.x)
        else:
            for params in (seen.params, seen.params_after):
                flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])
                parts.append(jnp.broadcast_to(flat, (batch, flat.size)))
    return parts


def item_widths(steps: PartyRecord, fields: tuple[str, ...]) -> tuple[int, ...]:
    """Widths of the items of a record; the leaves of `steps` have a leading axis of steps."""
    shapes = jax.eval_shape(lambda seen: _items(jax.tree.map(lambda leaf: leaf[0], seen), fields), steps)
    return tuple(item.shape[1] for item in shapes)
