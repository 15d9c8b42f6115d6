"""The tables of both CAFE papers, cell by cell: paper, ours, difference.

    python -m experiments.cafe_tables --table table3 --budget 30
    python -m experiments.cafe_tables --table table2 table4 --budget 60 --solver paper --iterations 600
    python -m experiments.cafe_tables --table fake-gradients table11 fig7 --budget 40

`--budget` is in minutes of two CPU cores. Cells whose estimate does not fit what is left of it are listed, not run; so
are cells whose data set is missing (docs/data.md; Linnaeus 5 comes as `--linnaeus5 folder:DIR`). CAFE rows with frozen
parameters run the exact engine unless `--solver paper` asks for the paper's own gradient descent; baselines and
ablations always descend. `--iterations` is the number of Step III iterations of every descending attack (paper: 8,000;
Steps I and II always take 8,000 each, about seven minutes). Finished runs are not run again: the same command goes on
where it was, and `--fresh` starts over. Every table of images gets a sheet with the truth above the reconstructions of
all its rows: Figure 1 of the paper is that of Table 2, Figure 5 that of Table 4, Figure 6 that of the fake gradients,
and Figure 8 that of `--table yale`. `images` says how many reconstructions a mean is over: those that the exact
engine has no answer for are left out where nothing is defended, and results.json keeps every seed's numbers.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments._cafe.tables import DATASETS, FACES, FIGURES, ICLR, NEURIPS, Options, cells, setting_of
from jaxleak import _validate
from jaxleak.study import RunFolder, default_out, plots, run_command, sheets
from jaxleak.study.cell_reports import finish_cells
from jaxleak.study.cells import Budget, Cell, Results, run_cells
from jaxleak.study.files import write_json
from jaxleak.study.rounds.jobs import CafeJobs
from jaxleak.study.rows import NO_DATA, NOT_ASKED, require_match, show_cells
from jaxleak.study.runner import Result, Runner, runner_in
from jaxleak.study.sources import unavailable

#: Scores that a row keeps for every seed beside its value; None where a run has no such score.
PER_SEED = ("images", "images_asked", "answered", "recovered", "feature_error", "psnr_channel_peak")

#: Captions of the figures, by file name.
CAPTIONS = {
    "descent.png": "The PSNR over the iterations of Step III, a curve per row and seed. The attacker does not see it.",
    "single.png": "The PSNR over the iterations of CAFE's single-loop algorithm. The attacker does not see it.",
    "training.png": "The training loss with and without each defense. A loss that stays high is what a defense costs.",
    "*": "Private images above what every row of a table reconstructs, with the row's mean PSNR. Higher leaks more.",
}


@dataclass(frozen=True)
class Args(Options):
    """Which cells to run, and how."""

    table: tuple[Literal[NEURIPS + FACES + FIGURES + ICLR], ...] = ("table2", "table3", "table6")  # type: ignore[valid-type]
    """Tables to run; those of the ICLR submission begin with iclr-."""
    budget: float = 30.0
    """Minutes to spend (on two CPU cores)."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights, batches and starts."""
    datasets: tuple[Literal[tuple(DATASETS.values())], ...] = tuple(DATASETS.values())  # type: ignore[valid-type]
    """Only these data sets."""
    only: str = ""
    """Run only cells whose id contains this."""
    linnaeus5: str | None = None
    """Data specification of Linnaeus 5 (for example folder:DIR?size=32)."""
    out: Path | None = None
    """Folder of the run (by default below runs/)."""
    fresh: bool = False
    """Forget finished runs."""


def main(args: Args, *, need_runs: bool = False) -> list[dict[str, Any]]:
    """Run what fits the budget; returns the cells.

    Args:
        args: the options.
        need_runs: raise in the end, as `require_runs` does, if no cell ran.

    Raises:
        ValueError: on options out of range, `--only` in no cell's id, or unknown data of `--linnaeus5`.
    """
    _validate.seeds(seeds=args.seeds)
    _validate.positive(budget=args.budget)
    _validate.count(iterations=args.iterations, images=args.images, num_samples=args.num_samples)
    for name in args.datasets:
        _validate.one_of(DATASETS.values(), datasets=name)
    chosen = list(cells(args.table, args))
    require_match(args.only, (cell.id for cell in chosen))
    if args.linnaeus5 and (why := unavailable(args.linnaeus5)):
        raise ValueError(f"--linnaeus5 cannot be loaded: {why}")
    out = args.out or default_out("cafe_tables", "-".join(args.table))
    config = {
        name: getattr(args, name)
        for name in ("table", "budget", "solver", "iterations", "data_learning_rate", "images", "num_samples", "seeds")
    }
    folder = RunFolder(out, "cafe_tables", config, fresh=args.fresh, program="python -m experiments.cafe_tables")
    specs = {name: name for name in DATASETS.values()} | ({"linnaeus5": args.linnaeus5} if args.linnaeus5 else {})
    missing = {name: why for name, spec in specs.items() if (why := unavailable(spec))}
    if not args.linnaeus5:
        missing["linnaeus5"] = "linnaeus5 needs --linnaeus5, for example folder:DIR?size=32"
    chosen = [replace(cell, reason=_reason(args, cell, missing)) for cell in chosen]
    runner = runner_in(folder, CafeJobs(specs), fresh=args.fresh)
    rows = run_cells(chosen, runner, folder, seeds=args.seeds, budget=Budget(60.0 * args.budget), beside=_beside)
    show_cells(rows, BESIDE)
    _draw_curves(folder, runner)
    for name, images in pictured(runner, [cell for cell in chosen if not cell.reason], args.seeds[0]).items():
        sheets.comparison_sheet(folder.figure(f"{name}.png"), images, title=f"{name}: what every row reconstructs")
    title = "The tables of the CAFE papers"
    finish_cells(folder, title, args, rows, BESIDE, seeds=args.seeds, captions=CAPTIONS, need_runs=need_runs)
    return rows


