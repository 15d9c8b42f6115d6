"""The pages of docs/reproduction, one per table and an overview, written from the ledger alone.

`python -m experiments.reproduce --pages` writes them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from experiments import _paper
from experiments._ledger.papers import FIGURES, PAPERS
from jaxleak.study.ledger import (
    MEASURED,
    NO_ENTRY,
    RECHECKS_FILE,
    RULE,
    STATUSES,
    TOLERANCE,
    VARIANTS,
    Entry,
    Ledger,
    cell_status,
    summary,
    table_counts,
)

FOLDER = Path(__file__).parent / "reproduction"

TITLES = {
    "cafe": "CAFE, NeurIPS 2021",
    "cafe-iclr": "CAFE, the submission to ICLR 2021",
    "fedleak": "FedLeak, 2025",
    "vflrecon": "VFLRecon and VFLDefender",
}

#: Commits of a working branch that were joined into one series before they were published, and the end of that series.
JOINED = ("596282c7c7d9", "60e3b736fe5b", "65ecbf4ae65c", "cce6803ceddd")
PUBLISHED_AS = "a7f5686374c2"

_GENERATED = "<!-- Written by `python -m experiments.reproduce --pages` from experiments/ledger. Do not edit. -->\n"


def pages(ledgers: Sequence[Ledger]) -> dict[str, str]:
    """The text of every page by its file name, below docs/reproduction."""
    made = {"index.md": _overview(ledgers)}
    for ledger in ledgers:
        for table in _paper.tables(PAPERS[ledger.paper]).values():
            made[f"{ledger.paper}/{table['id']}.md"] = _table_page(ledger, table)
    return made


def write(ledgers: Sequence[Ledger], folder: Path = FOLDER) -> list[Path]:
    """Write the pages that are new or differ, and remove those that no table has any more; returns what was written."""
    made = pages(ledgers)
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in made:
            path.unlink()
    written = []
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            written.append(path)
    return written


def _overview(ledgers: Sequence[Ledger]) -> str:
    found = summary(list(ledgers))
    names = [name for name in (*STATUSES, NO_ENTRY) if found.get(name) or name in MEASURED]
    rows = []
    for ledger in ledgers:
        tables = _paper.tables(PAPERS[ledger.paper])
        for table, counts in table_counts(ledger).items():
            link = f"[{table}]({ledger.paper}/{table}.md)"
            rows.append([TITLES[ledger.paper], link, tables[table]["title"], str(sum(counts.values()))])
            rows[-1] += [str(counts[name] or "") for name in names]
    rows.append(["all", "", "", str(found["cells"]), *(str(found.get(name, 0)) for name in names)])
    lines = [
        _GENERATED,
        "# What was reproduced",
        "",
        f"The papers print {found['cells']} results. For {found['measured']} of them there is a measurement here, for "
        f"{found['paper_algorithm']} one by the paper's own algorithm, and for {found['as_printed']} one exactly as "
        "printed. Every number below comes from a line of `experiments/ledger`, which has the command, the commit, the "
        "versions, the seeds and the date. No cell was chosen, left out or repeated by its outcome.",
        "",
        RULE,
        "",
        "A cell has the status of its most faithful measurement. The variants, from the most faithful on:",
        "",
        *(f"* {name}: {text}" for name, text in VARIANTS.items()),
        "",
        "The page of a table has the command of one of its cells, which runs in a clone. With `--table` and the "
        "table's name in the place of `--cell` it runs the whole table, and without `--record` the ledger stays as it "
        "is. Most cells need [data sets](../data.md) as files.",
        "",
        *_markdown(["paper", "table", "what it shows", "cells", *names], rows),
        *_joined(ledgers),
        *_checked(ledgers[0].path.with_name(RECHECKS_FILE)),
    ]
    return "\n".join(lines) + "\n"


def _joined(ledgers: Sequence[Ledger]) -> list[str]:
    """What became of the commits that are in no published history."""
    named = [e for ledger in ledgers for e in ledger.entries.values() if e.status in MEASURED]
    count = sum(any(commit in e.commit for commit in JOINED) for e in named)
    if not count:
        return []
    return [
        "",
        f"{count} of the {len(named)} measurements name a commit of a working branch ({', '.join(JOINED)}) whose "
        f"commits were joined before they were published. The commit {PUBLISHED_AS} ends the joined series. "
        "`python -m experiments.reproduce --check 5` runs random measurements again with the code at hand.",
    ]


def _checked(path: Path) -> list[str]:
    """What came of running random measurements again."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    differ = [cell["cell"] for cell in found["cells"] if not cell["agrees"]]
    said = f" These differ: {', '.join(differ)}." if differ else ""
    return [
        "",
        f"On {found['date']} (commit {found['commit']}) {len(found['cells'])} random measurements whose run had taken "
        f"at most {found['longest']:.0f} seconds were run again. {found['agree']} agree to their spread or "
        f"{TOLERANCE:.0%}, whichever is more.{said} `experiments/ledger/{path.name}` has their numbers.",
    ]


def _table_page(ledger: Ledger, table: dict[str, object]) -> str:
    cells = [cell for cell in ledger.printed if cell.partition("/")[0] == table["id"]]
    measured, others = [], dict[str, list[str]]()
    for cell in cells:
        for entry in ledger.of(cell):
            if entry.status in MEASURED:
                measured.append(_row(entry))
        status, shown = cell_status(ledger, cell)
        if status not in MEASURED:
            why = f"{status}: {shown.why}" if shown else NO_ENTRY
            others.setdefault(why, []).append(cell)
    lines = [
        _GENERATED,
        f"# {TITLES[ledger.paper]}, {table['id']}: {table['title']}",
        "",
        f"The paper gives {table['metric']}. [Overview](../index.md)",
        "",
    ]
    if (FIGURES / f"{ledger.paper}-{table['id']}.png").exists():
        sheet = f"../../figures/reproduction/{ledger.paper}-{table['id']}.png"
        lines += [f"![Private images and what some of the runs reconstructed]({sheet})", ""]
    if measured:
        lines += _markdown(["cell", "paper", "ours", "seeds", "verdict", "variant", "what differs"], measured)
        lines += ["", "Commands:", "", *_commands(ledger, cells), ""]
    if others:
        lines += ["Cells without a measurement:", ""]
        lines += [f"* {why}: {', '.join(names)}" for why, names in others.items()]
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Entry) -> list[str]:
    spread = f" +- {entry.spread:.2g}" if len(entry.seeds) > 1 else ""
    seeds = ", ".join(f"{seed}: {value:.4g}" for seed, value in entry.seeds.items())
    variant = entry.variant + (f" ({entry.name})" if entry.name else "")
    return [
        entry.cell,
        f"{entry.paper:g} {entry.unit}",
        f"{entry.value:.4g}{spread}",
        seeds,
        entry.status,
        variant,
        entry.differs,
    ]


def _commands(ledger: Ledger, cells: Sequence[str]) -> list[str]:
    made = [e for cell in cells for e in ledger.of(cell) if e.status in MEASURED]
    commits = ", ".join(dict.fromkeys(e.commit for e in made))
    example = made[0].command
    return [f"    {example}", "", f"and so on for the other cells. Commits: {commits}. Dates: {_dates(made)}."]


def _dates(entries: Sequence[Entry]) -> str:
    dates = sorted({e.date for e in entries})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in cells)]
