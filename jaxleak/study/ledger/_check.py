"""Rechecks: recorded cells are drawn at random and run again."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study.files import write_json
from jaxleak.study.ledger._data import DataSets
from jaxleak.study.ledger._entry import MEASURED, Entry
from jaxleak.study.ledger._measurement import Measurement, Study
from jaxleak.study.ledger._store import Ledger
from jaxleak.study.ledger._verdict import agrees

#: The file of the rechecks, beside the files of the ledgers.
RECHECKS_FILE = "checked.json"


class Recheck(NamedTuple):
    """The result of running one recorded cell again with the first of its recorded seeds."""

    paper: str
    entry: Entry
    seed: int
    again: float | None  # the new number; None if the run failed, or if there was no run
    agrees: bool | None  # None if the cell could not run, for example without its data: the answer is unknown
    note: str = ""

    @property
    def name(self) -> str:
        """The entry's name in messages: PAPER/TABLE/REST/VARIANT, and the measurement's own name if it has one."""
        return named(self.paper, self.entry)

    def __str__(self) -> str:
        """Say the result in one line."""
        if self.agrees is None:
            return f"could not run: {self.name}: {self.note}"
        word = "agrees" if self.agrees else "DIFFERS"
        again = "" if self.again is None else f"{self.again:.6g}"
        said = "; ".join(filter(None, (again, self.note)))
        return f"{word}: {self.name}, seed {self.seed}: {self.entry.seeds[self.seed]:.6g}, again {said}"


def named(paper: str, entry: Entry) -> str:
    """Return an entry's name in messages: PAPER/TABLE/REST/VARIANT, and the entry's own name if it has one."""
    return "/".join(filter(None, (paper, *entry.key)))


def draw_entries(
    ledgers: Sequence[Ledger],
    count: int,
    seed: int,
    longest: float,
    asked: Callable[[Entry], bool] = lambda _: True,
) -> tuple[list[tuple[Ledger, Entry]], int]:
    """Draw measured entries at random, and count the entries that took too long to be drawn.

    Args:
        ledgers: the ledgers whose entries are drawn.
        count: largest number of entries to draw.
        seed: seed of the draw.
        longest: seconds per seed that an entry may have taken to be drawn.
        asked: function that says whether an entry may be drawn; all may by default.
    """
    measured = [(ledger, e) for ledger in ledgers for e in ledger.entries.values() if e.status in MEASURED and asked(e)]
    affordable = [(ledger, e) for ledger, e in measured if (e.seconds or 0.0) / len(e.seeds) <= longest]
    order = np.random.default_rng(seed).permutation(len(affordable))[:count]
    return [affordable[i] for i in order], len(measured) - len(affordable)


def record_rechecks(results: Sequence[Recheck], longest: float, folder: Path, commit: str) -> Path:
    """Write the rechecks to `RECHECKS_FILE`, which a page of the documentation reads; returns the file.

    Args:
        results: the rechecks; those that could not run are left out.
        longest: seconds per seed that an entry might have taken to be drawn.
        folder: the ledgers' folder.
        commit: the commit that ran.
    """
    path = folder / RECHECKS_FILE
    cells = [
        {
            "cell": r.name,
            "seed": r.seed,
            "recorded": r.entry.seeds[r.seed],
            "again": r.again,
            "agrees": r.agrees,
            "note": r.note,
        }
        for r in results
        if r.agrees is not None
    ]
    made = {"commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "longest": longest}
    write_json(path, {**made, "agree": sum(cell["agrees"] for cell in cells), "cells": cells})
    return path


def recheck(paper: str, entry: Entry, study: Study, data_sets: DataSets | None = None) -> Recheck:
    """Run an entry's measurement again with the first of its seeds, on the data on which it was measured.

    Args:
        paper: name of the entry's paper.
        entry: an entry with a number.
        study: the study of that paper. Its folder must be empty: a stored result would be read instead of run again.
        data_sets: the data sets on which the ledger was measured; on other data nothing is run. None compares no data.
    """
    seed = min(entry.seeds)
    measurement = _of(entry, study)
    if measurement is None:
        return Recheck(paper, entry, seed, None, False, "the ledger has this entry, and no command makes it any more")
    unknown = data_sets.unknown(measurement.data) if data_sets else []
    note = f"no fingerprint of {', '.join(unknown)} is stored, so the samples may be other ones" if unknown else ""
    if data_sets:
        try:
            data_sets.require(measurement.data)
        except (ConfigMismatchError, OSError, ValueError) as error:
            return Recheck(paper, entry, seed, None, None, str(error))
    if measurement.reason:
        return Recheck(paper, entry, seed, None, None, measurement.reason)
    try:
        again = float(measurement.read([study.runner(job, seed) for job in measurement.jobs]))
    except (OSError, ImportError, MemoryError) as error:  # something missing on this machine does not refute the number
        return Recheck(paper, entry, seed, None, None, str(error))
    except Exception as error:  # a cell that fails now is a result of the recheck
        failed = f"{type(error).__name__}: {error}"
        return Recheck(paper, entry, seed, None, False, "; ".join(filter(None, (failed, note))))
    return Recheck(paper, entry, seed, again, agrees(entry.seeds[seed], again, entry.spread or 0.0), note)


def _of(entry: Entry, study: Study) -> Measurement | None:
    return next((m for m in study.measurements() if m.key == entry.key), None)
