"""Whether other images have the same update: what two starts of one attack, which share a prior, cannot tell."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import Observation, Share
from jaxleak._random_streams import stream_of
from jaxleak.attacks._inversion.gradient_term import Undone
from jaxleak.audit._descent import LOOKS, descend, explains_as_well
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._received import Received
from jaxleak.audit._similarity import similarity
from jaxleak.metrics._images import RECOGNISED_ABOVE

#: Standard deviation of the noise that a rival starts with; of natural images it leaves an SSIM of 0.1 to 0.5.
_NOISE = 0.2
#: Share of the way back to the answer, in SSIM, from which on a descent was on its way there.
_RETURNING = 0.25
#: Share of an image's numbers that the update may leave unread.
UNREAD = 0.01


class Rival(NamedTuple):
    """Other images, found from an answer and noise, and how well both explain the update."""

    x: np.ndarray  # (N, H, W, C) within the bounds, in the order of the answer's
    misfit: float  # |g' - g| / |g| of the rival's update
    answer_misfit: float  # the same of the answer, the lower one of before and after the descent that the rival had
    answer_parts: dict[str, float]  # the same of every leaf of the update by itself, at that point
    part_norms: dict[str, float]  # |g| of every leaf there
    similarity: np.ndarray  # (N,) SSIM between rival and answer; of rows of a table as `Agreement.value`
    start_similarity: np.ndarray  # (N,) the same before the descent
    unread: np.ndarray  # (N,) share of the numbers that change the update at none of three noisy images

    @property
    def explains(self) -> bool:
        """Whether the rival's misfit is below 0.01, or at most twice that of the answer."""
        return explains_as_well(self.misfit, self.answer_misfit)

    @property
    def undetermined(self) -> np.ndarray:
        """(N,) bool: images in whose place another one explains the update as well.

        The rival explains the update, is another image (SSIM below 0.8), and was not on its way back to the answer: of
        the similarity that its start lacks, the descent has restored less than a quarter. Nor is an image determined
        of whose numbers more than 1 % do not change the update at all, as behind a mask.
        """
        returned = self.similarity - self.start_similarity >= _RETURNING * (1 - self.start_similarity)
        another = self.explains & ~(self.similarity >= RECOGNISED_ABOVE) & ~returned
        return np.asarray(another | (self.unread > UNREAD))


def rival(
    share: Share,
    observation: Observation,
    x: np.ndarray,
    y: np.ndarray,
    *,
    key: jax.Array,
    start: np.ndarray | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    iterations: int = 300,
    skip_zeros: bool = False,
    undone: Undone | None = None,
) -> Rival:
    """Search, without any prior, for other images that have the same update as the answer of an attack.

    Where an update says little of the pixels, the prior decides, and independent starts agree on what it prefers. To
    see this, noise is added to the answer, and the noisy images descend on |g' - g|^2 / |g|^2 alone, with the kinks of
    the network smoothed at first. If they end with an update as near as the answer's, and are still other images,
    the update does not determine the images. The answer descends in the same way, so that both are compared without a
    prior. A search that finds no rival proves nothing. Nothing here knows the truth.

    Args:
        share: what the client uploads of a batch, `protocols.ClientShare` or one behind a defense.
        observation: params and payload of the round; leaves of the payload may be None.
        x: (N, H, W, C) the answer, clipped to [0, 1].
        y: (N,) int32, the labels of the answer.
        key: the noise is drawn with one derived from it, which may be that of the attack.
        start: (N, H, W, C) images at which the rival starts, clipped to [0, 1]; None adds noise to the answer.
        bounds: lowest and highest value that pixels may take on the way; the starts lie in [0, 1].
        iterations: > 0, how many steps of Adam the descent has.
        skip_zeros: whether entries that arrived as zero count for nothing, as behind sparsification.
        undone: what is known of the gradient before the payload, as of `client_updates.Gradients`; None where the
            payload is compared itself.

    Returns:
        The rival; NaN similarity where images are not finite.

    Raises:
        ValueError: on shapes that do not fit, bounds in the wrong order, or iterations out of range.
    """
    answer = np.clip(np.asarray(x, np.float32), 0, 1)
    if answer.ndim != 4 or np.shape(y) != answer.shape[:1]:
        raise ValueError(f"x must have shape (N, H, W, C) and y (N,), got {answer.shape} and {np.shape(y)}")
    _validate.count(iterations=iterations)
    if not bounds[0] < bounds[1]:
        raise ValueError(f"bounds must be the lowest and the highest value of a pixel, got {bounds}")
    if start is not None and np.shape(start) != answer.shape:
        raise ValueError(f"start must have the shape of x, {answer.shape}, got {np.shape(start)}")
    noise = _NOISE * jax.random.normal(stream_of(key, Stream.RIVALS), (LOOKS, *answer.shape))
    # Beyond 0 and 1 the noise is turned back, so that every number is asked about at values within the bounds.
    nearby = jnp.abs(answer + noise)
    nearby = 1 - jnp.abs(1 - nearby)
    begun = jnp.clip(answer + noise[0] if start is None else start, 0, 1)
    labels = jnp.asarray(y, jnp.int32)
    received, places = Received(share, skip_zeros, undone), jnp.arange(len(answer))
    of_answer, of_other = (
        descend(received, observation, images, places, labels, jnp.array(bounds), iterations, nearby)
        for images in (jnp.asarray(answer), begun)
    )
    nearest = min((of_answer.before, of_answer.after), key=lambda fit: float(fit.misfit))
    other = np.asarray(of_other.x)
    unread = 1 - np.mean(np.asarray(of_other.read), axis=tuple(range(1, other.ndim)))
    return Rival(
        other, float(of_other.after.misfit), float(nearest.misfit),
        {name: float(value) for name, value in nearest.parts.items()},
        {name: float(value) for name, value in nearest.norms.items()},
        similarity(other, answer), similarity(np.asarray(begun), answer), unread,
    )  # fmt: skip


def rival_from(
    start: np.ndarray,
    first: Rival,
    received: Received,
    observation: Observation,
    x: np.ndarray,
    y: np.ndarray,
    *,
    iterations: int = 300,
) -> Rival:
    """Search for other images again, from another start than the first search had.

    The first search has told how well the answer explains the update, and which of its numbers are read. Both are kept.

    Args:
        start: (N, H, W, C) images at which the search begins, clipped to [0, 1].
        first: what `rival` found for the same answer.
        received: how an update is computed and compared, as in the first search.
        observation: params and payload of the round.
        x: (N, H, W, C) the answer.
        y: (N,) int32, the labels of the answer.
        iterations: > 0, how many steps of Adam the descent has.
    """
    answer, begun, places = np.clip(np.asarray(x, np.float32), 0, 1), jnp.clip(start, 0, 1), jnp.arange(len(x))
    labels, bounds = jnp.asarray(y, jnp.int32), jnp.array((0.0, 1.0))
    unasked = jnp.broadcast_to(begun, (LOOKS, *begun.shape))
    found = descend(received, observation, begun, places, labels, bounds, iterations, unasked)
    other = np.asarray(found.x)
    return first._replace(
        x=other, misfit=float(found.after.misfit), similarity=similarity(other, answer),
        start_similarity=similarity(np.asarray(begun), answer),
    )  # fmt: skip
