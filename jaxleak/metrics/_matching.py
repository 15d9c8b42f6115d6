"""Which reconstruction is of which sample, where the attack could not know."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from jaxleak.metrics._pairs import pair


def match_one_to_one(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """The pairing of reconstructions with samples that has the least total MSE, each used once.

    The Hungarian method on all N x N errors; needs 8 N^2 bytes. It looks at the truth, so the matched scores are the
    best that any ordering gives: an upper bound on what leaked, to be reported as such.

    Args:
        truth: (N, ...) samples.
        estimate: the same shape, in any order.

    Returns:
        (N,) integers; `estimate[permutation]` is in the order of `truth`.

    Raises:
        ValueError: if the shapes differ or a value is not finite.
    """
    truth, estimate = pair(truth, estimate)
    for name, values in (("truth", truth), ("estimate", estimate)):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite to be matched")
    cost = cdist(truth.reshape(len(truth), -1), estimate.reshape(len(estimate), -1), "sqeuclidean")
    _, permutation = linear_sum_assignment(cost)
    return permutation
