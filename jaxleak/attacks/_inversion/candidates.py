"""What a gradient inversion optimises: pixels, the weights of an untrained generator, or a generator's latents."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.models import conv2d

Start = Literal["uniform", "normal", "grey", "nearly_grey"]
Box = tuple[float, float] | None


class Candidate(NamedTuple):
    """A parametrisation of B images.

    init: `(key, (B, H, W, channels)) -> (variables, constants)`; only variables are optimised.
    decode: `(variables, constants) -> x (B, H, W, channels)`.
    project: `variables -> variables`, applied after every update.
    prior: `variables -> ()`, larger for less likely variables; None if the candidate has no prior of its own.
    """

    init: Callable[[jax.Array, tuple[int, ...]], tuple[PyTree, PyTree]]
    decode: Callable[[PyTree, PyTree], jax.Array]
    project: Callable[[PyTree], PyTree]
    prior: Callable[[PyTree], jax.Array] | None = None
    of_pixels: bool = False  # whether the variables are the images


def pixels(start: Start = "uniform", box: Box = (0.0, 1.0)) -> Candidate:
    """The images themselves.

    Args:
        start: "uniform" in [0, 1], "normal" (standard, as DLG), "grey" (0.5 everywhere), or "nearly_grey" (0.5 plus a
            hundredth of a standard normal variable).
        box: range (low, high) into which pixels are clipped after every update; None leaves them free.

    Raises:
        ValueError: on an unknown start or an empty box.
    """
    _validate.one_of(get_args(Start), start=start)
    if box is not None and not box[0] < box[1]:
        raise ValueError(f"box must be (low, high) with low < high, got {box}")

    def init(key: jax.Array, shape: tuple[int, ...]) -> tuple[PyTree, PyTree]:
        if start == "grey":
            return jnp.full(shape, 0.5), ()
        draw = jax.random.uniform(key, shape) if start == "uniform" else jax.random.normal(key, shape)
        if start == "nearly_grey":
            draw = 0.5 + 0.01 * draw
        return (draw if box is None else jnp.clip(draw, *box)), ()

    return Candidate(init, lambda x, _: x, lambda x: x if box is None else jnp.clip(x, *box), of_pixels=True)


class ImageGenerator(nn.Module):
    """A network from noise maps to images in [0, 1]: upsampling, 3x3 convolutions, leaky ReLU and a final sigmoid.

    Every stage doubles the side; the last feature map is cropped to the image. (B, s, s, z) -> (B, H, W, channels).
    """

    image_shape: tuple[int, ...]
    channels: int = 64
    stages: int = 3

    @nn.compact
    def __call__(self, noise: jax.Array) -> jax.Array:
        """Images of a batch of noise maps."""
        x = self._conv(noise, self.channels, "in")
        for stage in range(self.stages):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            # No bias before a normalisation: it would have no effect, and its gradient would be rounding noise.
            x = nn.leaky_relu(_channel_norm(self._conv(x, self.channels, f"up_{stage}", bias=False)), 0.2)
            x = nn.leaky_relu(_channel_norm(self._conv(x, self.channels, f"mix_{stage}", bias=False)), 0.2)
        height, width, depth = self.image_shape
        return nn.sigmoid(self._conv(x[:, :height, :width], depth, "out"))

    def _conv(self, x: jax.Array, channels: int, name: str, *, bias: bool = True) -> jax.Array:
        shape = (3, 3, x.shape[-1], channels)
        kernel = self.param(f"{name}_kernel", nn.initializers.he_normal(), shape)
        z = conv2d(x, kernel)
        return z + self.param(f"{name}_bias", nn.initializers.zeros, (channels,)) if bias else z


def _channel_norm(x: jax.Array) -> jax.Array:
    # Normalise per image and channel, so that the output for one image does not depend on the others.
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(axis=(1, 2), keepdims=True) + 1e-5)


def generator_weights(*, channels: int = 64, noise_channels: int = 32, stages: int = 3) -> Candidate:
    """The weights of one untrained convolutional generator with a fixed noise input per image (a deep image prior).

    This is how FedLeak's published code parametrises its images. Nothing is trained beforehand, so no public data
    are needed; the architecture alone prefers natural images to noise.

    Args:
        channels: width of every stage, > 0.
        noise_channels: channels of the fixed input, > 0.
        stages: number of doublings, > 0.

    Raises:
        ValueError: on sizes out of range.
    """
    _validate.count(channels=channels, noise_channels=noise_channels, stages=stages)

    def module(shape: tuple[int, ...]) -> tuple[ImageGenerator, tuple[int, ...]]:
        side = [int(np.ceil(n / 2**stages)) for n in shape[1:3]]
        return ImageGenerator(tuple(shape[1:]), channels, stages), (shape[0], *side, noise_channels)

    def init(key: jax.Array, shape: tuple[int, ...]) -> tuple[PyTree, PyTree]:
        net, noise_shape = module(shape)
        weight_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, noise_shape)
        # This array only carries the image shape: constants must be arrays, and decode needs the shape to crop. Its
        # size is not zero, because `jax.lax.map` divides by the size of what it batches.
        carrier = jnp.zeros(shape[1:])
        return net.init(weight_key, noise)["params"], {"noise": noise, "image": carrier}

    def decode(weights: PyTree, constants: PyTree) -> jax.Array:
        noise, image = constants["noise"], constants["image"]
        net = ImageGenerator(image.shape, channels, stages)
        out: jax.Array = net.apply({"params": weights}, noise)  # type: ignore[assignment]
        return out

    return Candidate(init, decode, lambda weights: weights)


def generator_latents(generate: Callable[[jax.Array], jax.Array], latent_size: int, *, bound: float = 3.0) -> Candidate:
    """The latents of a generator that was trained on public data, which the threat model must grant.

    The candidate's prior is GGL's regularisation. For each image it takes the mean m and variance v of the latent's
    entries, and computes the divergence of that normal distribution from the standard one, (m^2 + v - log v - 1) / 2.
    The result is averaged over images and is >= 0.

    Args:
        generate: function from latents (B, latent_size) to images (B, H, W, channels) in [0, 1], with its trained
            weights inside, for example a `PublicGenerator`.
        latent_size: > 0.
        bound: latents are kept in [-bound, bound], > 0; they start standard normal.

    Raises:
        ValueError: on sizes out of range.
    """
    _validate.count(latent_size=latent_size)
    _validate.positive(bound=bound)

    def init(key: jax.Array, shape: tuple[int, ...]) -> tuple[PyTree, PyTree]:
        return jnp.clip(jax.random.normal(key, (shape[0], latent_size)), -bound, bound), ()

    def prior(z: jax.Array) -> jax.Array:
        variance = z.var(axis=1)
        return 0.5 * jnp.mean(z.mean(axis=1) ** 2 + variance - jnp.log(variance + 1e-10) - 1)

    return Candidate(init, lambda z, _: generate(z), lambda z: jnp.clip(z, -bound, bound), prior)
