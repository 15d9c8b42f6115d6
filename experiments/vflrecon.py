"""VFLRecon: what one party of vertical training learns about the others' labels and features.

    python -m experiments.vflrecon                                  # breast_cancer and digits, embedded
    python -m experiments.vflrecon --data sensorless --seeds 0 1 2  # needs JAXLEAK_DATA_DIR
    for d in none noise_cut label_dp; do python -m experiments.vflrecon --defense $d --out runs/vfl-$d; done
    python -m experiments.vflrecon --data adult --share 0.25 --parties 3 --optimizer sgd
    python -m experiments.vflrecon --data criteo --balanced --scaling quantile --defense label_dp --strength 10
    python -m experiments.vflrecon --table table3 fig3 --seeds 0 1 2 --budget 30
    python -m experiments.vflrecon --table table5 table6 fig4 fig7 --shadow-init shared --seeds 0 1 2 --budget 60
    python -m experiments.vflrecon --table encryption --shadow-init shared  # an epoch on ciphertexts: two minutes

The demo takes one to three minutes on two cores, `--table fig3 --seeds 0 1 2` ten to twenty. A table prints paper, ours
and difference per cell, ours for the first of `--shadow-init`, beside the other attacks and both baselines. A killed
run goes on where it was. Rows `#adaptive` attack with a shadow run that has the defense too, rows `#validated` with
several shadow runs and with fields that were chosen on the attacker's own records. Without a number of records, a run
takes as many as it has of 1000 shadow records and 2000 others, and says how many these are; a number that the data do
not have is refused. docs/vflrecon.md says which results are stored.
"""

import functools
import importlib

from experiments._vfl.options import Args
from jaxleak.study import run_command


def main(args: Args, *, need_runs: bool = False) -> dict[str, float]:
    """Run the study as `experiments._vfl.study.main` describes; heavy imports wait until the options are parsed."""
    return importlib.import_module("experiments._vfl.study").main(args, need_runs=need_runs)


if __name__ == "__main__":
    run_command(functools.partial(main, need_runs=True), Args, __doc__)
