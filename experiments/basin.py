"""How close must an image be before its gradient resembles the observed one? The basin around the truth, per model.

    # half a minute on two cores: a reach at 30 dB of 0.97 for the ConvNet
    # and of 0.26 for the ResNet10
    python -m experiments.basin
    # deep networks, over three seeds
    python -m experiments.basin --data cifar10 --rows resnet10-b1 resnet18-b1 \\
        resnet34-b1 mobilenet_v2-b1 --seeds 0 1 2
    # weights of a later round in place of drawn ones
    python -m experiments.basin --data cifar10 --rows resnet34-b1 --weights warm
    # row spaces in place of gradients
    python -m experiments.basin --data cifar10 --rows resnet34-b1 \\
        densenet121-b1 --compare row_spaces

No attack runs here. For every sharpness of the attacker's copy of the model stands the distance (cosine; or that of row
spaces, which leaves the backward pass out) between the observed gradient, which is the exact model's, and that of the
true images, of the same with noise (40, 30 and 20 dB PSNR), of grey ones, and of other images. Descent has something to
follow where these differ from each other: if images at 40 dB are as far away as other images at every sharpness, then
no descent on this distance finds the truth, whatever its terms and its iterations. And a schedule is wasted where the
truth itself is no closer than other images, or ends in a bias where the truth is still far. Nothing of it needs a
client: who attacks measures it on images of their own.

The reach says by what share of their distance, at the best sharpness, images at 30 dB are closer than other images.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxleak import _validate
from jaxleak.study import Progress, RunFolder, default_out, plots, run_command, updates
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.files import jsonable
from jaxleak.study.runner import Cost, Result, runner_in
from jaxleak.study.sources import Arrays, drawn
from jaxleak.study.updates import (
    HOMOTOPY_ROWS,
    Case,
    Training,
    refuse_overlap,
    require_memory_of_update,
    sources_of_update,
    trained,
)


@dataclass(frozen=True)
class Args:
    """Which models, at which sharpness, on what."""

    rows: tuple[Literal[tuple(HOMOTOPY_ROWS)], ...] = ("convnet-b1", "resnet10_16-b1")  # type: ignore[valid-type]
    """Models and their batch sizes: a name, the width of a ResNet's first stage where it is not 64, and the size."""
    data: str = "natural_patches"
    """Data set (docs/data.md lists them)."""
    sharpness: tuple[float, ...] = (1, 2, 4, 8, 15, 30, 60, 120, 300, 1000)
    """Sharpness of the smoothed kinks (in one over the standard deviation of a layer)."""
    batches: int = 8
    """Batches of every seed (that take their turn as the truth)."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights and noise."""
    compare: Literal["gradients", "row_spaces"] = "gradients"
    """Distance to measure: the cosine of gradients, or that of row spaces, which the attack row_space descends."""
    weights: Literal["random", "warm"] = "random"
    """Weights of the model: random, or trained by FedAvg on samples that the attacked client does not hold (warm)."""
    warm: Training = field(default_factory=Training)
    """How --weights warm trains."""
    out: Path | None = None
    """Folder of the run (by default below runs/)."""
    fresh: bool = False
    """Forget finished runs of this folder."""


@dataclass(frozen=True)
class Measurement:
    """A job: measure the distances of one row."""

    case: Case
    sharpness: tuple[float, ...]
    batches: int
    compare: str
    training: Training | None  # None: random weights


class Measurements:
    """The jobs of this study. A result has `distances` (batches, len(sharpness), len(updates.basin.CANDIDATES))."""

    def __init__(self, folder: RunFolder):
        """Trained weights go below `folder`."""
        self.folder = folder

    def identity(self, job: Measurement, seed: int) -> dict[str, Any]:
        """What a result depends on: all fields of the job, and the seed."""
        return jsonable(asdict(job)) | {"seed": seed}

    def sources(self, job: Measurement, seed: int) -> Arrays:
        """The client's data, and the data that the weights were trained on."""
        found = sources_of_update(job.case, seed)
        return found if job.training is None else {**found, **drawn(job.case.data, None, seed)}

    def require(self, job: Measurement, seed: int) -> None:
        """Refuse a batch for which this machine has too little memory, or weights that have seen the client's data."""
        require_memory_of_update(job.case)
        if job.training is not None:
            refuse_overlap(job.case)

    def cost(self, job: Measurement) -> Cost:
        """Estimated seconds, guessed for a small network."""
        return Cost(0.1 * job.batches * len(job.sharpness), 10.0)

    def run(self, job: Measurement, seed: int) -> Result:
        """Measure the distances, after training the weights if the job asks for it."""
        variables, reached = None, dict[str, float]()
        if job.training is not None:
            variables, reached = trained(job.case, job.training, seed, self.folder.path / "weights")
        found = updates.basin.distances(job.case, job.sharpness, job.batches, seed, variables, job.compare)
        return Result(reached, {"distances": found})


