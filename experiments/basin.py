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

import functools
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments._smoothing import ROWS
from jaxleak import _validate
from jaxleak._base import Batch, PyTree
from jaxleak.study import Progress, RunFolder, default_out, plots, run_command
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.sources import drawn
from jaxleak.study.updates import Case, Training, require_memory_of_update, sources_of_update, trained, victim

if TYPE_CHECKING:  # JAX and what needs it are imported where they are used, after the options were read
    from jaxleak import models, protocols

#: Noise of this PSNR in dB, images in [0, 1].
NOISE = (40, 30, 20)
#: Candidates whose gradients are compared with that of the truth, by the name that is printed.
CANDIDATES = ("truth", *(f"{level} dB" for level in NOISE), "grey", "other")


@dataclass(frozen=True)
class Args:
    """Which models, at which sharpness, on what."""

    rows: tuple[Literal[tuple(ROWS)], ...] = ("convnet-b1", "resnet10_16-b1")  # type: ignore[valid-type]
    """A model, the width of a ResNet's first stage where it is not 64, and the batch size."""
    data: str = "natural_patches"
    """Data set, as docs/data.md lists them."""
    sharpness: tuple[float, ...] = (1, 2, 4, 8, 15, 30, 60, 120, 300, 1000)
    """Sharpness of the smoothed kinks, in units of one over the standard deviation of a layer."""
    batches: int = 8
    """How many batches of every seed take their turn as the truth."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of data, weights and noise."""
    compare: Literal["gradients", "row_spaces"] = "gradients"
    """Distance to measure: the cosine of gradients, or that of row spaces, which the attack row_space descends."""
    weights: Literal["random", "warm"] = "random"
    """Drawn, or trained by FedAvg on samples that the attacked client does not hold."""
    warm: Training = field(default_factory=Training)
    """How --weights warm trains."""
    out: Path | None = None
    """Folder of the run, by default below runs/."""
    fresh: bool = False
    """Forget finished runs of this folder."""


def main(args: Args) -> list[dict[str, Any]]:
    """Measure all rows; returns one entry per row."""
    _validate.seeds(seeds=args.seeds)
    _validate.positive(batches=args.batches, sharpness=len(args.sharpness))
    _validate.positive(**{f"sharpness[{i}]": beta for i, beta in enumerate(args.sharpness)})
    cases = {}
    for row in args.rows:
        _validate.one_of(ROWS, rows=row)
        cases[row] = replace(ROWS[row], data=args.data)
        # Every batch is compared with one that is never the truth.
        _validate.in_range(1, cases[row].pool // (2 * cases[row].batch_size), batches=args.batches)
        require_memory_of_update(cases[row])
    names = ("rows", "data", "sharpness", "batches", "seeds", "compare", "weights")
    config = {name: getattr(args, name) for name in names}
    if args.weights == "warm":
        config["warm"] = asdict(args.warm)
    folder = RunFolder(
        args.out or default_out("basin", "-".join(args.rows)),
        "basin",
        config,
        fresh=args.fresh,
        program="python -m experiments.basin",
    )
    for case in cases.values():
        for seed in args.seeds:
            folder.sources.bind(sources_of_update(case, seed))
            if args.weights == "warm":
                folder.sources.bind(drawn(args.data, None, seed))
    folder.work_again()
    cells: list[dict[str, Any]] = []
    with Progress() as progress:
        for row, case in cases.items():
            per_seed = []
            for done, seed in enumerate(args.seeds):
                progress.update(row, done, len(args.seeds))
                variables = None
                if args.weights == "warm":
                    variables, _ = trained(case, args.warm, seed, folder.path / "weights")
                with folder.phase(row):
                    per_seed.append(distances(case, args.sharpness, args.batches, seed, variables, args.compare))
            cells.append(summary(row, args.sharpness, np.concatenate(per_seed)))
            folder.log(**cells[-1])
            show(cells[-1], args.sharpness)
            draw(folder.figure(f"{row}.png"), cells[-1], args.sharpness)
    metrics = {f"reach_{level}_db/{cell['id']}": cell["reach"][f"{level} dB"] for cell in cells for level in NOISE}
    captions = {"*": "How much closer the gradient of a noisy image is than another image's, by the noise's PSNR."}
    write_rows(folder, "How far a gradient leads", args, cells, seeds=args.seeds, captions=captions)
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    return cells


def distances(
    case: Case,
    sharpness: tuple[float, ...],
    batches: int,
    seed: int,
    variables: PyTree | None = None,
    compare: str = "gradients",
) -> np.ndarray:
    """Distances (batches, len(sharpness), len(CANDIDATES)) from the exact gradient of the truth.

    Args:
        case: model, data, batch size and mode of the batch normalisation.
        sharpness: how sharp the kinks of the compared copy are; None leaves them exact.
        batches: how many batches take their turn as the truth.
        seed: seed of data, weights and noise.
        variables: the model's parameters and statistics; None draws them.
        compare: "gradients", by their cosine, in [0, 2]; or "row_spaces", in [0, 1].
    """
    import jax
    import jax.numpy as jnp

    side = victim(case, seed)
    gradient = _gradient(side.share)
    distance = _distance(side.model, side.share, compare, case.batch_size)
    if variables is None:
        variables = jax.jit(side.model.init)(jax.random.key(seed))
    size = case.batch_size
    found = np.empty((batches, len(sharpness), len(CANDIDATES)))
    for number in range(batches):
        x, y = (side.private[i][number * size : (number + 1) * size] for i in (0, 1))
        others = side.private.x[-(number + 1) * size :][:size]
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed), number), x.shape)
        # Grey alone has no spread, which some networks divide by.
        grey = jnp.full_like(x, 0.5) + 0.01 * noise
        candidates = (x, *(x + 10 ** (-level / 20) * noise for level in NOISE), grey, others)
        observed = gradient(variables, x, y, None)
        for i, beta in enumerate(sharpness):
            for j, candidate in enumerate(candidates):
                found[number, i, j] = distance(variables, observed, candidate, y, jnp.float32(beta))
    return found


