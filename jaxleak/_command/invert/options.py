"""The options of an inversion, and their help."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from jaxleak._command import invert
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._names import ACTIVATIONS, ATTACKS, DEFENSES, LABEL_RULES, MODELS

#: What `jaxleak invert --help` says before the options.
HELP = f"""{invert.__doc__}
What the options may name:
    --attack: {", ".join(ATTACKS)}
    --model: {", ".join(MODELS)}
    --labels: given, joint, none (row_space only), {", ".join(LABEL_RULES)}
    --activation: {", ".join(ACTIVATIONS)}
    --defense: {", ".join(DEFENSES)}
"""


#: How `jaxleak invert --help` sorts the options, and what it says of those that are used most.
GROUPS = {
    "options": {
        "seeds": "of data, weights and starts",
        "payload": "a captured update to attack",
        "out": "folder of the run",
        "fresh": "start over",
    },
    "data options": {
        "data": "what the client's images are",
        "batch-size": "images behind one update",
        "partition": "whose samples the client has",
        **dict.fromkeys(("pool", "skip", "federation"), ""),
    },
    "model options": {
        "model": "the network that is trained",
        "weights": "trained weights, in a file",
        **dict.fromkeys(("width", "activation", "init", "mean", "std"), ""),
    },
    "client options": {
        "local-steps": "steps before the upload",
        "clients": "clients behind one sum",
        **dict.fromkeys(("learning-rate", "batch-norm", "attacked-round"), ""),
    },
    "attack options": {
        "attack": "the method, by its name",
        "iterations": "how long it searches",
        "restarts": "independent starts; the best counts",
        "labels": "rule that infers the labels",
        "public-data": "images that the attacker has",
        **dict.fromkeys(
            (
                "public-samples", "latent-size", "generator-epochs", "estimate", "microbatch", "homotopy", "finish",
                "progress-below", "exact-kinks", "tv", "tv-kind", "activation-penalty", "matched-percent",
                "per-tensor", "blend", "white-point", "probe", "probe-length", "exact-curvature", "reselect",
                "generator", "optimizer", "step-size", "terms", "granted-statistics", "far", "noise", "noise-scale",
            ),
            "",
        ),
    },
    "defense options": {
        "defense": "what changes the client's update",
        "strength": "in the defense's own unit",
        "adaptive": "the attacker knows the defense",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """One case, some seeds."""

    case: tyro.conf.OmitArgPrefixes[Case] = field(default_factory=lambda: Case(data="photographs"))
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights, batches and starts."""
    payload: Path | None = None
    """A captured update (npz) instead of a simulated client; needs --weights."""
    image_shape: tuple[int, int, int] = (32, 32, 3)
    """Height, width, channels behind a captured payload."""
    num_classes: int = 10
    """Classes of the model behind a captured payload."""
    save_payload: Path | None = None
    """Write the simulated client's update to this npz file, and stop; a name without .npz gets that ending."""
    save_weights: Path | None = None
    """With --save-payload: write the weights that the update was computed at to this safetensors file."""
    devices: int | None = None
    """Devices that share the restarts, or the images of a single trial; on CPU, as many virtual devices are created."""
    out: Path | None = None
    """Folder of the run, by default below runs/."""
    fresh: bool = False
    """Forget finished runs of this folder."""
