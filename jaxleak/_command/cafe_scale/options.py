"""The options of CAFE at scale, their help, and the presets that fill in what is left out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from jaxleak._command import cafe_scale
from jaxleak.study import default_out
from jaxleak.study.distributed import Devices

#: Text of `jaxleak demo --help` before the options.
HELP = cafe_scale.__doc__ or ""

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"data": "lfw_faces", "num_samples": 100, "batch_size": 20, "images": 100},
    "mnist": {"data": "mnist", "num_samples": 800, "batch_size": 40, "images": 128},
    "cifar10": {"data": "cifar10", "num_samples": 800, "batch_size": 40, "images": 64},
    "paper": {"data": "mnist", "num_samples": 800, "batch_size": 40, "images": 800, "solver": "nested"},
    "scale": {"data": "natural_patches", "num_samples": 10_000, "batch_size": 100, "images": 16},
}


@dataclass(frozen=True)
class Args:
    """Options; those left out come from the preset."""

    preset: Literal["demo", "mnist", "cifar10", "paper", "scale"] = "demo"
    """Preset for options that are not given."""
    data: str | None = None
    """Data set: lfw_faces, natural_patches, digits, breast_cancer, mnist, tfds:NAME, folder:DIR, npz:FILE."""
    num_samples: int | None = None
    """Size of the private set (N)."""
    batch_size: int | None = None
    """Samples per round (K)."""
    parties: int = 4
    """Number of parties (M); a square number for images."""
    solver: Literal["exact", "nested", "single"] | None = None
    """The exact solver or one of the paper's: nested is Algorithm 3, single is Algorithm 4."""
    linear_solver: Literal["auto", "direct", "matrix_free"] = "auto"
    """How Steps I and II are solved: direct factorises, matrix_free iterates; auto factorises up to N = 20,000 on one
    device."""
    images: int | None = None
    """How many samples Step III inverts (the first of the private set)."""
    iterations: int = 800
    """Gradient steps of Step III in the paper's solver: nested takes ten times as many for Steps I and II, and single
    takes three times as many in all."""
    network: Literal["cafe", "cafe-relu", "dense", "logistic"] = "cafe"
    """Network of the vertical federation."""
    seed: int = 0
    """Seed of data, weights and rounds."""
    out: Path | None = None
    """Folder of the run; default runs/cafe_scale/<preset>."""
    fresh: bool = False
    """Start over instead of continuing."""
    where: tyro.conf.OmitArgPrefixes[Devices] = field(default_factory=Devices)

    def resolved(self) -> "Config":
        """Fill in the preset's values for options that were not given."""
        given = {name: value for name, value in vars(self).items() if name != "where" and value is not None}
        defaults = {"solver": "exact", "out": default_out("cafe_scale", self.preset), **PRESETS[self.preset]}
        chosen = {**defaults, **given}
        if self.images is None:
            chosen["images"] = min(chosen["images"], chosen["num_samples"])
        return Config(**chosen)


@dataclass(frozen=True)
class Config:
    """The options of `Args`, each with a value."""

    preset: str
    data: str
    num_samples: int
    batch_size: int
    parties: int
    solver: str
    linear_solver: Literal["auto", "direct", "matrix_free"]
    images: int
    iterations: int
    network: str
    seed: int
    out: Path
    fresh: bool
