"""The tables of both CAFE papers, cell by cell: paper, ours, difference.

    python -m experiments.cafe_tables --table table3 --budget 30
    python -m experiments.cafe_tables --table table2 table4 --budget 60 --solver paper --iterations 600
    python -m experiments.cafe_tables --table fake-gradients table11 fig7 --budget 40

`--budget` is in minutes of two CPU cores. Cells whose estimate does not fit what is left of it are listed, not run; so
are cells whose data set is missing (docs/data.md; Linnaeus 5 comes as `--linnaeus5 folder:DIR`). CAFE rows with frozen
parameters run the exact engine unless `--solver paper` asks for the paper's own gradient descent; baselines and
ablations always descend. `--iterations` is the number of Step III iterations of every descending attack (paper: 8,000;
Steps I and II always take 8,000 each, about seven minutes). Finished runs are not run again: the same command goes on
where it was, and `--fresh` starts over.

With the exact engine every CAFE cell of Tables 3 and 6 on MNIST and CIFAR-10 should print above 95 dB. The paper's own
solver at `--solver paper --datasets mnist --iterations 300 --data-learning-rate 0.05` should print about 13.3 dB for
CAFE, 8.8 for the BN regularizer, 5.9 for GC and 5.1 or less for the others (seed 0, half an hour).
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments import _paper, _plots
from experiments._cafe.cells import (
    DATASETS,
    Cell,
    Runner,
    at_iteration,
    available,
    cost,
    iterations_to,
    psnr,
    with_seed,
)
from experiments._cafe.runs import FAKE, KNOWLEDGE, Setting
from experiments._harness import (
    BEYOND_BUDGET,
    NO_DATA,
    RunFolder,
    default_out,
    print_grouped,
    require_data,
    run_command,
    write_json,
)
from jaxleak import _validate

NEURIPS = ("table2", "table3", "table4", "table5", "table6", "table7", "table8", "table10", "table11", "fake-gradients")
#: Without printed numbers: the training curves.
FIGURES = ("fig7",)
ICLR = ("iclr-table1a", "iclr-table1b", "iclr-table2a", "iclr-table2b", "iclr-table3a", "iclr-table3b", "iclr-table4")

METHODS = {
    "CAFE": "cafe",
    "CAFE (loss 8)": "cafe",
    "CAFE with cosine similarity": "cafe-cosine",
    "Loss of Geiping et al.": "cosine",
    "DLG": "dlg",
    "Cosine Similarity": "cosine",
    "SAPAG": "sapag",
    "BN regularizer": "bn",
    "GC regularizer": "gc",
}

ABLATIONS = {"full": (), "alpha0": ("alpha",), "xi0": ("xi",), "beta0": ("beta",), "gamma0": ("gamma",)}

#: Truth-side PSNR at which the paper stops counting iterations (Table 5).
STOP_DB = {"cifar10": 27.0, "linnaeus5": 30.0, "mnist": 38.0}


@dataclass(frozen=True)
class Args:
    """Which cells to run, and how."""

    table: tuple[Literal[NEURIPS + FIGURES + ICLR], ...] = ("table2", "table3", "table6")  # type: ignore[valid-type]
    """Tables of the papers; those of the ICLR submission begin with iclr-."""
    budget: float = 30.0
    """Minutes on two CPU cores."""
    solver: Literal["exact", "paper"] = "exact"
    """How CAFE rows with frozen parameters run."""
    iterations: int = 600
    """Step III iterations of descending attacks."""
    data_learning_rate: float | None = None
    """Step III learning rate of every descending attack; None takes Table 9's (0.01 to 0.02, for 8,000 iterations)."""
    images: int = 32
    """Samples that the exact engine's Step III inverts."""
    num_samples: int = 800
    """Private samples behind the NeurIPS tables (paper: 800)."""
    seeds: tuple[int, ...] = (0,)
    datasets: tuple[Literal[tuple(DATASETS.values())], ...] = tuple(DATASETS.values())  # type: ignore[valid-type]
    """Run only cells of these data sets."""
    only: str = ""
    """Run only cells whose id contains this."""
    linnaeus5: str | None = None
    """Data specification of Linnaeus 5, for example folder:DIR?size=32."""
    out: Path | None = None
    fresh: bool = False
    """Forget finished runs."""


