"""The case and the score that give every number of the VFLRecon paper: figures, further rows, and all tables."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from experiments._vfl.cells_tables import (
    DATASETS,
    FEATURE,
    LABEL,
    Scored,
    cell,
    dataset_case,
    encrypted,
    fu,
    no_data,
    paper_cell,
    printed_cells,
    table3,
    table4,
    table5,
    table6,
)
from jaxleak.study.cells import Cell
from jaxleak.study.parties import FieldName, OptimizerName, SplitCase

SHARES = (0.05, 0.15, 0.25, 0.5, 0.75)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHADOW_SIZES = (50, 100, 200, 300, 400)
FIELD_SETS: tuple[tuple[FieldName, ...], ...] = (
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
#: Score of each task, with its unit.
_TASKS = ((LABEL, "%"), (FEATURE, "1"))


def validated(case: SplitCase) -> SplitCase:
    """The same case, but R learns from six shadow runs, and validation on shadow records chooses a record's fields."""
    # Half the passes suffice: R still takes three times as many steps as with one shadow run.
    return replace(case, shadow_runs=6, select="validation", network_epochs=5)


def fig3(base: SplitCase) -> Iterator[Cell]:
    """Label accuracy by data set; in rows `#validated` the attacker learns from six runs on the same shadow records."""
    score = f"{LABEL}_shared"
    wanted = []
    for printed in printed_cells("text-fig3"):
        name = DATASETS.get(printed["dataset"])
        if name is None:
            yield no_data(printed)
        else:
            wanted.append(paper_cell(printed, dataset_case(base, name), score))
    for name in ("sensorless", "adult", "credit_default"):
        wanted.append(cell(f"fig3/{name}", dataset_case(base, name), score, unit="%"))
    yield from wanted
    for plain in wanted:
        yield replace(plain, id=f"{plain.id}#validated", jobs=(Scored(validated(plain.jobs[0].case), score),))


def fig4(base: SplitCase) -> Iterator[Cell]:
    """Reconstructed images of CIFAR-10; the paper shows CelebA and BHI, not available here, and prints no number."""
    case = replace(dataset_case(base, "cifar10"), parties=2, partition="blocks")
    note = "the right part of grey images; CIFAR-10 in place of CelebA and BHI"
    yield cell("fig4/cifar10", case, f"{FEATURE}_shared", note=note)


def fig5(base: SplitCase) -> Iterator[Cell]:
    """Mean square error by data set."""
    for printed in printed_cells("text-fig5", "text-abstract-feature"):
        name = DATASETS.get(printed.get("dataset", "Criteo"))
        baseline = printed["id"].split("/")[1] == "baseline"
        if name is None:
            yield no_data(printed)
        else:
            case = dataset_case(base, name)
            case = encrypted(base, case) if printed.get("encrypted") else case
            yield paper_cell(printed, case, f"{FEATURE}_baseline_network" if baseline else f"{FEATURE}_shared")
    for name in ("avazu", "adult", "credit_default"):
        yield cell(f"fig5/{name}", dataset_case(base, name), f"{FEATURE}_shared")


def fig6(base: SplitCase) -> Iterator[Cell]:
    """Correlations of features, original and reconstructed."""
    note = "which features are meant is not printed: the third and fourth of ten drawn ones"
    case = dataset_case(base, "sensorless")
    for printed in printed_cells("text-fig6"):
        which = printed["id"].split("/")[1]
        yield paper_cell(printed, case, f"correlation_{which}", note=note)
    yield cell("fig6/mean-error-of-correlations", case, "correlation_error")


def fig7(base: SplitCase) -> Iterator[Cell]:
    """Scores by the share of the features that the adversary holds."""
    case = dataset_case(base, "sensorless")
    for (score, unit), part in zip(_TASKS, ("label", "feature"), strict=True):
        paper = {printed["adversary_features"]: printed for printed in printed_cells(f"text-fig7-{part}")}
        for share in SHARES:
            printed, changed = paper.get(share), replace(case, share=share)
            changed = encrypted(base, changed) if printed and printed.get("encrypted") else changed
            value = None if printed is None else printed["value"]
            yield cell(f"fig7/{score}/{share}", changed, f"{score}_shared", value, unit)


def fig8(base: SplitCase) -> Iterator[Cell]:
    """Scores by batch size."""
    case = dataset_case(base, "sensorless")
    paper = {printed.get("batch_size"): printed for printed in printed_cells("text-fig8")}
    for (score, unit), size in product(_TASKS, BATCH_SIZES):
        printed, changed = paper.get(size, paper[None]), replace(case, batch_size=size)
        value = printed["value"] if score == FEATURE else None
        note = "paper: below, for most batch sizes" if value is not None and size not in paper else ""
        changed = encrypted(base, changed) if value is not None and printed.get("encrypted") else changed
        yield cell(f"fig8/{score}/{size}", changed, f"{score}_shared", value, unit, note)


def fig9(base: SplitCase) -> Iterator[Cell]:
    """Scores by the number of shadow records."""
    case = dataset_case(base, "sensorless")
    for (score, unit), size in product(_TASKS, SHADOW_SIZES):
        yield cell(f"fig9/{score}/{size}", replace(case, shadow_records=size), f"{score}_shared", unit=unit)


def ablation(base: SplitCase) -> Iterator[Cell]:
    """Scores by the fields that a record holds; the paper has no such table."""
    case = dataset_case(base, "sensorless")
    for (score, unit), fields in product(_TASKS, FIELD_SETS):
        name = f"ablation/{score}/{'+'.join(fields)}"
        yield cell(name, replace(case, fields=fields), f"{score}_shared", unit=unit)


def encryption(base: SplitCase) -> Iterator[Cell]:
    """The same attacks without a cipher, with its algebra, and on ciphertexts."""
    scores = ((f"{LABEL}_shared", "%"), (f"{LABEL}_free", "%"), (f"{FEATURE}_shared", "1"), ("seconds_per_step", "1"))
    for cipher in ("none", "plain", "ckks"):
        case = replace(dataset_case(base, "sensorless"), cipher=cipher)
        for score, unit in scores:
            yield cell(f"encryption/{cipher}/{score}", case, score, unit=unit)


def defender(base: SplitCase) -> Iterator[Cell]:
    """Cost of VFLDefender in task accuracy for every interpretation, threshold and optimiser; no attack runs."""
    defenses: tuple[str, ...] = ("vfl_defender_paper", "vfl_defender", "vfl_defender_batch")
    optimizers: tuple[OptimizerName, ...] = ("adam", "sgd")
    for optimizer, defense, threshold, epochs in product(optimizers, defenses, (0.1, 1.0, 4.0), (3, 20)):
        case = replace(
            dataset_case(base, "sensorless"),
            optimizer=optimizer,
            defense=defense,
            strength=threshold,
            task_epochs=epochs,
        )
        name = f"defender/{optimizer}/{defense}/{threshold:g}/{epochs}-epochs"
        yield cell(name, case, "task_accuracy_change", -1.0, "%", "paper: about 1 % lost")


#: Functions that give the cells of a table or figure. Each takes a case with the sizes of the runs, and with the
#: cipher for rows with encryption (a cipher "none" in that case means "ckks").
_FUNCTIONS = (
    table3, table4, table5, table6, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fu, ablation, encryption, defender,
)  # fmt: skip
TABLES: dict[str, Callable[[SplitCase], Iterator[Cell]]] = {table.__name__: table for table in _FUNCTIONS}
