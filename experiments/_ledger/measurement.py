"""What there is to run for a printed cell."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from experiments._ledger.entry import Variant


@dataclass(frozen=True)
class Measurement:
    """A printed cell in one variant: the jobs that have to run for a seed, and how its number is read off them."""

    cell: str
    variant: Variant
    differs: str  # what is not as printed; empty for `printed` alone
    jobs: tuple[Hashable, ...]  # equal jobs run once
    read: Callable[[Sequence[Any]], float]  # of the jobs' results, in their order
    data: tuple[str, ...] = ()  # data specifications that the jobs read
    name: str = ""  # tells the readings of one cell and variant apart
    reason: str = ""  # why it cannot run here, if it cannot

    @property
    def key(self) -> tuple[str, Variant, str]:
        """The key of the measurement's entry in the ledger."""
        return self.cell, self.variant, self.name


#: Images of a run that can be looked at: `truth` and `estimate` (I, H, W, C), and `index` (I,) if some were left out.
Pictures = Mapping[str, np.ndarray]


class Study(Protocol):
    """The runs behind one paper."""

    def measurements(self) -> Iterator[Measurement]:
        """All of them, in any order; cells without one are in `impossible`."""

    def impossible(self) -> Mapping[str, str]:
        """Cells for which nothing can be run, with the reason."""

    def cost(self, job: Hashable) -> float:
        """Estimated seconds of one seed."""

    def run(self, job: Hashable, seed: int) -> Any:
        """The result of a job with one seed; a finished one is read back."""

    def done(self, job: Hashable, seed: int) -> bool:
        """Whether `run` costs nothing."""

    def pictures(self, job: Hashable, seed: int) -> Pictures | None:
        """What a finished job reconstructed; None where it has no images."""
