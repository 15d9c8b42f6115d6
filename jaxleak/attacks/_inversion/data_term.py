"""The data term of an inversion: how the observed update is compared with a candidate's.

`Settings.compare` holds a `Comparison`, such as `Gradients`, `AnyLoss` or `RowSpaces`. To add a comparison, write a
class with the two methods and the property of `Comparison` in a file of its own; the engine needs nothing else.
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
    """How far a candidate's update is from the observed one.

    Attributes:
        mask: the entries that were compared, so that a second evaluation can use the same; None is all.
        distance: () the distance that is descended.
        misfit: () decides whether the update counts as matched; no gradient flows through it.
    """

    mask: PyTree
    distance: jax.Array
    misfit: jax.Array


class DataTerm(NamedTuple):
    """A comparison on one model.

    Attributes:
        compare: `(observation, x (B, H, W, channels), y (B, C) soft labels, mask or None, sharpness) -> Compared`.
        matched_below: the misfit below which the update counts as matched.
        simulate: `(observation, x, sharpness) -> payload`, for a comparison that does not know the client's loss; None
            if the client's own share simulates the payload.
    """

    compare: Callable[[Observation, jax.Array, jax.Array, PyTree, Sharpness], Compared]
    matched_below: float
    simulate: Callable[[Observation, jax.Array, Sharpness], PyTree] | None = None


class Comparison(TypingProtocol):
    """The interface of `Settings.compare`."""

    @property
    def reads_labels(self) -> bool:
        """Whether the distance depends on the labels."""

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """Which leaves of the payload are compared, as paths like "head" with all below; None is the whole payload."""

    def term(self, setup: Setup) -> DataTerm:
        """The data term on this model; raises `ValueError` if the comparison does not apply to it."""
