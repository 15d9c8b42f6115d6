"""Baselines for split vertical learning: what an attacker predicts from its own features, without any gradients.

The leak is the gap between an attack and this baseline on the same shadow records; without the baseline no figure means
much. A weak baseline makes the attack look better, so the model is chosen and calibrated by cross-validation on the
shadow records.
"""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxleak import _validate

_log = logging.getLogger("jaxleak")

_FOLDS = 3
#: If the mean of a column differs from that of the shadow records by more standard deviations, it looks like a mistake.
_FAR = 10.0
_TREES = 200
_TEMPERATURES = (0.5, 0.7, 1.0, 1.5, 2.0, 4.0)
_SMOOTHING = (0.01, 0.05, 0.2)


class LabelBaseline(NamedTuple):
    """A calibrated classifier of one party's features."""

    log_proba: Callable[[ArrayLike], np.ndarray]  # (n, d) -> (n, C), finite
    name: str  # which candidate won
    log_loss: float  # cross-validated log-loss, by which this baseline won
    shares: np.ndarray  # (C,) shares of the classes among the records, each class counted once more than it occurs

    def predict(self, x: ArrayLike, *, balanced: bool = False) -> np.ndarray:
        """Labels (n,) int32, each the most probable class.

        Args:
            x: (n, d) the features that the baseline was fitted on.
            balanced: whether classes count as equally frequent. Use True if the score is the mean over the classes
                (`metrics.balanced_label_accuracy`). Otherwise rare classes are hardly ever predicted, and the baseline
                looks weaker than it is.
        """
        log_proba = self.log_proba(x)
        return (log_proba - balanced * np.log(self.shares)).argmax(axis=1).astype(np.int32)


class FeatureBaseline(NamedTuple):
    """A regression of the other parties' features on what the attacker has."""

    predict: Callable[[ArrayLike], np.ndarray]  # (n, d) -> (n, d_victim), clipped to the range seen when fitted
    name: str
    mse: float  # cross-validated
    errors: np.ndarray  # (n,) mean squared error of every record while it was held out
    target: np.ndarray | None = None  # (n, d_victim) the features that it was fitted on, in the order of the records


def gain_of(seen: FeatureBaseline, alone: FeatureBaseline) -> tuple[float, float]:
    """The mean error of `alone` minus that of `seen` on the same held-out records, and its standard error."""
    gained = alone.errors - seen.errors
    return float(gained.mean()), float(gained.std(ddof=1) / len(gained) ** 0.5)


def is_gain(gain: float, error: float) -> bool:
    """Whether a gain is above twice its standard error, and therefore unlikely to be chance."""
    return gain > 2 * error


