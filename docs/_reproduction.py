"""The pages of docs/reproduction, one per table and an overview, written from the ledger alone.

`python -m experiments.reproduce --pages` writes them.
"""

import json
import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs._reproduction_counts import (
    beyond_and_nothing,
    by_formula,
    decided_by_one_seed,
    distinct,
    met_by_fedleak,
    met_by_nothing,
    showing_little,
    without_attack,
)
from experiments import _paper
from experiments._ledger.papers import FIGURES, PAPERS, TITLES, where
from experiments._ledger.papers import FOLDER as LEDGERS
from jaxleak.study.ledger import (
    MEASURED,
    NO_ENTRY,
    RECHECKS_FILE,
    RULE,
    STATUSES,
    TOLERANCE,
    VARIANTS,
    DataSet,
    DataSets,
    Entry,
    Ledger,
    beyond_counts,
    cell_status,
    summary,
    table_counts,
)

FOLDER = Path(__file__).parent / "reproduction"

#: Commits of a working branch that were joined into one series before publication, and the last commit of the series.
JOINED = ("596282c7c7d9", "60e3b736fe5b", "65ecbf4ae65c", "cce6803ceddd")
PUBLISHED_AS = "a7f5686374c2"

#: Meanings of the parts of a measurement's name; hyphens separate the parts.
_NAMES = {
    "channel-peak": "PSNR by every channel's own peak",
    "peak-one": "PSNR with a peak of 1",
    "shared-start": "all initial weights known",
    "whole-steps": "Steps I and II of full length",
    "fewer-epochs": "fewer epochs",
    "stand-in": "other data",
    "initialisation-free": "no shadow run",
    "six-items": "the paper's six items",
    "algebra": "no ciphertexts",
    "narrow": "narrower network",
    "entry-scales": "a scale for every entry",
    "reduced": "smaller problem",
    "shorter": "1,000 iterations",
    "probabilities": "noise on probabilities",
    "authors-adam": "the Adam of the authors' code",
    "authors-relu": "the ReLU of the authors' code",
    "authors-code": "Adam and ReLU of the authors' code",
    "descent-stopped": "the descent, Step II at its best",
}

#: Largest number of rows of a table that is not folded.
_OPEN_ROWS = 12

_GENERATED = "<!-- Written by `python -m experiments.reproduce --pages` from experiments/ledger. Do not edit. -->\n"


def pages(ledgers: Sequence[Ledger]) -> dict[str, str]:
    """The text of every page, by file name below docs/reproduction."""
    made = {"index.md": _overview(ledgers)}
    for ledger in ledgers:
        for table in _paper.tables(PAPERS[ledger.paper]).values():
            made[f"{ledger.paper}/{table['id']}.md"] = _table_page(ledger, table)
    return made


