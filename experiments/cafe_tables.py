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

With the exact engine every CAFE cell of Tables 3 and 6 on MNIST and CIFAR-10 should print above 95 dB. The paper's own
solver at `--solver paper --datasets mnist --iterations 300 --data-learning-rate 0.05` should print about 13.3 dB for
CAFE, 8.8 for the BN regularizer, 5.9 for GC and 5.1 or less for the others (seed 0, half an hour). `--table
fake-gradients --only fake-capped --images 4 --num-samples 200` should print about 5 dB, and 32 for who knows of the
defense (a quarter of an hour); `--table fig7 --iterations 1000` has training losses (ten minutes).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments._cafe.cells import DATASETS, Cell, Runner, available, cost, with_seed
from experiments._cafe.tables import FACES, FIGURES, ICLR, NEURIPS, Options, cells
from experiments._report import write_cells
from experiments._rows import BEYOND_BUDGET, NO_DATA, NOT_ASKED, require_match, require_runs, show_cells
from jaxleak import _validate
from jaxleak.study import RunFolder, default_out, plots, run_command, sheets
from jaxleak.study.files import write_json

#: What a row keeps of every seed beside its value; None where a run has no such number.
PER_SEED = ("images", "images_asked", "answered", "feature_error", "psnr_channel_peak")

#: What the figures show, by their names.
CAPTIONS = {
    "descent.png": "PSNR over the iterations of Step III, by row; the attacker does not see it.",
    "single.png": "PSNR over the iterations of CAFE's single-loop algorithm; the attacker does not see it.",
    "training.png": "Training loss with each defense.",
    "*": "Private images above the reconstructions of every row of a table, with the row's mean PSNR.",
}


@dataclass(frozen=True)
class Args(Options):
    """Which cells to run, and how."""

    table: tuple[Literal[NEURIPS + FACES + FIGURES + ICLR], ...] = ("table2", "table3", "table6")  # type: ignore[valid-type]
    """Tables of the papers; those of the ICLR submission begin with iclr-."""
    budget: float = 30.0
    """Minutes on two CPU cores."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights, batches and starts."""
    datasets: tuple[Literal[tuple(DATASETS.values())], ...] = tuple(DATASETS.values())  # type: ignore[valid-type]
    """Run only cells of these data sets."""
    only: str = ""
    """Run only cells whose id contains this."""
    linnaeus5: str | None = None
    """Data specification of Linnaeus 5, for example folder:DIR?size=32."""
    out: Path | None = None
    """Folder of the run, by default below runs/."""
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
    if args.linnaeus5 and (why := available(args.linnaeus5)):
        raise ValueError(f"--linnaeus5 cannot be loaded: {why}")
    out = args.out or default_out("cafe_tables", "-".join(args.table))
    config = {
        name: getattr(args, name)
        for name in ("table", "budget", "solver", "iterations", "data_learning_rate", "images", "num_samples", "seeds")
    }
    folder = RunFolder(out, "cafe_tables", config, fresh=args.fresh)
    specs = {name: name for name in DATASETS.values()} | ({"linnaeus5": args.linnaeus5} if args.linnaeus5 else {})
    missing = {name: why for name, spec in specs.items() if (why := available(spec))}
    if not args.linnaeus5:
        missing["linnaeus5"] = "linnaeus5 needs --linnaeus5, for example folder:DIR?size=32"
    runner = Runner(specs, folder.path / "cells", fresh=args.fresh)
    left, rows = 60.0 * args.budget, list[dict[str, Any]]()
    for cell in chosen:
        if _asked_for(args, cell) and cell.setting.dataset not in missing:
            for seed in args.seeds:
                folder.sources.check(runner.sources(with_seed(cell.setting, seed)))
    folder.log_again()
    for cell in chosen:
        row: dict[str, Any] = {"id": cell.id, "paper": cell.paper, "unit": cell.unit, "ours": None}
        if not _asked_for(args, cell):
            row["not_run"] = NOT_ASKED
        elif cell.setting.dataset in missing:
            row["not_run"] = NO_DATA + missing[cell.setting.dataset]
        elif (need := _need(runner, cell, args.seeds)) > max(left, 0.0):
            row["not_run"] = f"needs about {need / 60:.0f} minutes, {BEYOND_BUDGET}"
        else:
            before = sum(folder.seconds.values())
            row |= _measured(runner, folder, cell, args.seeds)
            left -= sum(folder.seconds.values()) - before
            folder.log(**row)
        rows.append(row)
    show(rows)
    _draw_curves(folder, runner)
    for name, images in pictured(runner, [cell for cell in chosen if _asked_for(args, cell)], args.seeds[0]).items():
        sheets.comparison_sheet(folder.figure(f"{name}.png"), images)
    ran = [row for row in rows if row["ours"] is not None]
    write_cells(folder, "The tables of the CAFE papers", args, rows, BESIDE, seeds=args.seeds, captions=CAPTIONS)
    folder.finish({"cells_run": len(ran), "cells_listed": len(rows) - len(ran)}, cells=rows)
    print(folder.contents())
    if need_runs:
        require_runs(rows)
    return rows


