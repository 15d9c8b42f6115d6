"""What defenses cost in accuracy and what they save in privacy, against attackers who know them and who do not.
Clients upload one step of plain gradient descent (in fedleak-fig4 and fedleak-fig7 also twelve), without momentum:
`jaxleak invert` attacks an upload of others, with --local-steps, --momentum and --defense.

    # four minutes on two free cores: digits and a ConvNet
    python -m experiments.defenses
    # a network, weights and images of your own, and two defenses
    python -m experiments.defenses --model net.py:Net --weights w.pt \\
        --data folder:images?size=32 --only gaussian dp_sgd
    # Figures 4 and 5 of FedLeak, over three seeds
    python -m experiments.defenses --study fedleak-fig4 fedleak-fig5 \\
        --seeds 0 1 2 --budget 120
    # a defense and an attack of your own, each a function in a file
    python -m experiments.defenses --only mine.py:my_defense soteria \\
        --strengths mine.py:my_defense=0.1,0.5 --attack mine.py:my_attack
    # an upload of a later round, of samples that the clients trained on
    python -m experiments.defenses --study further --attacked-round 200
    # one defense, at two epsilons, and at two noise multipliers
    python -m experiments.defenses --only dp_sgd --strengths dp_sgd=99,9
    python -m experiments.defenses --only dp_sgd --strengths dp_sgd=z0.5,z1
    # the vertical federations of the other papers
    python -m experiments.defenses --study cafe-fake-gradients cafe-table11 \\
        vfl-table5 vfl-table6 --budget 90

Without options, seed 0 should print (PSNR in dB; a grey image has 7.2):

    |                             | accuracy | PSNR                         |
    | no defense                  | .900     | 38.9                         |
    | Soteria at 0.5              | .945     | 38.9                         |
    | 4 bits                      | .922     | 16.2                         |
    | 1 bit                       | .177     | 7.3                          |
    | largest 10 % of the entries | .925     | 16.5 (by who knows it: 32.4) |
    | DP-SGD at 1000              | .820     | 10.2                         |

Every point trains the same federation with the defense and attacks one upload, by default with the recommended FedLeak,
which infers its labels: an upload of the initial model, or after `--attacked-round` rounds of that training. Your own
network begins with `--weights`, or with those that its file makes, which a Linen class draws; docs/your_attack.md
says what files of your own defense and attack hold. `--budget` (minutes) is shared by all studies, evenly, and what one
leaves goes to the next; what does not fit is listed. Data, model, batch and rounds are CPU sizes and not the papers':
`--data cifar10 --model resnet10 --batch-norm eval --batch-size 16 --iterations 10000` comes closer. The learning rate
was chosen for the undefended run of one local step of the default network: another network wants its own, and twelve
steps want `--learning-rate 0.2 --rounds 400`. Epsilon, the strength of DP, is the papers' shorthand for a noise level
at delta 1e-5; the true one at that delta, by accounting, stands beside it. A strength such as `dp_sgd=z0.5` is a noise
multiplier. Finished runs are not run again: a killed study goes on, and `--fresh` starts over.
"""

import functools
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments._defenses import delegated, report, studies
from jaxleak import _validate, data
from jaxleak._own_files import is_own
from jaxleak.attacks import LABEL_RULES
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import Progress, RunFolder, default_out, has_run, run_command
from jaxleak.study._data_names import data_in_short
from jaxleak.study.cells import Budget
from jaxleak.study.files import jsonable
from jaxleak.study.reports import Section, command_line, write_markdown
from jaxleak.study.rows import BEYOND_BUDGET, grouped, require_runs
from jaxleak.study.runner import Runner
from jaxleak.study.updates import (
    Case,
    Federation,
    Inversion,
    TradeOffPoint,
    Utilities,
    about_clients,
    about_defenses,
    about_model,
    cell_of_point,
    check,
    parse_strengths,
    reads_nothing,
    require_defenses,
    require_memory_of_update,
    resolved,
    run_trade_off,
    trade_off_runner,
)

