"""First guesses for Step III: a linear decoder from features to slices, fitted on synthetic images only.

No private data are needed. The attacker draws images with the coarse statistics of natural ones (1/f noise with
correlated colours, and dead leaves: overlapping random shapes), passes them through its own copy of the extractor,
and regresses x on h with a ridge penalty. The guess has a PSNR of about 25 dB on photographs; `invert_features` does
the rest.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.attacks._cafe.feature_inversion import FeatureFn


def synthetic_slices(seed: int, count: int, slice_shape: tuple[int, ...]) -> np.ndarray:
    """Random slices (count, *slice_shape) in [0, 1]: images for (h, w, c), uniform noise for other shapes.

    Half of the images are 1/f^a noise (a from 0.8 to 1.8, random mean, contrast and colour correlation), half are
    dead leaves with a 1/f texture.
    """
    _validate.positive(count=count)
    rng = np.random.default_rng(seed)
    if len(slice_shape) != 3:
        return rng.random((count, *slice_shape), np.float32)
    noise, leaves = _noise_images(rng, count // 2, slice_shape), _dead_leaves(rng, count - count // 2, slice_shape)
    return np.clip(np.concatenate([noise, leaves]), 0, 1).astype(np.float32)


def ridge_decoder(
    features: FeatureFn, extractor_params: PyTree, slices: jax.Array, *, ridge: float = 2e-2, batch_size: int = 50
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Fit x = (h - mean_h) W + mean_x on `slices` (S, *slice), S a multiple of `batch_size`.

    Args:
        features: one party's extractor, `(extractor_params, x, None) -> (B, d1)`.
        extractor_params: parameters of the party's extractor.
        slices: (S, *slice), the slices to fit on.
        ridge: weight of the penalty, in units of the mean squared feature, > 0.
        batch_size: slices passed through the extractor at a time.

    Returns:
        (W (d1, prod(slice)), mean_h (d1,), mean_x (prod(slice),)).
    """
    batches = slices.reshape(-1, batch_size, *slices.shape[1:])
    h = jax.lax.map(lambda x: features(extractor_params, x, None), batches).reshape(len(slices), -1)
    x = slices.reshape(len(slices), -1)
    mean_h, mean_x = h.mean(axis=0), x.mean(axis=0)
    h = h - mean_h
    gram = h.T @ h
    gram = gram + ridge * jnp.trace(gram) / len(gram) * jnp.eye(len(gram))
    weights = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(gram), h.T @ (x - mean_x))
    return weights, mean_h, mean_x


def decode(
    decoder: tuple[jax.Array, jax.Array, jax.Array],
    h: jax.Array,
    slice_shape: tuple[int, ...],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> jax.Array:
    """First guesses (B, *slice_shape) within `bounds` from features h (B, d1)."""
    weights, mean_h, mean_x = decoder
    return jnp.clip((h - mean_h) @ weights + mean_x, *bounds).reshape(-1, *slice_shape)


def _pink(rng: np.random.Generator, count: int, shape: tuple[int, ...], exponent: float) -> np.ndarray:
    height, width, channels = shape
    # The noise is drawn at twice the size and cropped, so that the images do not wrap around.
    frequency = np.hypot(np.fft.fftfreq(2 * height)[:, None], np.fft.rfftfreq(2 * width)[None])
    frequency[0, 0] = 1 / (2 * max(height, width))
    white = rng.standard_normal((count, channels, 2 * height, 2 * width), dtype=np.float32)
    image = np.fft.irfft2(np.fft.rfft2(white) * frequency**-exponent, s=white.shape[2:])
    return image[:, :, :height, :width].transpose(0, 2, 3, 1)


def _correlate_colours(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    if image.shape[-1] != 3:
        return image
    # The axes are luminance and two colour contrasts; photographs vary mostly in luminance.
    axes = np.array([[1, 1, 1], [1, 0, -1], [0.5, -1, 0.5]]) / np.sqrt(3)
    count = len(image)
    spread = np.stack([np.ones(count), rng.uniform(0.05, 0.5, count), rng.uniform(0.03, 0.25, count)], axis=1)
    return (image * spread[:, None, None]) @ axes


def _noise_images(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    parts = []
    for part in np.array_split(np.arange(count), 4):
        n = len(part)
        image = _correlate_colours(rng, _pink(rng, n, shape, rng.uniform(0.8, 1.8)))
        image = image - image.mean((1, 2), keepdims=True)
        image = image / (image.std((1, 2, 3), keepdims=True) + 1e-6)
        mean = rng.uniform(0.1, 0.9, (n, 1, 1, 1)) + rng.normal(0, 0.08, (n, 1, 1, shape[2]))
        parts.append(mean + image * rng.uniform(0.03, 0.3, (n, 1, 1, 1)))
    return np.concatenate(parts)


def _dead_leaves(rng: np.random.Generator, count: int, shape: tuple[int, ...], leaves: int = 14) -> np.ndarray:
    height, width, channels = shape
    rows, columns = np.mgrid[:height, :width].astype(np.float32)

    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (count, 1, 1)).astype(np.float32)

    image = rng.random((count, 1, 1, 1)) + rng.normal(0, 0.1, (count, 1, 1, channels))
    image = np.broadcast_to(image, (count, *shape)).astype(np.float32)
    for _ in range(leaves):
        dy, dx = rows - uniform(-3, height + 3), columns - uniform(-3, width + 3)
        radius = np.minimum(1.2 / uniform(1e-6, 1) ** 0.8, max(height, width))
        angle, aspect = uniform(0, np.pi), uniform(0.3, 1)
        u, v = dy * np.cos(angle) + dx * np.sin(angle), (dx * np.cos(angle) - dy * np.sin(angle)) / aspect
        distance = np.where(uniform(0, 1) < 0.5, np.hypot(u, v), np.maximum(abs(u), abs(v)))
        cover = np.clip((radius - distance) / uniform(0.5, 1.5) + 0.5, 0, 1)[..., None]
        colour = rng.uniform(-0.1, 1.1, (count, 1, 1, 1)) + rng.normal(0, 0.12, (count, 1, 1, channels))
        image = image + cover * (np.clip(colour, 0, 1).astype(np.float32) - image)
    texture = _correlate_colours(rng, _pink(rng, count, shape, 1.0))
    return image + texture / (texture.std((1, 2, 3), keepdims=True) + 1e-6) * rng.uniform(0, 0.1, (count, 1, 1, 1))
