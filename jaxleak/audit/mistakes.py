"""Typical mistakes in the inputs of an audit, to measure which of them its checks find on your model.

    client = mistakes.Client(share, variables, payload, batch_size, key)
    for name, make in mistakes.MISTAKES.items():
        if claim := make(client):
            print(name, audit.check_update(**claim))

`python -m experiments.mistakes` does that for five models, and docs/audit_checks.md has the results.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import protocols
from jaxleak._base import Batch, Loss, PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.symmetry import in_other_mode
from jaxleak.audit._similarity import closest
from jaxleak.audit._verdict.verdict import Verdict
from jaxleak.metrics._images import RECOGNISED_ABOVE
from jaxleak.objectives._losses import smoothed_cross_entropy

__all__ = ["MISTAKES", "Claim", "Client", "FalseClaims", "false_claims"]

#: Class weights that nobody states lie in this range, as if one class were ten times as frequent as another.
_WEIGHTS = (0.3, 3.0)


class Client(NamedTuple):
    """A client of which everything is known, and its update."""

    share: protocols.ClientShare  # what the client computes
    variables: PyTree  # the model's parameters and statistics
    payload: PyTree  # the update, in the shapes of the parameters
    size: int  # B, the number of samples in its batch
    key: jax.Array  # random key of what a mistake draws, such as where it hits
    batch: Batch | None = None  # one step's samples; mistakes in the loss need them


#: What is claimed of an update: the arguments `share`, `variables`, `payload` and `batch_size` of `audit.check_update`.
Claim = dict[str, Any]


def _claim(client: Client, **changes: Any) -> Claim:
    right = {"share": client.share, "variables": client.variables, "payload": client.payload, "batch_size": client.size}
    return right | changes


def _scaled(client: Client, factor: float) -> Claim:
    return _claim(client, payload=jax.tree.map(lambda g: g * factor, client.payload))


def _batch_size(client: Client) -> Claim:
    return _claim(client, batch_size=1 if client.size > 1 else 4)


def _other_mode(client: Client) -> Claim | None:
    other = in_other_mode(client.share, client.variables)
    return None if other is None else _claim(client, share=other)


def _swapped(client: Client) -> Claim | None:
    leaves = named_leaves(client.payload)
    square = [name for name, g in leaves.items() if any(a == b > 1 for a, b in pairwise(g.shape))]
    if not square:
        return None
    name = square[int(jax.random.randint(client.key, (), 0, len(square)))]
    axes = [a for a in range(leaves[name].ndim - 1) if leaves[name].shape[a] == leaves[name].shape[a + 1] > 1]
    return _with_leaf(client, name, leaves[name].swapaxes(axes[0], axes[0] + 1))


def _rows_permuted(client: Client) -> Claim | None:
    """The head's rows in PyTorch's order of channels and positions."""
    model, leaves = client.share.model, named_leaves(client.payload)
    if not model.head:
        return None
    name, leaf = model.head_names[0], leaves[model.head_names[0]]
    rows = model.matrix(name, leaf)
    kernel = next((g for g in reversed(leaves.values()) if g.ndim == 4), None)
    for channels in () if kernel is None else (kernel.shape[-1], kernel.shape[0]):  # as JAX and as PyTorch have it
        side = math.isqrt(len(rows) // channels)
        if side > 1 and side * side * channels == len(rows):
            moved = rows.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(rows.shape)
            # The matrix is a rearrangement of the leaf, so that the inverse map is the transposed one.
            (found,) = jax.linear_transpose(lambda leaf: model.matrix(name, leaf), leaf)(moved)
            return _with_leaf(client, name, found)
    return None


def _other_weights(client: Client) -> Claim:
    return _claim(client, variables=client.share.model.init(jax.random.fold_in(client.key, 1)))


def _another_round(client: Client) -> Claim:
    """The weights after a step of this very client at a rate of 0.1."""
    moved = jax.tree.map(lambda w, g: w - 0.1 * g, client.variables["params"], client.payload)
    return _claim(client, variables={**client.variables, "params": moved})


def _nearby_weights(client: Client) -> Claim:
    """The weights with noise of a hundredth of every leaf's root mean square."""
    leaves, treedef = jax.tree.flatten(client.variables["params"])
    keys = jax.random.split(client.key, len(leaves))
    sizes = [0.01 * jnp.sqrt(jnp.mean(leaf**2)) for leaf in leaves]
    moved = [w + size * jax.random.normal(k, w.shape) for w, size, k in zip(leaves, sizes, keys, strict=True)]
    return _claim(client, variables={**client.variables, "params": jax.tree.unflatten(treedef, moved)})


