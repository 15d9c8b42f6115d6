"""All scores of a batch of images in one call, as tables and reports print them."""

import logging

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._images import (
    RECOGNISED_ABOVE,
    grey_psnr,
    has_ssim,
    mean_psnr,
    psnr,
    psnr_up_to_scale,
    ssim,
)
from jaxleak.metrics._labels import label_multiset_accuracy
from jaxleak.metrics._matching import best_match_psnr, match_one_to_one

#: How far beyond [0, 1] rounding may have moved a true pixel.
_ROUNDING = 1e-3
#: Another unit is suspected if more than the first share of an estimate's pixels lie beyond [0, 1] by more than the
#: second value.
_CLIPPED, _BEYOND = 0.25, 0.05
_log = logging.getLogger("jaxleak")
#: Channels that images have: grey, colors, and colors with transparency.
_CHANNELS = (1, 3, 4)


def image_scores(
    truth: ArrayLike,
    estimate: ArrayLike,
    *,
    true_labels: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> tuple[dict[str, float], np.ndarray]:
    """The scores of a reconstructed batch against the private one, after the best one-to-one matching.

    For a `Reconstruction` of a private `Batch`: `image_scores(private.x[:, 0], found.x[:, 0], true_labels=private.y,
    labels=found.y)`. Estimates are clipped to [0, 1] first, because some attacks do not bound their pixels. The logger
    "jaxleak" warns if more than a quarter of the pixels lie outside, because the estimate may be in another unit.

    Args:
        truth: (N, H, W, channels) images in [0, 1], without the normalisation that a network may read them with.
        estimate: the same shape, in any order, and in the same unit.
        true_labels: (N,) integer labels; None leaves `label_accuracy` out.
        labels: (N,) integer labels of the reconstruction; None leaves `label_accuracy` out. Labels that are all -1
            leave it out too: with them, an attack says that it does not infer labels.

    Returns:
        The scores by name, and the order (N,) of integers with which `estimate[order]` is matched with the truth.

        * `psnr`, `psnr_best_match`, `psnr_up_to_scale`: means over the images in dB, of which an image has 200 at most,
          so that one without any error does not make the mean infinite; in the second one, several images
          may share a reconstruction, and the third one is after a common factor, found before or
          after clipping, whichever is better.
        * `ssim`, `ssim_max`: in [-1, 1], the mean over the images and that of the image that leaks most.
        * `recognised`: in [0, 1], the share of images whose SSIM is above 0.8.
        * `psnr_grey`: in dB, what a grey image scores, which has found nothing.
        * `label_accuracy`: in [0, 1], see `label_multiset_accuracy`.

        Images with a side below 3 pixels, such as tables, have no SSIM and nothing that needs it.

    Raises:
        ValueError: if shapes differ or are those of a single image, a true pixel is outside of [0, 1], a pixel is not
            finite, the true images have their channels first, or labels are not integers.
    """
    truth, raw = np.asarray(truth), np.asarray(estimate)
    _check_images(truth, raw)
    found = np.clip(raw, 0, 1)
    order = match_one_to_one(truth, found)
    matched = found[order]
    scores = {
        "psnr": mean_psnr(psnr(truth, matched)),
        "psnr_best_match": mean_psnr(best_match_psnr(truth, found)),
        "psnr_up_to_scale": mean_psnr(
            np.maximum(psnr_up_to_scale(truth, matched), psnr_up_to_scale(truth, raw[order]))
        ),
    }
    if truth.ndim == 4 and has_ssim(truth.shape[1:]):
        similarity = ssim(truth, matched)
        scores |= {
            "ssim": float(np.mean(similarity)),
            "ssim_max": float(np.max(similarity)),
            "recognised": float(np.mean(similarity > RECOGNISED_ABOVE)),
        }
    scores["psnr_grey"] = float(np.mean(grey_psnr(truth)))
    if true_labels is not None and labels is not None and np.any(np.asarray(labels) >= 0):  # -1: none was sought
        scores["label_accuracy"] = label_multiset_accuracy(true_labels, labels)
    return scores, order


def _check_images(truth: np.ndarray, estimate: np.ndarray) -> None:
    """Refuse images that would get wrong scores: scores assume a peak of 1, and height and width on the middle axes."""
    if truth.ndim not in (2, 4):  # tables or images only: otherwise rows would be matched with each other
        hint = {3: ": add the axis of images, x[None]", 5: ": take one party's part, x[:, 0]"}.get(truth.ndim, "")
        raise ValueError(f"truth must be (N, H, W, channels), got {truth.shape}{hint}")
    for name, pixels in {"truth": truth, "estimate": estimate}.items():
        if not np.isfinite(pixels).all():
            raise ValueError(f"{name} must hold finite pixels")
    if truth.size and not (truth.min() >= -_ROUNDING and truth.max() <= 1 + _ROUNDING):
        raise ValueError(
            f"truth must hold pixels in [0, 1], got {truth.min():.3g} to {truth.max():.3g}: undo the normalisation, "
            "x * std + mean, of normalised images and answers, or divide by 255"
        )
    # Check large square images only: signals of one row, and small patches of many channels, may rightly have such
    # shapes.
    if truth.ndim == 4 and truth.shape[1] in _CHANNELS and truth.shape[2] == truth.shape[3] > 2 * max(_CHANNELS):
        raise ValueError(
            f"truth must be (N, H, W, channels), got {truth.shape}, whose channels seem to come first: "
            "transpose truth and estimate by (0, 2, 3, 1)"
        )
    warn_of_clipped(
        estimate,
        "; if they are of another unit, undo it first: divide by 255, or x * std + mean. Attacks that do not keep "
        "their pixels in [0, 1], such as dlg, have such answers, too",
    )


def warn_of_clipped(estimate: np.ndarray, why: str) -> None:
    """Log a warning if clipping an estimate to [0, 1] changes more than a quarter of its pixels.

    Args:
        estimate: images of any shape, before they are clipped.
        why: what the message ends with.
    """
    clipped = float(np.mean((estimate < -_BEYOND) | (estimate > 1 + _BEYOND))) if estimate.size else 0.0
    if clipped > _CLIPPED:
        _log.warning(
            "%.0f%% of the estimate's pixels lie outside [0, 1] (%.3g to %.3g) and are clipped%s",
            100 * clipped,
            estimate.min(),
            estimate.max(),
            why,
        )
