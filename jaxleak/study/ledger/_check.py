"""Recorded cells, drawn at random and run again."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxleak.study.files import write_json
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
    again: float | None  # None where the run failed
    agrees: bool
    note: str = ""


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
        results: what was run again.
        longest: seconds that a seed of an entry might have taken to be drawn.
        folder: the ledgers' folder.
        commit: the commit that ran.
    """
    path = folder / RECHECKS_FILE
    cells = [
        {
            "cell": "/".join(filter(None, (r.paper, *r.entry.key))),
            "seed": r.seed,
            "recorded": r.entry.seeds[r.seed],
            "again": r.again,
            "agrees": r.agrees,
            "note": r.note,
        }
        for r in results
    ]
    made = {"commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "longest": longest}
    write_json(path, {**made, "agree": sum(r.agrees for r in results), "cells": cells})
    return path


def recheck(paper: str, entry: Entry, study: Study) -> Recheck:
    """Run an entry's measurement again with the first of its seeds.

    Args:
        paper: name of the entry's paper.
        entry: measured.
        study: the study of that paper; its folder must be empty, or nothing would run.
    """
    seed = min(entry.seeds)
    measurement = _of(entry, study)
    if measurement is None:
        return Recheck(paper, entry, seed, None, False, "the ledger has this entry, and no command makes it any more")
    try:
        again = float(measurement.read([study.runner(job, seed) for job in measurement.jobs]))
    except Exception as error:  # a cell that fails now is what is looked for
        return Recheck(paper, entry, seed, None, False, f"{type(error).__name__}: {error}")
    return Recheck(paper, entry, seed, again, agrees(entry.seeds[seed], again, entry.spread or 0.0))


def _of(entry: Entry, study: Study) -> Measurement | None:
    return next((m for m in study.measurements() if m.key == entry.key), None)
