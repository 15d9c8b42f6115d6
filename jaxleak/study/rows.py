"""Rows of a table: which rows have run, why the others have not, and how both are printed."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from jaxleak.study._folder import has_run

__all__ = [
    "BEYOND_BUDGET",
    "NOT_ASKED",
    "NO_DATA",
    "WIDTH",
    "Beside",
    "console",
    "grouped",
    "print_grouped",
    "require_match",
    "require_runs",
    "show_cells",
    "show_table",
    "value_of",
]

#: Text with which a cell's `not_run` reason begins if data are missing, and the text if the cell exceeds the budget.
NO_DATA, BEYOND_BUDGET = "no data: ", "beyond the budget"
#: Further columns beside a row's own number: maps a heading to the function that gives a row's text below it.
Beside = Mapping[str, Callable[[dict[str, Any]], str]]
#: Width of a printed table in characters where the output is no terminal.
WIDTH = 80
#: The reason of a cell that the options leave out.
NOT_ASKED = "not asked for"


def require_match(only: str, identifiers: Iterable[str]) -> None:
    """Raise `ValueError` if the text of `--only` is in none of the cells' identifiers."""
    known = list(identifiers)
    if not any(only in identifier for identifier in known):
        raise ValueError(f"--only {only} is in no cell's id; there are {', '.join(known[:5])} and {len(known)} in all")


def require_runs(rows: Sequence[dict[str, Any]]) -> None:
    """Raise if no cell of a table ran, since a command that did nothing must not look like one that succeeded.

    Args:
        rows: rows of a table; each has a number in `ours` or a reason in `not_run`.

    Raises:
        FileNotFoundError: if no cell ran, some lack data, and none exceeds the budget.
        ValueError: if no cell ran for any other reason, or if there is no row at all.
    """
    if any(map(has_run, rows)):
        return
    reasons = list(dict.fromkeys(row["not_run"] for row in rows if row["not_run"] != NOT_ASKED))
    if not reasons:
        raise ValueError("nothing was run: no cell is what the options ask for (see --only)")
    missing = [reason for reason in reasons if reason.startswith(NO_DATA)]
    beyond = [reason for reason in reasons if BEYOND_BUDGET in reason]
    if missing and not beyond:
        more = f" ({len(missing)} such reasons are listed above)" if len(missing) > 1 else ""
        raise FileNotFoundError(f"no cell could run: {missing[0]}{more}")
    first = (beyond or reasons)[0]
    raise ValueError(f"nothing was run: {first}{'; raise --budget' if beyond else ''}")


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group identifiers by their text: `pairs` are (text, identifier), and both keep the order of the pairs."""
    by_text: dict[str, list[str]] = {}
    for text, identifier in pairs:
        by_text.setdefault(text, []).append(identifier)
    return by_text


def print_grouped(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print one line for each text of `grouped`, with the identifiers that share it."""
    for text, identifiers in grouped(pairs).items():
        print(f"{title} ({text}): {', '.join(identifiers)}")


def console() -> Console:
    """Make the console on which tables are printed; for a file or a pipe it is `WIDTH` characters wide."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; every row has as many entries as the header."""
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def show_cells(rows: Sequence[dict[str, Any]], beside: Mapping[str, Callable[[dict[str, Any]], str]] = {}) -> None:
    """Print the paper's value, ours and the difference of every cell that ran, and why the other cells did not run.

    Args:
        rows: cells with `id`, `paper`, `unit` and `ours`; a cell that ran also has `spread` and `seeds`, and any other
            cell has `not_run`.
        beside: further columns, printed in a second table: maps a heading to the function that gives a row's text
            below it; a column without any text is left out.
    """
    ran = [row for row in rows if row["ours"] is not None]
    several = any(len(row["seeds"]) > 1 for row in ran)
    table = Table(
        Column("cell", overflow="fold"), "paper", "ours", *(["spread"] if several else []), "difference", "unit"
    )
    for row in ran:
        printed = row["paper"] is not None
        spread = f"{row['spread']:.2g}" if len(row["seeds"]) > 1 else "-"
        table.add_row(
            row["id"],
            f"{row['paper']:g}" if printed else "-",
            f"{row['ours']:.4g}",
            *([spread] if several else []),
            f"{row['ours'] - row['paper']:+.3g}" if printed else "-",
            row["unit"],
        )
    if ran:
        console().print(table)
    texts = {heading: [text(row) for row in ran] for heading, text in beside.items()}
    texts = {heading: column for heading, column in texts.items() if any(column)}
    if texts:
        more = Table(Column("cell", overflow="fold"), *texts, title="beside ours")
        for number, row in enumerate(ran):
            more.add_row(row["id"], *(column[number] for column in texts.values()))
        console().print(more)
    print_grouped("not run", [(row["not_run"], row["id"]) for row in rows if row["ours"] is None])


def value_of(name: str, form: str = ".3g") -> Callable[[dict[str, Any]], str]:
    """Make a column of `show_cells`: the row's number of this name in the format `form`, or nothing if it has none."""
    return lambda row: "" if row.get(name) is None else format(row[name], form)
