"""Checks of an update before any attack: every mistake is named, and a right update passes."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, audit, models, protocols
from jaxleak.audit._checks import check_known_images, contents, equations, failed, head, laws, predicted, symmetry
from jaxleak.audit._checks import client as client_checks
from jaxleak.audit._checks.client import _explained
from jaxleak.audit._checks.differences import furthest
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER
from jaxleak.audit._checks.labels import labels_of
from jaxleak.audit._checks.precision import Precision


class Client:
    """A client of four images, the weights before and after another round, and its gradient."""

    def __init__(self, batch_norm, batch_size=4):
        self.model = models.convnet((8, 8, 3), 10, channels=(8, 8, 8), strides=(1, 2, 2), batch_norm=batch_norm)
        self.variables = jax.jit(self.model.init)(jax.random.key(0))
        self.share, self.batch_size = protocols.ClientShare(self.model), batch_size
        x = jax.random.uniform(jax.random.key(1), (batch_size, 1, 8, 8, 3))
        self.batch = Batch(x, jnp.arange(batch_size, dtype=jnp.int32) + 2, jnp.arange(batch_size))
        self.gradient = jax.jit(self.share)(self.variables, self.batch)

    def check(self, payload=None, **changes):
        options = {"share": self.share, "variables": self.variables, "batch_size": self.batch_size} | changes
        return audit.check_update(payload=self.gradient if payload is None else payload, **options)


@pytest.fixture(scope="module")
def plain():
    return Client(batch_norm=False)


@pytest.fixture(scope="module")
def normalised():
    return Client(batch_norm=True)


def _changed(tree, path, change):
    layer, name = path.split("/")
    return {**tree, layer: {**tree[layer], name: change(tree[layer][name])}}


def _mixed(variables, other, share):
    return jax.tree.map(lambda a, b: (1 - share) * a + share * b, variables, other)


def test_a_right_update_passes(plain, normalised):
    for client in (plain, normalised):
        assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}


@pytest.mark.parametrize(
    ("images", "options"),
    [(4, {"local_steps": 2, "local_epochs": 3, "momentum": 0.9}), (1, {"local_epochs": 3})],
)
def test_a_right_update_of_several_epochs_passes_where_they_are_stated(plain, images, options):
    share = protocols.ClientShare(plain.model, learning_rate=0.1, **options)
    batch = jax.tree.map(lambda leaf: leaf[:images], plain.batch)
    claim = {"payload": jax.jit(share)(plain.variables, batch), "batch_size": images // share.local_steps}
    assert {finding.status for finding in plain.check(share=share, **claim)} <= {"passed", "not applicable"}
    without = protocols.ClientShare(plain.model, learning_rate=0.1, local_steps=share.local_steps)
    (rank,) = (finding for finding in plain.check(share=without, **claim) if finding.name == "batch size by rank")
    assert (rank.status, rank.option) == ("failed", "--batch-size, --local-steps, --local-epochs, or --defense other")


MISTAKES = {
    "sum": (lambda c: {"payload": jax.tree.map(lambda g: 4 * g, c.gradient)}, "sum over the batch"),
    "too small a batch": (lambda c: {"batch_size": 2}, "batch is larger"),
    "kernel's axes": (
        lambda c: {"payload": _changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))},
        "conv_1/kernel is stored in another layout",
    ),
    "rows of the head": (
        lambda c: {
            "payload": _changed(
                c.gradient, "head/kernel", lambda g: g.reshape(2, 2, 8, 10).transpose(2, 0, 1, 3).reshape(32, 10)
            )
        },
        "head/kernel is stored in another layout",
    ),
    "another round": (
        lambda c: {"variables": _mixed(c.variables, c.model.init(jax.random.key(9)), 0.02)},
        "weights of another round",
    ),
    "weight decay": (
        lambda c: {"payload": jax.tree.map(lambda g, w: g + 1e-3 * w, c.gradient, c.variables["params"])},
        "weight decay",
    ),
    "reversed sign": (lambda c: {"payload": jax.tree.map(jnp.negative, c.gradient)}, "sign"),
    "weights": (lambda c: {"payload": c.variables["params"]}, "holds weights"),
    "noise": (
        lambda c: {
            "payload": jax.tree.map(
                lambda g: g + 0.01 * jax.random.normal(jax.random.key(g.size), g.shape) * jnp.abs(g).max(), c.gradient
            )
        },
        "noise",
    ),
    "NaN": (lambda c: {"payload": _changed(c.gradient, "head/bias", lambda g: g.at[0].set(jnp.nan))}, "overflowed"),
    "missing leaf": (lambda c: {"payload": _changed(c.gradient, "head/bias", lambda g: None)}, "lacks a layer"),
    "zero": (lambda c: {"payload": jax.tree.map(jnp.zeros_like, c.gradient)}, "cleared"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(plain, mistake):
    change, cause = MISTAKES[mistake]
    wrong = failed(plain.check(**change(plain)))
    assert any(cause in finding.cause for finding in wrong), [str(finding) for finding in wrong]


def test_the_mode_of_batch_normalisation_is_named(normalised):
    eval_share = protocols.ClientShare(normalised.model, batch_norm="eval")
    payload = jax.jit(eval_share)(normalised.variables, normalised.batch)
    assert any("--batch-norm eval" in f.option for f in failed(normalised.check(payload)))
    assert any("--batch-norm train" in f.option for f in failed(normalised.check(share=eval_share)))
    assert not failed(normalised.check(payload, share=eval_share))


def test_batch_statistics_are_told_by_a_bias_in_front_of_them_where_running_ones_are_stated():
    """A convolution's bias, which the built-in networks do not have there, is the only leaf that tells."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3))(x)))
            return nn.Dense(2)(x.reshape(len(x), -1))

    variables = Net().init(jax.random.key(0), jnp.zeros((4, 8, 8, 3)), train=True)
    model, variables = models.from_flax(
        Net(), image_shape=(8, 8, 3), num_classes=2, variables=variables,
        train_arguments={"train": True}, eval_arguments={"train": False},
    )  # fmt: skip
    x = jax.random.uniform(jax.random.key(1), (4, 1, 8, 8, 3))
    batch = Batch(x, jnp.array([0, 1, 1, 1], jnp.int32), jnp.arange(4))
    for mode, wrong in (("train", ["mode of batch normalisation"]), ("eval", [])):
        payload = jax.jit(protocols.ClientShare(model, batch_norm=mode))(variables, batch)
        stated = protocols.ClientShare(model, batch_norm="eval")
        found = audit.check_update(share=stated, variables=variables, payload=payload, batch_size=4)
        assert [finding.name for finding in failed(found)] == wrong
        assert {f.status for f in found if f.name == "mode of batch normalisation"} == {"failed" if wrong else "passed"}


