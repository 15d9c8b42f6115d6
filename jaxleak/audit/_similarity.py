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


def closest(images: np.ndarray, image: np.ndarray) -> float:
    """The similarity between an image (H, W, C) and the image among `images` (N, H, W, C) that it resembles most."""
    return float(similarity(images, np.broadcast_to(image, images.shape)).max())
