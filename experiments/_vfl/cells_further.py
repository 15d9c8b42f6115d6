"""Rows beyond the VFLRecon paper: what a record holds, what encryption changes, what VFLDefender costs the task."""

from collections.abc import Iterator
from dataclasses import replace

from experiments._vfl.case import Case, OptimizerName
from experiments._vfl.cell import FEATURE, LABEL, Reading, dataset_case
from experiments._vfl.defenses import DefenseName

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


def ablation(base: Case) -> Iterator[Reading]:
    """What a record holds; the paper has no such table."""
    case = dataset_case(base, "sensorless")
    for metric, unit in ((LABEL, "%"), (FEATURE, "1")):
        for fields in FIELD_SETS:
            yield Reading(
                f"ablation/{metric}/{'+'.join(fields)}", replace(case, fields=fields), f"{metric}_shared", unit=unit
            )


def encryption(base: Case) -> Iterator[Reading]:
    """The same attacks without a cipher, with its algebra, and on ciphertexts."""
    case = dataset_case(base, "sensorless")
    for cipher in ("none", "plain", "ckks"):
        for metric, unit in ((f"{LABEL}_shared", "%"), (f"{LABEL}_free", "%"), (f"{FEATURE}_shared", "1")):
            yield Reading(f"encryption/{cipher}/{metric}", replace(case, cipher=cipher), metric, unit=unit)
        yield Reading(f"encryption/{cipher}/seconds_per_step", replace(case, cipher=cipher), "seconds_per_step")


def defender(base: Case) -> Iterator[Reading]:
    """What VFLDefender costs the task, for every reading, threshold and optimiser; no attack runs."""
    readings: tuple[DefenseName, ...] = ("vfl_defender_paper", "vfl_defender", "vfl_defender_batch")
    optimizers: tuple[OptimizerName, ...] = ("adam", "sgd")
    for optimizer in optimizers:
        for defense in readings:
            for threshold in (0.1, 1.0, 4.0):
                for epochs in (3, 20):
                    case = replace(
                        dataset_case(base, "sensorless"),
                        optimizer=optimizer,
                        defense=defense,
                        strength=threshold,
                        task_epochs=epochs,
                    )
                    name = f"defender/{optimizer}/{defense}/{threshold:g}/{epochs}-epochs"
                    yield Reading(name, case, "task_accuracy_change", -1.0, "%", note="paper: about 1 % lost")
