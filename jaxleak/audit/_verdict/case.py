"""One audited update, and how well an answer explains it."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import objectives
from jaxleak._base import Batch, Observation
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks.adaptive._adam import undone_by
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.attacks.adaptive._simulation import simulated
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._independent import Independent, independent_numbers
from jaxleak.audit._received import Received, misfit
from jaxleak.audit._rounds import template_of
from jaxleak.audit._verdict.store import Store
from jaxleak.audit._verdict.verdict import Answer
from jaxleak.defenses import Defense
from jaxleak.protocols import ClientShare

#: Called as `(attack, iterations done, of how many, note)`.
Show = Callable[[str, int, int, str], None]
#: The cosine distance that a certificate requires where only bounds of the gradient are known. It is measured to the
#: nearest gradient within the bounds, so that it comes out too small: at a learning rate of 1e-5, two starts agreed on
#: a wrong image at 0.0069.
WITHIN_BOUNDS_BELOW = 0.001


@functools.lru_cache(maxsize=8)  # the same object every time, so that nothing is compiled twice
def received(share: ClientShare, defense: Defense | None, samples: int) -> Received:
    """How answers are compared with an update: through the defense, where one is stated and known."""
    if defense is None or defense.mechanism is None:
        return Received(share)
    mechanism = defense.mechanism
    client = KnownClient(defense, share.model, share, samples)
    return Received(simulated(mechanism.simulation, client), mechanism.zeroes, undone_by(defense))


class Case(NamedTuple):
    """One audited update.

    Attributes:
        share: the client as stated.
        observation: params and payload, and the label where these two show one without a head.
        samples: number of samples of all local steps and clients.
        store: where finished attacks are kept.
        key: random key of the attacks and of the tests of their answers.
        show: is told the progress.
        defended: whether the client has changed its update, which breaks exact equations.
        defense: the defense by which it did so, where that is known.
        loss_known: whether the loss is the cross-entropy that attacks and checks simulate.
        loss_shown: whether equations of the only sample have shown that the loss is the cross-entropy.
        precision: the format in which the update was sent.
        unknowns: how many numbers an answer leaves open besides the pixels: those of an unknown loss.
        contradicted: what in the update contradicts the client's statement, in a sentence.
    """

    share: ClientShare
    observation: Observation
    samples: int
    store: Store
    key: jax.Array
    show: Show
    defended: bool = False
    defense: Defense | None = None
    loss_known: bool = True
    loss_shown: bool = False
    precision: Precision = FULL
    unknowns: int = 0
    contradicted: str = ""

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


@jitted_for_few(0)
def misfits(by: Received, seen: Observation, x: jax.Array, y: jax.Array) -> jax.Array:
    own = by.of(seen, x, y)
    explained = by.explained(seen, own)
    return jnp.stack([misfit(explained, own), objectives.cosine(explained, own)])


def misfit_of(case: Case, x: np.ndarray, y: np.ndarray) -> float:
    """The relative misfit of images x (B, H, W, channels) and labels y (B,)."""
    return float(misfits(case.received, case.observation, jnp.asarray(x), jnp.asarray(y))[0])


def graded(case: Case, name: str, x: np.ndarray, y: np.ndarray, **fields: Any) -> Answer:
    """An answer with its misfit, from images x (B, H, W, channels), clipped to [0, 1], and labels y (B,)."""
    return graded_inputs(case, name, np.clip(np.asarray(x), 0, 1), y, **fields)


def graded_inputs(case: Case, name: str, x: np.ndarray, y: np.ndarray, **fields: Any) -> Answer:
    """An answer with its misfit as in `graded`, but with inputs in whatever range equations gave them."""
    x, seen = np.asarray(x, np.float32), case.observation
    relative, cosine = misfits(case.received, seen, jnp.asarray(x), jnp.asarray(y))
    # With fewer equations than unknowns, the prior decides the rest, and independent starts agree on what it prefers.
    held = case.held
    determined = held.entries >= x.size + case.unknowns and held.passed >= x.size
    if case.received.undone is not None:
        determined &= bool(cosine < WITHIN_BOUNDS_BELOW)
    return Answer(
        name, x, np.asarray(y), float(relative), float(cosine), determined=determined,
        contradicted=case.contradicted, **fields,
    )  # fmt: skip


def rounding_of(case: Case) -> float:
    """The most that rounding may have changed in the update, relative to its norm; infinite where it is not known."""
    seen = case.observation
    payload, weights = named_leaves(seen.payload), named_leaves(seen.params["params"])
    if case.precision.of_weights and payload.keys() - weights.keys():
        return math.inf  # a gradient that was computed from the update, in a unit of its own
    errors = [case.precision.error(np.asarray(leaf), weights.get(name)) for name, leaf in payload.items()]
    return float(np.linalg.norm(errors) / norm(seen.payload))
