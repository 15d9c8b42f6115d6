"""The options of a sweep, their help, and what a line may start; nothing heavy is imported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jaxleak._command import sweep

#: What a line of `jaxleak sweep` may start: its name to the words behind `python -m`.
PROGRAMS = {name: ("jaxleak", name) for name in ("audit", "demo", "invert")}

#: What `jaxleak sweep --help` says before the options.
HELP = f"{sweep.__doc__}\nStudies: {', '.join(PROGRAMS)}.\n"


@dataclass(frozen=True)
class Args:
    """What to do with which lines."""

    sweep: Path
    """The file, one JSON object per line."""
    action: tyro.conf.Positional[Literal["run", "merge"]] = "run"
    """Run the file's commands, or merge what several machines ran."""
    index: int | None = None
    """Number of the line to run, from 0."""
    out: Path | None = None
    """Folder of all runs; default runs/sweep/<name of the file>."""
