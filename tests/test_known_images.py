"""The check with known images: the expected update, leaf by leaf, and explanations of a difference."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import changed

from jaxleak import Batch, audit, models, protocols
from jaxleak.audit._checks import check_known_images
from jaxleak.audit._checks import client as client_checks
from jaxleak.audit._checks.client import _explained
from jaxleak.audit._checks.differences import furthest
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER


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
    sums = jax.tree.map(lambda g: 2 * g, payload)  # sums over the two images of each step, at half the step length
    options = {"reduction": "sum", "local_steps": 2, "learning_rate": 0.05}
    found = audit.check_client(plain.model, plain.variables, sums, x, np.asarray(plain.batch.y), **options)
    assert found[-1].status == "passed"


@pytest.mark.parametrize(
    ("worst", "status"), [(1.0, "passed"), (1.01, "suspicious"), (10.0, "suspicious"), (10.1, "failed")]
)
def test_known_images_may_be_off_by_what_another_machine_explains(plain, monkeypatch, worst, status):
    monkeypatch.setattr(client_checks, "furthest", lambda *_: (worst, "conv_0/kernel", 0.1))
    monkeypatch.setattr(client_checks, "_explained", lambda *_: ("a cause", ("--option",)))
    x, y = np.asarray(plain.batch.x[:, 0]), np.asarray(plain.batch.y)
    assert audit.check_client(plain.model, plain.variables, plain.gradient, x, y)[-1].status == status


def _with_factors_of(bits):
    """A matrix product with factors rounded to this many fraction bits, as on GPUs, also in the gradient."""

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
    batch = Batch(reference.uniform(4, 1, 4, 4, 3, seed=5), jnp.arange(4), jnp.arange(4))
    gradient = protocols.ClientShare(rounding)(variables, batch)
    found = audit.check_client(model, variables, gradient, batch.x[:, 0], batch.y)[-1]
    assert (found.name, found.status) == ("known images", status)
    assert said in found.cause
    # A mistake of a known kind is still detected.
    if bits >= 10:
        found = audit.check_client(model, variables, jax.tree.map(lambda g: 4 * g, gradient), batch.x[:, 0], batch.y)[
            -1
        ]
        assert found.status == "failed"


def test_known_images_show_the_mistake_exactly(normalised):
    c, x = normalised, normalised.batch.x[:, 0]

    def check(payload, **options):
        return audit.check_client(c.model, c.variables, payload, x, c.batch.y, **options)[-1]

    assert check(c.gradient).status == "passed"  # biases before batch statistics have only rounding errors
    shifted = changed(c.gradient, "conv_0/bias", lambda g: g + 1e-3)
    assert "conv_0/bias" in check(shifted).evidence
    assert "sum over the batch" in check(jax.tree.map(lambda g: 4 * g, c.gradient)).cause
    assert check(jax.tree.map(lambda g: 4 * g, c.gradient), reduction="sum").status == "passed"
    assert "--batch-norm train" in check(c.gradient, batch_norm="eval").option
    assert "conv_1/kernel" in check(changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))).cause
    assert "in different modes" in check(changed(c.gradient, "conv_1/kernel", jnp.tanh)).cause


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
    ("scale", "cause"),
    [
        (3.0, "a sum over the batch"), (2.0, "2 times the"), (-2.0, "-2 times the"), (1 / 3, "a mean over the batch"),
        (-1.0, "the sign of the update is reversed"),
    ],
)  # fmt: skip
def test_a_multiple_of_the_right_gradient_is_explained(scale, cause):
    expected = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([1.0])}
    rounding = jax.tree.map(jnp.zeros_like, expected)
    payload = jax.tree.map(lambda leaf: scale * leaf, expected)
    assert cause in _explained(payload, expected, rounding, 3)[0]
    assert _explained({**payload, "b": jnp.array([9.0])}, expected, rounding, 3) is None
    one = _explained(expected, expected, rounding, 1)[0]
    assert one == "the update is 1 times the gradient"  # for a single sample, a sum is a mean


def test_different_modes_are_among_the_causes_only_where_there_are_modes(plain, normalised):
    for client, modes in ((plain, False), (normalised, True)):
        cause, options = client_checks._unexplained(protocols.ClientShare(client.model))
        assert cause.startswith("weights of another round or model, images that were normalised in another way")
        assert ("layers of batch normalisation in different modes (eval_layers), a defense" in cause) == modes
        assert options == ("--weights", "--mean", "--std", LOSS_OTHER, DEFENSE_OTHER)
    cause, options = client_checks._unexplained(protocols.ClientShare(plain.model, local_steps=2))
    assert cause.startswith("another learning rate, momentum, number or order of steps, weights of another round")
    assert options[:4] == ("--learning-rate", "--momentum", "--local-steps", "--weights")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": [0.9, 1, 2, 3]}, "labels must be integers, got 0.9"),
        ({"labels": [10, 1, 2, 3]}, r"y must be in \[0, 10\), got labels from 1 to 10"),
        ({"labels": [-1, 1, 2, 3]}, "got labels from -1 to 3"),
        ({"images": np.nan}, "images must be finite"),
    ],
)
def test_images_and_labels_that_no_client_has_are_refused(plain, changed, message):
    x = np.full((4, *plain.model.image_shape), changed.get("images", 0.5), np.float32)
    with pytest.raises(ValueError, match=message):
        audit.check_client(plain.model, plain.variables, plain.gradient, x, changed.get("labels", [0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("scale", "samples", "cause", "option"),
    [
        (2.0, 4, "2 times the gradient: gradients that were added up over several micro", LOSS_OTHER),
        (1.4, 4, "1.4 times the gradient", "--reduction"),
        (3.0, 2, "3 times the gradient", "--reduction"),
        (
            0.5,
            4,
            "0.5 times the gradient: clipping",
            "--defense dp_update --clip 0.25 --noise-multiplier 0 (clipping at a norm of 0.25, of a mean loss)",
        ),
        (-0.5, 4, "-0.5 times the gradient", "--reduction"),
    ],
)
def test_a_multiple_of_the_gradient_of_known_images_has_a_likely_cause(scale, samples, cause, option):
    found = client_checks._multiple(scale, samples, 0.25)
    assert found[0].startswith(f"the update is {cause}")
    assert found[1][0] == option
