"""How far rounding moves a gradient: rounding to 16 bits, or of weights whose difference is the update."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from jaxleak._base import PyTree

#: Formats of 16 bits, the coarser first, and the largest relative error of rounding a number to each.
FORMATS: dict[str, tuple[Any, float]] = {"bfloat16": (ml_dtypes.bfloat16, 2.0**-8), "float16": (np.float16, 2.0**-11)}


#: Largest relative error of rounding a number to float32.
_FLOAT32 = 2.0**-24


class Precision(NamedTuple):
    """The format in which an update was sent."""

    name: str = "float32"
    unit: float = 0.0  # largest relative error of a number; 0 where the checks' own allowances cover it
    scale: float = 1.0  # what the numbers of the update are multiplied by to give the gradient that is checked
    # Whether the update is the difference of the weights before and after the client's steps. It then contains their
    # rounding to float32, `scale` times as large.
    of_weights: bool = False
    # Step between the smallest numbers as they were sent; 0 stands for the format's own. A loss scale that was divided
    # out makes it smaller.
    quantum: float = 0.0

    def error(self, array: np.ndarray, weights: np.ndarray | None) -> float:
        """A bound on the norm of the rounding error of an array of the gradient.

        Args:
            array: one array of the gradient, of any shape.
            weights: the parameters that it is the gradient of, or None where they are not known.
        """
        error = 0.0
        if self.of_weights and weights is not None:
            error += _FLOAT32 * self.scale * float(np.linalg.norm(weights))
        if self.unit:
            error += self.unit * float(np.linalg.norm(array)) + self._subnormal() * float(np.sqrt(array.size))
        return error

    def of_entry(self, array: np.ndarray, weights: np.ndarray) -> float:
        """A bound on the rounding error of any single entry of the array, from the largest numbers in both arrays."""
        return self._of_largest(weights) + self.unit * float(np.abs(array).max(initial=0.0))

    def step(self, weights: np.ndarray) -> float:
        """How far apart the numbers near zero are; an entry of the gradient below this may arrive as zero."""
        return self._of_largest(weights) + (self._subnormal() if self.unit else 0.0)

    def _of_largest(self, weights: np.ndarray) -> float:
        """What rounding the largest of the weights to float32 may leave in the gradient."""
        return _FLOAT32 * self.scale * float(np.abs(weights).max(initial=0.0)) if self.of_weights else 0.0

    def _subnormal(self) -> float:
        """Half the smallest number of the format, in units of the gradient."""
        return (self.quantum or _smallest(FORMATS[self.name][0])) / 2 * self.scale

    def relative(self, array: np.ndarray, weights: np.ndarray | None) -> float:
        """The bound that `error` gives, over the array's norm."""
        return self.error(array, weights) / max(float(np.linalg.norm(array)), 1e-300)

    def rounded(self, tree: PyTree, weights: PyTree) -> PyTree:
        """A gradient as it would have arrived in this format.

        Args:
            tree: the gradient.
            weights: the parameters at which the client began, a tree of the same form.
        """
        if self.of_weights:
            tree = jax.tree.map(self._through_weights, tree, weights)
        if not self.unit:
            return tree
        dtype = FORMATS[self.name][0]
        scale = self.scale * (self.quantum / _smallest(dtype) if self.quantum else 1.0)
        most = float(ml_dtypes.finfo(dtype).max)

        def arrived(leaf: Any) -> np.ndarray:
            numbers = np.clip(np.asarray(leaf, np.float64) / scale, -most, most)
            return (numbers.astype(dtype).astype(np.float64) * scale).astype(np.float32)

        return jax.tree.map(arrived, tree)

    def _through_weights(self, leaf: Any, before: Any) -> np.ndarray:
        before = np.asarray(before, np.float32)
        after = (before - np.asarray(leaf, np.float64) / self.scale).astype(np.float32)
        return (before.astype(np.float64) - after) * self.scale


#: An update that was not rounded to 16 bits.
FULL = Precision()


def precision_of(sent: Iterable[Any], gradient: PyTree, *, per_weight: float | None = None) -> Precision:
    """The format of an update, recognised by its values, whatever the type in which they are stored.

    A format is recognised by the bits of its fraction alone. A client may scale its loss by a power of two, as mixed
    precision in float16 does. It then sends numbers of the format divided by the scale, which may be out of the
    format's range. Mixed precision keeps gradients of normalisation layers in float32, so that kernels decide where
    there are any. A difference of weights must also be within the format's range, since small steps of float32 have few
    bits, too.

    Args:
        sent: the arrays as they were sent, of any shapes.
        gradient: the same numbers in units of a gradient.
        per_weight: factor by which a difference of weights was multiplied; None unless the update is weights or their
            difference.
    """
    arrays = [np.ascontiguousarray(array, np.float32) for array in sent]
    largest = max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0)
    if not largest or not np.isfinite(largest):
        return FULL
    scale = max(float(np.abs(np.asarray(leaf)).max()) for leaf in jax.tree.leaves(gradient) if np.size(leaf)) / largest
    of_weights = per_weight is not None
    deciding = arrays if of_weights else [array for array in arrays if array.ndim > 1 and array.any()] or arrays
    for name, (dtype, unit) in FORMATS.items():
        if all(_is_of(array, dtype, in_range=of_weights) for array in deciding):
            step = _lowest_bit(deciding)
            quantum = step if largest > float(ml_dtypes.finfo(dtype).max) else min(step, _smallest(dtype))
            return Precision(name, unit, scale, of_weights, quantum)
    return FULL if per_weight is None else Precision(scale=per_weight, of_weights=True)


def _is_of(array: np.ndarray, dtype: Any, *, in_range: bool) -> bool:
    """Whether the fractions of all numbers fit the bits of a format; with `in_range`, whether the numbers are in it."""
    if in_range:
        return bool((array.astype(dtype).astype(np.float32) == array).all())
    beyond = np.uint32(2 ** (23 - ml_dtypes.finfo(dtype).nmant) - 1)  # bits that only a fraction in float32 has
    return not (array.view(np.uint32) & beyond).any()


def _smallest(dtype: Any) -> float:
    """The step between the smallest numbers of a format."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def _lowest_bit(arrays: list[np.ndarray]) -> float:
    """The largest power of two of which all numbers are multiples."""
    numbers = np.concatenate([np.abs(array[array != 0]) for array in arrays]).astype(np.float64)
    fraction, exponent = np.frexp(numbers)
    whole = (fraction * 2.0**24).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 24).min())
