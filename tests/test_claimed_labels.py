"""Labels that an audit claims are in the batch or depend on a stated condition, and right updates are not refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import audit, models
from jaxleak._steps import weight_of_steps
from jaxleak.audit._checks import failed
from jaxleak.audit._checks.equations import _LABELS, check_head
from jaxleak.audit._checks.finding import DEFENSE_OTHER
from jaxleak.audit._checks.head import Head, columns_of, head_of
from jaxleak.audit._checks.labels import findings_of, labels_of
from jaxleak.audit._checks.precision import Precision, precision_of
from jaxleak.audit._checks.predicted import check_counts

WIDTH = 24


@functools.cache  # training takes longer than the checks
def network(classes, seed, trained):
    """The features of 900 samples after a ReLU, their labels, and a head, random or trained for some steps."""
    rng = np.random.default_rng(seed)
    y = np.arange(900) % classes
    x = rng.normal(size=(classes, 12))[y] + 0.6 * rng.normal(size=(900, 12))
    features = np.maximum(x @ rng.normal(size=(12, WIDTH)) / np.sqrt(12) + 0.1, 0)
    kernel, bias = rng.normal(size=(WIDTH, classes)) / np.sqrt(WIDTH), np.zeros(classes)
    for _ in range(150 * trained):
        rows = rng.choice(900, 64)
        slope = (softmax(features[rows] @ kernel + bias) - np.eye(classes)[y[rows]]) / 64
        kernel, bias = kernel - 0.3 * features[rows].T @ slope, bias - 0.3 * slope.sum(axis=0)
    return features, y, kernel, bias


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def batches(classes, batch, trained, trials=12):
    """Yield batches of all or of two classes: features, softmax outputs and labels, and the head's kernel and bias."""
    for seed in range(trials):
        features, y, kernel, bias = network(classes, seed % 3, trained)
        rng = np.random.default_rng(100 + seed)
        of = np.arange(classes) if seed % 2 else rng.choice(classes, 2, replace=False)
        rows = rng.choice(np.flatnonzero(np.isin(y, of)), batch, replace=False)
        yield features[rows], softmax(features[rows] @ kernel + bias), y[rows], kernel, bias


def head(features, slope, kernel, bias):
    gradient = (features.T @ slope).astype(np.float32).astype(float)
    return Head(gradient, slope.sum(axis=0).astype(np.float32).astype(float), kernel, bias, positive=True)


def mean(features, p, y, kernel, bias, sign=1.0):
    return head(features, sign * (p - np.eye(p.shape[1])[y]) / len(y), kernel, bias)


SIZES = [(10, 1), (10, 4), (10, 8), (10, 16), (10, 32), (4, 2), (4, 6), (2, 4)]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("classes", "batch"), SIZES)
def test_a_right_update_is_not_refused_and_proves_only_what_is_there(classes, batch, trained):
    for parts in batches(classes, batch, trained):
        right, counts = mean(*parts), np.bincount(parts[2], minlength=classes)
        assert not failed(check_head(right, batch))
        assert (labels_of(right, batch).proven <= counts).all()
        assert (labels_of(right, batch).if_stated <= counts).all()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("classes", "batch"), SIZES)
def test_a_reversed_sign_proves_nothing_without_naming_the_sign_as_a_condition(classes, batch, trained):
    for parts in batches(classes, batch, trained):
        turned = mean(*parts, sign=-1.0)
        found = labels_of(turned, batch)
        assert failed(check_head(turned, batch)) or not found.proven.any() or not found.signed


def test_a_head_of_zeros_tells_a_reversed_sign_by_the_columns_alone():
    """All softmax outputs are 1/C, so label counts are whole numbers for both signs."""
    features, _, kernel, bias = network(10, 0, False)
    p = np.full((5, 10), 0.1)
    right, turned = (mean(features[:5], p, np.arange(5), 0 * kernel, bias, sign) for sign in (1, -1))
    assert columns_of(right) == (5, 0, 0)
    assert columns_of(turned) == (0, 5, 0)
    assert labels_of(right, 5).signed
    (wrong,) = failed(check_head(turned, 5))
    assert (wrong.name, wrong.cause) == ("sign of absent classes", "the sign of the update is reversed")
    assert wrong.option == "--kind difference --learning-rate 1"
    assert not labels_of(turned._replace(positive=False), 5).signed


def test_a_right_sign_of_few_samples_is_confirmed():
    confirmed = [labels_of(mean(*parts), 4).signed for parts in batches(10, 4, False)]
    assert all(confirmed)
    assert not labels_of(mean(*next(batches(10, 4, False)))._replace(positive=False), 4).signed


