"""Scores for the labels that an attack found."""

import logging

import numpy as np
from numpy.typing import ArrayLike

_log = logging.getLogger("jaxleak")

#: Thresholds of the warning that true labels seem to be one too large: number of samples, and share of such labels.
_ENOUGH, _SHIFTED = 20, 0.8


def label_accuracy(truth: ArrayLike, estimate: ArrayLike) -> float:
    """Share of positions where the labels agree, in [0, 1]: for samples whose order the attacker knows.

    Labels of a batch whose order is lost are compared by `label_multiset_accuracy`.

    Args:
        truth: (N,) integer labels >= 0.
        estimate: (N,) integer labels >= 0, in the same order. An attack answers -1 for a label that it does not know:
            leave such samples out of both.

    Raises:
        ValueError: if the shapes differ, the labels are not a non-empty list of integers, or one is negative.
    """
    truth, estimate = _label_pair(truth, estimate)
    _all_answered(estimate)
    return float(np.mean(truth == estimate))


def balanced_label_accuracy(truth: ArrayLike, estimate: ArrayLike) -> float:
    """The mean over classes of the share of their labels that are found, in [0, 1].

    If most samples have one class, an answer with that class for all samples has a high `label_accuracy`. Here it
    scores only 1 over the number of classes.

    Args:
        truth: (N,) integer labels >= 0; classes that it does not have do not count.
        estimate: (N,) integer labels >= 0, in the same order. An attack answers -1 for a label that it does not know:
            leave such samples out of both.

    Raises:
        ValueError: as `label_accuracy`.
    """
    truth, estimate = _label_pair(truth, estimate)
    _all_answered(estimate)
    return float(np.mean([np.mean(estimate[truth == label] == label) for label in np.unique(truth)]))


def label_multiset_accuracy(truth: ArrayLike, estimate: ArrayLike) -> float:
    """Share of labels found when order does not count, in [0, 1]: for batches without known order.

    Reports on one client's batch print it as `label_accuracy`. Labels of samples with known places are compared by the
    function of that name.

    Repeats count: a label that the truth has twice and the estimate three times gives two hits, so the score is
    1 only if both hold the same labels equally often.

    Args:
        truth: (N,) integer labels >= 0.
        estimate: (N,) integer labels, in any order; -1 stands for no answer and counts as no hit.

    Raises:
        ValueError: if the shapes differ, there are no labels, or a true label is negative.
    """
    truth, estimate = _label_pair(truth, estimate)
    values, both = np.unique(np.concatenate([truth, estimate]), return_inverse=True)
    have, want = (np.bincount(part, minlength=len(values)) for part in np.split(both, 2))
    return float(np.minimum(have, want).sum() / len(truth))


def _all_answered(estimate: np.ndarray) -> None:
    """Raise `ValueError` if a label is -1 (no answer): it would count as wrong and hide a leak."""
    wrong = estimate[estimate < 0]
    if wrong.size:
        raise ValueError(
            f"estimate must hold labels >= 0, got {wrong[0]} among {wrong.size} negative ones of {estimate.size}: an "
            "attack answers -1 where it says nothing of a label, so score truth[estimate >= 0] and "
            "estimate[estimate >= 0]"
        )


def _label_pair(truth: ArrayLike, estimate: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    truth, estimate = np.asarray(truth), np.asarray(estimate)
    if truth.shape != estimate.shape:
        raise ValueError(f"truth and estimate must have one shape, got {truth.shape} and {estimate.shape}")
    if truth.ndim != 1 or truth.size == 0:
        raise ValueError(f"labels must have shape (N,) with N > 0, got {truth.shape}")
    for labels in (truth, estimate):
        if not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(f"labels must be integers, got dtype {labels.dtype}")
    if truth.min() < 0:
        raise ValueError(
            f"truth must hold labels in [0, C), as attacks answer them, got {truth.min()}: recode -1 and 1 as 0 and 1, "
            "as for the attack"
        )
    if len(truth) >= _ENOUGH and np.mean(truth - 1 == estimate) > max(_SHIFTED, np.mean(truth == estimate)):
        _log.warning("truth agrees with the estimate after subtracting 1: attacks count classes from 0")
    return truth, estimate
