"""How close the features of tables came, in which a party of vertical learning reads the others' columns."""

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._pairs import pair


def feature_mse(truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None = None) -> float:
    """Mean squared error per feature, of the victims' columns alone.

    It says nothing by itself: the variance of the columns is what their means score as an answer; see `feature_r2`.

    Args:
        truth: (N, d) the victims' columns in any unit, `attacks.party_records.victims_features(model, x, party)` of
            padded samples x (N, P, max d_p). The attacker's own columns and the padding, which every answer has right,
            are not among them.
        estimate: (N, d) the same of an answer's x, in the same unit.
        samples: which samples count: (N,) bool, such as an answer's `answered`, or their numbers; None is all.

    Returns:
        The mean over the columns and the samples that count, >= 0, in the square of the unit.

    Raises:
        ValueError: if the shapes differ or are not (N, d), no sample counts, or one that counts is not finite.
    """
    truth, estimate = _columns(truth, estimate, samples)
    return float(np.mean((truth - estimate) ** 2))


def feature_r2(truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None = None) -> float:
    """Share of the victims' variance that the answer explains: 1 if all is right, 0 for the columns' means.

    One minus the squared error over the squared distance from the columns' means, both added up over all columns, so
    that columns with a large variance count more. Columns should therefore be in one unit, standardised or scaled.

    Args:
        truth: (N, d), as `feature_mse` takes it.
        estimate: (N, d), as `feature_mse` takes it.
        samples: (N,) or their numbers, as `feature_mse` takes them.

    Returns:
        At most 1, and negative for an answer that is worse than the columns' means.

    Raises:
        ValueError: as `feature_mse`, or if no column varies.
    """
    truth, estimate = _columns(truth, estimate, samples)
    spread = np.sum((truth - truth.mean(axis=0)) ** 2)
    if spread == 0:
        raise ValueError("truth must vary over the samples that count: constant columns have no variance to explain")
    return float(1 - np.sum((truth - estimate) ** 2) / spread)


def _columns(truth: ArrayLike, estimate: ArrayLike, samples: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    if np.ndim(truth) == 3:
        raise ValueError(
            "truth must have shape (N, d), the victims' columns alone, got padded samples of shape "
            f"{np.shape(truth)}: take attacks.party_records.victims_features(model, x, party)"
        )
    wanted, found = pair(truth, estimate, axes=2)
    if samples is None:
        return _finite(wanted, found)
    rows = np.asarray(samples)
    if rows.dtype == bool and rows.shape != (len(wanted),):
        raise ValueError(f"samples must say of each of {len(wanted)} samples whether it counts, got {rows.shape}")
    if not len(wanted[rows]):
        raise ValueError("samples must leave at least one sample that counts")
    return _finite(wanted[rows], found[rows])


def _finite(truth: np.ndarray, estimate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for name, values in (("truth", truth), ("estimate", estimate)):
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(
                f"{name} must be finite where samples count, got {values[row, column]} in column {column}; not "
                f"finite are {len(wrong)} of {values.size} entries"
            )
    return truth, estimate
