"""A text with what is known of a classifier, to read before an attack on it."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree
from jaxleak.models._classifier import Classifier


def describe(model: Classifier) -> str:
    """The names and shapes of a model's parameters, its head, its linear layers, and what an attack cannot change.

    Args:
        model: any classifier.

    Returns:
        Lines of text, the last without a line break.
    """
    variables = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    leaves = _tree.named_leaves(variables["params"])
    rows = jax.eval_shape(lambda v, x: model.rows(v, x, mode="eval"), variables, x)
    total = sum(int(np.prod(leaf.shape)) for leaf in leaves.values())
    width = max(map(len, leaves), default=0)
    head = model.head_names if model.head else ()
    lines = [
        f"images {model.image_shape}, {model.num_classes} classes, {total:,} parameters in {len(leaves)} leaves",
        f"last dense layer: {model.head or 'not found'}",
        f"batch normalisation: {'yes' if model.has_batch_norm else 'no'}",
        f"kinks that the sharpness of an attack smooths: {'yes' if model.has_kinks else 'none'}",
        "parameters, and what linear layers read (rows x numbers in each, one image):",
    ]
    for name, leaf in leaves.items():
        read = f"  reads {rows[name].shape[0]} x {rows[name].shape[1]}" if name in rows else ""
        lines.append(f"  {name:{width}}  {tuple(leaf.shape)}{read}{'  (head)' if name in head else ''}")
    return "\n".join([*lines, *(f"note: {note}" for note in model.notes)])
