"""Checks of an update before any attack: every mistake is named, and a right update passes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import Client, changed

from jaxleak import Batch, audit, capture, models, protocols
from jaxleak.audit._checks import failed
from jaxleak.audit._checks.finding import LOSS_OTHER
from jaxleak.audit._checks.precision import Precision


def _mixed(variables, other, share):
    return jax.tree.map(lambda a, b: (1 - share) * a + share * b, variables, other)


def test_a_right_update_passes(plain, normalised):
    for client in (plain, normalised):
        assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "options"),
    [
        pytest.param(4, {"local_steps": 2, "local_epochs": 3, "momentum": 0.9}, marks=pytest.mark.slow),
        (1, {"local_epochs": 3}),
    ],
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
        lambda c: {"payload": changed(c.gradient, "conv_1/kernel", lambda g: g.swapaxes(0, 1))},
        "conv_1/kernel is stored in another layout",
    ),
    "rows of the head": (
        lambda c: {
            "payload": changed(
                c.gradient, "head/kernel", lambda g: g.reshape(2, 2, 8, 10).transpose(2, 0, 1, 3).reshape(32, 10)
            )
        },
        "head/kernel is stored in another layout",
    ),
    "another round": (
        lambda c: {"variables": _mixed(c.variables, reference.drawn(c.model, seed=9), 0.02)},
        "weights of another round",
    ),
    "weight decay": (
        lambda c: {"payload": jax.tree.map(lambda g, w: g + 1e-3 * w, c.gradient, c.variables["params"])},
        "weight decay",
    ),
    "reversed sign": (lambda c: {"payload": jax.tree.map(jnp.negative, c.gradient)}, "sign"),
    "weights": (lambda c: {"payload": c.variables["params"]}, "one file was given for both"),
    "noise": (
        lambda c: {
            "payload": jax.tree.map(
                lambda g: g + 0.01 * jax.random.normal(jax.random.key(g.size), g.shape) * jnp.abs(g).max(), c.gradient
            )
        },
        "noise",
    ),
    "NaN": (lambda c: {"payload": changed(c.gradient, "head/bias", lambda g: g.at[0].set(jnp.nan))}, "overflowed"),
    "missing leaf": (lambda c: {"payload": changed(c.gradient, "head/bias", lambda g: None)}, "lacks a layer"),
    "zero": (lambda c: {"payload": jax.tree.map(jnp.zeros_like, c.gradient)}, "cleared"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(plain, mistake):
    change, cause = MISTAKES[mistake]
    wrong = failed(plain.check(**change(plain)))
    assert any(cause in finding.cause for finding in wrong), [str(finding) for finding in wrong]


@pytest.mark.slow
def test_the_mode_of_batch_normalisation_is_named(normalised):
    eval_share = protocols.ClientShare(normalised.model, batch_norm="eval")
    payload = jax.jit(eval_share)(normalised.variables, normalised.batch)
    assert any("--batch-norm eval" in f.option for f in failed(normalised.check(payload)))
    assert any("--batch-norm train" in f.option for f in failed(normalised.check(share=eval_share)))
    assert not failed(normalised.check(payload, share=eval_share))


def _biased_normalisation():
    """A network whose convolution has a bias in front of a batch normalisation, and its variables."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3))(x)))
            return nn.Dense(2)(x.reshape(len(x), -1))

    variables = Net().init(jax.random.key(0), jnp.zeros((4, 8, 8, 3)), train=True)
    return models.from_flax(
        Net(), image_shape=(8, 8, 3), num_classes=2, variables=variables,
        train_arguments={"train": True}, eval_arguments={"train": False},
    )  # fmt: skip


@pytest.mark.slow
def test_batch_statistics_are_told_by_a_bias_in_front_of_them_where_running_ones_are_stated():
    """Only the bias of a convolution before the normalisation reveals the mode; built-in networks have none there."""
    model, variables = _biased_normalisation()
    x = reference.uniform(4, 1, 8, 8, 3, seed=1)
    batch = Batch(x, jnp.array([0, 1, 1, 1], jnp.int32), jnp.arange(4))
    for mode, wrong in (("train", ["mode of batch normalisation"]), ("eval", [])):
        payload = jax.jit(protocols.ClientShare(model, batch_norm=mode))(variables, batch)
        stated = protocols.ClientShare(model, batch_norm="eval")
        found = audit.check_update(share=stated, variables=variables, payload=payload, batch_size=4)
        assert [finding.name for finding in failed(found)] == wrong
        assert {f.status for f in found if f.name == "mode of batch normalisation"} == {"failed" if wrong else "passed"}


