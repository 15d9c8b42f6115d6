"""Scores for reconstructed table features: in vertical learning, a party reconstructs the others' columns."""

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._pairs import pair


def feature_mse(
    truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None = None, *, entries: ArrayLike | None = None
) -> float:
    """Mean squared error per feature, over the victims' columns alone.

    The error means little by itself. Compare it with the variance of the columns, which is the score of an answer that
    holds the columns' means; see `feature_r2`.

    Args:
        truth: (N, d) the victims' columns in any unit, `attacks.party_records.victims_features(model, x, party)` of
            padded samples x (N, P, max d_p). Leave out the attacker's own columns and the padding, which every answer
            has right.
        estimate: (N, d) the same columns of an answer's x, in the same unit.
        samples: which samples count: (N,) bool, such as an answer's `answered`, or their numbers; None is all.
        entries: (N, d) bool, which entries of those samples count; None is all. Leave out values that are missing in
            the table: what was filled in for them is not the truth.

    Returns:
        The mean over the entries that count, >= 0, in the square of the unit.

    Raises:
        ValueError: if the shapes differ or are not (N, d), `samples` has other values or a number twice, no entry
            counts, or one that counts is not finite.
    """
    truth, estimate, counts = _columns(truth, estimate, samples, entries)
    return float(np.mean((truth - estimate) ** 2, where=counts))


def feature_r2(
    truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None = None, *, entries: ArrayLike | None = None
) -> float:
    """Share of the victims' variance that the answer explains: 1 for an exact answer, 0 for the columns' means.

    The score is one minus the squared error divided by the squared distance from the columns' means. Both sums run over
    all columns, so columns with a large variance count more. Columns should therefore be in one unit, standardised or
    scaled.

    Args:
        truth: (N, d), as `feature_mse` takes it.
        estimate: (N, d), as `feature_mse` takes it.
        samples: (N,) or their numbers, as `feature_mse` takes them.
        entries: (N, d) bool, as `feature_mse` takes them.

    Returns:
        At most 1, and negative for an answer that is worse than the columns' means.

    Raises:
        ValueError: as `feature_mse`, or if no column varies.
    """
    truth, estimate, counts = _columns(truth, estimate, samples, entries)
    spread = np.sum((truth - _means(truth, counts)) ** 2, where=counts & varying(truth, counts))
    if spread == 0:
        raise ValueError(
            f"truth must vary over the {len(truth)} samples that count: constant columns have no variance to explain"
        )
    return float(1 - np.sum((truth - estimate) ** 2, where=counts) / spread)


def feature_variance(truth: ArrayLike, samples: ArrayLike | None = None, *, entries: ArrayLike | None = None) -> float:
    """The `feature_mse` of an answer that holds the columns' means, in the square of the columns' unit.

    Args:
        truth: (N, d), as `feature_mse` takes it.
        samples: (N,) or their numbers, as `feature_mse` takes them.
        entries: (N, d) bool, as `feature_mse` takes them.

    Raises:
        ValueError: as `feature_mse`.
    """
    table, _, counts = _columns(truth, truth, samples, entries)
    return float(np.mean((table - _means(table, counts)) ** 2, where=counts))


def varying(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(d,) bool: columns of a table (N, d) whose entries that count (N, d) are not all equal.

    The largest and the smallest entry are compared, because the mean of equal numbers differs from them by rounding.
    """
    highest = np.max(table, axis=0, where=counts, initial=-np.inf)
    return np.asarray(highest > np.min(table, axis=0, where=counts, initial=np.inf))


def _means(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The means (d,) of the entries that count; 0 for a column without such entries."""
    return np.sum(table, axis=0, where=counts) / np.maximum(counts.sum(axis=0), 1)


def _columns(
    truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None, entries: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both arrays (n, d) for the samples that count, and a mask of the entries that count."""
    if np.ndim(truth) == 3:
        raise ValueError(
            "truth must have shape (N, d), the victims' columns alone, got padded samples of shape "
            f"{np.shape(truth)}: take attacks.party_records.victims_features(model, x, party)"
        )
    wanted, found = pair(truth, estimate, axes=2)
    counts = np.ones(wanted.shape, bool) if entries is None else np.asarray(entries)
    if counts.dtype != bool or counts.shape != wanted.shape:
        raise ValueError(
            f"entries must be bool of shape {wanted.shape}, got {counts.dtype} of shape {counts.shape}: say of each "
            "entry whether it counts"
        )
    rows = np.arange(len(wanted)) if samples is None else np.asarray(samples)
    if rows.dtype == bool and rows.shape != (len(wanted),):
        raise ValueError(f"samples must say of each of {len(wanted)} samples whether it counts, got {rows.shape}")
    if rows.dtype != bool:
        _numbers(rows, len(wanted))
    if not len(wanted[rows]):
        raise ValueError("samples must leave at least one sample that counts")
    if not counts[rows].any():
        raise ValueError("entries must leave at least one entry that counts, of the samples that do")
    for name, values in (("truth", wanted[rows]), ("estimate", found[rows])):
        wrong = np.argwhere(~np.isfinite(values) & counts[rows])
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(
                f"{name} must be finite where samples count, got {values[row, column]} in column {column}; not "
                f"finite are {len(wrong)} of {values.size} entries"
            )
    return wanted[rows], found[rows], counts[rows]


def _numbers(samples: np.ndarray, count: int) -> None:
    """Raise `ValueError` unless `samples` are integers in [0, count) without repeats."""
    whole = samples.ndim == 1 and samples.dtype.kind in "iu"
    if not whole or samples.min(initial=0) < 0 or samples.max(initial=0) >= count:
        raise ValueError(
            f"samples must hold whole numbers in [0, {count}), or a bool for each sample, got {samples.dtype} of shape "
            f"{samples.shape} from {samples.min(initial=0)} to {samples.max(initial=0)}"
        )
    if len(np.unique(samples)) < len(samples):
        raise ValueError("samples must hold no number twice; a mask of zeros and ones must be bool: .astype(bool)")
