"""The options of the study of mistaken inputs; nothing heavy is imported, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Args:
    """The number of draws, the source of the images, and the budget."""

    draws: int = 5
    """Draws of weights, batch and mistakes for every model, at most 1000."""
    data: str = "natural_patches"
    """Images of the clients, which the checks never see."""
    minutes: float = 0.5
    """Budget of the attacks on a mistake that no check sees; 0 attacks none."""
    seed: int = 0
    """Seed of all draws, at most 42949: JAX reads 32 bits of the keys that are made of it."""
    out: Path | None = None
    """Folder of the run."""
    fresh: bool = False
    """Start over."""
