"""Recorded cells, drawn at random and run again."""

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

#: The file of what was run again, beside those of the ledgers.
RECHECKS_FILE = "checked.json"


class Recheck(NamedTuple):
    """One cell run again with the first of its recorded seeds."""

    paper: str
    entry: Entry
    seed: int
    again: float | None  # None where the run failed, or where there was none
    agrees: bool | None  # None where it could not run, for want of data for example: nobody knows
    note: str = ""

    @property
    def name(self) -> str:
        """PAPER/TABLE/REST/VARIANT, with the measurement's own name where it has one."""
        return named(self.paper, self.entry)

    def __str__(self) -> str:
        """One line that says what came of it."""
        if self.agrees is None:
            return f"could not run: {self.name}: {self.note}"
        word = "agrees" if self.agrees else "DIFFERS"
        again = "" if self.again is None else f"{self.again:.6g}"
        said = "; ".join(filter(None, (again, self.note)))
        return f"{word}: {self.name}, seed {self.seed}: {self.entry.seeds[self.seed]:.6g}, again {said}"


def named(paper: str, entry: Entry) -> str:
    """What messages call an entry: PAPER/TABLE/REST/VARIANT, with its own name where it has one."""
    return "/".join(filter(None, (paper, *entry.key)))


def draw_entries(
    ledgers: Sequence[Ledger],
    count: int,
    seed: int,
    longest: float,
    asked: Callable[[Entry], bool] = lambda _: True,
) -> tuple[list[tuple[Ledger, Entry]], int]:
    """Random measured entries, and how many took too long to be drawn from.

    Args:
        ledgers: the ledgers whose entries are drawn.
        count: how many are drawn at most.
        seed: seed of the draw.
        longest: seconds that a seed of an entry may have taken.
        asked: which entries are meant; all by default.
    """
    measured = [(ledger, e) for ledger in ledgers for e in ledger.entries.values() if e.status in MEASURED and asked(e)]
    affordable = [(ledger, e) for ledger, e in measured if (e.seconds or 0.0) / len(e.seeds) <= longest]
    order = np.random.default_rng(seed).permutation(len(affordable))[:count]
    return [affordable[i] for i in order], len(measured) - len(affordable)


def record_rechecks(results: Sequence[Recheck], longest: float, folder: Path, commit: str) -> Path:
    """Write what was run again to `RECHECKS_FILE`, from where a page has it; returns the file.

    Args:
        results: what was run again; those that could not run are left out.
        longest: seconds that a seed of an entry might have taken to be drawn.
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
    """Run an entry's measurement again with the first of its seeds, on the data that it was measured on.

    Args:
        paper: name of the entry's paper.
        entry: measured.
        study: the study of that paper; its folder must be empty, or nothing would run.
        data_sets: the data sets that the ledger was measured on; on other ones nothing is run. None compares no data.
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
    except (OSError, ImportError, MemoryError) as error:  # what this machine lacks says nothing about the number
        return Recheck(paper, entry, seed, None, None, str(error))
    except Exception as error:  # a cell that fails now is what is looked for
        failed = f"{type(error).__name__}: {error}"
        return Recheck(paper, entry, seed, None, False, "; ".join(filter(None, (failed, note))))
    return Recheck(paper, entry, seed, again, agrees(entry.seeds[seed], again, entry.spread or 0.0), note)


def _of(entry: Entry, study: Study) -> Measurement | None:
    return next((m for m in study.measurements() if m.key == entry.key), None)
