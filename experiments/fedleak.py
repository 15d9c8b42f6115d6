"""FedLeak (Boosting Gradient Leakage Attacks, 2025): its evaluation, cell by cell, and a demonstration.

    # a minute on two free cores: `psnr_fedleak` above 30 dB, more than 5 dB
    # above `psnr_best_baseline`, where a grey image scores 9 dB; no data needed
    python -m experiments.fedleak
    # tables with a smaller network and fewer iterations
    python -m experiments.fedleak --table table15 table19 --model convnet \\
        --batch-size 4 --iterations 400 --exact-kinks --seeds 0 1 2 --budget 60
    # the paper's diagnostics, with a narrow ResNet
    python -m experiments.fedleak --table fig1 fig9 table14 --width 16 --budget 20
    # everything as printed: hours of an accelerator
    python -m experiments.fedleak --preset gpu

`--table` runs what fits `--budget` (minutes) and lists the rest with the reason. The printed settings, ResNet10 at
10,000 iterations, want an accelerator: `--preset gpu` runs all tables with FedLeak's printed preset and label rule.
Other commands take the recommended ones unless `--fedleak fedleak_paper --labels fedleak` asks for them. `--model`,
`--width`, `--activation`, `--batch-size` and `--iterations` reduce the settings, and every row says what was reduced
and around which preset of FedLeak it varies. The paper averages over the rounds 0, 2000, ..., 10000, which
`--attack-round 0 2000 4000 6000 8000 10000` does as well. ImageNet weights are not included: `--weights` draws random
ones, trains some on a disjoint part of the data (warm), or takes a safetensors file. Lung-Colon Cancer and SVHN come as
`--lungcolon folder:DIR?size=224` and `--svhn tfds:svhn_cropped`, or `--substitute cifar10`. GGL and ROG are granted
public images, which `--public-data` names: `synthetic` for the demonstration, `held_out` (a part of the same data that
no client holds) or other data for the tables.

The numbers compared with the paper use its scoring, the most similar reconstruction for every image. Beside them stand
the one-to-one PSNR, the same up to one factor (batch normalisation hides how bright images are), that of a grey image,
and the final cosine distance. Finished runs are not run again: the same command goes on where it was, and `--fresh`
starts over.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments._fedleak import demo as fedleak_demo
from experiments._fedleak import report as fedleak_report
from experiments._fedleak.cells import cells, lacking, names
from experiments._fedleak.jobs import DATASETS, Replacements, Sizes
from experiments._fedleak.runs import UpdateJobs
from jaxleak import _validate, attacks
from jaxleak.study import Progress, RunFolder, default_out, run_command
from jaxleak.study.cell_reports import finish_cells
from jaxleak.study.cells import Budget, Cell, Results, over_rounds, run_cells
from jaxleak.study.files import jsonable
from jaxleak.study.rows import NO_DATA, NOT_ASKED, require_match
from jaxleak.study.runner import runner_in
from jaxleak.study.sources import samples_in, unavailable
from jaxleak.study.updates import HELD_OUT, SYNTHETIC, Training

#: Options that the demonstration reads.
DEMO_OPTIONS = ("preset", "seeds", "iterations", "public_data", "out", "fresh")
#: Minutes that `--preset gpu` may take unless `--budget` says otherwise.
GPU_BUDGET = 24 * 60.0


@dataclass(frozen=True)
class Args:
    """Which cells to run, and how."""

    table: tuple[Literal[names()], ...] = ()  # type: ignore[valid-type]
    """Tables and figures to run; nothing runs the preset."""
    preset: Literal["demo", "gpu"] = "demo"
    """What runs without --table: the demonstration, or every table as printed."""
    budget: float | None = None
    """Minutes to spend; 30 unless the preset has more."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, batch, weights and start."""
    only: str = ""
    """Run only cells whose id contains this."""
    fedleak: Literal["fedleak", "fedleak_paper", "fedleak_upstream"] | None = None
    """Which preset stands for FedLeak: as we recommend it, as printed, or as published. By default the printed one with
    --preset gpu, else the recommended one; tables that vary one thing vary it around this preset."""
    labels: Literal["given", "joint", *attacks.LABEL_RULES] | None = None  # type: ignore[valid-type]
    """How every attack gets its labels: by a rule, jointly with the images, or given (granted). By default by the
    paper's rule (fedleak) with --preset gpu, else by the recommended one (calibrated)."""
    sizes: tyro.conf.OmitArgPrefixes[Replacements] = field(default_factory=Replacements)
    weights: str = "random"
    """Weights in place of pretrained ones: random, warm, or a safetensors file."""
    attack_round: tuple[int, ...] = (0,)
    """FedAvg rounds before the attacked one (at the client learning rate); of several, the mean over them."""
    warm: Training = field(default_factory=Training)
    """How --weights warm trains."""
    pool: int = 512
    """Samples that clients draw from; at most half of the data where the others are for training or public."""
    svhn: str | None = None
    """Data specification of SVHN (for example tfds:svhn_cropped)."""
    lungcolon: str | None = None
    """Data specification of Lung-Colon Cancer (for example folder:DIR?size=224)."""
    out: Path | None = None
    """Folder of the run (by default below runs/)."""
    fresh: bool = False
    """Forget finished runs of this folder."""


