"""The number and the length of the input rows that the linear layers of a network read."""

import functools

import jax
import jax.numpy as jnp

from jaxleak._base import BatchNormMode, PyTree
from jaxleak.models import Classifier


@functools.lru_cache(maxsize=16)  # tracing a deep network takes seconds, and a command asks several times
def sizes_of_all_rows(
    model: Classifier, batch_size: int, batch_norm: BatchNormMode = "eval"
) -> dict[str, tuple[int, ...]]:
    """The number of rows and of inputs per row for every linear layer, in the order of the forward pass.

    Args:
        model: the network; layers of several groups are left out, as in `Classifier.rows`.
        batch_size: B >= 1.
        batch_norm: mode of normalisation; sizes depend on it only if the network's own code does.

    Returns:
        (n, k) by the name of the kernel, with a row for every output pixel or token of every image.
    """
    variables = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, *model.image_shape), jnp.float32)
    order: list[str] = []

    def rows(variables: PyTree, x: jax.Array) -> dict[str, jax.Array]:
        found = model.rows(variables, x, mode=batch_norm)
        order.extend(found)  # a traced function gives dictionaries back in the order of their names
        return found

    shapes = jax.eval_shape(rows, variables, x)
    return {name: shapes[name].shape for name in order}


def sizes_of_rows(model: Classifier, batch_size: int) -> dict[str, tuple[int, ...]]:
    """`sizes_of_all_rows` without the head, whose gradient shows the features that it reads anyway."""
    sizes = sizes_of_all_rows(model, batch_size)
    return {name: size for name, size in sizes.items() if not model.head or name != model.head_names[0]}
