"""The jobs behind FedLeak's tables, and the replacements for printed settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jaxleak import models
from jaxleak.study.updates import Case, Inversion, Training

#: Data specifications by printed name, for those of the paper's data sets that are built in.
DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "HAM10000": "ham10000",
    "ImageNet": "imagenet_sample",
}
#: FedLeak as printed moves a pixel by at most 10,000 x 1e-4 = 1. Reduced runs of 100 iterations or more, with a rate
#: that decays by a cosine, can move it as far: 100 x 0.02 / 2 = 1.
REDUCED_ITERATIONS, REDUCED_RATE = 100, 0.02


def at_reduced_rate(case: Case) -> Case:
    """The same case with steps of Adam that move a pixel as far as the printed iterations do."""
    return replace(case, optimizer="adam", step_size=min(REDUCED_RATE, 2 / case.iterations))


@dataclass(frozen=True)
class Job(Inversion):
    """A unit of work that runs once per seed: an inversion, or a measurement that explains one."""

    kind: Literal["invert", "labels", "fig1", "path", "fig9", "fig10", "parameters"] = "invert"
    drawn_classes: int | None = None  # classes from which kind "labels" draws labels; None: the data's own labels


@dataclass(frozen=True)
class Replacements:
    """In place of the printed settings: what the command's options change."""

    model: Literal[tuple(models.CLASSIFIERS)] | None = None  # type: ignore[valid-type]
    """Model in place of the printed one."""
    width: int | None = None
    """Width of a ResNet's first stage (64 as printed)."""
    activation: Literal[tuple(models.ACTIVATIONS)] | None = None  # type: ignore[valid-type]
    """Activation function in place of ReLU."""
    iterations: int | None = None
    """Iterations in place of 10,000."""
    batch_size: int | None = None
    """Batch size in place of the printed one."""
    homotopy: tuple[float, float] | None = None
    """Sharpness of smoothed kinks: FedLeak's at the start and at the end; None keeps the preset's."""
    exact_kinks: bool = False
    """Run FedLeak without smoothing."""
    idlg_optimizer: Literal["adam"] | None = None
    """Optimizer in place of iDLG's L-BFGS: Adam takes one gradient per iteration."""
    client_learning_rate: float = 1e-4
    """Learning rate of the clients' local steps."""
    estimate: bool = False
    """Match an average of several local steps: the averaged-gradient estimate instead of the unrolled steps."""
    federation: int = 100
    """Clients of skewed partitions and of training."""
    microbatch: int | None = None
    """Restarts that are computed at once; None takes all of them."""
    public_data: str | None = None
    """Data to train GGL's and ROG's generators: held_out (samples of the same data that no client holds),
    synthetic, or a data specification; without it their cells are listed and not run."""
    substitute: str | None = None
    """Data in place of those that are not available (a data specification)."""


@dataclass(frozen=True)
class Sizes(Replacements):
    """All replacements for printed settings; a cell's note names those that change the cell."""

    fedleak: str = "fedleak"  # preset that stands for FedLeak
    labels: str = "calibrated"  # label rule of every attack
    pools: Mapping[str, int] = field(default_factory=dict)  # size of the clients' pool by data specification
    warm: Training | None = None  # training in place of ImageNet weights; None: random weights
    pretrained: Any = None  # safetensors file of pretrained weights
    attack_round: Training | None = None  # FedAvg training before the attacked round
    specs: Mapping[str, str] = field(default_factory=lambda: DATASETS)
    lacking: Mapping[str, str] = field(default_factory=dict)  # tables that cannot run, with the reason