def test_one_samples_equations_give_the_scale_and_the_weights():
    client = Client(batch_norm=False, batch_size=1)
    assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}
    scaled = failed(client.check(jax.tree.map(lambda g: 0.01 * g, client.gradient)))
    assert [finding.name for finding in scaled] == ["one sample's equations"]
    assert "0.01 times" in scaled[0].cause
    norm = np.sqrt(sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(client.gradient)))
    assert scaled[0].option.startswith(f"--defense dp_update --clip {0.01 * norm:.4g} --noise-multiplier 0 (clipping")
    other = client.model.init(jax.random.key(9))
    assert {"one sample's equations"} <= {f.name for f in failed(client.check(variables=other))}


def test_of_two_rounds_updates_the_one_of_these_weights_passes(plain):
    step = lambda w, g: w - 0.01 * g  # noqa: E731
    later = {**plain.variables, "params": jax.tree.map(step, plain.variables["params"], plain.gradient)}
    next_update = jax.jit(plain.share)(later, plain.batch)
    for variables, right, wrong in (
        (plain.variables, plain.gradient, next_update),
        (later, next_update, plain.gradient),
    ):
        assert not failed(plain.check(right, variables=variables))
        assert any("another round" in f.cause for f in failed(plain.check(wrong, variables=variables)))


@pytest.mark.slow
def test_known_images_may_be_channels_first_and_order_matters_after_several_steps(plain):
    x = np.asarray(plain.batch.x[:, 0])
    found = audit.check_client(
        plain.model, plain.variables, plain.gradient, x.transpose(0, 3, 1, 2), np.asarray(plain.batch.y)
    )
    assert found[-1].status == "passed"
    two_steps = protocols.ClientShare(plain.model, local_steps=2, learning_rate=0.1)
    payload = jax.jit(two_steps)(plain.variables, plain.batch)
    for order, status in (([0, 1, 2, 3], "passed"), ([2, 3, 0, 1], "suspicious")):
        truth = x[order], np.asarray(plain.batch.y)[order]
        (finding,) = check_known_images(two_steps, plain.variables, payload, truth, defended=False)
        assert finding.status == status
    assert "another order" in finding.cause
    assert check_known_images(two_steps, plain.variables, payload, truth, defended=True) == []
    sums = jax.tree.map(lambda g: 2 * g, payload)  # over the two images of either step, each half as long
    options = {"reduction": "sum", "local_steps": 2, "learning_rate": 0.05}
    found = audit.check_client(plain.model, plain.variables, sums, x, np.asarray(plain.batch.y), **options)
    assert found[-1].status == "passed"


@pytest.mark.parametrize(
    ("worst", "status"), [(1.0, "passed"), (1.01, "suspicious"), (10.0, "suspicious"), (10.1, "failed")]
)
def test_known_images_may_be_off_by_what_another_machine_explains(plain, monkeypatch, worst, status):
    monkeypatch.setattr(client_checks, "furthest", lambda *_: (worst, "conv_0/kernel", 0.1))
    monkeypatch.setattr(client_checks, "_explained", lambda *_: ("a cause", "--option"))
    x, y = np.asarray(plain.batch.x[:, 0]), np.asarray(plain.batch.y)
    assert audit.check_client(plain.model, plain.variables, plain.gradient, x, y)[-1].status == status


def _with_factors_of(bits):
    """Products whose factors are rounded to this many bits of fraction, as GPUs round them, also in the gradient."""

    def rounded(x):
        half, mask = (1 << (23 - bits)) // 2, -1 << (23 - bits)
        return jax.lax.bitcast_convert_type((jax.lax.bitcast_convert_type(x, jnp.int32) + half) & mask, jnp.float32)

    @jax.custom_vjp
    def product(a, b):
        return rounded(a) @ rounded(b)

    def backward(factors, slope):
        a, b = map(rounded, factors)
        return rounded(slope) @ b.T, a.T @ rounded(slope)

    product.defvjp(lambda a, b: (product(a, b), (a, b)), backward)
    return product


