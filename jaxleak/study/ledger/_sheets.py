"""Contact sheets of a reproduction: the private images, and below them the reconstructions behind a table's cells."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxleak.study import sheets
from jaxleak.study.ledger._entry import MEASURED, Entry
from jaxleak.study.ledger._measurement import Study
from jaxleak.study.ledger._store import Ledger

#: Images of a run: `truth` and `estimate` (I, H, W, C).
Pictures = Mapping[str, np.ndarray]

#: Number of images in a row of a sheet, and largest number of rows below the truth.
COLUMNS, ROWS = 8, 8
#: Fields of a printed cell that are not listed among the settings: they do not say what was run, or stand first.
_UNSAID = ("id", "method", "dataset", "value", "unit", "relation", "refers_to")
#: Full names of what papers abbreviate.
_SPOKEN = {"IG": "Inverting Gradients", "GI": "GradInversion", "fl": "FL", "tv_percentile": "percentile of the TV"}
#: Largest height of an image in pixels that is shown; larger images would make a sheet too large for a page.
_LARGEST = 64


def draw_sheets(
    study: Study,
    ledger: Ledger,
    folder: Path,
    shown: Callable[[Entry], bool] = lambda _: True,
    title: Callable[[str], str] = str,
) -> list[Path]:
    """Draw one sheet per table from the finished runs in the study's folder; returns the files.

    Two runs show different images if their data, seeds or batches differ. A sheet shows the rows of those measurements
    of a table that have the same private images for their first seed; of several such groups, it shows the largest.

    Args:
        study: study with the finished runs; nothing is run.
        ledger: ledger, whose entries say which measurements there are.
        folder: folder for the PNG files, which are named by paper and table.
        shown: function that says whether a measured entry is shown; only entries in dB are asked about.
        title: function that returns the title of a table's sheet, given the table's name.
    """
    tables: dict[str, dict[str, dict[str, Pictures]]] = {}
    for entry, pictures in _measured(study, ledger, shown):
        common = tables.setdefault(entry.table, {}).setdefault(_same(pictures), {})
        common[row_label(ledger, entry)] = pictures
    written = []
    for table, groups in tables.items():
        rows = max(groups.values(), key=len)
        truth = next(iter(rows.values()))["truth"]
        images = {"private images": truth} | {label: found["estimate"] for label, found in list(rows.items())[:ROWS]}
        path = folder / f"{ledger.paper}-{table}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        sheets.comparison_sheet(path, images, title=title(table), columns=COLUMNS)
        written.append(path)
    return written


def row_label(ledger: Ledger, entry: Entry) -> str:
    """Return the label of a measurement's row: method, data and settings in words, the variant, and the number.

    If the run used other data than the paper, the label says which, since the images above come from those data.
    """
    cell = ledger.printed[entry.cell]
    data = cell.get("dataset", "")
    settings = [
        f"{_SPOKEN.get(name, name.replace('_', ' '))} {said}" for name, said in cell.items() if name not in _UNSAID
    ]
    method = _SPOKEN.get(cell.get("method", ""), cell.get("method", ""))
    what = ", ".join(filter(None, (method, data, *settings))) or entry.cell.partition("/")[2]
    others = [part.removesuffix(f" for {data}") for part in entry.differs.split("; ") if part.endswith(f" for {data}")]
    stands_in = f"images of {others[0]} in place of {data}" if data and others else ""
    kind = ", ".join(filter(None, (entry.variant, entry.name, stands_in)))
    return f"{what} ({kind}): {entry.value:.1f} {entry.unit}"


def _measured(study: Study, ledger: Ledger, shown: Callable[[Entry], bool]) -> Iterator[tuple[Entry, Pictures]]:
    """Yield the entry and the images of every measurement whose first run is finished here and has images.

    A run that serves several cells of a table, such as a run on CIFAR-10 in place of SVHN, is shown once.
    """
    seen = set()
    for measurement in study.measurements():
        entry = ledger.entries.get(measurement.key)
        if entry is None or entry.status not in MEASURED or entry.unit != "dB" or not shown(entry):
            continue
        job, seed = measurement.jobs[0], next(iter(entry.seeds))
        run = (entry.table, job, seed)
        if run in seen or not study.runner.done(job, seed):
            continue
        seen.add(run)
        pictures = study.runner(job, seed).arrays
        if "truth" in pictures and pictures["truth"].shape[1] <= _LARGEST:
            yield entry, pictures


def _same(pictures: Pictures) -> str:
    truth = np.ascontiguousarray(pictures["truth"][:COLUMNS])
    return hashlib.sha256(f"{truth.shape}".encode() + truth.tobytes()).hexdigest()
