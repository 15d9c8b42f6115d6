"""The initialisation-free label attack on directions with known geometry; test_vflrecon has a real run."""

import numpy as np
import pytest

from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import direction_clusters, vflrecon_free


def _cut_gradients(y, classes, seed=0, e=20, noise=0.0):
    """Cut gradients: a random Jacobian times p - onehot(y), with varied p and lengths."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 5.0), size=len(y))
    gradients = (p - np.eye(classes)[y]) @ np.random.default_rng(99).standard_normal((classes, e))
    gradients *= rng.uniform(0.5, 2.0, (len(y), 1))
    return gradients + noise * rng.standard_normal(gradients.shape)


def _prior(y, classes, accuracy, seed=1):
    """Log-probabilities of a calibrated baseline with this accuracy."""
    rng = np.random.default_rng(seed)
    said = np.where(rng.random(len(y)) < accuracy, y, rng.integers(classes, size=len(y)))
    p = np.full((len(y), classes), (1 - accuracy) / classes)
    p[np.arange(len(y)), said] += accuracy
    return np.log(p)


def _accuracy(y, classes, accuracy=0.4, **options):
    noise, window = options.pop("noise", 0.0), options.pop("window", None)
    found = party_records.free_labels(
        _cut_gradients(y, classes, noise=noise), np.arange(len(y)), _prior(y, classes, accuracy),
        num_samples=len(y), window=window,
    )  # fmt: skip
    return float(np.mean(found.labels == y)), found


def test_groups_and_a_weak_baseline_give_all_labels():
    rng = np.random.default_rng(0)
    for classes, count in ((2, 60), (5, 200), (12, 500)):
        accuracy, found = _accuracy(rng.integers(classes, size=count), classes)
        assert accuracy > 0.99
        assert found.confidence.mean() > 0.95


def test_unbalanced_and_absent_classes():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(600) < 0.03, 1, 0)
    assert _accuracy(y, 2)[0] == 1
    assert _accuracy(np.zeros(300, int), 2)[0] == 1
    y = rng.integers(3, size=300)
    accuracy, found = _accuracy(y, 8, accuracy=0.6)
    assert accuracy > 0.97
    assert set(found.labels) <= set(range(8))


@pytest.mark.slow
def test_a_hundred_classes():
    y = np.random.default_rng(0).permutation(np.arange(900) % 100)
    found = party_records.free_labels(
        _cut_gradients(y, 100, e=100), np.arange(900), _prior(y, 100, 0.3), num_samples=900, window=900, restarts=1
    )
    assert np.mean(found.labels == y) > 0.8


def test_noise_lowers_the_confidence_with_the_accuracy():
    y = np.random.default_rng(0).integers(4, size=400)
    clean, sure = _accuracy(y, 4)
    noisy, unsure = _accuracy(y, 4, noise=4.0)
    assert noisy < clean
    assert unsure.confidence.mean() < sure.confidence.mean()
    assert abs(unsure.confidence.mean() - noisy) < 0.25


def test_the_mean_direction_of_a_class_is_that_of_its_members_and_zero_for_an_absent_one():
    y = np.random.default_rng(0).integers(3, size=300)
    gradients = _cut_gradients(y, 3)
    found = direction_clusters.label_directions(gradients, _prior(y, 4, 0.6), previous_means=None, restarts=5, seed=0)
    unit = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    for label in range(3):
        np.testing.assert_allclose(found.means[label], unit[y == label].mean(axis=0), atol=0.02)
    np.testing.assert_array_equal(found.means[3], 0.0)


def test_windows_follow_drift_and_sightings_add_up():
    rng = np.random.default_rng(0)
    y, index = rng.integers(3, size=150), np.tile(np.arange(150), 3)
    gradients = np.concatenate([_cut_gradients(y, 3, seed=s) * (-1) ** s for s in range(3)])
    prior = np.tile(_prior(y, 3, 0.4), (3, 1))
    found = party_records.free_labels(gradients, index, prior, num_samples=160, window=150)
    assert len(found.windows) == 3
    np.testing.assert_array_equal(found.labels[:150], y)
    np.testing.assert_array_equal(found.labels[150:], -1)
    assert not found.confidence[150:].any()


def test_classes_that_turn_within_a_window_stay_together():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=800)
    # During the window, every class moves more than half of the way to the next class's start.
    share = np.linspace(0, 0.6, 800)[:, None]
    gradients = (1 - share) * _cut_gradients(y, 4) + share * _cut_gradients((y + 1) % 4, 4)
    gradients += 0.5 * rng.standard_normal(gradients.shape)

    def accuracy(order):
        prior = _prior(y, 4, 0.5)[order]
        found = party_records.free_labels(gradients[order], order, prior, num_samples=800)
        return np.mean(found.labels == y)

    in_time = accuracy(np.arange(800))
    assert in_time > 0.93
    assert in_time > accuracy(rng.permutation(800)) + 0.02  # an order without information on time


def test_directions_that_say_nothing_leave_the_baseline_alone():
    y = np.random.default_rng(0).integers(5, size=600)
    prior = _prior(y, 5, 0.6)
    noise = np.random.default_rng(1).standard_normal((600, 20))
    found = party_records.free_labels(noise, np.arange(600), prior, num_samples=600)
    np.testing.assert_allclose(np.exp(found.log_probability), np.exp(prior), rtol=1e-6)
    assert found.windows[0].separation == 0
    spoken = party_records.free_labels(noise + 2 * _cut_gradients(y, 5), np.arange(600), prior, num_samples=600)
    assert np.mean(spoken.labels == y) > np.mean(found.labels == y) + 0.1


def test_without_directions_the_baseline_answers():
    y = np.arange(40) % 2
    prior = _prior(y, 2, 0.9)
    found = party_records.free_labels(np.zeros((40, 3)), np.arange(40), prior, num_samples=40)
    np.testing.assert_allclose(np.exp(found.log_probability), np.exp(prior), rtol=1e-6)


def test_a_class_that_the_prior_excludes_gains_nothing_by_being_seen_often():
    y = np.arange(40) % 2
    prior = np.where(np.eye(2)[y] > 0, 0.0, -50.0)
    index = np.tile(np.arange(40), 3)
    found = party_records.free_labels(np.zeros((120, 3)), index, np.tile(prior, (3, 1)), num_samples=40, window=40)
    np.testing.assert_array_equal(found.labels, y)
    np.testing.assert_allclose(found.log_probability, prior, atol=1e-6)


def test_equal_lengths_have_equal_ranks():
    gradients = np.ones((6, 3))
    np.testing.assert_allclose(party_records.aligned_signals(gradients, np.zeros(6, int), 2)[:, -1], 0, atol=1e-12)


def test_aligned_signals_do_not_depend_on_the_basis():
    y = np.random.default_rng(0).integers(3, size=90)
    gradients = _cut_gradients(y, 3)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((20, 20)))[0]
    a, b = party_records.aligned_signals(gradients, y, 3), party_records.aligned_signals(7 * gradients @ rotation, y, 3)
    np.testing.assert_allclose(a, b, atol=1e-8)
    np.testing.assert_array_equal(a[:, :3], np.eye(3)[y])


def test_bad_input():
    gradients, prior = np.ones((10, 3)), np.zeros((10, 2))
    with pytest.raises(ValueError, match="rows must agree"):
        party_records.free_labels(gradients, np.arange(9), prior, num_samples=10)
    with pytest.raises(ValueError, match="must be finite"):
        party_records.free_labels(gradients * np.nan, np.arange(10), prior, num_samples=10)
    with pytest.raises(ValueError, match="window must be in"):
        party_records.free_labels(gradients, np.arange(10), prior, num_samples=10, window=3)
    for labels, message in (
        (np.full(10, -1), r"y must be in \[0, 2\)"),
        (np.zeros(9, int), r"must have shape \(10,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            party_records.aligned_signals(gradients, labels, 2)
    with pytest.raises(ValueError, match=r"^index must have shape \(10,\), one for each gradient, got \(9,\)$"):
        party_records.fit_aligned_features(
            gradients, gradients, np.zeros(10, int), gradients, 2, index=np.arange(9)
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"index": np.arange(-1, 9)},
            r"index must hold integers in .* = \[0, 10\), got int64 from -1 to 8: samples are .*",
        ),
        (
            {"index": np.arange(10.0)},
            r"index must hold integers in .* = \[0, 10\), got float64 from 0.0 to 9.0: samples are .*",
        ),
        (
            {"num_samples": 9},
            r"index must hold integers in \[0, num_samples\) = \[0, 9\), got int64 from 0 to 9: samples are .*",
        ),
        (
            {"log_prior": np.full((10, 2), 0.5)},
            "log_prior must hold logarithms of probabilities, got probabilities: .*",
        ),
        ({"seed": -1}, r"seed must be whole numbers in \[0, 2\^32\), got -1"),
        ({"log_prior": np.zeros(10)}, r"log_prior must have shape \(n, C\), got \(10,\)"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(changed, message):
    given = {"gradients": np.zeros((10, 3)), "index": np.arange(10), "log_prior": np.zeros((10, 2)), "num_samples": 10}
    party_records.free_labels(**given)
    with pytest.raises(ValueError, match=f"^{message}$"):
        party_records.free_labels(**given | changed)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(7, [7]), (8, [8]), (15, [15]), (16, [8, 8]), (17, [8, 9]), (23, [8, 15]), (24, [8, 8, 8])]
)
def test_what_is_left_of_the_windows_joins_the_last_one(monkeypatch, rows, sizes):
    lengths, means = [], []

    def window(gradients, log_prior, *, previous_means, **_):
        lengths.append(len(gradients))
        means.append(previous_means)
        return direction_clusters.DirectionLabels(log_prior, np.full((2, 3), float(len(lengths))), 0.0, 0.0)

    monkeypatch.setattr(vflrecon_free, "label_directions", window)
    prior = np.log(np.full((rows, 2), 0.5))
    party_records.free_labels(np.zeros((rows, 3)), np.arange(rows), prior, num_samples=rows, window=8)
    assert lengths == sizes
    assert means[0] is None
    assert [float(mean[0, 0]) for mean in means[1:]] == list(range(1, len(sizes)))


def test_sightings_add_up_and_the_prior_counts_once(monkeypatch):
    posterior = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [1.0, 0.0]])
    prior = np.array([[0.5, 0.5], [0.25, 0.75], [0.4, 0.6], [0.5, 0.5]])

    def window(gradients, log_prior, **_):
        with np.errstate(divide="ignore"):
            return direction_clusters.DirectionLabels(np.log(posterior), np.zeros((2, 3)), 0.0, 0.0)

    monkeypatch.setattr(vflrecon_free, "label_directions", window)
    index = np.array([0, 1, 0, 4])
    # Log-probabilities need not be normalised.
    found = party_records.free_labels(np.zeros((4, 3)), index, np.log(prior) + 2.5, num_samples=5, window=4)
    twice = posterior[0] * posterior[2] / prior[0]  # both priors are divided out, and the last sighting's is kept
    sure = np.maximum(posterior[3], 1e-9)
    for sample, weights in ((0, twice), (1, posterior[1]), (4, sure)):
        np.testing.assert_allclose(np.exp(found.log_probability[sample]), weights / weights.sum(), rtol=1e-6)
        assert found.confidence[sample] == pytest.approx((weights / weights.sum()).max())
    np.testing.assert_array_equal(found.labels, [0, 1, -1, -1, 0])
    np.testing.assert_array_equal(found.confidence[2:4], 0)
    assert not found.log_probability[2:4].any()


def test_windows_hold_enough_of_every_class():
    assert [vflrecon_free.default_window(classes) for classes in (2, 10, 11, 100)] == [1000, 1000, 1100, 10_000]


def test_aligned_signals_by_hand():
    y = np.array([0, 1, 0, 0, 1])
    gradients = np.random.default_rng(0).standard_normal((5, 3))
    # The order of lengths is not its own inverse, so ranks differ from the sorting permutation.
    gradients *= np.array([[3.0], [1.0], [1.0], [2.0], [5.0]]) / np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients[1] = 0  # without direction
    norms = np.linalg.norm(gradients, axis=1)
    unit = gradients / np.maximum(norms, 1e-9)[:, None]
    means = np.stack([unit[y == c].sum(axis=0) for c in (0, 1)])
    coordinates = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    found = party_records.aligned_signals(gradients, y, 2)
    for c in (0, 1):
        block = coordinates[y == c]
        np.testing.assert_allclose(found[y == c, 2:4], (block - block.mean(axis=0)) / block.std(axis=0), atol=1e-9)
        place = [sorted(norms[y == c]).index(norm) for norm in norms[y == c]]
        np.testing.assert_allclose(found[y == c, 4], (np.array(place) + 0.5) / len(place) - 0.5)


def test_rows_of_a_whole_table_are_renumbered_as_the_error_says():
    gradients, prior = _cut_gradients(np.arange(8) % 2, 2), np.zeros((8, 2))
    victim = np.array([3, 5, 8, 13, 21, 34, 55, 89])
    index = np.random.default_rng(0).permutation(victim)
    with pytest.raises(ValueError, match=r"from 3 to 89: .* whole table by np\.searchsorted\(victim, index\), where"):
        party_records.free_labels(gradients, index, prior, num_samples=8)
    found = party_records.free_labels(gradients, np.searchsorted(victim, index), prior, num_samples=8, window=8)
    assert (found.labels >= 0).all()
