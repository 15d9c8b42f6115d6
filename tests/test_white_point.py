"""Batch normalisation in training mode hides the images' scale, and no other network does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_but

from jaxleak import attacks, audit, metrics, models, objectives, protocols
from jaxleak._base import Batch
from jaxleak.attacks import presets
from jaxleak.attacks._inversion.white_point import SOFT, hides_scale, stretch
from jaxleak.threats import Threat, view

B, SHAPE, CLASSES = 2, (6, 6, 2), 3


@functools.cache
def observed(normalised: bool, mode: str = "train"):
    """A client's round: model, protocol, the server's observation, and the truth with a brightest pixel of 0.8."""
    model = models.convnet(SHAPE, CLASSES, channels=(4, 4), strides=(1, 2), batch_norm=normalised)
    x = np.random.default_rng(0).random((B, 1, *SHAPE))
    private = Batch(jnp.asarray(0.8 * x / x.max(), jnp.float32), jnp.array([0, 2], jnp.int32), jnp.arange(B))
    share = protocols.ClientShare(model, batch_norm=mode)
    protocol = protocols.client(share, num_samples=B, batch_size=B)
    state = jax.jit(protocol.init)(jax.random.key(0))
    _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, private)
    threat = Threat(index=False, labels=True, running_statistics=mode == "eval")
    return model, protocol, view(threat, transcript), transcript.private


@pytest.mark.parametrize(("share", "hidden"), [(0.05, True), (1.0, False)])
def test_a_scale_is_hidden_if_dimming_by_a_tenth_changes_less_than_a_hundredth(share, hidden):
    """Here it changes 0.5 % and 5 %."""
    assert bool(hides_scale(lambda x: {"kernel": 1 + share * x.mean()}, jnp.ones((1, 2, 2, 1)))) == hidden


CASES = {
    "training mode": (True, "train", True),
    "evaluation mode": (True, "eval", False),
    "none": (False, "train", False),
}


@pytest.mark.parametrize("case", slow_but(CASES, ("training mode",)))
def test_only_normalisation_by_the_batch_hides_the_scale(case):
    normalised, mode, hidden = CASES[case]
    _, protocol, seen, truth = observed(normalised, mode)

    @jax.jit
    def both(x, y):
        def simulate(x, sharpness=None):
            return protocol.share(seen.params, Batch(x[:, None], y, jnp.arange(B)), sharpness=sharpness)

        dimmed = simulate(0.5 * x)
        return (
            hides_scale(functools.partial(simulate, sharpness=jnp.float32(SOFT)), x),
            objectives.cosine(seen.payload, dimmed),
            dimmed,
        )

    hides, distance, dimmed = both(truth.x[:, 0], truth.y)
    assert bool(hides) == hidden
    largest = max(
        float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (dimmed, seen.payload)), strict=True)
    )
    assert (largest < 2e-3) == (float(distance) < 1e-6) == hidden


@pytest.mark.slow
def test_kinks_would_drown_the_answer():
    # In dark images, the normalisation's epsilon matters, and further dimming flips ReLUs.
    model = models.convnet((8, 8, 2), CLASSES, channels=(8,) * 4, strides=(1,) * 4, batch_norm=True)
    share, variables = protocols.ClientShare(model), reference.drawn(model)
    dark = jnp.asarray(0.05 * np.random.default_rng(0).random((B, 8, 8, 2)), jnp.float32)

    @jax.jit
    def asked(x, sharpness):
        def simulate(z):
            return share(variables, Batch(z[:, None], jnp.array([0, 2]), jnp.arange(B)), sharpness=sharpness)

        return hides_scale(simulate, x)

    assert not asked(dark, None)
    assert asked(dark, jnp.float32(SOFT))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quantile", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_answer_is_stretched_where_the_scale_is_hidden_only(case, quantile):
    normalised, mode, hidden = CASES[case]
    model, protocol, seen, truth = observed(normalised, mode)
    settings = presets.fedleak(10)._replace(labels="given", white_point=quantile)
    attack = attacks.inversion(model, protocol.share, settings, batch_size=B)

    @jax.jit
    def answer(key, x):
        state = attack.init(key, audit.template_of(truth))
        variables = {**state.variables, "x": x}
        return attack.reconstruct(state._replace(variables=variables, best=variables), seen)

    found = answer(jax.random.key(2), 0.5 * truth.x[:, 0])
    factor = 1 / 0.8 if hidden and quantile else 0.5
    np.testing.assert_allclose(found.x, factor * truth.x, rtol=1e-5, atol=1e-6)


def test_stretching_takes_one_factor_for_all_images_and_clips():
    x = jnp.asarray(np.linspace(0, 0.5, 101, dtype=np.float32).reshape(1, 101, 1, 1))
    x = jnp.concatenate([x, x / 2])
    np.testing.assert_allclose(stretch(x, 1.0), 2 * x, rtol=1e-6)
    white = np.quantile(np.asarray(x), 0.9)
    np.testing.assert_allclose(stretch(x, 0.9), np.minimum(np.asarray(x) / white, 1), rtol=1e-5)
    np.testing.assert_array_equal(stretch(jnp.zeros((1, 2, 2, 1)), 0.999), 0)


def test_psnr_up_to_scale_ignores_one_factor_only():
    truth = np.random.default_rng(0).random((2, 5, 5, 3))
    assert metrics.psnr(truth, 0.5 * truth).max() < 20
    assert metrics.psnr_up_to_scale(truth, 0.5 * truth).min() > 200
    apart = truth * np.array([0.5, 1.0])[:, None, None, None]
    factor = np.sum(truth * apart) / np.sum(apart**2)
    np.testing.assert_allclose(metrics.psnr_up_to_scale(truth, apart), metrics.psnr(truth, factor * apart))
    np.testing.assert_allclose(metrics.psnr_up_to_scale(truth, 0 * truth), metrics.psnr(truth, 0 * truth))


def test_a_quantile_out_of_range_is_refused():
    model = models.mlp(SHAPE, CLASSES, widths=(4,))
    settings = presets.fedleak(10)._replace(white_point=1.5)
    with pytest.raises(ValueError, match=r"white_point must be in \[0, 1\], got 1.5"):
        attacks.inversion(model, protocols.ClientShare(model), settings, batch_size=B)
