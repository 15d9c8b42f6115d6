"""A small convolutional auto-encoder of public images: the prior of generative gradient inversion (GGL, ROG).

The training images are additional knowledge of the attacker. They are no part of a round, so no
`jaxleak.threats.Threat` can grant them. Whoever runs the attack passes them in here, says where they come from, and is
responsible that none of them is the victim's. Nothing in this module sees a payload, a label, or private data.
"""

import math
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak.models import conv2d

#: Smallest and largest side of an image, in pixels, for which the architecture is made.
SMALLEST, LARGEST = 4, 224
#: Largest side of the feature map to which the decoder expands a code, before it doubles the sides.
_COARSE = 4


class _Conv(nn.Module):
    features: int
    stride: int = 1
    zero: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        start = nn.initializers.zeros if self.zero else nn.initializers.he_normal()
        kernel = self.param("kernel", start, (3, 3, x.shape[-1], self.features))
        return conv2d(x, kernel, stride=self.stride) + self.param("bias", nn.initializers.zeros, (self.features,))


class _Encoder(nn.Module):
    """Map images (B, H, W, C) to mean and log-variance of their codes, each (B, latent_size)."""

    latent_size: int
    channels: int
    stages: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for stage in range(self.stages):
            x = nn.gelu(_Conv(self.channels * 2 ** min(stage, 1), stride=2)(x))
        mean, log_variance = jnp.split(nn.Dense(2 * self.latent_size)(x.reshape(len(x), -1)), 2, axis=1)
        return mean, jnp.clip(log_variance, -10, 10)


class _Decoder(nn.Module):
    """Map codes (B, latent_size) to images (B, H, W, C) in (0, 1); smooth, so that second derivatives are useful."""

    image_shape: tuple[int, ...]
    channels: int
    stages: int

    @nn.compact
    def __call__(self, z: jax.Array) -> jax.Array:
        height, width, depth = self.image_shape
        rows, columns = (math.ceil(n / 2**self.stages) for n in (height, width))
        x = nn.gelu(nn.Dense(rows * columns * 2 * self.channels)(z)).reshape(len(z), rows, columns, -1)
        for _ in range(self.stages):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = nn.gelu(_Conv(self.channels)(x))
        return nn.sigmoid(_Conv(depth)(x[:, :height, :width]))


class _Enhancer(nn.Module):
    """Add to images what the auto-encoder tends to lose; the network starts as the identity."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        change = nn.gelu(_Conv(self.channels)(nn.gelu(_Conv(self.channels)(x))))
        return x + _Conv(x.shape[-1], zero=True)(change)


@dataclass(frozen=True, eq=False)
class PublicGenerator:
    """A trained generator. Its codes are standardised: over the public images each has mean 0 and variance 1.

    A generator equals nothing but itself, so an attack that was compiled for one generator is never used for another.
    """

    params: PyTree = field(repr=False)  # "decoder", "enhancer"
    mean: jax.Array = field(repr=False)  # (latent_size,) mean of the decoder's codes
    scale: jax.Array = field(repr=False)  # (latent_size,) standard deviation of these codes
    image_shape: tuple[int, ...]  # (H, W, C)
    channels: int
    losses: np.ndarray = field(repr=False)  # (epochs, 2) squared error per pixel: decoded, enhanced

    @property
    def latent_size(self) -> int:
        """Numbers per code."""
        return self.mean.shape[0]

    def __call__(self, z: jax.Array) -> jax.Array:
        """Images (B, H, W, C) in [0, 1] for standardised codes (B, latent_size)."""
        net = _Decoder(self.image_shape, self.channels, _stages(self.image_shape))
        return _apply(net, self.params["decoder"], self.mean + self.scale * z)

    def enhance(self, x: jax.Array) -> jax.Array:
        """Sharpen the generator's images; input and output are (B, H, W, C) in [0, 1]."""
        return jnp.clip(_apply(_Enhancer(self.channels), self.params["enhancer"], x), 0, 1)


def train_generator(
    key: jax.Array,
    images: ArrayLike,
    latent_size: int,
    *,
    epochs: int = 40,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    kl: float = 0.0,
    noise: float = 0.3,
    channels: int = 16,
) -> PublicGenerator:
    """Train an auto-encoder, then the network that enhances its output, on public images. Each is one compiled scan.

    Args:
        key: random key of weights, order and noise; equal keys give equal generators.
        images: (N, H, W, C) in [0, 1], H and W from 4 to 224; none of them the victim's.
        latent_size: numbers per code, > 0.
        epochs: passes of each network over the images, > 0.
        batch_size: images per batch, > 0; at most N are taken.
        learning_rate: where Adam's cosine decay starts, > 0.
        kl: weight of the codes' divergence from a standard normal relative to the squared error, both summed per image,
            >= 0. With 0 the network is a plain auto-encoder (ROG), else a variational one (Kingma & Welling 2014),
            whose codes cover the space that a search explores (GGL).
        noise: standard deviation of the Gaussian noise on the codes on which the enhancer learns, in units of the
            codes' spread, >= 0: a code that was found from a gradient is not the one that the encoder gives.
        channels: width of the layers, > 0.

    Raises:
        ValueError: on arguments out of range, or images of another shape or range.
        FloatingPointError: if training diverged.
    """
    _validate.count(latent_size=latent_size, epochs=epochs, batch_size=batch_size, channels=channels)
    _validate.positive(learning_rate=learning_rate)
    _validate.non_negative(kl=kl, noise=noise)
    x = np.asarray(images, np.float32)
    if x.ndim != 4 or len(x) < 2:
        raise ValueError(f"images must be (N, H, W, C) with N >= 2, got shape {x.shape}")
    _validate.in_range(SMALLEST, LARGEST, height=x.shape[1], width=x.shape[2])
    if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise ValueError("images must be in [0, 1]")
    size = min(batch_size, len(x))
    params, mean, scale, losses = _train(
        key, jnp.asarray(x), latent_size, epochs, size, learning_rate, kl, noise, channels
    )
    if not np.isfinite(losses).all():
        epoch = int(np.argmin(np.isfinite(losses).all(axis=1)))
        raise FloatingPointError(f"the generator's loss is not finite from epoch {epoch} on: lower learning_rate")
    return PublicGenerator(params, mean, scale, x.shape[1:], channels, np.asarray(losses))


