"""Scores against the truth, where an auditor has it; nothing before the verdict reads it."""

from typing import Any

import numpy as np

from jaxleak import metrics
from jaxleak.audit._verdict.verdict import Answer


def check_truth(truth: tuple[Any, Any] | None, images: int, shape: tuple[int, ...], classes: int) -> Any:
    """Images (B, H, W, channels) in [0, 1] and labels (B,) or None.

    Raises:
        ValueError: naming what has another shape or range.
    """
    if truth is None:
        return None
    x, y = np.asarray(truth[0], np.float32), None if truth[1] is None else np.asarray(truth[1])
    if x.ndim == 4 and x.shape != (images, *shape) and x.shape == (images, shape[2], *shape[:2]):
        x = x.transpose(0, 2, 3, 1)  # PyTorch's order
    if x.shape != (images, *shape):
        raise ValueError(f"truth must hold images of shape {(images, *shape)}, got {x.shape}")
    if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise ValueError(f"truth must hold images in [0, 1], got {x.min():.3g} to {x.max():.3g}")
    if y is not None and (y.shape != (images,) or y.min() < 0 or y.max() >= classes):
        raise ValueError(f"truth must hold {images} labels in [0, {classes}), got {y}")
    return x, y


def scores(truth: tuple[np.ndarray, np.ndarray | None], best: Answer) -> tuple[dict[str, float], np.ndarray]:
    """PSNR, SSIM and label accuracy of an answer, and the true images in its order."""
    x, y = truth
    order = metrics.match_one_to_one(best.x, x)
    found = {
        "psnr": float(np.mean(metrics.psnr(x[order], best.x))),
        "psnr_grey": float(np.mean(metrics.grey_psnr(x))),
        "ssim": float(np.mean(metrics.ssim(x[order], best.x))),
    }
    if y is not None:
        found["label_accuracy"] = float(metrics.label_multiset_accuracy(y, best.y))
    return found, x[order]
