"""Run cells of the papers' tables, and compare them with what the papers print and with what was recorded before.

    python -m experiments.reproduce --paper cafe --table table4 --variant reduced --budget 60 --record
    python -m experiments.reproduce --paper vflrecon --cell table3/vflrecon/criteo --seeds 0 1 2 --record
    python -m experiments.reproduce --budget 480 --record         # all papers; every cell once, cheap ones first
    python -m experiments.reproduce --status
    python -m experiments.reproduce --check 5 --seed 0            # run random recorded cells again
    python -m experiments.reproduce --data-sets                   # compare the data at hand with those measured on
    python -m experiments.reproduce --pages                       # write docs/reproduction from the ledger
    python -m experiments.reproduce --sheets                      # draw what the finished runs of --out reconstructed

A cell is run in up to four variants: printed (the paper's algorithm, model, data, batch and iterations), reduced (the
same algorithm on a smaller problem), stand-in (other data or weights) and ours (our attack on the paper's problem).
The ledger is experiments/ledger/PAPER.jsonl; `--record` writes to it, cell by cell. Finished runs are kept in the run
folder, so that the same command goes on where it was. A cell that fails is recorded with its error, and the others go
on; one that does not fit the budget is recorded with its estimated cost. Every cell gets its first number before any
gets a second one, and among these the order is that of the estimated costs: no cell is chosen, left out or repeated by
its outcome.
"""

import functools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from experiments._by_path import module_at
from experiments._ledger.papers import FIGURES, FOLDER, PAPERS, command, commit, in_sheets, ledger_of, sheet_title
from experiments._ledger.studies import study_of
from jaxleak import _validate
from jaxleak.study import Progress, default_out, require_own_folder, run_command
from jaxleak.study.ledger import (
    MEASURED,
    VARIANTS,
    DataSets,
    Entry,
    Ledger,
    Queue,
    Recheck,
    data_of,
    draw_entries,
    draw_sheets,
    impossible_entries,
    named,
    recheck,
    record_rechecks,
    require_measured,
    require_printed,
    status_table,
    status_text,
    summary,
)


@dataclass(frozen=True)
class Args:
    """Which cells to run, and how."""

    paper: tuple[Literal[tuple(PAPERS)], ...] = tuple(PAPERS)  # type: ignore[valid-type]
    """Papers whose cells are meant."""
    table: tuple[str, ...] = ()
    """Run only cells of these tables (as in experiments/paper)."""
    cell: tuple[str, ...] = ()
    """Run only these cells (by their full id)."""
    variant: tuple[Literal[tuple(VARIANTS)], ...] = tuple(VARIANTS)  # type: ignore[valid-type]
    """Run only these variants."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of every cell; one that is recorded stays and does not run again."""
    budget: float = 60.0
    """Minutes that may be spent; 0 runs nothing and estimates everything."""
    record: bool = False
    """Write what comes of it to the ledger; with --check, beside it."""
    status: bool = False
    """Count cells met, missed and not run; of --paper and --table, and run nothing."""
    json: bool = False
    """Print --status as JSON."""
    check: int = 0
    """Run so many recorded cells again (drawn among those that the other options name); say whether they agree."""
    seed: int = 0
    """Seed of the draw of --check."""
    data_sets: bool = False
    """Compare the data sets at hand; with those measured on, and run nothing; --record stores those not stored yet."""
    pages: bool = False
    """Write the pages of docs/reproduction; from the ledger, and run nothing."""
    sheets: bool = False
    """Draw a sheet of images per table; from finished runs, into docs/figures/reproduction; run nothing."""
    out: Path | None = None
    """Folder of the runs (by default runs/reproduce/ledger)."""


def main(args: Args) -> int:
    """Do what the options ask for.

    Returns:
        0, or 1 if `--check` found a cell that does not agree or could not run, or `--data-sets` found other samples.

    Raises:
        ValueError: on options out of range, if no cell has the requested names, or if none of the requested cells
            could be run although there was a budget.
    """
    _validate.non_negative(budget=args.budget, check=args.check)
    _validate.seeds(seeds=args.seeds, seed=args.seed)
    _validate.positive(paper=len(args.paper), variant=len(args.variant))
    if args.out is not None:
        require_own_folder(args.out)
    ledgers = [ledger_of(paper) for paper in args.paper]
    if not (args.pages or args.sheets):
        require_printed(ledgers, tables=args.table, cells=args.cell)
    if args.status:
        show_status(args, ledgers)
        return 0
    if args.data_sets:
        return compare_data_sets(args, ledgers)
    if args.pages:
        for path in module_at("docs/_reproduction.py").write([ledger_of(paper) for paper in PAPERS]):
            print(f"wrote {path}")
        return 0
    if args.sheets:
        draw(args, ledgers)
        return 0
    if args.check:
        return check(args, ledgers)
    run(args, ledgers)
    return 0


def compare_data_sets(args: Args, ledgers: list[Ledger]) -> int:
    """Compare the data behind the measured cells with the stored ones; 1 if any differ, are missing or not stored."""
    data_sets = DataSets(FOLDER)
    specs = {spec for ledger in ledgers for spec in data_of(study_of(ledger.paper, _folder(args, ledger)), ledger)}
    if args.record:
        data_sets.add(specs)
    for name, why in (said := data_sets.compare(specs)).items():
        print(f"{name}: {why or f'the {data_sets.known[name].samples} samples of the ledger'}")
    return int(any(said.values()))


