"""jaxleak: measure how much private data leaks from federated learning.

| subpackage   | what it is for                                                                |
|--------------|-------------------------------------------------------------------------------|
| `audit`      | a verdict on a recorded update, its checks, and the loops that run attacks     |
| `attacks`    | reconstructions from what a server or a party sees                            |
| `defenses`   | what clients do to their updates before they send them                        |
| `protocols`  | who sends what: horizontal and vertical federated learning                    |
| `threats`    | what an attacker is granted of that                                           |
| `models`     | built-in networks, and yours from PyTorch, Flax and Equinox                   |
| `capture`    | writing and reading recorded updates                                          |
| `data`       | images and tables                                                             |
| `metrics`    | scores of a reconstruction against the truth                                  |
| `objectives` | distances between gradients                                                   |
| `checkpoint` | saving and resuming long reconstructions                                      |
| `study`      | folders, reports and ledgers of experiments                                   |

The types that these subpackages exchange are available here at once; a subpackage is imported when it is first used.
"""

import importlib
import importlib.metadata
from types import ModuleType
from typing import TYPE_CHECKING

from jaxleak._base import Attack, Batch, Observation, Protocol, Reconstruction, Transcript

if TYPE_CHECKING:
    from jaxleak import (
        attacks,
        audit,
        capture,
        checkpoint,
        data,
        defenses,
        metrics,
        models,
        objectives,
        protocols,
        study,
        threats,
    )

__version__ = importlib.metadata.version("jaxleak")

_SUBPACKAGES = (
    "attacks", "audit", "capture", "checkpoint", "data", "defenses", "metrics", "models", "objectives", "protocols",
    "study", "threats",
)  # fmt: skip

__all__ = [
    "Attack",
    "Batch",
    "Observation",
    "Protocol",
    "Reconstruction",
    "Transcript",
    "attacks",
    "audit",
    "capture",
    "checkpoint",
    "data",
    "defenses",
    "metrics",
    "models",
    "objectives",
    "protocols",
    "study",
    "threats",
]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"jaxleak.{name}")
    raise AttributeError(f"module 'jaxleak' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
