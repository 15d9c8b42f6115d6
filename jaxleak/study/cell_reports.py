"""Reports of studies: those that compare the paper's numbers with ours, cell by cell, and all others."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxleak.study import RunFolder
from jaxleak.study._folder import has_run
from jaxleak.study.reports import Section, command_line, write_markdown
from jaxleak.study.rows import Beside, grouped, require_runs

__all__ = [
    "finish_cells",
    "write_cells",
    "write_rows",
]

_HEADER = ("cell", "paper", "ours", "spread", "difference", "unit")
_READING = (
    "Ours is the mean over the seeds, the spread their standard deviation, and the difference is ours minus the "
    "paper's. What else is known of the cells, and every seed's number, is in results.json."
)


def write_cells(
    folder: RunFolder,
    title: str,
    options: Any,
    rows: Sequence[dict[str, Any]],
    beside: Beside,
    *,
    seeds: Sequence[int],
    captions: Mapping[str, str] | None = None,
) -> None:
    """Write report.md, with one section per table and a list of the cells that were not run and why.

    Args:
        folder: the run's folder, with its figures drawn; the report ends with its program and the options.
        title: the report's title.
        options: the command's options.
        rows: cells with `id` (which begins with the table), `paper`, `unit` and `ours`. If `ours` is None, `not_run`
            says why; a `note` says how the cell was run.
        beside: further columns, as in `show_cells`; a table leaves out a column that has no text there.
        seeds: seeds over which the numbers were measured.
        captions: texts below the figures, as in `write_markdown`.
    """
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["ours"] is not None:
            by_table.setdefault(row["id"].partition("/")[0], []).append(row)
    notes = grouped((row["note"], row["id"]) for row in rows if row["ours"] is not None and row.get("note"))
    sections = [_section(table, of_table, beside) for table, of_table in by_table.items()]
    if sections:
        sections[0] = sections[0]._replace(text=(_READING,))
    if notes:
        sections.append(
            Section("How cells were run", [f"{note}: {', '.join(names)}." for note, names in notes.items()])
        )
    write_markdown(
        folder,
        title,
        command=command_line(folder.program, options),
        seeds=seeds,
        sections=sections,
        not_run=grouped((row["not_run"], row["id"]) for row in rows if row["ours"] is None),
        captions=captions,
    )


def finish_cells(
    folder: RunFolder,
    title: str,
    options: Any,
    rows: Sequence[dict[str, Any]],
    beside: Beside,
    *,
    seeds: Sequence[int],
    captions: Mapping[str, str] | None = None,
    need_runs: bool,
    **metrics: Any,
) -> dict[str, float]:
    """Write report.md and results.json, and print what the run folder contains.

    Args:
        folder, title, options, rows, beside, seeds, captions: as in `write_cells`.
        need_runs: whether to raise at the end, as `require_runs` does, if no cell ran.
        metrics: further metrics for results.json, beside those that are returned.

    Returns:
        `cells_run` and `cells_listed` (numbers of cells that did and did not run), and `seconds`.
    """
    write_cells(folder, title, options, rows, beside, seeds=seeds, captions=captions)
    ran = sum(map(has_run, rows))
    counts = {"cells_run": float(ran), "cells_listed": float(len(rows) - ran), "seconds": sum(folder.seconds.values())}
    folder.finish(counts | metrics, cells=list(rows))
    print(folder.contents())
    if need_runs:
        require_runs(rows)
    return counts


def _section(table: str, rows: Sequence[dict[str, Any]], beside: Beside) -> Section:
    kept = {heading: text for heading, text in beside.items() if any(text(row) for row in rows)}
    shown = [[*_printed(row), *(text(row) for text in kept.values())] for row in rows]
    return Section(table, (), (*_HEADER, *kept), shown)


def _printed(row: dict[str, Any]) -> list[str]:
    printed = row["paper"] is not None
    return [
        row["id"].partition("/")[2],
        f"{row['paper']:g}" if printed else "-",
        f"{row['ours']:.4g}",
        f"{row['spread']:.2g}" if len(row["seeds"]) > 1 else "-",
        f"{row['ours'] - row['paper']:+.3g}" if printed else "-",
        row["unit"],
    ]


def write_rows(
    folder: RunFolder,
    title: str,
    options: Any,
    rows: Sequence[dict[str, Any]],
    *,
    seeds: Sequence[int],
    answer: str = "",
    captions: Mapping[str, str] | None = None,
) -> None:
    """Write report.md with one table of all entries of the rows that are numbers, texts or booleans.

    Args:
        folder: the run's folder, with its figures drawn; the report ends with its program and the options.
        title: the report's title.
        options: the command's options.
        rows: rows that map names to values; lists and trees are not shown, they belong in results.json.
        seeds: seeds over which the numbers were measured.
        answer: one or two sentences that say what was found; they stand above everything else.
        captions: texts below the figures, as in `write_markdown`.
    """
    names = [
        name for name in dict.fromkeys(n for row in rows for n in row) if any(_is_short(row.get(name)) for row in rows)
    ]
    shown = [[_short(row.get(name)) for name in names] for row in rows]
    write_markdown(
        folder,
        title,
        answer=answer,
        command=command_line(folder.program, options),
        seeds=seeds,
        sections=[Section("Results", (), [name.replace("_", " ") for name in names], shown)],
        captions=captions,
    )


def _is_short(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)


def _short(value: Any) -> str:
    if not _is_short(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
