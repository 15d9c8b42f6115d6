"""Counts of the cells of every table that are met, missed, or without a run."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from rich.table import Table

from jaxleak.study.ledger._entry import MEASURED, STATUSES, VARIANTS, Entry
from jaxleak.study.ledger._store import Ledger

#: The status of a cell without any entry.
NO_ENTRY = "no entry"


def cell_status(ledger: Ledger, cell: str) -> tuple[str, Entry | None]:
    """Return the status of a cell's most faithful measured entry, or else of its best attempt; and that entry."""
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


def table_counts(ledger: Ledger, tables: Collection[str] = ()) -> dict[str, Counter[str]]:
    """Count cells by status for every table in print order, or only for `tables` if it names some."""
    counts: dict[str, Counter[str]] = {}
    for cell in ledger.printed:
        table = cell.partition("/")[0]
        if not tables or table in tables:
            counts.setdefault(table, Counter())[cell_status(ledger, cell)[0]] += 1
    return counts


def beyond_counts(ledger: Ledger, tables: Collection[str] = ()) -> Counter[str]:
    """Count by table the cells whose number lies beyond the printed one (see `RULE`); `tables` as in `table_counts`."""
    counts: Counter[str] = Counter()
    for cell in ledger.printed:
        table = cell.partition("/")[0]
        if not tables or table in tables:
            _, shown = cell_status(ledger, cell)
            counts[table] += shown is not None and ledger.beyond(shown)
    return counts


def summary(ledgers: list[Ledger], tables: Collection[str] = ()) -> dict[str, Any]:
    """Count cells over all papers, and per paper and table, in a form for programs.

    Args:
        ledgers: ledgers of the papers that are counted.
        tables: names of the tables that are counted, all by default; a paper without any of these tables is left out.
    """
    papers: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for ledger in ledgers:
        if not (counted := table_counts(ledger, tables)):
            continue
        own = sum(counted.values(), Counter())
        total += own
        papers[ledger.paper] = {"cells": sum(own.values()), **_named(own), **_measured(ledger, tables)}
        papers[ledger.paper]["beyond"] = beyond_counts(ledger, tables).total()
        papers[ledger.paper]["tables"] = {name: _named(counts) for name, counts in counted.items()}
    faithful = {
        name: sum(paper[name] for paper in papers.values())
        for name in ("measured", "beyond", "paper_algorithm", "as_printed")
    }
    by_variant = {"variants": variant_counts(ledgers, tables)}
    return {"cells": sum(total.values()), **_named(total), **faithful, **by_variant, "papers": papers}


def _named(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in (*STATUSES, NO_ENTRY) if counts[name] or name in MEASURED}


def _measured(ledger: Ledger, tables: Collection[str]) -> dict[str, int]:
    measured = [e for e in ledger.entries.values() if e.status in MEASURED and (not tables or e.table in tables)]
    return {
        "measured": len({e.cell for e in measured}),
        "paper_algorithm": len({e.cell for e in measured if e.variant != "ours"}),
        "as_printed": len({e.cell for e in measured if e.variant == "printed"}),
    }


def variant_counts(ledgers: Iterable[Ledger], tables: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Count measured cells by the variant of the measurement that gives their status.

    Args:
        ledgers: ledgers of the papers that are counted.
        tables: names of the tables that are counted, all by default.

    Returns:
        For every variant the numbers of cells `measured`, `met`, `beyond` (these are among the met cells) and `missed`,
        and in `tables` the (paper, table) of these cells in print order.
    """
    counts = {name: Counter[str]() for name in VARIANTS}
    of: dict[str, dict[tuple[str, str], None]] = {name: {} for name in VARIANTS}
    for ledger in ledgers:
        for cell in ledger.printed:
            table = cell.partition("/")[0]
            status, shown = cell_status(ledger, cell)
            if shown is not None and status in MEASURED and (not tables or table in tables):
                counts[shown.variant].update(("measured", status, *["beyond"] * ledger.beyond(shown)))
                of[shown.variant][ledger.paper, table] = None
    return {
        name: {**{n: counts[name][n] for n in ("measured", "met", "beyond", "missed")}, "tables": list(of[name])}
        for name in VARIANTS
    }


def status_text(found: dict[str, Any]) -> str:
    """Say the counts of `summary` in two sentences: how faithful the measurements are, and how many are met."""
    variants = found["variants"]
    by_variant = [
        f"{counts['met']} of {counts['measured']} {name} ({counts['beyond']} beyond)"
        for name, counts in variants.items()
    ]
    where = ", ".join("/".join(table) for table in variants["printed"]["tables"])
    return (
        f"{found['measured']} of {found['cells']} cells have a measurement, {found['paper_algorithm']} of them by the "
        f"paper's own algorithm, {found['as_printed']} as printed{f' (of {where})' if where else ''}\n"
        f"met, by the variant of a cell's most faithful measurement: {', '.join(by_variant)}; beyond: better for the "
        "attacker than printed by more than the spread and 5 %"
    )


def status_table(found: dict[str, Any]) -> Table:
    """Make a table for the terminal from the counts of `summary`, with one row per table of a paper."""
    names = ("met", "missed", "failed", "not run", "impossible", NO_ENTRY)
    table = Table("paper", "table", "cells", *names)
    for paper, counts in found["papers"].items():
        for name, of_table in counts["tables"].items():
            table.add_row(paper, name, str(sum(of_table.values())), *(str(of_table.get(n, 0) or "") for n in names))
    table.add_row("all", "", str(found["cells"]), *(str(found.get(n, 0)) for n in names))
    return table
