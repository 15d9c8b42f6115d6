"""The inputs of a dense layer from its gradients for one image, and the gradient of the layers below."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import sent_by

from jaxleak import Observation, metrics, models
from jaxleak._tree import named_leaves
from jaxleak.attacks._inversion.peeling import CUT, affine_solution, dense_inputs, peel


def _peeled(model, variables, gradient):
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    return peel(model, seen, batch_norm="train", key=jax.random.key(2))


@pytest.mark.slow
def test_peeling_leaves_an_update_of_the_layers_below():
    model = models.convnet((6, 6, 1), 10, channels=(4, 4), strides=(1, 2))
    variables, batch, gradient = sent_by(model)
    peeled = _peeled(model, variables, gradient)
    simulated = peeled.share(peeled.observation.params, batch)
    features = model.apply(variables, batch.x[:, 0]).features[0]
    np.testing.assert_allclose(peeled.observation.payload[CUT], features, rtol=1e-4, atol=1e-6)
    for name, leaf in peeled.observation.payload.items():
        np.testing.assert_allclose(simulated[name], leaf, rtol=1e-3, atol=1e-4 * float(jnp.abs(leaf).max()))
    assert metrics.psnr(features[None], peeled.observation.payload[CUT][None])[0] > 60


def test_a_layer_that_arrived_as_zeros_is_not_divided_by(perceptron):
    """A frozen layer has an upload of zeros, and so does a layer that no sample activates."""
    model, variables, _, gradient = perceptron
    first, second = [name for name in named_leaves(gradient) if name.endswith("kernel")][:2]
    assert _peeled(model, variables, gradient).layer == first
    layer = first.split("/")[0]
    zeros = {**gradient, layer: jax.tree.map(jnp.zeros_like, gradient[layer])}
    peeled = _peeled(model, variables, zeros)
    assert peeled.layer == second
    assert all(jnp.isfinite(leaf).all() for leaf in peeled.observation.payload.values())
    assert _peeled(model, variables, jax.tree.map(jnp.zeros_like, gradient)) is None


@pytest.mark.parametrize("size", [1.0, 1e-20])
def test_small_gradients_give_a_dense_layers_inputs_as_well(size):
    inputs, db = jnp.array([0.3, 0.7]), size * jnp.array([0.2, -0.5, 0.1])
    np.testing.assert_allclose(dense_inputs(jnp.outer(inputs, db), db), inputs, rtol=1e-5)


def test_a_branch_beside_the_layer_does_not_hide_its_inputs():
    """A layer's gradient contains the layer's inputs, whatever other paths lead from the image to the loss."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "beside": jax.random.normal(keys[0], (16, 5)) / 4,
        "layer": {"kernel": jax.random.normal(keys[1], (16, 20)) / 4, "bias": jnp.zeros(20)},
        "out": {"kernel": jax.random.normal(keys[2], (25, 10)) / 5, "bias": jnp.zeros(10)},
    }

    def network(variables, x):
        p, flat = variables["params"], x.reshape(len(x), -1)
        read = jax.nn.sigmoid(flat @ p["layer"]["kernel"] + p["layer"]["bias"])
        features = jnp.concatenate([read, jnp.tanh(flat @ p["beside"])], axis=1)
        return features @ p["out"]["kernel"] + p["out"]["bias"]

    model, variables = models.from_function(network, {"params": params}, image_shape=(4, 4, 1), num_classes=10)
    _, batch, gradient = sent_by(model)
    peeled = _peeled(model, variables, gradient)
    assert peeled.layer == "layer/kernel"
    np.testing.assert_allclose(affine_solution(peeled), batch.x[0, 0], atol=1e-3)


def test_pixels_that_are_cut_off_before_a_dense_layer_are_not_solved_for():
    """Near grey a clamp is the identity, but elsewhere many images have the same observation."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "layer": {"kernel": jax.random.normal(keys[0], (16, 20)) / 4, "bias": jnp.zeros(20)},
        "out": {"kernel": jax.random.normal(keys[1], (20, 10)) / 5, "bias": jnp.zeros(10)},
    }

    def solved(read):
        def network(variables, x):
            p, flat = variables["params"], read(x.reshape(len(x), -1))
            hidden = jax.nn.sigmoid(flat @ p["layer"]["kernel"] + p["layer"]["bias"])
            return hidden @ p["out"]["kernel"] + p["out"]["bias"]

        model, variables = models.from_function(network, {"params": params}, image_shape=(4, 4, 1), num_classes=10)
        return affine_solution(_peeled(model, variables, sent_by(model)[2]))

    for cut in (
        lambda x: jnp.clip(x, 0.3, 0.7),
        lambda x: jax.nn.relu(x - 0.4),
        lambda x: jnp.clip(x, 0.0, 0.9),
        lambda x: jnp.maximum(x, 0.1),
    ):
        assert solved(cut) is None
    for same in (lambda x: 2 * x - 1, lambda x: jnp.clip(x, 0, 1), lambda x: jax.nn.relu(x + 1)):
        assert solved(same) is not None
