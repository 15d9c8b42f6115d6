"""The inversion of one client's gradient as a study of a clone: what `jaxleak invert` is in an installed package."""

from jaxleak._command.invert.options import HELP, Args
from jaxleak._command.invert.run import main
from jaxleak.study import run_command

if __name__ == "__main__":
    run_command(main, Args, HELP.replace("jaxleak invert", "python -m experiments.invert"))
