"""The VFLRecon study: data sets of one's choice, or the tables of the paper."""

import dataclasses
from pathlib import Path

import numpy as np

from experiments._vfl import figures as vfl_figures
from experiments._vfl import pictures as vfl_pictures
from experiments._vfl import report as vfl_report
from experiments._vfl import tables as vfl_tables
from experiments._vfl.cell import Reading
from experiments._vfl.cells import readings
from experiments._vfl.options import DEMO_DATA, Args
from experiments._vfl.problem import sources_of, vertical_problem
from experiments._vfl.runs import Runs, run_case
from jaxleak import _validate
from jaxleak.attacks import party_records
from jaxleak.study import Progress, RunFolder, default_out
from jaxleak.study.cell_reports import finish_cells
from jaxleak.study.rows import require_match


def main(args: Args, *, need_runs: bool = False) -> dict[str, float]:
    """Run the study; returns the metrics: means over data sets and seeds, then each data set's mean and spread.

    Args:
        args: the options.
        need_runs: raise in the end, as `require_runs` does, if no cell of the tables ran.

    Raises:
        ValueError: on options out of range, data that do not fit them, or `--only` in no cell's id.
    """
    _validate.count(seeds=args.seeds, batch_size=args.batch_size, shadow_records=args.shadow_records)
    _validate.count(shadow_runs=args.shadow_runs, network_epochs=args.network_epochs, parties=args.parties)
    _validate.count(victim_records=args.victim_records, task_epochs=args.task_epochs)
    _validate.positive(budget=args.budget)
    _validate.non_negative(strength=args.strength)
    unknown = set(args.fields) - set(party_records.FIELDS)
    if unknown or not args.fields:
        raise ValueError(
            f"fields must be some of {', '.join(party_records.FIELDS)}, got {', '.join(args.fields) or 'none'}"
        )
    if not args.shadow_init:
        raise ValueError(f"shadow_init must name at least one of {', '.join(party_records.SHADOW_INITS)}")
    names = args.data or DEMO_DATA
    # All that can be refused is refused before anything is trained.
    if not args.table:
        for name in names:
            vertical_problem(args.case(name), seed=0)
    wanted = [(table, reading) for table in args.table for reading in readings(table, args.case("sensorless"))]
    if args.table:
        require_match(args.only, (reading.id for _, reading in wanted))
    wanted = [(table, reading) for table, reading in wanted if args.only in reading.id]
    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(args).items() if k != "fresh"}
    out = args.out or default_out("vflrecon", _in_names("-".join(args.table or names)))
    folder = RunFolder(out, "vflrecon", config, fresh=args.fresh)
    return _tables(args, wanted, folder, need_runs) if args.table else _study(args, names, folder)


def _study(args: Args, names: tuple[str, ...], folder: RunFolder) -> dict[str, float]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    arrays: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in names}
    wanted = Runs(
        shadow_init=args.shadow_init,
        features=args.features,
        task=args.defense != "none",
        regressions=True,
        comparisons=True,
    )
    for name in names:
        folder.sources.bind(sources_of(args.case(name)))
    folder.work_again()
    with Progress() as progress:
        for number, name in enumerate(names):
            for seed in range(args.seeds):
                progress.update("cases", number * args.seeds + seed, len(names) * args.seeds, f"{name}, seed {seed}")
                with folder.phase(name):
                    scores, found = run_case(args.case(name), seed, wanted)
                runs[name].append(scores)
                arrays[name].append(found)
                folder.log(data=name, seed=seed, **scores)
    results = summarise(runs)
    captions: dict[str, str] = {}
    for name in names:
        # A specification may have a path in it.
        captions |= vfl_pictures.draw(
            folder.path / "figures", _in_names(name), args.case(name), runs[name], arrays[name]
        )
    vfl_report.write_study(folder, args, runs, captions)
    folder.finish(results)
    print_table(runs)
    print(folder.contents())
    return results


def _tables(args: Args, wanted: list[tuple[str, Reading]], folder: RunFolder, need_runs: bool) -> dict[str, float]:
    rows, runner = vfl_tables.run_readings(
        [reading for _, reading in wanted],
        folder,
        seeds=range(args.seeds),
        budget=args.budget,
        shadow_init=args.shadow_init,
        pictured={reading.case for table, reading in wanted if table in vfl_figures.PICTURED},
        fresh=args.fresh,
    )
    vfl_tables.show(rows)
    for table in args.table:
        own = [row for row, (name, _) in zip(rows, wanted, strict=True) if name == table]
        case = next((reading.case for name, reading in wanted if name == table), None)
        arrays = None if case is None else vfl_tables.arrays_of(runner, case, 0)
        vfl_figures.draw(folder.path / "figures", table, own, arrays)
    return finish_cells(
        folder, "The tables of VFLRecon", args, rows, vfl_tables.BESIDE_COLUMNS, seeds=range(args.seeds),
        captions=vfl_figures.CAPTIONS, need_runs=need_runs,
    )  # fmt: skip


def _in_names(text: str) -> str:
    """A specification of data as a part of a file's name."""
    return text.replace("/", "_").replace(":", "_")


def summarise(runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Metrics of all runs: `name` is the mean over data sets, `name_<data>` and `name_<data>_std` are each one's."""
    results: dict[str, float] = {}
    for metric in _metric_names(runs):
        means = {}
        for name, scores in runs.items():
            if metric in scores[0]:
                values = [score[metric] for score in scores]
                means[name] = float(np.mean(values))
                results[f"{metric}_{name}"] = means[name]
                results[f"{metric}_{name}_std"] = float(np.std(values))
        results[metric] = float(np.mean(list(means.values())))
    return results


def print_table(runs: dict[str, list[dict[str, float]]]) -> None:
    """One row per metric, one column per data set, mean and spread over seeds."""
    rows = _metric_names(runs)
    width = max(map(len, rows))
    print(f"{'':{width}}  " + "  ".join(f"{name:>17}" for name in runs))
    for metric in rows:
        cells = []
        for scores in runs.values():
            values = [score[metric] for score in scores if metric in score]
            cells.append(vfl_report.with_spread(values))
        print(f"{metric:{width}}  " + "  ".join(f"{cell:>17}" for cell in cells))


def _metric_names(runs: dict[str, list[dict[str, float]]]) -> list[str]:
    return sorted({metric for scores in runs.values() for score in scores for metric in score})
