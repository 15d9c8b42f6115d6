"""VFLRecon: what one party of vertical training learns about the others' labels and features.

    python -m experiments.vflrecon                                  # breast_cancer and digits, embedded
    python -m experiments.vflrecon --data sensorless --seeds 3      # needs JAXLEAK_DATA_DIR
    python -m experiments.vflrecon --data adult --share 0.25 --parties 3 --optimizer sgd
    python -m experiments.vflrecon --data criteo --balanced --scaling quantile --defense label_dp --strength 10
    python -m experiments.vflrecon --table table3 fig3 --seeds 3 --budget 30
    python -m experiments.vflrecon --table table5 table6 fig4 fig7 --shadow-init shared --seeds 3 --budget 60
    python -m experiments.vflrecon --table encryption --shadow-init shared  # an epoch on ciphertexts: two minutes

The demo takes one to three minutes on two cores and should print, up to rounding (measured: mean +- spread of seeds 0
to 2, `--seeds 3`; scored on the samples that took part in one epoch):

    |                              | breast_cancer    | digits           |
    | label_accuracy_shared        | 1.000 +- 0.000   | 0.996 +- 0.002   |
    | label_accuracy_own_bottom    | 0.928 +- 0.046   | 0.745 +- 0.033   |
    | label_accuracy_independent   | 0.735 +- 0.107   | 0.276 +- 0.094   |
    | label_accuracy_free          | 1.000 +- 0.000   | 1.000 +- 0.000   |
    | label_accuracy_baseline      | 0.963 +- 0.007   | 0.926 +- 0.006   |
    | feature_mse_shared           | 0.0203 +- 0.0026 | 0.0493 +- 0.0015 |
    | feature_mse_baseline_network | 0.0228 +- 0.0024 | 0.0432 +- 0.0026 |
    | feature_mse_baseline         | 0.0048 +- 0.0017 | 0.0291 +- 0.0012 |
    | feature_variance             | 0.0275 +- 0.0018 | 0.0780 +- 0.0040 |

Without a shared start the paper's networks fall below what the attacker's own features say, while clustering the
directions of the cut gradients needs no start at all. Features: below the variance, but a tuned regression on the
attacker's own features is better; recovered labels help it on digits only, aligned gradients add nothing to labels.
With fixed ReLU patterns a cut gradient is a fixed linear map of p - onehot(y), C - 1 numbers per sample, so there is
little in it about features. The paper's baseline of 0.22 is above the variance of these features: the mean of the
shadow records would beat it.

A table prints paper, ours and difference per cell, ours for the first of `--shadow-init`, beside the other attacks and
both baselines; a killed run goes on where it was. Rows `#adaptive` attack with a shadow run that has the defense too.
`--table fig3 --seeds 3` takes ten to twenty minutes and should print for labels with a shared start: sensorless 99.1,
criteo 99.6, avazu 99.9, adult 99.9, credit_default 100.0, cifar10 68.2 (666 shadow records), and for the
initialisation-free attack 100.0, on cifar10 99.1.

Why cifar10 is the worst: 666 records make a shadow run of few steps, and R learns its one path of the parameters by
heart, and with own features also the records (512 numbers each). On seed 0, gradients alone and as many steps of R: one
shadow run 78 %, two 94 %, six 95 %; with outputs and inputs six runs give 79 %. An attacker may repeat its shadow run
in other orders and choose the fields by validation on its own records; rows `#validated` of fig3 do so, as does

    python -m experiments.vflrecon --data cifar10 --shadow-runs 6 --select validation --network-epochs 5 \
        --shadow-init shared --no-features --seeds 3

which takes ten minutes on two shared cores and should print label_accuracy_shared 0.947 +- 0.031
(paper: 0.85).
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from experiments._rows import require_match, require_runs
from experiments._vfl import figures as vfl_figures
from experiments._vfl import pictures as vfl_pictures
from experiments._vfl import report as vfl_report
from experiments._vfl import tables as vfl_tables
from experiments._vfl.cell import Cell
from experiments._vfl.cells import TABLES, cells
from experiments._vfl.defenses import DefenseName
from experiments._vfl.problem import Case, OptimizerName, sources_of, vertical_problem
from experiments._vfl.runs import Runs, run_case
from jaxleak import _validate
from jaxleak.attacks import party_records
from jaxleak.study import Progress, RunFolder, default_out, run_command

DEMO_DATA = ("breast_cancer", "digits")


@dataclass(frozen=True)
class Args:
    """Options; a list of data sets (default: the demo's) is one case each, repeated for every seed."""

    preset: Literal["demo"] = "demo"
    """Configuration whose values stand where no option is given."""
    table: tuple[Literal[tuple(TABLES)], ...] = ()  # type: ignore[valid-type]
    """Tables and figures of the paper; fu, ablation, encryption and defender are further ones."""
    budget: float = 60.0
    """Minutes that the cells of `--table` may take on two CPU cores."""
    only: str = ""
    """Run only the cells of `--table` whose id contains this text."""
    data: tuple[str, ...] = ()
    """breast_cancer, digits, adult, avazu, cifar10, credit_default, criteo, sensorless, npz:FILE."""
    shadow_init: tuple[Literal["shared", "own_bottom", "independent"], ...] = party_records.SHADOW_INITS
    """How the shadow run starts; the paper does not say which it used. Tables compare the paper with the first."""
    share: float = 0.5
    """The adversary's share of the features."""
    batch_size: int = 16
    """Samples in a batch."""
    shadow_records: int = 1000
    """Complete records that the attacker owns, at most a third of what exists."""
    victim_records: int = 2000
    """Size of the real run."""
    parties: int = 2
    """Parties that share the features."""
    partition: Literal["auto", "random", "gaussian", "gibbs", "blocks"] = "auto"
    """How the features are divided; auto gives every party a strip of an image, or random columns of a table."""
    optimizer: OptimizerName = "adam"
    """Optimizer of the training."""
    scaling: Literal["minmax", "quantile"] = "minmax"
    """How columns are scaled to [0, 1]."""
    balanced: bool = False
    """As many samples of every class."""
    cipher: Literal["none", "plain", "ckks"] = "none"
    """The top's first layer runs without a cipher, by the algebra of the encrypted protocol without ciphertexts, or on
    real ones. Rows of tables that are printed for encryption run on real ones unless plain, which is quicker, is given.
    """
    defense: DefenseName = "none"
    """Attacked as if there were none, and by an adaptive attacker whose shadow run has it too."""
    strength: float = 0.0
    """Strength of the defense: a variance, an epsilon, a power or a threshold; 0 takes the defense's default."""
    task_epochs: int = 20
    """Epochs of training after which the task's accuracy is measured, where a defense is on."""
    network_epochs: int = 10
    """Passes of R over the steps of all shadow runs."""
    fields: tuple[Literal[party_records.FIELDS], ...] = ("gradient", "outputs", "inputs")  # type: ignore[valid-type]
    """What a record holds."""
    select: Literal["fixed", "validation"] = "fixed"
    """Take `--fields`, or choose them by validation on the attacker's own shadow records."""
    shadow_runs: int = 1
    """Shadow runs of the same records in other orders, all of which R learns from; few records need several."""
    features: bool = True
    """Also reconstruct features."""
    seeds: int = 1
    """How many seeds, from 0."""
    out: Path | None = None
    """Run folder; default runs/vflrecon/<tables or data>."""
    fresh: bool = False
    """Forget an earlier run's log, timing and finished cases."""

    def case(self, data: str) -> Case:
        """The case of one data set."""
        names = {field.name for field in dataclasses.fields(Case)} & {field.name for field in dataclasses.fields(self)}
        return Case(**{name: getattr(self, name) for name in names - {"data"}}, data=data)


def main(args: Args, *, need_runs: bool = False) -> dict[str, float]:
    """Run the study; returns the metrics: means over data sets and seeds, then each data set's mean and spread.

    Args:
        args: the options.
        need_runs: raise in the end, as `require_runs` does, if no cell of the tables ran.

    Raises:
        ValueError: on options out of range, data that do not fit them, or `--only` in no cell's id.
    """
    _validate.count(seeds=args.seeds, batch_size=args.batch_size, shadow_records=args.shadow_records)
    _validate.count(shadow_runs=args.shadow_runs, network_epochs=args.network_epochs, parties=args.parties)
    _validate.count(victim_records=args.victim_records, task_epochs=args.task_epochs)
    _validate.positive(budget=args.budget)
    _validate.non_negative(strength=args.strength)
    unknown = set(args.fields) - set(party_records.FIELDS)
    if unknown or not args.fields:
        raise ValueError(
            f"fields must be some of {', '.join(party_records.FIELDS)}, got {', '.join(args.fields) or 'none'}"
        )
    if not args.shadow_init:
        raise ValueError(f"shadow_init must name at least one of {', '.join(party_records.SHADOW_INITS)}")
    names = args.data or DEMO_DATA
    # All that can be refused is refused before anything is trained.
    if not args.table:
        for name in names:
            vertical_problem(args.case(name), seed=0)
    wanted = [(table, cell) for table in args.table for cell in cells(table, args.case("sensorless"))]
    if args.table:
        require_match(args.only, (cell.id for _, cell in wanted))
    wanted = [(table, cell) for table, cell in wanted if args.only in cell.id]
    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(args).items() if k != "fresh"}
    out = args.out or default_out("vflrecon", _in_names("-".join(args.table or names)))
    # Tables resume: finished cases of the folder are not run again.
    folder = RunFolder(out, "vflrecon", config, fresh=args.fresh)
    if args.fresh:
        (folder.path / "cases.jsonl").unlink(missing_ok=True)
    return _tables(args, wanted, folder, need_runs) if args.table else _study(args, names, folder)


