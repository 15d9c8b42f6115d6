import functools
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, models, protocols
from jaxleak.attacks._inversion import label_rules as rules
from jaxleak.attacks._inversion.labels import inferred_labels
from jaxleak.metrics import label_multiset_accuracy

CLASSES, FEATURES = 7, 12


def _head(labels, seed=0, scale=0.05, classes=CLASSES):
    """The gradient of the mean cross-entropy at a dense layer, one sample at a time, and the layer's weights."""
    rng = np.random.default_rng(seed)
    kernel = scale * rng.standard_normal((FEATURES, classes))
    bias = scale * rng.standard_normal(classes)
    slope, offset = np.zeros((FEATURES, classes)), np.zeros(classes)
    for label in labels:
        features = np.maximum(rng.standard_normal(FEATURES) + 0.5, 0)
        z = features @ kernel + bias
        p = np.exp(z) / np.exp(z).sum()
        p[label] -= 1
        slope += np.outer(features, p) / len(labels)
        offset += p / len(labels)
    return [jnp.asarray(a, jnp.float32) for a in (slope, offset, kernel, bias)]


def _infer_eagerly(rule, head, batch_size):
    kernel_gradient, bias_gradient, kernel, bias = head
    key = jax.random.key(0)
    return rules.infer_labels(rule, kernel_gradient, bias_gradient, batch_size, kernel=kernel, bias=bias, key=key)


_infer = jax.jit(_infer_eagerly, static_argnums=(0, 2))  # uncompiled, a rule is dozens of operations

DISTINCT = [5, 0, 3]
REPEATS = [2, 2, 2, 6, 0, 0, 5, 2, 1, 1]


@pytest.mark.parametrize("rule", sorted(set(rules.LABEL_RULES) - {"random", "counting_rule"}))
def test_one_label_is_found_by_every_rule(rule):
    for label in (0, 4, CLASSES - 1):
        assert _infer(rule, _head([label], seed=label), 1).tolist() == [label]


@pytest.mark.parametrize("label", range(3))
def test_one_label_is_found_without_a_bias_whatever_sign_the_features_have(label):
    """Features after a layer normalisation may be negative; then the column sums have the wrong sign and class."""
    slope, *rest = _head([label], classes=3)
    sums = (-slope).sum(axis=0)
    assert int(jnp.argmin(sums)) != label
    assert rules.infer_labels("longest_column", -slope, None, 1).tolist() == [label]
    assert rules.rule_of_one_sample(None) == "longest_column"
    assert rules.rule_of_one_sample(rest[0]) == "bias_rule"


def test_of_two_classes_the_longer_column_says_nothing():
    slope = _head([1], classes=2)[0]
    assert rules.infer_labels("longest_column", slope, None, 1).tolist() == [1]
    assert rules.infer_labels("longest_column", -slope, None, 1).tolist() == [0]  # features >= 0 are assumed


@pytest.mark.parametrize(
    "rule", ["yin", "sum_rule", "fedleak", "corrected_counts", "averaged_counts", "bias_rule", "calibrated"]
)
def test_distinct_labels_are_found(rule):
    assert _infer(rule, _head(DISTINCT), 3).tolist() == sorted(DISTINCT)


@pytest.mark.parametrize("rule", ["bias_rule", "calibrated"])
def test_repeats_are_counted(rule):
    assert _infer(rule, _head(REPEATS), 10).tolist() == sorted(REPEATS)


def test_calibration_helps_where_the_mean_softmax_is_not_uniform():
    scores = {"bias_rule": [], "calibrated": []}
    for seed in range(5):
        labels = np.random.default_rng(seed).integers(0, CLASSES, 60)
        head = _head(labels, seed, scale=0.15)
        for rule in scores:
            scores[rule].append(label_multiset_accuracy(labels, np.asarray(_infer(rule, head, 60))))
    assert np.mean(scores["calibrated"]) > np.mean(scores["bias_rule"]) + 0.02