def _network(product):
    def apply(variables, x):
        for name, weight in sorted(variables["params"].items()):
            x = product(x.reshape(len(x), -1) if name == "0" else jnp.maximum(x, 0), weight)
        return x

    widths = itertools.pairwise((48, 256, 256, 256, 256, 5))
    keys = jax.random.split(jax.random.key(0), 5)
    params = {str(i): jax.random.normal(keys[i], shape) * (2 / shape[0]) ** 0.5 for i, shape in enumerate(widths)}
    return models.from_function(apply, {"params": params}, image_shape=(4, 4, 3))


@pytest.mark.parametrize(
    ("bits", "status", "said"), [(23, "passed", ""), (10, "suspicious", "TF32"), (4, "failed", "mixed")]
)
def test_a_client_whose_gpu_rounds_factors_to_tf32_is_not_refused(bits, status, said):
    model, variables = _network(jnp.matmul)
    rounding, _ = _network(_with_factors_of(bits))
    batch = Batch(jax.random.uniform(jax.random.key(5), (4, 1, 4, 4, 3)), jnp.arange(4), jnp.arange(4))
    gradient = protocols.ClientShare(rounding)(variables, batch)
    found = audit.check_client(model, variables, gradient, batch.x[:, 0], batch.y)[-1]
    assert (found.name, found.status) == ("known images", status)
    assert said in found.cause
    # A mistake of a known kind is one all the same.
    if bits >= 10:
        found = audit.check_client(model, variables, jax.tree.map(lambda g: 4 * g, gradient), batch.x[:, 0], batch.y)[
            -1
        ]
        assert found.status == "failed"


@pytest.mark.parametrize("stated", [1, 2])
def test_a_batch_size_that_is_too_small_is_one_mistake(plain, stated):
    (wrong,) = (finding for finding in plain.check(batch_size=stated) if finding.cause)
    assert wrong.name == "batch size by rank"
    others = [f for f in plain.check(batch_size=stated) if "batch size by rank, has refuted" in f.evidence]
    assert {finding.status for finding in others} == {"not applicable"}
    assert len(others) == 3 if stated == 1 else others


def test_a_sum_over_the_batch_is_one_mistake(plain):
    (wrong,) = (f for f in plain.check(jax.tree.map(lambda g: 4 * g, plain.gradient)) if f.cause)
    assert wrong.name == "mean over the batch"
    assert wrong.option == f"--reduction sum (of images), {LOSS_OTHER}, --learning-rate, --local-steps"
    assert "added up over several micro-batches without dividing" in wrong.cause


def test_one_samples_factor_is_said_where_its_gradient_is_too_large():
    client = Client(batch_norm=False, batch_size=1)
    found = {f.name: f for f in failed(client.check(jax.tree.map(lambda g: 100 * g, client.gradient)))}
    assert set(found) == {"mean over the batch", "one sample's equations"}
    assert "100 times" in found["one sample's equations"].cause


def test_fewer_samples_than_stated_are_suspicious(plain):
    found = {finding.name: finding for finding in plain.check(batch_size=8)}
    assert found["batch size by rank"].status == "suspicious"
    assert "4 samples" in found["batch size by rank"].cause


def test_a_stated_defense_is_not_reported_as_a_mistake(plain):
    payload = jax.tree.map(lambda g: jnp.asarray(np.where(np.abs(g) > np.median(np.abs(g)), g, 0)), plain.gradient)
    assert failed(plain.check(payload))
    assert not failed(plain.check(payload, defended=True))


def test_known_images_show_the_mistake_exactly(normalised):
    c, x = normalised, normalised.batch.x[:, 0]

    def check(payload, **options):
        return audit.check_client(c.model, c.variables, payload, x, c.batch.y, **options)[-1]

    assert check(c.gradient).status == "passed"  # biases in front of batch statistics are rounding on both sides
    shifted = _changed(c.gradient, "conv_0/bias", lambda g: g + 1e-3)
    assert "conv_0/bias" in check(shifted).evidence
    assert "sum over the batch" in check(jax.tree.map(lambda g: 4 * g, c.gradient)).cause
    assert check(jax.tree.map(lambda g: 4 * g, c.gradient), reduction="sum").status == "passed"
    assert "--batch-norm train" in check(c.gradient, batch_norm="eval").option
    assert "conv_1/kernel" in check(_changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))).cause


