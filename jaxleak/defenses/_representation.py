"""What representation defenses need from the client: its model, its batch and its loss."""

import functools
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Loss, PyTree
from jaxleak.models._classifier import BatchNormMode, Classifier


class OfClient(TypedDict):
    """The keywords that every defense at "representation" is given; `loss` is None if it is not stated."""

    model: Classifier
    variables: PyTree
    x: jax.Array
    y: jax.Array
    mode: BatchNormMode
    loss: Loss | None


def check_mean(loss: Loss, num_classes: int) -> None:
    """Refuse a loss that is no mean: defenses of single examples send the mean of the examples' gradients.

    Raises:
        ValueError: if two examples, equal or of different classes, have another loss than the mean of their own.
    """
    rising = np.linspace(-1, 1, num_classes, dtype=np.float32)
    logits = np.stack([rising, -0.5 * rising])
    last = num_classes - 1
    for y in (np.array([0, last], np.int32), np.eye(num_classes, dtype=np.float32)[[0, last]]):
        for rows, which in (([0, 0], "two equal examples"), ([0, 1], "two examples of different classes")):
            try:  # a user's loss takes labels of one shape, and may raise anything on others
                with jax.ensure_compile_time_eval():
                    single, both = (
                        np.mean([float(loss(jnp.asarray(logits[part]), jnp.asarray(y[part]))) for part in parts])
                        for parts in ([[row] for row in rows], [rows])
                    )
            except Exception:
                continue
            # A user's loss may not be finite at these outputs, for example if it expects probabilities.
            if np.isfinite([single, both]).all() and not np.isclose(single, both, rtol=1e-3):
                raise ValueError(
                    "loss must be a mean over the batch behind a defense of single examples, whose gradients are "
                    f"averaged; {which} have a loss of {both:.3g}, and the mean of their own is {single:.3g}"
                )


def require_plain_head(name: str, model: Classifier) -> None:
    """Refuse a model whose outputs are not those of its last dense layer.

    A defense that computes this layer by itself would lose a scale, a soft cap or a skip around it.

    Raises:
        ValueError: naming the defense, if outputs at random weights and images are not those of this layer.
    """
    if not _has_plain_head(model):
        raise ValueError(
            f"{name} needs a model whose outputs are those of its last dense layer, {model.head}: this one scales, "
            "bounds or adds to them"
        )


@functools.lru_cache(maxsize=8)
def _has_plain_head(model: Classifier) -> bool:
    with jax.ensure_compile_time_eval():
        variables = model.init(jax.random.key(0))
        # No weight stays zero, as those of a head or of a skip may be at first.
        leaves, treedef = jax.tree.flatten(variables["params"])
        keys = jax.random.split(jax.random.key(1), max(1, len(leaves)))
        moved = [leaf + 0.1 * jax.random.normal(keys[i], leaf.shape) for i, leaf in enumerate(leaves)]
        variables = {**variables, "params": jax.tree.unflatten(treedef, moved)}
        x = jax.random.uniform(jax.random.key(2), (2, *model.image_shape))
        outputs = model.apply(variables, x, mode="eval")
        head = model.head_of(variables["params"], gradient=False)
        plain = outputs.features @ head.kernel + (0 if head.bias is None else head.bias)
        scale = float(jnp.abs(plain).max())
        return bool(jnp.abs(outputs.logits - plain).max() <= 1e-3 * scale)


def needs_batch(
    name: str, model: Classifier | None, variables: PyTree, x: jax.Array | None
) -> tuple[Classifier, jax.Array]:
    """Model and images that a representation defense was given.

    Raises:
        ValueError: if the model, its variables or the images are missing, or the images have another shape.
    """
    if model is None or variables is None or x is None:
        raise ValueError(f"{name} needs the keywords model, variables and x: the client's model and its batch")
    if x.shape[1:] != model.image_shape:
        raise ValueError(f"x must be (B, {', '.join(map(str, model.image_shape))}), got shape {x.shape}")
    return model, x


def needs_labels(name: str, y: jax.Array | None) -> jax.Array:
    """Labels that a representation defense was given.

    Raises:
        ValueError: if they are missing.
    """
    if y is None:
        raise ValueError(f"{name} needs the keyword y, the labels of the client's batch")
    return y
