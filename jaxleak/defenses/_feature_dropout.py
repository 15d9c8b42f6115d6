"""Dropout of features as a defense: noise that a client may train with anyway."""

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Loss, PyTree
from jaxleak.defenses._base import Defense, stateless
from jaxleak.defenses._representation import needs_batch, needs_labels, require_plain_head
from jaxleak.defenses.mechanisms import Mechanism, Recomputed
from jaxleak.models._classifier import BatchNormMode, Classifier
from jaxleak.objectives import cross_entropy


def feature_dropout(rate: float, *, loss: Loss | None = None) -> Defense:
    """Send the gradient of the model with dropout on the inputs of its last dense layer.

    Every example has its own mask (Srivastava et al., JMLR 2014, scaled by 1 / (1 - rate) in training), which the
    server does not know. The gradients of all layers therefore differ from what the server can compute for a candidate.
    The defense replaces the payload, which must be the gradient of one local step.

    Args:
        rate: share of the features that is dropped, in [0, 1); 0 is the plain gradient.
        loss: `(logits (B, C), y) -> ()`; None takes the client's, which protocols pass on, or else the mean
            cross-entropy.

    Returns:
        A `Defense` at "representation" that needs the keywords `model`, `variables`, `x` and `y`. For attackers
        who simulate it, the defense is differentiable in x and takes a `sharpness`.

    Raises:
        ValueError: on a rate out of range; when applied without those keywords, or to a model that does more to its
            outputs than its last dense layer, such as scaling them.
    """
    _validate.below_one(rate=rate)
    chosen = loss

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        model: Classifier | None = None,
        variables: PyTree = None,
        x: jax.Array | None = None,
        y: jax.Array | None = None,
        mode: BatchNormMode = "train",
        loss: Loss | None = None,
        sharpness: jax.Array | None = None,
        **extra: object,
    ) -> PyTree:
        del extra
        model, x = needs_batch("feature_dropout", model, variables, x)
        y = needs_labels("feature_dropout", y)
        if not rate:
            return payload
        require_plain_head("feature_dropout", model)

        def dropped_loss(params: PyTree) -> jax.Array:
            features = model.apply({**variables, "params": params}, x, mode=mode, sharpness=sharpness).features
            kept = jax.random.bernoulli(key, 1 - rate, features.shape)
            head = model.head_of(params, gradient=False)
            logits = jnp.where(kept, features / (1 - rate), 0.0) @ head.kernel
            return (chosen or loss or cross_entropy)(logits if head.bias is None else logits + head.bias, y)

        return jax.grad(dropped_loss)(variables["params"])

    mechanism = Mechanism(Recomputed() if rate else None)
    return stateless("representation", update, one_step=True, mechanism=mechanism)