def main(args: Args) -> list[dict[str, Any]]:
    """Measure all rows; returns one entry per row."""
    _validate.seeds(seeds=args.seeds)
    _validate.positive(batches=args.batches, sharpness=len(args.sharpness))
    _validate.positive(**{f"sharpness[{i}]": beta for i, beta in enumerate(args.sharpness)})
    jobs = {}
    for row in args.rows:
        _validate.one_of(HOMOTOPY_ROWS, rows=row)
        case = replace(HOMOTOPY_ROWS[row], data=args.data)
        # Every batch is compared with another batch that is never the truth, hence the factor 2.
        _validate.in_range(1, case.pool // (2 * case.batch_size), batches=args.batches)
        training = args.warm if args.weights == "warm" else None
        jobs[row] = Measurement(case, args.sharpness, args.batches, args.compare, training)
    names = ("rows", "data", "sharpness", "batches", "seeds", "compare", "weights")
    config = {name: getattr(args, name) for name in names}
    if args.weights == "warm":
        config["warm"] = asdict(args.warm)
    out, program = args.out or default_out("basin", "-".join(args.rows)), "python -m experiments.basin"
    folder = RunFolder(out, "basin", config, fresh=args.fresh, program=program)
    runner = runner_in(folder, Measurements(folder), fresh=args.fresh)
    for job in jobs.values():
        runner.jobs.require(job, args.seeds[0])
    runner.check(jobs.values(), args.seeds)
    folder.log_again()
    cells: list[dict[str, Any]] = []
    with Progress() as progress:
        for row, job in jobs.items():
            per_seed = []
            for done, seed in enumerate(args.seeds):
                progress.update(row, done, len(args.seeds))
                with folder.phase(row):
                    per_seed.append(runner(job, seed).arrays["distances"])
            cells.append(updates.basin.reach_of_row(row, args.sharpness, np.concatenate(per_seed)))
            folder.log(**cells[-1])
            show(cells[-1], args.sharpness)
            draw(folder.figure(f"{row}.png"), cells[-1], args.sharpness)
    metrics = {
        f"reach_{level}_db/{cell['id']}": cell["reach"][f"{level} dB"]
        for cell in cells
        for level in updates.basin.NOISE
    }
    caption = (
        "How far the gradients of the image under noise, by its PSNR, and of another image are from the observed one."
    )
    write_rows(folder, "How far a gradient leads", args, cells, seeds=args.seeds, captions={"*": caption})
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    return cells


def show(cell: dict[str, Any], sharpness: tuple[float, ...]) -> None:
    """Print a row's distances as a table, with the reach below them."""
    table = Table("sharpness", *cell["distance"], title=f"{cell['id']}: distance from the observed gradient")
    for i, beta in enumerate(sharpness):
        table.add_row(f"{beta:g}", *(f"{cell['distance'][name][i]:.3f}" for name in cell["distance"]))
    table.add_section()
    table.add_row(
        "reach", *(f"{reach:.3f} +- {cell['standard_error'][name]:.3f}" for name, reach in cell["reach"].items())
    )
    Console().print(table)


def draw(path: Path, cell: dict[str, Any], sharpness: tuple[float, ...]) -> None:
    """Draw one curve per candidate: the distance over the sharpness."""
    x = np.array(sharpness, float)
    series = {name: (x, np.array(cell["distance"][name])) for name in cell["distance"]}
    xlabel, ylabel = "sharpness of the smoothed kinks", "distance from the observed gradient (lower is closer)"
    plots.curves(path, series, title=f"{cell['id']}: whose gradient is near", xlabel=xlabel, ylabel=ylabel, log_x=True)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
