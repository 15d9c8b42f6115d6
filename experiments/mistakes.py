"""How many mistaken inputs an audit catches: random mistakes on five models.

    # some 340 mistakes, a quarter of an hour on one free core
    python -m experiments.mistakes
    python -m experiments.mistakes --draws 1 --minutes 0 --out runs/quick

Every draw has weights, images, labels and a batch size of its own. Each kind of mistake that applies to the model is
made once a draw, and the right update is checked beside it for false alarms. Where no check fails, the attacks follow,
and the verdict is counted: leaks, or not shown to leak, with a warning of mistaken inputs or (wrongly) without one.
"""

import importlib
from typing import Any

from experiments._mistakes.options import Args
from jaxleak.study import run_command


def main(args: Args) -> dict[str, Any]:
    """Make and check all mistakes; returns the metrics. Heavy imports wait until the options are parsed."""
    return importlib.import_module("experiments._mistakes.study").main(args)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