def main(args: Args) -> dict[str, float]:
    """Run the demonstration or the tables; returns the metrics."""
    _validate.seeds(seeds=args.seeds)
    _validate.positive(attack_rounds=len(args.attack_round))
    for attack_round in args.attack_round:
        _validate.non_negative(attack_round=attack_round)
    if any(args.attack_round) and args.weights != "random":
        raise ValueError("--attack-round trains from random weights; it does not go with --weights")
    if args.weights not in ("random", "warm") and not Path(args.weights).exists():
        raise FileNotFoundError(f"--weights must be random, warm or a safetensors file, and {args.weights} is none")
    named = {"svhn": args.svhn, "lungcolon": args.lungcolon}
    named |= {"substitute": args.sizes.substitute, "public_data": args.sizes.public_data}
    for option, spec in named.items():
        if spec not in (None, HELD_OUT, SYNTHETIC) and (why := unavailable(spec)):
            raise ValueError(f"--{option.replace('_', '-')} cannot be loaded: {why}")
    if not args.table and args.preset == "demo":
        given, default = _options(args), _options(Args())
        unread = [name for name in given if name not in DEMO_OPTIONS and given[name] != default[name]]
        if unread:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in unread)
            raise ValueError(f"the demonstration does not read {options}; name a --table, or take --preset gpu")
        return fedleak_demo.main(args)
    return tables(args)


def _options(args: Args) -> dict[str, Any]:
    """All options by their names on the command line."""
    options = asdict(args)
    options |= options.pop("sizes")
    return options


