"""CAFE at scale as a study of a clone: what `jaxleak demo` is in an installed package."""

from jaxleak._command.cafe_scale.options import HELP, Args
from jaxleak._command.cafe_scale.run import main
from jaxleak.study import run_command

if __name__ == "__main__":
    run_command(main, Args, HELP.replace("jaxleak demo", "python -m experiments.cafe_scale"))