STUDIES = (*(name for name in studies.STUDIES if name != "demo"), *delegated.DELEGATED)

ONLY = ("none", *CLIENT_DEFENSES, "secure_aggregation")

#: Defenses for which the demonstration adds an attacker who knows the defense.
DEMO_ADAPTIVE = ("soteria", "sparsification")


@dataclass(frozen=True)
class Args:
    """Which studies to run, and how large."""

    study: tuple[Literal[(*STUDIES, "all")], ...] = ()  # type: ignore[valid-type]
    """Studies to run; nothing runs the preset."""
    preset: Literal["demo"] = "demo"
    """Preset for options that are not given."""
    out: Path | None = None
    """Folder of the run; default runs/defenses/<studies>."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights, batch, noise and start."""
    budget: float = 30.0
    """Minutes for all studies; each gets an equal share of what is left."""
    only: tuple[str, ...] = ()
    """Run only these defenses: names, FILE.py:NAME of yours, or none (the undefended client); without --study, any."""
    attack: str = "fedleak"
    """Attack on the uploads (a preset of jaxleak.attacks.presets, or FILE.py:NAME of yours)."""
    strengths: tuple[str, ...] = ()
    """Strengths, for DP epsilon at delta 1e-5 or noise as z0.5: soteria=0.1,0.9 and so on, in place of a defense's
    own. The number of dp_sgd and of other defenses of differential privacy is the papers' shorthand epsilon at delta
    1e-5 and clip 1, which means a noise multiplier of 4.8 / epsilon; dp_sgd=z0.5 is the noise multiplier itself."""
    adaptive: bool = True
    """The attackers who know the defense."""
    data: str = "digits"
    """Data set (docs/data.md lists them)."""
    model: str = "convnet"
    """Network that is attacked (a built-in one, or FILE.py:NAME of yours)."""
    weights: Path | None = None
    """Weights that training begins with (safetensors, npz or .pt)."""
    mean: tuple[float, ...] | None = None
    """Mean per channel (that the network subtracts), for weights trained that way."""
    std: tuple[float, ...] | None = None
    """Deviation per channel (by which the network divides)."""
    width: int | None = None
    """Width of a ResNet's first stage (64 in full)."""
    batch_norm: Literal["train", "eval"] = "train"
    """Mode of batch normalisation; eval is needed for DP."""
    iterations: int = 300
    """Iterations of the attacks (and of CAFE's training under defenses)."""
    federation: tyro.conf.OmitArgPrefixes[Federation] = field(default_factory=Federation)
    attacked_round: int = 0
    """Rounds before the attacked upload (of training); 0 attacks the initial model."""
    unseen: bool = False
    """Attack an upload of test samples (on which that federation did not train)."""
    labels: str | None = None
    """Labels of the attacked samples: given grants them, joint optimises them, a rule infers them; None keeps those
    of the preset. With granted labels a low leak is not due to failed label inference."""
    fresh: bool = False
    """Forget finished runs of this folder."""