def tables(args: Args) -> dict[str, float]:
    """Run the cells that fit the budget, and list the others with the reason.

    Raises:
        ValueError: on an unknown table, options out of range, `--only` in no cell's id, or data that an option names
            and that cannot be loaded; at the end, if no cell ran.
        FileNotFoundError: at the end, if no cell ran for lack of data.
    """
    wanted = args.table or names()
    for name in wanted:
        _validate.one_of(names(), table=name)
    budget = args.budget if args.budget is not None else (30.0 if args.table else GPU_BUDGET)
    _validate.positive(budget=budget)
    sizes = [sizes_of(args, attack_round) for attack_round in dict.fromkeys(args.attack_round)]
    chosen = [
        over_rounds(of_rounds)
        for table in wanted
        for of_rounds in zip(*(cells(table, of_round) for of_round in sizes), strict=True)
    ]
    require_match(args.only, (cell.id for cell in chosen))
    substitute = args.sizes.substitute
    if substitute and substitute not in {job.case.data for cell in chosen for job in cell.jobs}:
        print(f"note: --substitute {substitute} is not used: every cell's own data are there, or it has no run")
    chosen = [replace(cell, reason=reason_against(args, cell)) for cell in chosen]
    out = args.out or default_out("fedleak", "-".join(args.table) or args.preset)
    config = {name: value for name, value in _options(args).items() if name not in ("out", "fresh")}
    folder = RunFolder(out, "fedleak", jsonable(config), fresh=args.fresh, program="python -m experiments.fedleak")
    with Progress() as progress:
        runner = runner_in(folder, UpdateJobs(folder, fresh=args.fresh, watch=progress.update), fresh=args.fresh)
        rows = run_cells(chosen, runner, folder, seeds=args.seeds, budget=Budget(60.0 * budget), beside=_beside)
    fedleak_report.show(rows)
    rules = fedleak_report.label_rules(runner)
    fedleak_report.show_label_rules(rules)
    fedleak_report.draw(folder, runner, args.seeds[0])
    return finish_cells(
        folder, "The tables of FedLeak", args, rows, fedleak_report.BESIDE, seeds=args.seeds,
        captions=fedleak_report.CAPTIONS, need_runs=True, **({"label_rules": rules} if rules else {}),
    )  # fmt: skip


def _beside(cell: Cell, results: Sequence[Results]) -> dict[str, Any]:
    """Further entries of a row: means of the scores over the seeds and the attacked rounds."""
    of_rounds = [at for at, job in enumerate(cell.jobs) if replace(job, training=cell.jobs[0].training) == cell.jobs[0]]
    scores = [of_seed[at].scores for of_seed in results for at in of_rounds]
    names = ("psnr", "psnr_up_to_scale", "psnr_grey", "ssim", "cosine_distance", "label_accuracy", "test_accuracy")
    return {name: float(np.mean([s[name] for s in scores])) for name in (*names, "seconds") if name in scores[0]}


def reason_against(args: Args, cell: Cell) -> str:
    """The reason why no budget makes a cell run; empty if there is none."""
    reason = cell.reason or (NOT_ASKED if args.only not in cell.id else "")
    return reason or next(filter(None, (missing(job.case.data) for job in cell.jobs)), "")


def missing(spec: str) -> str:
    """The reason why a cell's data are not available; empty if they are."""
    why = unavailable(spec)
    return f"{NO_DATA}{why}; --substitute natural_patches takes images that need no file" if why else ""


def sizes_of(args: Args, attack_round: int = 0) -> Sizes:
    """The replacements of printed settings that the options ask for, for an attack on the upload of one round."""
    specs = dict(DATASETS)
    specs |= {"SVHN": args.svhn} if args.svhn else {}
    specs |= {"Lung-Colon Cancer": args.lungcolon} if args.lungcolon else {}
    substitute = args.sizes.substitute
    if substitute:
        specs = {name: substitute if unavailable(spec) else spec for name, spec in specs.items()}
    printed_preset = args.preset == "gpu"
    printed = Training(
        rounds=max(1, attack_round),
        learning_rate=args.sizes.client_learning_rate,
        clients=args.sizes.federation,
        local_steps=1,
    )
    needs_rest = args.weights == "warm" or any(args.attack_round) or args.sizes.public_data == HELD_OUT
    known = [spec for spec in (*specs.values(), substitute) if spec and not unavailable(spec)]
    return Sizes(
        **vars(args.sizes),
        lacking=lacking() if not args.table or "table10" in args.table else {},
        fedleak=args.fedleak or ("fedleak_paper" if printed_preset else "fedleak"),
        labels=args.labels or ("fedleak" if printed_preset else "calibrated"),
        pools={spec: min(args.pool, samples_in(spec) // (2 if needs_rest else 1)) for spec in known},
        warm=args.warm if args.weights == "warm" else None,
        pretrained=Path(args.weights) if args.weights not in ("random", "warm") else None,
        attack_round=printed if attack_round else None,
        specs=specs,
    )


if __name__ == "__main__":
    run_command(main, Args, __doc__)
