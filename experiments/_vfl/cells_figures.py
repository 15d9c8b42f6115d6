"""Cells of Figures 3 to 9 of the VFLRecon paper."""

from collections.abc import Iterator
from dataclasses import replace

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
    validated,
)

SHARES = (0.05, 0.15, 0.25, 0.5, 0.75)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHADOW_SIZES = (50, 100, 200, 300, 400)


def fig3(base: Case) -> Iterator[Reading]:
    """Label accuracy by data set; rows `#validated` have an attacker that makes more of the same shadow records."""
    wanted = []
    for printed in printed_cells("text-fig3"):
        name = DATASETS.get(printed["dataset"])
        if name is None:
            yield no_data(printed, base)
        else:
            wanted.append(paper_cell(printed, dataset_case(base, name), f"{LABEL}_shared"))
    for name in ("sensorless", "adult", "credit_default"):
        wanted.append(Reading(f"fig3/{name}", dataset_case(base, name), f"{LABEL}_shared", unit="%"))
    yield from wanted
    for cell in wanted:
        yield replace(cell, id=f"{cell.id}#validated", case=validated(cell.case))


def fig4(base: Case) -> Iterator[Reading]:
    """Reconstructed images; the paper shows CelebA and BHI, which are not at hand, and prints no number."""
    case = replace(dataset_case(base, "cifar10"), parties=2, partition="blocks")
    note = "the right part of grey images; CIFAR-10 in place of CelebA and BHI"
    yield Reading("fig4/cifar10", case, f"{FEATURE}_shared", note=note)


def fig5(base: Case) -> Iterator[Reading]:
    """Mean square error by data set."""
    for printed in printed_cells("text-fig5", "text-abstract-feature"):
        name = DATASETS.get(printed.get("dataset", "Criteo"))
        baseline = printed["id"].split("/")[1] == "baseline"
        if name is None:
            yield no_data(printed, base)
        else:
            case = dataset_case(base, name)
            case = encrypted(base, case) if printed.get("encrypted") else case
            yield paper_cell(printed, case, f"{FEATURE}_baseline_network" if baseline else f"{FEATURE}_shared")
    for name in ("avazu", "adult", "credit_default"):
        yield Reading(f"fig5/{name}", dataset_case(base, name), f"{FEATURE}_shared")


def fig6(base: Case) -> Iterator[Reading]:
    """Correlations of features."""
    note = "which features are meant is not printed: the third and fourth of ten drawn ones"
    case = dataset_case(base, "sensorless")
    for printed in printed_cells("text-fig6"):
        which = printed["id"].split("/")[1]
        yield paper_cell(printed, case, f"correlation_{which}", note=note)
    yield Reading("fig6/mean-error-of-correlations", case, "correlation_error")


def fig7(base: Case) -> Iterator[Reading]:
    """Share of the features."""
    case = dataset_case(base, "sensorless")
    paper = {(task, p["adversary_features"]): p for task in (LABEL, FEATURE) for p in printed_cells(_fig7_table(task))}
    for metric in (LABEL, FEATURE):
        for share in SHARES:
            printed, changed = paper.get((metric, share)), replace(case, share=share)
            changed = encrypted(base, changed) if printed and printed.get("encrypted") else changed
            unit = "%" if metric == LABEL else "1"
            value = None if printed is None else printed["value"]
            yield Reading(f"fig7/{metric}/{share}", changed, f"{metric}_shared", value, unit)


def _fig7_table(metric: str) -> str:
    return "text-fig7-label" if metric == LABEL else "text-fig7-feature"


def fig8(base: Case) -> Iterator[Reading]:
    """Batch sizes."""
    case = dataset_case(base, "sensorless")
    paper = {printed.get("batch_size"): printed for printed in printed_cells("text-fig8")}
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for size in BATCH_SIZES:
            printed, changed = paper.get(size, paper[None]), replace(case, batch_size=size)
            value = printed["value"] if metric == FEATURE else None
            note = "paper: below, for most batch sizes" if value is not None and size not in paper else ""
            changed = encrypted(base, changed) if value is not None and printed.get("encrypted") else changed
            yield Reading(f"fig8/{metric}/{size}", changed, f"{metric}_shared", value, unit, note=note)


def fig9(base: Case) -> Iterator[Reading]:
    """Shadow records."""
    case = dataset_case(base, "sensorless")
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for size in SHADOW_SIZES:
            yield Reading(f"fig9/{metric}/{size}", replace(case, shadow_records=size), f"{metric}_shared", unit=unit)
