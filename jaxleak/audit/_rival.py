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

#: Standard deviation of the noise with which a rival starts; it lowers the SSIM of natural images to 0.1 to 0.5.
_NOISE = 0.2
#: A descent that covers this share of the way back to the answer, in SSIM, counts as on its way there.
_RETURNING = 0.25
#: Largest share of an image's numbers that the update may leave unread.
UNREAD = 0.01


class Rival(NamedTuple):
    """Other images, found from an answer and noise, and how well both explain the update."""

    x: np.ndarray  # (N, H, W, C) within the bounds, in the order of the answer's
    misfit: float  # |g' - g| / |g| of the rival's update
    answer_misfit: float  # the same for the answer, the lower one of before and after a descent like the rival's
    answer_parts: dict[str, float]  # the same for every leaf of the update by itself, at that point
    part_norms: dict[str, float]  # |g| for every leaf, at that point
    similarity: np.ndarray  # (N,) SSIM between rival and answer; for rows of a table as in `Agreement.value`
    start_similarity: np.ndarray  # (N,) the same before the descent
    unread: np.ndarray  # (N,) share of the numbers that change the update at none of three noisy images

    @property
    def explains(self) -> bool:
        """Whether the rival's misfit is at most 0.01 or twice that of the answer; a misfit of NaN counts, too."""
        return explains_as_well(self.misfit, self.answer_misfit)

    @property
    def undetermined(self) -> np.ndarray:
        """(N,) bool: images that the update does not determine, since others in their place explain it as well.

        An image is undetermined if the rival explains the update, is another image (SSIM below 0.8), and was not on its
        way back to the answer: the descent has restored less than a quarter of the similarity that its start lacks. An
        image is also undetermined if more than 1 % of its numbers do not change the update at all, as behind a mask.
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

    If an update says little about the pixels, the prior decides, and independent starts agree on what the prior
    prefers. To detect this, noise is added to the answer, and the noisy images descend on |g' - g|^2 / |g|^2 alone,
    with the kinks of the network smoothed at first. If they end with an update as near as the answer's and are still
    other images, the update does not determine the images. The answer descends in the same way, so that both are
    compared without a prior. A search that finds no rival proves nothing. Nothing here knows the truth.

    Args:
        share: computes what the client uploads for a batch, `protocols.ClientShare` or one behind a defense.
        observation: params and payload of the round; leaves of the payload may be None.
        x: (N, H, W, C) the answer, clipped to [0, 1].
        y: (N,) int32, the labels of the answer.
        key: random key, which may be that of the attack; the noise is drawn with one derived from it.
        start: (N, H, W, C) images at which the rival starts, clipped to [0, 1]; None adds noise to the answer.
        bounds: lowest and highest value that pixels may take on the way; the starts lie in [0, 1].
        iterations: number of steps of Adam in the descent, > 0.
        skip_zeros: whether entries that arrived as zero are ignored, as behind sparsification.
        undone: undoes what the client did to its gradient before the upload, as in `client_updates.Gradients`; None if
            the payload itself is compared.

    Returns:
        The rival; its similarity is NaN where images are not finite.

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
    """Search for other images again, from another start than that of the first search.

    The first search has found how well the answer explains the update, and how many numbers are unread. Both are kept.

    Args:
        start: (N, H, W, C) images at which the search begins, clipped to [0, 1].
        first: what `rival` found for the same answer.
        received: how an update is computed and compared, as in the first search.
        observation: params and payload of the round.
        x: (N, H, W, C) the answer.
        y: (N,) int32, the labels of the answer.
        iterations: number of steps of Adam in the descent, > 0.
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