def test_the_average_counts_what_the_kernel_and_the_bias_say_together():
    """A defense misleads each one alone: it prunes the bias to one entry, or the kernel to a few."""
    labels = np.random.default_rng(1).integers(0, CLASSES, 4)
    slope, offset, *weights = _head(labels)
    largest = jnp.where(jnp.abs(offset) == jnp.abs(offset).max(), offset, 0.0)
    pruned = slope, largest, *weights
    assert _infer("averaged_counts", pruned, 4).tolist() == sorted(labels)
    assert _infer("bias_rule", pruned, 4).tolist() != sorted(labels)
    # By hand for four samples: shares of the depth below the column of an absent class, and 1 / C - db.
    by_kernel = 4 * np.asarray(slope.sum(axis=0).max() - slope.sum(axis=0))
    by_kernel = by_kernel / by_kernel.sum() * 4
    wanted, counts = (by_kernel + 4 * (1 / CLASSES - np.asarray(largest))) / 2, np.zeros(CLASSES, int)
    for _ in range(4):
        counts[np.argmax(wanted - counts)] += 1
    assert np.bincount(_infer("averaged_counts", pruned, 4), minlength=CLASSES).tolist() == counts.tolist()
    without = rules.infer_labels("averaged_counts", slope, None, 4)
    np.testing.assert_array_equal(without, rules.infer_labels("corrected_counts", slope, None, 4))


@pytest.mark.parametrize("seed", range(4))
def test_rules_equal_slow_references(seed):
    labels = np.random.default_rng(seed).integers(0, CLASSES, 20)
    head = _head(labels, seed, scale=0.2)
    slope, offset = (np.asarray(a, np.float64) for a in head[:2])
    sums = [sum(slope[:, c]) for c in range(CLASSES)]
    by = lambda values, n: sorted(sorted(range(CLASSES), key=lambda c: values[c])[:n])  # noqa: E731
    assert _infer("sum_rule", head, 4).tolist() == by(sums, 4)
    assert _infer("yin", head, 4).tolist() == by([min(slope[:, c]) for c in range(CLASSES)], 4)

    depths = [sum(slope[:, c] - slope.max()) for c in range(CLASSES)]
    counts = [int(np.floor(20 * d / sum(depths))) for d in depths]
    while sum(counts) < 20:
        counts[int(np.argmin(sums))] += 1
    assert np.bincount(_infer("counting_rule", head, 20), minlength=CLASSES).tolist() == counts

    depths = [max(sums) - s for s in sums]  # C (1 - 1/C)^B >= 1/2 for 10 samples
    expected = _largest_remainders([10 * d / sum(depths) for d in depths], 10)
    assert np.bincount(_infer("corrected_counts", head, 10), minlength=CLASSES).tolist() == expected
    wanted = [20 * (1 / CLASSES - b) for b in offset]
    if min(wanted) >= 0:
        expected = _largest_remainders(wanted, 20)
        assert np.bincount(_infer("bias_rule", head, 20), minlength=CLASSES).tolist() == expected


def test_shares_are_measured_from_an_absent_class_only_where_one_is_likely():
    """Uniform labels are expected to miss C (1 - 1/C)^B classes: with C = 7, .509 for B = 17 and .436 for B = 18."""
    differ = {17: 0, 18: 0}
    for seed in range(6):
        for size in differ:
            head = _head(np.random.default_rng(seed).integers(0, CLASSES, size), seed, scale=0.3)
            slope = np.asarray(head[0], np.float64)
            counts = []
            for zero in (slope.sum(axis=0).max() / FEATURES, slope.max()):  # by an absent class; by the largest entry
                depths = (zero - slope).sum(axis=0)
                counts.append(_largest_remainders(list(size * depths / depths.sum()), size))
            differ[size] += counts[0] != counts[1]
            found = np.bincount(_infer("corrected_counts", head, size), minlength=CLASSES).tolist()
            assert found == counts[size > 17]
    assert min(differ.values()) > 0  # else the test would be vacuous


