"""DenseNet (Huang et al., *Densely Connected Convolutional Networks*, CVPR 2017)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak.models._activations import Sharpness, in_units_of
from jaxleak.models._classifier import (
    Activation,
    BatchNorm,
    BatchNormMode,
    Classifier,
    Conv,
    Dense,
    Init,
    Style,
    classifier,
)
from jaxleak.models._conv import Form, avg_pool, global_avg_pool, max_pool
from jaxleak.models._resnets import Stem, is_small


class Unit(nn.Module):
    """Normalisation, activation, convolution."""

    channels: int
    window: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, mode: BatchNormMode, sharpness: Sharpness) -> jax.Array:
        """(B, H, W, c) -> (B, H, W, channels)."""
        x = Activation(self.style, name="act")(BatchNorm(name="norm")(x, mode), sharpness)
        return Conv(self.channels, self.window, self.style, name="conv")(x)


class DenseNet(nn.Module):
    """Blocks whose layers append `growth` channels to their input, with halvings between."""

    num_classes: int
    style: Style
    blocks: tuple[int, ...]
    growth: int
    small: bool

    @nn.compact
    def __call__(self, x: jax.Array, mode: BatchNormMode, sharpness: Sharpness) -> tuple[jax.Array, jax.Array]:
        """Images (B, H, W, c) to logits (B, C) and features (B, F)."""
        window, stride = (3, 1) if self.small else (7, 2)
        x = Conv(2 * self.growth, window, self.style, stride, name="stem")(x)
        if not self.small:
            x = Activation(self.style, name="stem_act")(BatchNorm(name="stem_norm")(x, mode), sharpness)
            x = max_pool(x, 3, 2, padding=1, sharpness=in_units_of(x, sharpness))
        for i, layers in enumerate(self.blocks):
            for j in range(layers):
                z = Unit(4 * self.growth, 1, self.style, name=f"block_{i}_reduce_{j}")(x, mode, sharpness)
                z = Unit(self.growth, 3, self.style, name=f"block_{i}_grow_{j}")(z, mode, sharpness)
                x = jnp.concatenate([x, z], axis=-1)
            if i < len(self.blocks) - 1:
                x = Unit(x.shape[-1] // 2, 1, self.style, name=f"transition_{i}")(x, mode, sharpness)
                x = avg_pool(x)
        x = Activation(self.style, name="last_act")(BatchNorm(name="last_norm")(x, mode), sharpness)
        features = global_avg_pool(x)
        return Dense(self.num_classes, self.style, name="head")(features), features


def densenet121(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
    stem: Stem = "auto",
    activation: str = "relu",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """DenseNet-BC with bottlenecks of 4 growth channels and halving transitions; 121 layers by default.

    Args:
        image_shape: (H, W, c), sides of at least 8 pixels with the small stem, 32 with the large one.
        num_classes: C >= 2.
        blocks: layers of each dense block.
        growth: channels that a layer appends.
        stem: "small", 3x3 with stride 1 and the first normalisation left to the first block; "large", 7x7 with stride
            2, normalised, then 3x3 max-pooling with stride 2; "auto": small up to 64 pixels.
        activation: one of `jaxleak.models.ACTIVATIONS`, in place of every ReLU.
        init: "default" (PyTorch's), "he", "glorot" or "wide_uniform", see `jaxleak.models.initializers`.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: on sizes out of range or unknown names.
    """
    _validate.positive(growth=growth, **{f"blocks[{i}]": n for i, n in enumerate(blocks)})
    style = Style(activation, init, form)
    module = DenseNet(num_classes, style, tuple(blocks), growth, is_small(image_shape, stem))
    return classifier(module, image_shape=image_shape, num_classes=num_classes)
