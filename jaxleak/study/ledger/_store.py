"""The files of ledgers: one file per paper and one entry per line, in the order in which the paper prints the cells."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxleak import _validate
from jaxleak.study.files import jsonable, write_text
from jaxleak.study.ledger._entry import VARIANTS, Entry, as_record, from_record
from jaxleak.study.ledger._verdict import Directions, beyond


class Ledger:
    """The entries of one paper, read from `folder/<paper>.jsonl`; the file is replaced whole, so a kill loses none."""

    def __init__(
        self,
        paper: str,
        folder: Path,
        printed: Mapping[str, Mapping[str, Any]],
        directions: Directions = Directions(),  # noqa: B008
    ):
        """Read the file, if it exists.

        Args:
            paper: name of the paper and of its file.
            folder: folder of the file.
            printed: the printed cells by id (TABLE/REST), each with its `value` and `unit`, in the paper's order.
            directions: says for each number whether higher or lower is better for the attacker, or neither.

        Raises:
            ValueError: if a line is no entry, or if its cell is not printed; names file and line.
        """
        self.paper, self.path = paper, folder / f"{paper}.jsonl"
        self.printed, self.directions = printed, directions
        self.entries: dict[tuple[str, str, str], Entry] = {}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                self._put(from_record(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self.path}, line {number}: {error}") from error

    def of(self, cell: str) -> list[Entry]:
        """Return the entries of a cell: measured ones first, and among them the most faithful first."""
        return sorted((e for e in self.entries.values() if e.cell == cell), key=lambda entry: entry.faithfulness)

    def beyond(self, entry: Entry) -> bool:
        """Whether the entry's number leaks more than the printed one by more than its spread and 5 % (see `RULE`)."""
        if entry.value is None or entry.spread is None:
            return False
        return beyond(entry.paper, entry.value, entry.spread, self.directions.of(entry.cell, entry.unit))

    def forget_all_but(self, keys: Collection[tuple[str, str, str]]) -> None:
        """Drop all entries but those with the given keys; the file changes with the next `record`."""
        self.entries = {key: entry for key, entry in self.entries.items() if key in keys}

    def record(self, entries: Iterable[Entry]) -> None:
        """Add entries, replace those with the same key, and write the file.

        Raises:
            ValueError: if an entry's cell is not printed in the paper, or is printed with another number or unit.
        """
        for entry in entries:
            self._put(entry)
        order = {cell: number for number, cell in enumerate(self.printed)}
        ranks = list(VARIANTS)
        ordered = sorted(self.entries.values(), key=lambda e: (order[e.cell], ranks.index(e.variant), e.name))
        text = "".join(json.dumps(jsonable(as_record(entry))) + "\n" for entry in ordered)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, text)

    def _put(self, entry: Entry) -> None:
        printed = self.printed.get(entry.cell)
        if printed is None:
            raise ValueError(f"{entry.cell} is no printed cell of {self.paper}")
        if float(printed["value"]) != entry.paper or printed["unit"] != entry.unit:
            raise ValueError(
                f"{entry.cell} is printed as {printed['value']} {printed['unit']}, not {entry.paper} {entry.unit}"
            )
        self.entries[entry.key] = entry


def require_printed(ledgers: Sequence[Ledger], *, tables: Collection[str] = (), cells: Iterable[str] = ()) -> None:
    """Refuse tables and cells that no ledger has, and cells that are in none of the named tables.

    Args:
        ledgers: ledgers of the papers, at least one.
        tables: names of tables.
        cells: full ids of cells, TABLE/REST.

    Raises:
        ValueError: if a table is unknown; the message lists all tables. Also if a cell is unknown or in none of
            `tables`; the message then lists the cells of `tables`, or else of the table with which the id begins, or
            else the five cells with the nearest ids.
    """
    known = [cell for ledger in ledgers for cell in ledger.printed]
    for name in tables:
        _validate.one_of(dict.fromkeys(cell.partition("/")[0] for cell in known), table=name)
    for name in cells:
        if name in known and (not tables or name.partition("/")[0] in tables):
            continue
        of = tables or (name.partition("/")[0],)
        listed, told = [cell for cell in known if cell.partition("/")[0] in of], "; the cells there are"
        if not listed:
            listed = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
            told = "; with --table T beside it, all cells of T are listed. The nearest are"
        where = ", ".join([*(ledger.paper for ledger in ledgers), *tables])
        raise ValueError("\n  ".join((f"--cell {name} is no printed cell of {where}{told}", *dict.fromkeys(listed))))
