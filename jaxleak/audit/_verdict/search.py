"""Attacks that search, within a budget: independent starts of one inversion, their answer and how far they agree."""

import functools
import math
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import objectives
from jaxleak._base import Attack, Batch, Observation, PyTree
from jaxleak._random_streams import stream_of
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks._inversion.peeling import CUT
from jaxleak.attacks.adaptive._adam import undone_by
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.attacks.adaptive._simulation import simulated
from jaxleak.audit._agreement import agreement
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._descent import explains_as_well
from jaxleak.audit._independent import Independent, independent_numbers
from jaxleak.audit._indistinct import indistinct, nearest_pairs
from jaxleak.audit._invert import InversionRun, all_starts, invert
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._received import Received, compiled, misfit
from jaxleak.audit._restarts import best_restart
from jaxleak.audit._rival import Rival, rival
from jaxleak.audit._rounds import template_of
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.store import SpentError, Store
from jaxleak.audit._verdict.verdict import Answer, called
from jaxleak.defenses import Defense
from jaxleak.protocols import ClientShare
from jaxleak.protocols._defending import mean_of_examples

#: Called as `(attack, iterations done, of how many, note)`.
Show = Callable[[str, int, int, str], None]
STARTS = 2
#: Iterations between two looks at the clock, the most that take less than a share of what the budget has left.
_CHUNKS, _SHARE_OF_LEFT = (50, 10, 2), 0.25
#: Gradients of the client that one iteration of one start costs, at the most: the attack differentiates them again.
_GRADIENTS_PER_ITERATION = 4
#: The cosine distance that a certificate takes where a gradient is known between bounds. The nearest gradient between
#: them is nearer than the gradient itself: at a rate of 1e-5 two starts agreed on a wrong image at 0.0069.
WITHIN_BOUNDS_BELOW = 0.001
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


@functools.lru_cache(maxsize=8)  # the same object every time, so that nothing is compiled twice
def received(share: ClientShare, defense: Defense | None, samples: int) -> Received:
    """How answers are compared with an update: through the defense, where one is stated and known."""
    if defense is None or defense.mechanism is None:
        return Received(share)
    mechanism = defense.mechanism
    client = KnownClient(defense, share.model, share, samples)
    return Received(simulated(mechanism.simulation, client), mechanism.zeroes, undone_by(defense))


class Case(NamedTuple):
    """One audited update."""

    share: ClientShare
    observation: Observation  # params and payload; where these two show a label without a head, that label as well
    samples: int  # number of samples of all local steps and clients
    store: Store
    key: jax.Array
    show: Show
    defended: bool = False  # whether the client has changed its update in a way that equations do not survive
    defense: Defense | None = None  # how, where that is known
    loss_known: bool = True  # whether the loss is the cross-entropy that attacks and checks simulate
    loss_shown: bool = False  # whether equations of the only sample have shown that the loss is the cross-entropy
    precision: Precision = FULL  # the format in which the update was sent
    unknowns: int = 0  # how many numbers besides the pixels an answer leaves open, by which an unknown loss enters

    @property
    def received(self) -> Received:
        """How answers are compared with the update."""
        return received(self.share, self.defense, self.samples)

    @property
    def held(self) -> Independent:
        """How many numbers of the update can depend on the images."""
        by = self.received
        zeros_tell = not by.in_part and by.undone is None
        told = by.told(self.observation)
        return independent_numbers(self.share, told, self.samples, zeros_tell=zeros_tell)

    @property
    def template(self) -> Batch:
        """Shapes of the private batch."""
        numbers: Any = np.zeros(self.samples, np.int32)
        images: Any = np.zeros((self.samples, 1, *self.share.model.image_shape), np.float32)
        return template_of(Batch(images, numbers, numbers))


@functools.partial(jax.jit, static_argnums=0)
def _misfits(by: Received, seen: Observation, x: jax.Array, y: jax.Array) -> jax.Array:
    own = by.of(seen, x, y)
    explained = by.explained(seen, own)
    return jnp.stack([misfit(explained, own), objectives.cosine(explained, own)])


def misfit_of(case: Case, x: np.ndarray, y: np.ndarray) -> float:
    """The relative misfit of images x (B, H, W, channels) and labels y (B,)."""
    return float(_misfits(case.received, case.observation, jnp.asarray(x), jnp.asarray(y))[0])


def graded(case: Case, name: str, x: np.ndarray, y: np.ndarray, **fields: Any) -> Answer:
    """An answer with its misfit: x (B, H, W, channels), kept in [0, 1], and labels y (B,)."""
    return graded_inputs(case, name, np.clip(np.asarray(x), 0, 1), y, **fields)


