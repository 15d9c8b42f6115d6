"""How many rows the linear layers of a network read, and how long they are."""

import functools

import jax
import jax.numpy as jnp

from jaxleak._base import PyTree
from jaxleak.models import Classifier


@functools.lru_cache(maxsize=8)  # tracing a deep network takes seconds, and a command asks several times
def sizes_of_rows(model: Classifier, batch_size: int) -> dict[str, tuple[int, ...]]:
    """Rows and inputs of each, of every linear layer but the head, in the order of the forward pass.

    Args:
        model: the network; layers of several groups are left out, as by its `rows`.
        batch_size: B >= 1.

    Returns:
        (n, k) by the name of the kernel, with a row for every output pixel or token of every image.
    """
    variables = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, *model.image_shape), jnp.float32)
    order: list[str] = []

    def rows(variables: PyTree, x: jax.Array) -> dict[str, jax.Array]:
        found = model.rows(variables, x, mode="eval")
        order.extend(found)  # a traced function gives dictionaries back in the order of their names
        return found

    shapes = jax.eval_shape(rows, variables, x)
    # The last layer's row is the features of the image, which its gradient shows anyway.
    return {name: shapes[name].shape for name in order if not model.head or name != model.head_names[0]}
