"""Predictions from the attacker's own features alone, against scikit-learn's own cross-validation."""

import itertools

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from slowness import slow_but

from jaxleak import metrics
from jaxleak.attacks import party_records

TEMPERATURES, SMOOTHINGS = (0.5, 0.7, 1.0, 1.5, 2.0, 4.0), (0.01, 0.05, 0.2)


def _calibrated(raw, temperature, smoothing, shares):
    powered = raw ** (1 / temperature)
    return np.log((1 - smoothing) * powered / powered.sum(axis=1, keepdims=True) + smoothing * shares)


@pytest.mark.slow
@pytest.mark.parametrize("telling", slow_but(("linear", "step", "weak"), ("step",)))
def test_the_label_baseline_is_the_candidate_of_the_least_log_loss(telling):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 3)) * [1.0, 100.0, 1.0]
    score = {"linear": x[:, 0], "step": np.abs(x[:, 0]) - 0.7, "weak": 0.3 * x[:, 0] + rng.standard_normal(90)}[telling]
    y = np.digitize(score, [-0.4, 0.4])
    candidates = {
        f"logistic C={c}": make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000))
        for c in (0.01, 0.1, 1.0)
    }
    candidates["trees"] = ExtraTreesClassifier(200, min_samples_leaf=2, random_state=5)
    folds = KFold(3, shuffle=True, random_state=5)
    shares = np.array([*(np.bincount(y) + 1), 1]) / (90 + 4)  # the fourth class has no record
    losses = {}
    for name, model in candidates.items():
        raw = np.pad(cross_val_predict(model, x, y, cv=folds, method="predict_proba"), ((0, 0), (0, 1)))
        for choice in itertools.product(TEMPERATURES, SMOOTHINGS):
            losses[name, *choice] = -_calibrated(raw, *choice, shares)[np.arange(90), y].mean()
    best = min(losses, key=lambda choice: losses[choice])
    found = party_records.fit_label_baseline(x, y, 4, seed=5)
    assert found.name == best[0] == {"linear": "logistic C=1.0", "step": "trees"}.get(telling, best[0])
    assert found.log_loss == pytest.approx(losses[best])
    others = rng.standard_normal((7, 3))
    raw = np.pad(candidates[best[0]].fit(x, y).predict_proba(others), ((0, 0), (0, 1)))
    np.testing.assert_allclose(found.log_proba(others), _calibrated(raw, *best[1:], shares))
    np.testing.assert_array_equal(found.predict(others), found.log_proba(others).argmax(axis=1))
    even = (np.exp(found.log_proba(others)) / shares).argmax(axis=1)
    np.testing.assert_array_equal(found.predict(others, balanced=True), even)


def test_a_rare_class_is_answered_where_classes_count_alike():
    """If one class is eight times as frequent, weak features for the other class never outweigh this."""
    y = np.arange(270) % 9 == 0
    x = np.random.default_rng(0).standard_normal((270, 1)) + y[:, None]
    found = party_records.fit_label_baseline(x.tolist(), y.astype(int).tolist(), 2)
    plain, even = (
        metrics.balanced_label_accuracy(y.astype(int), found.predict(x, balanced=balanced))
        for balanced in (False, True)
    )
    assert plain < 0.55
    assert even > 0.6


