"""Updates of 16 bits are recognised, and rounding errors are not taken for samples, labels or mistakes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import reference

from jaxleak import Batch, audit, capture, models, protocols
from jaxleak.audit._checks import check_known_images, equations, failed, head
from jaxleak.audit._checks.labels import labels_of
from jaxleak.audit._checks.precision import FULL, Precision, precision_of

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _as_sent(tree, name):
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(HALF[name]).astype(np.float32), tree)


@pytest.fixture(scope="module")
def client():
    """A convolutional client of four samples of three classes, and its gradient."""
    model = models.convnet((8, 8, 3), 10, channels=(8, 8), strides=(1, 2), batch_norm=True)
    variables = reference.drawn(model)
    x = reference.uniform(4, 1, 8, 8, 3, seed=1)
    batch = Batch(x, jnp.array([0, 0, 1, 6], jnp.int32), jnp.arange(4))
    return model, variables, batch, jax.jit(protocols.ClientShare(model))(variables, batch)


@pytest.mark.parametrize("name", HALF)
def test_the_format_is_recognised_by_the_values_and_its_scale_by_what_became_of_them(name):
    numbers = np.random.default_rng(0).normal(0, 1e-3, 50).astype(np.float32)
    assert precision_of([numbers], [numbers]) == FULL
    sent = numbers.astype(HALF[name])
    found = precision_of([sent.astype(np.float32), np.zeros((0, 3))], {"a": -4 * sent.astype(np.float32)})
    assert (found.name, found.scale) == (name, 4.0)
    one_off = sent.astype(np.float32)
    one_off[7] *= 1 + 2e-4
    assert precision_of([one_off], [one_off]) == FULL
    scaled = (numbers * 2**16).astype(HALF[name]).astype(np.float32) / 2**16  # the loss scale of PyTorch's GradScaler
    assert precision_of([scaled], [scaled]).name == name
    for nothing in ([np.zeros(3)], [np.array([1.0, np.nan])], []):
        assert precision_of(nothing, nothing) == FULL


@pytest.mark.parametrize(("name", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_the_bound_on_rounding_holds_and_is_not_loose(name, unit):
    precision = Precision(name, unit, 3.0)
    for size in (1.0, 1e-3, 1e-6, 1e-8):  # the last two are below float16's resolution
        exact = 3 * size * np.random.default_rng(1).uniform(0.5, 1, (40, 5)).astype(np.float32)
        error = np.linalg.norm(precision.rounded(exact, exact) - exact) / np.linalg.norm(exact)
        assert error <= precision.relative(exact, None)
        assert precision.relative(exact, None) < 6 * max(error, unit / 4) + 1e-12
    assert FULL.relative(exact, exact) == 0
    assert FULL.rounded(exact, exact) is exact


@pytest.mark.parametrize("name", HALF)
def test_a_rounded_update_passes_and_proves_no_sample_that_is_not_there(client, name):
    model, variables, batch, gradient = client
    share, sent = protocols.ClientShare(model), _as_sent(gradient, name)
    precision = precision_of(jax.tree.leaves(sent), sent)
    assert not failed(audit.check_update(share, variables, gradient, batch_size=4))
    findings = audit.check_update(share, variables, sent, batch_size=4)
    assert not failed(findings)
    assert any(name in finding.evidence for finding in findings if finding.name == "precision")
    truth = (np.asarray(batch.x[:, 0]), np.asarray(batch.y))
    (known,) = check_known_images(share, variables, sent, truth, defended=False)
    assert known.status == "passed"
    rounded = head.head_of(model, sent, variables, precision)
    assert head.rank_of(rounded._replace(precision=FULL)) > 4  # rounding errors would be taken for samples
    assert head.rank_of(rounded) <= 4
    counted = labels_of(rounded, 4)
    assert (counted.proven <= np.bincount(batch.y, minlength=10)).all()
    assert counted.proven[0] >= 1


@pytest.mark.parametrize(("away", "status"), [(0.03, "suspicious"), (0.5, "failed")])
def test_a_client_that_sends_16_bits_may_have_computed_in_them(client, away, status):
    model, variables, batch, gradient = client
    off = jax.tree.map(lambda g: g * (1 + away * reference.normal(*g.shape, seed=8)), gradient)
    share, truth = protocols.ClientShare(model), (np.asarray(batch.x[:, 0]), np.asarray(batch.y))
    (known,) = check_known_images(share, variables, _as_sent(off, "bfloat16"), truth, defended=False)
    assert known.status == status
    (known,) = check_known_images(share, variables, off, truth, defended=False)
    assert known.status == "failed"


def test_a_leaf_without_its_gradient_is_no_rounding(client):
    model, variables, batch, gradient = client
    without = {**gradient, "conv_0": jax.tree.map(jnp.zeros_like, gradient["conv_0"])}
    truth = (np.asarray(batch.x[:, 0]), np.asarray(batch.y))
    sent = _as_sent(without, "bfloat16")
    (known,) = check_known_images(protocols.ClientShare(model), variables, sent, truth, defended=False)
    assert known.status == "failed"


def test_a_loss_scale_makes_the_smallest_numbers_smaller_and_no_image_likelier():
    scale = 2.0**24
    numbers = np.random.default_rng(3).normal(0, 1e-6, (40, 3)).astype(np.float32)
    sent = (numbers * scale).astype(np.float16).astype(np.float32) / np.float32(scale)
    found = precision_of([sent], [sent])
    assert found.name == "float16"
    error = np.linalg.norm(sent - numbers)
    assert error <= found.error(sent, None) < 4 * error
    np.testing.assert_array_equal(found.rounded(sent, sent), sent)
    large = np.float32(2.0**20) * numbers / np.abs(numbers).max()
    large = (large / 2**8).astype(np.float16).astype(np.float32) * 2**8  # too large for float16 without the scale
    np.testing.assert_array_equal(precision_of([large], [large]).rounded(large, large), large)


def test_kernels_decide_where_normalisation_keeps_float32():
    rng = np.random.default_rng(0)
    kernel, scale = (rng.normal(0, 1e-3, shape).astype(np.float32) for shape in ((9, 4), (4,)))
    rounded = kernel.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert precision_of([rounded, scale], [rounded, scale]).name == "bfloat16"
    assert precision_of([kernel, scale.astype(np.float16)], [kernel, scale]) == FULL
    # A difference of weights has few bits because the step is small.
    small = kernel.astype(np.float16).astype(np.float32) / 2**30
    assert precision_of([small], [small]).name == "float16"
    assert precision_of([small], [small], per_weight=1.0).unit == 0


def test_sums_of_16_bits_leave_something_of_what_vanishes_in_front_of_batch_statistics(client):
    model, variables, batch, gradient = client
    share, truth = protocols.ClientShare(model), (np.asarray(batch.x[:, 0]), np.asarray(batch.y))
    whole = float(np.sqrt(sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(gradient))))
    bias = gradient["conv_0"]["bias"]
    moved = {**gradient, "conv_0": {**gradient["conv_0"], "bias": jnp.full_like(bias, 5e-4 * whole / bias.size**0.5)}}
    for sent, status in ((moved, "failed"), (_as_sent(moved, "bfloat16"), "suspicious")):
        modes = [f for f in audit.check_update(share, variables, sent, batch_size=4) if f.name.startswith("mode")]
        assert [f.status for f in modes] == (["failed"] if status == "failed" else ["passed"])
        (known,) = check_known_images(share, variables, sent, truth, defended=False)
        assert known.status == status


def test_a_mistake_is_still_found_in_a_rounded_update(client):
    model, variables, _, gradient = client
    share, sent = protocols.ClientShare(model), _as_sent(gradient, "float16")
    other = reference.drawn(model, seed=5)
    assert failed(audit.check_update(share, other, sent, batch_size=4))
    assert failed(audit.check_update(share, variables, sent, batch_size=1))


def test_an_audit_of_a_rounded_update_needs_no_word_on_it(client):
    model, variables, batch, gradient = client
    sent = _as_sent(gradient, "float16")
    verdict = audit.update(model, variables, sent, batch_size=4, minutes=1e-4)
    assert verdict.verdict == "leaks"  # only labels: the attacks had no time
    assert (verdict.labels <= np.bincount(batch.y, minlength=10)).all()


def test_weights_of_16_bits_are_too_coarse_for_a_difference(client):
    model, variables, _, gradient = client
    after = _as_sent(jax.tree.map(lambda w, g: w - 0.1 * g, variables["params"], gradient), "bfloat16")
    sent = capture.as_update(after, kind="weights", learning_rate=0.1, batch_size=4)
    verdict = audit.update(model, variables, sent)
    assert verdict.verdict == "inputs inconsistent"
    assert "bfloat16" in verdict.reasons[0]
    assert "16 bits" in verdict.reasons[0]


def _confident(labels, name, *, softmax_too, margin=6.0, added=0.0):
    """The head of confident samples whose client computes logits, and perhaps softmax outputs, in 16 bits."""
    precision = Precision(name, {"float16": 2.0**-11, "bfloat16": 2.0**-8}[name])
    kernel = added + margin * np.eye(10) + 0.1 * np.random.default_rng(0).standard_normal((10, 10))
    features = np.eye(10)[labels] + 0.2 * np.random.default_rng(1).random((len(labels), 10))

    def rounded(numbers):
        return np.asarray(numbers).astype(HALF[name]).astype(np.float64)

    p = np.asarray(jax.nn.softmax(rounded(features @ kernel)), np.float64)
    slope = ((rounded(p) if softmax_too else p) - np.eye(10)[labels]) / len(labels)
    gradients = rounded(features.T @ slope), rounded(slope.sum(axis=0))
    return head.Head(*gradients, kernel, np.zeros(10), precision, positive=True)


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("softmax_too", [True, False])
@pytest.mark.parametrize("labels", [[3], [3, 5], [3, 5, 1, 7]])
def test_a_confident_client_that_computes_in_16_bits_is_not_refused(name, softmax_too, labels):
    for margin in (6.0, 9.0, 14.0):
        found = _confident(labels, name, softmax_too=softmax_too, margin=margin)
        assert not failed(equations.check_head(found, len(labels)))
        assert (labels_of(found, len(labels)).proven <= np.bincount(labels, minlength=10)).all()


def test_large_logits_in_16_bits_move_the_equations_of_one_sample():
    for label in range(10):
        found = _confident([label], "bfloat16", softmax_too=False, margin=3.0, added=15.0)
        assert equations.check_head(found, 1)[-1].status == "passed"
        twice = found._replace(kernel_gradient=2 * found.kernel_gradient, bias_gradient=2 * found.bias_gradient)
        assert failed(equations.check_head(twice, 1))


def test_equations_of_one_sample_show_nothing_where_rounding_hides_them():
    found = _confident([3], "bfloat16", softmax_too=True, margin=9.0)
    assert equations.check_head(found, 1)[-1].status == "not applicable"
    exact = _confident([3], "float16", softmax_too=False, margin=1.0)
    assert equations.check_head(exact, 1)[-1].status == "passed"
    wrong = exact._replace(kernel=exact.kernel[::-1])
    assert equations.check_head(wrong, 1)[-1].status == "failed"


def test_columns_within_rounding_do_not_reverse_the_sign():
    gradient = np.full((6, 10), 1e-6)  # absent classes and a fitted sample's, below the rounding of the largest entries
    gradient[:, [3, 5]] = -1.0
    gradient[:, 7] = 2.0, 2.0, 2.0, 2.0, 2.0, -1.0
    found = head.Head(gradient, None, gradient, None, Precision("bfloat16", 2.0**-8), positive=True)
    assert head.columns_of(found) == (7, 9, 7)  # the second number is larger, as in an update of the other sign
    (sign,) = equations._sign(found, 4)
    assert sign.status == "passed"
    gradient[:, [0, 2, 4, 6, 8]] = 1.0
    turned = found._replace(kernel_gradient=-gradient)
    assert equations._sign(turned, 5)[0].status == "failed"
    assert head.columns_of(turned) == (4, 7, 2)
    assert equations._sign(turned, 6)[0].status == "suspicious"
