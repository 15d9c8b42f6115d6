"""Networks in plain Flax Linen, as a user writes them, with the weights of jaxleak's own networks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict


class PlainStack(nn.Module):
    """Convolutions, then dense layers, with one activation, like `jaxleak.models.convnet`, `lenet` and `mlp`."""

    channels: Sequence[int] = ()
    strides: Sequence[int] = ()
    window: int = 3
    widths: Sequence[int] = ()
    activation: Callable[[jax.Array], jax.Array] = nn.relu
    num_classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        side = (self.window, self.window)
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = self.activation(nn.Conv(channels, side, stride, padding=self.window // 2, name=f"conv_{i}")(x))
        x = x.reshape(len(x), -1)
        for i, width in enumerate(self.widths):
            x = self.activation(nn.Dense(width, name=f"dense_{i}")(x))
        return nn.Dense(self.num_classes, name="head")(x)


class PlainResNet(nn.Module):
    """Basic blocks for small images, like `jaxleak.models.resnet` with the small stem; images (B, H, W, c)."""

    blocks: Sequence[int] = (1, 1, 1, 1)
    width: int = 64
    num_classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Images to logits (B, C); in training, batch normalisation uses the batch's own statistics."""

        def normalized(x: jax.Array, name: str) -> jax.Array:
            # The fast variance takes a maximum with zero, which would count as a kink of the network.
            norm = nn.BatchNorm(not train, momentum=0.9, use_fast_variance=False, name=name)
            return norm(x)

        def conv(x: jax.Array, channels: int, window: int, stride: int, name: str) -> jax.Array:
            side = (window, window)
            return nn.Conv(channels, side, (stride, stride), window // 2, use_bias=False, name=name)(x)

        x = nn.relu(normalized(conv(x, self.width, 3, 1, "stem"), "stem_norm"))
        for i, blocks in enumerate(self.blocks):
            for j in range(blocks):
                name, channels, stride = f"stage_{i}_block_{j}", self.width * 2**i, 2 if i > 0 and j == 0 else 1
                z = nn.relu(normalized(conv(x, channels, 3, stride, f"{name}_conv_0"), f"{name}_norm_0"))
                z = normalized(conv(z, channels, 3, 1, f"{name}_conv_1"), f"{name}_norm_1")
                if stride != 1 or x.shape[-1] != channels:
                    x = normalized(conv(x, channels, 1, stride, f"{name}_shortcut"), f"{name}_shortcut_norm")
                x = nn.relu(z + x)
        return nn.Dense(self.num_classes, name="head")(x.mean((1, 2)))


def flat_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of one of jaxleak's networks by the names of the classes above: nested modules' names are joined.

    Args:
        variables: collections ("params", "batch_stats") of nested modules; "params/stage_0_block_0/conv_0/kernel"
            becomes "params/stage_0_block_0_conv_0/kernel".
    """
    flat = flatten_dict(variables)
    return unflatten_dict({(part, *filter(None, ["_".join(path)]), leaf): x for (part, *path, leaf), x in flat.items()})