class TestHead:
    """Equations of the last dense layer, on gradients that NumPy makes."""

    KERNEL = 0.3 * np.random.default_rng(0).standard_normal((6, 4))
    BIAS = 0.1 * np.random.default_rng(1).standard_normal(4)

    def of_batch(self, labels, scale=1.0, features=None, kernel=None):
        """The head of a batch whose features are drawn, or all the same."""
        n = len(labels)
        f = np.random.default_rng(2).random((n, 6)) if features is None else np.tile(features, (n, 1))
        logits = f @ self.KERNEL + self.BIAS
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        slope = scale * (p - np.eye(4)[labels]) / n
        return head.Head(f.T @ slope, slope.sum(axis=0), self.KERNEL if kernel is None else kernel, self.BIAS)

    def of_bias(self, *entries):
        return head.Head(self.KERNEL, np.array(entries), self.KERNEL, self.BIAS)

    @pytest.mark.parametrize("labels", [[2], [0, 0, 3], [1, 2, 3, 0, 1]])
    def test_a_gradient_of_the_mean_loss_passes(self, labels):
        found = equations.check_head(self.of_batch(labels), len(labels))
        assert [finding.status for finding in found] == ["passed"] * 5
        assert found[-1].name == ("one sample's equations" if len(labels) == 1 else "whole numbers of labels")

    def test_without_a_bias_three_checks_are_left(self):
        without = self.of_batch([0, 1])._replace(bias_gradient=None, bias=None)
        assert [f.status for f in equations.check_head(without, 2)] == ["passed", "not applicable", "passed"]
        assert equations.check_head(None, 2)[0].status == "not applicable"
        proven, if_stated, samples, *_ = labels_of(without, 2)
        assert not proven.any()
        assert not if_stated.any()
        assert (proven.shape, samples) == ((4,), 0)

    @pytest.mark.parametrize(("moved", "status"), [(0.9e-3, "passed"), (1.1e-3, "failed")])
    @pytest.mark.parametrize("part", ["kernel_gradient", "bias_gradient"])
    def test_classes_sum_to_zero(self, part, moved, status):
        right = self.of_batch([0, 1])
        gradient = getattr(right, part)
        change = np.zeros_like(gradient)
        change.flat[0] = moved * np.linalg.norm(gradient)
        found = equations._sums_over_classes(right._replace(**{part: gradient + change}))
        assert found.status == status
        assert f"{moved:.1e} ({part.split('_')[0]})" in found.evidence

    @pytest.mark.parametrize("labels", [[2], [1, 1], [0, 3]])
    def test_a_loss_that_is_no_cross_entropy_is_not_told_that_its_sign_is_reversed(self, labels):
        """A squared error of the logits: its slopes of absent classes may be negative, and sum to no zero."""
        right, n = self.of_batch(labels), len(labels)
        features = np.random.default_rng(2).random((n, 6))
        slope = 2 * (features @ self.KERNEL - 1 - np.eye(4)[labels]) / (4 * n)
        other = right._replace(kernel_gradient=features.T @ slope, bias_gradient=slope.sum(axis=0), positive=True)
        assert any(finding.status == "failed" for finding in equations._sign(other, n))
        found = {finding.name: finding for finding in equations.check_head(other, n)}
        assert found["sums over classes"].status == "failed"
        assert not any("sign of the update" in finding.cause for finding in found.values())
        last = "one sample's equations" if n == 1 else "whole numbers of labels"
        for name in ("sign of absent classes", last):
            assert found[name].status == "not applicable"
            assert "sums over classes, has refuted" in found[name].evidence

    @pytest.mark.parametrize(
        ("size", "samples", "cause"),
        [
            (2.0, 1, ""),
            (2.0009, 1, ""),
            (2.002, 1, "a difference of weights was not divided"),
            (2.002, 2, "the loss is a sum over the batch"),
            (4.0, 2, "the loss is a sum over the batch"),
            (4.01, 2, "a difference of weights was not divided"),
        ],
    )
    def test_the_bias_gradient_of_a_mean_has_a_largest_size(self, size, samples, cause):
        found = equations._size_of_the_bias_gradient(self.of_bias(size / 2, -size / 2, 0.0, 0.0), samples)
        assert found.cause.startswith(cause)
        assert (found.status == "passed") == (not cause)

    @pytest.mark.parametrize(
        ("labels", "stated", "status", "says"),
        [
            ([0], 1, "passed", "rank 1, so that at least 1 sample is behind it; 1 can give 1 at most"),
            ([0, 1], 2, "passed", "rank 2, so that at least 2 samples are behind it; 2 can give 2 at most"),
            ([0, 1, 2, 3, 0], 5, "passed", "rank 3, so that at least 3 samples are behind it; 5 can give 3 at most"),
            ([0, 1], 3, "suspicious", "rank 2, so that at least 2 samples are behind it; 3 different samples would"),
            ([0], 3, "suspicious", "rank 1, so that at least 1 sample is behind it; 3 different samples would give 3"),
            ([0, 1], 1, "failed", "rank 2, so that at least 2 samples are behind it, but the stated number is 1"),
        ],
    )
    def test_the_rank_bounds_the_batch_size(self, labels, stated, status, says):
        found = equations._rank(self.of_batch(labels), stated, 1)
        assert found.status == status
        assert says in found.evidence
        expected = {
            "passed": "",
            "suspicious": f"--batch-size {len(labels)}",
            "failed": "--batch-size, --local-steps, --local-epochs, or --defense other",
        }
        assert found.option.startswith(expected[status])
        if status == "suspicious":
            assert found.cause.startswith("the batch holds " + ("1 sample," if len(labels) == 1 else "2 samples,"))

    @pytest.mark.parametrize(
        ("bias", "samples", "least", "cause"),
        [
            ((-0.5, 0.5, 0.0, 0.0), 2, 1, ""),  # one half of two samples is one, up to rounding
            ((-0.51, 0.51, 0.0, 0.0), 2, 2, ""),
            ((-0.3, -0.3, -0.3, 0.9), 2, 3, "the sign of the update is reversed"),
            ((-0.6, -0.6, 0.6, 0.6), 2, 4, "the batch is larger"),
        ],
    )
    def test_labels_that_are_proven_must_fit_into_the_batch(self, bias, samples, least, cause):
        found = equations._labels_fit(self.of_bias(*bias), samples)
        assert f"at least {least} labels for a batch of {samples}" in found.evidence
        assert found.cause.startswith(cause)
        assert (found.status == "passed") == (not cause)

    def test_proven_labels_go_by_the_rank_and_stated_ones_by_what_is_said(self):
        slopes = np.array([-0.6, -0.2, 0.4, 0.4])  # of two samples of class 0 and one of class 1, by these softmaxes:
        softmaxes = {"kernel": np.zeros((6, 4)), "bias": np.log(slopes + np.array([2, 1, 0, 0]) / 3)}
        two = self.of_batch([0, 0, 1])._replace(bias_gradient=slopes, **softmaxes)
        found = labels_of(two, 3)  # of rank 3, as three samples give
        assert (found.proven.tolist(), found.if_stated.tolist(), found.samples) == ([2, 1, 0, 0], [2, 1, 0, 0], 3)
        found = labels_of(two, 6)  # more samples than classes can give no higher rank
        assert (found.proven.tolist(), found.if_stated.tolist(), found.samples) == ([2, 1, 0, 0], [4, 2, 0, 0], 6)
        fewer = self.of_batch([0, 1])._replace(bias_gradient=slopes, **softmaxes)
        found = labels_of(fewer, 6)  # six different samples would give a higher rank: six are not believed
        assert (found.proven.tolist(), found.if_stated.tolist()) == ([2, 1, 0, 0], [2, 1, 0, 0])
        found = labels_of(fewer, 1)  # one sample is too few for this rank
        assert found.if_stated.tolist() == [2, 1, 0, 0]

    def test_where_the_scale_is_in_doubt_every_class_counts_once(self):
        right = self.of_batch([0, 0, 0, 1])
        assert not labels_of(right, 4).uncounted
        assert labels_of(right, 4).if_stated[0] > 1
        stretched = right._replace(kernel_gradient=1.8 * right.kernel_gradient, bias_gradient=1.8 * right.bias_gradient)
        found = labels_of(stretched, 4)  # as momentum stretches an update
        assert "the scale of the update" in found.uncounted
        assert found.if_stated.tolist() == (right.bias_gradient < 0).astype(int).tolist()
        assert found.proven.tolist() == (right.bias_gradient < -0.1 / 4 - 1e-3).astype(int).tolist()
        many = self.of_batch([0] * 6 + [1] * 2)  # twice as many as classes: label counts say nothing of the scale
        assert labels_of(many, 8).proven.tolist() == [1, 0, 0, 0]
        fewer = self.of_batch([0] * 5 + [1] * 2)
        assert not labels_of(fewer, 7).uncounted
        assert "several local steps" in labels_of(fewer, 7, local_steps=7).uncounted

    @pytest.mark.parametrize(
        ("scale", "cause"),
        [(1.0, ""), (1.0009, ""), (1.0012, "1.001 times"), (0.9988, "0.9988 times"), (-2.0, "-2 times")],
    )
    def test_one_sample_tells_the_scale(self, scale, cause):
        # Of a reversed gradient the smallest entry is another one than the label's.
        found = predicted.check_one_sample(self.of_batch([1], scale))
        if scale < 0:
            assert found.cause.startswith("weights of another round")
            return
        assert (found.status == "passed") == (not cause)
        assert cause in found.cause
        assert f"the factor {scale:.4g}" in found.evidence

    @pytest.mark.parametrize("of_weights", [True, False])
    @pytest.mark.parametrize("scale", [0.5, 1.5])
    def test_the_likelier_cause_of_a_factor_comes_first(self, scale, of_weights):
        gradient = self.of_batch([1], scale)
        found = predicted.check_one_sample(gradient._replace(precision=Precision(of_weights=of_weights)), 0.25)
        _, causes = found.cause.split(": ")
        clipping, rate = "--defense dp_update --clip 0.25 --noise-multiplier 0", "--learning-rate, --local-steps"
        expected = ([clipping] if scale < 1 else []) + ([rate, LOSS_OTHER] if of_weights else [LOSS_OTHER, rate])
        places = [found.option.index(option) for option in [*expected, DEFENSE_OTHER]]
        assert places == sorted(places)
        assert (clipping in found.option) == causes.startswith("clipping, ") == (scale < 1)
        assert "focal loss" in causes
        assert (causes.index("a learning rate") < causes.index("another loss")) == of_weights

    def test_sums_over_classes_of_a_gradient_are_of_another_loss_and_others_were_changed_later(self):
        """A squared error of one logit has the rank of its samples, and noise has all ranks."""
        right = self.of_batch([0, 1])
        slope = np.array([[1.0, 0, 0, 0], [0, 0, 0.5, 0]])
        features = np.random.default_rng(2).random((2, 6))
        other = right._replace(kernel_gradient=features.T @ slope, bias_gradient=slope.sum(axis=0))
        found = equations._sums_over_classes(other, 2)
        assert (found.status, found.option) == ("failed", f"{LOSS_OTHER}, or {DEFENSE_OTHER}")
        assert found.cause.startswith("a loss that is no cross-entropy, noise")
        noisy = right.kernel_gradient + 0.1 * np.random.default_rng(3).standard_normal((6, 4))
        found = equations._sums_over_classes(right._replace(kernel_gradient=noisy), 2)
        assert (found.status, found.option) == ("failed", f"{DEFENSE_OTHER}, or {LOSS_OTHER}")
        assert found.cause.startswith("noise, pruning")
        # Two visits of either sample may give twice the rank.
        names = {f.name: f for f in equations.check_head(other, 1, epochs=2)}
        assert names["sums over classes"].option.startswith("--loss other")

    def test_one_sample_tells_other_weights(self):
        found = predicted.check_one_sample(self.of_batch([1], kernel=self.KERNEL + 0.1 * self.KERNEL[::-1]))
        assert found.status == "failed"
        assert found.cause.startswith("weights of another round")
        nothing = self.of_batch([1])._replace(bias_gradient=np.zeros(4))
        assert (
            predicted.check_one_sample(nothing).status == predicted.check_counts(nothing, 2).status == "not applicable"
        )

    @pytest.mark.parametrize(
        ("outside", "samples", "status"),
        [(0.9, 8, "not applicable"), (1.1, 8, "suspicious"), (3.9, 32, "not applicable"), (4.1, 32, "suspicious")],
    )
    @pytest.mark.parametrize("below", [True, False])
    def test_counts_of_many_samples_tell_nothing_unless_they_are_impossible(self, outside, samples, status, below):
        least = -outside if below else samples + outside
        found = predicted._range_of_counts(np.array([least, samples - least, 0.0, 0.0]), samples)
        assert found.status == status
        assert (found.option.startswith("--reduction sum")) == (status == "suspicious")
        assert "whole numbers" in found.evidence

    def test_a_sum_over_many_samples_is_suspicious_and_its_mean_is_not_called_right(self):
        features, labels = np.full(6, 0.4), [0] * 6 + [1] * 2
        p = np.asarray(jax.nn.softmax(features @ self.KERNEL))
        slope = p - np.bincount(labels, minlength=4) / 8
        for times, status in ((1, "not applicable"), (8, "suspicious")):
            of_eight = head.Head(times * np.outer(features, slope), times * slope, self.KERNEL, None)
            assert predicted.check_counts(of_eight, 8).status == status

    def test_counts_are_whole_numbers(self):
        """Equal features make the equation exact."""
        features, labels = np.full(6, 0.4), [0, 0, 2]
        for scale, cause in ((1, ""), (3, "the loss is a sum over the batch"), (1 / 3, "divided by the batch size")):
            found = predicted.check_counts(self.of_batch(labels, scale, features), 3)
            assert (found.status == "passed") == (not cause)
            assert cause in found.cause
        assert "0.00 from whole numbers" in predicted.check_counts(self.of_batch(labels, 1, features), 3).evidence
        odd = predicted.check_counts(self.of_batch(labels, 0.55, features), 3)
        assert odd.status == "suspicious"
        assert "momentum, a wrong learning rate" in odd.cause
        turned = predicted.check_counts(self.of_batch(labels, -1, features), 3)
        assert (turned.status, turned.cause) == ("suspicious", "the sign of the update is reversed")
        assert "with its sign reversed they are 0.00 from whole numbers" in turned.evidence
        # Of twice as many samples as classes, mean features say too little.
        assert predicted.check_counts(self.of_batch([0] * 5 + [2] * 3, 0.55, features), 8).status == "not applicable"

    def test_nothing_is_proven_where_the_reversed_update_has_the_better_counts(self):
        """Features that differ blur the counts of both signs; those of the right one stay nearer to whole numbers."""
        right, turned = (self.of_batch([0, 0, 2], scale) for scale in (1, -1))
        assert predicted.reversed_fits(turned, 3)
        assert not predicted.reversed_fits(right, 3)
        if predicted.check_counts(turned, 3).status == "suspicious":
            assert not labels_of(turned, 3).proven.any()
        assert labels_of(right, 3).proven.any()
        assert not predicted.reversed_fits(right._replace(bias_gradient=None), 3)
        assert not predicted.reversed_fits(right._replace(bias_gradient=np.zeros(4)), 3)