def _missing(client: Client) -> Claim:
    names = list(named_leaves(client.payload))
    return _with_leaf(client, names[int(jax.random.randint(client.key, (), 0, len(names)))], None)


def _not_finite(client: Client) -> Claim:
    return _claim(client, payload=jax.tree.map(lambda g: jnp.asarray(g).at[(0,) * g.ndim].set(jnp.nan), client.payload))


def _noise(client: Client) -> Claim:
    leaves, treedef = jax.tree.flatten(client.payload)
    size = np.sqrt(sum(float(jnp.vdot(g, g)) for g in leaves) / sum(g.size for g in leaves))
    keys = jax.random.split(client.key, len(leaves))
    noisy = [g + size * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return _claim(client, payload=jax.tree.unflatten(treedef, noisy))


def _pruned(client: Client) -> Claim:
    def prune(g: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(g) >= jnp.quantile(jnp.abs(g), 0.9), g, 0)

    return _claim(client, payload=jax.tree.map(prune, client.payload))


def _decay(client: Client) -> Claim:
    return _claim(client, payload=jax.tree.map(lambda g, w: g + 5e-4 * w, client.payload, client.variables["params"]))


def _other_loss(client: Client, loss: Loss) -> Claim | None:
    """An update that was computed with a loss other than the stated one."""
    if client.batch is None:
        return None
    return _claim(client, payload=client.share.with_loss(loss)(client.variables, client.batch))


def _class_weights(client: Client) -> Claim | None:
    """Class weights, and a mean that divides by their sum, as in PyTorch; with a single class they have no effect."""
    if client.batch is None or len(np.unique(client.batch.y)) == 1:
        return None
    low, high = np.log(_WEIGHTS)
    weights = jnp.exp(jax.random.uniform(client.key, (client.share.model.num_classes,), minval=low, maxval=high))

    def weighted(logits: jax.Array, y: jax.Array) -> jax.Array:
        of_each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return jnp.average(of_each, weights=weights[y])

    return _other_loss(client, weighted)


def _with_leaf(client: Client, name: str, value: Any) -> Claim:
    leaves = {other: value if other == name else leaf for other, leaf in named_leaves(client.payload).items()}
    return _claim(client, payload=jax.tree.unflatten(jax.tree.structure(client.payload), list(leaves.values())))


#: Every mistake by its name, and "none". A mistake that does not apply to a client is None, for example a sum in place
#: of the mean over one sample.
MISTAKES: dict[str, Callable[[Client], Claim | None]] = {
    "none": _claim,
    "sum, not mean": lambda c: None if c.size == 1 else _scaled(c, c.size),
    "another batch size": _batch_size,
    "another mode of batch normalisation": _other_mode,
    "two axes swapped": _swapped,
    "head in channels-first order": _rows_permuted,
    "weights of another model": _other_weights,
    "weights of the next round": _another_round,
    "weights that are 1 % off": _nearby_weights,
    "not divided by the rate 0.01": lambda c: _scaled(c, 0.01),
    "reversed sign": lambda c: _scaled(c, -1.0),
    "weight decay": _decay,
    "a leaf is missing": _missing,
    "not finite": _not_finite,
    "noise, not stated": _noise,
    "pruned, not stated": _pruned,
    "class weights, not stated": _class_weights,
    "smoothed labels, not stated": lambda c: _other_loss(c, smoothed_cross_entropy),
}


class FalseClaims(NamedTuple):
    """How many claims of a verdict are false."""

    images: int  # certified images that resemble no image of the client
    labels: int  # proven labels that the client's batch does not hold


def false_claims(verdict: Verdict, batch: Batch) -> FalseClaims:
    """Compare the certified images and the proven labels of an audit with what the client really had.

    An image is the client's if its SSIM to one of the client's is above 0.8.

    Args:
        verdict: the answer of an audit of a client of one step.
        batch: the client's samples, x (B, 1, H, W, channels) in [0, 1] and y (B,).

    Returns:
        The numbers of claimed images and claimed labels that are not the client's.
    """
    truth = np.asarray(batch.x)[:, 0]
    certified = verdict.best.x[verdict.best.shown] if verdict.best is not None and verdict.verdict == "leaks" else ()
    images = sum(closest(truth, np.clip(found, 0, 1)) <= RECOGNISED_ABOVE for found in certified)
    held = np.bincount(np.asarray(batch.y), minlength=len(verdict.labels))
    return FalseClaims(images, int(np.maximum(verdict.labels - held, 0).sum()))
