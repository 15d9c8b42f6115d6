"""Half precision: what rounding to 16 bits leaves of equations that hold to the rounding of float32."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from jaxleak._base import PyTree

#: Formats of 16 bits, the coarser first, and the largest relative error of rounding a number to each.
_FORMATS: dict[str, tuple[Any, float]] = {"bfloat16": (ml_dtypes.bfloat16, 2.0**-8), "float16": (np.float16, 2.0**-11)}


class Precision(NamedTuple):
    """The format in which an update was sent."""

    name: str = "float32"
    unit: float = 0.0  # largest relative error of a number; 0 where the checks' own allowances cover it
    scale: float = 1.0  # what the numbers of the update are multiplied by to give the gradient that is checked

    def relative(self, array: np.ndarray) -> float:
        """A bound on the norm of the rounding error of an array of the gradient, over the array's norm."""
        if not self.unit:
            return 0.0
        smallest = float(ml_dtypes.finfo(_FORMATS[self.name][0]).smallest_subnormal) / 2 * self.scale
        return self.unit + smallest * float(np.sqrt(array.size) / max(np.linalg.norm(array), 1e-300))

    def rounded(self, tree: PyTree) -> PyTree:
        """A gradient as it would have arrived in this format."""
        if not self.unit:
            return tree
        dtype = _FORMATS[self.name][0]
        return jax.tree.map(
            lambda leaf: (np.asarray(leaf, np.float32) / self.scale).astype(dtype).astype(np.float32) * self.scale, tree
        )


#: An update that was not rounded to 16 bits.
FULL = Precision()


def precision_of(sent: Iterable[Any], gradient: PyTree) -> Precision:
    """The format of an update, recognised by its values, whatever the type in which they are stored.

    Args:
        sent: the arrays as they were sent, of any shapes.
        gradient: what became of them: the same numbers in units of a gradient.
    """
    arrays = [np.asarray(array, np.float32) for array in sent]
    largest = max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0)
    if not largest or not np.isfinite(largest):
        return FULL
    scale = max(float(np.abs(np.asarray(leaf)).max()) for leaf in jax.tree.leaves(gradient) if np.size(leaf)) / largest
    for name, (dtype, unit) in _FORMATS.items():
        if all((array.astype(dtype).astype(np.float32) == array).all() for array in arrays):
            return Precision(name, unit, scale)
    return FULL
