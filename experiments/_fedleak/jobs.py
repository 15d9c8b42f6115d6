"""What the tables of FedLeak are made of: jobs that run, and what may replace a printed setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from experiments._fedleak.federation import Federation
from experiments._fedleak.weights import Training
from jaxleak.study.updates import Case

#: Data specification of every data set that has a name of its own here.
DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "HAM10000": "ham10000",
    "ImageNet": "imagenet_sample",
}


@dataclass(frozen=True)
class Job:
    """One thing to run with one seed."""

    kind: Literal["invert", "labels", "fig1", "path", "fig9", "fig10", "parameters"]
    case: Case
    training: Training | None = None  # of the attacked model, on data that no client of the case has
    federation: Federation | None = None  # instead: the defended federation, up to the case's attacked round
    drawn_classes: int | None = None  # of "labels": labels are drawn among so many classes, not the data's own


@dataclass(frozen=True)
class Sizes:
    """What replaces the printed settings; every replacement that bites is named in a cell's note."""

    fedleak: str = "fedleak"
    model: str | None = None
    width: int | None = None
    activation: str | None = None
    iterations: int | None = None
    batch_size: int | None = None
    labels: str = "calibrated"
    homotopy: tuple[float, float] | None = None
    exact_kinks: bool = False
    client_learning_rate: float = 1e-4
    estimate: bool = False
    federation: int = 100
    pools: Mapping[str, int] = field(default_factory=dict)  # by data specification, how many samples clients draw from
    microbatch: int | None = None
    idlg_optimizer: str | None = None
    warm: Training | None = None  # in place of ImageNet weights; None draws random ones
    pretrained: Any = None  # a safetensors file
    attack_round: Training | None = None  # FedAvg rounds before the attacked one
    specs: Mapping[str, str] = field(default_factory=lambda: DATASETS)
    public_data: str | None = None  # what GGL and ROG train their generators on; None leaves their cells out
    substitute: str | None = None  # data for cells whose own are not there
