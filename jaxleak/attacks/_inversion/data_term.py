"""The data term of an inversion: what of the update is compared with what a candidate would have sent.

`Settings.compare` holds a `Comparison`, such as `Gradients`, `AnyLoss` or `RowSpaces`. A new one is a class in a file
of its own that has the two methods and the property below; the engine asks for nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple
from typing import Protocol as TypingProtocol

import jax

from jaxleak._base import Observation, PyTree
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness


class Compared(NamedTuple):
    """How far a candidate is from what was observed."""

    mask: PyTree  # which entries were compared, for a second evaluation of the same ones; None compares all
    distance: jax.Array  # () what is descended
    misfit: jax.Array  # () what decides whether the update counts as matched; no gradient flows through it


class DataTerm(NamedTuple):
    """A comparison on one model.

    compare: `(observation, x (B, H, W, channels), y (B, C) soft labels, mask or None, sharpness) -> Compared`.
    matched_below: the misfit below which the update counts as matched.
    simulate: `(observation, x, sharpness) -> payload` of a comparison that does not know the client's loss; None where
        the client's own share simulates.
    """

    compare: Callable[[Observation, jax.Array, jax.Array, PyTree, Sharpness], Compared]
    matched_below: float
    simulate: Callable[[Observation, jax.Array, Sharpness], PyTree] | None = None


class Comparison(TypingProtocol):
    """What `Settings.compare` is."""

    @property
    def reads_labels(self) -> bool:
        """Whether the distance depends on the labels."""

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """Which leaves of the payload are compared, as paths like "head" with all below; None is the whole payload."""

    def term(self, setup: Setup) -> DataTerm:
        """The data term on this model; raises `ValueError` where the comparison means nothing there."""
