"""Whether an update distinguishes two images of a class from one image in two places."""

import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import Observation, Share
from jaxleak.attacks._inversion.gradient_term import Undone
from jaxleak.audit._descent import LOOKS, descend, explains_as_well
from jaxleak.audit._received import Received

#: How many pairs are tried at the most; each takes as long as half a rival.
_MOST_PAIRS = 8


def nearest_pairs(x: np.ndarray, y: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Every image x (N, H, W, C) with the nearest other one of its class y (N,), each pair once, nearest pairs first.

    The distance between two images is their squared difference. A class with a single image has no pair.
    """
    flat = np.reshape(x, (len(x), -1)).astype(np.float64)
    squares = np.sum(flat**2, axis=1)
    apart = squares[:, None] + squares - 2 * flat @ flat.T
    apart[(np.asarray(y)[:, None] != np.asarray(y)) | np.eye(len(x), dtype=bool)] = np.inf
    nearest = {(i, int(np.argmin(apart[i]))) for i in range(len(x)) if np.isfinite(apart[i]).any()}
    return tuple(sorted({(min(pair), max(pair)) for pair in nearest}, key=lambda pair: (apart[pair], pair)))


def indistinct(
    share: Share,
    observation: Observation,
    x: np.ndarray,
    y: np.ndarray,
    answer_misfit: float,
    *,
    pairs: tuple[tuple[int, int], ...] | None = None,
    iterations: int = 300,
    skip_zeros: bool = False,
    undone: Undone | None = None,
) -> np.ndarray:
    """Which images of an answer the update does not distinguish from another image of their class.

    The gradients of the images of a class add up. Of two that are nearly alike, such as an image of low contrast and
    its mirror image, the sum hardly depends on how they differ, and independent starts may agree on a wrong difference.
    To see this, both images are replaced by one image in two places, which starts as their mean. All images then
    descend on the distance of the updates alone, as in `rival`. If they end as near to the update as the answer, it
    does not determine the two images. An image that stands twice in the answer also counts as not distinguished from
    its copy. Nothing here knows the truth.

    Args:
        share: what the client uploads of a batch, `protocols.ClientShare` or one behind a defense.
        observation: params and payload of the round; leaves of the payload may be None.
        x: (N, H, W, C) the answer, clipped to [0, 1].
        y: (N,) int32, the labels of the answer.
        answer_misfit: >= 0, |g' - g| / |g| of the answer, as `Rival.answer_misfit`.
        pairs: places of the two images of each pair; None takes `nearest_pairs`. No more than the first 8 pairs are
            tried.
        iterations: > 0, how many steps of Adam a descent has.
        skip_zeros: whether entries that arrived as zero are ignored, as behind sparsification.
        undone: what is known of the gradient from which the payload was made, as in `client_updates.Gradients`; None
            compares the payload itself.

    Returns:
        (N,) bool, True for images that are not distinguished.

    Raises:
        ValueError: on shapes that do not fit, pairs that name no two places, or numbers out of range.
    """
    answer = np.clip(np.asarray(x, np.float32), 0, 1)
    if answer.ndim != 4 or np.shape(y) != answer.shape[:1]:
        raise ValueError(f"x must have shape (N, H, W, C) and y (N,), got {answer.shape} and {np.shape(y)}")
    _validate.count(iterations=iterations)
    _validate.non_negative(answer_misfit=answer_misfit)
    found = np.zeros(len(answer), bool)
    tried = nearest_pairs(answer, y) if pairs is None else pairs
    for first, second in tried:
        if first == second or not {first, second} <= set(range(len(answer))):
            raise ValueError(f"pairs must name two places each, from 0 to {len(answer) - 1}, got {(first, second)}")
    received = Received(share, skip_zeros, undone)
    labels, bounds = jnp.asarray(y, jnp.int32), jnp.array((0.0, 1.0))
    for first, second in tried[:_MOST_PAIRS]:
        places, start = np.arange(len(answer), dtype=np.int32), answer.copy()
        places[second] = first
        start[first] = answer[[first, second]].mean(axis=0)
        # The numbers read at images nearby are not needed here, but cost less than to compile a second descent.
        nearby = jnp.broadcast_to(start, (LOOKS, *start.shape))
        end = descend(received, observation, nearby[0], jnp.asarray(places), labels, bounds, iterations, nearby)
        if explains_as_well(float(end.after.misfit), answer_misfit):
            found[[first, second]] = True
    return found
