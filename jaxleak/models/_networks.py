"""The networks of the CAFE papers, and two more, on which CAFE's Steps I and II alone recover the data."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax

from jaxleak import _validate
from jaxleak.models._conv import Form, conv2d, max_pool, smoothed_max_pool_relu
from jaxleak.models._split import SplitModel, split_model

Activation = Callable[[jax.Array], jax.Array]


class ConvExtractor(nn.Module):
    """Blocks of conv 5x5 'SAME', max-pool 2x2, activation; flattened. (B, h, w, c) -> (B, d1).

    Pooling before a monotone activation gives the same values as after it, at a quarter of the cost.

    With a `temperature` (B,) the values stay exact and the derivative of every ReLU-and-pool block i is smoothed at
    `smoothing[i] * temperature`, see `smoothed_max_pool_relu`; other activations ignore it.
    """

    channels: Sequence[int] = (64, 128)
    activation: Activation = nn.relu
    form: Form = "auto"
    smoothing: Sequence[float] = (4.0, 1.5)

    @nn.compact
    def __call__(self, x: jax.Array, temperature: jax.Array | None = None) -> jax.Array:
        """Features of one party's slices."""
        for i, c in enumerate(self.channels):
            kernel = self.param(f"kernel_{i}", nn.initializers.glorot_uniform(), (5, 5, x.shape[-1], c))
            bias = self.param(f"bias_{i}", nn.initializers.zeros, (c,))
            z = conv2d(x, kernel, form=self.form) + bias
            self.sow("statistics", f"mean_{i}", z.mean(axis=(0, 1, 2)))
            self.sow("statistics", f"var_{i}", z.var(axis=(0, 1, 2)))
            if temperature is not None and self.activation is nn.relu:
                # Blocks beyond the end of `smoothing` take its last entry.
                x = smoothed_max_pool_relu(z, temperature * self.smoothing[min(i, len(self.smoothing) - 1)])
            else:
                x = self.activation(max_pool(z))
        return x.reshape(x.shape[0], -1)


class FlattenExtractor(nn.Module):
    """No extractor: the first dense layer sees the data themselves."""

    @nn.compact
    def __call__(self, x: jax.Array, temperature: jax.Array | None = None) -> jax.Array:
        """(B, *slice) -> (B, prod(slice))."""
        del temperature  # nothing to smooth
        return x.reshape(x.shape[0], -1)


class DenseTower(nn.Module):
    """Activation, then dense layers with activations between: (B, d2) -> (B, widths[-1])."""

    widths: Sequence[int]
    activation: Activation = nn.relu
    output_activation: Activation | None = None

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        """From pre-activations of the first dense layer to the tower's output."""
        x = self.activation(u)
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, kernel_init=nn.initializers.glorot_uniform())(x)
            last = i == len(self.widths) - 1
            activation = self.output_activation if last else self.activation
            x = x if activation is None else activation(x)
        return x


class JointSoftmax(nn.Module):
    """One tower per party, outputs concatenated, one dense layer to the class logits."""

    tower_widths: Sequence[int]
    num_classes: int
    activation: Activation = nn.relu
    output_activation: Activation | None = None

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        """U (B, P, d2) -> logits (B, C)."""
        towers = nn.vmap(
            DenseTower,
            in_axes=1,
            out_axes=1,
            axis_size=u.shape[1],
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        outputs = towers(self.tower_widths, self.activation, self.output_activation)(u)
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.glorot_uniform())(outputs.reshape(u.shape[0], -1))


class OneTower(nn.Module):
    """The rest of a single-party network: (B, 1, d2) -> logits (B, C)."""

    widths: Sequence[int]
    activation: Activation = nn.relu

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        """U (B, 1, d2) -> logits (B, C)."""
        return DenseTower(self.widths, self.activation)(u[:, 0])


class SumOfParties(nn.Module):
    """The rest of a logistic model: party logits (B, P, C) add up to the joint logits (B, C)."""

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        """U (B, P, C) -> logits (B, C)."""
        return u.sum(axis=1)


