"""Which run gives the number of a printed cell, for the tables of both CAFE papers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments import _paper
from jaxleak.attacks import adaptive
from jaxleak.attacks.aggregated import CAFE_ICLR
from jaxleak.study.cells import Cell, Results, curve_at, iterations_to, score_named
from jaxleak.study.rounds.runs import CAP, FAKE, THRESHOLDS, Setting, cap, defense_named

#: Settings of runs with differential privacy that the paper does not print, and that come from elsewhere.
DP = "the mean gradient clipped as a whole; delta 1e-5"

NEURIPS = ("table2", "table3", "table4", "table5", "table6", "table7", "table8", "table10", "table11", "fake-gradients")
#: Table of the face images, whose numbers stand in the paper's text and in Figure 8.
FACES = ("yale",)
#: Training curves, for which the paper prints no numbers.
FIGURES = ("fig7",)
ICLR = ("iclr-table1a", "iclr-table1b", "iclr-table2a", "iclr-table2b", "iclr-table3a", "iclr-table3b", "iclr-table4")

DATASETS = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "MNIST": "mnist",
    "Yale 32x32": "yale32",
    "Linnaeus 5": "linnaeus5",
}

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

#: Length of a normalised step of the ICLR submission's descent; the submission does not print it.
STEP_LENGTH = CAFE_ICLR.data_learning_rate

ABLATIONS = {"full": (), "alpha0": ("alpha",), "xi0": ("xi",), "beta0": ("beta",), "gamma0": ("gamma",)}

#: Data sets with fewer samples than the tables ask for: of 165 faces, 160 are used, a multiple of the batch size 40.
SAMPLES_AT_MOST = {"yale32": 160}

#: The final mean PSNR.
psnr = score_named("psnr")
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
    """Step III learning rate of descending attacks; None takes Table 9's (0.01 to 0.02, for 8,000 iterations)."""
    images: int = 32
    """Samples that the exact engine's Step III inverts."""
    num_samples: int = 800
    """Private samples behind the NeurIPS tables (paper: 800)."""


def setting_of(cell: Cell) -> Setting:
    """The one setting that a cell of the CAFE tables runs."""
    setting: Setting = cell.jobs[0]
    return setting


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
            "yale": ("text-yale",),
        }.get(name, (name,))
        for table in printed:
            for printed_cell in neurips[table]["cell"]:
                for cell in _neurips_cells(options, table, printed_cell):
                    setting = setting_of(cell)
                    size = min(options.num_samples, SAMPLES_AT_MOST.get(setting.dataset, options.num_samples))
                    yield replace(cell, jobs=(replace(setting, num_samples=size),))


def _frozen(options: Options, **fields: Any) -> Setting:
    """A CAFE row with frozen parameters: the exact engine, or the paper's descent."""
    if options.solver == "exact":
        return Setting("exact", images=options.images, **fields)
    return _descent(options, **fields)


def _descent(options: Options, overrides: tuple[tuple[str, float], ...] = (), **fields: Any) -> Setting:
    if options.data_learning_rate is not None:
        overrides = (*overrides, ("data_learning_rate", options.data_learning_rate))
    return Setting("descent", iterations=_capped(options, fields["dataset"]), overrides=overrides, **fields)


def _capped(options: Options, dataset: str) -> int:
    """Iterations of Step III: those of the options, scaled up in proportion where the paper's cap is higher."""
    return options.iterations * cap(dataset) // CAP


def _cell(
    printed: dict[str, Any],
    setting: Setting,
    read: Callable[[Results], float] = psnr,
    note: str = "",
    reading: str = "",
) -> Cell:
    """The cell of a printed number that one setting gives; `reading` tells interpretations of the paper apart."""
    return Cell(printed["id"] + reading, printed["value"], printed["unit"], (setting,), read, note)


