"""Small updates that audits of the tests are made of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import Batch, models, protocols
from jaxleak.audit._verdict import search
from jaxleak.audit._verdict.verdict import Answer


@functools.cache
def perceptron():
    """One MLP for all files, so that what its audits compile is compiled once."""
    return models.mlp((4, 4, 1), 10, widths=(16, 8))


def sent_by(model, images=1, seed=1):
    variables = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(seed), (images, 1, *model.image_shape))
    batch = Batch(x, jnp.arange(images, dtype=jnp.int32) + 3, jnp.arange(images))
    return variables, batch, jax.jit(protocols.ClientShare(model))(variables, batch)


def case_of(share, observation):
    """An audit of one sample that keeps and shows nothing."""
    return search.Case(share, observation, 1, None, jax.random.key(0), None)


def pictures(count):
    """Images (count, 4, 4, 1) that are not flat."""
    return np.broadcast_to(np.linspace(0, 1, 16).reshape(1, 4, 4, 1), (count, 4, 4, 1))


def answer_of(attack="fedleak_400", distance=1e-9, **fields):
    fields = {"misfit": 0.1} | fields
    return Answer(attack, pictures(2), np.zeros(2), cosine_distance=distance, **fields)
