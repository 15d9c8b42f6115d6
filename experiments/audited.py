"""Networks that others wrote, each through `jaxleak audit` on files.

    python -m experiments.audited
    python -m experiments.audited --only cnn-b1 vit-trained-b4 --minutes 5

A client owns a network of `examples/networks` in PyTorch, Flax NNX or Equinox and takes the gradient of its own images
with its own framework. Weights, update and truth are written to files, and `jaxleak audit` is called on them as a user
would; the truth is for the scores alone. Names of cases say the network, whether it is trained (on images that no
client has), the mode of batch normalisation, the local steps, and the batch size of each. Finished cases are not run
again; those of another seed, budget or data set are other cases. Needs PyTorch and Equinox. All cases take more than an
hour.
"""

import importlib.util
import itertools
import math
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from experiments._by_path import ROOT, module_at
from jaxleak import _validate, capture, data
from jaxleak.__main__ import main as jaxleak
from jaxleak.study import RunFolder, default_out, digest, run_command
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.files import read_json
from jaxleak.study.reports import markdown_table
from jaxleak.study.sources import drawn

_NETWORKS = "examples/networks"
#: Subfolder of a run folder for the files of its cases.
_CELLS = "cells"
_TRAINING, _EPOCHS, _TRAINING_BATCH = 2000, 3, 50
#: Learning rate of clients that take several steps.
_RATE = 0.01
_SCORES = (
    "psnr", "ssim", "label_accuracy", "label_count", "gradient_misfit", "agreement", "undetermined", "remainder",
    "below_head",
)  # fmt: skip


class Case(NamedTuple):
    """A client: network, batch, and how it trains."""

    network: str  # name of a class in torch_networks, or of a factory in jax_networks
    batch_size: int = 1
    trained: bool = False
    batch_norm: str = "train"
    local_steps: int = 1  # steps of plain SGD, each on another batch

    @property
    def images(self) -> int:
        """Number of images behind the update."""
        return self.batch_size * self.local_steps

    @property
    def in_torch(self) -> bool:
        """Whether the client computes in PyTorch, where names of networks begin with a capital letter."""
        return self.network[0].isupper()


#: Name of a case to its network and mode of batch normalisation; {} is empty, or "-trained" for a trained network.
_OWNED = {
    "cnn{}": ("Cnn", "train"), "cnn-nnx": ("nnx_cnn", "train"), "cnn-equinox": ("equinox_cnn", "train"),
    "two-pools-cnn{}": ("TwoPoolsCnn", "train"), "convnet{}": ("ConvNet", "train"),
    "norm-cnn{}-eval": ("NormCnn", "eval"), "norm-cnn{}-train": ("NormCnn", "train"),
    "resnet18{}": ("ResNet18", "train"), "vit{}": ("Vit", "train"),
}  # fmt: skip
_SIZES = (1, 4)
CASES = {
    f"{name.format('-trained' if trained else '')}-b{size}": Case(network, size, trained, mode)
    for name, (network, mode) in _OWNED.items()
    for trained in ((False, True) if "{}" in name else (False,))
    for size in _SIZES
} | {
    f"cnn{'-trained' if trained else ''}-steps{steps}-b{size}": Case("Cnn", size, trained, local_steps=steps)
    for steps, size in ((4, 1), (8, 4))
    for trained in (False, True)
}


@dataclass(frozen=True)
class Args:
    """Which cases, and for how long."""

    only: tuple[str, ...] = ()
    """Names of cases; by default all of a single gradient."""
    data: str = "cifar10"
    """Images of 32x32x3 of the clients, and for training."""
    seed: int = 0
    """Seed of weights, of the clients' images, and of the attacks."""
    minutes: float = 2.0
    """Budget of each audit."""
    out: Path | None = None
    """Folder of the run."""
    fresh: bool = False
    """Start over."""