def main(args: Args, *, need_data: bool = False) -> list[dict[str, Any]]:
    """Run what fits the budget; returns the cells.

    Args:
        args: the options.
        need_data: raise `FileNotFoundError` in the end if no cell could run for lack of data.
    """
    _validate.positive(seeds=len(args.seeds), budget=args.budget, iterations=args.iterations, images=args.images)
    _validate.positive(num_samples=args.num_samples)
    for name in args.datasets:
        _validate.one_of(DATASETS.values(), datasets=name)
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
    for cell in cells(args):
        row: dict[str, Any] = {"id": cell.id, "paper": cell.paper, "unit": cell.unit, "ours": None}
        if cell.setting.dataset not in args.datasets or args.only not in cell.id:
            row["not_run"] = "not asked for"
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
    ran = [row for row in rows if row["ours"] is not None]
    path = folder.finish({"cells_run": len(ran), "cells_listed": len(rows) - len(ran)}, cells=rows)
    print(f"stored in {path}")
    if need_data:
        require_data(rows)
    return rows


def _measured(runner: Runner, folder: RunFolder, cell: Cell, seeds: tuple[int, ...]) -> dict[str, Any]:
    """What a cell's row says after its runs, or why they cannot be made on this machine."""
    settings = [with_seed(cell.setting, seed) for seed in seeds]
    try:
        with folder.phase(cell.id.split("/")[0]):
            results = [runner(setting) for setting in settings]
    except MemoryError as error:
        return {"not_run": str(error)}
    values = [cell.read(result) for result in results]
    return {
        "ours": float(np.mean(values)),
        "spread": float(np.std(values)),
        "seeds": list(seeds),
        "solver": cell.setting.kind,
        "iterations": cell.setting.iterations or None,
        **{name: results[0].get(name) for name in ("recovered", "feature_error")},
        "note": cell.note,
    }


def _need(runner: Runner, cell: Cell, seeds: tuple[int, ...]) -> float:
    """Estimated seconds of what is not done."""
    settings = (with_seed(cell.setting, seed) for seed in seeds)
    return sum(cost(setting) for setting in settings if not runner.done(setting))


def cells(args: Args) -> Iterator[Cell]:
    """The cells of the tables asked for, in print order."""
    neurips, iclr = _paper.tables("cafe_neurips"), _paper.tables("cafe_iclr")
    for name in args.table:
        if name.startswith("iclr-"):
            for cell in iclr[name.removeprefix("iclr-")]["cell"]:
                yield _iclr_cell(args, name, cell)
            continue
        if name == "fig7":
            yield from _figure7(args)
            continue
        printed = {
            "table8": ("table8-psnr", "table8-loss", "table8-accuracy"),
            "fake-gradients": ("text-fake-gradients",),
        }.get(name, (name,))
        for table in printed:
            for printed_cell in neurips[table]["cell"]:
                for cell in _neurips_cells(args, table, printed_cell):
                    yield replace(cell, setting=replace(cell.setting, num_samples=args.num_samples))


def _frozen(args: Args, **fields: Any) -> Setting:
    """A CAFE row with frozen parameters: the exact engine, or the paper's descent."""
    if args.solver == "exact":
        return Setting("exact", images=args.images, **fields)
    return _descent(args, **fields)


def _descent(args: Args, overrides: tuple[tuple[str, float], ...] = (), **fields: Any) -> Setting:
    if args.data_learning_rate is not None:
        overrides = (*overrides, ("data_learning_rate", args.data_learning_rate))
    return Setting("descent", iterations=args.iterations, overrides=overrides, **fields)


