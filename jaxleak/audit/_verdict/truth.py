"""Scores against the truth, where an auditor has it; nothing before the verdict reads it."""

from typing import Any

import numpy as np

from jaxleak import _validate, metrics
from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.verdict import Answer
from jaxleak.metrics._images import mean_psnr

_MULTI_LABEL = "labels of several classes per image cannot be scored; give x alone, without y"


def check_truth(truth: tuple[Any, Any] | None, images: int, shape: tuple[int, ...], classes: int) -> Any:
    """Check a truth; returns images (B, H, W, channels) in [0, 1] and labels (B,) or None, or None without a truth.

    Args:
        truth: images and labels, or None.
        images: B.
        shape: (H, W, channels).
        classes: C; labels are in [0, C).

    Raises:
        ValueError: naming what has another shape or range.
    """
    if truth is None:
        return None
    if not isinstance(truth, tuple | list) or len(truth) != 2:
        raise ValueError(f"truth must be (images, labels), with None for labels that are not known; got {_said(truth)}")
    x, y = np.asarray(truth[0], np.float32), None if truth[1] is None else np.asarray(truth[1])
    if x.ndim == 4 and x.shape != (images, *shape) and x.shape == (images, shape[2], *shape[:2]):
        x = x.transpose(0, 2, 3, 1)  # PyTorch's order
    # A user who mends one fault should not meet the other one in the next try.
    faults = []
    if x.shape != (images, *shape):
        first = x.ndim == 4 and x.shape[-1] != shape[2] and x.shape[1] == shape[2]
        order = "; their channels come first, and x.transpose(0, 2, 3, 1) puts them last" if first else ""
        faults.append(f"images of shape {(images, *shape)}, got {x.shape}{order}")
    if x.size and not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        scale = "; divide by 255" if 1 < x.max() <= 255 and x.min() >= 0 else ""
        if shape[:2] == (1, 1):
            scale = "; scale every column of a table by its smallest and its largest value"
        faults.append(f"images in [0, 1], got {x.min():.3g} to {x.max():.3g}{scale}")
    if faults:
        raise ValueError(f"truth must hold {', and '.join(faults)}")
    return x, None if y is None else _labels(y, images, classes)


def _said(truth: Any) -> str:
    return f"{len(truth)} of them" if isinstance(truth, tuple | list) else _validate.kind_of(truth)


def _labels(y: np.ndarray, images: int, classes: int) -> np.ndarray:
    wanted = f"truth must hold {images} labels in [0, {classes})"
    if y.shape != (images,):
        remedy = _validate.label_remedy(y)
        if not remedy and y.ndim == 2:
            remedy = f": {_MULTI_LABEL}"
        raise ValueError(f"{wanted}, got shape {y.shape}{remedy}")
    if y.dtype.kind not in "iuf" or not (y == np.floor(y)).all():
        raise ValueError(f"{wanted} that are whole numbers, got {y}")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"{wanted}, got {y}")
    return y.astype(np.int64)


def scores(truth: tuple[np.ndarray, np.ndarray | None], best: Answer) -> tuple[dict[str, Any], np.ndarray]:
    """The scores of an answer, and the true images in the answer's order.

    The scores are those of `metrics.image_scores`. Since a mean hides that one of several images is wrong, there are
    also lists in the answer's order: `psnr_each` in dB, and `ssim_each`, or `similarity_each` where images are too
    small for SSIM. For several images `psnr_mean_image` is what the mean of all true images scores in place of each.
    """
    x, y = truth
    answered = bool((best.y >= 0).all())  # equations that need no label give none
    found, order = metrics.image_scores(x, best.x, true_labels=y, labels=best.y if answered else None)
    if len(x) > 1:  # the mean of a single image is this image
        found["psnr_mean_image"] = mean_psnr(metrics.psnr(x, np.broadcast_to(x.mean(axis=0), x.shape)))
    shown, ordered = np.clip(best.x, 0, 1), x[np.argsort(order)]
    each = {"psnr_each": metrics.psnr(ordered, shown)}
    each["ssim_each" if "ssim" in found else "similarity_each"] = similarity(ordered, shown)
    return found | {name: values.tolist() for name, values in each.items()}, ordered
