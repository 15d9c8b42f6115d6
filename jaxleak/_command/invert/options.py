"""The options of an inversion, and their help."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from jaxleak._command import invert
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._names import ACTIVATIONS, ATTACKS, DEFENSES, LABEL_RULES, MODELS

#: Text of `jaxleak invert --help` before the options.
HELP = f"""{invert.__doc__}
What the options may name:
    --attack: FILE.py:NAME of your own, or {", ".join(ATTACKS)}
    --model: FILE.py:NAME of your own, or {", ".join(MODELS)}
    --labels: given, joint, none (row_space and any_loss only), {", ".join(LABEL_RULES)}
    --activation: {", ".join(ACTIVATIONS)}
    --defense: FILE.py:NAME of your own, or {", ".join(DEFENSES)}
"""


#: How `jaxleak invert --help` sorts the options.
GROUPS = {
    "options": (
        "seeds", "payload", "out", "fresh", "help", "help-verbose",
        "image-shape", "num-classes", "save-payload", "save-weights", "devices",
    ),
    "data options": ("data", "batch-size", "partition", "pool", "skip", "federation"),
    "model options": ("model", "weights", "activation", "loss", "init", "width", "mean", "std"),
    "client and defense options": (
        "local-steps", "local-epochs", "reshuffle", "learning-rate", "momentum", "batch-norm", "attacked-round",
        "clients", "defense", "strength", "adaptive", "epoch-copies",
    ),
    "attack options": (
        "attack", "iterations", "restarts", "microbatch", "labels", "estimate", "optimizer", "step-size", "terms", "tv",
        "tv-kind", "white-point", "generator", "noise", "noise-scale", "homotopy", "finish", "progress-below",
        "exact-kinks", "matched-percent", "per-tensor", "blend", "probe", "probe-length", "exact-curvature", "reselect",
        "activation-penalty", "granted-statistics", "far", "prior",
    ),
    "ggl and rog options": ("public-data", "public-samples", "latent-size", "generator-epochs"),
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """One case, some seeds."""

    case: tyro.conf.OmitArgPrefixes[Case] = field(default_factory=lambda: Case(data="photographs"))
    seeds: tuple[int, ...] = (0,)
    """Random seeds (of data, weights, batches and starts)."""
    payload: Path | None = None
    """Captured update (npz, or a file of jaxleak.capture) instead of a simulated client; needs --weights."""
    image_shape: tuple[int, int, int] = (32, 32, 3)
    """Shape of images (height, width, channels) behind a captured payload."""
    num_classes: int = 10
    """Number of classes: of the model behind a captured payload."""
    save_payload: Path | None = None
    """Write the update: the simulated client's, to this npz file, and stop; a name without .npz gets that ending."""
    save_weights: Path | None = None
    """Write its weights: save those at which it was computed, with --save-payload, to this safetensors file."""
    devices: int | None = None
    """Devices to use: they share the restarts, or the images of one trial; on CPU, as many virtual devices are made."""
    out: Path | None = None
    """Folder of the run (by default below runs/)."""
    fresh: bool = False
    """Forget finished runs (of this folder)."""
