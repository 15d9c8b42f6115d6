"""What the tables of FedLeak are made of: jobs that run, and what may replace a printed setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxleak import models
from jaxleak.study.updates import Inversion, Training

#: Data specification of every data set that has a name of its own here.
DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "HAM10000": "ham10000",
    "ImageNet": "imagenet_sample",
}


@dataclass(frozen=True)
class Job(Inversion):
    """One thing to run with one seed: an inversion, or what explains it."""

    kind: Literal["invert", "labels", "fig1", "path", "fig9", "fig10", "parameters"] = "invert"
    drawn_classes: int | None = None  # of "labels": labels are drawn among so many classes, not the data's own


@dataclass(frozen=True)
class Replacements:
    """What the command's options put in place of the printed settings."""

    model: Literal[tuple(models.CLASSIFIERS)] | None = None  # type: ignore[valid-type]
    """Replaces the printed model."""
    width: int | None = None
    """Width of a ResNet's first stage (64 as printed)."""
    activation: Literal[tuple(models.ACTIVATIONS)] | None = None  # type: ignore[valid-type]
    """Replaces ReLU."""
    iterations: int | None = None
    """Replaces the printed 10,000."""
    batch_size: int | None = None
    """Replaces the printed one."""
    homotopy: tuple[float, float] | None = None
    """Sharpness from, to, in FedLeak's smoothing; None keeps the preset's."""
    exact_kinks: bool = False
    """FedLeak without smoothing."""
    idlg_optimizer: Literal["adam"] | None = None
    """Adam, one gradient per iteration, in place of iDLG's L-BFGS."""
    client_learning_rate: float = 1e-4
    """Learning rate of the clients' local steps."""
    estimate: bool = False
    """Several local steps: match the averaged-gradient estimate instead of the unrolled steps."""
    federation: int = 100
    """Clients of skewed partitions and of training."""
    microbatch: int | None = None
    """Restarts computed at once."""
    public_data: str | None = None
    """What GGL and ROG train their generators on: held_out (samples of the same data that no client holds), synthetic,
    or a data specification; without it their cells are listed and not run."""
    substitute: str | None = None
    """Data specification for cells whose own data are not there."""


@dataclass(frozen=True)
class Sizes(Replacements):
    """What replaces the printed settings; every replacement that bites is named in a cell's note."""

    fedleak: str = "fedleak"  # which preset stands for FedLeak
    labels: str = "calibrated"  # how every attack gets its labels
    pools: Mapping[str, int] = field(default_factory=dict)  # by data specification, how many samples clients draw from
    warm: Training | None = None  # in place of ImageNet weights; None draws random ones
    pretrained: Any = None  # a safetensors file
    attack_round: Training | None = None  # FedAvg rounds before the attacked one
    specs: Mapping[str, str] = field(default_factory=lambda: DATASETS)