def _even(classes, odds, sign=1.0):
    """The head's gradient for one sample of class 0 with equal softmax outputs, except that class 1 has other odds."""
    features, _, kernel, _ = network(classes, 0, False)
    bias = odds * np.eye(classes)[1]
    return mean(features[:1], softmax(bias[None]), np.array([0]), 0 * kernel, bias, sign)._replace(positive=False)


@pytest.mark.parametrize(("classes", "odds", "shown"), [(2, 0.0036, True), (2, 1e-5, False), (4, 1e-5, True)])
def test_the_equations_of_one_sample_show_the_sign_where_they_fail_for_the_reverse(classes, odds, shown):
    """Two classes leave no misfit, and near even odds the factor of the reversed sign is 1 up to rounding."""
    right, turned = _even(classes, odds), _even(classes, odds, -1.0)
    assert not failed(check_head(right, 1))
    assert labels_of(right, 1).signed == shown
    assert bool(failed(check_head(turned, 1))) == shown
    assert not labels_of(turned, 1).signed
    assert not labels_of(right, 1, local_steps=2).signed


def test_more_classes_than_samples_are_not_those_of_a_momentum_that_began_at_zero():
    """A momentum buffer that was kept contains the gradients of an earlier round's samples."""
    rng = np.random.default_rng(0)
    slope = 0.7 * np.array([0.1, -0.9, 0.2, -0.4, 1.0])
    features = rng.random(8)
    head = Head(np.outer(features, slope), slope, np.zeros((8, 5)), np.zeros(5))
    for samples, status in ((1, "failed"), (2, "passed")):
        (found,) = (f for f in check_head(head, samples, steps=3, epochs=3, uneven=True) if f.name == _LABELS)
        assert (found.status, found.options) == (status, ("--batch-size", DEFENSE_OTHER) * (status == "failed"))
        assert ("gradients of an earlier round" in found.cause) == (status == "failed")
    turned = head._replace(kernel_gradient=-head.kernel_gradient, bias_gradient=-slope)
    (found,) = (f for f in check_head(turned, 2, steps=3, epochs=3, uneven=True) if f.name == _LABELS)
    assert (found.status, found.cause) == ("failed", "the sign of the update is reversed")


def test_a_reversed_sign_is_named_where_it_explains_the_factor_of_one_sample():
    (wrong,) = failed(check_head(_even(2, 0.0036, -1.0), 1))
    assert wrong.cause.startswith("the sign of the update is reversed; or ")
    assert wrong.options[0] == "--kind difference --learning-rate 1"
    assert "the factor 1.004, not 1; with its sign reversed it is 1." in wrong.evidence


@pytest.mark.parametrize("batch", [4, 8])
def test_weights_of_classes_do_not_multiply_what_is_proven(batch):
    """The first sample's class has a hundred times the weight in PyTorch's mean of a weighted cross-entropy."""
    for features, p, y, kernel, bias in batches(10, batch, False):
        weight = np.where(y == y[0], 10.0, 0.1)
        slope = (p - np.eye(10)[y]) * (weight / weight.sum())[:, None]
        proven = labels_of(head(features, slope, kernel, bias), batch).proven
        assert (proven <= np.bincount(y, minlength=10)).all()


@pytest.mark.parametrize("batch", [4, 8, 16, 32])
def test_smoothed_labels_prove_no_class_that_is_absent(batch):
    for features, p, y, kernel, bias in batches(10, batch, True):
        smooth = 0.9 * np.eye(10)[y] + 0.1 / 10
        found = labels_of(head(features, (p - smooth) / batch, kernel, bias), batch)
        assert not found.proven[np.bincount(y, minlength=10) == 0].any()


@pytest.mark.parametrize("smoothing", [0.3, 0.5])
def test_labels_that_are_smoothed_more_prove_no_absent_class_where_counts_are_not_whole(smoothing):
    doubted = 0
    for features, p, y, kernel, bias in itertools.chain(batches(10, 4, True), batches(10, 4, False)):
        smooth = (1 - smoothing) * np.eye(10)[y] + smoothing / 10
        of_head = head(features, (p - smooth) / 4, kernel, bias)
        if check_counts(of_head, 4).status != "suspicious":
            continue
        doubted += 1
        assert not labels_of(of_head, 4).proven[np.bincount(y, minlength=10) == 0].any()
    assert doubted