def _study(args: Args, names: tuple[str, ...], folder: RunFolder) -> dict[str, float]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    arrays: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in names}
    wanted = Runs(
        shadow_init=args.shadow_init,
        features=args.features,
        task=args.defense != "none",
        regressions=True,
        comparisons=True,
    )
    for name in names:
        folder.sources.bind(sources_of(args.case(name)))
    folder.work_again()
    with Progress() as progress:
        for number, name in enumerate(names):
            for seed in range(args.seeds):
                progress.update("cases", number * args.seeds + seed, len(names) * args.seeds, f"{name}, seed {seed}")
                with folder.phase(name):
                    scores, found = run_case(args.case(name), seed, wanted)
                runs[name].append(scores)
                arrays[name].append(found)
                folder.log(data=name, seed=seed, **scores)
    results = summarise(runs)
    captions: dict[str, str] = {}
    for name in names:
        # A specification may have a path in it.
        captions |= vfl_pictures.draw(
            folder.path / "figures", _in_names(name), args.case(name), runs[name], arrays[name]
        )
    vfl_report.write_study(folder, args, runs, captions)
    folder.finish(results)
    print_table(runs)
    print(folder.contents())
    return results


def _tables(args: Args, wanted: list[tuple[str, Cell]], folder: RunFolder, need_runs: bool) -> dict[str, float]:
    rows, runner = vfl_tables.run_cells(
        [cell for _, cell in wanted],
        folder,
        seeds=range(args.seeds),
        budget=args.budget,
        shadow_init=args.shadow_init,
        pictured={cell.case for table, cell in wanted if table in vfl_figures.PICTURED},
    )
    vfl_tables.show(rows)
    for table in args.table:
        own = [row for row, (name, _) in zip(rows, wanted, strict=True) if name == table]
        case = next((cell.case for name, cell in wanted if name == table), None)
        vfl_figures.draw(folder.path / "figures", table, own, None if case is None else runner.arrays(case, 0))
    ran = sum(row["ours"] is not None for row in rows)
    results = {"cells_run": float(ran), "cells_listed": float(len(rows) - ran)}
    vfl_report.write_tables(folder, args, rows)
    folder.finish(results, cells=rows)
    print(folder.contents())
    if need_runs:
        require_runs(rows)
    return results


