"""What there is to run for a printed cell."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxleak.study.cells import Results
from jaxleak.study.ledger._entry import Variant
from jaxleak.study.runner import Runner


@dataclass(frozen=True)
class Measurement:
    """A printed cell in one variant: the jobs that have to run for a seed, and how its number is read off them."""

    cell: str
    variant: Variant
    differs: str  # what is not as printed; empty for `printed` alone
    jobs: tuple[Any, ...]  # hashable values; equal jobs run once
    read: Callable[[Results], float]  # number read from the jobs' results, in their order
    data: tuple[str, ...] = ()  # data specifications that the jobs read
    name: str = ""  # tells the readings of one cell and variant apart
    reason: str = ""  # why it cannot run here, if it cannot
    partial: bool = False  # whether it is of one number of several, of which all have to reach what is printed

    @property
    def key(self) -> tuple[str, Variant, str]:
        """The key of the measurement's entry in the ledger."""
        return self.cell, self.variant, self.name


class Study(Protocol):
    """The runs behind one paper."""

    runner: Runner

    def measurements(self) -> Iterator[Measurement]:
        """All of them, in any order; cells without one are in `impossible`."""

    def impossible(self) -> Mapping[str, str]:
        """Cells for which nothing can be run, with the reason."""
