"""The clients' loss functions: the mean over the batch, for integer or soft labels."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from jaxleak._base import Loss


def soft_labels(y: jax.Array, num_classes: int) -> jax.Array:
    """The distributions (B, C) of labels: (B,) integers in [0, C), or (B, C), which are distributions already.

    Raises:
        ValueError: if labels (B,) are not integers.
    """
    if y.ndim == 1 and not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got dtype {y.dtype}")
    return jax.nn.one_hot(y, num_classes) if y.ndim == 1 else y


def _targets(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The soft labels (B, C) of logits (B, C); raise `ValueError` on another number of samples or of classes."""
    soft = soft_labels(y, logits.shape[-1])
    if logits.shape[-1] == 1 and y.ndim == 1:
        soft = y[:, None].astype(logits.dtype)  # a single logit belongs to class 1
    if soft.shape != logits.shape:
        raise ValueError(f"labels must be (B,) or (B, C) for logits {logits.shape}, got {y.shape}")
    return soft


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy of logits (B, C) against labels (B,) or soft labels (B, C).

    Raises:
        ValueError: if there is only one logit. The softmax of one logit is always 1, so value and gradient would be
            constant. A network with one logit z for two classes stands for the two logits 0 and z.
    """
    _require_classes("cross_entropy", logits)
    return -jnp.mean(jnp.sum(_targets(logits, y) * jax.nn.log_softmax(logits), axis=-1))


def _require_classes(name: str, logits: jax.Array) -> None:
    if logits.shape[-1] == 1:
        raise ValueError(
            f"{name} of one logit is zero, and so is its gradient: give the network one logit for each class; "
            "one with one logit z for two classes stands for the two logits (0, z), whose cross_entropy is the binary "
            "one of z, and models.from_function and the functions beside it read it so by themselves"
        )


def double_softmax_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The scalar `cross_entropy` of the softmax of logits (B, C) and of labels (B,) or (B, C).

    The softmax is applied twice, as in the published CAFE code, and therefore in the `upstream` presets.

    Raises:
        ValueError: as `cross_entropy`.
    """
    return cross_entropy(jax.nn.softmax(logits), y)


def negative_log_likelihood(probabilities: jax.Array, y: jax.Array) -> jax.Array:
    """Mean negative log-likelihood () of labels (B,) or (B, C) under probabilities (B, C) instead of logits.

    Probabilities are clipped to [1e-6, 1]. One beyond, as behind added noise, has no gradient.
    """
    return -jnp.mean(jnp.sum(_targets(probabilities, y) * jnp.log(jnp.clip(probabilities, 1e-6, 1.0)), axis=-1))


def needs_distributions(loss: Loss) -> bool:
    """Whether the soft labels of a loss must sum to one; False for losses from elsewhere, where it is not known."""
    return loss in (cross_entropy, double_softmax_cross_entropy, smoothed_cross_entropy, focal_loss)


def smoothed_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy () of logits (B, C) and labels (B,) or (B, C), a tenth of which is spread over all classes.

    Szegedy et al., *Rethinking the Inception architecture for computer vision*, 2016, section 7.
    """
    return cross_entropy(logits, optax.smooth_labels(_targets(logits, y), 0.1))


def binary_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean binary cross-entropy () over batch and outputs: logits (B, C), and findings (B, C) in [0, 1] or labels (B,).

    This is PyTorch's `BCEWithLogitsLoss`, for several findings in one image. A label (B,) counts as one finding: its
    class.
    """
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, _targets(logits, y)))


def focal_loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean () of (1 - p)^2 times the cross-entropy of logits (B, C) against labels (B,) or (B, C) of probability p.

    Lin et al., *Focal loss for dense object detection*, 2017, equation 4 with gamma = 2.

    Raises:
        ValueError: as `cross_entropy`.
    """
    _require_classes("focal_loss", logits)
    log_p = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.sum(_targets(logits, y) * (1 - jnp.exp(log_p)) ** 2 * log_p, axis=-1))


def squared_error(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared difference () of outputs (B, C) from targets (B, C), or from the one-hot rows of labels (B,).

    This is PyTorch's `MSELoss`, as for regression.
    """
    return jnp.mean((logits - _targets(logits, y)) ** 2)


#: Losses by name, all of which take classes (B,) as well as soft labels (B, C).
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": cross_entropy,
    "smoothed_cross_entropy": smoothed_cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "focal_loss": focal_loss,
    "squared_error": squared_error,
}
