"""How many cells of every table are met, missed, or without a run."""

from collections import Counter
from typing import Any

from rich.table import Table

from jaxleak.study.ledger._entry import MEASURED, STATUSES, Entry
from jaxleak.study.ledger._store import Ledger

#: The status of a cell that no entry speaks of.
NO_ENTRY = "no entry"


def cell_status(ledger: Ledger, cell: str) -> tuple[str, Entry | None]:
    """A cell's status: that of its most faithful measured entry, else of its best attempt; and that entry."""
    entries = ledger.of(cell)
    if not entries:
        return NO_ENTRY, None
    order = [*MEASURED, "failed", "not run", "impossible"]
    shown = (
        entries[0]
        if entries[0].status in MEASURED
        else min(entries, key=lambda e: (order.index(e.status), e.faithfulness))
    )
    return shown.status, shown


def table_counts(ledger: Ledger) -> dict[str, Counter[str]]:
    """Cells by status, for every table in print order."""
    counts: dict[str, Counter[str]] = {}
    for cell in ledger.printed:
        status, _ = cell_status(ledger, cell)
        counts.setdefault(cell.partition("/")[0], Counter())[status] += 1
    return counts


def summary(ledgers: list[Ledger]) -> dict[str, Any]:
    """Counts over all papers, and per paper and table; for programs."""
    papers: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for ledger in ledgers:
        tables = table_counts(ledger)
        own = sum(tables.values(), Counter())
        total += own
        papers[ledger.paper] = {"cells": len(ledger.printed), **_named(own), **_measured(ledger)}
        papers[ledger.paper]["tables"] = {name: _named(counts) for name, counts in tables.items()}
    faithful = {
        name: sum(paper[name] for paper in papers.values()) for name in ("measured", "paper_algorithm", "as_printed")
    }
    return {"cells": sum(len(ledger.printed) for ledger in ledgers), **_named(total), **faithful, "papers": papers}


def _named(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in (*STATUSES, NO_ENTRY) if counts[name] or name in MEASURED}


def _measured(ledger: Ledger) -> dict[str, int]:
    measured = [e for e in ledger.entries.values() if e.status in MEASURED]
    return {
        "measured": len({e.cell for e in measured}),
        "paper_algorithm": len({e.cell for e in measured if e.variant != "ours"}),
        "as_printed": len({e.cell for e in measured if e.variant == "printed"}),
    }


def status_table(found: dict[str, Any]) -> Table:
    """The counts of `summary` for a terminal, one row per table of a paper."""
    names = ("met", "missed", "failed", "not run", "impossible", NO_ENTRY)
    table = Table("paper", "table", "cells", *names)
    for paper, counts in found["papers"].items():
        for name, of_table in counts["tables"].items():
            table.add_row(paper, name, str(sum(of_table.values())), *(str(of_table.get(n, 0) or "") for n in names))
    table.add_row("all", "", str(found["cells"]), *(str(found.get(n, 0)) for n in names))
    return table