def after_steps(features, y, kernel, bias, momentum, rate=2.0):
    """The head's gradient computed from its weights before and after large steps of two samples each."""
    before = after = np.vstack([kernel, bias])
    velocity, inputs = np.zeros_like(before), np.hstack([features, np.ones((len(y), 1))])
    for rows in np.arange(len(y)).reshape(-1, 2):
        slope = (softmax(inputs[rows] @ after) - np.eye(len(bias))[y[rows]]) / 2
        velocity = momentum * velocity + inputs[rows].T @ slope
        after = after - rate * velocity
    read = (before - after) / (rate * weight_of_steps(len(y) // 2, momentum))
    return Head(read[:-1], read[-1], kernel, bias)  # features may be negative here, so no column shows the sign


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_counts_that_several_steps_explain_cast_no_doubt_on_a_proof(momentum):
    doubted = 0
    for features, _, y, kernel, bias in batches(10, 6, True):
        right, counts = after_steps(features, y, kernel, bias, momentum), np.bincount(y, minlength=10)
        found = check_head(right, 6, steps=3, uneven=momentum > 0)
        assert not failed(found)
        assert (found[-1].name, found[-1].status) == ("whole numbers of labels", "not applicable")
        proven = labels_of(right, 6, local_steps=3)
        assert 0 < proven.proven.sum() <= proven.if_stated.sum()
        assert (proven.if_stated <= np.minimum(counts, 1)).all()
        doubted += not labels_of(right, 6).proven.any()
    assert doubted  # as one step's gradient, the same numbers would not fit this batch


def _difference(right, kernel, bias, rate):
    """The head's gradient computed from float32 weights before and after one step."""

    def read(gradient, before):
        before = before.astype(np.float32)
        return (before.astype(float) - (before - rate * gradient).astype(np.float32)) / rate

    precision = Precision(scale=1 / rate, of_weights=True)
    return right._replace(
        kernel_gradient=read(right.kernel_gradient, kernel), bias_gradient=read(right.bias_gradient, bias),
        kernel=kernel.astype(np.float32).astype(float), bias=bias.astype(np.float32).astype(float), precision=precision,
    )  # fmt: skip


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("batch", "rate"), [(1, 0.1), (1, 1e-3), (4, 1e-3), (8, 1e-3), (8, 1e-4)])
def test_weights_after_a_small_step_are_not_refused_for_their_rounding(batch, rate, trained):
    refused = 0
    for parts in batches(10, batch, trained):
        right = mean(*parts)
        rounded = _difference(right, *parts[3:], rate)
        assert not failed(check_head(rounded, batch))
        assert (labels_of(rounded, batch).proven <= np.bincount(parts[2], minlength=10)).all()
        refused += bool(failed(check_head(rounded._replace(precision=Precision()), batch)))
    assert refused or rate > 1e-3 or batch == 1  # rounding errors would be taken for samples


def test_what_rounding_of_weights_leaves_is_bounded():
    rng = np.random.default_rng(0)
    weights, gradient = rng.normal(size=(30, 5)).astype(np.float32), rng.normal(size=(30, 5))
    for rate in (1e-1, 1e-3, 1e-5):
        precision = precision_of([weights], [gradient], per_weight=1 / rate)
        assert precision == Precision(scale=1 / rate, of_weights=True)
        error = np.linalg.norm(precision.rounded(gradient, weights) - gradient) / np.linalg.norm(gradient)
        assert error <= precision.relative(gradient, weights) < 4 * error
        assert precision.relative(gradient, None) == 0
    half = precision_of([gradient.astype(np.float16)], [gradient.astype(np.float16)], per_weight=10.0)
    assert (half.name, half.of_weights) == ("float16", True)


def test_a_sample_that_is_nearly_fitted_is_not_refused():
    features = np.random.default_rng(0).random((1, WIDTH)).astype(np.float32)
    kernel, bias = np.zeros((WIDTH, 10), np.float32), np.zeros(10, np.float32)
    bias[3] = 12.5
    logits = jnp.asarray(features @ kernel + bias)
    p = np.asarray(jax.nn.softmax(logits), np.float32)
    slope = (p - np.eye(10, dtype=np.float32)[[3]]).astype(float)
    fitted = Head(features.T @ slope, slope.sum(axis=0), kernel.astype(float), bias.astype(float), positive=True)
    sums = abs(fitted.bias_gradient.sum()) / np.linalg.norm(fitted.bias_gradient)
    assert sums > 1e-3  # more than is allowed if no sample is fitted
    assert not failed(check_head(fitted, 1))


#: Functions that may follow the last dense layer, and whether the layer's output gradient is then that of the logits.
AFTER = {
    "nothing": (lambda z: z, True),
    "log-softmax": (jax.nn.log_softmax, True),
    "scale": (lambda z: 4 * z, False),
    "softcap": (lambda z: 5 * jnp.tanh(z / 5), False),
    "prior": (lambda z: z + jnp.log(jnp.arange(1.0, 5.0) / 10), False),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.gelu])
