"""Which case and which score stand behind every printed number of the VFLRecon paper, and rows beyond them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from experiments import _paper
from experiments._vfl_defenses import DefenseName
from experiments._vfl_problem import Case, OptimizerName

#: The data that exist here; BHI and CelebA do not.
DATASETS = {
    "Sensorless Drive Diagnosis": "sensorless",
    "Criteo": "criteo",
    "Avazu": "avazu",
    "CIFAR-10": "cifar10",
}
#: Balanced sampling is printed for Avazu only, but Criteo's baseline of 55 % suggests it there as well. Criteo's counts
#: have tails that would squeeze a linear scale into its lowest per cent.
ENCODINGS: dict[str, dict[str, Any]] = {
    "criteo": {"balanced": True, "scaling": "quantile"},
    "avazu": {"balanced": True},
}
LABEL, FEATURE = "label_accuracy", "feature_mse"
SHARES = (0.05, 0.15, 0.25, 0.5, 0.75)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHADOW_SIZES = (50, 100, 200, 300, 400)
FIELD_SETS = (
    ("gradient",),
    ("outputs",),
    ("parameters",),
    ("inputs",),
    ("differences",),
    ("gradient", "inputs"),
    ("outputs", "differences", "inputs"),
    ("gradient", "outputs", "inputs"),
    ("gradient", "outputs", "parameters", "inputs"),
)


@dataclass(frozen=True)
class Cell:
    """A number: the paper's if it prints one, the case that gives ours, and the score to read."""

    id: str
    case: Case
    metric: str
    paper: float | None = None
    unit: str = "1"
    missing: str = ""  # why there is nothing to run
    note: str = ""

    @property
    def factor(self) -> float:
        """From scores to the printed unit."""
        return 100.0 if self.unit == "%" else 1.0


def cells(table: str, base: Case) -> list[Cell]:
    """The cells of `table`, one of `TABLES`.

    Args:
        table: which.
        base: sizes of the runs and the cipher that stands in the rows with encryption ("none" there means "plain").
    """
    return list(TABLES[table](base))


def _dataset(base: Case, name: str) -> Case:
    return replace(base, data=name, cipher="none", **ENCODINGS.get(name, {}))


def _encrypted(base: Case, case: Case) -> Case:
    return replace(case, cipher="plain" if base.cipher == "none" else base.cipher)


def _printed(*tables: str) -> Iterator[dict[str, Any]]:
    found = _paper.tables("vflrecon")
    for table in tables:
        yield from found[table]["cell"]


def _cell(printed: dict[str, Any], case: Case, metric: str, *, suffix: str = "", note: str = "") -> Cell:
    unit = "%" if printed["unit"] == "%" else "1"
    return Cell(printed["id"] + suffix, case, metric, printed["value"], unit, note=note)


def _no_data(printed: dict[str, Any], base: Case) -> Cell:
    return Cell(printed["id"], base, "", printed["value"], printed["unit"], missing=f"no data: {printed['dataset']}")


def _table3(base: Case) -> Iterator[Cell]:
    for printed in _printed("table3"):
        name = DATASETS.get(printed["dataset"])
        if name is None:
            yield _no_data(printed, base)
        elif printed["id"].split("/")[1] == "li":
            yield _cell(printed, _dataset(base, name), f"{LABEL}_li_norm", note="by norms")
            yield _cell(
                printed, _dataset(base, name), f"{LABEL}_li_direction", suffix="#direction", note="by directions"
            )
        else:
            yield _cell(printed, _dataset(base, name), f"{LABEL}_shared")


