"""Whether independent starts of an attack found the same images: evidence that needs no truth."""

from typing import NamedTuple

import numpy as np

from jaxleak import metrics
from jaxleak._base import Reconstruction
from jaxleak.audit._similarity import similarity


class Agreement(NamedTuple):
    """The two best starts of an attack, compared image by image."""

    # (N,) float64 in [-1, 1], SSIM between the two starts' images; 1 where they are the same. For images with a side
    # below 3 pixels, such as rows of a table, it is one minus the largest difference of two of their numbers.
    value: np.ndarray
    other: np.ndarray  # (N, H, W, C) in [0, 1], the second start's images in the order of the answer's
    undetermined: np.ndarray | None = None  # (N,) bool, `Rival.undetermined` where `rival` was called; else None


def agreement(starts: Reconstruction) -> Agreement:
    """Compare the answer of an attack with that of its second best start.

    A start that has gone wrong goes wrong in its own way, so that two starts that end at the same image are likely to
    have read it off the gradient. The answer is that of `best_restart`. The other start is the one with the second
    lowest score of the attacker's own. Starts may list their images in different orders, and `match_one_to_one` pairs
    them. Nothing here knows the truth. An agreement says that the images follow from the upload, not that the upload is
    what the client computed: behind noise that a defense has added, starts agree on wrong images. If the upload does
    not determine the pixels, an agreement does not even say that: starts that share a prior then agree on what the
    prior prefers, and `rival` tells.

    Args:
        starts: R >= 2 stacked reconstructions of images, x (R, N, 1, H, W, C), as `all_starts` gives them; pixels are
            clipped to [0, 1].

    Returns:
        The agreement of every image, in the order of `best_restart(starts)`; NaN where an image is not finite.

    Raises:
        ValueError: if there are fewer than two starts, or x does not hold images of one party.
    """
    x, score = np.asarray(starts.x), np.asarray(starts.score)
    if x.ndim != 6 or x.shape[2] != 1:
        raise ValueError(f"agreement compares whole images: x must have shape (R, N, 1, H, W, C), got {x.shape}")
    if len(x) < 2:
        raise ValueError("agreement needs two starts or more (restarts >= 2), got 1")
    ranks = np.argsort(np.where(np.isnan(score), np.inf, score), axis=0, kind="stable")
    answer, other = (np.clip(x[ranks[place], np.arange(x.shape[1]), 0], 0, 1) for place in (0, 1))
    known = np.isfinite(answer).all() and np.isfinite(other).all()
    if known:
        other = other[metrics.match_one_to_one(answer, other)]
    return Agreement(similarity(answer, other), other)
