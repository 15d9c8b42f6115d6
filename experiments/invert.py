"""The inversion of one client's gradient as a study of a clone: what `jaxleak invert` is in an installed package."""

import importlib

from jaxleak._command.invert.options import GROUPS, HELP, Args
from jaxleak.study import run_command


def main(args: Args) -> dict[str, float]:
    """Attack; returns the metrics. Heavy imports wait until the options are parsed."""
    return importlib.import_module("jaxleak._command.invert.run").main(args)


if __name__ == "__main__":
    run_command(main, Args, HELP.replace("jaxleak invert", "python -m experiments.invert"), groups=GROUPS)