def _slow_calibrated(head, size, rounds=5, trust=0.5):
    slope, gradient, kernel, bias = (np.asarray(a, np.float64) for a in head)

    def outputs(features):
        z = features @ kernel + bias
        p = np.exp(z - z.max())
        return trust * p / p.sum() + (1 - trust) / CLASSES

    mean = slope @ gradient / (gradient @ gradient)
    p = outputs(mean)
    for _ in range(rounds):
        n = np.maximum(p - gradient, 0)
        n = size * n / n.sum()
        total, weights = np.zeros(CLASSES), 0.0
        for c in range(CLASSES):
            if n[c] > 0.5:
                own = np.maximum((p[c] * mean - slope[:, c]) * size / n[c], 0)
                total, weights = total + n[c] * outputs(own), weights + n[c]
        p = total / weights
    counts = np.zeros(CLASSES, int)
    for _ in range(size):
        counts[np.argmax(size * (p - gradient) - counts)] += 1
    return counts.tolist()


def test_calibrated_equals_a_slow_reference_with_its_constants():
    other = Counter()
    for seed in range(12):
        head = _head(np.random.default_rng(seed).integers(0, CLASSES, 60), seed, scale=0.4)
        found = np.bincount(_infer("calibrated", head, 60), minlength=CLASSES).tolist()
        assert found == _slow_calibrated(head, 60)
        for constants in ({"trust": 0.4}, {"trust": 0.6}, {"rounds": 1}):
            other[str(constants)] += found != _slow_calibrated(head, 60, **constants)
    assert min(other.values()) > 0  # the constants matter for these gradients
    assert len(other) == 3


def _largest_remainders(shares, total):
    counts = [int(np.floor(s)) for s in shares]
    order = sorted(range(len(shares)), key=lambda c: counts[c] - shares[c])
    for c in order[: total - sum(counts)]:
        counts[c] += 1
    return counts


def test_nearest_counts_are_optimal():
    from itertools import product

    rng = np.random.default_rng(0)
    for _ in range(5):
        wanted = 2 * rng.standard_normal(4)
        found = np.asarray(rules._nearest_counts(jnp.asarray(wanted, jnp.float32), 5))
        every = [c for c in product(range(6), repeat=4) if sum(c) == 5]
        assert found.sum() == 5
        assert found.min() >= 0
        best = min(sum((np.array(c) - wanted) ** 2) for c in every)
        np.testing.assert_allclose(sum((found - wanted) ** 2), best, rtol=1e-5)


@pytest.mark.parametrize("rule", sorted(rules.LABEL_RULES))
def test_shape_dtype_order_and_jit(rule):
    batch_size = {"single_label": 1, "longest_column": 1, "counting_rule": 9}.get(rule, 5)
    head = _head(REPEATS)
    labels = np.asarray(_infer(rule, head, batch_size))
    assert labels.shape == (batch_size,)
    assert labels.dtype == np.int32
    assert (np.diff(labels) >= 0).all()
    assert labels.min() >= 0
    assert labels.max() < CLASSES
    np.testing.assert_array_equal(labels, _infer_eagerly(rule, head, batch_size))


@pytest.mark.parametrize("rule", ["corrected_counts", "averaged_counts", "bias_rule", "calibrated", "counting_rule"])
def test_a_gradient_of_zeros_still_gives_labels_in_range(rule):
    zero = [jnp.zeros_like(a) for a in _head([0])]
    counts = np.bincount(_infer(rule, zero, 14), minlength=CLASSES)
    assert counts.tolist() == [2] * CLASSES


def test_fedleak_switches_at_the_number_of_classes():
    head = _head(REPEATS)
    np.testing.assert_array_equal(_infer("fedleak", head, CLASSES), _infer("sum_rule", head, CLASSES))
    np.testing.assert_array_equal(_infer("fedleak", head, CLASSES + 1), _infer("counting_rule", head, CLASSES + 1))


