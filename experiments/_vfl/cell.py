"""A reading of a case that stands in a VFLRecon table, and what the rows of a table share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from experiments import _paper
from experiments._vfl.case import Case
from jaxleak.study.rows import NO_DATA

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


@dataclass(frozen=True)
class Reading:
    """A number: the paper's if it prints one, the case that gives ours, and the score to read off it."""

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


def dataset_case(base: Case, name: str) -> Case:
    """The case of a data set, with its encoding and without a cipher."""
    return replace(base, data=name, cipher="none", **ENCODINGS.get(name, {}))


def encrypted(base: Case, case: Case) -> Case:
    """The same case on ciphertexts, as the paper runs it, unless `base` asks for their algebra alone."""
    return replace(case, cipher="ckks" if base.cipher == "none" else base.cipher)


def validated(case: Case) -> Case:
    """The same case where R learns from six shadow runs, and held-out shadow records choose what a record holds."""
    # Half the passes: R takes three times as many steps as over one run, which was enough.
    return replace(case, shadow_runs=6, select="validation", network_epochs=5)


def printed_cells(*tables: str) -> Iterator[dict[str, Any]]:
    """Cells of the stored tables of the paper, in their order."""
    found = _paper.tables("vflrecon")
    for table in tables:
        yield from found[table]["cell"]


def paper_cell(printed: dict[str, Any], case: Case, metric: str, *, suffix: str = "", note: str = "") -> Reading:
    """A printed number, the case that gives ours, and the score to read; `suffix` tells readings of a row apart."""
    unit = "%" if printed["unit"] == "%" else "1"
    return Reading(printed["id"] + suffix, case, metric, printed["value"], unit, note=note)


def no_data(printed: dict[str, Any], base: Case) -> Reading:
    """A printed number that has nothing to run."""
    return Reading(printed["id"], base, "", printed["value"], printed["unit"], missing=NO_DATA + printed["dataset"])