def fit_label_baseline(x: ArrayLike, y: ArrayLike, num_classes: int, *, seed: int = 0) -> LabelBaseline:
    """The X_adv-only baseline for labels (VFLRecon, section IV-C).

    Candidates are logistic regressions of three strengths and extremely randomised trees. The lowest cross-validated
    log-loss wins, after a temperature and an admixture of the class shares chosen by the same log-loss: a class
    without shadow records keeps a small probability, and few records do not make an overconfident baseline.

    Args:
        x: (n, d) the attacker's own features of its shadow records, n >= 3.
        y: (n,) their labels in [0, C), at least two different, as integers or as floats that are whole numbers.
        num_classes: C.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if there are too few records or classes, x is not finite, y is not (n,) or holds
            anything but whole numbers in [0, C), or the seed is negative.
    """
    x, y = _checked(seed, x=x, y=y)
    _validate.count(num_classes=num_classes)
    if y.ndim != 1:
        flat = "y.ravel()" if y.size == len(x) else "y.argmax(axis=1) of one-hot rows"
        raise ValueError(f"y must have shape ({len(x)},), one label for each row of x, got {y.shape}: give {flat}")
    # A table of floats has its labels as 0.0 and 1.0.
    if y.dtype.kind == "f" and (y == np.round(y)).all():
        y = y.astype(np.int64)
    _validate.labels_in_range(y, num_classes)
    if len(np.unique(y)) < 2:
        raise ValueError("the shadow records must hold at least two classes")
    if 0 not in y:
        _log.warning("class 0 has no shadow record: labels count from 0, so that 1 and 2 are to be 0 and 1")
    shares = (np.bincount(y, minlength=num_classes) + 1) / (len(y) + num_classes)
    candidates: dict[str, Callable[[], Any]] = {
        f"logistic C={c}": functools.partial(_logistic, c) for c in (0.01, 0.1, 1.0)
    }
    candidates["trees"] = lambda: _trees("ExtraTreesClassifier", _TREES, seed)

    def probabilities(fitted: Any, x: np.ndarray) -> np.ndarray:
        full = np.zeros((len(x), num_classes))
        full[:, fitted.classes_] = fitted.predict_proba(x)
        return full

    def calibrated(raw: np.ndarray, temperature: float, smoothing: float) -> np.ndarray:
        powered = raw ** (1 / temperature)
        powered /= powered.sum(axis=1, keepdims=True)
        return np.log((1 - smoothing) * powered + smoothing * shares)

    best: tuple[float, str, float, float] | None = None
    for name, make in candidates.items():
        held_out = np.zeros((len(y), num_classes))
        for train, test in _folds(len(y), seed):
            if len(np.unique(y[train])) < 2:
                held_out[test] = shares
            else:
                held_out[test] = probabilities(_fit(make(), x[train], y[train]), x[test])
        for temperature in _TEMPERATURES:
            for smoothing in _SMOOTHING:
                log_proba = calibrated(held_out, temperature, smoothing)
                loss = float(-log_proba[np.arange(len(y)), y].mean())
                if best is None or loss < best[0]:
                    best = loss, name, temperature, smoothing
    assert best is not None
    loss, name, temperature, smoothing = best
    fitted = _fit(candidates[name](), x, y)
    asked = _asked_like(x)

    def answer(x: ArrayLike) -> np.ndarray:
        return calibrated(probabilities(fitted, asked(x)), temperature, smoothing)

    return LabelBaseline(answer, name, loss, shares)


