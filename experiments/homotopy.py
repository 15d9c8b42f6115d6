"""The smoothing homotopy, ablated: the same attack with and without it, and FedLeak's own terms under it.

    # a minute and a half on two cores: about 36 dB for one image with the
    # homotopy and 45 without it, and about 29 for four images either way
    python -m experiments.homotopy
    # the same on CIFAR-10
    python -m experiments.homotopy --data cifar10 --rows convnet-b1 convnet-b4 \\
        --seeds 3 4 5
    # five minutes a seed; the brightness of a single image stays open, so read
    # the PSNR up to one factor, too
    python -m experiments.homotopy --data cifar10 --rows resnet10-b1 \\
        --iterations 3500 --seeds 3 4 5 --variants homotopy
    # sixteen images, 15 to 45 minutes on one core
    python -m experiments.homotopy --data cifar10 --rows resnet10-b16 \\
        --iterations 2000 --seeds 4 --variants homotopy
    # FedLeak's own terms, left out or added one by one
    python -m experiments.homotopy --data cifar10 --rows resnet10_16-b4 \\
        --iterations 6000 --terms
    # weights of a later round in place of drawn ones
    python -m experiments.homotopy --data cifar10 --rows resnet10_16-b1 \\
        --iterations 4000 --weights warm

Every run of a row has the same iterations and sees the same gradients; labels are inferred, never given. Beside every
PSNR (one-to-one matched) stand that of a grey image and the cosine distance that is left on the exact model: where the
first is not far above the second, nothing was recovered, whatever the picture looks like.

Exact kinks are better for a single image of a network without batch normalisation, which is why the recommended
settings leave the homotopy out there. Runs resume; `--fresh` starts over.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxleak import _validate
from jaxleak.study import Progress, RunFolder, default_out, plots, run_command, sheets, updates
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.runner import runner_in
from jaxleak.study.updates import HOMOTOPY_ROWS, Training, captions

#: Variants of FedLeak's recommended settings; all but "exact" keep the homotopy.
VARIANTS: dict[str, dict[str, Any]] = {
    "homotopy": {},
    "exact": {"exact_kinks": True, "homotopy": None},
    "homotopy, generator": {"generator": True},
}
TERMS: dict[str, dict[str, Any]] = {
    "no cosine": {"terms": ("relative_l1",)},
    "no L1": {"terms": ("cosine",)},
    "no TV": {"tv": 0.0},
    "no activation penalty": {"activation_penalty": 0.0},
    "R = 50 %": {"matched_percent": 50.0},
    "blend 0.7, ascent": {"blend": 0.7},
    "blend 0.7, descent": {"blend": 0.7, "probe": "descent"},
}


@dataclass(frozen=True)
class Args:
    """Which rows and variants, on what."""

    rows: tuple[Literal[tuple(HOMOTOPY_ROWS)], ...] = ("convnet-b1", "convnet-b4")  # type: ignore[valid-type]
    """Models and their batch sizes: a name, the width of a ResNet's first stage where it is not 64, and the size."""
    variants: tuple[Literal[tuple(VARIANTS)], ...] = ("homotopy", "exact")  # type: ignore[valid-type]
    """Variants to compare: the homotopy, exact kinks, and an untrained generator in place of pixels."""
    terms: bool = False
    """Also leave out or add terms (FedLeak's, one by one)."""
    data: str = "natural_patches"
    """Data set (docs/data.md lists them)."""
    iterations: int = 400
    """Iterations of every attack."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of data, weights, batches and starts."""
    homotopy: tuple[float, float] | None = None
    """Sharpness at the start and at the end; None takes the row's, mostly the recommended schedule."""
    tv: float | None = None
    """Weight of the total variation; None takes the preset's, see `attacks.client_updates.recommended_tv`."""
    step_size: float | None = None
    """Step size of Adam (in all variants); None takes the preset's, 0.05."""
    weights: Literal["random", "warm"] = "random"
    """Weights of the model: random, or trained by FedAvg on samples that the attacked client does not hold (warm)."""
    warm: Training = field(default_factory=Training)
    """How --weights warm trains."""
    out: Path | None = None
    """Folder of the run (by default below runs/)."""
    fresh: bool = False
    """Forget finished runs of this folder."""


