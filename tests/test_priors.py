"""Priors of the gradient inversions: their values and their weights."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, models, objectives, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion import priors
from jaxleak.attacks.client_updates import Evidence


def test_total_variation_may_be_truncated_as_cafe_does():
    x = reference.uniform(2, 4, 4, 1)
    evidence = Evidence(None, None, None, None, x, None)
    within, beyond = (client_updates.variation_prior("truncated", threshold=xi).value(evidence) for xi in (2.0, 50.0))
    np.testing.assert_allclose(within, objectives.total_variation(x).mean(), rtol=1e-6)
    assert beyond == 0


def test_priors_are_added_up_in_the_same_order_however_they_were_named():
    plain = presets.fedleak(3)
    s = plain.weighing(activation=0.5, l2=0.1).weighing(client_updates.variation_prior("sum"), tv=0.3)
    assert [(weight, prior.name, prior.kind) for weight, prior in s.priors] == [
        (0.3, "tv", "sum"), (0.1, "l2", ""), (0.5, "activation", "mean"),
    ]  # fmt: skip
    assert plain.weight("tv") == "auto"
    assert (s.weight("tv"), s.weight("latent")) == (0.3, 0.0)
    # A prior that is new has no weight to keep.
    assert presets.dlg(3).weighing(client_updates.variation_prior("sum")).weight("tv") == 0
    both = plain._replace(priors=tuple((0.1, client_updates.variation_prior(kind)) for kind in ("sum", "isotropic")))
    with pytest.raises(ValueError, match="names of their own to be weighed by name, got tv twice"):
        both.weighing(l2=0.1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda seen: jnp.mean(seen.x, axis=(1, 2, 3)), r"must return one real number .*, got float32 of shape \(2,\)"),
        (lambda seen: jnp.sum(seen.x > 0.5), r"must return one real number .*, got int32 of shape \(\)"),
        (lambda seen: seen.x @ jnp.ones(3), r"fails on images of shape \(2, 4, 4, 1\): TypeError: .*"),
        (lambda seen: seen.images, r"fails on images of shape \(2, 4, 4, 1\): AttributeError: .*images"),
        (lambda seen: None, r"fails on images of shape .*"),
    ],
)
def test_a_prior_of_ones_own_that_is_no_number_is_named(value, message):
    own = client_updates.Prior("own", value)
    evidence = SimpleNamespace(x=jnp.ones((2, 4, 4, 1)))
    with pytest.raises(ValueError, match=f"prior own {message}"):
        priors.total([(0.5, own)], evidence)
    assert priors.total([(0.5, own._replace(value=lambda seen: seen.x.mean()))], evidence) == 0.5


@pytest.mark.parametrize(
    ("batch_norm", "activation", "mode", "weight"),
    [
        (False, "relu", "train", 0.1),
        pytest.param(True, "relu", "train", 0.3, marks=pytest.mark.slow),
        pytest.param(True, "relu", "eval", 0.1, marks=pytest.mark.slow),
        pytest.param(True, "sigmoid", "train", 0.1, marks=pytest.mark.slow),
    ],
)
def test_the_recommended_variation_goes_by_coupled_kinks_and_by_the_batch(batch_norm, activation, mode, weight):
    options = {"channels": (4,), "strides": (1,), "batch_norm": batch_norm, "activation": activation}
    model = models.convnet((4, 4, 1), 10, **options)
    variables, y = reference.drawn(model), jnp.array([1, 2, 3])
    share = protocols.ClientShare(model, batch_norm=mode)
    batch = Batch(reference.uniform(3, 1, 4, 4, 1, seed=1), y, jnp.arange(3))
    seen = Observation(jnp.zeros((), jnp.int32), variables, jax.jit(share)(variables, batch), labels=y)
    losses = []
    for tv in ("auto", weight * 3**0.5, 0.0):
        settings = presets.fedleak(3, homotopy=False)._replace(labels="given").weighing(tv=tv)
        attack = attacks.inversion(model, share, settings, batch_size=3)
        state = attack.init(jax.random.key(2), audit.template_of(batch))
        losses.append(jax.jit(attack.step)(jax.random.key(3), state, seen)[1]["loss"])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("much", "tv must be a weight >= 0 or \"auto\", got 'much'"),
        (-1.0, "tv must be >= 0"),
        (None, "tv must be a"),
    ],
)
def test_a_weight_that_is_none_is_refused_where_it_is_given(weight, message):
    with pytest.raises(ValueError, match=message):
        presets.fedleak(3).weighing(tv=weight)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: presets.fedleak(3).weighing(0.1), "priors must be a Prior"),
        (lambda: client_updates.natural_tv(1, 1), "height and width must make up more than one pixel"),
        (lambda: client_updates.natural_tv(0, 3), "height must be > 0, got 0"),
        (lambda: presets.fedleak(0), "iterations must be > 0, got 0"),
    ],
)
def test_what_a_prior_or_preset_cannot_take_is_refused_by_name(made, message):
    with pytest.raises(ValueError, match=message):
        made()
