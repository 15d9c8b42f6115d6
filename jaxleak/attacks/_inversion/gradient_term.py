"""The data term of nearly all inversions: the distance between the observed and the simulated gradient."""

import functools
from collections.abc import Hashable
from typing import NamedTuple
from typing import Protocol as TypingProtocol

import jax
import jax.numpy as jnp

from jaxleak._base import Batch, Observation, PyTree
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.objectives import Distance, Selection, apply_mask, check_distance, cosine
from jaxleak.objectives._check_distance import is_foreign

#: Below this cosine distance between the observed and the simulated gradient the gradient counts as matched. This is a
#: convention, and it says nothing about the image. In our runs iDLG on a sigmoid ResNet ended at 0.0012 with 9.9 dB,
#: where a grey image scores 13.1, an attack on a vision transformer at 3.6e-6 with 12.8 dB, and digits out of a
#: generator at 0.004 with 13 dB; a smoothed attack on a ResNet found an image of SSIM .99 and stayed at 0.08.
MATCHED_BELOW = 0.01


class Undone(TypingProtocol):
    """What the server can undo of the client's changes to its gradient before the upload."""

    def read(self, observation: Observation) -> Observation:
        """The observation with the likeliest gradient as its payload; label rules read this one."""

    def nearest(self, observation: Observation, simulated: PyTree) -> PyTree:
        """The gradient nearest to a simulated one, among all gradients that agree with the payload."""

    def told(self, observation: Observation) -> PyTree:
        """A tree of bool: which entries of the gradient are known well enough to serve as equations."""


def to_explain(undone: Undone | None, observation: Observation, simulated: PyTree) -> PyTree:
    """The target that a simulated gradient must equal to explain an observation; no derivative flows through it."""
    if undone is None:
        return observation.payload
    return undone.nearest(observation, jax.lax.stop_gradient(simulated))


def _check(distance: Distance, model: Classifier) -> None:
    """Check a user's distance once for a model; the check takes seconds for a model of many layers."""
    # A callable object may have no hash.
    check = _checked if isinstance(distance, Hashable) else _checked.__wrapped__
    check(distance, model)


@functools.lru_cache(maxsize=64)
def _checked(distance: Distance, model: Classifier) -> None:
    check_distance(distance, jax.eval_shape(model.init, jax.random.key(0))["params"])


class Gradients(NamedTuple):
    """Compare whole gradients or updates, or the entries that a selection picks.

    Attributes:
        distance: `(observed, simulated) -> ()`, see `jaxleak.objectives`.
        selection: which entries are compared; None compares all.
        undone: if the payload is not a gradient, what is known about the gradient behind it; None compares the payload.
        arrived: the entries that reached the server, if it knows that others were left out; None if all did. Only these
            entries decide whether the gradient counts as matched.
    """

    distance: Distance
    selection: Selection | None = None
    undone: Undone | None = None
    arrived: Selection | None = None

    @property
    def reads_labels(self) -> bool:
        """A gradient depends on the labels."""
        return True

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """The whole payload is compared."""
        del model, batch_size
        return None

    def term(self, setup: Setup) -> DataTerm:
        """The distance between the observed payload and the one that `setup.share` simulates for the candidate.

        Raises `ValueError` if a user's distance fails `objectives.check_distance`.
        """
        distance, selection, undone, arrived = self
        if is_foreign(distance):
            _check(distance, setup.model)

        def compare(
            observation: Observation, x: jax.Array, y: jax.Array, mask: PyTree, sharpness: Sharpness
        ) -> Compared:
            batch = Batch(x[:, None], y, jnp.arange(setup.batch_size))
            simulated = setup.share(observation.params, batch, sharpness=sharpness)
            observed = to_explain(undone, observation, simulated)
            if mask is None and selection is not None:
                mask = selection(observed, simulated)
            if mask is not None:
                value = distance(apply_mask(mask, observed), apply_mask(mask, simulated))
            else:
                value = distance(observed, simulated)
            if arrived is not None:
                kept = arrived(observed, simulated)
                observed, simulated = apply_mask(kept, observed), apply_mask(kept, simulated)
            return Compared(mask, value, jax.lax.stop_gradient(cosine(observed, simulated)))

        return DataTerm(compare, MATCHED_BELOW)