def _in_names(text: str) -> str:
    """A specification of data as a part of a file's name."""
    return text.replace("/", "_").replace(":", "_")


def summarise(runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Metrics of all runs: `name` is the mean over data sets, `name_<data>` and `name_<data>_std` are each one's."""
    results: dict[str, float] = {}
    for metric in _metric_names(runs):
        means = {}
        for name, scores in runs.items():
            if metric in scores[0]:
                values = [score[metric] for score in scores]
                means[name] = float(np.mean(values))
                results[f"{metric}_{name}"] = means[name]
                results[f"{metric}_{name}_std"] = float(np.std(values))
        results[metric] = float(np.mean(list(means.values())))
    return results


def print_table(runs: dict[str, list[dict[str, float]]]) -> None:
    """One row per metric, one column per data set, mean and spread over seeds."""
    rows = _metric_names(runs)
    width = max(map(len, rows))
    print(f"{'':{width}}  " + "  ".join(f"{name:>17}" for name in runs))
    for metric in rows:
        cells = []
        for scores in runs.values():
            values = [score[metric] for score in scores if metric in score]
            cells.append(f"{np.mean(values):.4f} +- {np.std(values):.4f}" if values else "-")
        print(f"{metric:{width}}  " + "  ".join(f"{cell:>17}" for cell in cells))


def _metric_names(runs: dict[str, list[dict[str, float]]]) -> list[str]:
    return sorted({metric for scores in runs.values() for score in scores for metric in score})


if __name__ == "__main__":
    run_command(functools.partial(main, need_runs=True), Args, __doc__)
