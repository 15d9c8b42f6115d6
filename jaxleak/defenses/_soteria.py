"""Soteria (Sun et al., CVPR 2021): hide the features of the representation that reveal the data most."""

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, stateless
from jaxleak.defenses._representation import needs_batch
from jaxleak.defenses.mechanisms import Mechanism
from jaxleak.models._classifier import BatchNormMode, Classifier


def soteria(ratio: float) -> Defense:
    """Zero the rows of the head's gradient for the features r_i with the largest |r_i| / ||dr_i/dx||.

    Soteria changes few entries of the representation r, the inputs of the last dense layer, so that what is
    reconstructed from it moves as far from the data as possible: to first order, the entries with the largest
    |r_i| / ||dr_i/dx||. They are set to zero for the head's gradient, whose row i is the average of r_i times the loss
    gradient at the logits; no other layer's gradient changes. As in the authors' code, one choice is made for the whole
    batch, by the sum of ||dr_i/dx|| / |r_i| over its examples, smallest first.

    Unlike in that code, a feature that is zero on the whole batch (a ReLU that never fires) ranks last: hiding it would
    change nothing, and such features could use up the whole ratio.

    Args:
        ratio: share of the F features that is hidden, in [0, 1], rounded to whole features (FedLeak: 0.1 to 0.9); 0 is
            the identity.

    Returns:
        A `Defense` at "representation" that needs the keywords `model`, `variables` and `x`. The payload may be a
        gradient or a model update, as long as it has the parameters' structure.

    Raises:
        ValueError: on a ratio out of range; when applied without those keywords.
    """
    _validate.in_range(0, 1, ratio=ratio)

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        model: Classifier | None = None,
        variables: PyTree = None,
        x: jax.Array | None = None,
        mode: BatchNormMode = "train",
        **extra: object,
    ) -> PyTree:
        del key, extra
        model, x = needs_batch("soteria", model, variables, x)
        head = model.head_of(payload, gradient=True)
        hidden = round(ratio * head.kernel.shape[0])
        if not hidden:
            return payload
        rank = jnp.argsort(jnp.argsort(leakage_ratios(model, variables, x, mode)))
        kept = jnp.where(rank[:, None] < hidden, 0.0, head.kernel)
        return model.with_head(payload, head._replace(kernel=kept), gradient=True)

    return stateless("representation", update, mechanism=Mechanism(zeroes=True))


def leakage_ratios(model: Classifier, variables: PyTree, x: jax.Array, mode: BatchNormMode = "train") -> jax.Array:
    """Sum over the batch of ||dr_i/dx|| / |r_i| for every feature i.

    An example whose feature is exactly zero adds nothing, and a feature that is zero for all of them has ratio inf.

    Args:
        model: the network, whose features are the paper's r.
        variables: the model's parameters and statistics.
        x: (B, H, W, channels).
        mode: how batch normalisation computes, "train" or "eval".

    Returns:
        (F,) float32. One backward pass per feature, one after the other: time grows with F, memory does not.
    """
    features, pull = jax.vjp(lambda images: model.apply(variables, images, mode=mode).features, x)

    def slopes(unit: jax.Array) -> jax.Array:
        (gradient,) = pull(jnp.broadcast_to(unit, features.shape))
        return jnp.sqrt(jnp.sum(gradient.reshape(len(gradient), -1) ** 2, axis=1))

    norms = jax.lax.map(slopes, jnp.eye(features.shape[1], dtype=features.dtype)).T
    active = features != 0
    ratios = jnp.where(active, norms / jnp.where(active, jnp.abs(features), 1.0), 0.0).sum(axis=0)
    return jnp.where(active.any(axis=0), ratios, jnp.inf)
