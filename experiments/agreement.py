"""When can a reconstruction be believed without the truth?

    python -m experiments.agreement
    python -m experiments.agreement --only lenet --seeds 0 1 2 3
    # seeds that chose neither threshold
    python -m experiments.agreement --only b4 patches --seeds 12 13 14 15 16 17

Every case is attacked from two independent starts, and the SSIM between their images (`agreement`, which an attacker
can compute) is compared with the SSIM of the answer to the truth (which only a study can). An image counts as right
where the latter is above .8. All cases count: some are cut short, have kinks that nothing smooths, or a defense of
which the attacker knows nothing. The threshold is chosen on the even seeds of the undefended cases, as the lowest that
at most one in twenty wrong images reaches; the odd seeds judge it. The same is counted for images whose gradient is
matched, for those with both, and at the threshold that `jaxleak audit` uses (`recommended`).

Prints a line per case, the threshold and the rates; draws all images. MNIST and CIFAR-10 are read from
JAXLEAK_DATA_DIR. All cases but those of `DEEP` take about half an hour of one core. The same command goes on where it
was; `--fresh` starts over, and `--finished-only` counts what is there.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxleak import _validate, metrics
from jaxleak.study import Progress, RunFolder, default_out, plots, print_metrics, run_command, updates
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.runner import Result, runner_in
from jaxleak.study.updates import Case

_CONVNET = Case(data="cifar10", batch_size=4, restarts=2, iterations=200)
_MLP = replace(_CONVNET, model="mlp", iterations=500)
_LENET = replace(_CONVNET, model="lenet", activation="relu", data="mnist", iterations=500)
_RESNET = replace(_CONVNET, model="resnet10", width=16, batch_size=1, iterations=1000)

#: Cases that take seconds per seed. Cases with the same model and number of iterations share a compilation.
QUICK: dict[str, Case] = {
    "convnet-b4": _CONVNET,
    "convnet-b4-patches": replace(_CONVNET, data="natural_patches"),
    "convnet-b4-noise-1e-3": replace(_CONVNET, defense="gaussian", strength=1e-3),
    "convnet-b4-noise-1e-2": replace(_CONVNET, defense="gaussian", strength=1e-2),
    "convnet-b4-sparse-10": replace(_CONVNET, defense="sparsification", strength=10.0),
    "convnet-b4-1-bit": replace(_CONVNET, defense="quantization", strength=1.0),
    "mlp-b4": _MLP,
    "mlp-b4-noise-1e-3": replace(_MLP, defense="gaussian", strength=1e-3),
    "mlp-b4-noise-1e-2": replace(_MLP, defense="gaussian", strength=1e-2),
    "mlp-b4-sparse-10": replace(_MLP, defense="sparsification", strength=10.0),
    "lenet-b4": _LENET,
    "lenet-b4-noise-1e-3": replace(_LENET, defense="gaussian", strength=1e-3),
    "lenet-sigmoid-b4": replace(_LENET, activation="sigmoid", data="cifar10"),
    "convnet-b1-cut-short": replace(_CONVNET, batch_size=1, iterations=40),
    "lenet-b4-exact-kinks": replace(_LENET, exact_kinks=True),
}
#: Cases that take minutes per seed.
SLOW: dict[str, Case] = {
    "resnet10_16-b1": _RESNET,
    "resnet10_16-b1-patches": replace(_RESNET, data="natural_patches"),
    "resnet10_16-b1-exact-kinks": replace(_RESNET, exact_kinks=True, iterations=200),
    "resnet10_16-b4": replace(_RESNET, batch_size=4, iterations=400),
    "resnet18_16-b1": replace(_RESNET, model="resnet18", iterations=200),
    "vit_tiny-b1": replace(_RESNET, model="vit_tiny", width=None, iterations=100),
}
#: Cases with other attacks or deep networks. The last two compile for minutes, and two starts at once need 17 GB.
DEEP: dict[str, Case] = {
    "mlp-b4-ggl": replace(_MLP, attack="ggl", iterations=200),
    "mlp-b4-rog": replace(_MLP, attack="rog", iterations=200),
    **{f"{name}-any-loss": replace(QUICK[name], attack="any_loss") for name in ("convnet-b4", "mlp-b4", "lenet-b4")},
    "lenet-sigmoid-b4-any-loss": replace(QUICK["lenet-sigmoid-b4"], attack="any_loss"),
    "resnet10_16-b1-row-space": replace(_RESNET, attack="row_space", iterations=2600),
    "resnet34_16-b1": replace(_RESNET, model="resnet34", iterations=100),
    "densenet121-b1": replace(_RESNET, model="densenet121", width=None, iterations=40, microbatch=1),
    "mobilenet_v2-b1": replace(_RESNET, model="mobilenet_v2", width=None, iterations=100, microbatch=1),
}
CASES = QUICK | SLOW | DEEP
#: Largest number of seeds that a case runs. In the first two cases, about as many images are wrong as right.
MOST_SEEDS = dict.fromkeys(QUICK, 6) | dict.fromkeys(SLOW, 4) | dict.fromkeys(DEEP, 2)
MOST_SEEDS |= {"convnet-b4": 12, "convnet-b4-patches": 12} | {name: 6 for name in DEEP if "any-loss" in name}

#: Scores of a run that results.json keeps.
KEPT = ("psnr", "score", "cosine_distance", "gradient_matched")
#: Largest share of the wrong images that may reach the threshold.
FALSE_ALARMS_AT_MOST = 0.05
#: Candidates for the threshold.
THRESHOLDS = np.round(np.arange(0.5, 1.0, 0.01), 2)


class Images(NamedTuple):
    """Scores and properties of images, one entry per image (I images)."""

    agreement: np.ndarray  # (I,) SSIM between the two starts
    tinted: np.ndarray  # (I,) the same, after the second start's image took the tint of the first
    ssim: np.ndarray  # (I,) SSIM between the reconstruction and the truth
    matched: np.ndarray  # (I,) bool: the run matches the gradient
    determined: np.ndarray  # (I,) bool: no other image was found with the same update
    defended: np.ndarray  # (I,) bool: the update is defended
    seed: np.ndarray  # (I,) seed of the run

    @property
    def right(self) -> np.ndarray:
        """Whether each image is reconstructed, by its SSIM to the truth: (I,) bool."""
        return self.ssim > updates.RECOGNISED_ABOVE

    def where(self, rows: np.ndarray) -> "Images":
        """The images that the index array or mask `rows` selects."""
        return Images(*(column[rows] for column in self))


@dataclass(frozen=True)
class Args:
    """Which cases to run, from which seeds."""

    seeds: tuple[int, ...] = tuple(range(12))
    """Seeds of data, weights, batch and starts. The even ones choose the threshold, the odd ones judge it."""
    only: tuple[str, ...] = ()
    """Run only the cases whose name contains one of these."""
    finished_only: bool = False
    """Judge the runs that are finished, and start no other."""
    out: Path | None = None
    """Folder of the run, by default below runs/."""
    fresh: bool = False
    """Forget finished runs."""


def main(args: Args) -> dict[str, float]:
    """Run all cases; returns the metrics."""
    _validate.seeds(seeds=args.seeds)
    cases = {name: case for name, case in CASES.items() if not args.only or any(part in name for part in args.only)}
    if not cases:
        raise ValueError(f"only must be parts of cases' names ({', '.join(CASES)}), got {args.only!r}")
    out = args.out or default_out("agreement", "-".join(args.only) or "all")
    config = {"seeds": args.seeds, "only": args.only}
    folder = RunFolder(out, "agreement", config, fresh=args.fresh, program="python -m experiments.agreement")
    rows, columns = list[dict[str, Any]](), list[Images]()
    with Progress() as progress:
        runner = runner_in(
            folder, updates.Inversions(folder, fresh=args.fresh, watch=progress.update), fresh=args.fresh
        )
        jobs = [
            (name, updates.Inversion(case), seed)
            for name, case in cases.items()
            for seed in args.seeds[: MOST_SEEDS[name]]
            if not args.finished_only or runner.done(updates.Inversion(case), seed)
        ]
        if not jobs:
            raise ValueError(f"no run of these cases is finished in {folder.path}; leave finished_only out")
        for _, job, seed in jobs:
            runner.check([job], [seed])
        for name, job, seed in jobs:
            with folder.phase(name):
                result = runner(job, seed)
            images = images_of(job.case, seed, result)
            columns.append(images)
            of_each = {"agreement": images.agreement, "tinted": images.tinted, "ssim": images.ssim}
            rows.append({"case": name, "seed": seed, **of_each, **{score: result.scores[score] for score in KEPT}})
    everything = Images(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    found = judge(everything)
    show(rows)
    draw(folder.figure("agreement.png"), everything, found["threshold"])
    seeds = sorted({row["seed"] for row in rows})
    captions = {
        "agreement.png": "Left, a point per image: how far two starts agree, against how close the answer is to the "
        "truth. Right: the share of the right and of the wrong images that a threshold on the agreement believes.",
        "*": "Private images above the attack's answer, and that of its second start.",
    }
    write_rows(folder, "When a reconstruction can be believed", args, rows, seeds=seeds, captions=captions)
    folder.finish(found, cells=rows)
    print_metrics(found)
    print(folder.contents())
    return found


def images_of(case: Case, seed: int, result: Result) -> Images:
    """The scores of one run's images.

    Args:
        case: the case that was attacked, from two starts.
        seed: the seed of the run.
        result: scores and arrays of the run.
    """
    truth, estimate, other = (result.arrays[name] for name in ("truth", "estimate", "other"))
    size = len(truth)
    return Images(
        agreement=result.arrays["agreement"],
        tinted=metrics.ssim(estimate, np.clip(metrics.tinted_like(estimate, other), 0, 1)),
        ssim=metrics.ssim(truth, estimate),
        matched=np.full(size, result.scores["gradient_matched"] == 1),
        determined=~result.arrays.get("undetermined", np.zeros(size, bool)),
        defended=np.full(size, case.defense is not None),
        seed=np.full(size, seed),
    )


def choose(agreement: np.ndarray, right: np.ndarray) -> float:
    """The lowest of `THRESHOLDS` that a share of at most `FALSE_ALARMS_AT_MOST` of the wrong images reaches, else 1."""
    fine = [t for t in THRESHOLDS if (agreement[~right] >= t).sum() <= FALSE_ALARMS_AT_MOST * (~right).sum()]
    return float(min(fine, default=1.0))


def judge(images: Images) -> dict[str, float]:
    """Choose the threshold on the even seeds; rate all rules on the odd seeds, and at `audit.AGREE_ABOVE` on all."""
    from jaxleak.audit import AGREE_ABOVE  # imported late: it takes longer than --help may

    undefended, defended = images.where(~images.defended), images.where(images.defended)
    even = undefended.seed % 2 == 0
    chosen_on, judged_on = undefended.where(even), undefended.where(~even)
    threshold = choose(chosen_on.agreement, chosen_on.right)
    found = {"threshold": threshold}
    for group, some, least in (
        ("chosen_on", chosen_on, threshold),
        ("judged_on", judged_on, threshold),
        ("defended", defended, threshold),
        ("recommended", undefended, AGREE_ABOVE),
        ("recommended_defended", defended, AGREE_ABOVE),
    ):
        agree = some.agreement >= least
        both = agree & some.matched
        rules = {"agree": agree, "matched": some.matched, "both": both, "all": both & some.determined}
        for rule, believed in rules.items():
            rates = updates.believed_rates(believed, some.right)
            found |= {f"{group}/{rule}/{name}": value for name, value in rates.items()}
    if 0 < undefended.right.sum() < len(undefended.right):
        from sklearn.metrics import roc_auc_score  # imported late: it takes longer than --help may

        for name, values in (("as_shown", undefended.agreement), ("up_to_tint", undefended.tinted)):
            found[f"undefended/area_under_roc/{name}"] = float(roc_auc_score(undefended.right, np.nan_to_num(values)))
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """Print one line per case."""
    table = Table("case", "seeds", "images", "right", "agreement of the right", "of the wrong", "gradients matched")
    for name in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == name]
        agreement, ssim = (np.concatenate([row[key] for row in mine]) for key in ("agreement", "ssim"))
        right = ssim > updates.RECOGNISED_ABOVE
        table.add_row(
            name, str(len(mine)), str(len(ssim)), str(right.sum()), _range(agreement[right]), _range(agreement[~right]),
            str(sum(row["gradient_matched"] == 1 for row in mine)),
        )  # fmt: skip
    Console().print(table)


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}" if len(values) else ""


def draw(path: Path, images: Images, threshold: float) -> None:
    """Draw the agreement and the SSIM of all images, and the rates as functions of the threshold."""
    from jaxleak.audit import AGREE_ABOVE  # imported late: it takes longer than --help may

    split = {"undefended updates": images.where(~images.defended), "defended updates": images.where(images.defended)}
    groups = {group: some for group, some in split.items() if len(some.seed)}
    points = {group: (some.agreement, some.ssim) for group, some in groups.items()}
    rates = {}
    for group, some in groups.items():
        found = [updates.believed_rates(some.agreement >= t, some.right) for t in THRESHOLDS]
        rates[group] = (THRESHOLDS, [of["false_alarm_rate"] for of in found], [of["found_share"] for of in found])
    thresholds = {"that the even seeds chose": threshold, "that is recommended": AGREE_ABOVE}
    plots.certificate(path, points, rates, thresholds=thresholds, right=updates.RECOGNISED_ABOVE)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
