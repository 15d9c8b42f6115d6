"""Users' networks in Equinox as classifiers."""

import sys

import equinox as eqx
import jax
import numpy as np
import pytest
import reference

from jaxleak import models

IMAGE, CLASSES = (8, 8, 3), 5
X = reference.uniform(2, *IMAGE, seed=1)


class Running(eqx.Module):
    """A network of Equinox with batch normalisation, whose statistics are in a state, followed by dropout."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    dense: eqx.nn.Linear

    def __init__(self, key, p=0.0):
        one, two = jax.random.split(key)
        self.conv, self.dense = eqx.nn.Conv2d(3, 4, 3, 2, key=one), eqx.nn.Linear(36, CLASSES, key=two)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch", momentum=0.75)
        self.drop = eqx.nn.Dropout(p)

    def __call__(self, x, state):
        z, state = self.norm(self.conv(x), state)
        return self.dense(self.drop(jax.nn.relu(z), key=jax.random.key(0)).ravel()), state


class RunningOnBatches(Running):
    def __call__(self, x, state):
        return jax.vmap(super().__call__, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)


@pytest.mark.parametrize("batched", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_module_of_equinox_with_a_state_computes_the_same_in_both_modes(batched):
    module, state = eqx.nn.make_with_state(RunningOnBatches if batched else Running)(jax.random.key(0))
    model, variables = models.from_equinox(module, state, image_shape=IMAGE, batched=batched)
    own = module if batched else jax.vmap(module, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    x = X.transpose(0, 3, 1, 2)
    expected, after = own(x, state)
    out = jax.jit(model.apply)(variables, X)
    np.testing.assert_allclose(out.logits, expected, atol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(out.batch_stats), jax.tree.leaves(eqx.filter(after, eqx.is_inexact_array)),
                            strict=True):  # fmt: skip
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    evaluated = eqx.nn.inference_mode(module)
    own = evaluated if batched else jax.vmap(evaluated, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    # A state also counts its batches, and this is no part of the statistics, so a later state makes its own classifier.
    later = models.from_equinox(module, after, image_shape=IMAGE, batched=batched)
    later = later[0].apply(later[1], X, mode="eval")
    np.testing.assert_allclose(later.logits, own(x, after)[0], atol=1e-5)
    assert model.has_batch_norm
    assert list(model.order) == ["conv/weight", "conv/bias", "norm/weight", "norm/bias", "dense/weight", "dense/bias"]


def test_a_module_of_equinox_may_take_batches_and_channels_last():
    weight = 0.1 * reference.normal(192, CLASSES)

    class Batched(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return x.reshape(len(x), -1) @ self.weight

    model, variables = models.from_equinox(Batched(weight), image_shape=IMAGE, layout="NHWC", batched=True)
    np.testing.assert_allclose(model.apply(variables, X).logits, X.reshape(2, -1) @ weight, atol=1e-5)
    assert (model.head, model.num_classes) == ("weight", CLASSES)


def test_equinox_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    with pytest.raises(ImportError, match="pip install equinox"):
        models.from_equinox(None, image_shape=IMAGE)


def test_dropout_of_equinox_is_refused_where_it_acts():
    with pytest.raises(ValueError, match=r"the module has dropout with p = 0.25"):
        models.from_equinox(*eqx.nn.make_with_state(Running)(jax.random.key(0), 0.25), image_shape=IMAGE)
    module, state = eqx.nn.make_with_state(Running)(jax.random.key(0), 0.25)
    module = eqx.tree_at(lambda m: m.drop, module, eqx.nn.Dropout(0.25, inference=True))
    model, variables = models.from_equinox(module, state, image_shape=IMAGE)
    off = eqx.tree_at(lambda m: m.drop, module, eqx.nn.Dropout(0.0))
    wanted, _ = models.from_equinox(off, state, image_shape=IMAGE)
    for mode in ("train", "eval"):  # the layer stays off also in training
        logits, same = (m.apply(variables, X, mode=mode).logits for m in (model, wanted))
        np.testing.assert_array_equal(logits, same)


def test_a_module_of_equinox_may_give_one_number():
    module = eqx.nn.Sequential([eqx.nn.Lambda(jax.numpy.ravel), eqx.nn.Linear(192, "scalar", key=jax.random.key(0))])
    model, variables = models.from_equinox(module, image_shape=IMAGE)
    logits = model.apply(variables, X).logits
    np.testing.assert_allclose(logits[:, 1], jax.vmap(module)(X.transpose(0, 3, 1, 2)), atol=1e-5)
    assert (model.num_classes, model.one_logit, model.head) == (2, True, "layers/1")