def main(args: Args) -> dict[str, Any]:
    """Run the cases.

    Returns:
        The metrics: `by_case`, and the `differences` between frameworks where both cases are there.

    Raises:
        ValueError: on options out of range.
        ImportError: naming the packages, if a case that has to run needs one that is missing; nothing is written.
        ConfigMismatchError: if finished cases come from other contents of the data.
    """
    _validate.positive(minutes=args.minutes)
    _validate.seeds(seed=args.seed)
    for name in args.only:
        _validate.one_of(tuple(CASES), only=name)
    out = args.out or default_out("audited", args.data)
    chosen = args.only or [name for name, case in CASES.items() if case.local_steps == 1]
    own = {name: folder_of(out, name, args) for name in chosen}
    _require_frameworks([CASES[name] for name, path in own.items() if args.fresh or not _is_finished(path)])
    folder = RunFolder(out, "audited", asdict(args), fresh=args.fresh, program="python -m experiments.audited")
    folder.sources.bind(drawn(args.data, None, args.seed))
    if args.fresh:
        folder.begin()
        shutil.rmtree(folder.path / _CELLS, ignore_errors=True)
    images = data.load(args.data, seed=args.seed)
    rows: dict[str, dict[str, Any]] = {}
    for name, path in own.items():
        if not _is_finished(path):
            with folder.phase(name):
                path.mkdir(parents=True, exist_ok=True)
                _audit(CASES[name], images, args, path)
        rows[name] = _row(CASES[name], read_json(path / "audit" / "results.json", dict))
    differences = _differences({name: folder_of(out, name, args) for name in CASES})
    print(table(rows))
    print("".join(f"largest difference of {what}: {value:.2g}\n" for what, value in differences.items()), end="")
    metrics: dict[str, Any] = {"by_case": rows, "differences": differences}
    cells = [{"case": name} | row for name, row in rows.items()]
    write_rows(folder, "Networks of others through jaxleak audit", args, cells, seeds=(args.seed,))
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    return metrics


def folder_of(out: Path, name: str, args: Args) -> Path:
    """Folder of a case's files, named by all settings that its results depend on; the data's contents do not count."""
    # Cases of one step leave `local_steps` out, so that their folders keep the names from before this field existed.
    case = {field: value for field, value in CASES[name]._asdict().items() if (field, value) != ("local_steps", 1)}
    depends = {"case": case, "seed": args.seed, "minutes": args.minutes, "data": args.data}
    return out / _CELLS / f"{name}-{digest(depends)}"


def _is_finished(own: Path) -> bool:
    return (own / "audit" / "results.json").exists()


def _require_frameworks(cases: list[Case]) -> None:
    """Raise `ImportError` if a package is missing that a client of these cases computes with."""
    # The clients in Flax and Equinox take their weights from the network in PyTorch.
    needed = {"torch": bool(cases), "equinox": not all(case.in_torch for case in cases)}
    missing = [name for name, needs in needed.items() if needs and importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"these clients need {' and '.join(missing)}: pip install {' '.join(missing)}")


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The results by case as a table in Markdown."""
    shown = [
        [
            name, row["verdict"], f"{row.get('psnr', math.nan):.1f}", f"{row.get('ssim', math.nan):.2f}", row["best"],
            f"{row['seconds']:.0f}",
        ]
        for name, row in rows.items()
    ]  # fmt: skip
    return "\n".join(markdown_table(("case", "verdict", "PSNR (dB)", "SSIM", "by", "seconds"), shown))


def _row(case: Case, results: dict[str, Any]) -> dict[str, Any]:
    """The results of one audit; "best" is the attack whose images the report shows."""
    attacks = results["attacks"]
    shown = [a["attack"] for a in attacks if a["misfit"] == results["metrics"].get("gradient_misfit")]
    scores = {name: results["metrics"][name] for name in _SCORES if name in results["metrics"]}
    return {
        **case._asdict(), "verdict": results["metrics"]["verdict"], "best": shown[0] if shown else "none", **scores,
        "seconds": sum(a["seconds"] for a in attacks), "reasons": results["reasons"],
        "command": _without_folders(results["provenance"]["command"]),
    }  # fmt: skip


def _without_folders(command: str) -> str:
    """The command without the folders in front of file names, since these belong to the machine on which it ran."""
    return re.sub(r"(?<=\s)/\S*/", "", command)


def _audit(case: Case, images: data.Dataset, args: Args, own: Path) -> None:
    """Compute a client's update in its own framework, write the files, and call the command on them."""
    x, y = np.asarray(images.x[: case.images], np.float32), np.asarray(images.y[: case.images])
    np.savez(own / "truth.npz", x=x, y=y)
    weights = own / ("weights.pt" if case.in_torch else "weights.safetensors")
    (_torch_client if case.in_torch else _jax_client)(case, images, args, (x, y), weights)
    module = "torch_networks" if case.in_torch else "jax_networks"
    command = [
        "audit", "--model", f"{ROOT / _NETWORKS / module}.py:{case.network}", "--weights", str(weights),
        "--update", str(own / "update.safetensors"), "--batch-size", str(case.batch_size),
        "--batch-norm", case.batch_norm, "--truth", str(own / "truth.npz"),
        "--minutes", f"{args.minutes:g}", "--seed", str(args.seed), "--out", str(own / "audit"),
    ]  # fmt: skip
    # The report shows the command that a user would have typed.
    before, sys.argv = sys.argv, ["jaxleak", *command]
    try:
        status = jaxleak(command)
    finally:
        sys.argv = before
    if status not in (0, 3):
        raise RuntimeError(f"the audit {own} ended with exit status {status}")


