"""Plain networks: LeNet of Deep Leakage from Gradients, convolutional stacks, and a perceptron."""

from collections.abc import Sequence

import flax.linen as nn
import jax

from jaxleak import _validate
from jaxleak.models._classifier import Classifier
from jaxleak.models._conv import Form
from jaxleak.models._door import classifier
from jaxleak.models._layers import BatchNorm, Init, Style, conv, dense


class ConvNet(nn.Module):
    """Blocks of convolution, optional batch normalisation, activation, optional pooling; one dense layer."""

    num_classes: int
    style: Style
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    window: int
    batch_norm: bool
    pool_after: tuple[int, ...]
    pool_window: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = conv(x, channels, self.window, self.style, stride, bias=True, name=f"conv_{i}")
            if self.batch_norm:
                x = BatchNorm(name=f"norm_{i}")(x, train)
            x = self.style.act(x)
            if i in self.pool_after:
                side = (self.pool_window, self.pool_window)
                x = nn.max_pool(x, side, side)
        return dense(x.reshape(x.shape[0], -1), self.num_classes, self.style, name="head")


class Perceptron(nn.Module):
    """Dense layers on the flattened image with activations between."""

    num_classes: int
    style: Style
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths):
            x = self.style.act(dense(x, width, self.style, name=f"dense_{i}"))
        return dense(x, self.num_classes, self.style, name="head")


def convnet(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    channels: Sequence[int] = (32, 32, 64, 64),
    strides: Sequence[int] = (1, 2, 2, 2),
    window: int = 3,
    batch_norm: bool = False,
    pool_after: Sequence[int] = (),
    pool_window: int = 3,
    activation: str = "relu",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """A stack of convolutions with one dense layer behind; small and without normalisation by default.

    Args:
        image_shape: (H, W, c).
        num_classes: C >= 2.
        channels: output channels of the convolutions, which have biases.
        strides: as many as `channels`.
        window: odd side of the kernels; padding is window // 2.
        batch_norm: normalise in front of every activation.
        pool_after: indices of the convolutions that max-pooling follows.
        pool_window: side and stride of the pooling windows; edges that do not fill a window are left out.
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: "default" (PyTorch's), "he", "glorot" or "wide_uniform", see `jaxleak.models.initializers`.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: on sizes out of range or unknown names.
    """
    if not channels or len(channels) != len(strides):
        raise ValueError(f"channels and strides must be equally many, got {tuple(channels)} and {tuple(strides)}")
    _validate.count(pool_window=pool_window, **{f"channels[{i}]": c for i, c in enumerate(channels)})
    _validate.count(**{f"strides[{i}]": s for i, s in enumerate(strides)})
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window must be odd, got {window}")
    for i in pool_after:
        _validate.in_range(0, len(channels) - 1, pool_after=i)
    module = ConvNet(
        num_classes,
        Style(activation, init),
        tuple(channels),
        tuple(strides),
        window,
        batch_norm,
        tuple(pool_after),
        pool_window,
    )
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head", form=form)


def convnet_ig(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    width: int = 64,
    batch_norm: bool = True,
    activation: str = "relu",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """ConvNet of Geiping et al., *Inverting Gradients*, NeurIPS 2020: eight convolutions and two max-poolings.

    The paper's network has `width` 64. Arguments and errors as in `convnet`; raises `ValueError` on `width` < 1.
    """
    _validate.count(width=width)
    multiples = (1, 2, 2, 4, 4, 4, 4, 4)
    return convnet(
        image_shape,
        num_classes,
        channels=[width * m for m in multiples],
        strides=(1,) * 8,
        batch_norm=batch_norm,
        pool_after=(5, 7),
        activation=activation,
        init=init,
        form=form,
    )


def lenet(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    channels: int = 12,
    strides: Sequence[int] = (2, 2, 1),
    activation: str = "sigmoid",
    init: Init = "default",
    form: Form = "auto",
) -> Classifier:
    """LeNet as in Zhu et al., *Deep Leakage from Gradients*, NeurIPS 2019: 5x5 convolutions of 12 channels, sigmoid.

    `strides=(2, 2, 1, 1)` is the authors' longer variant, and `init="wide_uniform"` is the initialisation with which
    they showed the attack. Arguments and errors as in `convnet`; `channels` is the number of channels of every
    convolution; a number below 1 raises `ValueError`.
    """
    _validate.count(channels=channels)
    return convnet(
        image_shape,
        num_classes,
        channels=(channels,) * len(strides),
        strides=strides,
        window=5,
        activation=activation,
        init=init,
        form=form,
    )


def mlp(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    widths: Sequence[int] = (256, 128),
    activation: str = "relu",
    init: Init = "default",
) -> Classifier:
    """A perceptron: dense layers of these widths, then the head; three layers by default.

    Args:
        image_shape: (H, W, c).
        num_classes: C >= 2.
        widths: units of the hidden layers; () is multinomial logistic regression.
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: as in `convnet`.

    Raises:
        ValueError: on sizes out of range or unknown names.
    """
    _validate.count(**{f"widths[{i}]": w for i, w in enumerate(widths)})
    module = Perceptron(num_classes, Style(activation, init), tuple(widths))
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head")


def mlp3(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    widths: Sequence[int] = (256, 128, 64),
    activation: str = "relu",
    init: Init = "default",
) -> Classifier:
    """A perceptron with three hidden layers by default, as FedLeak's section 3 names one without its widths.

    Arguments and errors as in `mlp`.
    """
    return mlp(image_shape, num_classes, widths=widths, activation=activation, init=init)
