"""Changes of all images together that the update does not tell; searches that move each image by itself miss them."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._random_streams import stream_of
from jaxleak.audit._open_part import open_part
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.case import Case, misfit_of
from jaxleak.audit._verdict.questions import ADDED, NOISE, beyond_tones
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, Answer

#: Iterations of conjugate gradients. Behind a dense layer with batch normalisation, 100 leave a misfit of 0.47 for four
#: images of 64 pixels, and 300 leave 0.001.
_ITERATIONS = 300


def of_open_part(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: images that change where all images change together, while the update stays as it is.

    With batch normalisation behind a dense layer, one image may be added to all images of the batch: the normalisation
    takes its effect on the layer's outputs off, and in the layer's gradient its contributions add up to zero. A search
    from noise does not find this, since noise differs from image to image, and the search would have to undo all of its
    other parts. Here noise on all images is reduced to the part that leaves the update as it is, to first order. This
    part counts if it costs no misfit, as it is or enlarged to the size of the noise. In large networks the reduction
    does not end in time. So the changes that normalised first layers leave open are also tried as they are: the same
    noise on all images, and the same noise on all patches of a size. Pixels may leave [0, 1]: there are smaller changes
    of this kind within. Other brightness and contrast alone make no other image, because `toned_images` asks about
    these.

    Args:
        case: the audited update.
        answer: the answer.
        asked: (B,) bool, the images of which this is asked.
    """
    if not asked.any():
        return np.zeros(len(answer.x), bool)
    found, allowed = np.zeros(len(answer.x), bool), math.hypot(misfit_of(case, answer.x, answer.y), ADDED)
    for change in _changes(case, answer):
        others = answer.x + change
        beyond = answer.x + beyond_tones(others, answer.x)
        another = asked & ~found & ~(similarity(beyond, answer.x) >= AGREE_ABOVE)
        if another.any() and misfit_of(case, others, answer.y) <= allowed:
            found |= another
        if found[asked].all():
            break
    return found


def _changes(case: Case, answer: Answer) -> Iterator[np.ndarray]:
    """Changes of all images that broadcast to (B, H, W, channels), the cheapest first."""
    key = stream_of(case.key, Stream.OPEN_PART)
    shared = NOISE * np.asarray(jax.random.normal(jax.random.fold_in(key, 1), answer.x.shape[1:]))
    yield shared
    for side in _sides(*shared.shape[:2]):
        repeats = (shared.shape[0] // side, shared.shape[1] // side, 1)
        yield np.tile(shared[:side, :side], repeats)
    x, y = jnp.asarray(answer.x), jnp.asarray(answer.y)
    left = np.asarray(
        open_part(case.received, case.observation, x, y, NOISE * jax.random.normal(key, x.shape), _ITERATIONS)
    )
    yield left
    largest = float(np.sqrt(np.mean(left**2, axis=tuple(range(1, left.ndim)))).max())
    if largest:
        yield left * (NOISE / largest)


def _sides(height: int, width: int) -> list[int]:
    """Sides of square patches that divide an image, from the smallest on."""
    return [side for side in range(2, max(height, width)) if height % side == 0 and width % side == 0]