def graded_inputs(case: Case, name: str, x: np.ndarray, y: np.ndarray, **fields: Any) -> Answer:
    """As `graded`, of inputs in whatever range equations gave them."""
    x, seen = np.asarray(x, np.float32), case.observation
    relative, cosine = _misfits(case.received, seen, jnp.asarray(x), jnp.asarray(y))
    # Fewer equations than unknowns leave the rest to the prior, on which independent starts agree.
    held = case.held
    determined = held.entries >= x.size + case.unknowns and held.passed >= x.size
    if case.received.undone is not None:
        determined &= bool(cosine < WITHIN_BOUNDS_BELOW)
    return Answer(name, x, np.asarray(y), float(relative), float(cosine), determined=determined, **fields)


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


def _chunk(case: Case) -> int:
    """How many iterations a search may do before it looks at the clock; no result depends on it."""
    empty = jnp.zeros((case.samples, *case.share.model.image_shape)), jnp.zeros(case.samples, jnp.int32)
    once = functools.partial(_misfits, case.received, case.observation, *empty)
    jax.block_until_ready(once())  # compiles
    begin = time.monotonic()
    jax.block_until_ready(once())
    iteration = STARTS * _GRADIENTS_PER_ITERATION * (time.monotonic() - begin)
    return next((n for n in _CHUNKS if n * iteration < _SHARE_OF_LEFT * case.store.left), _CHUNKS[-1])


def search(
    case: Case, name: str, attack: Attack, observation: Observation, *, y: np.ndarray | None = None
) -> tuple[Answer | None, float]:
    """Run independent starts of an attack until they are done or the budget is spent.

    Args:
        case: the audited update.
        name: what checkpoints and progress call the attack.
        attack: with a schedule.
        observation: what it sees.
        y: labels (B,) of the answer where the attack infers none.

    Returns:
        The answer of the best start by the attack's own score, None where the budget was spent before the search had
        begun; and the seconds of an iteration of all starts.
    """
    total = attack.iterations
    assert total is not None
    chunk = _chunk(case)
    if case.store.left <= 0:
        return None, 0.0
    case.show(f"compiling {called(name)}", 0, 1, "")
    watch = Stopwatch()
    last: list[tuple[int, InversionRun]] = []
    pace: list[float] = []
    marks = [time.monotonic()]

    def callback(done: int, run: InversionRun, infos: dict[str, np.ndarray]) -> None:
        last[:] = [(done, run)]
        pace.append((time.monotonic() - marks[-1]) / len(infos["distance"]))
        marks.append(time.monotonic())
        case.store.note()
        case.show(called(name), done, total, f"gradient distance {float(np.min(infos['distance'][-1])):.3g}")
        if case.store.left <= 0 and done < total:
            raise SpentError

    finished = True
    try:
        _, run, _ = invert(
            attack, observation, case.template, key=case.key, iterations=total, chunk=min(chunk, total),
            restarts=STARTS, callbacks=(callback,), checkpoints=case.store.checkpoints(name),
        )  # fmt: skip
        last[:] = [(total, run)]
    except SpentError:
        finished = False
    if not last:
        return None, 0.0
    done, run = last[0]
    starts = all_starts(attack, run, observation, restarts=STARTS)
    best = best_restart(starts)
    answer = graded(
        case, name, np.asarray(best.x[:, 0]), np.asarray(best.y) if y is None else y,
        agreement=agreement(starts).value, iterations=done, finished=finished,
    )  # fmt: skip
    if answer.shown.any():
        case.show(f"other images with the same update as {called(name)}", 0, 1, "")
        other = rival_of(case, answer)
        undetermined = other.undetermined
        if case.unknowns and len(answer.x) > 1:
            undetermined = undetermined | rival_of(case, answer, blended(answer.x)).undetermined
        undetermined = undetermined | indistinct_of(case, answer, other.answer_misfit, answer.shown & ~undetermined)
        undetermined = undetermined | without_weight(case, answer)
        noise = left_by_noise(case, answer)
        answer = answer._replace(
            undetermined=undetermined, remainder=other.answer_misfit, dimmer=dimmer_images(case, answer),
            noise=0.0 if noise is None else noise.of(noise.off),
        )  # fmt: skip
        answer = answer._replace(below_head=left_below_head(case, other, None if answer.lacks_noise else noise))
    spent: dict[str, Any] = watch.spent
    return answer._replace(**spent), float(np.median(pace[1:] or pace)) if pace else 0.0


def rounding_of(case: Case) -> float:
    """What rounding may have changed in the update, relative to it; infinite where that is not known."""
    seen = case.observation
    payload, weights = named_leaves(seen.payload), named_leaves(seen.params["params"])
    if case.precision.of_weights and payload.keys() - weights.keys():
        return math.inf  # a gradient that was computed from the update, in a unit of its own
    errors = [case.precision.error(np.asarray(leaf), weights.get(name)) for name, leaf in payload.items()]
    return float(np.linalg.norm(errors) / norm(seen.payload))


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