def main(args: Args) -> list[dict[str, Any]]:
    """Run all rows; returns one entry per row and variant."""
    _validate.seeds(seeds=args.seeds)
    _validate.count(iterations=args.iterations)
    if args.homotopy is not None:
        _validate.positive(homotopy=args.homotopy[0])
    for row in args.rows:
        _validate.one_of(HOMOTOPY_ROWS, rows=row)
    for name in args.variants:
        _validate.one_of(VARIANTS, variants=name)
    changes = {name: VARIANTS[name] for name in args.variants} | (TERMS if args.terms else {})
    config = {
        name: getattr(args, name) for name in ("rows", "data", "iterations", "seeds", "homotopy", "tv", "step_size")
    }
    if args.weights == "warm":
        config["warm"] = asdict(args.warm)
    common: dict[str, Any] = {"data": args.data, "iterations": args.iterations}
    common |= {name: given for name in ("homotopy", "tv") if (given := getattr(args, name)) is not None}
    if args.step_size is not None:
        common |= {"optimizer": "adam", "step_size": args.step_size}
    cases = {
        (row, name): replace(HOMOTOPY_ROWS[row], **common | changes[name]) for row in args.rows for name in changes
    }
    training = args.warm if args.weights == "warm" else None
    jobs = {key: updates.Inversion(case, training) for key, case in cases.items()}
    out, program = args.out or default_out("homotopy", "-".join(args.rows)), "python -m experiments.homotopy"
    folder = RunFolder(out, "homotopy", config | {"variants": list(changes)}, fresh=args.fresh, program=program)
    cells: list[dict[str, Any]] = []
    with Progress() as progress:
        runner = runner_in(
            folder, updates.Inversions(folder, fresh=args.fresh, watch=progress.update), fresh=args.fresh
        )
        # Every job is checked before the first run.
        for job in jobs.values():
            runner.jobs.require(job, args.seeds[0])
        runner.check(jobs.values(), args.seeds)
        folder.log_again()
        for row in args.rows:
            outcomes: dict[str, list[updates.Outcome]] = {}
            for name in changes:
                for seed in args.seeds:
                    with folder.phase(f"{row}/{name}"):
                        result = runner(jobs[row, name], seed)
                    truth, estimate, curve = (result.arrays[part] for part in ("truth", "estimate", "curve"))
                    outcomes.setdefault(name, []).append(updates.Outcome(truth, estimate, dict(result.scores), curve))
                    folder.log(row=row, variant=name, seed=seed, **result.scores)
                cells.append(summary(row, name, outcomes[name]))
            draw(folder, row, outcomes)
    show_table(cells)
    metrics = {f"psnr/{cell['id']}": cell["ours"] for cell in cells}
    captions = {
        "*-distance.png": "Gradient distance over the iterations, by variant.",
        "*": "Private images above their reconstructions.",
    }
    write_rows(folder, "What smoothing is worth", args, cells, seeds=args.seeds, captions=captions)
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    return cells


def summary(row: str, variant: str, outcomes: "list[updates.Outcome]") -> dict[str, Any]:
    """Means of the scores over the seeds, the spread of the PSNR, and the PSNR of every seed."""
    mean = {name: float(np.mean([o.scores[name] for o in outcomes])) for name in outcomes[0].scores}
    psnr = [o.scores["psnr"] for o in outcomes]
    cell = {"id": f"{row}/{variant}", "ours": mean.pop("psnr"), "spread": float(np.std(psnr)), "unit": "dB"}
    return cell | {"each": psnr} | mean


def draw(folder: RunFolder, row: str, outcomes: "dict[str, list[updates.Outcome]]") -> None:
    """Draw one contact sheet per variant, and the gradient distance over the iterations for the first seed."""
    for name, runs in outcomes.items():
        truth, estimate = (np.concatenate([getattr(o, part) for o in runs]) for part in ("truth", "estimate"))
        path = folder.figure(f"{row}-{name.replace(' ', '_')}.png")
        sheets.contact_sheet(path, truth, estimate, captions=captions(runs), title=f"{row}, {name}", columns=8, zoom=4)
    series = {
        name: (np.arange(len(runs[0].curve)), runs[0].curve) for name, runs in outcomes.items() if len(runs[0].curve)
    }
    path = folder.figure(f"{row}-distance.png")
    if series:  # an attack without iterations has none
        ylabel = "gradient distance of the smooth copy (lower is closer)"
        plots.curves(path, series, title=f"{row}: how close it came", xlabel="iteration", ylabel=ylabel, log_y=True)


def show_table(cells: list[dict[str, Any]]) -> None:
    """Print the PSNR beside that of a grey image, the remaining cosine distance, and further scores."""
    columns = {
        "PSNR": ("ours", ".2f"), "spread": ("spread", ".2f"), "up to scale": ("psnr_up_to_scale", ".2f"),
        "grey": ("psnr_grey", ".2f"), "SSIM": ("ssim", ".3f"), "cosine distance": ("cosine_distance", ".2g"),
        "labels": ("label_accuracy", ".2f"), "seconds": ("seconds", ".0f"),
    }  # fmt: skip
    table = Table("what", *columns)
    for cell in cells:
        table.add_row(cell["id"], *(format(cell[name], form) for name, form in columns.values()))
    Console().print(table)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
