"""What representation defenses need of the client: its model, its batch and its loss."""

from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Loss, PyTree
from jaxleak.models._classifier import BatchNormMode, Classifier


class OfClient(TypedDict):
    """The keywords that every defense at "representation" is given; `loss` is None where nobody states it."""

    model: Classifier
    variables: PyTree
    x: jax.Array
    y: jax.Array
    mode: BatchNormMode
    loss: Loss | None


def check_mean(loss: Loss, num_classes: int) -> None:
    """Refuse a loss that is no mean: defenses of single examples send the mean of the examples' gradients.

    Raises:
        ValueError: if two equal examples have another loss than one of them.
    """
    logits = np.linspace(-1, 1, num_classes, dtype=np.float32)[None]
    for y in (np.zeros(1, np.int32), np.eye(num_classes, dtype=np.float32)[:1]):
        try:  # a loss of somebody's own takes labels of one shape, and may raise anything on others
            with jax.ensure_compile_time_eval():
                one, two = (float(loss(jnp.asarray(logits.repeat(n, 0)), jnp.asarray(y.repeat(n, 0)))) for n in (1, 2))
        except Exception:
            continue
        # Somebody's own loss may be no number at these outputs, as of a network whose outputs are probabilities.
        if np.isfinite([one, two]).all() and not np.isclose(one, two, rtol=1e-3):
            raise ValueError(
                "loss must be a mean over the batch behind a defense of single examples, whose gradients are averaged; "
                f"two equal examples have a loss of {two:.3g}, and one has {one:.3g}"
            )


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