def fit_feature_baseline(
    x: ArrayLike,
    target: ArrayLike,
    *,
    again: ArrayLike | None = None,
    more: tuple[ArrayLike, ArrayLike] | None = None,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> FeatureBaseline:
    """The X_adv-only baseline for features: the mean, ridge regressions and extremely randomised trees, as above.

    The candidate with the lowest cross-validated error wins. If a record has several rows, such as its visits in a run,
    they must belong to one group. Otherwise one row of a record may be learned and another one held out, and the record
    is remembered instead of predicted. Trees then win with an error near zero, however little the rows reveal.

    Args:
        x: (n, d) what the attacker has of its shadow records, n >= 3.
        target: (n, d_victim) the victims' features of these records.
        again: (n, d) a second observation of the same records, by which candidates are judged in the folds where a
            record is held out; None judges by `x`.
        more: further rows (m, d) with their targets (m, d_victim), such as other visits of the same records: the best
            candidate is fitted on them as well, and none is judged by them.
        groups: (n,) whole numbers, which record every row of `x` is of, >= 3 different ones; the rows of a record are
            held out together. None takes every row for a record of its own.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if there are too few records, shapes do not fit, values are not finite, `groups` holds anything but
            whole numbers, or the seed is negative.
    """
    x, target = _checked(seed, x=x, target=target)
    judged = x if again is None else _checked(seed, again=again, target=target)[0]
    if judged.shape != x.shape:
        raise ValueError(f"again must have the shape of x, {x.shape}, got {judged.shape}")
    candidates: dict[str, Callable[[], Any]] = {f"ridge {a}": functools.partial(_ridge, a) for a in (1.0, 100.0, 1e6)}
    candidates["trees"] = lambda: _trees("ExtraTreesRegressor", _TREES // 2, seed)
    low, high = target.min(axis=0), target.max(axis=0)

    def predict(fitted: Any, x: np.ndarray) -> np.ndarray:
        return np.clip(fitted.predict(x).reshape(len(x), -1), low, high)

    def held_out(make: Callable[[], Any]) -> np.ndarray:
        errors = np.zeros(len(x))
        for train, test in folds:
            off = predict(_fit(make(), x[train], target[train]), judged[test]) - target[test].reshape(len(test), -1)
            errors[test] = (off**2).mean(axis=1)
        return errors

    folds = _folds(len(x), seed) if groups is None else _folds_of_groups(groups, len(x), seed)
    errors = {name: held_out(make) for name, make in candidates.items()}
    # Folds of unequal size count alike.
    losses = {name: float(np.mean([error[test].mean() for _, test in folds])) for name, error in errors.items()}
    name = min(losses, key=lambda name: losses[name])
    further = [] if more is None else [_checked(seed, more=more[0], target=more[1])]
    rows, targets = (np.concatenate(parts) for parts in zip((x, target), *further, strict=True))
    fitted = _fit(candidates[name](), rows, targets)
    asked = _asked_like(x)
    return FeatureBaseline(lambda x: predict(fitted, asked(x)), name, losses[name], errors[name], target)


# scikit-learn is imported where it is used: it takes a quarter of a second that no other attack has to wait for.


def _trees(kind: Literal["ExtraTreesClassifier", "ExtraTreesRegressor"], count: int, seed: int) -> Any:
    from sklearn import ensemble

    return getattr(ensemble, kind)(count, min_samples_leaf=2, random_state=seed)


def _logistic(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _standardised(LogisticRegression(C=strength, max_iter=1000))


def _ridge(alpha: float) -> Any:
    from sklearn.linear_model import Ridge

    return _standardised(Ridge(alpha=alpha))


def _standardised(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _folds(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import KFold

    return list(KFold(_FOLDS, shuffle=True, random_state=seed).split(np.arange(count)))


def _folds_of_groups(groups: ArrayLike, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Folds that keep rows of one group together, which are those of `_folds` if every row is a group of its own."""
    from sklearn.model_selection import GroupKFold

    given = np.asarray(groups)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"groups must hold a whole number for each of the {count} rows of x, got shape {given.shape} and dtype "
            f"{given.dtype}"
        )
    if (different := len(np.unique(given))) < _FOLDS:
        raise ValueError(f"groups must hold at least {_FOLDS} different records, got {different}")
    return list(GroupKFold(_FOLDS, shuffle=True, random_state=seed).split(np.arange(count), groups=given))


def _fit(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        # An unfinished logistic regression is still a candidate; cross-validation judges it.
        warnings.simplefilter("ignore")
        return model.fit(x, y)


def _checked(seed: int, **named: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and what is learned of them, as arrays; raise `ValueError` if they do not fit or are not finite."""
    _validate.seeds(seed=seed)
    x, target = (np.asarray(given) for given in named.values())
    if x.ndim != 2 or target.ndim == 0 or len(x) != len(target):
        raise ValueError(f"{next(iter(named))} must be (n, d) with a target per row, got {x.shape} and {target.shape}")
    if len(x) < _FOLDS:
        raise ValueError(f"a baseline needs at least {_FOLDS} shadow records, got {len(x)}")
    for name, array in zip(named, (x, target), strict=True):
        _finite(name, array)
    return x, target


def _asked_like(fitted: np.ndarray) -> Callable[[ArrayLike], np.ndarray]:
    """What checks rows to predict from against those (n, d) that were fitted.

    It raises `ValueError` unless they are as wide, and finite, and warns of columns in what looks like another unit.
    """
    width, centre, spread = fitted.shape[1], fitted.mean(axis=0), fitted.std(axis=0)

    def asked(x: ArrayLike) -> np.ndarray:
        rows = np.asarray(x)
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(f"x must be (n, {width}), as wide as what the baseline was fitted on, got {rows.shape}")
        _finite("x", rows)
        distance = np.abs(rows.sum(axis=0) / max(len(rows), 1) - centre)
        off = np.flatnonzero((distance > _FAR * spread) & (spread > 0) & (len(rows) > 0))
        if len(off):
            _log.warning(
                "column %d has a mean of %.3g, and %.3g with a deviation of %.3g in the records that the baseline was "
                "fitted on: both must be in the same unit",
                off[0], rows[:, off[0]].mean(), centre[off[0]], spread[off[0]],
            )  # fmt: skip
        return rows

    return asked


def _finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, and is not in row {np.argwhere(~np.isfinite(array))[0][0]}")
