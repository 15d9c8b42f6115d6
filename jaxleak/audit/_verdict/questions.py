"""Tests of an answer before its images are certified; nothing here knows the truth."""

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import objectives
from jaxleak._base import Batch, Observation, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._random_streams import stream_of
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks._inversion.peeling import CUT
from jaxleak.audit._descent import explains_as_well
from jaxleak.audit._indistinct import indistinct, nearest_pairs
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._received import Received, compiled, misfit
from jaxleak.audit._rival import Rival, rival, rival_from
from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.case import Case
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, Answer
from jaxleak.defenses._representation import OfClient
from jaxleak.metrics._images import RECOGNISED_ABOVE, has_ssim
from jaxleak.protocols._defending import mean_of_examples

#: The layers below the head are tested by themselves if their norm is above this share of the update's norm, and above
#: so many times what rounding may have changed in them.
_LOWER_LAYERS_COUNT, _OVER_ROUNDING = 1e-3, 10
#: The standard deviation of noise that turns an image into another one.
NOISE = 0.2
#: The share of the next image in a blend. With one half, two images would become the same, which no loss undoes.
_BLENDED = 0.4
#: Root mean square of a difference between images, below which the difference is rounding.
_NO_DIFFERENCE = 1e-6
#: If the update leaves a difference from the answer open, a descent keeps more than this share of the difference, which
#: adds no more than this misfit. Differences in means of patches, which were open, kept 0.74 and added 1e-7. What a
#: descent had not yet brought back added more than 0.01, or kept less than 0.4.
_KEPT, ADDED = 0.7, 0.005
#: Shares of the darkest, and of the brightest, pixels that are replaced together.
_OPEN_SHARES = (0.1, 0.25, 0.5, 0.75)


def distance_of_truth(case: Case, answer: Answer) -> float | None:
    """The cosine distance that noise alone puts between a client's own images and its update, estimated at the answer.

    The result is None if the client states no noise on its whole update.
    """
    defense = case.defense
    if defense is None or defense.place != "payload" or defense.mechanism is None or defense.mechanism.noise is None:
        return None
    drawn = _defended_anew(case, answer)
    return None if drawn is None else float(objectives.cosine(*drawn))


class Noise(NamedTuple):
    """The change that the stated defense alone makes in an update, leaf by leaf."""

    off: dict[str, float]  # norm of the change
    norms: dict[str, float]  # norm of what is compared

    def of(self, names: Collection[str]) -> float:
        """The norm of the change of some leaves over the norm of these leaves; 0 if they are zero."""
        size = math.hypot(*(self.norms[name] for name in names))
        return math.hypot(*(self.off[name] for name in names)) / size if size else 0.0


def left_by_noise(case: Case, answer: Answer) -> Noise | None:
    """The misfit that the stated defense alone leaves in an update, estimated at the answer.

    The result is None in three cases: no defense is stated; this client cannot apply the defense by itself, for example
    because only several clients together could draw the noise; or only bounds of the gradient are seen.

    Args:
        case: the audited update.
        answer: images and labels in the client's place.
    """
    drawn = None if case.received.undone is not None else _defended_anew(case, answer)
    if drawn is None:
        return None
    by, seen = case.received, case.observation._replace(payload=drawn[0])
    own = by.of(seen, jnp.asarray(answer.x), jnp.asarray(answer.y))
    wanted, own = named_leaves(by.explained(seen, own)), named_leaves(own)
    off = {name: float(jnp.linalg.norm(jnp.ravel(wanted[name] - own[name]))) for name in own}
    return Noise(off, {name: float(jnp.linalg.norm(jnp.ravel(wanted[name]))) for name in own})


def _defended_anew(case: Case, answer: Answer) -> tuple[PyTree, PyTree] | None:
    """The update of an answer behind the stated defense, with noise drawn anew, and the update without the defense.

    The result is None if no defense is stated, or if this client cannot apply it by itself.
    """
    defense, seen = case.defense, case.observation
    if defense is None or defense.place == "client_payloads" or defense.mechanism is None:
        return None
    x, y = jnp.asarray(answer.x)[:, None], jnp.asarray(answer.y)
    batch = Batch(x, y, jnp.arange(len(y)))
    own = compiled(case.share)(seen.params, batch)
    key = stream_of(case.key, Stream.NOISE_ANEW)
    if defense.place == "per_example_gradient":
        examples = case.share.example_gradients(seen.params, batch)
        return mean_of_examples(defense.apply(key, examples, round=0)), own
    mode, loss = case.share.batch_norm, case.share.loss
    known = OfClient(model=case.share.model, variables=seen.params, x=x[:, 0], y=y, mode=mode, loss=loss)
    return defense.apply(key, own, **known, round=0), own


