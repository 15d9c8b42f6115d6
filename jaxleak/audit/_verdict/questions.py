"""What is asked of an answer before its images are certified; nothing here knows the truth."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import objectives
from jaxleak._base import Batch, PyTree
from jaxleak._random_streams import stream_of
from jaxleak._tree import named_leaves
from jaxleak.attacks._inversion.peeling import CUT
from jaxleak.audit._descent import explains_as_well
from jaxleak.audit._indistinct import indistinct, nearest_pairs
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._received import compiled
from jaxleak.audit._rival import Rival, rival
from jaxleak.audit._verdict.case import Case, misfit_of
from jaxleak.audit._verdict.verdict import Answer
from jaxleak.protocols._defending import mean_of_examples

#: The layers below the head are looked at by themselves if their norm is above this share of the update's, and so many
#: times what rounding may have changed in them.
_LOWER_LAYERS_COUNT, _OVER_ROUNDING = 1e-3, 10
#: How much of an image is left where its brightness is asked for. A tenth less would change the update of one image
#: among many by as little as a search leaves.
_DIMMED = 0.5
#: The standard deviation of noise that changes an image to another one.
_NOISE = 0.2
#: The share of the next image in a blend. Half of it would make two images the same one, which no loss undoes.
_BLENDED = 0.4


def distance_of_truth(case: Case, answer: Answer) -> float | None:
    """The cosine distance that noise alone puts between a client's own images and its update, told by the answer's.

    None where the client states no noise on its whole update.
    """
    defense = case.defense
    if defense is None or defense.place != "payload" or defense.mechanism is None or defense.mechanism.noise is None:
        return None
    drawn = _defended_anew(case, answer)
    return None if drawn is None else float(objectives.cosine(*drawn))


class Noise(NamedTuple):
    """What the stated defense alone changes in an update, by its leaves."""

    off: dict[str, float]  # norm of the change
    norms: dict[str, float]  # norm of what is compared

    def of(self, names: Collection[str]) -> float:
        """The change of some leaves relative to them; 0 of leaves that are zero."""
        size = math.hypot(*(self.norms[name] for name in names))
        return math.hypot(*(self.off[name] for name in names)) / size if size else 0.0


def left_by_noise(case: Case, answer: Answer) -> Noise | None:
    """What the stated defense alone leaves of an update, told by the answer's.

    None where no defense is stated, or none that this client can apply by itself, as where only several clients
    together could draw the noise, and where only bounds of the gradient are seen.

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
    """The update of an answer behind the stated defense, with noise drawn anew, and without it.

    None where no defense is stated, or none that this client can apply by itself.
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
    known = {"model": case.share.model, "variables": seen.params, "x": x[:, 0], "y": y, "mode": case.share.batch_norm}
    return defense.apply(key, own, **known, round=0), own


def left_below_head(case: Case, other: Rival, noise: Noise | None) -> float:
    """How much of the layers below the head is left by images near an answer, relative to what arrived of them.

    It is 0 where the head is not known, and where these layers are below a thousandth of the update or rounding may
    have changed them by more than a tenth: then nothing can be said of them. What the stated noise leaves is taken off.
    """
    head = {*case.share.model.head_leaves, CUT}
    lower = [name for name in other.part_norms if name not in head]
    if len(lower) == len(other.part_norms):
        return 0.0
    payload, weights = named_leaves(case.observation.payload), named_leaves(case.observation.params["params"])
    if case.precision.of_weights and set(lower) - weights.keys():
        return 0.0  # what was computed from the update, in a unit of its own
    size = math.hypot(*(other.part_norms[name] for name in lower))
    rounding = math.hypot(*(case.precision.error(np.asarray(payload[name]), weights.get(name)) for name in lower))
    if size <= max(_LOWER_LAYERS_COUNT * math.hypot(*other.part_norms.values()), _OVER_ROUNDING * rounding):
        return 0.0
    off = math.hypot(*(other.answer_parts[name] * other.part_norms[name] for name in lower if other.part_norms[name]))
    return math.sqrt(max((off / size) ** 2 - (0.0 if noise is None else noise.of(lower)) ** 2, 0.0))


def blended(x: np.ndarray) -> np.ndarray:
    """Images (N, H, W, channels) with a share of the next one in each.

    A linear layer has the same gradient for blended inputs with derivatives of the loss that undo the blend, so that
    whoever does not know the loss tells images from blends by what nonlinear layers make of them.
    """
    return (1 - _BLENDED) * x + _BLENDED * np.roll(x, 1, axis=0)


def rival_of(case: Case, answer: Answer, start: np.ndarray | None = None, **options: Any) -> Rival:
    """Other images with the update of an answer, from noise or a start, and what images near the answer leave."""
    return rival(
        case.received.share, case.observation, answer.x, answer.y, key=case.key, start=start,
        skip_zeros=case.received.in_part, undone=case.received.undone, **options,
    )  # fmt: skip


def indistinct_of(case: Case, answer: Answer, answer_misfit: float, certified: np.ndarray) -> np.ndarray:
    """(B,) bool: images that the update does not tell from another one; of no pair is it asked without a certified one.

    Under a loss that is not known, images of any two classes may be alike to the update: what its loss makes of each is
    fitted to it.
    """
    classes = np.zeros_like(answer.y) if case.unknowns else answer.y
    pairs = tuple(pair for pair in nearest_pairs(answer.x, classes) if certified[list(pair)].any())
    return indistinct(
        case.received.share, case.observation, answer.x, answer.y, answer_misfit, pairs=pairs,
        skip_zeros=case.received.in_part, undone=case.received.undone,
    )  # fmt: skip


def dimmer_images(case: Case, answer: Answer) -> np.ndarray:
    """(B,) bool: images of half the brightness whose update is explained as well.

    In a network of ReLUs without biases, half an image and twice the derivatives of its loss have the same gradient. If
    statistics normalise what comes first, half an image has the same outputs; of batch statistics, the whole batch.
    """
    if explains_as_well(misfit_of(case, _DIMMED * answer.x, answer.y), answer.misfit):
        return np.ones(len(answer.x), bool)
    return _explained_one_by_one(case, answer, _DIMMED * answer.x)


def without_weight(case: Case, answer: Answer) -> np.ndarray:
    """(B,) bool: images that count for so little that noise on one of them alone does not change the update."""
    noise = _NOISE * jax.random.normal(stream_of(case.key, Stream.WEIGHT), answer.x.shape)
    return _explained_one_by_one(case, answer, np.clip(answer.x + np.asarray(noise), 0, 1))


def _explained_one_by_one(case: Case, answer: Answer, others: np.ndarray) -> np.ndarray:
    """(B,) bool: whether the update is explained as well with the other image (B, H, W, C) in that place alone."""
    found = np.zeros(len(answer.x), bool)
    for place in range(len(found)):
        x = answer.x.copy()
        x[place] = others[place]
        found[place] = explains_as_well(misfit_of(case, x, answer.y), answer.misfit)
    return found
