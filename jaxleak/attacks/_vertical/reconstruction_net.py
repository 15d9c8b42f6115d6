"""Dense networks that map a step's record to labels or features, trained on batches of steps gathered when needed."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from jaxleak._base import PyTree
from jaxleak._jitted import jitted_for_few

#: Standardised inputs are clipped to this size: what hardly varied in the shadow run may be far off in the real one.
_CLIP = 5.0


class Mlp(nn.Module):
    """Dense layers with ReLU between them; initial weights are He-uniform."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (B, d) to (B, widths[-1])."""
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, kernel_init=nn.initializers.he_uniform())(x if i == 0 else nn.relu(x))
        return x


@flax.struct.dataclass
class ReconstructionNet:
    """A trained network with the standardisation of its inputs; call it with one step's record."""

    params: PyTree
    mean: jax.Array  # (width,)
    scale: jax.Array  # (width,)
    loss: jax.Array  # () mean training loss of the last epoch
    widths: tuple[int, ...] = flax.struct.field(pytree_node=False)
    record: Callable[[Any], jax.Array] = flax.struct.field(pytree_node=False)
    bounds: jax.Array | None = None  # (2, d) lowest and highest answer in every column of features
    party: int | None = flax.struct.field(pytree_node=False, default=None)  # number of the party whose records it reads

    def __call__(self, seen: Any) -> jax.Array:
        """(B, C) logits, or (B, d) features in the unit of the shadow records, within `bounds`."""
        z = jnp.clip((self.record(seen) - self.mean) / self.scale, -_CLIP, _CLIP)
        out: jax.Array = _apply(Mlp(self.widths), self.params, z)
        return out if self.bounds is None else jnp.clip(out, *self.bounds)


def _apply(net: nn.Module, params: PyTree, x: jax.Array) -> Any:
    return net.apply({"params": params}, x)


def task_losses(out: jax.Array, target: jax.Array, task: str) -> jax.Array:
    """Losses (n,) of the rows: cross-entropy of logits with one-hot "labels", or mean square error of "features"."""
    if task == "labels":
        return optax.softmax_cross_entropy(out, target)
    return jnp.mean((out - target) ** 2, axis=1)


