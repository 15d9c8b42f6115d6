"""Residual networks of basic blocks (He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016)."""

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import flax.linen as nn
import jax

from jaxleak import _validate
from jaxleak.models._classifier import Classifier
from jaxleak.models._conv import Form, global_avg_pool
from jaxleak.models._door import classifier
from jaxleak.models._layers import BatchNorm, Init, Style, conv, dense

Stem = Literal["auto", "small", "large"]
STEMS: tuple[Stem, ...] = ("auto", "small", "large")

#: Largest side in pixels that "auto" takes for a small image.
SMALL_IMAGE = 64


def is_small(image_shape: tuple[int, ...], stem: Stem) -> bool:
    """Whether the first layers keep the resolution.

    Args:
        image_shape: (H, W, c).
        stem: "small", "large", or "auto": small up to 64 pixels.

    Raises:
        ValueError: on an unknown stem.
    """
    _validate.one_of(STEMS, stem=stem)
    return stem == "small" or (stem == "auto" and max(image_shape[:2]) <= SMALL_IMAGE)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution wherever the shape changes."""

    channels: int
    stride: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """(B, H, W, c) -> (B, ceil(H / stride), ceil(W / stride), channels)."""
        act = self.style.act
        z = act(BatchNorm(name="norm_0")(conv(x, self.channels, 3, self.style, self.stride, name="conv_0"), train))
        z = BatchNorm(name="norm_1")(conv(z, self.channels, 3, self.style, name="conv_1"), train)
        if self.stride != 1 or x.shape[-1] != self.channels:
            x = conv(x, self.channels, 1, self.style, self.stride, name="shortcut")
            x = BatchNorm(name="shortcut_norm")(x, train)
        return act(z + x)


class ResNet(nn.Module):
    """Stem, stages of basic blocks that halve the resolution and double the width, mean over pixels, dense layer."""

    num_classes: int
    style: Style
    blocks: tuple[int, ...]
    width: int
    small: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        window, stride = (3, 1) if self.small else (7, 2)
        x = conv(x, self.width, window, self.style, stride, name="stem")
        x = self.style.act(BatchNorm(name="stem_norm")(x, train))
        if not self.small:
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for i, blocks in enumerate(self.blocks):
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                block = BasicBlock(self.width * 2**i, stride, self.style, name=f"stage_{i}_block_{j}")
                x = block(x, train)
        return dense(global_avg_pool(x), self.num_classes, self.style, name="head")


def resnet(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    blocks: Sequence[int] = (1, 1, 1, 1),
    width: int = 64,
    width_multiplier: int = 1,
    stem: Stem = "auto",
    activation: str = "relu",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """A residual network; `resnet10`, `resnet18` and `resnet34` are this with their numbers of blocks.

    Convolutions have no bias, shortcuts are 1x1 convolutions with batch normalisation. With one-channel images and ten
    classes ResNet10 then has 4,902,090 parameters.

    Args:
        image_shape: (H, W, c).
        num_classes: C >= 2.
        blocks: number of blocks in each stage; every stage after the first halves the resolution and doubles the width.
        width: channels of the stem and of the first stage.
        width_multiplier: multiplies all widths; 3 and 5 are FedLeak's ResNet10_x3 and ResNet10_x5.
        stem: "small", 3x3 with stride 1; "large", 7x7 with stride 2, then 3x3 max-pooling with stride 2; "auto": small
            up to 64 pixels.
        activation: one of `jaxleak.models.ACTIVATIONS`, in place of every ReLU.
        init: "default" (PyTorch's), "he", "glorot" or "wide_uniform", see `jaxleak.models.initializers`.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: on sizes out of range or unknown names.
    """
    _validate.count(width=width, width_multiplier=width_multiplier)
    _validate.count(**{f"blocks[{i}]": n for i, n in enumerate(blocks)})
    module = ResNet(
        num_classes,
        Style(activation, init),
        tuple(blocks),
        width * width_multiplier,
        is_small(image_shape, stem),
    )
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head", form=form)


Factory = Callable[..., Classifier]

resnet10: Factory = functools.partial(resnet, blocks=(1, 1, 1, 1))
resnet18: Factory = functools.partial(resnet, blocks=(2, 2, 2, 2))
resnet34: Factory = functools.partial(resnet, blocks=(3, 4, 6, 3))
resnet10_x3: Factory = functools.partial(resnet10, width_multiplier=3)
resnet10_x5: Factory = functools.partial(resnet10, width_multiplier=5)
