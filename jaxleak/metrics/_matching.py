"""Match reconstructions with true samples, for attacks that cannot know the order."""

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._images import MOST_DB, psnr
from jaxleak.metrics._pairs import pair


def match_one_to_one(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """The one-to-one pairing of reconstructions with samples that has the highest mean PSNR.

    This is the Hungarian method on all N x N errors, which needs 8 N^2 bytes. The matching looks at the truth, so the
    matched PSNR is the best that any ordering gives: report it as an upper bound on what leaked. The total squared
    error would not be a good criterion: the worst images dominate it, so an exact reconstruction might be paired with
    another sample.

    Args:
        truth: (N, ...) samples. PSNRs are for a peak of 1, and count as 200 dB at most.
        estimate: the same shape, in any order, and in the same unit.

    Returns:
        (N,) integers; `estimate[permutation]` is in the order of `truth`.

    Raises:
        ValueError: if the shapes differ or a value is not finite.
    """
    import scipy  # imported here and below, so that the commands' --help does not wait for it

    truth, estimate = pair(truth, estimate)
    errors = _squared_distances(truth, estimate) / max(1, truth[0].size if len(truth) else 1)
    return scipy.optimize.linear_sum_assignment(np.log10(np.maximum(errors, 10 ** (-MOST_DB / 10))))[1]


def match_best(truth: ArrayLike, estimates: ArrayLike) -> np.ndarray:
    """The most similar reconstruction by MSE for every sample; several samples may share one (FedLeak, section 5).

    Scores are at least those after `match_one_to_one`, since one blurred output may serve the whole batch. Report both.

    Args:
        truth: (N, ...) samples, in any unit.
        estimates: (M, ...) reconstructions of the same sample shape, any number M >= 1.

    Returns:
        (N,) integers in [0, M); `estimates[choice]` is in the order of `truth`.

    Raises:
        ValueError: if the shapes of samples differ, an array is empty, or a value is not finite.
    """
    truth, estimates = np.asarray(truth, np.float64), np.asarray(estimates, np.float64)
    if truth.shape[1:] != estimates.shape[1:] or truth.ndim < 2 or not (truth.size and estimates.size):
        raise ValueError(f"truth and estimates must hold samples of one shape, got {truth.shape} and {estimates.shape}")
    return _squared_distances(truth, estimates).argmin(axis=1)


def best_match_psnr(truth: ArrayLike, estimates: ArrayLike, peak: float = 1.0) -> np.ndarray:
    """PSNR of every sample with its most similar reconstruction, the score of FedLeak (section 5, evaluation metrics).

    Args:
        truth: (N, ...) samples, in the unit of `peak`.
        estimates: (M, ...) reconstructions, in the unit of `peak`.
        peak: the largest value that a sample may have, > 0.

    Returns:
        (N,) float64 in dB, as `psnr`.

    Raises:
        ValueError: as `match_best` and `psnr`.
    """
    estimates = np.asarray(estimates)
    return psnr(truth, estimates[match_best(truth, estimates)], peak)


def _squared_distances(truth: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    for name, values in (("truth", truth), ("estimate", estimates)):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite to be matched")
    import scipy

    return scipy.spatial.distance.cdist(
        truth.reshape(len(truth), -1), estimates.reshape(len(estimates), -1), "sqeuclidean"
    )
