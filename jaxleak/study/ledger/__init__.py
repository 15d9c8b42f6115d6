"""A ledger of the numbers that a paper prints: what was run for each number, the result, or why there is no run.

A printed cell is measured in up to four variants (`VARIANTS`, from the paper's own algorithm to an attack of ours).
Every measurement leaves an `Entry`, one line of the ledger's file. An entry has the mean, the standard deviation and
every seed's number, a verdict by a rule that is stated before anything runs, the command, the commit, the versions and
the machine. A cell whose run failed, costs too much or is impossible has an entry with the reason.
`experiments.reproduce` keeps four such ledgers. A ledger of another paper needs a `Study`, which lists the measurements
and has a `jaxleak.study.runner.Runner` for their jobs:

    printed = {"table1/dlg": {"value": 20.0, "unit": "dB"}}   # by the cell's id, which begins with its table
    mine = ledger.Ledger("paper", Path("ledger"), printed)
    queue = ledger.Queue(study, mine, Path("runs"), record=True)
    with Progress() as progress:
        for entry in queue.run(list(study.measurements()), (0, 1, 2), 3600.0, progress):
            print(entry.cell, entry.status, entry.why)
    print(ledger.summary([mine])["met"])

Every cell gets its first number before any cell gets a second one, and cheap measurements go first: no cell is chosen,
left out or repeated because of its outcome. `recheck` runs an entry again, on the samples on which it was measured
according to `DataSets`, and `draw_sheets` shows the images behind the entries.
"""

from typing import TYPE_CHECKING

from jaxleak._lazy import lazy

if TYPE_CHECKING:
    from jaxleak.study.ledger._check import RECHECKS_FILE, Recheck, draw_entries, named, recheck, record_rechecks
    from jaxleak.study.ledger._claims import claims
    from jaxleak.study.ledger._data import DATA_FILE, DataSet, DataSets, data_of
    from jaxleak.study.ledger._entry import MEASURED, STATUSES, VARIANTS, Entry, Status, Variant, as_record, from_record
    from jaxleak.study.ledger._measurement import Measurement, Study
    from jaxleak.study.ledger._queue import LACKING, TOO_COSTLY, Queue, commit_of, impossible_entries, require_measured
    from jaxleak.study.ledger._sheets import draw_sheets
    from jaxleak.study.ledger._status import (
        NO_ENTRY,
        beyond_counts,
        cell_status,
        status_table,
        status_text,
        summary,
        table_counts,
        variant_counts,
    )
    from jaxleak.study.ledger._store import Ledger, require_printed
    from jaxleak.study.ledger._verdict import (
        RULE,
        TOLERANCE,
        Better,
        Directions,
        agrees,
        beyond,
        judge,
        mean_and_spread,
        printed_cells,
    )

_MODULE_OF = {
    **dict.fromkeys(("RECHECKS_FILE", "Recheck", "draw_entries", "named", "recheck", "record_rechecks"), "_check"),
    "claims": "_claims",
    **dict.fromkeys(("DATA_FILE", "DataSet", "DataSets", "data_of"), "_data"),
    **dict.fromkeys(
        ("MEASURED", "STATUSES", "VARIANTS", "Entry", "Status", "Variant", "as_record", "from_record"), "_entry"
    ),
    **dict.fromkeys(("Measurement", "Study"), "_measurement"),
    **dict.fromkeys(
        ("LACKING", "TOO_COSTLY", "Queue", "commit_of", "impossible_entries", "require_measured"), "_queue"
    ),
    "draw_sheets": "_sheets",
    **dict.fromkeys(
        (
            "NO_ENTRY",
            "beyond_counts",
            "cell_status",
            "status_table",
            "status_text",
            "summary",
            "table_counts",
            "variant_counts",
        ),
        "_status",
    ),
    **dict.fromkeys(("Ledger", "require_printed"), "_store"),
    **dict.fromkeys(
        ("RULE", "TOLERANCE", "Better", "Directions", "agrees", "beyond", "judge", "mean_and_spread", "printed_cells"),
        "_verdict",
    ),
}
__all__ = [
    "DATA_FILE",
    "LACKING",
    "MEASURED",
    "NO_ENTRY",
    "RECHECKS_FILE",
    "RULE",
    "STATUSES",
    "TOLERANCE",
    "TOO_COSTLY",
    "VARIANTS",
    "Better",
    "DataSet",
    "DataSets",
    "Directions",
    "Entry",
    "Ledger",
    "Measurement",
    "Queue",
    "Recheck",
    "Status",
    "Study",
    "Variant",
    "agrees",
    "as_record",
    "beyond",
    "beyond_counts",
    "cell_status",
    "claims",
    "commit_of",
    "data_of",
    "draw_entries",
    "draw_sheets",
    "from_record",
    "impossible_entries",
    "judge",
    "mean_and_spread",
    "named",
    "printed_cells",
    "recheck",
    "record_rechecks",
    "require_measured",
    "require_printed",
    "status_table",
    "status_text",
    "summary",
    "table_counts",
    "variant_counts",
]


__getattr__ = lazy(__name__, _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