def main(args: Args, *, need_runs: bool = False) -> dict[str, float]:
    """Run the demonstration or the studies; returns the metrics.

    Args:
        args: the options.
        need_runs: raise in the end, as `require_runs` does, if no point or cell ran.

    Raises:
        ValueError: on an unknown study, defense or strength, sizes out of range or more samples than the data have;
            nothing has run then.
        MemoryError: if not even the smallest attack fits in memory, with the option that lowers its need.
        FileNotFoundError: if the data of a study that needs them are missing.
        OSError: if the run folder cannot be written.
    """
    chosen = STUDIES if "all" in args.study else args.study or (args.preset,)
    planned = _checked(args, chosen)
    if attacked := [point.case for points in planned.values() for point in points]:
        about_defenses(attacked, adaptive=args.adaptive)  # refuses a mechanism that its defense contradicts
        # Check once before all points that the smallest attack fits in memory and that there are enough samples.
        require_memory_of_update(min(attacked, key=lambda case: case.images))
        require_defenses(attacked)
        data.load(args.data, args.federation.samples + args.federation.test_samples, args.seeds[0])
    out = args.out or default_out("defenses", "-".join(args.study) or args.preset)
    config = {name: value for name, value in asdict(args).items() if name not in ("out", "fresh")}
    config |= config.pop("federation")
    folder = RunFolder(out, "defenses", jsonable(config), fresh=args.fresh)
    silent = dict[str, str]()
    left, sections, cells = 60.0 * args.budget, list[Section](), list[dict[str, Any]]()
    with Progress() as progress:
        utilities = Utilities(args.federation, folder.path / "utility")
        runner = trade_off_runner(folder, utilities, fresh=args.fresh, watch=progress.update)
        every = [cell_of_point(point, args.federation) for points in planned.values() for point in points]
        runner.check((job for cell in every for job in cell.jobs), args.seeds)
        folder.log_again()
        for number, study in enumerate(chosen):
            share = left / (len(chosen) - number)  # later studies get what this one leaves
            budget = Budget(share)
            if study in delegated.DELEGATED:
                rows, of_study = _delegated(args, study, folder, budget)
            else:
                few = study == "demo" and not (args.strengths or args.only)
                known = (DEMO_ADAPTIVE if few else None) if args.adaptive else ()
                rows = run_trade_off(
                    planned[study], folder, runner, utilities,
                    seeds=args.seeds, budget=budget, adaptive=known, watch=progress.update,
                )  # fmt: skip
                silent |= {report.figure_name(study, steps): text for steps, text in reads_nothing(rows).items()}
                rows, of_study = _shown(args, study, planned[study], rows, folder, runner)
            left -= share - budget.left
            sections += of_study
            cells += [{"study": study, **row} for row in rows]
    write_markdown(
        folder, "What defenses cost, and what they save",
        command=command_line("python -m experiments.defenses", args), seeds=args.seeds, sections=sections,
        answer=" ".join(f"{name.partition('-steps')[0]}: {text}" for name, text in silent.items()),
        method=report.METHOD, captions=silent | report.CAPTIONS,
        not_run=grouped((row["not_run"], f"{row['study']}: {row['id']}") for row in cells if "not_run" in row),
    )  # fmt: skip
    metrics = _metrics(cells) | {"seconds": sum(folder.seconds.values())}
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    if need_runs:
        require_runs(cells)
    return metrics


def _checked(args: Args, chosen: tuple[str, ...]) -> dict[str, list[TradeOffPoint]]:
    for name in chosen:
        _validate.one_of((*STUDIES, "demo"), study=name)
    _validate.seeds(seeds=args.seeds)
    _validate.positive(budget=args.budget)
    _validate.count(iterations=args.iterations)
    args.federation.check()
    _validate.in_range(0, args.federation.rounds, attacked_round=args.attacked_round)
    if args.labels is not None:
        _validate.one_of(("given", "joint", *LABEL_RULES), labels=args.labels)
    for name in args.only:
        _validate.one_of((*ONLY, name) if is_own(name) else ONLY, only=name)
    strengths = parse_strengths(args.strengths)
    same = (
        "attack", "data", "model", "weights", "mean", "std", "width", "batch_norm", "iterations", "attacked_round",
        "labels",
    )  # fmt: skip
    of_clients = {name: getattr(args.federation, name) for name in ("batch_size", "learning_rate")}
    pool = min(Case.pool, args.federation.samples)  # attacked samples come from the training's
    base = Case(**{name: getattr(args, name) for name in same} | of_clients, pool=pool)
    if args.unseen:
        base = replace(base, skip=args.federation.samples, pool=args.federation.test_samples)
    check(base)
    planned = {}
    for study in chosen:
        if study in delegated.DELEGATED:
            continue
        own = {name: s for name, s in strengths.items() if study in _having(name, chosen)}
        points = studies.points_of(study, base, studies.of_demo(args.only) | own if study == "demo" else own)
        points = [p for p in points if not args.only or p.case.defense is None or p.case.defense in args.only]
        planned[study] = [replace(p, case=replace(p.case, pool=max(p.case.pool, p.case.images))) for p in points]
    has = {name for points in planned.values() for p in points for name in ("none", p.case.defense, p.curve)}
    if absent := [name for name in args.only if name not in has]:
        raise ValueError(f"--only {' '.join(absent)} leaves nothing to run of {', '.join(chosen)}")
    unused = [name for name in strengths if not _having(name, chosen) or (args.only and name not in args.only)]
    if unused:
        raise ValueError(f"strengths of {', '.join(unused)}, which {', '.join(chosen)} does not have")
    return planned