def write(ledgers: Sequence[Ledger], folder: Path = FOLDER) -> list[Path]:
    """Write new and changed pages, and remove pages without a table; returns the paths of the written pages."""
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
    found, nothing = summary(list(ledgers)), met_by_nothing(ledgers)
    one_seed, one_seed_met = decided_by_one_seed(ledgers)
    names = [name for name in (*STATUSES, NO_ENTRY) if found.get(name) or name in MEASURED]
    heads = [head for name in names for head in ([name, "of these beyond"] if name == "met" else [name])]
    total = ["all papers", str(found["cells"]), *_with_beyond(names, found, found["beyond"])]
    by_paper, tables_of = [], list[str]()
    for ledger in ledgers:
        counted = table_counts(ledger)
        own = sum(counted.values(), Counter())
        beyond = beyond_counts(ledger)
        by_paper.append([TITLES[ledger.paper], str(sum(own.values())), *_with_beyond(names, own, beyond.total())])
        tables = _paper.tables(PAPERS[ledger.paper])
        printed = {e.cell for e in ledger.entries.values() if e.status in MEASURED and e.variant == "printed"}
        whole = Counter(cell.partition("/")[0] for cell in printed)
        rows = []
        for table, counts in counted.items():
            link = f"[{where(ledger.paper, table)}]({ledger.paper}/{table}.md)"
            rows.append([link, tables[table]["title"], str(sum(counts.values())), str(whole[table] or "")])
            rows[-1] += ["" if text == "0" else text for text in _with_beyond(names, counts, beyond[table])]
        tables_of += [
            "",
            f"## {TITLES[ledger.paper]}",
            "",
            *_markdown(["where", "what it shows", "numbers", "measured as printed", *heads], rows),
        ]
    lines = [
        _GENERATED,
        "# What was reproduced",
        "",
        f"Of {found['cells']} printed numbers, {found['met']} are met here and {found['missed']} are missed; "
        f"{found['cells'] - found['measured']} have no measurement. Only {found['as_printed']} were measured with all "
        "that the paper prints (what a paper leaves open is ours, and said), and "
        f"{found['variants']['printed']['met']} of these are met{without_attack(ledgers)}. Most misses therefore say "
        "little against a paper: they are of smaller problems, other data or random weights. "
        f"For {found['paper_algorithm']} of the {found['measured']} measured numbers the paper's own algorithm ran.",
        "",
        f'"Met" does not mean "repeated". {found["beyond"]} met numbers are beyond: better for the attacker than '
        f"printed, by more than the spread and {TOLERANCE:.0%}; {found['variants']['stand-in']['beyond']} of them "
        f"are on other data than the paper's. {sum(nothing.values())} met numbers, "
        f"{beyond_and_nothing(ledgers)} of them beyond, are no better than those of an answer that knows nothing of "
        "what was sent, mostly in the paper as well. Of the reconstructions by FedLeak's own algorithm "
        f"{met_by_fedleak(ledgers) or 'none'} is met.",
        "",
        f"One seed decides {one_seed} of the {found['measured']} measured numbers and {one_seed_met} of those that "
        "are met; the others have two or three. The papers repeat some numbers, and two data sets of a paper may have "
        f"the same one in their place here: {distinct(ledgers)} of the measured numbers are different ones. "
        f"{by_formula(ledgers)} verdicts on CAFE's images would be others by the other formula of PSNR, of which the "
        "paper of NeurIPS prints none.",
        "",
        '<details markdown="1">',
        "<summary>The met numbers that are no better than nothing</summary>",
        "",
        *_markdown(["what they are of", "numbers"], [[of, str(number)] for of, number in nothing.items()]),
        "",
        "</details>",
        "",
        *_markdown(["paper", "numbers", *heads], [*by_paper, total]),
        "",
        "Every number comes from a line of `experiments/ledger`, which has the command, the commit, the versions, the "
        "seeds and the date. No cell was chosen, left out or repeated by its outcome. But cheap runs went first, "
        "so that our attack alone decides some numbers for which the paper's was not run yet. Two settings "
        "were chosen. One is the scale per item of VFLRecon's records, after the labels of Sensorless had been scored "
        "on seeds 0 and 1 ([what the scale changes](../vflrecon.md#what-does-the-scale-of-a-record-change)). The other "
        "is the rate and the number of rounds of FedLeak's Figure 4, of four pairs the one that fits its training "
        "images.",
        "",
        "## When is a number met?",
        "",
        RULE,
        "",
        "## Which measurement decides?",
        "",
        "Some numbers have several measurements. Such a number is met or missed by the most faithful one. These are "
        "the variants, from the most faithful on, and how many numbers each of them decides:",
        "",
        *_variants(found["variants"]),
        "",
        "Words in brackets behind a variant tell several measurements of one cell apart; `--variant` takes the word "
        "before them. Seconds are those of all runs of a measurement, on two CPU cores or on the GPU that is named; "
        "other work shared both.",
        "",
        "The page of a table has the command of one of its cells, which runs in a clone. A cell that is recorded is "
        "not run again: the command prints its entry. With `--check 1` it runs again, and the numbers are compared. "
        "With `--table` and the "
        "table's name in the place of `--cell` it runs the whole table, and with `--record` the numbers go into the "
        "ledger. Most cells need [data sets](../data.md) as files.",
        *tables_of,
        *_data_sets(DataSets(LEDGERS).known),
        *_joined(ledgers),
        *_checked(ledgers[0].path.with_name(RECHECKS_FILE)),
    ]
    return "\n".join(lines) + "\n"


def _with_beyond(names: Sequence[str], counts: Mapping[str, int], beyond: int) -> list[str]:
    """The counts by status as text; the count beyond the printed number follows the count of met numbers."""
    return [str(n) for name in names for n in ((counts["met"], beyond) if name == "met" else (counts.get(name, 0),))]


