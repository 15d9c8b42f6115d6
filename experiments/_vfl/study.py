"""The VFLRecon study: data sets of one's choice, or the tables of the paper."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments._vfl import figures
from experiments._vfl.cells import TABLES
from experiments._vfl.cells_tables import FEATURE, LABEL, Scored
from experiments._vfl.options import DEMO_DATA, Args
from jaxleak import _validate
from jaxleak.attacks import party_records
from jaxleak.study import Progress, RunFolder, default_out
from jaxleak.study.cell_reports import finish_cells
from jaxleak.study.cells import Budget, Cell, Results, run_cells
from jaxleak.study.parties import (
    Runs,
    SplitCase,
    SplitJob,
    SplitJobs,
    about_run,
    column_section,
    draw_pictures,
    in_report,
    in_short,
    runs_for,
    score_name,
    split_problem,
)
from jaxleak.study.reports import Section, command_line, write_markdown
from jaxleak.study.rows import require_match, show_cells, show_table, value_of
from jaxleak.study.runner import Runner, runner_in

#: Columns beside ours in a table: the other attacks, both baselines, and the cell's numbers of records.
BESIDE_COLUMNS = {name.replace("_", " "): value_of(name, ".4g") for name in figures.BESIDE}
BESIDE_COLUMNS["records"] = lambda row: (
    f"{row['shadow_records']:.0f} + {row['victim_records']:.0f}" if row.get("shadow_records") else ""
)
_READING = (
    "Accuracies are shares of the labels, and errors mean squared errors per feature on the scale of the encoding, of "
    "the samples that took part. Own features alone are what the attacker could say without any gradient. With "
    "two classes, an accuracy far below a half leaks as much as one above it: swap the two answers. A missing "
    "number is 0, the column's least value, in training; --missing says whether errors of features count it."
)


def main(args: Args, *, need_runs: bool = False) -> dict[str, float]:
    """Run the study; returns the metrics: means over data sets and seeds, then each data set's mean and spread.

    Args:
        args: the options.
        need_runs: raise in the end, as `require_runs` does, if no cell of the tables ran.

    Raises:
        ValueError: on options out of range, data that do not fit them, or `--only` in no cell's id.
    """
    setup = args.setup
    _validate.seeds(seeds=args.seeds)
    counts = ("batch_size", "shadow_runs", "network_epochs", "parties", "task_epochs", "victim_epochs")
    records = ("shadow_records", "victim_records")  # None: all that there are
    asked = {name: getattr(setup, name) for name in (*counts, *records)}
    _validate.count(**{name: number for name, number in asked.items() if number is not None})
    _validate.positive(budget=args.budget)
    setup.check_strength()
    _validate.some_of(party_records.FIELDS, fields=setup.fields)
    _validate.once("a name", data=args.data)
    if not args.shadow_init:
        raise ValueError(f"shadow_init must name at least one of {', '.join(party_records.SHADOW_INITS)}")
    names = args.data or DEMO_DATA
    if args.table and setup.columns:
        raise ValueError("columns are of --data, and the papers' tables have their own")
    # Check everything that may raise an error before training starts.
    if not args.table:
        for name in names:
            split_problem(args.case(name), seed=0)
    base = dataclasses.replace(args.case("sensorless"), missing="zero")
    wanted = {table: list(TABLES[table](base)) for table in args.table}
    if args.table:
        require_match(args.only, (cell.id for cells in wanted.values() for cell in cells))
    wanted = {table: [cell for cell in cells if args.only in cell.id] for table, cells in wanted.items()}
    config = dataclasses.asdict(args) | dataclasses.asdict(setup)
    config = {k: str(v) if isinstance(v, Path) else v for k, v in config.items() if k not in ("fresh", "setup")}
    out = args.out or default_out("vflrecon", _in_names("-".join(args.table or names)))
    folder = RunFolder(out, "vflrecon", config, fresh=args.fresh, program="python -m experiments.vflrecon")
    return _tables(args, wanted, folder, need_runs) if args.table else _study(args, names, folder)


def _study(args: Args, names: Sequence[str], folder: RunFolder) -> dict[str, float]:
    runs = Runs(
        args.shadow_init, args.features, task=args.setup.defense != "none", regressions=True, comparisons=True,
        label_holder=args.features,
    )  # fmt: skip
    jobs = {name: SplitJob(args.case(name), runs) for name in names}
    seeds = args.seeds
    runner = runner_in(folder, SplitJobs({(job.case, s) for job in jobs.values() for s in seeds}), fresh=args.fresh)
    runner.check(jobs.values(), seeds)
    folder.log_again()
    sizes = [about_run(job.case, seeds[0]) for job in jobs.values()]
    print("\n".join(sizes))
    with Progress() as progress:
        for number, (name, job) in enumerate(jobs.items()):
            for done, seed in enumerate(seeds, start=number * len(seeds)):
                progress.update("cases", done, len(jobs) * len(seeds), f"{name}, seed {seed}")
                with folder.phase(name):
                    found = runner(job, seed)
                folder.log(data=name, seed=seed, **found.scores)
    scores = {name: [runner(job, seed).scores for seed in seeds] for name, job in jobs.items()}
    results = summarise(scores)
    captions: dict[str, str] = {}
    of_columns: list[Section] = []
    for name, job in jobs.items():
        arrays = [runner(job, seed).arrays for seed in seeds]
        figures = folder.path / "figures"
        captions |= draw_pictures(figures, _in_names(name), job.case, scores[name], arrays, seed=seeds[0])
        of_columns += column_section(name, job.case, arrays[0], seed=seeds[0])
    header, rows = ("score", *jobs), table_of(scores)
    short = in_short(scores)
    write_markdown(
        folder, "What one party of vertical training learns about the others",
        command=command_line("python -m experiments.vflrecon", args), seeds=seeds,
        sections=[short, Section("Scores", (_READING, *sizes), header, rows), *of_columns], captions=captions,
    )  # fmt: skip
    folder.finish(results)
    for own in ((header, rows), *((section.header, section.rows) for section in of_columns)):
        show_table(*own)
    print(*short.text, folder.contents(), sep="\n")
    return results


def _tables(args: Args, wanted: Mapping[str, Sequence[Cell]], folder: RunFolder, need_runs: bool) -> dict[str, float]:
    rows, runner = run_wanted(
        [cell for cells in wanted.values() for cell in cells], folder, seeds=args.seeds, budget=args.budget,
        shadow_init=args.shadow_init, fresh=args.fresh,
        pictured={cell.jobs[0].case for table in figures.PICTURED for cell in wanted.get(table, ())},
    )  # fmt: skip
    show_cells(rows, BESIDE_COLUMNS)
    left = iter(rows)
    for table, cells in wanted.items():
        own = [next(left) for _ in cells]
        case = cells[0].jobs[0].case if table in figures.PICTURED and cells else None
        figures.draw(folder.path / "figures", table, own, case and arrays_of(runner, case, args.seeds[0]))
    return finish_cells(
        folder, "The tables of VFLRecon", args, rows, BESIDE_COLUMNS, seeds=args.seeds,
        captions=figures.CAPTIONS, need_runs=need_runs,
    )  # fmt: skip


def plan(wanted: Iterable[Scored], shadow_init: tuple[party_records.ShadowInit, ...]) -> dict[SplitCase, Runs]:
    """The runs that every case needs for all its requested scores."""
    scores: dict[SplitCase, list[str]] = {}
    for case, score in wanted:
        scores.setdefault(case, []).append(score)
    return {case: runs_for(names, shadow_init) for case, names in scores.items()}


def run_wanted(
    cells: Sequence[Cell],
    folder: RunFolder,
    *,
    seeds: Sequence[int],
    budget: float,
    shadow_init: tuple[party_records.ShadowInit, ...],
    pictured: Collection[SplitCase] = (),
    fresh: bool = False,
) -> tuple[list[dict[str, Any]], Runner]:
    """Run the cells that fit into the budget.

    Args:
        cells: cells of `TABLES`; earlier ones get the budget first.
        folder: run folder, where finished cases are kept.
        seeds: random seeds; every cell is repeated for each.
        budget: time budget in minutes.
        shadow_init: starts of the shadow run; the first start gives "ours" in the attack's cells.
        pictured: cases with arrays that a figure shows; the arrays of the first seed are kept.
        fresh: whether to delete finished cases.

    Returns:
        The rows of `run_cells`, with further scores beside ours, and the runner.
    """
    runs = plan((scored for cell in cells for scored in cell.jobs), shadow_init)
    names = {cell.id: cell.jobs[0].score for cell in cells if cell.jobs}
    runner = runner_in(folder, SplitJobs({(case, seeds[0]) for case in pictured}), fresh=fresh)
    with Progress() as progress:
        rows = run_cells(
            [dataclasses.replace(c, jobs=tuple(SplitJob(case, runs[case]) for case, _ in c.jobs)) for c in cells],
            runner,
            folder,
            seeds=seeds,
            budget=Budget(60.0 * budget),
            beside=lambda cell, results: _beside(cell, names[cell.id], results),
            watch=progress.update,
        )
    return rows, runner


def arrays_of(runner: Runner, case: SplitCase, seed: int) -> Mapping[str, np.ndarray] | None:
    """The arrays of a pictured case, from this or an earlier run; None if the case did not run."""
    for (job, of_seed), result in runner.memory.items():
        if (job.case, of_seed) == (case, seed) and result.arrays:
            return result.arrays
    return None


def _beside(cell: Cell, score: str, results: Sequence[Results]) -> dict[str, Any]:
    """Further entries of a row: other scores' means and deviations; `variance` is the variance of the features."""
    scores = [of_seed[0].scores for of_seed in results]

    def mean(name: str, factor: float = 1.0, of: Any = np.mean) -> float | None:
        values = [of_seed[name] for of_seed in scores if name in of_seed]
        return factor * float(of(values)) if values else None

    found = {name: mean(name) for name in ("shadow_records", "victim_records")}
    stem = next((stem for stem in (LABEL, FEATURE) if score.startswith(stem)), None)
    factor = 100.0 if cell.unit == "%" else 1.0
    if stem is not None:
        adaptive = "_adaptive" if score.endswith("_adaptive") else ""
        for name in figures.BESIDE:
            suffix = adaptive if name in ("own_bottom", "independent") else ""
            for key, of in ((name, np.mean), (f"{name}_spread", np.std)):
                found[key] = mean(f"{stem}_{name}{suffix}", factor, of)
    if stem == FEATURE:
        found["variance"] = mean("feature_variance", factor)
    if score.startswith("task"):
        found |= {name: mean(name, factor) for name in ("task_accuracy", "task_accuracy_undefended")}
    return found


