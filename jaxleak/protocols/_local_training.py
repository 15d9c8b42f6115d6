"""A client's local steps of gradient descent: the loop that attacked uploads and training uploads share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import BatchNormMode, Loss, PyTree
from jaxleak._steps import weight_of_steps
from jaxleak.models import Classifier
from jaxleak.protocols._objective import objective

#: `(number of the step, variables, x (B, H, W, channels), y (B,)) -> (gradient, running statistics after it)`
StepGradient = Callable[[jax.Array, PyTree, jax.Array, jax.Array], tuple[PyTree, PyTree]]


def gradient_of(
    model: Classifier,
    loss: Loss,
    batch_norm: BatchNormMode,
    variables: PyTree,
    x: jax.Array,
    y: jax.Array,
    sharpness: jax.Array | float | None = None,
) -> tuple[PyTree, PyTree]:
    """The loss's gradient on one batch x (B, H, W, channels), y (B,), and the running statistics after it."""

    _validate.variables(variables)

    def mean_loss(weights: PyTree) -> tuple[jax.Array, PyTree]:
        out = model.apply({**variables, "params": weights}, x, mode=batch_norm, sharpness=sharpness)
        return objective(loss, out.logits, y, model.num_classes), out.batch_stats

    return jax.grad(mean_loss, has_aux=True)(variables["params"])


def descend(
    gradient: StepGradient,
    start: PyTree,
    x: jax.Array,
    y: jax.Array,
    learning_rate: float,
    *,
    steps: int,
    unrolled: bool,
    momentum: float = 0.0,
) -> tuple[PyTree, PyTree]:
    """Take gradient steps from `start`, each on the next part of the samples.

    Args:
        gradient: function that gives the gradient of one step.
        start: variables before the first step.
        x: (E * B, H, W, channels), in the order of the steps.
        y: (E * B,).
        learning_rate: size of every step, > 0.
        steps: E >= 1.
        unrolled: True unrolls the loop in Python, for callers that differentiate through the steps: the transpose of a
            scan keeps every activation too, and is slower on CPU. False uses a scan, which compiles once for any E.
        momentum: in [0, 1); the velocity begins at zero.

    Returns:
        The mean of the steps' gradients, weighted by their part in the update (`weight_of_steps`), and the running
        statistics after the last step. The mean equals `(start - end) / (learning_rate * weight)` without the rounding
        of that difference.
    """

    def step(carry: tuple[PyTree, ...], now: tuple[jax.Array, ...]) -> tuple[tuple[PyTree, ...], None]:
        variables, total, velocity = carry
        found, stats = gradient(now[0], variables, now[1], now[2])
        if momentum:
            velocity = found = jax.tree.map(lambda v, g: momentum * v + g, velocity, found)
        weights = jax.tree.map(lambda w, v: w - learning_rate * v, variables["params"], found)
        total = jax.tree.map(jnp.add, total, found)
        return ({**variables, "params": weights, "batch_stats": stats}, total, velocity), None

    zeros = jax.tree.map(jnp.zeros_like, start["params"])
    carry: tuple[PyTree, ...] = (start, zeros, zeros if momentum else ())
    parts = (jnp.arange(steps), *(leaf.reshape(steps, -1, *leaf.shape[1:]) for leaf in (x, y)))
    if unrolled:
        for number in range(steps):
            carry, _ = step(carry, tuple(part[number] for part in parts))
    else:
        carry, _ = jax.lax.scan(step, carry, parts)
    weight = weight_of_steps(steps, momentum)
    return jax.tree.map(lambda leaf: leaf / weight, carry[1]), carry[0]["batch_stats"]
