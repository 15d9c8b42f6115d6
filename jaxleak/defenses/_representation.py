"""What representation defenses need of the client: its model, its batch and its loss."""

import jax

from jaxleak._base import PyTree
from jaxleak.models._classifier import Classifier


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
