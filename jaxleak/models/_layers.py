"""The layers of the built-in networks: Flax's own, with PyTorch's padding, initialisers and batch statistics."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak.models._activations import ACTIVATIONS

Init = Literal["default", "he", "glorot", "wide_uniform"]
INITS: tuple[Init, ...] = ("default", "he", "glorot", "wide_uniform")

Initializer = Callable[..., jax.Array]


def _uniform(limit: float) -> Initializer:
    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return draw


def initializers(name: Init, fan_in: int) -> tuple[Initializer, Initializer]:
    """Initialisers of a kernel and of its bias.

    Args:
        name: "default": uniform within 1 / sqrt(fan_in) for kernel and bias, which is PyTorch's default (its
            kaiming_uniform with a = sqrt(5)); "he": normal with variance 2 / fan_in; "glorot": uniform; the biases of
            these two are zero; "wide_uniform": uniform within 1/2 for both, as in the code of Deep Leakage from
            Gradients.
        fan_in: number of inputs of one output.

    Raises:
        ValueError: on an unknown name.
    """
    _validate.one_of(INITS, init=name)
    if name == "he":
        return nn.initializers.he_normal(), nn.initializers.zeros
    if name == "glorot":
        return nn.initializers.glorot_uniform(), nn.initializers.zeros
    both = _uniform(0.5 if name == "wide_uniform" else 1 / math.sqrt(fan_in))
    return both, both


@dataclasses.dataclass(frozen=True)
class Style:
    """What all layers of a network have in common.

    Attributes:
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: how all kernels and biases are drawn, see `initializers`.

    Raises:
        ValueError: on an unknown name.
    """

    activation: str = "relu"
    init: Init = "default"

    def __post_init__(self) -> None:
        """Refuse unknown names while the network is being described, not when it first runs."""
        _validate.one_of(tuple(ACTIVATIONS), activation=self.activation)
        _validate.one_of(INITS, init=self.init)

    def act(self, z: jax.Array) -> jax.Array:
        """The network's non-linearity, elementwise."""
        return ACTIVATIONS[self.activation](z)


def conv(
    x: jax.Array,
    channels: int,
    window: int,
    style: Style,
    stride: int = 1,
    *,
    groups: int = 1,
    bias: bool = False,
    name: str,
) -> jax.Array:
    """A convolution as PyTorch pads it, `window // 2` zeros on every side: (B, H, W, C_in) to (B, H', W', channels)."""
    kernel_init, bias_init = initializers(style.init, window * window * (x.shape[-1] // groups))
    layer = nn.Conv(
        channels,
        (window, window),
        (stride, stride),
        window // 2,
        feature_group_count=groups,
        use_bias=bias,
        kernel_init=kernel_init,
        bias_init=bias_init,
        name=name,
    )
    return layer(x)


def dense(x: jax.Array, width: int, style: Style, *, name: str) -> jax.Array:
    """A dense layer with the bias that belongs to the kernel's initialiser: (..., d) to (..., width)."""
    kernel_init, bias_init = initializers(style.init, x.shape[-1])
    return nn.Dense(width, kernel_init=kernel_init, bias_init=bias_init, name=name)(x)


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last, with PyTorch's constants.

    As in PyTorch, a batch is normalised by its biased variance, while the running variance is updated with the unbiased
    one; Flax's own layer does not do so. The mean and the biased variance of the batch are sown into the collection
    "statistics".

    Attributes:
        momentum: weight of the new batch in the running statistics, in [0, 1].
        epsilon: number that is added to the variance, > 0, in the unit of the variance.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Normalise by the batch's statistics and update the running ones (`train`), or by the running ones.

        Args:
            x: (..., C), in any unit.
            train: whether the batch's own statistics are taken.

        Returns:
            The shape of x.
        """
        channels = x.shape[-1]
        axes = tuple(range(x.ndim - 1))
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        mean = x.mean(axis=axes)
        # x.var is avoided: its derivatives write out constants of the size of x.
        var = ((x - mean) ** 2).mean(axis=axes)
        self.sow("statistics", "mean", mean, reduce_fn=_latest, init_fn=_nothing)
        self.sow("statistics", "var", var, reduce_fn=_latest, init_fn=_nothing)
        if not train:
            mean, var = running_mean.value, running_var.value
        elif not self.is_initializing():
            count = x.size // channels
            unbiased = var * (count / max(count - 1, 1))
            running_mean.value += self.momentum * (mean - running_mean.value)
            running_var.value += self.momentum * (unbiased - running_var.value)
        return (x - mean) * (jax.lax.rsqrt(var + self.epsilon) * scale) + bias


def _latest(old: Any, new: jax.Array) -> jax.Array:
    # Plain arrays instead of Flax's tuples, so that "statistics" has the structure of "batch_stats".
    del old
    return new


def _nothing() -> None:
    return None