def _neurips_cells(options: Options, table: str, cell: dict[str, Any]) -> Iterator[Cell]:
    dataset = DATASETS.get(cell["dataset"], "cifar10")
    reduced = f"{options.iterations} Step III iterations instead of 8000"
    if table == "table2":
        method = METHODS[cell["method"]]
        how = _frozen if method == "cafe" else _descent
        setting = how(options, dataset=dataset, method=method)
        yield _cell(cell, setting, note="" if setting.kind == "exact" else reduced)
    elif table == "table3":
        yield _cell(cell, _frozen(options, dataset=dataset, batch_size=cell["batch_size"]))
    elif table == "table4":
        overrides = tuple((name, 0.0) for name in ABLATIONS[cell["id"].split("/")[1]])
        yield _cell(cell, _descent(options, dataset=dataset, overrides=overrides), note=reduced)
    elif table == "table5":
        yield from _table5(options, cell, dataset)
    elif table == "table6":
        parties = int(cell["id"].split("/")[2].removeprefix("m"))
        yield _cell(cell, _frozen(options, dataset=dataset, parties=parties))
    elif table == "table7":
        rate = cell["model_learning_rate"]
        setting = Setting("single", dataset=dataset, iterations=options.iterations, model_learning_rate=rate)
        yield _cell(cell, setting, note=f"optimiser not printed: SGD; {reduced}")
    elif table.startswith("table8"):
        adam = Setting("training", "mnist", iterations=20_000, model_learning_rate=1e-6, model_optimizer="adam")
        setting = replace(adam, kind="single") if table == "table8-psnr" else adam
        yield _cell(cell, setting, curve_at(cell["iterations"], 2 if table == "table8-accuracy" else 1))
    elif table == "table10":
        rounds = cell["epoch"] * 800 // cell["batch_size"]
        # T of Algorithm 3 bounds all three steps.
        sizes: dict[str, Any] = {"dataset": dataset, "batch_size": cell["batch_size"]}
        yield _cell(cell, Setting("descent", **sizes, iterations=rounds, steps_at=rounds), curve_at(rounds, 1))
    elif table == "text-yale":
        note = f"{SAMPLES_AT_MOST['yale32']} of 165 faces; iterations are not printed"
        yield _cell(cell, _frozen(options, dataset=dataset), note=note)
    elif table == "table11":
        yield from _table11(options, cell)
    elif cell["defense"] == "none":  # Cells of the text on fake gradients.
        yield _cell(cell, _frozen(options, dataset="cifar10"))
    else:
        yield from _fake_gradients(options, cell, "exact engine" if options.solver == "exact" else reduced)


def _table5(options: Options, cell: dict[str, Any], dataset: str) -> Iterator[Cell]:
    """Cells of the iterations until a step has reached its end, in nested loops or in a single one."""
    stop = iterations_to(STOP_DB[dataset])
    if cell["id"].split("/")[1] == "single":
        setting = Setting("single", dataset=dataset, iterations=_capped(options, dataset))
        yield _cell(cell, setting, stop, "NaN: not reached in the iterations run")
        # Section 4.2 passes on to the next step by thresholds, but Algorithm 4 does not mention them.
        note = "one step per iteration, passing on by thresholds; NaN: not reached"
        yield _cell(cell, replace(setting, switch=True), stop, note, "#switching")
        return
    setting, step = _descent(options, dataset=dataset), int(cell["id"].split("/")[2].removeprefix("step"))
    if step == 3:
        yield _cell(cell, setting, stop, "Step III of nested loops")
    else:
        yield _cell(cell, setting, _step_iterations(step), f"NaN: not reached in {cap(dataset)} iterations")


def _fake_gradients(options: Options, cell: dict[str, Any], how: str) -> Iterator[Cell]:
    """Cells of the PSNR behind fake gradients, by attackers who know of them and who do not."""
    note = f"{options.num_samples} images, pool of 1 instead of 1000; {how}, nothing left out"
    for reading in FAKE:
        setting = _frozen(options, dataset="cifar10", defense=reading)
        yield _cell(cell, setting, note=note, reading=f"#{reading}")
        defense = defense_named(reading, batch_size=setting.batch_size)
        attacked = defense is not None and adaptive.rounds_attack(defense) is not None
        if attacked and options.solver == "exact":  # the descent has no attacker that knows the defense
            yield _cell(cell, replace(setting, adaptive=True), note=note, reading=f"#{reading}#adaptive")


