"""Which run gives the number of a printed cell, for the tables of both CAFE papers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments import _paper
from experiments._cafe.cells import DATASETS, Cell, at_iteration, iterations_to, psnr
from experiments._cafe.runs import FAKE, KNOWLEDGE, Setting

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
class Options:
    """What may differ from the printed settings."""

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


def cells(names: Iterable[str], options: Options) -> Iterator[Cell]:
    """The cells of tables by name, in print order; see `NEURIPS`, `FIGURES`, `ICLR`."""
    neurips, iclr = _paper.tables("cafe_neurips"), _paper.tables("cafe_iclr")
    for name in names:
        if name.startswith("iclr-"):
            for cell in iclr[name.removeprefix("iclr-")]["cell"]:
                yield _iclr_cell(options, name, cell)
            continue
        if name == "fig7":
            yield from _figure7(options)
            continue
        printed = {
            "table8": ("table8-psnr", "table8-loss", "table8-accuracy"),
            "fake-gradients": ("text-fake-gradients",),
        }.get(name, (name,))
        for table in printed:
            for printed_cell in neurips[table]["cell"]:
                for cell in _neurips_cells(options, table, printed_cell):
                    yield replace(cell, setting=replace(cell.setting, num_samples=options.num_samples))


def _frozen(options: Options, **fields: Any) -> Setting:
    """A CAFE row with frozen parameters: the exact engine, or the paper's descent."""
    if options.solver == "exact":
        return Setting("exact", images=options.images, **fields)
    return _descent(options, **fields)


def _descent(options: Options, overrides: tuple[tuple[str, float], ...] = (), **fields: Any) -> Setting:
    if options.data_learning_rate is not None:
        overrides = (*overrides, ("data_learning_rate", options.data_learning_rate))
    return Setting("descent", iterations=options.iterations, overrides=overrides, **fields)


def _neurips_cells(options: Options, table: str, cell: dict[str, Any]) -> Iterator[Cell]:
    dataset = DATASETS.get(cell["dataset"], "cifar10")
    base = (cell["id"], cell["value"], cell["unit"])
    reduced = f"{options.iterations} Step III iterations instead of 8000"
    if table == "table2":
        method = METHODS[cell["method"]]
        setting = (
            _frozen(options, dataset=dataset) if method == "cafe" else _descent(options, dataset=dataset, method=method)
        )
        yield Cell(*base, setting, psnr, "" if setting.kind == "exact" else reduced)
    elif table == "table3":
        yield Cell(*base, _frozen(options, dataset=dataset, batch_size=cell["batch_size"]), psnr)
    elif table == "table4":
        overrides = tuple((name, 0.0) for name in ABLATIONS[cell["id"].split("/")[1]])
        yield Cell(*base, _descent(options, dataset=dataset, overrides=overrides), psnr, reduced)
    elif table == "table5":
        single = cell["id"].split("/")[1] == "single"
        if single:
            setting = Setting("single", dataset=dataset, iterations=options.iterations)
            yield Cell(*base, setting, iterations_to(STOP_DB[dataset]), "NaN: not reached in the iterations run")
        elif cell["id"].split("/")[2] == "step3":
            yield Cell(
                *base, _descent(options, dataset=dataset), iterations_to(STOP_DB[dataset]), "Step III of nested loops"
            )
        else:
            step = int(cell["id"].split("/")[2].removeprefix("step"))
            yield Cell(*base, _descent(options, dataset=dataset), _step_iterations(step), "capped at 8000")
    elif table == "table6":
        parties = int(cell["id"].split("/")[2].removeprefix("m"))
        yield Cell(*base, _frozen(options, dataset=dataset, parties=parties), psnr)
    elif table == "table7":
        rate = cell["model_learning_rate"]
        setting = Setting("single", dataset=dataset, iterations=options.iterations, model_learning_rate=rate)
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
        yield from _table11(options, cell, base)
    elif table == "text-fake-gradients":
        sgd = f"{options.num_samples} images, pool of 1 instead of 1000; exact engine, nothing left out"
        if cell["defense"] == "none":
            yield Cell(*base, Setting("exact", dataset="cifar10", images=options.images), psnr)
        else:
            for reading in FAKE:
                setting = Setting("exact", dataset="cifar10", images=options.images, defense=reading)
                yield Cell(f"{cell['id']}#{reading}", cell["value"], cell["unit"], setting, psnr, sgd)
                if reading in KNOWLEDGE:
                    known = replace(setting, adaptive=True)
                    yield Cell(f"{cell['id']}#{reading}#adaptive", cell["value"], cell["unit"], known, psnr, sgd)


def _figure7(options: Options) -> Iterator[Cell]:
    """Training loss with and without fake gradients, after `--iterations` rounds; curves.json has the whole curves."""
    for name, dataset in DATASETS.items():
        if name not in ("CIFAR-10", "MNIST", "Linnaeus 5"):
            continue
        for defense in ("none", "fake-capped"):
            setting = replace(_training(options, defense), dataset=dataset, num_samples=options.num_samples)
            read = at_iteration(options.iterations, 1)
            yield Cell(f"fig7/{dataset}/{defense}", None, "loss", setting, read, "quarter of the channels")


def _training(options: Options, defense: str) -> Setting:
    """Training by SGD at 0.1 with a quarter of the channels."""
    return Setting(
        "training",
        dataset="cifar10",
        network="cafe-small",
        model_learning_rate=0.1,
        iterations=options.iterations,
        defense=defense,
    )


def _table11(options: Options, cell: dict[str, Any], base: tuple[str, float, str]) -> Iterator[Cell]:
    """Training loss under defenses, for `--iterations` rounds; the figure has the whole curves.

    The data set is not printed: CIFAR-10 here, with a quarter of the channels and SGD at 0.1.
    """
    row = cell["id"].split("/")[1]
    readings = {"true": ("none",), "fake": tuple(FAKE)}
    for defense in readings.get(row, (row.replace("dp-eps", "dp-"),)):
        suffix = f"#{defense}" if row == "fake" else ""
        note = "quarter of the channels; delta 1e-5" if row.startswith("dp") else "quarter of the channels"
        if cell["iterations"] <= options.iterations:
            read = at_iteration(cell["iterations"], 1)
            yield Cell(base[0] + suffix, base[1], base[2], _training(options, defense), read, note)


def _iclr_cell(options: Options, name: str, cell: dict[str, Any]) -> Cell:
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
        setting = Setting("descent", method=method, iterations=10 * options.iterations, **fields)
        return Cell(identifier, cell["value"], cell["unit"], setting, lambda r: iterations_to(30.0)(r) / total)
    setting = _frozen(options, **fields) if method == "cafe" else _descent(options, method=method, **fields)
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
