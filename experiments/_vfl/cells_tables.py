"""Cells of Tables III to VI of the VFLRecon paper and of its comparison with Fu et al."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments._vfl.case import Case
from experiments._vfl.cell import (
    DATASETS,
    FEATURE,
    LABEL,
    Reading,
    dataset_case,
    encrypted,
    no_data,
    paper_cell,
    printed_cells,
)
from experiments._vfl.defenses import DefenseName


def table3(base: Case) -> Iterator[Reading]:
    """Label accuracy on real data, beside Li et al."""
    for printed in printed_cells("table3"):
        name = DATASETS.get(printed["dataset"])
        if name is None:
            yield no_data(printed, base)
        elif printed["id"].split("/")[1] == "li":
            yield paper_cell(printed, dataset_case(base, name), f"{LABEL}_li_norm", note="by norms")
            yield paper_cell(
                printed, dataset_case(base, name), f"{LABEL}_li_direction", suffix="#direction", note="by directions"
            )
        else:
            yield paper_cell(printed, dataset_case(base, name), f"{LABEL}_shared")


def table4(base: Case) -> Iterator[Reading]:
    """Participants, partitions, optimisers; each with and without encryption."""
    case = dataset_case(base, "sensorless")
    for metric, task in ((LABEL, "label"), (FEATURE, "feature")):
        for printed in printed_cells(*(f"table4-{what}-{task}" for what in ("participants", "partition", "optimizer"))):
            changed = case
            if "participants" in printed:
                changed = replace(case, parties=printed["participants"])
            elif "partition" in printed:
                changed = replace(case, partition=printed["partition"].lower())
            else:
                changed = replace(case, optimizer=printed["optimizer"].lower())
            # "random" is what "auto" means for a table: equal cases run once.
            changed = replace(changed, partition="auto") if changed.partition == "random" else changed
            yield paper_cell(printed, encrypted(base, changed) if printed["encrypted"] else changed, f"{metric}_shared")


def _defended(printed: dict[str, Any], case: Case, metric: str, suffix: str = "", note: str = "") -> Iterator[Reading]:
    """A cell under a defense: the attacker as the paper seems to have it, and one that knows the defense."""
    yield paper_cell(printed, case, metric, suffix=suffix, note=note)
    if not metric.startswith("task"):
        yield paper_cell(printed, case, f"{metric}_adaptive", suffix=f"{suffix}#adaptive", note=note)


def _metric_of(table: str) -> str:
    if table.endswith("utility"):
        return "task_accuracy_change"
    return f"{LABEL if table.endswith('label') else FEATURE}_shared"


def table5(base: Case) -> Iterator[Reading]:
    """Gaussian noise, at three places that the paper's word may mean."""
    case = dataset_case(base, "sensorless")
    places: tuple[tuple[DefenseName, str], ...] = (
        ("noise", ""),
        ("noise_gradient", "#gradient"),
        ("noise_cut", "#cut"),
    )
    for table in ("table5-label", "table5-feature", "table5-utility"):
        metric = _metric_of(table)
        for printed in printed_cells(table):
            row = printed["id"].split("/")[-1]
            if row == "baseline":
                yield paper_cell(printed, case, metric.replace("shared", "baseline_network"))
                yield paper_cell(printed, case, metric.replace("shared", "baseline"), suffix="#tuned")
            elif row == "no-defense":
                yield paper_cell(printed, case, metric)
            elif "feature" not in printed["id"] or table != "table5-utility":  # printed twice, once per task
                for defense, suffix in places:
                    defended = replace(case, defense=defense, strength=printed["noise_variance"])
                    yield from _defended(printed, defended, metric, suffix)


def table6(base: Case) -> Iterator[Reading]:
    """DP-SGD, Marvell and VFLDefender, each in the readings that the text allows."""
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
        for printed in printed_cells(table):
            case, row = dataset_case(base, DATASETS[printed["dataset"]]), printed["id"].split("/")[1]
            if row == "baseline":
                yield paper_cell(printed, case, metric.replace("shared", "baseline_network"))
                yield paper_cell(printed, case, metric.replace("shared", "baseline"), suffix="#tuned")
            elif row == "no-defense":
                yield paper_cell(printed, case, metric)
            else:
                for defense, strength, suffix in readings[row]:
                    defended = replace(case, defense=defense, strength=strength)
                    yield from _defended(printed, defended, metric, suffix)


def fu(base: Case) -> Iterator[Reading]:
    """The label inference of Fu et al."""
    case = dataset_case(base, "sensorless")
    for printed in printed_cells("text-fu"):
        _, method, top = printed["id"].split("/")
        if method == "vflrecon":
            yield paper_cell(printed, replace(case, free_top=top == "fixed-top"), f"{LABEL}_shared")
        elif top == "fixed-top":
            yield paper_cell(printed, case, f"{LABEL}_fu_free_top")
        else:
            # The direct attack reads a gradient of C entries, which a trainable top does not send.
            note = "model completion, without its semi-supervised part"
            yield paper_cell(printed, case, f"{LABEL}_fu_completion", note=note)