def _figure7(options: Options) -> Iterator[Cell]:
    """Cells of the training loss with and without fake gradients after `--iterations` rounds."""
    for dataset in ("cifar10", "mnist", "linnaeus5"):
        for defense in ("none", "fake-capped"):
            setting = replace(_training(options, defense), dataset=dataset, num_samples=options.num_samples)
            read = curve_at(options.iterations, 1)
            yield Cell(f"fig7/{dataset}/{defense}", None, "loss", (setting,), read, "quarter of the channels")


def _training(options: Options, defense: str) -> Setting:
    """A training run by SGD at 0.1, on a network with a quarter of the channels."""
    return Setting(
        "training",
        dataset="cifar10",
        network="cafe-small",
        model_learning_rate=0.1,
        iterations=options.iterations,
        defense=defense,
    )


def _table11(options: Options, cell: dict[str, Any]) -> Iterator[Cell]:
    """Cells of the training loss under defenses, up to `--iterations` rounds; the figure has the whole curves.

    The paper does not print the data set. The runs use CIFAR-10, a quarter of the channels, and SGD at 0.1.
    """
    row = cell["id"].split("/")[1]
    readings = {"true": ("none",), "fake": tuple(FAKE)}
    for defense in readings.get(row, (row.replace("dp-eps", "dp-"),)):
        suffix = f"#{defense}" if row == "fake" else ""
        note = "quarter of the channels" + row.startswith("dp") * f"; {DP}"
        if cell["iterations"] <= options.iterations:
            read = curve_at(cell["iterations"], 1)
            yield _cell(cell, _training(options, defense), read, note, suffix)


def _iclr_cell(options: Options, name: str, cell: dict[str, Any]) -> Cell:
    table = name.removeprefix("iclr-")
    dataset = DATASETS[cell["dataset"]]
    method = METHODS[cell["method"]]
    cell = cell | {"id": f"iclr-{cell['id']}"}
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
        # The cell counts iterations per image, and only the descending attack has iterations.
        total = 1 if method == "dlg" else size
        note = "one image per seed, of the paper's 50" if method == "dlg" else ""
        if method == "dlg":
            fields |= {"num_samples": total, "workers": 1}
        setting = _iclr_descent(options, method, iterations=10 * options.iterations, **fields)
        return _cell(cell, setting, lambda r: iterations_to(30.0)(r) / total, note)
    if method == "cafe" and options.solver == "exact":
        return _cell(cell, _frozen(options, **fields))
    # Table 4 keeps the number of epochs, so that smaller batches take more iterations.
    tenths = 0.1 / cell["batch_ratio"] if table == "table4" else 1.0
    setting = _iclr_descent(options, method, iterations=round(options.iterations * tenths), **fields)
    return _cell(cell, setting)


def _iclr_descent(options: Options, method: str, **fields: Any) -> Setting:
    """A normalised descent on the data (section 4.1); the submission's own attack makes all steps per iteration."""
    overrides = (("data_learning_rate", options.data_learning_rate or STEP_LENGTH),)
    if method.startswith("cafe"):
        own = "cafe-iclr" if method == "cafe" else method
        return Setting("single", method=own, overrides=overrides, **fields)
    return Setting("descent", method=method, data_optimizer="normalized", overrides=overrides, **fields)


def _step_iterations(step: int) -> Callable[[Results], float]:
    """A reader of the iterations until Step I or II reaches its threshold, or NaN; both steps run equally long."""

    def read(results: Results) -> float:
        history = results[0].arrays["f_history"]
        most = history[-1][0] // 2
        begin = 0 if step == 1 else most
        reached = [
            point[0] - begin
            for point in history
            if begin < point[0] <= begin + most and point[step] < THRESHOLDS[step - 1]
        ]
        return float(reached[0]) if reached else float("nan")

    return read
