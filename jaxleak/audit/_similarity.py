"""How alike two images are: by SSIM, and where they are too small for it, as rows of a table, by their numbers."""

import numpy as np

from jaxleak import metrics
from jaxleak.metrics._images import has_ssim


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How alike two images are in every place.

    Args:
        first: (N, H, W, C) in [0, 1].
        second: the same shape and unit.

    Returns:
        (N,) float64, 1 for identical images: SSIM in [-1, 1], and for images with a side below 3 pixels one minus the
        largest difference of two of their numbers, in [0, 1]. An agreement of 0.99 then says that no column of a table
        differs by more than a hundredth of its range. NaN where such an image is not finite.

    Raises:
        ValueError: if the shapes differ or are not (N, H, W, C).
    """
    if has_ssim(np.shape(first)[1:]):
        return metrics.ssim(first, second)
    if np.shape(first) != np.shape(second) or np.ndim(first) != 4:
        raise ValueError(f"images must be (N, H, W, C) of equal shapes, got {np.shape(first)} and {np.shape(second)}")
    difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    return np.asarray(1 - difference.max(axis=(1, 2, 3)))


def closest(images: np.ndarray, image: np.ndarray) -> float:
    """The similarity of an image (H, W, C) to the one of `images` (N, H, W, C) that it resembles most."""
    return float(similarity(images, np.broadcast_to(image, images.shape)).max())
