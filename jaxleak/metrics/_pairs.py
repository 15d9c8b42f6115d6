"""The check that every score of truth against estimate begins with."""

import numpy as np
from numpy.typing import ArrayLike


def pair(truth: ArrayLike, estimate: ArrayLike, axes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays as float64 after checks.

    Args:
        truth: (N, ...).
        estimate: the same shape, in the same unit.
        axes: required number of axes, None for two or more.

    Raises:
        ValueError: if the shapes differ, the number of axes is wrong, or the arrays are empty.
    """
    truth, estimate = np.asarray(truth, np.float64), np.asarray(estimate, np.float64)
    if truth.shape != estimate.shape:
        raise ValueError(f"truth and estimate must have one shape, got {truth.shape} and {estimate.shape}")
    wanted = f"{axes} axes" if axes else "two or more axes"
    if (truth.ndim != axes if axes else truth.ndim < 2) or truth.size == 0:
        raise ValueError(f"truth and estimate must have {wanted} and no axis of length 0, got {truth.shape}")
    return truth, estimate
