"""A regression on cut gradients finds features that the attacker's own do not predict, and shows it without truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak._base import Observation, PartyRecord
from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import gradient_regression


def run(seed, samples=120, epochs=2, batch=8, secret=True):
    """Observations of a run where the secret sets the direction of cut gradients; lengths fall over the epochs."""
    rng = np.random.default_rng(seed)
    own, features = rng.normal(size=(samples, 2)), rng.uniform(size=(samples, 1))
    index = np.concatenate([rng.permutation(samples) for _ in range(epochs)]).reshape(-1, batch)
    angle = features if secret else rng.uniform(size=(samples, 1))
    directions = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    lengths = np.repeat(1.0 / np.arange(1, epochs + 1), samples // batch)[:, None, None]
    record = PartyRecord(
        jnp.asarray(own)[index], None, None, None, None, None, jnp.asarray(directions[index] * lengths)
    )
    return Observation(jnp.arange(len(index)), index=jnp.asarray(index), party=record), own, features


def alone(samples):
    """A stub of a baseline fitted to own features of `samples` records; it always predicts ones."""
    return party_records.FeatureBaseline(lambda own: np.ones((len(own), 1)), "own", 1.0, np.ones(samples))


@pytest.mark.parametrize(("gain", "error", "gains"), [(2.1, 1.0, True), (1.9, 1.0, False), (0.0, 0.0, False)])
def test_a_gain_within_twice_its_error_is_none(gain, error, gains):
    assert party_records.GradientRegression(alone(3), alone(3), gain, error).gains is gains


def test_rows_that_are_not_those_of_the_samples_are_refused():
    seen, own, features = run(0, samples=16)
    for rows, of_own, message in (
        (15, 15, "every sample of the run, got 15 and a sample 15: samples are numbered from 0 on .*"),
        (32, 16, "each record of own, 16, got 32"),
    ):
        with pytest.raises(ValueError, match=f"^features must have a row for {message}$"):
            party_records.fit_gradient_regression(seen, np.resize(features, (rows, 1)), alone(of_own))
    with pytest.raises(
        ValueError, match=r"^own must have a row for every sample of the run, got 15 and a sample 15: samples are .*"
    ):
        party_records.GradientRegression(alone(16), alone(16), 0.0, 1.0).predict(seen, own[:15])


@pytest.mark.parametrize("gain", [0.0, 3.0])
def test_own_features_of_other_people_are_refused(gain):
    seen, own, _ = run(0, samples=16)
    regression = party_records.GradientRegression(alone(16), alone(16), gain, 1.0)
    assert regression.predict(seen, own * (1 + 1e-6)).shape == (16, 1)
    visited = party_records.flat_observations(seen)[0][0]
    message = f"^own must hold the party's own features of .* row {visited} is not what the record holds of sample "
    with pytest.raises(ValueError, match=f"{message}{visited}: samples are numbered"):
        regression.predict(seen, run(1, samples=16)[1])
    with pytest.raises(ValueError, match=r"^own must have shape \(N, 2\), as wide as the record, got \(16, 1\)$"):
        regression.predict(seen, own[:, :1])


@pytest.mark.parametrize("secret", [True, False])
def test_gradients_are_read_if_they_tell_more_than_own_features(secret):
    shadow, own, features = run(0, secret=secret)
    known = party_records.fit_feature_baseline(own, features)
    found = party_records.fit_gradient_regression(shadow, features, known)
    seen, own, features = run(1, secret=secret)
    errors = [((answer - features) ** 2).mean() for answer in (found.predict(seen, own), known.predict(own))]
    assert found.gains is secret
    assert errors[0] < 0.1 * errors[1] if secret else errors[0] == errors[1]


# OpenBLAS may raise the flag for entries next to a small matrix that it reads but does not use. No number is NaN.
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("gains", [True, False])
def test_a_second_shadow_run_shows_what_was_learned_of_the_first_one_only(gains):
    """The second run has its steps in another order, and its gradients may not follow the rule of the first run."""
    shadow, own, features = run(0)
    known = party_records.fit_feature_baseline(own, features)
    again = jax.tree.map(lambda leaf: leaf[14:4:-1], run(0, secret=gains)[0])
    found = party_records.fit_gradient_regression(shadow, features, known, again=again)
    assert found.gains is gains
    assert len(found.seen.errors) == 80  # the records that both runs visit


def test_a_second_run_that_judges_nothing_is_refused():
    shadow, own, features = run(0, samples=16)
    known = party_records.fit_feature_baseline(own, features)
    shorter = jax.tree.map(lambda leaf: leaf[:2], shadow)
    for again in (shadow, shorter):
        with pytest.raises(
            ValueError, match=r"^again must be a shadow run in another order .* has the same samples in each step$"
        ):
            party_records.fit_gradient_regression(shadow, features, known, again=again)
    others = run(1, samples=16)[0]
    with pytest.raises(
        ValueError, match=r"^again must be a run of the records of shadow: own features of a sample diff"
    ):
        party_records.fit_gradient_regression(shadow, features, known, again=others)


def test_a_sample_that_no_step_visited_is_predicted_from_own_features():
    shadow, own, features = run(0)
    known = party_records.fit_feature_baseline(own, features)
    found = party_records.fit_gradient_regression(shadow, features, known)
    seen, own, _ = run(1)
    visited = np.unique(np.asarray(seen.index)[0])
    answer = found.predict(Observation(seen.round[:1], index=seen.index[:1], party=_first(seen.party)), own)
    alone = known.predict(own)
    rest = np.setdiff1d(np.arange(len(own)), visited)
    np.testing.assert_array_equal(answer[rest], alone[rest])
    assert (answer[visited] != alone[visited]).all()


def _first(record):
    return record._replace(x=record.x[:1], output_gradient=record.output_gradient[:1])


def test_the_first_epoch_of_the_shadow_run_is_read_and_the_first_visit_of_the_real_run(monkeypatch):
    fitted, errors = [], {5: np.zeros(16), 2: np.tile([1.0, 3.0], 8)}  # by the number of columns

    def fit(rows, target, *, again, seed):
        fitted.append((rows, target, seed))
        np.testing.assert_array_equal(again, rows)
        return party_records.FeatureBaseline(lambda rows: rows[:, -1:], "lengths", 0.0, errors[rows.shape[1]])

    monkeypatch.setattr(gradient_regression, "fit_feature_baseline", fit)
    shadow, own, features = run(0, samples=16, epochs=3)
    found = party_records.fit_gradient_regression(shadow, features, alone(16), seed=4)
    first = np.asarray(shadow.index)[:2].ravel()
    for _, target, seed in fitted:
        assert seed == 4
        np.testing.assert_array_equal(target, features[first])
    rows, of_own = (read for read, *_ in fitted)
    np.testing.assert_array_equal(of_own, rows[:, :2])
    assert found.gain == 2.0
    assert found.gain_error == pytest.approx(1 / 15**0.5)
    np.testing.assert_allclose(rows[:, :2], own[first], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows[:, 2:4], axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(rows[:, 4], 0.0, atol=1e-6)  # the length is 1 in the first epoch
    np.testing.assert_allclose(found.predict(run(1)[0], run(1)[1]), 0.0, atol=1e-6)


def test_a_record_that_was_drawn_twice_counts_once(monkeypatch):
    """A record in two folds would predict itself, and gradients would seem more informative than they are."""
    fitted = []

    def fit(rows, target, **_):
        fitted.append(target)
        return alone(len(rows))

    monkeypatch.setattr(gradient_regression, "fit_feature_baseline", fit)
    shadow, _, features = run(0, samples=16, epochs=2)
    twice = shadow._replace(index=jnp.asarray([[0, 1, 2, 3, 4, 5, 6, 0]] * 4))
    party_records.fit_gradient_regression(twice, features, alone(16))
    np.testing.assert_array_equal(fitted[0], features[:7])


def test_a_record_that_the_first_epoch_left_out_is_not_read_in_a_later_one():
    """In a later epoch, its gradient belongs to other parameters than those of all other rows."""
    index = np.array([[0, 1], [2, 3], [4, 0], [1, 2]])
    record = PartyRecord(jnp.ones((4, 2, 1)), None, None, None, None, None, jnp.ones((4, 2, 3)))
    seen = Observation(jnp.arange(4), index=jnp.asarray(index), party=record)
    records, rows = gradient_regression._first_visits(seen, np.zeros((5, 1)))
    assert records.tolist() == [0, 1, 2, 3]
    assert len(rows) == 4


def test_a_gradient_of_zero_has_no_direction():
    seen, _, _ = run(0)
    zero = seen._replace(party=seen.party._replace(output_gradient=0 * seen.party.output_gradient))
    _, *parts = party_records.flat_observations(zero)
    rows = gradient_regression._directions(*parts)
    np.testing.assert_array_equal(rows[:, 2:4], 0.0)
    np.testing.assert_allclose(rows[:, 4], np.log(1e-12))