def _asked_for(args: Args, cell: Cell) -> bool:
    return cell.setting.dataset in args.datasets and args.only in cell.id


def _measured(runner: Runner, folder: RunFolder, cell: Cell, seeds: tuple[int, ...]) -> dict[str, Any]:
    """What a cell's row says after its runs, or why they cannot be made on this machine."""
    settings = [with_seed(cell.setting, seed) for seed in seeds]
    for setting in settings:
        folder.sources.bind(runner.sources(setting))
    try:
        with folder.phase(cell.id.split("/")[0]):
            results = [runner(setting) for setting in settings]
    except (MemoryError, ValueError) as error:  # too large for this machine, or for the data at hand
        return {"not_run": str(error)}
    values = [cell.read(result) for result in results]
    return {
        "ours": float(np.mean(values)),
        "spread": float(np.std(values)),
        "seeds": list(seeds),
        "values": values,
        "solver": cell.setting.kind,
        "iterations": cell.setting.iterations or None,
        **{name: [result.get(name) for result in results] for name in PER_SEED},
        "note": cell.note,
    }


def _need(runner: Runner, cell: Cell, seeds: tuple[int, ...]) -> float:
    """Estimated seconds of what is not done."""
    settings = (with_seed(cell.setting, seed) for seed in seeds)
    return sum(cost(setting) for setting in settings if not runner.done(setting))


def show(rows: list[dict[str, Any]]) -> None:
    """Print paper, ours, difference and how many images the mean is over; then what was not run and why."""
    show_cells(rows, BESIDE)


def _how(row: dict[str, Any]) -> str:
    return row["solver"] + (f", {row['iterations']} iterations" if row["iterations"] else "")


def _images(row: dict[str, Any]) -> str:
    """How many images the mean of a row is over, all seeds together, and how many there were."""
    if None in (*row["images"], *row["images_asked"]):
        return ""
    return f"{sum(row['images'])} of {sum(row['images_asked'])}"


#: What stands beside a cell: heading to its text.
BESIDE = {"how": _how, "images": _images}


def pictured(runner: Runner, chosen: Sequence[Cell], seed: int) -> dict[str, dict[str, np.ndarray]]:
    """The truth and the reconstructions by every finished row of a table, by table and data set.

    A row of a sheet is labelled with the rest of its cell's id and its mean PSNR. The samples are the first ones for
    which every row has a reconstruction: the exact engine leaves out those for which it has no answer.
    """
    found: dict[str, dict[str, tuple[Cell, dict[str, np.ndarray]]]] = {}
    for cell in chosen:
        setting = with_seed(cell.setting, seed)
        if setting in runner.results and (drawn := runner.pictures(setting)) is not None:
            table, _, row = cell.id.partition("/")
            found.setdefault(f"{table}-{setting.dataset}", {})[row] = (cell, drawn)
    drawn_sheets = {}
    for name, rows in found.items():
        common = functools.reduce(np.intersect1d, (drawn["index"] for _, drawn in rows.values()))
        if not len(common):
            continue
        first = next(drawn for _, drawn in rows.values())
        sheet = {"truth": first["truth"][np.isin(first["index"], common)]}
        for row, (cell, drawn) in rows.items():
            psnr = runner.results[with_seed(cell.setting, seed)]["psnr"]
            sheet[f"{row}, {psnr:.1f} dB"] = drawn["estimate"][np.isin(drawn["index"], common)]
        drawn_sheets[name] = sheet
    return drawn_sheets


def _draw_curves(folder: RunFolder, runner: Runner) -> None:
    stored = []
    for kind, ylabel in (
        ("descent", "PSNR in dB (truth-side)"),
        ("single", "PSNR in dB"),
        ("training", "training loss"),
    ):
        series = {}
        for setting, results in runner.results.items():
            if setting.kind != kind:
                continue
            points = np.array(results["curve"])
            name = setting.defense if kind == "training" else setting.method
            label = " ".join([setting.dataset, name, *(f"{k}={v:g}" for k, v in setting.overrides)])
            series[f"{label}, seed {setting.seed}"] = (points[:, 0], points[:, 1])
            stored.append({"kind": kind, "label": label, "seed": setting.seed, "curve": points})
        if series:
            # Losses of defended training span many orders of magnitude.
            log = kind == "training"
            plots.curves(folder.figure(f"{kind}.png"), series, xlabel="iteration", ylabel=ylabel, log_y=log)
    write_json(folder.path / "curves.json", stored)


if __name__ == "__main__":
    run_command(functools.partial(main, need_runs=True), Args, __doc__)
