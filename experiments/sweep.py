"""Sweeps over the studies of a clone: what `jaxleak sweep` is for the commands of an installed package."""

from pathlib import Path

from jaxleak._command import sweep
from jaxleak._command.sweep.options import Args
from jaxleak._command.sweep.run import main as run_sweep
from jaxleak.study import run_command

#: Studies that a sweep may start: all but the sweep itself.
STUDIES = tuple(
    sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_") and p.stem != "sweep")
)
#: Text that --help prints before the options.
HELP = (sweep.__doc__ or "").replace("jaxleak sweep", "python -m experiments.sweep").replace(
    "a command of `jaxleak`", "a module of `experiments`"
).replace('"demo"', '"cafe_scale"') + f"\nStudies: {', '.join(STUDIES)}.\n"


def main(args: Args) -> None:
    """Run a line of a sweep in place of this process, or merge the results."""
    run_sweep(args, {name: (f"experiments.{name}",) for name in STUDIES})


if __name__ == "__main__":
    run_command(main, Args, HELP)