def left_below_head(case: Case, other: Rival, noise: Noise | None) -> float:
    """The misfit of images near an answer in the layers below the head, relative to the update of these layers.

    The misfit is 0 if nothing can be said of these layers (`_layers_below`). The stated noise's part is subtracted.
    """
    lower = _layers_below(case, other.part_norms)
    if not lower:
        return 0.0
    size = math.hypot(*(other.part_norms[name] for name in lower))
    off = math.hypot(*(other.answer_parts[name] * other.part_norms[name] for name in lower if other.part_norms[name]))
    return math.sqrt(max((off / size) ** 2 - (0.0 if noise is None else noise.of(lower)) ** 2, 0.0))


def _layers_below(case: Case, norms: dict[str, float]) -> tuple[str, ...]:
    """The leaves below the head, if something can be said of them; none if the head is not known.

    There are also none if their norm is below a thousandth of the update's, or if rounding may have changed them by
    more than a tenth.

    Args:
        case: the audited update.
        norms: the norm of every leaf of the update.
    """
    head = {*case.share.model.head_leaves, CUT}
    lower = tuple(name for name in norms if name not in head)
    if len(lower) == len(norms):
        return ()
    payload, weights = named_leaves(case.observation.payload), named_leaves(case.observation.params["params"])
    if case.precision.of_weights and set(lower) - weights.keys():
        return ()  # these were computed from the update, in a unit of their own
    size = math.hypot(*(norms[name] for name in lower))
    rounding = math.hypot(*(case.precision.error(np.asarray(payload[name]), weights.get(name)) for name in lower))
    large = size > max(_LOWER_LAYERS_COUNT * math.hypot(*norms.values()), _OVER_ROUNDING * rounding)
    return lower if large else ()


def blended(x: np.ndarray) -> np.ndarray:
    """Images (N, H, W, channels), each blended with a share of the next one.

    A linear layer has the same gradient for blended inputs if the derivatives of the loss undo the blend. If the loss
    is not known, images can therefore be told from blends only by the nonlinear layers.
    """
    return (1 - _BLENDED) * x + _BLENDED * np.roll(x, 1, axis=0)


def rival_of(case: Case, answer: Answer, **options: Any) -> Rival:
    """The result of `rival` for an answer: other images with its update, and how well both explain the update."""
    return rival(
        case.received.share, case.observation, answer.x, answer.y, key=case.key,
        skip_zeros=case.received.in_part, undone=case.received.undone, **options,
    )  # fmt: skip


def of_blends(case: Case, answer: Answer, other: Rival) -> np.ndarray:
    """(B,) bool: images for which a search that begins at blends of the answer finds another one.

    Args:
        case: the audited update.
        answer: the answer.
        other: what the first search has found.
    """
    return rival_from(blended(answer.x), other, case.received, case.observation, answer.x, answer.y).undetermined