def draw(args: Args, ledgers: list[Ledger]) -> None:
    """Draw contact sheets of the finished runs in the folder of the runs.

    Raises:
        ValueError: if no finished run there has images.
    """
    drawn = list[Path]()
    for ledger in ledgers:
        title = functools.partial(sheet_title, ledger.paper)
        drawn += draw_sheets(study_of(ledger.paper, _folder(args, ledger)), ledger, FIGURES, in_sheets, title)
    for path in drawn:
        print(f"wrote {path}")
    if not drawn:
        raise ValueError(f"nothing was drawn: no run in {_folder(args, ledgers[0]).parent} has images for the ledger")


def _folder(args: Args, ledger: Ledger) -> Path:
    return (args.out or default_out("reproduce", "ledger")) / ledger.paper


def run(args: Args, ledgers: list[Ledger]) -> list[Entry]:
    """Run the cells that fit the budget, paper by paper; every paper gets an equal share of the rest of the budget.

    Raises:
        ValueError: if there is a budget and nothing was measured, although the ledger lacks something.
        ConfigMismatchError: with `--record`, if a data set holds other samples than the ledger was measured on.
    """
    left, made, asked = 60.0 * args.budget, list[Entry](), 0
    studies = [study_of(ledger.paper, _folder(args, ledger)) for ledger in ledgers]
    listed = [list(study.measurements()) for study in studies]  # takes seconds for the largest study
    if args.record:
        asked_for = (m for measurements in listed for m in measurements if _asked(args, m.cell, m.variant))
        if unknown := DataSets(FOLDER).require_for(asked_for):
            print(f"no fingerprint is stored of {', '.join(unknown)}; --data-sets --record stores it afterwards")
    with Progress() as progress:
        for number, (ledger, study, measurements) in enumerate(zip(ledgers, studies, listed, strict=True)):
            folder = _folder(args, ledger)
            queue = Queue(
                study, ledger, folder, record=args.record,
                commit=commit(), estimates_for="two CPU cores", command=command,
            )  # fmt: skip
            if args.record:
                reasons = impossible_entries(study, ledger)
                ledger.forget_all_but({m.key for m in measurements} | {entry.key for entry in reasons})
                ledger.record(reasons)
            wanted = [m for m in measurements if _asked(args, m.cell, m.variant)]
            kept = queue.kept(wanted, args.seeds) if args.cell else []
            for entry in kept:
                print(f"recorded before: {entry}")
            if kept and not args.record:  # other measurements of these cells run only with --record
                rest = [m for m in wanted if m.cell not in {entry.cell for entry in kept}]
                if others := len(wanted) - len(rest) - len(kept):
                    print(f"not recorded yet: {others} more of these cells, which --record runs and keeps")
                wanted, asked = rest, asked + len(kept)
            asked += len(wanted)
            share = left / (len(ledgers) - number)
            for entry in queue.run(wanted, args.seeds, share, progress):
                made.append(entry)
                print(entry, flush=True)
            left -= study.runner.spent
    ran = [entry for entry in made if entry.status in (*MEASURED, "failed")]
    print(f"measurements that were run: {len(ran)}; not run: {len(made) - len(ran)}")
    print(f"recorded before: {asked - len(made)}; --check 1 runs a recorded measurement again and compares the two")
    print(f"the runs are below {_folder(args, ledgers[0]).parent}; --sheets draws what they reconstructed")
    if args.budget:
        require_measured(made, asked)
    return made


def _asked(args: Args, cell: str, variant: str) -> bool:
    named = (not args.cell or cell in args.cell) and (not args.table or cell.partition("/")[0] in args.table)
    return named and variant in args.variant


def show_status(args: Args, ledgers: list[Ledger]) -> None:
    """Print the counts of whole tables; `--cell` and `--variant` are refused."""
    if args.cell or args.variant != tuple(VARIANTS):
        raise ValueError("--status counts the cells of whole tables; leave out --cell and --variant")
    found = summary(ledgers, args.table)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    Console(width=None if sys.stdout.isatty() else 120).print(status_table(found))
    print(status_text(found))


def check(args: Args, ledgers: list[Ledger]) -> int:
    """Run recorded cells again in an empty folder; the cells share the budget evenly.

    Returns:
        0, or 1 if a cell does not agree or could not run; a check with a cell that could not run is not recorded.

    Raises:
        ValueError: if none of the cells that the options name is recorded, or none of these fits the budget.
    """
    longest = 60.0 * args.budget / args.check
    chosen, longer = draw_entries(ledgers, args.check, args.seed, longest, lambda e: _asked(args, e.cell, e.variant))
    if not chosen and not longer:
        raise ValueError("nothing was run: no cell that the options name is recorded with a number")
    if not chosen:
        raise ValueError(
            f"nothing was run: a seed of each of the {longer} recorded measurements took more than {longest:.2g} "
            "seconds, its share of the budget; raise --budget"
        )
    if longer:
        print(f"{longer} recorded cells are not drawn from: a seed of theirs took more than {longest:.0f} seconds")
    results: list[Recheck] = []
    for number, (ledger, entry) in enumerate(chosen, start=1):
        print(f"{number}/{len(chosen)} {named(ledger.paper, entry)} runs again", flush=True)
        with tempfile.TemporaryDirectory() as empty:
            study = study_of(ledger.paper, Path(empty))
            results.append(recheck(ledger.paper, entry, study, DataSets(FOLDER)))
        print(results[-1], flush=True)
    idle = sum(r.agrees is None for r in results)
    print(
        f"{sum(r.agrees or 0 for r in results)} of {len(results) - idle} agree{f', {idle} could not run' * (idle > 0)}"
    )
    if args.record and not idle:
        print(f"wrote {record_rechecks(results, longest, FOLDER, commit())}; --pages puts it on the overview")
    return 0 if all(r.agrees for r in results) else 1


def checked(args: Args) -> None:
    """Run the command, and exit with the status that `main` returns unless it is 0."""
    if status := main(args):
        sys.exit(status)


if __name__ == "__main__":
    run_command(checked, Args, __doc__)
