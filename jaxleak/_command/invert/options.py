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


@dataclass(frozen=True)
class Args:
    """One case, some seeds."""

    case: tyro.conf.OmitArgPrefixes[Case] = field(default_factory=Case)
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