def test_a_head_counts_only_where_nothing_follows_it(after, activation):
    change, plain = AFTER[after]
    params = {
        "a": {"kernel": reference.normal(16, 8) / 4, "bias": jnp.full(8, 0.1)},
        "head": {"kernel": reference.normal(8, 4, seed=1) / 3, "bias": jnp.zeros(4)},
    }

    def apply(variables, x):
        p = variables["params"]
        h = activation(x.reshape(len(x), -1) @ p["a"]["kernel"] + p["a"]["bias"])
        return change(h @ p["head"]["kernel"] + p["head"]["bias"])

    model, variables = models.from_function(apply, {"params": params}, image_shape=(4, 4, 1))
    x = np.random.default_rng(2).random((1, 4, 4, 1)).astype(np.float32)
    loss = lambda p: -jax.nn.log_softmax(apply({"params": p}, x))[0, 2]  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(variables["params"])
    found = head_of(model, gradient, variables)
    assert (found is not None) == plain
    if found is not None:
        assert found.positive == (activation is jax.nn.relu)
    if activation is jax.nn.relu and after in ("nothing", "scale"):
        verdict = audit.update(model, variables, gradient, batch_size=1, minutes=1e-4)
        assert verdict.verdict != "inputs inconsistent"
        assert verdict.labels.tolist() == [0, 0, 1, 0]  # for one sample also behind a scale, by the rows of the classes
        assert ("the gradient of head/bias and head/kernel, in which" in verdict.reasons[0]) != plain


def of_one_logit(labels, p, weight=1.0):
    """The head of a network with one logit; samples of class 1 have a weight (`pos_weight`)."""
    y = np.array(labels)
    slope = np.where(y == 1, weight * (p - 1), p)[:, None] * [-1, 1] / len(y)
    kernel = np.stack([np.zeros(WIDTH), np.full(WIDTH, 0.1)], axis=1)
    features = np.random.default_rng(0).uniform(size=(len(y), WIDTH))
    return head(features, slope, kernel, np.zeros(2))._replace(one_logit=True)


def test_the_sums_of_one_logit_say_nothing():
    status = {finding.name: finding.status for finding in check_head(of_one_logit([1, 0], 0.4), 2)}
    assert status["sums over classes"] == "not applicable"
    assert "failed" not in status.values()


def test_findings_are_those_of_negative_entries_whatever_the_scale_and_the_weights_are():
    """Entries that may be negative only by rounding are ignored, and no counts are claimed."""
    slope = np.array([[-0.3, 0.2, 1e-9, -1e-9, 0.4], [0.1, 0.1, 0.2, 1e-9, -0.5]])
    features = np.random.default_rng(0).uniform(size=(2, WIDTH))
    for scale in (1e-3, 1.0, 50.0):
        found = findings_of(head(features, scale * slope, np.zeros((WIDTH, 5)), np.zeros(5)), 2)
        assert found.proven.tolist() == found.if_stated.tolist() == [1, 0, 0, 0, 1]
        assert found.findings
        assert found.uncounted
    without = head(features, slope, np.zeros((WIDTH, 5)), np.zeros(5))._replace(bias_gradient=None)
    assert not findings_of(without, 2).proven.any()


@pytest.mark.parametrize("label", [0, 1])
def test_one_sample_of_one_logit_proves_its_label(label):
    found = labels_of(of_one_logit([label], 0.4), 1)
    np.testing.assert_array_equal(found.proven, np.eye(2)[label])
    np.testing.assert_array_equal(found.if_stated, np.eye(2)[label])


def test_a_weight_of_class_1_multiplies_no_label_of_one_logit():
    """For two samples, a weight of 3.1 gives nearly whole counts, with two samples of class 1 where there is one."""
    turned = of_one_logit([1, 0], 0.5, weight=3.1)._replace(kernel=np.zeros((WIDTH, 2)), positive=False)
    assert not failed(check_head(turned, 2))
    assert labels_of(turned._replace(one_logit=False), 2).if_stated[1] == 2
    found = labels_of(turned, 2)
    np.testing.assert_array_equal([found.proven, found.if_stated], [[0, 1], [0, 1]])
    assert "scale of the update" in found.uncounted


def test_a_scale_that_is_stated_too_small_hides_labels_and_says_so():
    features, probabilities, y, kernel, bias = next(batches(10, 8, False))
    slope = (probabilities - np.eye(10)[y]) / len(y)
    for factor, claimed in ((1.0, True), (0.01, False)):
        head = Head(factor * features.T @ slope, factor * slope.sum(axis=0), kernel, bias, positive=True)
        found = labels_of(head, len(y), local_steps=2)
        assert bool(found.proven.any()) == claimed
        assert ("stated too large makes all entries small" in found.withheld) != claimed
