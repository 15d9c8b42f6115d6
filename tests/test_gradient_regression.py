"""A regression on cut gradients tells features that the attacker's own do not, and says so without the truth."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak._base import Observation, PartyRecord
from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import gradient_regression


def run(seed, samples=120, epochs=2, batch=8, secret=True):
    """Observations of a run whose cut gradients point where the secret says, with lengths that fall over the epochs."""
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


@pytest.mark.parametrize("secret", [True, False])
def test_gradients_are_read_if_they_tell_more_than_own_features(secret):
    shadow, own, features = run(0, secret=secret)
    known = party_records.fit_feature_baseline(own, features)
    found = party_records.fit_gradient_regression(shadow, features, known)
    seen, own, features = run(1, secret=secret)
    errors = [((answer - features) ** 2).mean() for answer in (found.predict(seen, own), known.predict(own))]
    assert found.gains is secret
    assert errors[0] < 0.1 * errors[1] if secret else errors[0] == errors[1]


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
    fitted = []

    def fit(rows, target, *, seed):
        fitted.append((rows, target, seed))
        return party_records.FeatureBaseline(lambda rows: rows[:, -1:], "lengths", 0.0)

    monkeypatch.setattr(gradient_regression, "fit_feature_baseline", fit)
    shadow, own, features = run(0, samples=16, epochs=3)
    worse = party_records.FeatureBaseline(lambda own: np.ones((len(own), 1)), "own", 1.0)
    found = party_records.fit_gradient_regression(shadow, features, worse, seed=4)
    ((rows, target, seed),) = fitted
    first = np.asarray(shadow.index)[:2].ravel()
    assert seed == 4
    np.testing.assert_array_equal(target, features[first])
    np.testing.assert_allclose(rows[:, :2], own[first], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows[:, 2:4], axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(rows[:, 4], 0.0, atol=1e-6)  # the length is 1 in the first epoch
    np.testing.assert_allclose(found.predict(run(1)[0], run(1)[1]), 0.0, atol=1e-6)


def test_a_record_that_was_drawn_twice_counts_once(monkeypatch):
    """In two folds it would tell itself, and gradients would seem to tell what they do not."""
    fitted = []
    own = party_records.FeatureBaseline(None, "own", 0.0)
    monkeypatch.setattr(
        gradient_regression, "fit_feature_baseline", lambda rows, target, *, seed: fitted.append(target)
    )
    shadow, _, features = run(0, samples=16, epochs=2)
    twice = shadow._replace(index=jnp.asarray([[0, 1, 2, 3, 4, 5, 6, 0]] * 4))
    party_records.fit_gradient_regression(twice, features, own)
    np.testing.assert_array_equal(fitted[0], features[:7])


def test_a_gradient_of_zero_has_no_direction():
    seen, _, _ = run(0)
    zero = seen._replace(party=seen.party._replace(output_gradient=0 * seen.party.output_gradient))
    _, rows = gradient_regression._directions(zero)
    np.testing.assert_array_equal(rows[:, 2:4], 0.0)
    np.testing.assert_allclose(rows[:, 4], np.log(1e-12))
