"""The network of a client as a flat list of steps, for questions about what depends on what."""

import functools

import jax
import jax.numpy as jnp

from jaxleak._base import BatchNormMode, PyTree
from jaxleak._tree import named_leaves
from jaxleak.models import Classifier
from jaxleak.models._door.program import Program, flattened


@functools.lru_cache(maxsize=4)  # tracing a deep network takes seconds
def program_of_logits(model: Classifier, batch_norm: BatchNormMode, samples: int) -> tuple[Program, list[str]]:
    """Trace the logits of a batch.

    Returns:
        The program, whose first inputs are the parameters and whose last one is the images; and the parameters' names.
    """
    variables = jax.eval_shape(model.init, jax.random.key(0))
    params, tree = jax.tree.flatten(variables["params"])
    rest = {name: leaves for name, leaves in variables.items() if name != "params"}

    def logits(params: list[jax.Array], rest: PyTree, x: jax.Array) -> jax.Array:
        given = {**rest, "params": jax.tree.unflatten(tree, params)}
        return model.apply(given, x, mode=batch_norm).logits

    x = jax.ShapeDtypeStruct((samples, *model.image_shape), jnp.float32)
    return flattened(jax.make_jaxpr(logits)(params, rest, x)), list(named_leaves(variables["params"]))


def unread_parameters(model: Classifier, batch_norm: BatchNormMode, samples: int) -> list[str]:
    """Names of the parameters on which no logit depends, whatever the images and the weights."""
    program, names = program_of_logits(model, batch_norm, samples)
    used = program.used(program.outputs)
    return [name for name, slot in zip(names, program.inputs[: len(names)], strict=True) if slot not in used]
