"""The synthetic images for an attacker's first guesses, computed again by slow formulas from the same numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak.attacks._cafe import decoder

COLOUR, GREY = (5, 7, 3), (6, 4, 1)


def _pink(rng, count, shape, exponent):
    """Pink noise: white noise of twice the size, weighted by f^-exponent at each frequency f, cropped to a corner."""
    height, width, channels = shape
    white = rng.standard_normal((count, channels, 2 * height, 2 * width), dtype=np.float32)
    weight = np.zeros((2 * height, 2 * width))
    for k in range(2 * height):
        for j in range(2 * width):
            cycles = min(k, 2 * height - k) / (2 * height), min(j, 2 * width - j) / (2 * width)
            weight[k, j] = max(np.hypot(*cycles), 1 / (2 * max(height, width)) if k == j == 0 else 0) ** -exponent
    image = np.fft.ifft2(np.fft.fft2(white) * weight).real
    return np.moveaxis(image[:, :, :height, :width], 1, -1)


def _coloured(rng, image):
    if image.shape[-1] != 3:
        return image
    count = len(image)
    first, second = rng.uniform(0.05, 0.5, count), rng.uniform(0.03, 0.25, count)
    light, red_blue, green = (image[..., c] * s[:, None, None] for c, s in enumerate((np.ones(count), first, second)))
    return np.stack([light + red_blue + green / 2, light - green, light - red_blue + green / 2], axis=-1) / np.sqrt(3)


def _noise(rng, count, shape):
    found = []
    for n in (len(part) for part in np.array_split(np.arange(count), 4)):
        for image, own in zip(*_noise_of_one_exponent(rng, n, shape), strict=True):
            mean, offsets, contrast = own
            centred = image - image.mean(axis=(0, 1))
            found.append(mean + offsets + centred / (centred.std() + 1e-6) * contrast)
    return np.array(found)


def _noise_of_one_exponent(rng, n, shape):
    images = _coloured(rng, _pink(rng, n, shape, rng.uniform(0.8, 1.8)))
    means, offsets = rng.uniform(0.1, 0.9, n), rng.normal(0, 0.08, (n, shape[2]))
    return images, zip(means, offsets, rng.uniform(0.03, 0.3, n), strict=True)


def _leaves(rng, count, shape):
    """Images of fourteen shapes on a background, pixel by pixel, with a texture over everything."""
    height, width, channels = shape

    def draw(low, high):
        return rng.uniform(low, high, count).astype(np.float32)

    ground = rng.random((count, 1)) + rng.normal(0, 0.1, (count, channels))
    images = np.tile(ground[:, None, None], (1, height, width, 1)).astype(np.float32)
    for _ in range(14):
        y, x, size = draw(-3, height + 3), draw(-3, width + 3), draw(1e-6, 1)
        angle, aspect, round_below, edge = draw(0, np.pi), draw(0.3, 1), draw(0, 1), draw(0.5, 1.5)
        colours = (rng.uniform(-0.1, 1.1, (count, 1)) + rng.normal(0, 0.12, (count, channels))).clip(0, 1)
        for n, row, column in np.ndindex(count, height, width):
            radius = min(1.2 * size[n] ** -0.8, max(height, width))
            dy, dx, cos, sin = row - y[n], column - x[n], np.cos(angle[n]), np.sin(angle[n])
            along, across = dy * cos + dx * sin, (dx * cos - dy * sin) / aspect[n]
            away = np.hypot(along, across) if round_below[n] < 0.5 else max(abs(along), abs(across))
            cover = np.clip((radius - away) / edge[n] + 0.5, 0, 1)
            images[n, row, column] += cover * (colours[n] - images[n, row, column])
    texture = _coloured(rng, _pink(rng, count, shape, 1.0))
    sizes, strengths = texture.std(axis=(1, 2, 3)) + 1e-6, rng.uniform(0, 0.1, count)
    return images + texture * (strengths / sizes)[:, None, None, None]


@pytest.mark.parametrize("shape", [COLOUR, GREY])
@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        (lambda rng, shape: decoder._pink(rng, 4, shape, 1.3), lambda rng, shape: _pink(rng, 4, shape, 1.3)),
        (lambda rng, shape: decoder._noise_images(rng, 9, shape), lambda rng, shape: _noise(rng, 9, shape)),
        (lambda rng, shape: decoder._dead_leaves(rng, 6, shape), lambda rng, shape: _leaves(rng, 6, shape)),
    ],
    ids=["pink", "noise", "leaves"],
)
def test_images_are_those_of_slow_formulas(shape, fast, slow):
    found, expected = fast(np.random.default_rng(0), shape), slow(np.random.default_rng(0), shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert expected.std() > 0.05


def test_the_contrasts_of_colours_are_weaker_than_their_luminance():
    image = np.random.default_rng(1).standard_normal((50, 2, 2, 3))
    found = decoder._correlate_colours(np.random.default_rng(0), image)
    np.testing.assert_allclose(found, _coloured(np.random.default_rng(0), image), atol=1e-12)
    np.testing.assert_array_equal(decoder._correlate_colours(np.random.default_rng(0), image[..., :1]), image[..., :1])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_half_of_the_slices_are_noise_and_half_are_leaves(count):
    rng = np.random.default_rng(3)
    expected = np.concatenate([
        decoder._noise_images(rng, count // 2, GREY), decoder._dead_leaves(rng, count - count // 2, GREY)
    ])  # fmt: skip
    np.testing.assert_array_equal(decoder.synthetic_slices(3, count, GREY), expected.clip(0, 1).astype(np.float32))
    table = decoder.synthetic_slices(3, count, (4,))
    np.testing.assert_array_equal(table, np.random.default_rng(3).random((count, 4), np.float32))


def test_features_are_decoded_by_a_linear_map_around_their_means():
    rng = np.random.default_rng(0)
    weights, mean_h, mean_x, h = rng.standard_normal((5, 6)), rng.random(5), rng.random(6), rng.random((3, 5))
    expected = [(mean_x + sum((h[n, i] - mean_h[i]) * weights[i] for i in range(5))).clip(0, 1) for n in range(3)]
    found = decoder.decode(tuple(map(jnp.asarray, (weights, mean_h, mean_x))), jnp.asarray(h), (2, 3))
    np.testing.assert_allclose(found, np.reshape(expected, (3, 2, 3)), atol=1e-6)