def _neurips_cells(args: Args, table: str, cell: dict[str, Any]) -> Iterator[Cell]:
    dataset = DATASETS.get(cell["dataset"], "cifar10")
    base = (cell["id"], cell["value"], cell["unit"])
    reduced = f"{args.iterations} Step III iterations instead of 8000"
    if table == "table2":
        method = METHODS[cell["method"]]
        setting = _frozen(args, dataset=dataset) if method == "cafe" else _descent(args, dataset=dataset, method=method)
        yield Cell(*base, setting, psnr, "" if setting.kind == "exact" else reduced)
    elif table == "table3":
        yield Cell(*base, _frozen(args, dataset=dataset, batch_size=cell["batch_size"]), psnr)
    elif table == "table4":
        overrides = tuple((name, 0.0) for name in ABLATIONS[cell["id"].split("/")[1]])
        yield Cell(*base, _descent(args, dataset=dataset, overrides=overrides), psnr, reduced)
    elif table == "table5":
        single = cell["id"].split("/")[1] == "single"
        if single:
            setting = Setting("single", dataset=dataset, iterations=args.iterations)
            yield Cell(*base, setting, iterations_to(STOP_DB[dataset]), "NaN: not reached in the iterations run")
        elif cell["id"].split("/")[2] == "step3":
            yield Cell(
                *base, _descent(args, dataset=dataset), iterations_to(STOP_DB[dataset]), "Step III of nested loops"
            )
        else:
            step = int(cell["id"].split("/")[2].removeprefix("step"))
            yield Cell(*base, _descent(args, dataset=dataset), _step_iterations(step), "capped at 8000")
    elif table == "table6":
        parties = int(cell["id"].split("/")[2].removeprefix("m"))
        yield Cell(*base, _frozen(args, dataset=dataset, parties=parties), psnr)
    elif table == "table7":
        rate = cell["model_learning_rate"]
        setting = Setting("single", dataset=dataset, iterations=args.iterations, model_learning_rate=rate)
        yield Cell(*base, setting, psnr, f"optimiser not printed: SGD; {reduced}")
    elif table.startswith("table8"):
        iteration = cell["iterations"]
        adam: dict[str, Any] = {
            "dataset": "mnist",
            "model_learning_rate": 1e-6,
            "model_optimizer": "adam",
            "iterations": 20_000,
        }
        if table == "table8-psnr":
            yield Cell(*base, Setting("single", **adam), at_iteration(iteration, 1))
        else:
            column = 1 if table == "table8-loss" else 2
            yield Cell(*base, Setting("training", **adam), at_iteration(iteration, column))
    elif table == "table10":
        rounds = cell["epoch"] * 800 // cell["batch_size"]
        setting = Setting(
            "descent", dataset=dataset, batch_size=cell["batch_size"], iterations=350 * 800 // cell["batch_size"]
        )
        yield Cell(*base, setting, at_iteration(rounds, 1))
    elif table == "table11":
        yield from _table11(args, cell, base)
    elif table == "text-fake-gradients":
        sgd = f"{args.num_samples} images, pool of 1 instead of 1000; exact engine, nothing left out"
        if cell["defense"] == "none":
            yield Cell(*base, Setting("exact", dataset="cifar10", images=args.images), psnr)
        else:
            for reading in FAKE:
                setting = Setting("exact", dataset="cifar10", images=args.images, defense=reading)
                yield Cell(f"{cell['id']}#{reading}", cell["value"], cell["unit"], setting, psnr, sgd)
                if reading in KNOWLEDGE:
                    known = replace(setting, adaptive=True)
                    yield Cell(f"{cell['id']}#{reading}#adaptive", cell["value"], cell["unit"], known, psnr, sgd)


def _figure7(args: Args) -> Iterator[Cell]:
    """Training loss with and without fake gradients, after `--iterations` rounds; curves.json has the whole curves."""
    for name, dataset in DATASETS.items():
        if name not in ("CIFAR-10", "MNIST", "Linnaeus 5"):
            continue
        for defense in ("none", "fake-capped"):
            setting = replace(_training(args, defense), dataset=dataset, num_samples=args.num_samples)
            read = at_iteration(args.iterations, 1)
            yield Cell(f"fig7/{dataset}/{defense}", None, "loss", setting, read, "quarter of the channels")