@pytest.mark.parametrize("telling", ["linear", "step", "nothing"])
def test_the_feature_baseline_is_the_candidate_of_the_least_error(telling):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((90, 3)) * [1.0, 100.0, 1.0]
    signal = {"linear": x[:, 0], "step": np.abs(x[:, 0]) > 0.7, "nothing": rng.random(90)}[telling]
    target = np.stack([signal, rng.random(90)], axis=1)
    candidates = {f"ridge {a}": make_pipeline(StandardScaler(), Ridge(alpha=a)) for a in (1.0, 100.0, 1e6)}
    candidates["trees"] = ExtraTreesRegressor(100, min_samples_leaf=2, random_state=3)
    clip = lambda out: np.clip(out, target.min(axis=0), target.max(axis=0))  # noqa: E731
    folds = KFold(3, shuffle=True, random_state=3)
    errors = {
        name: ((clip(cross_val_predict(model, x, target, cv=folds)) - target) ** 2).mean()
        for name, model in candidates.items()
    }
    found = party_records.fit_feature_baseline(x, target, seed=3)
    name = min(errors, key=lambda name: errors[name])
    assert found.name == name == {"linear": "ridge 1.0", "step": "trees"}.get(telling, name)
    assert found.mse == pytest.approx(errors[name]) == pytest.approx(found.errors.mean())
    others = 3 * rng.standard_normal((7, 3))
    np.testing.assert_allclose(found.predict(others), clip(candidates[name].fit(x, target).predict(others)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3)), r"x must be \(n, 1\), as wide as what the baseline was fitted on, got \(2, 3\)"),
        (np.array([[0.0], [np.inf]]), "x must be finite, and is not in row 1"),
    ],
)
def test_rows_that_no_baseline_was_fitted_on_are_refused(x, message):
    own = np.arange(6.0)[:, None]
    for answer in (
        party_records.fit_label_baseline(own, [0, 1] * 3, 2).predict,
        party_records.fit_feature_baseline(own, own).predict,
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            answer(x)


def test_another_time_judges_the_records_that_are_held_out():
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((30, 2)), rng.random((30, 1))
    found = party_records.fit_feature_baseline(target, target, again=x[:, :1])
    assert found.name == "ridge 1000000.0"  # x is perfect on the first run but useless on the second
    assert party_records.fit_feature_baseline(target, target).mse < 0.1 * found.mse
    for again, message in (
        (x, r"again must have the shape of x, \(30, 1\), got \(30, 2\)"),
        (x[0], r"again must be \(n, d\)"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            party_records.fit_feature_baseline(target, target, again=again)


def test_rows_of_one_record_are_held_out_together():
    rng = np.random.default_rng(0)
    records, visits = np.arange(30), 4
    x, target = rng.standard_normal((30, 3)), rng.random((30, 1))  # x is independent of the target
    index = np.concatenate([rng.permutation(records) for _ in range(visits)])
    rows, spread = x[index], float(target.var())
    remembered = party_records.fit_feature_baseline(rows, target[index])
    assert remembered.name == "trees"
    assert remembered.mse < 0.3 * spread
    held_out = party_records.fit_feature_baseline(rows, target[index], groups=index)
    assert held_out.mse > 0.9 * spread
    aligned = party_records.fit_aligned_features(
        rows, rng.standard_normal((len(index), 2)), index % 2, target[index], 2, index=index
    )
    assert aligned.mse > 0.9 * spread


def test_a_row_for_every_record_has_the_same_folds_with_groups():
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((31, 2)), rng.random((31, 2))
    plain, grouped = (party_records.fit_feature_baseline(x, target, groups=g, seed=4) for g in (None, np.arange(31)))
    assert plain.name == grouped.name
    np.testing.assert_array_equal(plain.errors, grouped.errors)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            np.arange(5),
            r"groups must hold a whole number for each of the 6 rows of x, got shape \(5,\) and dtype int64",
        ),
        (np.arange(6.0), "groups must hold a whole number for each of the 6 rows of x, .* float64"),
        (np.arange(6) % 2, "groups must hold at least 3 different records, got 2"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        party_records.fit_feature_baseline(np.arange(6.0)[:, None], np.arange(6.0), groups=groups)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.full((6, 1), np.nan)}, "x must be finite, and is not in row 0"),
        ({"x": np.full((6, 1), "1")}, "x must hold numbers, got dtype <U1"),
        ({"seed": -1}, r"seed must be whole numbers in \[0, 2\^32\), got -1"),
    ],
)
def test_what_no_model_can_be_fitted_on_is_refused_by_name(changed, message):
    given = {"x": np.arange(6.0)[:, None], "seed": 0} | changed
    with pytest.raises(ValueError, match=f"^{message}$"):
        party_records.fit_label_baseline(given["x"], [0, 1] * 3, 2, seed=given["seed"])
    with pytest.raises(ValueError, match=f"^{message}$"):
        party_records.fit_feature_baseline(given["x"], np.arange(6.0), seed=given["seed"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1, 2], "labels from 1 to 2"), ([-1, 1], "labels from -1 to 1"), ([0.0, 0.5], "y must hold integer labels")],
)
def test_labels_that_are_no_classes_are_refused_by_name(labels, message):
    with pytest.raises(ValueError, match=f"^y must .*{message.removeprefix('y must ')}"):
        party_records.fit_label_baseline(np.arange(6.0)[:, None], np.array(labels * 3), 2)


def test_labels_may_be_floats_that_are_whole_numbers():
    x, y = np.arange(6.0)[:, None], np.array([0, 0, 0, 1, 1, 1])
    found = party_records.fit_label_baseline(x, y.astype(np.float32), 2)
    np.testing.assert_array_equal(found.log_proba(x), party_records.fit_label_baseline(x, y, 2).log_proba(x))


@pytest.mark.parametrize(
    ("y", "got"),
    [
        (np.array([[0], [1]] * 3), r"\(6, 1\): give y\.ravel\(\)"),
        (np.eye(2)[[0, 1] * 3], r"\(6, 2\): give y\.argmax\(axis=1\) of one-hot rows"),
    ],
)
def test_labels_of_another_shape_are_refused_with_the_one_that_is_wanted(y, got):
    with pytest.raises(ValueError, match=rf"^y must have shape \(6,\), one label for each row of x, got {got}$"):
        party_records.fit_label_baseline(np.arange(6.0)[:, None], y, 2)


def test_a_fold_without_a_second_class_says_the_shares_alone():
    x, y = np.arange(4.0)[:, None], np.array([0, 0, 0, 1])
    found = party_records.fit_label_baseline(x, y, 2)
    assert np.isfinite(found.log_loss)
    with pytest.raises(ValueError, match="with a target per row"):
        party_records.fit_label_baseline(x[:, 0], y, 2)
    with pytest.raises(ValueError, match="with a target per row"):
        party_records.fit_feature_baseline(x, y[:3])