def drawn_out(case: Case, answer: Answer, other: Rival, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: images for which a second search, along what the first one left of its noise, finds another one.

    The update determines an image in most directions, and the first search undoes the noise in all of these. If the
    update leaves only a few directions open, such as the means of patches, the first search ends near the answer, and
    what remains of the noise lies in the open directions. The second search therefore begins at the answer plus this
    remainder, scaled to the size of the noise. In an open direction the difference stays, and the misfit does not grow.
    In any other direction the search returns to the answer, or is still on its way there and has a larger misfit.
    Changes of brightness and contrast are left out, because `toned_images` asks about these.

    Args:
        case: the audited update.
        answer: the answer.
        other: what the first search has found.
        asked: (B,) bool, the images to test.
    """
    if not asked.any():
        return np.zeros(len(answer.x), bool)
    x = np.clip(answer.x, 0, 1)
    left = beyond_tones(other.x, x)
    size = np.sqrt(np.mean(left**2, axis=tuple(range(1, left.ndim)), keepdims=True))
    start = np.clip(x + left * (NOISE / np.maximum(size, _NO_DIFFERENCE)), 0, 1)
    again = rival_from(start, other, case.received, case.observation, answer.x, answer.y)
    begun, ended = beyond_tones(start, x), beyond_tones(again.x, x)
    pixels = tuple(range(1, x.ndim))
    kept = np.sum(begun * ended, axis=pixels) > _KEPT * np.sum(begun**2, axis=pixels)
    explains = not again.misfit > math.hypot(again.answer_misfit, ADDED)
    return np.asarray(explains & kept & asked & ~(similarity(x + ended, x) >= AGREE_ABOVE))


def beyond_tones(other: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The part of a difference of images (N, H, W, channels) beyond changes of a channel's brightness and contrast."""
    left = other - x
    if not has_ssim(x.shape[1:]):  # rows of a table have no tones
        return left
    left, contrast = (images - images.mean(axis=(1, 2), keepdims=True) for images in (left, x))
    squares = np.sum(contrast**2, axis=(1, 2), keepdims=True)
    return left - contrast * np.sum(left * contrast, axis=(1, 2), keepdims=True) / np.maximum(squares, _NO_DIFFERENCE)


def indistinct_of(case: Case, answer: Answer, answer_misfit: float, certified: np.ndarray) -> np.ndarray:
    """(B,) bool: images that the update does not tell from another one; only pairs with a certified image are tested.

    If the loss is not known, pairs of any two classes are tested: the loss's derivatives for each image are fitted to
    the update, so that these images may be indistinct, too.
    """
    classes = np.zeros_like(answer.y) if case.unknowns else answer.y
    pairs = tuple(pair for pair in nearest_pairs(answer.x, classes) if certified[list(pair)].any())
    return indistinct(
        case.received.share, case.observation, answer.x, answer.y, answer_misfit, pairs=pairs,
        skip_zeros=case.received.in_part, undone=case.received.undone,
    )  # fmt: skip


def without_weight(case: Case, answer: Answer) -> np.ndarray:
    """(B,) bool: images that count for so little that noise on one of them alone does not change the update."""
    noise = NOISE * jax.random.normal(stream_of(case.key, Stream.WEIGHT), answer.x.shape)
    others = np.clip(answer.x + np.asarray(noise), 0, 1)
    return one_by_one(comparing(case, answer), answer, others, np.ones(len(answer.x), bool))


def of_open_pixels(case: Case, answer: Answer, asked: np.ndarray) -> np.ndarray:
    """(B,) bool: images whose darkest or brightest pixels may take other dark or bright values without any effect.

    This happens if the first layer reads every pixel by itself and is dead for dark ones or saturated for bright ones.
    A search for a rival misses these images, since it brings their other pixels back to the answer.

    Args:
        case: the audited update.
        answer: the answer.
        asked: (B,) bool, the images to test.
    """
    explained, found = comparing(case, answer), np.zeros(len(answer.x), bool)
    draws = np.asarray(jax.random.uniform(stream_of(case.key, Stream.OPEN), answer.x.shape))
    pixels = tuple(range(1, answer.x.ndim))
    for share in _OPEN_SHARES:
        low, high = (np.quantile(answer.x, at, axis=pixels, keepdims=True) for at in (share, 1 - share))
        dark = np.where(answer.x <= low, draws * low, answer.x)
        bright = np.where(answer.x >= high, high + draws * (1 - high), answer.x)
        for others in (dark, bright):
            another = ~(similarity(others, answer.x) >= RECOGNISED_ABOVE)
            found |= one_by_one(explained, answer, others, asked & another & ~found)
    return found


def one_by_one(
    explained: Callable[[np.ndarray], bool], answer: Answer, others: np.ndarray, asked: np.ndarray
) -> np.ndarray:
    """(B,) bool: tested places where another image, put there alone, explains the update as well as the answer.

    Args:
        explained: what `comparing` returns.
        answer: the answer.
        others: (B, H, W, C) another image for each place.
        asked: (B,) bool, the places to test.
    """
    found = np.zeros(len(answer.x), bool)
    for place in np.flatnonzero(asked):
        x = answer.x.copy()
        x[place] = others[place]
        found[place] = explained(x)
    return found


def comparing(case: Case, answer: Answer) -> Callable[[np.ndarray], bool]:
    """Function that says whether images explain the update, and its layers below the head alone, as well as an answer.

    These layers are tested because the head may make up nearly all of the update while its gradient hardly depends on
    the images.
    """
    by, seen, y = case.received, case.observation, jnp.asarray(answer.y)
    lower = _layers_below(case, {name: float(norm(leaf)) for name, leaf in named_leaves(by.told(seen)).items()})

    def misfits(x: np.ndarray) -> tuple[float, float]:
        whole, below = _misfits_of_parts(by, lower, seen, jnp.asarray(x), y)
        return float(whole), float(below)

    of_answer = misfits(answer.x)

    def explained(x: np.ndarray) -> bool:
        return all(explains_as_well(other, own) for other, own in zip(misfits(x), of_answer, strict=True))

    return explained


@jitted_for_few(0, 1)
def _misfits_of_parts(
    by: Received, lower: tuple[str, ...], seen: Observation, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Relative misfits of the whole update and of some leaves by themselves; 0 for no leaves."""
    own = by.of(seen, x, y)
    explained = by.explained(seen, own)
    if not lower:
        return misfit(explained, own), jnp.zeros(())
    parts = [{name: leaf for name, leaf in named_leaves(tree).items() if name in lower} for tree in (explained, own)]
    return misfit(explained, own), misfit(*parts)