@pytest.mark.slow
def test_the_mode_is_told_though_the_stated_steps_diverge_on_simulated_images():
    """By running statistics, such a rate overflows on noise, though the client's own steps were by batch statistics."""
    model, variables = _biased_normalisation()
    batch = Batch(reference.uniform(4, 1, 8, 8, 3, seed=1), jnp.array([0, 1, 1, 1], jnp.int32), jnp.arange(4))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    stated = protocols.ClientShare(model, batch_norm="eval", local_steps=8, learning_rate=1e8, momentum=0.9)
    found = {f.name: f for f in audit.check_update(share=stated, variables=variables, payload=payload, batch_size=4)}
    assert found["mode of batch normalisation"].option == "--batch-norm train"
    payload = jax.jit(protocols.ClientShare(model, batch_norm="eval"))(variables, batch)
    found = {f.name: f for f in audit.check_update(share=stated, variables=variables, payload=payload, batch_size=4)}
    assert found["mode of batch normalisation"].status == "passed"
    assert "diverge" in found["symmetries of the network"].evidence


def test_zeros_in_front_of_batch_statistics_are_no_mistake():
    """Weights that do not move are rounding in front of batch statistics, and a mistake by running ones."""
    model, variables = _biased_normalisation()
    batch = Batch(reference.uniform(4, 1, 8, 8, 3, seed=1), jnp.array([0, 1, 1, 1], jnp.int32), jnp.arange(4))
    for mode, status in (("train", "passed"), ("eval", "suspicious")):
        share = protocols.ClientShare(model, batch_norm=mode)
        payload = jax.jit(share)(variables, batch)
        zeroed = changed(payload, "Conv_0/bias", jnp.zeros_like)
        found = {f.name: f for f in audit.check_update(share, variables=variables, payload=zeroed, batch_size=4)}
        assert found["zeros"].status == status


def test_one_samples_equations_give_the_scale_and_the_weights():
    client = Client(batch_norm=False, batch_size=1)
    assert {finding.status for finding in client.check()} <= {"passed", "not applicable"}
    scaled = failed(client.check(jax.tree.map(lambda g: 0.01 * g, client.gradient)))
    assert [finding.name for finding in scaled] == ["one sample's equations"]
    assert "0.01 times" in scaled[0].cause
    norm = np.sqrt(sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(client.gradient)))
    assert scaled[0].option.startswith(f"--defense dp_update --clip {0.01 * norm:.4g} --noise-multiplier 0 (clipping")
    other = reference.drawn(client.model, seed=9)
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
    assert wrong.option == f"--reduction sum (of images), {LOSS_OTHER}, --learning-rate, or --local-steps"
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


def test_the_options_of_a_finding_are_those_of_the_kind_of_update(plain):
    client = Client(batch_norm=False, batch_size=1)
    (scaled,) = failed(client.check(jax.tree.map(lambda g: 0.1 * g, client.gradient)))
    assert scaled.option.startswith("--defense dp_update --clip ")
    of_weights = Precision(scale=1.0, of_weights=True)
    (scaled,) = failed(client.check(jax.tree.map(lambda g: 0.1 * g, client.gradient), precision=of_weights))
    assert scaled.option.startswith("--learning-rate, --local-steps, --defense dp_update --clip ")
    (turned, *_) = failed(client.check(jax.tree.map(jnp.negative, client.gradient)))
    for kind, option in (
        ("gradient", "--kind difference --learning-rate 1"),
        ("difference", "a difference that is the weights after training minus those before"),
        (
            "weights",
            "--weights with the file of the weights before training, and --update with the file of those after it",
        ),
    ):
        assert turned.of_kind(kind).option == option


def test_one_file_of_weights_for_both_is_named(plain, tmp_path):
    capture.save(tmp_path / "u", plain.variables["params"], kind="weights", learning_rate=0.1, batch_size=4)
    verdict = audit.update(plain.model, plain.variables, tmp_path / "u")
    assert verdict.verdict == "inputs inconsistent"
    assert "one file was given for both, --weights was saved after the steps" in verdict.reasons[0]


class _Mixed(nn.Module):
    """Two convolutions with batch normalisation; the first may stay in evaluation mode."""

    in_eval: bool = False

    @nn.compact
    def __call__(self, x, train=True):
        for layer, in_eval in enumerate((self.in_eval, False)):
            x = nn.Conv(3, (3, 3), name=f"conv_{layer}")(x)
            x = nn.gelu(nn.BatchNorm(use_running_average=in_eval or not train)(x))
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_layers_that_normalise_in_different_modes_are_named(mode):
    stated, real = (models.classifier(_Mixed(in_eval), image_shape=(6, 6, 1)) for in_eval in (False, True))
    variables = jax.jit(stated.init)(jax.random.key(0))
    batch = Batch(jax.random.uniform(jax.random.key(1), (3, 1, 6, 6, 1)), jnp.arange(3), jnp.arange(3))
    payload = jax.jit(protocols.ClientShare(real))(variables, batch)
    found = audit.check_update(protocols.ClientShare(stated, batch_norm=mode), variables, payload, batch_size=3)
    (wrong,) = failed(found)
    assert wrong.cause == "layers of batch normalisation in different modes (eval_layers)"
    assert wrong.option.startswith("eval_layers, the names of those in evaluation mode")