def _torch_client(
    case: Case, images: data.Dataset, args: Args, batch: tuple[np.ndarray, np.ndarray], weights: Path
) -> None:
    import torch

    torch_networks = module_at(f"{_NETWORKS}/torch_networks.py")
    torch.manual_seed(args.seed)
    net = getattr(torch_networks, case.network)()
    if case.trained:
        _train(net, images, args.seed, behind=max(case.images, *_SIZES))
    x, y = torch.tensor(batch[0]).permute(0, 3, 1, 2), torch.tensor(batch[1]).long()
    net.train(case.batch_norm == "train")
    # Save the weights first: a step in training mode moves the running statistics, and the server knows the old ones.
    torch.save(net.state_dict(), weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=_RATE)
    for rows in torch.arange(case.images).split(case.batch_size):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        if case.local_steps > 1:
            optimizer.step()
    steps = {"kind": "weights", "local_steps": case.local_steps, "learning_rate": _RATE} if case.local_steps > 1 else {}
    facts: Any = {"batch_size": case.batch_size, "batch_norm": case.batch_norm, **steps}
    capture.save(weights.with_name("update.safetensors"), net, **facts)


def _train(net: Any, images: data.Dataset, seed: int, *, behind: int) -> None:
    """Train by Adam on images that follow the client's in the data set, from position `behind` on."""
    import torch

    x = torch.tensor(np.asarray(images.x[behind : behind + _TRAINING], np.float32)).permute(0, 3, 1, 2)
    y = torch.tensor(np.asarray(images.y[behind : behind + _TRAINING])).long()
    optimizer, generator = torch.optim.Adam(net.parameters()), torch.Generator().manual_seed(seed)
    net.train()
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(_TRAINING_BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def _jax_client(
    case: Case, images: data.Dataset, args: Args, batch: tuple[np.ndarray, np.ndarray], weights: Path
) -> None:
    """Write the PyTorch network's weights, and the gradient that the other framework computes with them."""
    import torch

    torch_networks, jax_networks = (module_at(f"{_NETWORKS}/{name}_networks.py") for name in ("torch", "jax"))
    torch.manual_seed(args.seed)
    state = {name: tensor.numpy() for name, tensor in torch_networks.Cnn().state_dict().items()}
    library = case.network.removesuffix("_cnn")
    converted = getattr(jax_networks, f"in_{library}")(state)
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in converted.items()}, weights)
    gradient = getattr(jax_networks, f"{library}_gradient")(converted, *batch)
    capture.save(weights.with_name("update.safetensors"), gradient, batch_size=case.batch_size)


def _differences(own: Mapping[str, Path]) -> dict[str, float]:
    """Largest differences of update (relative) and images between Flax NNX or Equinox and PyTorch.

    Args:
        own: every case's folder, finished or not; a difference needs the case to be finished in both frameworks.
    """
    found = dict[str, float]()
    for library, size in itertools.product(("nnx", "equinox"), _SIZES):
        first, other = own[f"cnn-b{size}"], own[f"cnn-{library}-b{size}"]
        if not all((path / "audit" / "reconstruction.npz").exists() for path in (first, other)):
            continue
        jax_networks = module_at(f"{_NETWORKS}/jax_networks.py")
        by_torch = getattr(jax_networks, f"in_{library}")(capture.load(first / "update.safetensors").arrays)
        arrays = capture.load(other / "update.safetensors").arrays
        largest = max(float(np.abs(array).max()) for array in by_torch.values())
        of_batch = f"{library}_b{size}" if size > 1 else library
        found[f"{of_batch}_update"] = max(float(np.abs(by_torch[n] - arrays[n]).max()) for n in by_torch) / largest
        images = [np.load(path / "audit" / "reconstruction.npz")["x"] for path in (first, other)]
        # Images of one class may stand in another order, since an update does not depend on it.
        orders = itertools.permutations(range(size))
        found[f"{of_batch}_image"] = min(float(np.abs(images[0] - images[1][list(o)]).max()) for o in orders)
    return found


if __name__ == "__main__":
    run_command(main, Args, __doc__)
