"""CAFE at scale as a study of a clone: what `jaxleak demo` is in an installed package."""

import importlib

from jaxleak._command.cafe_scale.options import HELP, Args
from jaxleak.study import run_command


def main(args: Args) -> dict[str, float]:
    """Run the study; returns the metrics. Heavy imports wait until the options are parsed."""
    return importlib.import_module("jaxleak._command.cafe_scale.run").main(args)


if __name__ == "__main__":
    run_command(main, Args, HELP.replace("jaxleak demo", "python -m experiments.cafe_scale"))