@jitted_for_few(2, 3, 4, 5, 6, 7, 8)
def _train(
    key: jax.Array,
    images: jax.Array,
    latent_size: int,
    epochs: int,
    size: int,
    learning_rate: float,
    kl: float,
    noise: float,
    channels: int,
) -> tuple[PyTree, jax.Array, jax.Array, jax.Array]:
    image_shape = images.shape[1:]
    stages = _stages(image_shape)
    encoder, decoder = _Encoder(latent_size, channels, stages), _Decoder(image_shape, channels, stages)
    enhancer = _Enhancer(channels)
    keys = jax.random.split(key, 5)

    def reconstruction(params: PyTree, key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_variance = _apply(encoder, params["encoder"], x)
        z, divergence = mean, jnp.zeros(())
        if kl:
            z = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
            divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - log_variance - 1, axis=1).mean()
        errors = (_apply(decoder, params["decoder"], z) - x) ** 2
        return errors.sum(axis=(1, 2, 3)).mean() + kl * divergence, errors.mean()

    start = {
        "encoder": encoder.init(keys[0], images[:1])["params"],
        "decoder": decoder.init(keys[1], jnp.zeros((1, latent_size)))["params"],
    }
    params, losses = _descend(reconstruction, start, images, keys[2], epochs, size, learning_rate)

    batches = images[: len(images) // size * size].reshape(-1, size, *image_shape)
    means, log_variances = jax.lax.map(lambda x: _apply(encoder, params["encoder"], x), batches)
    variance = means.var(axis=(0, 1)) + (jnp.exp(log_variances).mean(axis=(0, 1)) if kl else 0.0)
    # An entry of the codes that never varies means nothing to the decoder, and its spread must not be a divisor.
    mean, scale = means.mean(axis=(0, 1)), jnp.sqrt(jnp.maximum(variance, 1e-6))

    def enhancement(enhancing: PyTree, key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = _apply(encoder, params["encoder"], x)[0]
        z = z + noise * scale * jax.random.normal(key, z.shape)
        errors = (_apply(enhancer, enhancing, _apply(decoder, params["decoder"], z)) - x) ** 2
        return errors.sum(axis=(1, 2, 3)).mean(), errors.mean()

    start = enhancer.init(keys[3], images[:1])["params"]
    enhancing, enhanced_losses = _descend(enhancement, start, images, keys[4], epochs, size, learning_rate)
    trained = {"decoder": params["decoder"], "enhancer": enhancing}
    return trained, mean, scale, jnp.stack([losses, enhanced_losses], axis=1)


def _descend(
    loss_of: object, params: PyTree, images: jax.Array, key: jax.Array, epochs: int, size: int, learning_rate: float
) -> tuple[PyTree, jax.Array]:
    steps = len(images) // size
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, epochs * steps))
    gradient = jax.grad(loss_of, has_aux=True)  # type: ignore[arg-type]

    def update(carry: tuple[PyTree, PyTree], seen: tuple[jax.Array, jax.Array]) -> tuple[tuple[PyTree, PyTree], PyTree]:
        params, opt_state = carry
        rows, key = seen
        direction, error = gradient(params, key, images[rows])
        updates, opt_state = optimizer.update(direction, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), error

    def epoch(carry: tuple[PyTree, PyTree], key: jax.Array) -> tuple[tuple[PyTree, PyTree], jax.Array]:
        order_key, noise_key = jax.random.split(key)
        order = jax.random.permutation(order_key, len(images))[: steps * size].reshape(steps, size)
        carry, errors = jax.lax.scan(update, carry, (order, jax.random.split(noise_key, steps)))
        return carry, errors.mean()

    (params, _), errors = jax.lax.scan(epoch, (params, optimizer.init(params)), jax.random.split(key, epochs))
    return params, errors


def _stages(image_shape: tuple[int, ...]) -> int:
    return max(1, math.ceil(math.log2(max(image_shape[:2]) / _COARSE)))


def _apply(net: nn.Module, params: PyTree, x: jax.Array) -> jax.Array:
    out: jax.Array = net.apply({"params": params}, x)  # type: ignore[assignment]
    return out