def _table4(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    for metric, task in ((LABEL, "label"), (FEATURE, "feature")):
        for printed in _printed(*(f"table4-{what}-{task}" for what in ("participants", "partition", "optimizer"))):
            changed = case
            if "participants" in printed:
                changed = replace(case, parties=printed["participants"])
            elif "partition" in printed:
                changed = replace(case, partition=printed["partition"].lower())
            else:
                changed = replace(case, optimizer=printed["optimizer"].lower())
            # "random" is what "auto" means for a table: equal cases run once.
            changed = replace(changed, partition="auto") if changed.partition == "random" else changed
            yield _cell(printed, _encrypted(base, changed) if printed["encrypted"] else changed, f"{metric}_shared")


def _defended(printed: dict[str, Any], case: Case, metric: str, suffix: str = "", note: str = "") -> Iterator[Cell]:
    """A cell under a defense: the attacker as the paper seems to have it, and one that knows the defense."""
    yield _cell(printed, case, metric, suffix=suffix, note=note)
    if not metric.startswith("task"):
        yield _cell(printed, case, f"{metric}_adaptive", suffix=f"{suffix}#adaptive", note=note)


def _metric_of(table: str) -> str:
    if table.endswith("utility"):
        return "task_accuracy_change"
    return f"{LABEL if table.endswith('label') else FEATURE}_shared"


def _table5(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    places: tuple[tuple[DefenseName, str], ...] = (
        ("noise", ""),
        ("noise_gradient", "#gradient"),
        ("noise_cut", "#cut"),
    )
    for table in ("table5-label", "table5-feature", "table5-utility"):
        metric = _metric_of(table)
        for printed in _printed(table):
            row = printed["id"].split("/")[-1]
            if row == "baseline":
                yield _cell(printed, case, metric.replace("shared", "baseline_network"))
                yield _cell(printed, case, metric.replace("shared", "baseline"), suffix="#tuned")
            elif row == "no-defense":
                yield _cell(printed, case, metric)
            elif "feature" not in printed["id"] or table != "table5-utility":  # printed twice, once per task
                for defense, suffix in places:
                    defended = replace(case, defense=defense, strength=printed["noise_variance"])
                    yield from _defended(printed, defended, metric, suffix)


def _table6(base: Case) -> Iterator[Cell]:
    readings: dict[str, tuple[tuple[DefenseName, float, str], ...]] = {
        "dp-sgd-eps10": (("dp_sgd", 10.0, ""), ("label_dp", 10.0, "#label-dp")),
        "dp-sgd-eps100": (("dp_sgd", 100.0, ""), ("label_dp", 100.0, "#label-dp")),
        "marvell": (("marvell", 1.0, ""),),
        "vfldefender": (
            ("vfl_defender_paper", 1.0, ""),
            ("vfl_defender", 1.0, "#direction"),
            ("vfl_defender_batch", 4.0, "#batch"),
        ),
    }
    for table in ("table6-label", "table6-feature", "table6-utility"):
        metric = _metric_of(table)
        for printed in _printed(table):
            case, row = _dataset(base, DATASETS[printed["dataset"]]), printed["id"].split("/")[1]
            if row == "baseline":
                yield _cell(printed, case, metric.replace("shared", "baseline_network"))
                yield _cell(printed, case, metric.replace("shared", "baseline"), suffix="#tuned")
            elif row == "no-defense":
                yield _cell(printed, case, metric)
            else:
                for defense, strength, suffix in readings[row]:
                    defended = replace(case, defense=defense, strength=strength)
                    yield from _defended(printed, defended, metric, suffix)


def _fig3(base: Case) -> Iterator[Cell]:
    for printed in _printed("text-fig3"):
        name = DATASETS.get(printed["dataset"])
        if name is None:
            yield _no_data(printed, base)
        else:
            yield _cell(printed, _dataset(base, name), f"{LABEL}_shared")
    for name in ("sensorless", "adult", "credit_default"):
        yield Cell(f"fig3/{name}", _dataset(base, name), f"{LABEL}_shared", unit="%")


def _fig5(base: Case) -> Iterator[Cell]:
    for printed in _printed("text-fig5", "text-abstract-feature"):
        name = DATASETS.get(printed.get("dataset", "Criteo"))
        baseline = printed["id"].split("/")[1] == "baseline"
        if name is None:
            yield _no_data(printed, base)
        else:
            case = _dataset(base, name)
            case = _encrypted(base, case) if printed.get("encrypted") else case
            yield _cell(printed, case, f"{FEATURE}_baseline_network" if baseline else f"{FEATURE}_shared")
    for name in ("avazu", "adult", "credit_default"):
        yield Cell(f"fig5/{name}", _dataset(base, name), f"{FEATURE}_shared")


def _fig6(base: Case) -> Iterator[Cell]:
    note = "which features are meant is not printed: the third and fourth of ten drawn ones"
    case = _dataset(base, "sensorless")
    for printed in _printed("text-fig6"):
        which = printed["id"].split("/")[1]
        yield _cell(printed, case, f"correlation_{which}", note=note)
    yield Cell("fig6/mean-error-of-correlations", case, "correlation_error")


def _fig7(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    paper = {(task, p["adversary_features"]): p for task in (LABEL, FEATURE) for p in _printed(_fig7_table(task))}
    for metric in (LABEL, FEATURE):
        for share in SHARES:
            printed, changed = paper.get((metric, share)), replace(case, share=share)
            unit = "%" if metric == LABEL else "1"
            value = None if printed is None else printed["value"]
            yield Cell(f"fig7/{metric}/{share}", changed, f"{metric}_shared", value, unit)


def _fig7_table(metric: str) -> str:
    return "text-fig7-label" if metric == LABEL else "text-fig7-feature"


def _fig8(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    paper = {printed.get("batch_size"): printed["value"] for printed in _printed("text-fig8")}
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for size in BATCH_SIZES:
            value = paper.get(size, paper[None]) if metric == FEATURE else None
            note = "paper: below, for most batch sizes" if value is not None and size not in paper else ""
            yield Cell(
                f"fig8/{metric}/{size}", replace(case, batch_size=size), f"{metric}_shared", value, unit, note=note
            )


def _fig9(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for size in SHADOW_SIZES:
            yield Cell(f"fig9/{metric}/{size}", replace(case, shadow_records=size), f"{metric}_shared", unit=unit)


def _fu(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    for printed in _printed("text-fu"):
        _, method, top = printed["id"].split("/")
        if method == "vflrecon":
            yield _cell(printed, replace(case, free_top=top == "fixed-top"), f"{LABEL}_shared")
        elif top == "fixed-top":
            yield _cell(printed, case, f"{LABEL}_fu_free_top")
        else:
            reason = "Fu et al.'s direct attack reads a gradient of C entries, which a trainable top does not send"
            yield replace(_no_data(printed, base), missing=reason)


def _ablation(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for fields in FIELD_SETS:
            yield Cell(
                f"ablation/{metric}/{'+'.join(fields)}", replace(case, fields=fields), f"{metric}_shared", unit=unit
            )


def _encryption(base: Case) -> Iterator[Cell]:
    case = _dataset(base, "sensorless")
    for cipher in ("none", "plain", "ckks"):
        for metric, unit in ((f"{LABEL}_shared", "%"), (f"{LABEL}_free", "%"), (f"{FEATURE}_shared", "1")):
            yield Cell(f"encryption/{cipher}/{metric}", replace(case, cipher=cipher), metric, unit=unit)
        yield Cell(f"encryption/{cipher}/seconds_per_step", replace(case, cipher=cipher), "seconds_per_step")


def _defender(base: Case) -> Iterator[Cell]:
    """What VFLDefender costs the task, for every reading, threshold and optimiser; no attack runs."""
    readings: tuple[DefenseName, ...] = ("vfl_defender_paper", "vfl_defender", "vfl_defender_batch")
    optimizers: tuple[OptimizerName, ...] = ("adam", "sgd")
    for optimizer in optimizers:
        for defense in readings:
            for threshold in (0.1, 1.0, 4.0):
                for epochs in (3, 20):
                    case = replace(
                        _dataset(base, "sensorless"),
                        optimizer=optimizer,
                        defense=defense,
                        strength=threshold,
                        task_epochs=epochs,
                    )
                    name = f"defender/{optimizer}/{defense}/{threshold:g}/{epochs}-epochs"
                    yield Cell(name, case, "task_accuracy_change", -1.0, "%", note="paper: about 1 % lost")


TABLES: dict[str, Callable[[Case], Iterator[Cell]]] = {
    "table3": _table3,
    "table4": _table4,
    "table5": _table5,
    "table6": _table6,
    "fig3": _fig3,
    "fig5": _fig5,
    "fig6": _fig6,
    "fig7": _fig7,
    "fig8": _fig8,
    "fig9": _fig9,
    "fu": _fu,
    "ablation": _ablation,
    "encryption": _encryption,
    "defender": _defender,
}