def _having(defense: str, chosen: tuple[str, ...]) -> list[str]:
    """The chosen studies that have this defense; the demonstration takes any."""
    own = [study for study in chosen if study in studies.STUDIES]
    has = {s: {n for p in studies.STUDIES[s](Case(), {}) for n in (p.case.defense, p.curve)} for s in own}
    return [study for study in own if study == "demo" or defense in has[study]]


def _shown(
    args: Args, study: str, points: list[TradeOffPoint], rows: list[dict[str, Any]], folder: RunFolder, runner: Runner
) -> tuple[list[dict[str, Any]], list[Section]]:
    """Print and draw a study; returns its rows with the paper's further statements, and its sections of the report."""
    report.show(rows)
    told = about_defenses([point.case for point in points], adaptive=args.adaptive)
    print(*told, sep="\n")
    attacks: dict[str, Inversion] = {}
    for point in points:
        of_point = cell_of_point(point, args.federation).jobs[1:]
        labels = (point.id, f"{point.id}, adaptive", f"{point.id}, adaptive without prior")
        attacks |= zip(labels, of_point, strict=False)
    report.draw(folder, study, rows, runner, attacks)
    f = args.federation
    settings = [
        f"Data {data_in_short(args.data)}, model {args.model}"
        + (f" with the weights {args.weights}" if args.weights else "")
        + f", batch {f.batch_size}, {args.iterations} iterations of the attack {args.attack}.",
        f"The attack reads one upload of round {args.attacked_round}, where round 0 has the initial model. The "
        f"federation {'did not train' if args.unseen else 'trains'} on the samples of this upload.",
        f"Labels of the attacked samples: {resolved(points[0].case).labels_from}.",
        f"Training: {f.clients} clients with {f.samples // f.clients} samples each, all in each of {f.rounds} rounds, "
        f"SGD at {f.learning_rate:g}, tested on {f.test_samples} other samples.",
        *about_clients([point.case for point in points]),
        *about_model(points[0].case),
        *told,
    ]
    outcomes = studies.outcomes(study)
    reason = "a statement of the paper, without a number that one of ours could stand beside"
    listed = [{**o, "ours": None, "not_run": reason} for o in outcomes]
    return [*rows, *listed], report.sections(study, rows, settings, outcomes)


def _delegated(args: Args, study: str, folder: RunFolder, budget: Budget) -> tuple[list[dict[str, Any]], list[Section]]:
    if budget.left <= 0:
        return [{"id": study, "not_run": BEYOND_BUDGET}], []
    before = sum(folder.seconds.values())
    with folder.phase(study):
        rows, figures = delegated.run(
            study, folder.path, seeds=args.seeds, budget=budget.left / 60, iterations=args.iterations, fresh=args.fresh
        )
    budget.left -= sum(folder.seconds.values()) - before
    return rows, delegated.sections(study, rows, figures)


def _metrics(cells: list[dict[str, Any]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for row in cells:
        if "accuracy" in row:
            metrics[f"accuracy_{row['id']}"] = row["accuracy"]
            metrics |= {f"{n}_{row['id']}": row[n] for n in ("psnr", "psnr_adaptive", "leak") if n in row}
    ran = sum(map(has_run, cells))
    return metrics | {"cells_run": float(ran), "cells_listed": float(len(cells) - ran)}


if __name__ == "__main__":
    run_command(functools.partial(main, need_runs=True), Args, __doc__)