def test_random_labels_follow_the_key():
    head = _head([0])
    draw = lambda seed: rules.infer_labels("random", *head[:2], 50, key=jax.random.key(seed))  # noqa: E731
    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).any()


def test_bad_requests():
    head = _head(DISTINCT)
    with pytest.raises(ValueError, match=r"rule must be one of single_label, longest_column, yin, .* got 'guess'"):
        _infer("guess", head, 2)
    for rule in ("single_label", "longest_column"):
        with pytest.raises(ValueError, match=r"one sample, got batch_size 2: .*--labels calibrated.*--labels given"):
            _infer(rule, head, 2)
    for rule in ("yin", "sum_rule"):
        with pytest.raises(ValueError, match="batch_size 8 is more than 7 classes"):
            _infer(rule, head, 8)
    with pytest.raises(ValueError, match="more samples than classes, got 7 samples, 7 classes"):
        _infer("counting_rule", head, 7)
    with pytest.raises(ValueError, match="batch_size must be > 0"):
        _infer("bias_rule", head, 0)
    with pytest.raises(ValueError, match="needs the gradient of the bias"):
        rules.infer_labels("bias_rule", head[0], None, 2)
    with pytest.raises(ValueError, match="needs the kernel and the bias"):
        rules.infer_labels("calibrated", *head[:2], 2)
    with pytest.raises(ValueError, match="need a key"):
        rules.infer_labels("random", *head[:2], 2)
    with pytest.raises(ValueError, match=r"bias_gradient must have shape \(7,\)"):
        rules.infer_labels("bias_rule", head[0], head[1][:3], 2)
    with pytest.raises(ValueError, match=r"must have shape \(F, C\)"):
        rules.infer_labels("yin", head[1], None, 2)


def test_calibrated_answers_where_noise_left_no_class_a_count():
    """If all bias gradients exceed every probability, only the prior is left to distribute."""
    head = [np.zeros((3, 2), np.float32), np.float32([2.0, 1.5]), np.zeros((3, 2), np.float32), np.zeros(2, np.float32)]
    np.testing.assert_array_equal(_infer("calibrated", head, 4), _infer("bias_rule", head, 4))


@functools.cache
def _twins(shift):
    """Two functions that infer the labels from the upload of four samples: for one logit, and for a two-logit twin."""
    w, b = np.linspace(-1.0, 1.0, 12, dtype=np.float32)[:, None], np.full(1, shift, np.float32)
    x, found = np.asarray(0.5 + 0.1 * reference.normal(4, 1, 2, 2, 3)), []
    for params in ({"w": w, "b": b}, {"w": np.hstack([0 * w, w]), "b": np.hstack([0 * b, b])}):
        model, variables = models.from_function(
            lambda v, x: x.reshape(len(x), -1) @ v["params"]["w"] + v["params"]["b"],
            {"params": params},
            image_shape=(2, 2, 3),
        )
        share, setup = protocols.ClientShare(model), SimpleNamespace(model=model, batch_size=4)

        def inferred(labels, variables=variables, share=share, setup=setup):
            payload = share(variables, Batch(x, labels, jnp.zeros(4)))
            seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
            return inferred_labels("calibrated", setup, seen, jax.random.key_data(jax.random.key(0)))

        found.append(jax.jit(inferred))
    return found


@pytest.mark.parametrize("shift", [0.7, 1.5])
@pytest.mark.parametrize("labels", [(0, 0, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1), (0, 0, 0, 0)])
def test_labels_of_one_logit_are_those_of_its_twin_of_two(labels, shift):
    """With a large bias the rule is wrong for both networks, since its estimate of the mean softmax is wrong."""
    found = [np.sort(inferred(np.asarray(labels, np.int32))) for inferred in _twins(shift)]
    np.testing.assert_array_equal(*found)
    if shift < 1:
        np.testing.assert_array_equal(found[0], labels)