class TestContents:
    @pytest.mark.parametrize(
        ("size", "values", "status"),
        [(2000, 256, "suspicious"), (2000, 257, "passed"), (1999, 2, "not applicable"), (2000, 1, "suspicious")],
    )
    def test_few_sizes_of_entries_are_quantised(self, size, values, status):
        leaf = (1.0 + np.arange(size) % values) * np.where(np.arange(size) % 2, 1, -1)
        found = contents._few_values({"a": leaf, "b": np.zeros(5000), "c": np.arange(5.0)})
        assert found.status == status
        if status != "not applicable":
            assert found.evidence == f"a has {size} entries of {values} different sizes."

    @pytest.mark.parametrize(("sizes", "status"), [(100, "passed"), (8, "suspicious")])
    def test_few_entries_that_are_left_need_not_be_quantised(self, sizes, status):
        """Of five thousand entries a hundred are left, which differ as those of a gradient do."""
        left = np.linspace(1, 2, sizes).repeat(100 // sizes)
        leaf = np.concatenate([left, np.zeros(4900)]).astype(np.float32)
        assert contents._few_values({"a": leaf}).status == status

    @pytest.mark.parametrize(
        ("change", "status"),
        [
            (lambda leaf: leaf, "passed"),
            (lambda leaf: leaf.T, "passed"),
            (lambda leaf: leaf.astype(np.float16), "passed"),
            (np.sign, "suspicious"),
            (lambda leaf: np.round(leaf * (127 / np.abs(leaf).max())), "suspicious"),
        ],
    )
    def test_a_product_of_few_grey_levels_and_slopes_is_not_quantised(self, change, status):
        rng = np.random.default_rng(0)
        image, slopes = rng.integers(0, 17, 64) / 16, rng.standard_normal(32) * (np.arange(32) < 10)
        found = contents._few_values({"w1": change(np.outer(image, slopes).astype(np.float32))})
        assert found.status == status
        assert found.evidence.startswith("w1 has 2048 entries of ")
        assert ("products of what one sample's layer reads" in found.evidence) == (status == "passed")

    @pytest.mark.parametrize(
        ("cosine", "status"), [(0.91, "failed"), (0.89, "passed"), (-0.91, "failed"), (0, "passed")]
    )
    def test_an_update_like_the_weights_is_taken_for_weights(self, cosine, status):
        weights = {"a": np.array([[3.0]]), "b": np.array([4.0])}
        across = np.sqrt(1 - cosine**2)
        update = {"a": 7 * (cosine * weights["a"] - across * 4), "b": 7 * (cosine * weights["b"] + across * 3)}
        found = contents._weights(update, weights)
        assert found.status == status
        assert f"weights is {cosine:.3f}." in found.evidence
        nothing = {"a": np.zeros((1, 1)), "b": np.zeros(1)}
        assert contents._weights(update, nothing).status == "passed"

    def test_zeros_are_counted(self):
        zero, one = np.zeros(2), np.array([0.0, 1.0])
        assert contents._zeros({"a": one, "b": one}).status == "passed"
        some = contents._zeros({"a": one, "b": zero, "c": zero})
        assert (some.status, some.evidence) == ("suspicious", "2 of 3 leaves are zero throughout, such as b.")
        assert contents._zeros({"a": zero, "b": zero}).status == "failed"
        assert some.option.startswith("--frozen b c, ")
        assert "left out every entry" in contents._zeros({"a": zero}, left_out=True).cause

    @pytest.mark.parametrize(
        ("zero", "layers"),
        [
            ("", []),
            ("a/0/kernel a/0/bias", ["a.0"]),
            ("a/0/bias b", ["a.0.bias", "b"]),
            ("a/0/kernel a/0/bias a/1/kernel ab/kernel", ["a", "ab.kernel"]),
        ],
    )
    def test_layers_of_zeros_are_named_as_high_as_they_are_whole(self, zero, layers):
        names = ("a/0/kernel", "a/0/bias", "a/1/kernel", "ab/kernel", "ab/bias", "b")
        leaves = {name: np.zeros(2) if name in zero.split() else np.array([0.0, 1.0]) for name in names}
        assert contents.zero_layers(leaves) == layers


class TestLaws:
    def test_a_violation_is_the_share_of_the_gradient_along_a_law(self):
        rng = np.random.default_rng(0)
        weights = {"a": rng.standard_normal((4, 2)), "b": rng.standard_normal(3), "c": np.zeros(2)}
        gradients = {name: rng.standard_normal(leaf.shape) for name, leaf in weights.items()}
        directions = (("a", -1), ("a", 0), ("b", -1), ("c", -1))
        combinations = np.linalg.qr(rng.standard_normal((4, 2)))[0]
        along = []
        for name, axis in directions:
            scale = np.asarray(laws._weight(axis, weights[name].shape), np.float64)
            direction = weights[name] * scale
            along.append((direction * gradients[name]).sum() / max(np.linalg.norm(direction), 1e-30))
        norms = np.array([np.linalg.norm(gradients[name]) for name, _ in directions])
        expected = np.abs(combinations.T @ along) / np.sqrt((combinations.T * norms) ** 2 @ np.ones(4))
        found = laws._violations(directions, combinations, {"params": weights}, gradients)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        known = laws.Laws(None, directions, combinations, np.array([0.5, 2.0]), {"a": (0.1, 1e-6), "b": (0.0, 1e-4)})
        broken = laws.against(known, {"params": weights}, gradients)
        np.testing.assert_allclose(broken.violations, expected / [0.5, 2.0], rtol=1e-6)
        assert (broken.laws, broken.worst) == (2, broken.violations.max())
        assert laws.vanishing(known.sizes) == ["a"]
        none = known._replace(combinations=combinations[:, :0], tolerances=np.zeros(0))
        assert laws.against(none, {"params": weights}, gradients)[:2] == (0, 0.0)

    def test_units_that_belong_together_are_scaled_alike(self):
        rows, columns = laws._weight(0, (6, 3)), laws._weight(1, (2, 6))
        assert (rows.shape, columns.shape) == ((6, 1), (1, 6))
        np.testing.assert_array_equal(rows.ravel(), columns.ravel())
        assert 0.5 <= np.abs(rows).min() < np.abs(rows).max() <= 1.5
        assert {-1.0, 1.0} == set(np.sign(laws._weight(0, (50,))).tolist())
        np.testing.assert_array_equal(laws._weight(-1, (2, 3)), [[1.0]])

    def test_directions_are_whole_leaves_and_their_long_axes(self):
        params = {"a": np.zeros((4, 3)), "b": np.zeros(4), "c": np.zeros((3, 3, 8, 7)), "d": np.zeros(3)}
        params["e"] = np.zeros((2, 5, 4))  # no kernel of a convolution
        found = [
            ("a", -1),
            ("a", 0),
            ("b", -1),
            ("b", 0),
            ("c", -1),
            ("c", 2),
            ("d", -1),
            ("e", -1),
            ("e", 1),
            ("e", 2),
        ]
        assert list(laws._directions(params)) == found
        many = {f"leaf{i:03}": np.zeros((4, 4)) for i in range(67)}  # three directions each
        assert len(laws._directions(dict(list(many.items())[:66]))) == 198
        assert set(laws._directions(many)) == {(name, -1) for name in many}

    def test_shares_of_the_norm(self):
        found = laws.shares_of_norm({"a": np.array([[3.0]]), "b": np.array([0.0, 4.0]), "c": np.zeros(2)})
        assert found == pytest.approx({"a": 0.6, "b": 0.8, "c": 0.0})
        assert laws.shares_of_norm({"a": np.zeros(2)}) == {"a": 0.0}


class TestLayouts:
    def test_channels_may_be_counted_first_or_last(self):
        positions_first = np.arange(2 * 2 * 4).reshape(2, 2, 4)  # rows, columns, channels
        leaf = jnp.asarray(positions_first.reshape(-1, 1))
        found = [np.ravel(changed).tolist() for _, changed in symmetry._reordered(leaf, 0, {4, 5, 16})]
        channels_first = positions_first.transpose(2, 0, 1).ravel().tolist()
        assert channels_first in found
        assert len(found) == 2
        again = [np.ravel(c).tolist() for _, c in symmetry._reordered(jnp.asarray(channels_first)[:, None], 0, {4})]
        assert list(range(16)) in again
        assert not list(symmetry._reordered(leaf, 1, {4}))

    def test_equal_axes_are_exchanged_and_single_ones_are_not(self):
        payload = {"a": jnp.arange(9.0).reshape(3, 3), "b": jnp.zeros((1, 1)), "c": jnp.zeros((2, 3))}
        found = list(symmetry.other_layouts(payload, payload))
        assert [(name, layout) for name, layout, _ in found] == [("a", "axes 0 and 1 are exchanged")]
        np.testing.assert_array_equal(found[0][2]["a"], payload["a"].T)
        np.testing.assert_array_equal(found[0][2]["c"], payload["c"])


def test_the_leaf_that_is_furthest_off_is_named_with_what_is_allowed():
    expected = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([0.0])}
    rounding = {"a": jnp.array([1e-5, 0.0]), "b": jnp.array([1e-4])}
    payload = {"a": jnp.array([3.0, 4.02]), "b": jnp.array([0.05])}
    worst, leaf, error = furthest(payload, expected, rounding)
    assert (leaf, worst) == ("b", pytest.approx(0.05 / (100 * 1e-4), rel=1e-3))
    assert error == pytest.approx(0.05 / 1e-30)
    worst, leaf, error = furthest(payload | {"b": jnp.array([0.001])}, expected, rounding)
    assert (leaf, worst) == ("a", pytest.approx(0.02 / (100 * 1e-5 + 1e-3 * 5), rel=1e-3))
    assert error == pytest.approx(0.02 / 5, rel=1e-3)


