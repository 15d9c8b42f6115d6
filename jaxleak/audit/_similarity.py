"""How alike two images are: by SSIM, or by their numbers if they are too small for SSIM, such as rows of a table."""

import numpy as np

from jaxleak import metrics
from jaxleak.metrics._images import has_ssim


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How alike the two images in every place are.

    Args:
        first: (N, H, W, C) in [0, 1].
        second: the same shape and unit.

    Returns:
        (N,) float64, 1 for identical images: SSIM in [-1, 1], or for images with a side below 3 pixels, one minus the
        largest difference of two of their numbers, in [0, 1]. For rows of a table, 0.99 then says that no column
        differs by more than a hundredth of its range. NaN where such a small image is not finite.

    Raises:
        ValueError: if the shapes differ or are not (N, H, W, C).
    """
    if has_ssim(np.shape(first)[1:]):
        return metrics.ssim(first, second)
    if np.shape(first) != np.shape(second) or np.ndim(first) != 4:
        raise ValueError(f"images must be (N, H, W, C) of equal shapes, got {np.shape(first)} and {np.shape(second)}")
    difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    return np.asarray(1 - difference.max(axis=(1, 2, 3)))


def closest(images: np.ndarray, image: np.ndarray, *, any_tones: bool = False) -> float:
    """The similarity between an image (H, W, C) and the image among `images` (N, H, W, C) that it resembles most.

    With `any_tones` the image first gets the brightness and the contrast of each of the images, in every channel.
    """
    copies = _in_tones_of(images, image) if any_tones else np.broadcast_to(image, images.shape)
    return float(similarity(images, copies).max())


def _in_tones_of(images: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Copies (N, H, W, C) of an image (H, W, C), each with the tones that are nearest to one of the images.

    Every channel is scaled by a number >= 0 and shifted, by least squares, since other tones are no negative.
    """
    centred = image - image.mean(axis=(0, 1))
    means = images.mean(axis=(1, 2), keepdims=True)
    slope = np.sum(centred * (images - means), axis=(1, 2), keepdims=True)
    slope = slope / np.maximum(np.sum(centred**2, axis=(0, 1)), np.finfo(np.float32).tiny)
    return np.clip(means + np.maximum(slope, 0) * centred, 0, 1)