def summarise(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Metrics of all runs: means `name_<data>`, deviations `name_<data>_std`, and `name` (the mean if all have it)."""
    results: dict[str, float] = {}
    for metric in _score_names(runs):
        means = {}
        for name, scores in runs.items():
            if metric in scores[0]:
                values = [score[metric] for score in scores]
                means[name] = float(np.mean(values))
                results[f"{metric}_{name}"] = means[name]
                results[f"{metric}_{name}_std"] = float(np.std(values))
        if len(means) == len(runs):
            results[metric] = float(np.mean(list(means.values())))
    return results


def table_of(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[list[str]]:
    """A table of scores by data set, each with the mean over the seeds and, for several seeds, the deviation."""

    def cell(values: Sequence[float]) -> str:
        spread = f" +- {np.std(values):.4f}" if len(values) > 1 else ""
        return f"{np.mean(values):.4f}{spread}" if values else "-"

    scores = in_report(_score_names(runs))
    names = [name for name in scores if not (name.startswith("seconds") or name.endswith("_records"))]
    return [[score_name(name), *(cell([s[name] for s in of if name in s]) for of in runs.values())] for name in names]


def _score_names(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    return sorted({name for scores in runs.values() for score in scores for name in score})


def _in_names(text: str) -> str:
    """A data specification in a form that can be part of a file's name."""
    return re.sub(r"[^\w.-]", "_", text)
