"""Small models, clients and updates for the tests of audits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import reference

from jaxleak import Batch, audit, models, protocols
from jaxleak.audit._verdict.case import Case
from jaxleak.audit._verdict.verdict import Answer


@functools.cache
def perceptron():
    """An MLP that all test files share, so that the programs of its audits compile only once."""
    return models.mlp((4, 4, 1), 10, widths=(16, 8))


class Client:
    """A client of four images by default: model, weights, batch, and its gradient."""

    def __init__(self, batch_norm, batch_size=4):
        self.model = models.convnet((8, 8, 3), 10, channels=(8, 8, 8), strides=(1, 2, 2), batch_norm=batch_norm)
        self.variables = reference.drawn(self.model)
        self.share, self.batch_size = protocols.ClientShare(self.model), batch_size
        x = reference.uniform(batch_size, 1, 8, 8, 3, seed=1)
        self.batch = Batch(x, jnp.arange(batch_size, dtype=jnp.int32) + 2, jnp.arange(batch_size))
        self.gradient = jax.jit(self.share)(self.variables, self.batch)

    def check(self, payload=None, **changes):
        options = {"share": self.share, "variables": self.variables, "batch_size": self.batch_size} | changes
        return audit.check_update(payload=self.gradient if payload is None else payload, **options)


def sent_by(model, images=1, seed=1):
    # With these draws, every defense of `test_defended_labels` that can leave a proof of labels leaves one.
    variables = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(seed), (images, 1, *model.image_shape))
    batch = Batch(x, jnp.arange(images, dtype=jnp.int32) + 3, jnp.arange(images))
    return variables, batch, jax.jit(protocols.ClientShare(model))(variables, batch)


def changed(tree, path, change):
    """The tree with the leaf at a path such as "conv_0/bias" replaced by `change(leaf)`."""
    layer, name = path.split("/")
    return {**tree, layer: {**tree[layer], name: change(tree[layer][name])}}


def case_of(share, observation):
    """The case of an audit of one sample that stores and shows nothing."""
    return Case(share, observation, 1, None, jax.random.key(0), None)


def pictures(count):
    """Equal images (count, 4, 4, 1) with a gradient of brightness from 0 to 1."""
    return np.broadcast_to(np.linspace(0, 1, 16).reshape(1, 4, 4, 1), (count, 4, 4, 1))


def answer_of(attack="fedleak_400", distance=1e-9, **fields):
    fields = {"misfit": 0.1} | fields
    return Answer(attack, pictures(2), np.zeros(2), cosine_distance=distance, **fields)


def fresh_head():
    """A model of two convolutions and a head of small weights, where an update's norm is nearly all in the head."""
    rng = np.random.default_rng(0)

    def drawn(*shape, by):
        return jnp.asarray(by * rng.standard_normal(shape), jnp.float32)

    start = {"a": drawn(5, 5, 3, 12, by=0.1), "b": drawn(5, 5, 12, 4, by=0.06), "w": drawn(64, 10, by=0.01)}
    start["c"] = jnp.zeros(10)

    def apply(variables, x):
        p = variables["params"]
        for name, stride in (("a", 1), ("b", 2)):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, p[name], (stride, stride), "SAME", dimension_numbers=numbers)
            x = jax.nn.gelu(x)
        return x.reshape(len(x), -1) @ p["w"] + p["c"]

    return models.from_function(apply, {"params": start}, image_shape=(8, 8, 3), num_classes=10)
