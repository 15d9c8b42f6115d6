"""The clients of the study of mistaken inputs, and every mistake that somebody may make with their updates."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments._mistakes.options import Args
from jaxleak import Batch, data, models, protocols
from jaxleak._tree import named_leaves

_SIDE, _CLASSES = 16, 10
#: The clients' images are drawn from so many of the data.
IMAGES = 256
#: A draw has the key `seed * _KEYS_OF_A_SEED + model * MOST_DRAWS + draw`, of which JAX reads 32 bits.
_KEYS_OF_A_SEED, MOST_DRAWS, _MODELS = 100_000, 1000, 5
#: The largest seed whose keys are its own.
LARGEST_SEED = (2**32 - _MODELS * MOST_DRAWS) // _KEYS_OF_A_SEED


class Client(NamedTuple):
    """One draw: what was claimed truly."""

    share: protocols.ClientShare
    variables: Any
    payload: Any
    batch: Batch
    key: jax.Array

    @property
    def size(self) -> int:
        """B, the number of images in the client's batch."""
        return len(self.batch.y)


#: What is claimed of an update: share, variables, payload and batch size.
Claim = dict[str, Any]


def build_models() -> dict[str, tuple[models.Classifier, str]]:
    """By name: the `_MODELS` models, and the mode of their batch normalisation."""
    shape = (_SIDE, _SIDE, 3)
    small = {"channels": (8, 16, 16), "strides": (1, 2, 2)}
    normalised = models.convnet(shape, _CLASSES, batch_norm=True, **small)  # type: ignore[arg-type]
    return {
        "convnet": (models.convnet(shape, _CLASSES, **small), "train"),  # type: ignore[arg-type]
        "convnet, batch statistics": (normalised, "train"),
        "convnet, running statistics": (normalised, "eval"),
        "lenet (sigmoid)": (models.lenet(shape, _CLASSES), "train"),
        "mlp": (models.mlp(shape, _CLASSES, widths=(64, 32)), "train"),
    }


def _claim(client: Client, **changes: Any) -> Claim:
    right = {"share": client.share, "variables": client.variables, "payload": client.payload, "batch_size": client.size}
    return right | changes


def _scaled(client: Client, factor: float) -> Claim:
    return _claim(client, payload=jax.tree.map(lambda g: g * factor, client.payload))


def _batch_size(client: Client) -> Claim:
    return _claim(client, batch_size=1 if client.size > 1 else 4)


def _other_mode(client: Client) -> Claim | None:
    if not client.share.model.has_batch_norm:
        return None
    return _claim(client, share=MIRRORED[id(client.share)])


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
    leaf, head = client.payload[client.share.model.head]["kernel"], client.share.model.head
    channels = next((g.shape[-1] for g in reversed(list(named_leaves(client.payload).values())) if g.ndim == 4), 0)
    side = round((len(leaf) / channels) ** 0.5) if channels else 0
    if side < 2:
        return None
    return _with_leaf(
        client, f"{head}/kernel", leaf.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(leaf.shape)
    )


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
    return _claim(client, payload=jax.tree.map(lambda g: g.at[(0,) * g.ndim].set(jnp.nan), client.payload))


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


def _with_leaf(client: Client, name: str, value: Any) -> Claim:
    leaves = {other: value if other == name else leaf for other, leaf in named_leaves(client.payload).items()}
    return _claim(client, payload=jax.tree.unflatten(jax.tree.structure(client.payload), list(leaves.values())))


#: Every mistake by name. None of a batch of one where a sum is a mean.
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
}
#: By identity of a client: the client of the same model in the other mode of batch normalisation.
MIRRORED: dict[int, protocols.ClientShare] = {}


def draw_client(share: protocols.ClientShare, args: Args, model: int, draw: int) -> Client:
    """A client of one or four images; with running statistics it has seen some batches before.

    Args:
        share: what the client computes.
        args: their seed is at most `LARGEST_SEED`.
        model: number of the model in `build_models`.
        draw: number of the draw, less than `MOST_DRAWS`.
    """
    number = model * MOST_DRAWS + draw
    key = jax.random.key(args.seed * _KEYS_OF_A_SEED + number)
    weight_key, batch_key, own_key = jax.random.split(key, 3)
    size = (1, 4, 4)[number % 3]
    images = data.load(args.data, n=IMAGES)
    index = jax.random.choice(batch_key, len(images.x), (size,), replace=False)
    x = jax.image.resize(jnp.asarray(images.x)[index], (size, _SIDE, _SIDE, 3), "linear")
    y = jax.random.randint(batch_key, (size,), 0, _CLASSES, jnp.int32)
    variables = share.model.init(weight_key)
    if share.batch_norm == "eval":
        warm = jax.image.resize(jnp.asarray(images.x)[:32], (32, _SIDE, _SIDE, 3), "linear")
        for _ in range(10):
            variables = {**variables, "batch_stats": share.model.apply(variables, warm, mode="train").batch_stats}
    batch = Batch(x[:, None], y, jnp.arange(size))
    return Client(share, variables, jax.jit(share)(variables, batch), batch, own_key)