def _variants(counted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of a table: how many numbers each variant meets and misses."""
    names = ("measured", "met", "beyond", "missed")
    rows = [[name, *(str(counts[n]) for n in names), VARIANTS[name]] for name, counts in counted.items()]  # type: ignore[index]
    return _markdown(["variant", "measured", "met", "of these beyond", "missed", "what is run"], rows)


def _data_sets(known: Mapping[str, DataSet]) -> list[str]:
    """Lines of the section on the data sets behind the numbers."""
    rows = [[name, str(found.samples), found.sha256[:16]] for name, found in known.items()]
    return [
        "",
        "## Data sets",
        "",
        "The numbers come from these samples. `python -m experiments.reproduce --data-sets` says whether yours are the "
        "same ones, in the same order; `experiments/ledger/data.json` has the whole SHA-256.",
        "",
        *_markdown(["data set", "samples", "SHA-256 begins with"], rows),
    ]


def _joined(ledgers: Sequence[Ledger]) -> list[str]:
    """Lines on entries that name commits outside the published history."""
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
    """Lines on the outcome of running random measurements again."""
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


def _table_page(ledger: Ledger, table: Mapping[str, Any]) -> str:
    cells = [cell for cell in ledger.printed if cell.partition("/")[0] == table["id"]]
    measured = [entry for cell in cells for entry in ledger.of(cell) if entry.status in MEASURED]
    others = dict[str, list[str]]()
    counts, beyond, deciding = Counter[str](), 0, set[tuple[str, str, str]]()
    for cell in cells:
        status, shown = cell_status(ledger, cell)
        counts[status] += 1
        deciding |= {shown.key} if shown and status in MEASURED else set()
        beyond += shown is not None and ledger.beyond(shown)
        if status not in MEASURED:
            why = f"{status}: {shown.why}" if shown else NO_ENTRY
            others.setdefault(why, []).append(cell.partition("/")[2])
    lines = [
        _GENERATED,
        f"# {TITLES[ledger.paper]}, {where(ledger.paper, table['id'])}: {table['title']}",
        "",
        _answer(counts, measured, beyond) + showing_little(ledger, cells),
        "",
    ]
    if (FIGURES / f"{ledger.paper}-{table['id']}.png").exists():
        sheet = f"../../figures/reproduction/{ledger.paper}-{table['id']}.png"
        lines += [f"![Private images and what some of the runs reconstructed]({sheet})", ""]
    if measured:
        common = _common([entry.differs for entry in measured])
        if common:
            lines += [f"All measurements differ from the paper in this: {'; '.join(common)}.", ""]
        # A measurement of several settings repeats the notes that they share.
        parts_of = [dict.fromkeys(entry.differs.split("; ")) for entry in measured]
        others_of = [[part for part in parts if part and part not in common] for parts in parts_of]
        letters = _letters([part for parts in others_of for part in parts])
        rows = [
            [*_row(e, beyond=ledger.beyond(e), decides=e.key in deciding), ", ".join(letters[part] for part in parts)]
            for e, parts in zip(measured, others_of, strict=True)
        ]
        heads = ["number", "paper", "ours"]
        if any(len(entry.seeds) > 1 for entry in measured):
            heads.append("by seed")
        else:
            rows = [[*row[:3], *row[4:]] for row in rows]
            of_all = dict.fromkeys(str(seed) for entry in measured for seed in entry.seeds)
            lines += [f"Every measurement is of one seed ({', '.join(of_all)}).", ""]
        table_of_rows = _markdown([*heads, "verdict", "variant", "seconds", "differs"], rows)
        if len(rows) > len(deciding):
            lines += ["Of several measurements of a number, the one whose verdict is **bold** decides.", ""]
        folded = len(rows) > _OPEN_ROWS
        lines += ['<details markdown="1">', "<summary>All measurements</summary>", ""] if folded else []
        lines += [*table_of_rows, ""]
        lines += ["</details>", ""] if folded else []
        if letters:
            lines += ["The letters in the last column mean:", ""]
            lines += [*(f"* **{letter}**: {part}" for part, letter in letters.items()), ""]
    if others:
        lines += ["## Numbers without a measurement", ""]
        lines += [*(f"* {why}: {', '.join(names)}" for why, names in others.items()), ""]
    lines += ["## Method", "", f"The paper gives {table['metric']} ({table['where']}).", ""]
    lines += _commands(ledger, cells) if measured else []
    lines += ["", "[All tables](../index.md)"]
    return "\n".join(lines).rstrip() + "\n"


def _answer(counts: Counter[str], measured: Sequence[Entry], beyond: int) -> str:
    """Sentences on the status of a table's numbers, and on the kinds of measurement."""
    found = [name for name in (*STATUSES, NO_ENTRY) if counts[name]]
    said = [f"{counts[name]} {'is' if counts[name] == 1 else 'are'} {name}" for name in found]
    if "met" in found and beyond:
        said[found.index("met")] += f" ({beyond} of them beyond the printed number)"
    text = (
        f"Of the {sum(counts.values())} numbers {_listed(said)}."
        if sum(counts.values()) > 1
        else f"The number is {next(iter(counts))}{' and lies beyond the printed one' if beyond else ''}."
    )
    if measured:
        kinds = Counter(entry.variant for entry in measured)
        text += f" The measurements are {_listed([f'{count} of the kind *{kind}*' for kind, count in kinds.items()])}."
        text += " [The overview](../index.md) says when a number is met."
        if {"reduced", "stand-in"} & set(kinds):
            text += (
                " On a smaller problem or other data, a miss says little against the paper, and a hit little for it."
            )
    return text


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _common(differences: Sequence[str]) -> list[str]:
    """The parts that all lists of differences share, in the order of the first list."""
    first, *rest = [dict.fromkeys(text.split("; ")) for text in differences]
    return [part for part in first if part and all(part in other for other in rest)]


def _number(value: float, unit: str) -> str:
    return f"{value:.1f}" if unit == "dB" and math.isfinite(value) else f"{value:.4g}"


def _letters(parts: Sequence[str]) -> dict[str, str]:
    """A letter for each part in the order of first use: a to z, then aa, ab and so on."""
    ab = string.ascii_lowercase
    names = [*ab, *(a + b for a in ab for b in ab)]
    return dict(zip(dict.fromkeys(parts), names, strict=False))


def _row(entry: Entry, *, beyond: bool, decides: bool) -> list[str]:
    unit = "" if entry.unit == "1" else f" {entry.unit}"
    value = math.nan if entry.value is None else entry.value
    spread = f" +- {entry.spread:.2g}" if len(entry.seeds) > 1 else ""
    name = entry.name
    for short, words in _NAMES.items():
        name = name.replace(short, words)
    variant = entry.variant + (f" ({re.sub('[-#]', ', ', name)})" if name else "")
    gpus = re.findall(r"gpu: ([^,;]+)", entry.machine)
    devices = gpus + ["CPU"] * ("cpu: " in entry.machine) if gpus else []  # without a GPU, the CPU is not named
    verdict = "met, beyond" if beyond else entry.status
    return [
        entry.cell.partition("/")[2],
        f"{entry.paper:g}{unit}",
        f"{_number(value, entry.unit)}{spread}{unit}" if math.isfinite(value) else "none",
        ", ".join(f"{seed}: {_number(value, entry.unit)}" for seed, value in entry.seeds.items()),
        f"**{verdict}**" if decides else verdict,
        variant,
        f"{entry.seconds:.0f}" + f" ({', '.join(devices)})" * bool(devices),
    ]


def _commands(ledger: Ledger, cells: Sequence[str]) -> list[str]:
    made = [e for cell in cells for e in ledger.of(cell) if e.status in MEASURED]
    commits = ", ".join(dict.fromkeys(commit for e in made for commit in e.commit.split(", ")))
    example = made[0].command.removesuffix(" --record")
    return [
        "The first command prints the entry of the first measurement, and the second one runs it again and compares "
        f"the two. Another number of the table has its name in the place of `{made[0].cell.partition('/')[2]}`:",
        "",
        f"    {example}",
        f"    {example} --check 1",
        "",
        f"Commits: {commits}. Dates: {_dates(made)}.",
    ]


def _dates(entries: Sequence[Entry]) -> str:
    dates = sorted({e.date for e in entries})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in cells)]
