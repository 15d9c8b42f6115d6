"""Checks of the last dense layer: its equations, and the labels that its gradient proves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, models, protocols
from jaxleak.audit import check_update
from jaxleak.audit._checks import equations, head, predicted
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER
from jaxleak.audit._checks.labels import labels_of
from jaxleak.audit._checks.precision import Precision


class TestHead:
    """Equations of the last dense layer, on gradients computed in NumPy."""

    KERNEL = 0.3 * np.random.default_rng(0).standard_normal((6, 4))
    BIAS = 0.1 * np.random.default_rng(1).standard_normal(4)

    def of_batch(self, labels, scale=1.0, features=None, kernel=None):
        """The head of a batch with random features, or with the same features for every sample."""
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

    def test_a_head_without_a_gradient_has_no_equations(self):
        of_batch = self.of_batch([0, 1])
        without = equations.check_head(of_batch._replace(bias_gradient=np.zeros(4)), 2)
        assert [f.status for f in without] == ["passed", "not applicable", "passed"]
        (zero,) = equations.check_head(of_batch._replace(kernel_gradient=np.zeros((6, 4))), 2)
        assert zero.status == "not applicable"
        model = models.mlp((4, 4, 1), 3, widths=(5,))
        variables = model.init(jax.random.key(0))
        gradient = jax.tree.map(jnp.ones_like, variables["params"])
        gradient["head"]["kernel"] *= 0
        found = check_update(protocols.ClientShare(model), variables, gradient, batch_size=2)
        assert not any("nan" in str(finding) for finding in found)

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
        """A squared error of the logits may have negative slopes for absent classes, and sums need not be zero."""
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
        found = equations._rank(self.of_batch(labels), stated, 1, 1)
        assert found.status == status
        assert says in found.evidence
        expected = {
            "passed": "",
            "suspicious": "--batch-size",  # names no number: samples of one class and one output have rank one
            "failed": "--batch-size, --local-steps, --local-epochs, or --defense other",
        }
        assert found.option.startswith(expected[status])
        assert not any(figure.isdigit() for figure in found.option)
        if status == "suspicious":
            of_steps = equations._rank(self.of_batch(labels), stated, 1, 2)
            assert of_steps.option == "--batch-size, --local-steps, or --local-epochs"
            assert found.cause.startswith("the batch holds " + ("1 sample," if len(labels) == 1 else "2 samples,"))

    @pytest.mark.parametrize(
        ("bias", "samples", "least", "cause"),
        [
            ((-0.5, 0.5, 0.0, 0.0), 2, 1, ""),  # 0.5 times two samples is one sample, up to rounding
            ((-0.51, 0.51, 0.0, 0.0), 2, 2, ""),
            ((-0.3, -0.3, -0.3, 0.9), 2, 3, "the sign of the update is reversed"),
            ((-0.6, -0.6, 0.6, 0.6), 2, 4, "the batch is larger"),
        ],
    )
    def test_labels_that_are_proven_must_fit_into_the_batch(self, bias, samples, least, cause):
        found = equations._labels_fit(self.of_bias(*bias), samples)
        assert f"at least {least} labels in a batch of {samples}" in found.evidence
        assert found.cause.startswith(cause)
        assert (found.status == "passed") == (not cause)

    def test_proven_labels_go_by_the_rank_and_stated_ones_by_what_is_said(self):
        slopes = np.array([-0.6, -0.2, 0.4, 0.4])  # two samples of class 0, one of class 1, with these softmaxes:
        softmaxes = {"kernel": np.zeros((6, 4)), "bias": np.log(slopes + np.array([2, 1, 0, 0]) / 3)}
        two = self.of_batch([0, 0, 1])._replace(bias_gradient=slopes, **softmaxes)
        found = labels_of(two, 3)  # rank 3, as from three samples
        assert (found.proven.tolist(), found.if_stated.tolist(), found.samples) == ([2, 1, 0, 0], [2, 1, 0, 0], 3)
        found = labels_of(two, 6)  # more samples than classes can give no higher rank
        assert (found.proven.tolist(), found.if_stated.tolist(), found.samples) == ([2, 1, 0, 0], [4, 2, 0, 0], 6)
        fewer = self.of_batch([0, 1])._replace(bias_gradient=slopes, **softmaxes)
        found = labels_of(fewer, 6)  # six different samples would give a higher rank, so six are not believed
        assert (found.proven.tolist(), found.if_stated.tolist()) == ([2, 1, 0, 0], [2, 1, 0, 0])
        found = labels_of(fewer, 1)  # one sample is too few for this rank
        assert found.if_stated.tolist() == [2, 1, 0, 0]

    def test_where_the_scale_is_in_doubt_every_class_counts_once(self):
        right = self.of_batch([0, 0, 0, 1])
        assert not labels_of(right, 4).uncounted
        assert labels_of(right, 4).if_stated[0] > 1
        stretched = right._replace(kernel_gradient=1.8 * right.kernel_gradient, bias_gradient=1.8 * right.bias_gradient)
        found = labels_of(stretched, 4)  # momentum stretches an update like this
        assert "the scale of the update" in found.uncounted
        assert found.if_stated.tolist() == (right.bias_gradient < 0).astype(int).tolist()
        assert found.proven.tolist() == (right.bias_gradient < -0.1 / 4 - 1e-3).astype(int).tolist()
        many = self.of_batch([0] * 6 + [1] * 2)  # twice as many as classes: label counts do not show the scale
        assert labels_of(many, 8).proven.tolist() == [1, 0, 0, 0]
        fewer = self.of_batch([0] * 5 + [1] * 2)
        assert not labels_of(fewer, 7).uncounted
        assert "several local steps" in labels_of(fewer, 7, local_steps=7).uncounted

    @pytest.mark.parametrize(
        ("scale", "cause"),
        [(1.0, ""), (1.0009, ""), (1.0012, "1.001 times"), (0.9988, "0.9988 times"), (-2.0, "-2 times")],
    )
    def test_one_sample_tells_the_scale(self, scale, cause):
        # In a negated gradient, the smallest entry is not the label's.
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
        of_gradients = ([clipping] if scale < 1 else []) + [LOSS_OTHER]
        expected = [rate, *of_gradients] if of_weights else [*of_gradients, rate]
        places = [found.option.index(option) for option in [*expected, DEFENSE_OTHER]]
        assert places == sorted(places)
        assert (clipping in found.option) == ("clipping" in causes) == (scale < 1)
        assert "focal loss" in causes
        assert (causes.index("a learning rate") < causes.index("another loss")) == of_weights

    def test_sums_over_classes_of_a_gradient_are_of_another_loss_and_others_were_changed_later(self):
        """The gradient of a squared error of one logit has the rank of its samples, and noise has full rank."""
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
        # Two visits of each sample may double the rank.
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
        """With equal features for all samples, the equation for the counts is exact."""
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
        # For twice as many samples as classes, mean features are too little information.
        assert predicted.check_counts(self.of_batch([0] * 5 + [2] * 3, 0.55, features), 8).status == "not applicable"

    def test_nothing_is_proven_where_the_reversed_update_has_the_better_counts(self):
        """Unequal features blur the counts for both signs, but the right sign's stay nearer to whole numbers."""
        right, turned = (self.of_batch([0, 0, 2], scale) for scale in (1, -1))
        assert predicted.reversed_fits(turned, 3)
        assert not predicted.reversed_fits(right, 3)
        if predicted.check_counts(turned, 3).status == "suspicious":
            assert not labels_of(turned, 3).proven.any()
        assert labels_of(right, 3).proven.any()
        assert not predicted.reversed_fits(right._replace(bias_gradient=None), 3)
        assert not predicted.reversed_fits(right._replace(bias_gradient=np.zeros(4)), 3)


def test_a_head_whose_matrix_is_used_below_it_too_has_no_equations():
    """The gradient of a shared matrix sums over both uses, so the equations do not apply, and the client is right."""
    rng = np.random.default_rng(0)
    start = {"a": jnp.asarray(rng.standard_normal((16, 8)) / 4, jnp.float32)}
    start["w"] = jnp.asarray(rng.standard_normal((8, 4)) / 3, jnp.float32)

    def apply(variables, x):
        p = variables["params"]
        f = jax.nn.relu(x.reshape(len(x), -1) @ p["a"])
        return jax.nn.relu(f + jnp.tanh(f @ p["w"]) @ p["w"].T) @ p["w"]

    model, variables = models.from_function(apply, {"params": start}, image_shape=(4, 4, 1), num_classes=4)
    batch = Batch(jnp.asarray(rng.random((1, 1, 4, 4, 1)), jnp.float32), jnp.array([2], jnp.int32), jnp.arange(1))
    share = protocols.ClientShare(model)
    assert model.head == "w"
    assert head.head_of(model, variables["params"], variables) is None
    found = check_update(share, variables, jax.jit(share)(variables, batch), batch_size=1)
    assert not [finding for finding in found if finding.status in ("failed", "suspicious")]
