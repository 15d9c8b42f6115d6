"""The options of a sweep, their help, and the commands that a line may start; this module imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jaxleak._command import sweep

#: The commands that a line of `jaxleak sweep` may start: maps a name to the words after `python -m`.
PROGRAMS = {name: ("jaxleak", name) for name in ("audit", "demo", "invert")}

#: Text of `jaxleak sweep --help` before the options.
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
