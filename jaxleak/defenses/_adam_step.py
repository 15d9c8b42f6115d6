"""What a client uploads after one step of Adam: not meant as a defense, but another payload than the gradient."""

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, stateless
from jaxleak.defenses.mechanisms import AdamStep, Mechanism

#: The decay rates of Adam's moments (Kingma and Ba 2015). A first step corrects both averages for their start at zero,
#: so that the rates affect only the rounding of the step.
_FIRST, _SECOND = 0.9, 0.999


def adam_step(learning_rate: float, *, epsilon: float = 1e-8, weight_decay: float = 0.0) -> Defense:
    """Send the change of the weights by one step of Adam in place of the gradient (Kingma and Ba 2015, alg. 1).

    The client creates a new optimizer in every round, takes one step, and uploads its new weights w', as in federated
    averaging with one step of `torch.optim.Adam` or `AdamW`. The payload is (w - w') / learning_rate. Up to the
    rounding of the new weights to float32, every entry is g / (|g| + epsilon) + weight_decay w, so that nearly all
    entries are close to 1 or -1. This rounding is part of the defense: it alone keeps the server from computing g.

    Args:
        learning_rate: learning rate of the step, > 0. The smaller it is, the more of the gradient is hidden by the
            rounding of the weights. In a protocol it must be the learning rate of the client, too.
        epsilon: number that Adam adds to the root of the second moment, > 0.
        weight_decay: AdamW's decoupled decay, >= 0: the step also subtracts `learning_rate * weight_decay` times the
            weights.

    Returns:
        A `Defense` at "representation", for one local step, that needs the keyword `variables`.

    Raises:
        ValueError: on values out of range; when applied without that keyword.
    """
    _validate.positive(learning_rate=learning_rate, epsilon=epsilon)
    _validate.non_negative(weight_decay=weight_decay)

    def stepped(gradient: jax.Array, weights: jax.Array) -> jax.Array:
        first, second = (1 - _FIRST) * gradient, (1 - _SECOND) * gradient * gradient
        direction = first / (jnp.sqrt(second) / (1 - _SECOND) ** 0.5 + epsilon)
        kept = weights * (1 - learning_rate * weight_decay)
        return (weights - (kept - learning_rate / (1 - _FIRST) * direction)) / learning_rate

    def update(key: jax.Array, payload: PyTree, *, variables: PyTree = None, **extra: object) -> PyTree:
        del key, extra
        if variables is None:
            raise ValueError("adam_step needs the keyword variables: the client's model")
        return jax.tree.map(stepped, payload, variables["params"])

    mechanism = Mechanism(AdamStep(learning_rate, epsilon, weight_decay))
    return stateless("representation", update, one_step=True, mechanism=mechanism)
