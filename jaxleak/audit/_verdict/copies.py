"""Copies of an answer, in other tones or turned, that may have the same update; searches near it do not find them."""

from collections.abc import Callable

import numpy as np

from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.case import Case
from jaxleak.audit._verdict.questions import comparing, one_by_one
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, Answer

#: The factor by which brightness or contrast is reduced for a copy in other tones. A tenth less would change the update
#: of one image among many by as little as a search leaves unexplained.
_DIMMED = 0.5
#: The least change of a pixel from which on a copy counts as one in other tones.
_ROOM = 0.1


def toned_images(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: the images among `asked` that explain the update as well in other tones.

    In a network of ReLUs without biases, an image of half the brightness has the same gradient if the derivatives of
    its loss are doubled. If a normalisation by statistics comes first, such an image has the same outputs; with batch
    statistics, this takes the whole batch at half the brightness. If the network first subtracts the mean of an image
    or of a channel, the update tells neither the brightness nor the balance of colours.
    """
    return _explained_copies(case, answer, asked, _tones(answer.x), lambda copies: _moved(answer.x, copies))


def turned_images(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: the images among `asked` in whose place a turned copy explains the update as well.

    Turned copies are mirror images, rotations, negatives, and images with their channels in reverse order.
    """

    def another(copies: np.ndarray) -> np.ndarray:
        # An answer may be a blend of an image and its mirror image, which resembles its own mirror image.
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