def _training(args: Args, defense: str) -> Setting:
    """Training by SGD at 0.1 with a quarter of the channels."""
    return Setting(
        "training",
        dataset="cifar10",
        network="cafe-small",
        model_learning_rate=0.1,
        iterations=args.iterations,
        defense=defense,
    )


def _table11(args: Args, cell: dict[str, Any], base: tuple[str, float, str]) -> Iterator[Cell]:
    """Training loss under defenses, for `--iterations` rounds; the figure has the whole curves.

    The data set is not printed: CIFAR-10 here, with a quarter of the channels and SGD at 0.1.
    """
    row = cell["id"].split("/")[1]
    readings = {"true": ("none",), "fake": tuple(FAKE)}
    for defense in readings.get(row, (row.replace("dp-eps", "dp-"),)):
        suffix = f"#{defense}" if row == "fake" else ""
        note = "quarter of the channels; delta 1e-5" if row.startswith("dp") else "quarter of the channels"
        if cell["iterations"] <= args.iterations:
            read = at_iteration(cell["iterations"], 1)
            yield Cell(base[0] + suffix, base[1], base[2], _training(args, defense), read, note)


def _iclr_cell(args: Args, name: str, cell: dict[str, Any]) -> Cell:
    table = name.removeprefix("iclr-")
    dataset = DATASETS[cell["dataset"]]
    method = METHODS[cell["method"]]
    identifier = f"iclr-{cell['id']}"
    horizontal = table in ("table1a", "table1b", "table2a", "table3a") or cell.get("fl") == "horizontal"
    batch = cell.get("batch_size", 40)
    size = 10 * batch
    if table == "table2b":
        size = 400
    elif table == "table3b":
        size = 5 * batch
    elif table == "table4":
        size = 2000 if horizontal else 800
        batch = round(size * cell["batch_ratio"])
    fields: dict[str, Any] = {
        "dataset": dataset,
        "num_samples": size,
        "batch_size": batch,
        "workers": 4 if horizontal else 0,
    }
    if table == "table1a":
        # A count of iterations per image: only the descending attack has one.
        total = 1 if method == "dlg" else size
        fields |= {"num_samples": total, "workers": 0 if method == "dlg" else 4}
        setting = Setting("descent", method=method, iterations=10 * args.iterations, **fields)
        return Cell(identifier, cell["value"], cell["unit"], setting, lambda r: iterations_to(30.0)(r) / total)
    setting = _frozen(args, **fields) if method == "cafe" else _descent(args, method=method, **fields)
    return Cell(identifier, cell["value"], cell["unit"], setting, psnr)


def _step_iterations(step: int) -> Any:
    threshold, column = ((1e-9, 1), (5e-9, 2))[step - 1]

    def read(results: dict[str, Any]) -> float:
        history = results["f_history"]
        begin = 0 if step == 1 else 8000
        reached = [
            point[0] - begin for point in history if begin < point[0] <= begin + 8000 and point[column] < threshold
        ]
        return float(reached[0]) if reached else 8000.0

    return read


def show(rows: list[dict[str, Any]]) -> None:
    """Print paper, ours and difference; then what was not run and why."""
    console = Console()
    table = Table("cell", "paper", "ours", "difference", "spread", "unit", "how")
    for row in rows:
        if row["ours"] is not None:
            how = row["solver"] + (f", {row['iterations']} iterations" if row["iterations"] else "")
            printed = row["paper"] is not None
            table.add_row(
                row["id"],
                f"{row['paper']:g}" if printed else "",
                f"{row['ours']:.2f}",
                f"{row['ours'] - row['paper']:+.2f}" if printed else "",
                f"{row['spread']:.2f}",
                row["unit"],
                how,
            )
    console.print(table)
    print_grouped("not run", ((row["not_run"], row["id"]) for row in rows if row["ours"] is None))


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
            _plots.curves(folder.figure(f"{kind}.png"), series, xlabel="iteration", ylabel=ylabel, log_y=log)
    write_json(folder.path / "curves.json", stored)


if __name__ == "__main__":
    run_command(functools.partial(main, need_data=True), Args, __doc__)
