"""The tutorial's CNN of `torch_networks` in Flax NNX and in Equinox, with the weights of a PyTorch state dict."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

HIDDEN = 32 * 16 * 16
LAYERS = ("conv1", "conv2", "fc1", "fc2")


class NnxCnn(nnx.Module):
    """Two convolutions, a pool, two dense layers; images (B, 32, 32, 3)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Draw the weights."""
        self.conv1, self.conv2 = nnx.Conv(3, 16, (3, 3), rngs=rngs), nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.fc1, self.fc2 = nnx.Linear(HIDDEN, 64, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Images to logits (B, 10)."""
        x = nnx.max_pool(nnx.relu(self.conv2(nnx.relu(self.conv1(x)))), (2, 2), (2, 2))
        # In PyTorch's order of channels and positions, so that its weights fit.
        return self.fc2(nnx.relu(self.fc1(x.transpose(0, 3, 1, 2).reshape(len(x), -1))))


class EquinoxCnn(eqx.Module):
    """The same for one image (3, 32, 32)."""

    conv1: eqx.nn.Conv2d
    conv2: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    fc1: eqx.nn.Linear
    fc2: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        """Draw the weights."""
        keys = jax.random.split(key, 4)
        self.conv1 = eqx.nn.Conv2d(3, 16, 3, padding=1, key=keys[0])
        self.conv2 = eqx.nn.Conv2d(16, 32, 3, padding=1, key=keys[1])
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = eqx.nn.Linear(HIDDEN, 64, key=keys[2]), eqx.nn.Linear(64, 10, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        """One image to logits (10,)."""
        x = self.pool(jax.nn.relu(self.conv2(jax.nn.relu(self.conv1(x)))))
        return self.fc2(jax.nn.relu(self.fc1(x.ravel())))


def nnx_cnn() -> NnxCnn:
    """An `NnxCnn`, for `--model`."""
    return NnxCnn(nnx.Rngs(0))


def equinox_cnn() -> EquinoxCnn:
    """An `EquinoxCnn`, for `--model`."""
    return EquinoxCnn(jax.random.key(0))


def in_nnx(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PyTorch's arrays by the names and in the layouts of `NnxCnn`."""
    found = {}
    for layer in LAYERS:
        kernel = state[f"{layer}.weight"]
        found[f"{layer}.kernel"] = kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        found[f"{layer}.bias"] = state[f"{layer}.bias"]
    return found


def in_equinox(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PyTorch's arrays in the layouts of `EquinoxCnn`, whose convolutions have a bias (C, 1, 1)."""
    return {
        name: array[:, None, None] if name.startswith("conv") and name.endswith("bias") else array
        for name, array in state.items()
    }


def nnx_gradient(weights: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The mean cross-entropy's gradient by Flax, at images (B, H, W, C) and labels (B,)."""
    net = nnx_cnn()
    for layer in LAYERS:
        part = getattr(net, layer)
        part.kernel[...], part.bias[...] = weights[f"{layer}.kernel"], weights[f"{layer}.bias"]
    gradient = nnx.grad(lambda net: _mean_loss(net(jnp.asarray(x)), y))(net)
    return {
        f"{layer}.{leaf}": np.asarray(gradient[layer][leaf][...]) for layer in LAYERS for leaf in ("kernel", "bias")
    }


def equinox_gradient(weights: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The mean cross-entropy's gradient by Equinox, at images (B, H, W, C) and labels (B,)."""
    paths = [(layer, leaf) for layer in LAYERS for leaf in ("weight", "bias")]

    def leaves(net: EquinoxCnn) -> list[jax.Array]:
        return [getattr(getattr(net, layer), leaf) for layer, leaf in paths]

    net = eqx.tree_at(leaves, equinox_cnn(), [jnp.asarray(weights[".".join(path)]) for path in paths])
    first = jnp.asarray(x.transpose(0, 3, 1, 2))
    gradient = eqx.filter_grad(lambda net: _mean_loss(jax.vmap(net)(first), y))(net)
    return {".".join(path): np.asarray(leaf) for path, leaf in zip(paths, leaves(gradient), strict=True)}


def _mean_loss(logits: jax.Array, y: np.ndarray) -> jax.Array:
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), jnp.asarray(y)])
