"""All scores of a batch of images in one call, as tables and reports print them."""

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._images import RECOGNISED_ABOVE, SSIM_SMALLEST, grey_psnr, psnr, psnr_up_to_scale, ssim
from jaxleak.metrics._labels import label_multiset_accuracy
from jaxleak.metrics._matching import best_match_psnr, match_one_to_one


def image_scores(
    truth: ArrayLike,
    estimate: ArrayLike,
    *,
    true_labels: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> tuple[dict[str, float], np.ndarray]:
    """The scores of a reconstructed batch against the private one, after the best one-to-one matching.

    For a `Reconstruction` of a private `Batch`: `image_scores(private.x[:, 0], found.x[:, 0], true_labels=private.y,
    labels=found.y)`. Estimates are clipped to [0, 1] first, because some attacks do not bound their pixels.

    Args:
        truth: (N, H, W, channels) images in [0, 1].
        estimate: the same shape, in any order.
        true_labels: (N,) integer labels; None leaves `label_accuracy` out.
        labels: (N,) integer labels of the reconstruction; None leaves `label_accuracy` out.

    Returns:
        The scores by name, and the order (N,) of integers with which `estimate[order]` is matched with the truth.

        * `psnr`, `psnr_best_match`, `psnr_up_to_scale`: means over the images in dB; in the second one, several images
          may share a reconstruction, and the third one is after a common factor.
        * `ssim`, `ssim_max`: in [-1, 1], the mean over the images and that of the image that leaks most.
        * `recognised`: in [0, 1], the share of images whose SSIM is above 0.8.
        * `psnr_grey`: in dB, what a grey image scores, which has found nothing.
        * `label_accuracy`: in [0, 1], see `label_multiset_accuracy`.

        Images with a side below 3 pixels, such as tables, have no SSIM and nothing that needs it.

    Raises:
        ValueError: if shapes differ, a pixel is not finite, or labels are not integers.
    """
    truth, estimate = np.asarray(truth), np.clip(estimate, 0, 1)
    order = match_one_to_one(truth, estimate)
    matched = estimate[order]
    scores = {
        "psnr": float(np.mean(psnr(truth, matched))),
        "psnr_best_match": float(np.mean(best_match_psnr(truth, estimate))),
        "psnr_up_to_scale": float(np.mean(psnr_up_to_scale(truth, matched))),
    }
    if truth.ndim == 4 and min(truth.shape[1:3]) >= SSIM_SMALLEST:
        similarity = ssim(truth, matched)
        scores |= {
            "ssim": float(np.mean(similarity)),
            "ssim_max": float(np.max(similarity)),
            "recognised": float(np.mean(similarity > RECOGNISED_ABOVE)),
        }
    scores["psnr_grey"] = float(np.mean(grey_psnr(truth)))
    if true_labels is not None and labels is not None:
        scores["label_accuracy"] = label_multiset_accuracy(true_labels, labels)
    return scores, order