def cafe_vertical(
    slice_shape: tuple[int, ...],
    *,
    parties: int = 4,
    num_classes: int = 10,
    channels: Sequence[int] = (64, 128),
    width: int = 256,
    hidden: int = 64,
    activation: Activation = nn.relu,
    output_activation: Activation | None = None,
    form: Form = "auto",
) -> SplitModel:
    """CAFE's vertical network: per party conv 64, conv 128, dense 256, 64, C; outputs into one joint softmax layer.

    The papers show the network only in a figure, so the sizes are those of the authors' code (CAFE, NeurIPS 2021,
    section 4; tables there name d2 = 1024 = 4 x 256). The paper does not print the activation behind each party's last
    dense layer. By default there is none here. The authors' code uses ReLU, which `output_activation=nn.relu` gives.
    This ReLU sets the gradient of a whole slice to zero whenever all C outputs of a party are negative.

    Args:
        slice_shape: (h, w, c) of one party's image tile.
        parties: P.
        num_classes: C >= 2.
        channels: channels of the conv blocks.
        width: d2 of each party's first dense layer.
        hidden: width of the second dense layer.
        activation: non-linearity between layers.
        output_activation: non-linearity behind each party's last dense layer; None for none.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: if `slice_shape` is no (h, w, c) or a size is out of range.
    """
    _image_slice(slice_shape)
    rest = JointSoftmax((hidden, num_classes), num_classes, activation, output_activation)
    return split_model(
        ConvExtractor(tuple(channels), activation, form),
        rest,
        parties=parties,
        slice_shape=tuple(slice_shape),
        num_classes=num_classes,
        width=width,
    )


def cafe_horizontal(
    image_shape: tuple[int, ...],
    *,
    num_classes: int = 10,
    channels: Sequence[int] = (64, 128),
    width: int = 512,
    hidden: int = 256,
    activation: Activation = nn.relu,
    form: Form = "auto",
) -> SplitModel:
    """The horizontal network of CAFE's ICLR 2021 submission: conv 64, conv 128, dense 512, 256, softmax layer.

    Args:
        image_shape: (H, W, C) of a whole image; every worker holds the same model.
        num_classes: C >= 2.
        channels: channels of the conv blocks.
        width: d2 of the first dense layer.
        hidden: width of the second dense layer.
        activation: non-linearity between layers.
        form: how convolutions are written.

    Raises:
        ValueError: if `image_shape` is no (H, W, C) or a size is out of range.
    """
    _image_slice(image_shape)
    return split_model(
        ConvExtractor(tuple(channels), activation, form),
        OneTower((hidden, num_classes), activation),
        parties=1,
        slice_shape=tuple(image_shape),
        num_classes=num_classes,
        width=width,
    )


def all_dense(
    slice_shape: tuple[int, ...],
    *,
    parties: int = 1,
    num_classes: int = 10,
    width: int = 256,
    hidden: int = 64,
    activation: Activation = nn.relu,
) -> SplitModel:
    """Dense layers only, one tower per party: H is the data, so CAFE's Steps I and II finish the attack.

    Args:
        slice_shape: shape of one party's part of a sample.
        parties: P >= 1.
        num_classes: C >= 2.
        width: d2 of the first dense layer.
        hidden: width of the second dense layer.
        activation: non-linearity between layers.

    Raises:
        ValueError: on a size out of range.
    """
    return split_model(
        FlattenExtractor(),
        JointSoftmax((hidden, num_classes), num_classes, activation),
        parties=parties,
        slice_shape=tuple(slice_shape),
        num_classes=num_classes,
        width=width,
        features_are_data=True,
    )


def logistic(slice_shape: tuple[int, ...], *, parties: int = 1, num_classes: int = 10) -> SplitModel:
    """Multinomial logistic regression on vertically split data: the parties' logits add up. H is the data.

    Args:
        slice_shape: shape of one party's part of a sample.
        parties: P >= 1.
        num_classes: C >= 2.

    Raises:
        ValueError: on a size out of range.
    """
    return split_model(
        FlattenExtractor(),
        SumOfParties(),
        parties=parties,
        slice_shape=tuple(slice_shape),
        num_classes=num_classes,
        width=num_classes,
        features_are_data=True,
    )


def _image_slice(shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ValueError(f"slice_shape must be (height, width, channels), got {tuple(shape)}")
    _validate.count(height=shape[0], width=shape[1], channels=shape[2])
