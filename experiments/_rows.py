"""Rows of a table: which of them have run, why the others have not, and how the reasons are printed."""

from collections.abc import Iterable, Sequence
from typing import Any

#: How a cell's reason for not having been run begins where data are missing, and what it says beyond the budget.
NO_DATA, BEYOND_BUDGET = "no data: ", "beyond the budget"
#: The reason of a cell that the options leave out.
NOT_ASKED = "not asked for"


def has_run(row: dict[str, Any]) -> bool:
    """Whether a row of a table has a number of ours."""
    return row.get("ours", row.get("accuracy")) is not None


def require_match(only: str, identifiers: Iterable[str]) -> None:
    """Raise `ValueError` if `--only` leaves nothing to run of these cells."""
    known = list(identifiers)
    if not any(only in identifier for identifier in known):
        raise ValueError(f"--only {only} is in no cell's id; there are {', '.join(known[:5])} and {len(known)} in all")


def require_runs(rows: Sequence[dict[str, Any]]) -> None:
    """Raise if no cell of a table ran, since a command that did nothing must not look like one that succeeded.

    Args:
        rows: of a table, with `ours` (or `accuracy`), or with the reason `not_run`.

    Raises:
        FileNotFoundError: if data are missing, and no cell lacks the budget alone.
        ValueError: if there is no row at all, or all rows lack something else.
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
    """Identifiers by what is said of them: `pairs` of (text, identifier), both in the order of the pairs."""
    by_text: dict[str, list[str]] = {}
    for text, identifier in pairs:
        by_text.setdefault(text, []).append(identifier)
    return by_text


def print_grouped(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """One line for each text of `grouped`."""
    for text, identifiers in grouped(pairs).items():
        print(f"{title} ({text}): {', '.join(identifiers)}")