@functools.cache
def _gradient(share: "protocols.ClientShare") -> Any:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def gradient(variables: PyTree, x: jax.Array, y: jax.Array, sharpness: jax.Array | None) -> PyTree:
        return share(variables, Batch(x, y, jnp.arange(len(y))), sharpness=sharpness)

    return gradient


@functools.cache
def _distance(model: "models.Classifier", share: "protocols.ClientShare", compare: str, batch_size: int) -> Any:
    import jax

    from jaxleak import objectives
    from jaxleak.attacks import client_updates
    from jaxleak.attacks._inversion.row_space import distance_of_rows, informative_layers

    if compare == "row_spaces":
        plan = client_updates.RowSpaces()
        of_rows = distance_of_rows(model, plan, informative_layers(model, plan, batch_size), share.batch_norm)

    @jax.jit
    def distance(variables: PyTree, observed: PyTree, x: jax.Array, y: jax.Array, sharpness: jax.Array) -> jax.Array:
        if compare == "row_spaces":
            return of_rows(variables, observed, x[:, 0], sharpness)
        return objectives.cosine(observed, _gradient(share)(variables, x, y, sharpness))

    return distance


def summary(row: str, sharpness: tuple[float, ...], found: np.ndarray) -> dict[str, Any]:
    """Means over all batches, and the reach: by what share images are closer than other images, at the best sharpness.

    One: the gradient is the observed one. Zero: it is as far from that as another image's.

    Args:
        row: name.
        sharpness: as many as the second axis has.
        found: (batches, len(sharpness), len(CANDIDATES)), see `distances`.
    """
    mean = found.mean(axis=0)
    share = found / mean[:, [CANDIDATES.index("other")]]  # as a share of the mean distance of other images
    others = share[:, :, CANDIDATES.index("other")]
    closer = others[:, :, None] - share
    reach, error, best = {}, {}, {}
    for j, name in enumerate(CANDIDATES[: 1 + len(NOISE)]):
        at = int(np.argmax(closer[:, :, j].mean(axis=0)))
        reach[name], best[name] = float(closer[:, at, j].mean()), sharpness[at]
        # The error of a ratio of means: batches do not count as spread because their other images are far.
        residual = closer[:, at, j] - reach[name] * others[:, at]
        error[name] = float(residual.std() / np.sqrt(len(found)))
    return {
        "id": row,
        "ours": reach["30 dB"],
        "unit": "share of the distance",
        "batches": len(found),
        "reach": reach,
        "standard_error": error,
        "at_sharpness": best,
        "distance": {name: mean[:, j].tolist() for j, name in enumerate(CANDIDATES)},
    }


def show(cell: dict[str, Any], sharpness: tuple[float, ...]) -> None:
    """Print a row's distances, and their reach below."""
    table = Table("sharpness", *CANDIDATES, title=f"{cell['id']}: distance from the observed gradient")
    for i, beta in enumerate(sharpness):
        table.add_row(f"{beta:g}", *(f"{cell['distance'][name][i]:.3f}" for name in CANDIDATES))
    table.add_section()
    table.add_row(
        "reach", *(f"{reach:.3f} +- {cell['standard_error'][name]:.3f}" for name, reach in cell["reach"].items())
    )
    Console().print(table)


def draw(path: Path, cell: dict[str, Any], sharpness: tuple[float, ...]) -> None:
    """One curve per candidate over the sharpness."""
    x = np.array(sharpness, float)
    series = {name: (x, np.array(cell["distance"][name])) for name in CANDIDATES}
    ylabel = "distance from the observed gradient"
    plots.curves(path, series, title=f"{cell['id']}: candidates", xlabel="sharpness", ylabel=ylabel, log_x=True)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
