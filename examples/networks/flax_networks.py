"""A ConvNet and a ResNet in plain Flax Linen, as a user writes them, with the weights of jaxleak's own networks."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict


class PlainConvNet(nn.Module):
    """3x3 convolutions with ReLUs and one dense layer, like `jaxleak.models.convnet`; images (B, H, W, c)."""

    channels: Sequence[int]
    strides: Sequence[int]
    num_classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Images to logits (B, C)."""
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = nn.relu(nn.Conv(channels, (3, 3), (stride, stride), padding=1, name=f"conv_{i}")(x))
        return nn.Dense(self.num_classes, name="head")(x.reshape(len(x), -1))


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


def flat(variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Variables of one of jaxleak's networks by the names of the classes above: nested modules' names are joined.

    Args:
        variables: collections ("params", "batch_stats") of nested modules; "params/stage_0_block_0/conv_0/kernel"
            becomes "params/stage_0_block_0_conv_0/kernel".
    """
    found: dict[str, dict[str, Any]] = {}
    for (collection, *modules, leaf), value in flatten_dict(variables).items():
        found.setdefault(collection, {}).setdefault("_".join(modules), {})[leaf] = value
    return found
