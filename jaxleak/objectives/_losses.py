"""The clients' loss functions: the mean over the batch, for integer or soft labels."""

import jax
import jax.numpy as jnp

from jaxleak._base import Loss


def soft_labels(y: jax.Array, num_classes: int) -> jax.Array:
    """The distributions (B, C) of labels: (B,) integers in [0, C), or (B, C), which are distributions already.

    Raises:
        ValueError: if labels (B,) are not integers.
    """
    if y.ndim == 1 and not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got dtype {y.dtype}")
    return jax.nn.one_hot(y, num_classes) if y.ndim == 1 else y


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy of logits (B, C) against labels (B,) or soft labels (B, C).

    Raises:
        ValueError: if there is one logit only: the softmax of one logit is 1, so that neither value nor gradient would
            depend on anything. Such a network stands for two logits, 0 and its own, of two classes.
    """
    if logits.shape[-1] == 1:
        raise ValueError(
            "cross_entropy of one logit is zero, and so is its gradient: give the network one logit for each class; "
            "one with one logit z for two classes stands for the two logits (0, z), whose cross_entropy is the binary "
            "one of z, and models.from_function and the functions beside it read it so by themselves"
        )
    return -jnp.mean(jnp.sum(soft_labels(y, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1))


def double_softmax_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The scalar `cross_entropy` of the softmax of logits (B, C) and of labels (B,) or (B, C).

    The softmax is applied twice, as in the published CAFE code, and therefore in the `upstream` presets.

    Raises:
        ValueError: as `cross_entropy`.
    """
    return cross_entropy(jax.nn.softmax(logits), y)


def takes_distributions(loss: Loss) -> bool:
    """Whether the soft labels of a loss are known to sum to one; of a loss from elsewhere that is not known."""
    return loss in (cross_entropy, double_softmax_cross_entropy)
