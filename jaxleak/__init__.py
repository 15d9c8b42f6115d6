"""jaxleak: measure how much private data leaks from federated learning.

The contracts below are here at once; a subpackage such as `jaxleak.attacks` is imported when it is first used.
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
