"""MobileNetV2 (Sandler et al., *MobileNetV2: Inverted Residuals and Linear Bottlenecks*, CVPR 2018)."""

import flax.linen as nn
import jax

from jaxleak.models._classifier import Classifier
from jaxleak.models._conv import Form, global_avg_pool
from jaxleak.models._door import classifier
from jaxleak.models._layers import BatchNorm, Init, Style, conv, dense
from jaxleak.models._resnets import Stem, is_small

#: Expansion, channels, repetitions, stride of the first repetition: table 2 of the paper.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM_CHANNELS, LAST_CHANNELS = 32, 1280


class Unit(nn.Module):
    """Convolution, normalisation and, unless linear, activation."""

    channels: int
    window: int
    style: Style
    stride: int = 1
    groups: int = 1
    linear: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """(B, H, W, c) -> (B, ceil(H / stride), ceil(W / stride), channels)."""
        x = conv(x, self.channels, self.window, self.style, self.stride, groups=self.groups, name="conv")
        x = BatchNorm(name="norm")(x, train)
        return x if self.linear else self.style.act(x)


class InvertedResidual(nn.Module):
    """Expansion by a 1x1 convolution, a 3x3 depthwise one, and a linear 1x1 projection."""

    channels: int
    expansion: int
    stride: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """(B, H, W, c) -> (B, ceil(H / stride), ceil(W / stride), channels)."""
        z, hidden = x, self.expansion * x.shape[-1]
        if self.expansion != 1:
            z = Unit(hidden, 1, self.style, name="expand")(z, train)
        z = Unit(hidden, 3, self.style, self.stride, groups=hidden, name="depthwise")(z, train)
        z = Unit(self.channels, 1, self.style, linear=True, name="project")(z, train)
        return x + z if self.stride == 1 and x.shape[-1] == self.channels else z


class MobileNetV2(nn.Module):
    """Stem, inverted residuals, a wide 1x1 convolution, mean over pixels, dense layer."""

    num_classes: int
    style: Style
    small: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        x = Unit(STEM_CHANNELS, 3, self.style, 1 if self.small else 2, name="stem")(x, train)
        for i, (expansion, channels, repetitions, first_stride) in enumerate(STAGES):
            for j in range(repetitions):
                # All five halvings would leave a small image with a single pixel.
                stride = 1 if j > 0 or (self.small and i == 1) else first_stride
                block = InvertedResidual(channels, expansion, stride, self.style, name=f"stage_{i}_block_{j}")
                x = block(x, train)
        x = Unit(LAST_CHANNELS, 1, self.style, name="last")(x, train)
        return dense(global_avg_pool(x), self.num_classes, self.style, name="head")


def mobilenet_v2(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    stem: Stem = "auto",
    activation: str = "relu6",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """MobileNetV2 at width 1, without the dropout in front of its head.

    Args:
        image_shape: (H, W, c).
        num_classes: C >= 2.
        stem: "small" leaves out the first two of five halvings; "large" is the paper's; "auto": small up to 64 pixels.
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: "default" (PyTorch's), "he", "glorot" or "wide_uniform", see `jaxleak.models.initializers`.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: on sizes out of range or unknown names.
    """
    module = MobileNetV2(num_classes, Style(activation, init), is_small(image_shape, stem))
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head", form=form)
