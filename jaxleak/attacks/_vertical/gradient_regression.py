"""A regression of the other parties' features on the cut gradients that a party received."""

from typing import NamedTuple

import numpy as np

from jaxleak import _validate
from jaxleak._base import Observation
from jaxleak.attacks._vertical.baselines import FeatureBaseline, fit_feature_baseline, gain_of, is_gain
from jaxleak.attacks._vertical.second_run import check_order, records_of_both
from jaxleak.attacks._vertical.vflrecon import NUMBERS, flat_observations


class GradientRegression(NamedTuple):
    """Two regressions: one on cut gradients and own features, and one on the attacker's own features alone."""

    seen: FeatureBaseline  # reads own features, and the directions and lengths of cut gradients
    own: FeatureBaseline  # reads own features alone
    gain: float  # error of a regression on own features minus that of `seen`, on the same held-out records
    gain_error: float  # standard error of `gain` over these records

    @property
    def gains(self) -> bool:
        """Whether gradients reveal features in the shadow run: the gain is above twice its standard error.

        It is measured on the attacker's own records, and no truth is needed. Within one shadow run it is often wrong;
        `again` of `fit_gradient_regression` judges better. Neither notices if the gradients of a real run differ from
        those of shadow runs, because it starts from other parameters or has a defense that they lack. The answer may
        then be worse than that of own features alone.
        """
        return is_gain(self.gain, self.gain_error)

    def predict(self, observations: Observation, own: np.ndarray) -> np.ndarray:
        """The victims' features of all samples of a real run.

        Args:
            observations: what the party saw of the real run, (T, B, ...). A sample is read at its first visit, which is
                nearest to the parameters of the shadow run's first epoch.
            own: (N, d) the party's own features of all samples of the real run, in the order of their numbers.

        Returns:
            (N, d_victim). Samples that no step visited are predicted from `own` alone, and all are if nothing is
            gained.

        Raises:
            ValueError: if the threat withholds the sample ids or the party's record, `own` lacks a sample, or
                a row of `own` is not what the record holds of that sample.
        """
        index, x, gradients = flat_observations(observations)
        rows_for(index, own=own)
        _own_of_the_record(index, x, own)
        estimate = self.own.predict(own)
        if self.gains:
            samples, first = np.unique(index, return_index=True)
            estimate[samples] = self.seen.predict(_directions(x, gradients)[first])
        return estimate


def fit_gradient_regression(
    shadow: Observation,
    features: np.ndarray,
    own: FeatureBaseline,
    *,
    again: Observation | None = None,
    seed: int = 0,
) -> GradientRegression:
    """Learn from a shadow run to predict the other parties' features from cut gradients (ours).

    The regression replaces VFLRecon's network, and often finds more. It reads the party's own features, and the
    direction and the logarithm of the length of the cut gradient. Its strength is chosen by cross-validation on the
    first visits in the shadow run's first epoch, so that whole records are held out. A regression on own features alone
    is fitted to the same records in the same folds, for `GradientRegression.gains`.

    A shadow run follows one path of the parameters, and the real run follows another. If the regression memorises the
    shadow run's path, this looks like a gain. A second shadow run in another order reveals such memorising: if it is
    given as `again`, held-out records are judged by their gradients in that run.

    Shadow runs must start from the parameters of the real run (`shadow_params`, "shared"), be watched from its first
    step on or over the same epochs, and have its defense, if there is one (`adaptive.informed_party`). Otherwise the
    gradients have other directions, which cross-validation on shadow runs does not show.

    Args:
        shadow: what the party saw of its shadow run, (T, B, ...).
        features: (n, d_victim) the victims' features of the shadow records, `victims_features(model, shadow.x, party)`.
        own: `fit_feature_baseline` of the party's own features of these records.
        again: what the party saw of a second shadow run of the same records from the same parameters, in another order;
            its first epoch is read. None judges within the one run.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if the threat withholds the sample ids or the party's record, there are too few records,
            `features` are not those of the records that `own` was fitted on, or `again` is the same run or one of other
            records.
    """
    _validate.made(FeatureBaseline, "fit_feature_baseline", own=own)
    if again is not None:
        _validate.made(Observation, "recorded", again=again)
    features = np.asarray(features)
    if features.ndim != 2:
        raise ValueError(f"features must be (n, d_victim), got shape {features.shape}")
    if len(features) != len(own.errors):
        raise ValueError(f"features must have a row for each record of own, {len(own.errors)}, got {len(features)}")
    fitted = features if own.target is None else own.target
    if features.shape != fitted.shape or not np.allclose(features, fitted, rtol=1e-4, atol=1e-6):
        raise ValueError(
            "features must be those of the records that own was fitted on, in the same order and unit: a regression on "
            "other records' features finds nothing, and would read as if nothing leaked"
        )
    records, rows = _first_visits(shadow, features)
    judged, width = rows, shadow.party.x.shape[-1]  # type: ignore[union-attr]
    if again is not None:
        check_order(shadow, again)
        others, seen_again = _first_visits(again, features)
        here, there = records_of_both(records, rows[:, :width], others, seen_again[:, :width], "own features")
        records, rows, judged = records[here], rows[here], seen_again[there]
    target = features[records]
    seen = fit_feature_baseline(rows, target, again=judged, seed=seed)
    beside = fit_feature_baseline(rows[:, :width], target, again=judged[:, :width], seed=seed)
    return GradientRegression(seen, own, *gain_of(seen, beside))


def _first_visits(run: Observation, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and rows of the records that the first epoch of a shadow run visits, in the order of the visits."""
    index, *parts = flat_observations(run)
    rows = _directions(*parts)
    rows_for(index, features=features)
    size = len(index) // len(run.round)
    # A record that was drawn again would be learned in one fold and tested in another.
    first = np.sort(np.unique(index[: len(features) // size * size], return_index=True)[1])
    return index[first], rows[first]


def rows_for(index: np.ndarray, **named: np.ndarray) -> None:
    """Raise `ValueError` unless an array has a row for every sample that took part."""
    for name, array in named.items():
        if len(array) <= index.max():
            raise ValueError(
                f"{name} must have a row for every sample of the run, got {len(array)} and a sample {index.max()}: "
                f"{NUMBERS}"
            )


def _own_of_the_record(index: np.ndarray, x: np.ndarray, own: np.ndarray) -> None:
    """Raise `ValueError` if the rows of `own` are not the features x (T B, d) of these samples in the record."""
    # Rows of other people would be answered without a word, and the gradients would seem to tell nothing.
    given = np.asarray(own)
    if given.shape[1:] != x.shape[1:]:
        raise ValueError(f"own must have shape (N, {x.shape[1]}), as wide as the record, got {given.shape}")
    # A record may have been kept in half precision, or standardised in another one: other people differ by more.
    near = np.abs(given[index] - x) <= 2e-2 * np.abs(x) + 1e-2 * x.std(axis=0) + 1e-6
    wrong = index[~near.all(axis=1)]
    if wrong.size:
        raise ValueError(
            "own must hold the party's own features of the samples of the real run, in the order of their numbers, but "
            f"row {wrong[0]} is not what the record holds of sample {wrong[0]}: {NUMBERS}"
        )


def _directions(x: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Own features beside the cut gradient's direction and log length (T B, d + e + 1)."""
    norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
    return np.concatenate([x, gradients / norms, np.log(norms)], axis=1)
