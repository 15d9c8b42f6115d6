"""DenseNet (Huang et al., *Densely Connected Convolutional Networks*, CVPR 2017)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak.models._classifier import Classifier
from jaxleak.models._conv import Form, avg_pool, global_avg_pool
from jaxleak.models._door import classifier
from jaxleak.models._layers import BatchNorm, Init, Style, conv, dense
from jaxleak.models._resnets import Stem, is_small


class Unit(nn.Module):
    """Normalisation, activation, convolution."""

    channels: int
    window: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """(B, H, W, c) -> (B, H, W, channels)."""
        x = self.style.act(BatchNorm(name="norm")(x, train))
        return conv(x, self.channels, self.window, self.style, name="conv")


class DenseNet(nn.Module):
    """Blocks whose layers append `growth` channels to their input, with halvings between."""

    num_classes: int
    style: Style
    blocks: tuple[int, ...]
    growth: int
    small: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        window, stride = (3, 1) if self.small else (7, 2)
        x = conv(x, 2 * self.growth, window, self.style, stride, name="stem")
        if not self.small:
            x = self.style.act(BatchNorm(name="stem_norm")(x, train))
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for i, layers in enumerate(self.blocks):
            for j in range(layers):
                z = Unit(4 * self.growth, 1, self.style, name=f"block_{i}_reduce_{j}")(x, train)
                z = Unit(self.growth, 3, self.style, name=f"block_{i}_grow_{j}")(z, train)
                x = jnp.concatenate([x, z], axis=-1)
            if i < len(self.blocks) - 1:
                x = Unit(x.shape[-1] // 2, 1, self.style, name=f"transition_{i}")(x, train)
                x = avg_pool(x)
        x = self.style.act(BatchNorm(name="last_norm")(x, train))
        return dense(global_avg_pool(x), self.num_classes, self.style, name="head")


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
    _validate.count(growth=growth, **{f"blocks[{i}]": n for i, n in enumerate(blocks)})
    style = Style(activation, init)
    module = DenseNet(num_classes, style, tuple(blocks), growth, is_small(image_shape, stem))
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head", form=form)
