"""Measurements: what has to run for a printed cell."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxleak.study.cells import Results
from jaxleak.study.ledger._entry import Variant
from jaxleak.study.runner import Runner


@dataclass(frozen=True)
class Measurement:
    """A printed cell in one variant: the jobs that have to run for a seed, and how the number is read from them."""

    cell: str
    variant: Variant
    differs: str  # how the set-up differs from the paper's; empty only for the variant `printed`
    jobs: tuple[Any, ...]  # hashable values; equal jobs run once
    read: Callable[[Results], float]  # number read from the jobs' results, in their order
    data: tuple[str, ...] = ()  # data specifications that the jobs read
    name: str = ""  # tells the readings of one cell and variant apart
    reason: str = ""  # why the measurement cannot run here; empty if it can
    partial: bool = False  # whether it measures one of several numbers that all have to reach the printed bound

    @property
    def key(self) -> tuple[str, Variant, str]:
        """The key of the measurement's entry in the ledger."""
        return self.cell, self.variant, self.name


class Study(Protocol):
    """The runs behind one paper."""

    runner: Runner

    def measurements(self) -> Iterator[Measurement]:
        """Yield all measurements, in any order; cells without a measurement are in `impossible`."""

    def impossible(self) -> Mapping[str, str]:
        """Map every cell for which nothing can be run to the reason."""