def train_network(
    key: jax.Array,
    steps: PyTree,
    targets: jax.Array,
    record: Callable[[Any], jax.Array],
    *,
    hidden: Sequence[int],
    task: str,
    epochs: int,
    steps_per_batch: int,
    optimizer: optax.GradientTransformation,
    weights: jax.Array | None = None,
    items: tuple[int, ...] | None = None,
) -> ReconstructionNet:
    """Train on stacked steps; all epochs are one compiled scan.

    All samples of a step share its parameters, so records are built batch by batch. Written out for 20,000 samples, the
    paper's record would take 600 MB.

    Args:
        key: random key of the initial weights and of the order of steps.
        steps: a tree whose leaves have a leading axis T of steps.
        targets: (T, B, C) one-hot labels or (T, B, d) features.
        record: function from one step's leaves to (B, width), hashable. Equal functions compile once, and so do equal
            optimisers.
        hidden: widths of the hidden layers.
        task: "labels" or "features".
        epochs: passes over all steps.
        steps_per_batch: steps that make one batch; at most T are taken.
        optimizer: any optax optimiser.
        weights: (T, B) weight of every sample in the loss, >= 0; None counts all alike. A sample of weight 0 still
            takes part in the standardisation of the inputs, which reads no target.
        items: widths of the parts of a record, which add up to the record's width. Each part has one mean and one
            scale; None gives every entry its own.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    size = min(steps_per_batch, targets.shape[0])
    widths = (*hidden, targets.shape[-1])
    params, mean, scale, loss = _train(
        key, steps, targets, record, widths, task, epochs, size, optimizer, items, weights
    )
    if not jnp.isfinite(loss):
        raise FloatingPointError("the reconstruction network's loss is not finite")
    bounds = _range_of(targets, weights) if task == "features" else None
    return ReconstructionNet(params, mean, scale, loss, widths, record, bounds)


def _range_of(targets: jax.Array, weights: jax.Array | None) -> jax.Array:
    """(2, d): the smallest interval that holds both [0, 1] and a column's range among the targets that are learned.

    Features that were scaled with other records can lie outside of the range of these records, but are in [0, 1].
    """
    learned = targets if weights is None else jnp.where(weights[..., None] > 0, targets, 0.0)
    return jnp.stack([jnp.minimum(learned.min(axis=(0, 1)), 0.0), jnp.maximum(learned.max(axis=(0, 1)), 1.0)])


@jitted_for_few(3, 4, 5, 6, 7, 8, 9)
def _train(
    key: jax.Array,
    steps: PyTree,
    targets: jax.Array,
    record: Callable[[Any], jax.Array],
    widths: tuple[int, ...],
    task: str,
    epochs: int,
    size: int,
    optimizer: optax.GradientTransformation,
    items: tuple[int, ...] | None,
    weights: jax.Array | None,
) -> tuple[PyTree, jax.Array, jax.Array, jax.Array]:
    count, net = targets.shape[0], Mlp(widths)

    def loss_of(params: PyTree, z: jax.Array, target: jax.Array, weight: jax.Array | None) -> jax.Array:
        losses = task_losses(_apply(net, params, z), target, task)
        if weight is None:
            return losses.mean()
        return jnp.sum(weight * losses) / jnp.maximum(weight.sum(), 1e-8)

    first = jax.tree.map(lambda leaf: leaf[0], steps)
    width = jax.eval_shape(record, first).shape[-1]
    # Moments are around the first step's mean, so that the difference of two large squares does not lose the spread.
    centre = record(first).mean(axis=0)

    def moments(carry: tuple[jax.Array, jax.Array], step: PyTree) -> tuple[tuple[jax.Array, jax.Array], None]:
        r = record(step) - centre
        return (carry[0] + r.mean(axis=0) / count, carry[1] + (r**2).mean(axis=0) / count), None

    (shift, square), _ = jax.lax.scan(moments, (jnp.zeros(width), jnp.zeros(width)), steps)
    mean, variance = centre + shift, jnp.maximum(square - shift**2, 0.0)
    if items is not None:
        mean, variance = _of_items(mean, variance, items)
    # Below a floor, the spread is rounding only; the floor is lower for entries with a small mean.
    scale = jnp.maximum(jnp.sqrt(variance), jnp.clip(1e-6 * jnp.abs(mean), 1e-30, 1e-8))

    params = net.init(jax.random.fold_in(key, 0), jnp.zeros((1, width)))["params"]

    def update(carry: tuple[PyTree, PyTree], rows: jax.Array) -> tuple[tuple[PyTree, PyTree], jax.Array]:
        params, opt_state = carry
        z = jax.vmap(record)(jax.tree.map(lambda leaf: leaf[rows], steps))
        z = jnp.clip((z - mean) / scale, -_CLIP, _CLIP).reshape(-1, width)
        target = targets[rows].reshape(-1, targets.shape[-1])
        weight = None if weights is None else weights[rows].ravel()
        loss, gradient = jax.value_and_grad(loss_of)(params, z, target, weight)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def epoch(carry: tuple[PyTree, PyTree], key: jax.Array) -> tuple[tuple[PyTree, PyTree], jax.Array]:
        order = jax.random.permutation(key, count)[: count // size * size].reshape(-1, size)
        carry, losses = jax.lax.scan(update, carry, order)
        return carry, losses.mean()

    keys = jax.random.split(jax.random.fold_in(key, 1), epochs)
    (params, _), losses = jax.lax.scan(epoch, (params, optimizer.init(params)), keys)
    return params, mean, scale, losses[-1]


def _of_items(mean: jax.Array, variance: jax.Array, items: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over all entries of each item together, repeated for each of the entries."""
    means, variances, begin = [], [], 0
    for width in items:
        own, spread = mean[begin : begin + width], variance[begin : begin + width]
        common = own.mean()
        means.append(jnp.full(width, common))
        variances.append(jnp.full(width, (spread + (own - common) ** 2).mean()))
        begin += width
    return jnp.concatenate(means), jnp.concatenate(variances)