@pytest.mark.parametrize(
    ("scale", "cause"), [(3.0, "a sum over the batch"), (2.0, "2 times the"), (-1.0, "-1 times the")]
)
def test_a_multiple_of_the_right_gradient_is_explained(scale, cause):
    expected = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([1.0])}
    rounding = jax.tree.map(jnp.zeros_like, expected)
    payload = jax.tree.map(lambda leaf: scale * leaf, expected)
    assert cause in _explained(payload, expected, rounding, 3)[0]
    assert "weights of another round" in _explained({**payload, "b": jnp.array([9.0])}, expected, rounding, 3)[0]
    said = _explained({**payload, "b": jnp.array([9.0])}, expected, rounding, 3)
    assert "images that were normalised in another way" in said[0]
    assert said[1] == f"--weights, --mean, --std, {LOSS_OTHER}, or {DEFENSE_OTHER}"
    one = _explained(expected, expected, rounding, 1)[0]
    assert one == "the update is 1 times the gradient"  # of a single sample, a sum is a mean


@pytest.mark.parametrize(
    ("scale", "samples", "cause", "option"),
    [
        (2.0, 4, "2 times the gradient: gradients that were added up over several micro", LOSS_OTHER),
        (1.4, 4, "1.4 times the gradient", "--reduction, "),
        (3.0, 2, "3 times the gradient", "--reduction, "),
        (0.5, 4, "0.5 times the gradient: clipping", "--defense dp_update --clip 0.25 --noise-multiplier 0 "),
        (-0.5, 4, "-0.5 times the gradient", "--reduction, "),
    ],
)
def test_a_multiple_of_the_gradient_of_known_images_has_a_likely_cause(scale, samples, cause, option):
    found = client_checks._multiple(scale, samples, 0.25)
    assert found[0].startswith(f"the update is {cause}")
    assert found[1].startswith(option)
