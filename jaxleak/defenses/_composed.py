"""Combine two defenses at different places: noise on the examples' gradients, then a change of their mean."""

import jax

from jaxleak._base import Loss, PyTree
from jaxleak.defenses._base import Defense, stateless
from jaxleak.defenses._representation import OfClient, check_mean, needs_batch, needs_labels
from jaxleak.defenses.mechanisms import Mechanism
from jaxleak.models._classifier import BatchNormMode, Classifier
from jaxleak.objectives import cross_entropy


def composed(per_example: Defense, representation: Defense) -> Defense:
    """A per-example defense, then one of the representation; `chain` cannot combine them, as their places differ.

    The combination acts at "representation", where model and batch are available. It recomputes the examples' gradients
    and ignores the payload. It is therefore correct only for one local step without batch normalisation, and for a loss
    that is a mean over the batch (FedLeak, 2025, Figure 5: DP-SGD with Soteria).

    Args:
        per_example: acts at "per_example_gradient", on gradients with a leading axis of examples.
        representation: acts at "representation", on their mean.

    Returns:
        A `Defense` at "representation" that needs the keywords `model`, `variables`, `x` (B, H, W, channels) and `y`.
        The loss is the keyword `loss`, which protocols pass on, or else the mean cross-entropy.

    Raises:
        ValueError: if the members act elsewhere; when applied without those keywords, to a model whose batch
            normalisation mixes examples, or to a loss that is no mean.
    """
    members = {
        "per_example": ("per_example_gradient", per_example),
        "representation": ("representation", representation),
    }
    for name, (place, member) in members.items():
        if member.place != place:
            raise ValueError(f"{name} must be a defense at {place}, got one at {member.place}")

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        model: Classifier | None = None,
        variables: PyTree = None,
        x: jax.Array | None = None,
        y: jax.Array | None = None,
        round: jax.Array | int | None = None,
        mode: BatchNormMode = "train",
        loss: Loss | None = None,
        **extra: object,
    ) -> PyTree:
        del payload, extra
        name = "a defense of examples and representation"
        (model, x), y = needs_batch(name, model, variables, x), needs_labels(name, y)
        if model.mixes_images(mode):
            raise ValueError(f"{name} takes examples one by one, which batch normalisation mixes: take mode 'eval'")

        own_loss = loss or cross_entropy
        check_mean(own_loss, model.num_classes)

        def gradient(image: jax.Array, label: jax.Array) -> PyTree:
            def objective(weights: PyTree) -> jax.Array:
                out = model.apply({**variables, "params": weights}, image[None], mode=mode)
                return own_loss(out.logits, label[None])

            return jax.grad(objective)(variables["params"])

        first, second = jax.random.split(key)
        noisy = per_example.apply(first, jax.vmap(gradient)(x, y), round=round)
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), noisy)
        own = OfClient(model=model, variables=variables, x=x, y=y, mode=mode, loss=loss)
        return representation.apply(second, mean, **own, round=round)

    return stateless("representation", update, one_step=True, mechanism=_together(per_example, representation))


def _together(first: Defense, second: Defense) -> Mechanism | None:
    """Both mechanisms as one, if the second only leaves entries out; None otherwise."""
    one, other = first.mechanism, second.mechanism
    if one is None or other is None or other.simulation is not None or other.noise is not None:
        return None
    return one._replace(zeroes=other.zeroes, zeroes_head=other.zeroes_head)
