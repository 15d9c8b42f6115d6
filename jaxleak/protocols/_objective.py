"""The loss that the clients of every protocol minimise, on logits of the width that the model promises."""

import jax

from jaxleak import _validate
from jaxleak._base import Loss


def objective(loss: Loss, logits: jax.Array, y: jax.Array, num_classes: int) -> jax.Array:
    """The loss () of logits (B, C) and labels y. Only shapes are checked, so the check also works under `jax.jit`.

    Raises:
        ValueError: if the logits have another width than C, apart from one logit for two classes, which a binary loss
            takes.
    """
    _validate.logits_of_classes(logits, num_classes)
    return loss(logits, y)
