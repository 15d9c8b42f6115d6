"""Copies of an answer, in other tones or turned, whose update may be the same: no search near the answer meets them."""

from collections.abc import Callable

import numpy as np

from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.case import Case
from jaxleak.audit._verdict.questions import comparing, one_by_one
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, Answer

#: How much of an image, or of its contrast, is left where its tones are asked for. A tenth less would change the update
#: of one image among many by as little as a search leaves.
_DIMMED = 0.5
#: The least change of a pixel that makes other tones of an image.
_ROOM = 0.1


def toned_images(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: of the images that are asked for, those whose update is explained as well in other tones.

    In a network of ReLUs without biases, half an image and twice the derivatives of its loss have the same gradient. If
    statistics normalise what comes first, half an image has the same outputs; of batch statistics, the whole batch.
    Where an image's mean is taken off first, or that of a channel, it tells neither brightness nor balance of colours.
    """
    return _explained_copies(case, answer, asked, _tones(answer.x), lambda copies: _moved(answer.x, copies))


def turned_images(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: of the images that are asked for, those that another image explains as well when it is turned.

    Turned are mirror images, rotations, negatives, and images with their channels in reverse order.
    """

    def another(copies: np.ndarray) -> np.ndarray:
        # Between an image and its mirror image lie blends of both, which are alike to their own mirror images.
        return similarity(np.clip(copies, 0, 1), np.clip(answer.x, 0, 1)) < AGREE_ABOVE

    return _explained_copies(case, answer, asked, _turns(answer.x), another)


def _explained_copies(
    case: Case,
    answer: Answer,
    asked: np.ndarray,
    several: list[np.ndarray],
    counts: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """(B,) bool: images in whose place a copy that counts explains the update as well, alone or with all others."""
    explained, found = comparing(case, answer), np.zeros(len(answer.x), bool)
    for copies in several:
        open_yet = asked & ~found & counts(copies)
        if open_yet.any():
            found |= open_yet if explained(copies) else one_by_one(explained, answer, copies, open_yet)
    return found


def _moved(x: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """(N,) bool: whether any pixel has changed by enough."""
    return np.asarray(np.abs(copies - x).max(axis=(1, 2, 3)) >= _ROOM)


def _tones(x: np.ndarray) -> list[np.ndarray]:
    """Images (N, H, W, channels) that are dimmer, flatter, darker, brighter, and with less of the first channel."""
    mean, low, high = (of(x, axis=(1, 2), keepdims=True) for of in (np.mean, np.min, np.max))
    less = np.where(np.arange(x.shape[-1]) == 0, _DIMMED, 1.0).astype(x.dtype)
    darker, brighter = x - np.maximum(low, 0), x + np.maximum(1 - high, 0)
    return [_DIMMED * x, mean + _DIMMED * (x - mean), darker, brighter, *([less * x] if x.shape[-1] > 1 else [])]


def _turns(x: np.ndarray) -> list[np.ndarray]:
    """Images (N, H, W, channels) mirrored, rotated, transposed, with reversed channels, and as negatives."""
    turned = [x[:, :, ::-1], x[:, ::-1], x[:, ::-1, ::-1], x[..., ::-1], 1 - x]
    if x.shape[1] == x.shape[2]:
        turned += [x.swapaxes(1, 2), np.rot90(x, axes=(1, 2)), np.rot90(x, -1, axes=(1, 2))]
    return [np.ascontiguousarray(images) for images in turned]