def _reason(args: Args, cell: Cell, missing: Mapping[str, str]) -> str:
    """The reason why no budget makes a cell run; empty if there is none."""
    dataset = setting_of(cell).dataset
    if dataset not in args.datasets or args.only not in cell.id:
        return NOT_ASKED
    return NO_DATA + missing[dataset] if dataset in missing else ""


def _beside(cell: Cell, results: Sequence[Results]) -> dict[str, Any]:
    """Further entries of a row: how it was run, and for every seed the scores in `PER_SEED`."""
    setting = setting_of(cell)
    per_seed = {name: [of_seed[0].scores.get(name) for of_seed in results] for name in PER_SEED}
    return {"solver": setting.kind, "iterations": setting.iterations or None, **per_seed}


def _how(row: dict[str, Any]) -> str:
    return row["solver"] + (f", {row['iterations']} iterations" if row["iterations"] else "")


def _images(row: dict[str, Any]) -> str:
    """Number of images in the mean of a row, over all seeds, and the number that was asked for."""
    if None in (*row["images"], *row["images_asked"]):
        return ""
    return f"{sum(row['images']):.0f} of {sum(row['images_asked']):.0f}"


#: Columns beside a cell: heading to the function that gives the text.
BESIDE = {"how": _how, "images": _images}


def pictured(runner: Runner, chosen: Sequence[Cell], seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Images of the contact sheets: the truth and every finished row's reconstructions, by table and data set.

    A row of a sheet is labelled with the rest of its cell's id and its mean PSNR. The samples are the first ones for
    which every row has a reconstruction, since the exact engine leaves out samples for which it has no answer.
    """
    found: dict[str, dict[str, Result]] = {}
    for cell in chosen:
        setting = setting_of(cell)
        result = runner.memory.get((setting, seed))
        if result is not None and "truth" in result.arrays:
            table, _, row = cell.id.partition("/")
            found.setdefault(f"{table}-{setting.dataset}", {})[row] = result
    drawn_sheets = {}
    for name, rows in found.items():
        common = functools.reduce(np.intersect1d, (result.arrays["index"] for result in rows.values()))
        if not len(common):
            continue
        first = next(iter(rows.values())).arrays
        sheet = {"private images": first["truth"][np.isin(first["index"], common)]}
        for row, result in rows.items():
            drawn = result.arrays
            label = f"{row}: mean PSNR {result.scores['psnr']:.1f} dB"
            sheet[label] = drawn["estimate"][np.isin(drawn["index"], common)]
        drawn_sheets[name] = sheet
    return drawn_sheets


def _draw_curves(folder: RunFolder, runner: Runner) -> None:
    stored = []
    for kind, ylabel, title in (
        ("descent", "PSNR in dB (higher leaks more)", "What Step III recovers"),
        ("single", "PSNR in dB (higher leaks more)", "What the single-loop algorithm recovers"),
        ("training", "training loss (lower is better)", "What defenses cost in training"),
    ):
        series = {}
        for (setting, seed), result in runner.memory.items():
            if setting.kind != kind:
                continue
            points = result.arrays["curve"]
            name = setting.defense if kind == "training" else setting.method
            label = " ".join([setting.dataset, name, *(f"{k}={v:g}" for k, v in setting.overrides)])
            series[f"{label}, seed {seed}"] = (points[:, 0], points[:, 1])
            stored.append({"kind": kind, "label": label, "seed": seed, "curve": points})
        if series:
            log, path = kind == "training", folder.figure(f"{kind}.png")  # these losses span many orders of magnitude
            plots.curves(path, series, title=title, xlabel="iteration", ylabel=ylabel, log_y=log)
    write_json(folder.path / "curves.json", stored)


if __name__ == "__main__":
    run_command(functools.partial(main, need_runs=True), Args, __doc__)
