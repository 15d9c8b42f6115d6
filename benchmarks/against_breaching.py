"""`jaxleak audit` beside Inverting Gradients of the library breaching, on the same files and for as long.

    # clients, their updates, and the audits: an hour on two quiet cores
    python -m experiments.audited
    # breaching on the same updates, for as long again
    python -m benchmarks.against_breaching

breaching (`pip install breaching`, by Jonas Geiping and others) is a PyTorch library of attacks. Its configuration
"invertinggradients" is used with one trial, as in its README, and infers the labels by its own rule. It searches in
pixels that are normalised by the mean and the deviation of CIFAR-10, as its own cases do, although the networks read
pixels in [0, 1]. At first the seconds of an iteration of Inverting Gradients are measured in both libraries, case by
case, while nothing else runs, and after checking that both put the same distance between the update and that of one
random image. breaching then has as many iterations as fit into the time that the audit took, at least the audit's
minutes, and 24,000 at the most as in its configuration, whose schedule of the step size depends on that number. They
may take longer beside other work. An audit tries several attacks and chooses among their answers without the truth.
Both sides infer the labels, and are scored by the same function. Only the cases of `experiments.audited` whose client
computes one gradient in PyTorch are run. Finished cases are not run again.
"""

import contextlib
import io
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._by_path import module_at
from experiments.audited import CASES, Case, folder_of
from experiments.audited import Args as Audited
from jaxleak import _validate, attacks, audit, capture, metrics, models, objectives, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import presets
from jaxleak.study import RunFolder, default_out, run_command
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.files import read_json, write_json

#: The most iterations, as in breaching's configuration; iterations of two trials with a difference that gives the pace;
#: and how often they are repeated.
_MOST, _SHORT, _LONG, _REPEATS = 24_000, 10, 90, 3
#: Mean and standard deviation of CIFAR-10 by which breaching normalises its pixels.
_MEAN, _DEVIATION = (0.4915, 0.4823, 0.4468), (0.2470, 0.2435, 0.2616)
_SCORES = ("psnr", "ssim", "label_accuracy")
#: How far the two libraries' distances for one image may differ; distances go up to 2.
_SAME = 1e-3


@dataclass(frozen=True)
class Args:
    """Which audits to stand beside."""

    audits: Path = Path("runs/audited/cifar10")
    """Run folder of `experiments.audited`; its budget and seed count here, too."""
    only: tuple[str, ...] = ()
    """Names of cases; by default all whose client computes in PyTorch."""
    out: Path | None = None
    """Folder of the run."""
    fresh: bool = False
    """Start over."""


def main(args: Args) -> dict[str, Any]:
    """Run breaching on the files of the cases, and report its scores beside those of the audits.

    Returns:
        The metrics: `by_case`, and what they come to.

    Raises:
        ValueError: if a name is not a case, or if `audits` is not a run folder of `experiments.audited` or lacks a
            case.
        ImportError: if breaching is missing.
    """
    names = [name for name, case in CASES.items() if case.in_torch and case.local_steps == 1]
    for name in args.only:
        _validate.one_of(names, only=name)
    audits = _audits_of(args.audits)
    own = {name: folder_of(args.audits, name, audits) for name in args.only or names}
    if missing := [name for name, path in own.items() if not (path / "audit" / "results.json").exists()]:
        raise ValueError(f"audits must hold every case, and {args.audits} lacks {', '.join(missing[:3])}")
    folder = RunFolder(
        args.out or default_out("against_breaching", "cifar10"), "against_breaching", asdict(args), fresh=args.fresh,
        program="python -m benchmarks.against_breaching",
    )  # fmt: skip
    rows: dict[str, dict[str, Any]] = {name: {} for name in own}
    for what, found_by in (("pace", _pace), ("scores", _scores)):
        for name, row in rows.items():
            path = folder.path / f"{own[name].name}-{what}.json"
            if args.fresh or not path.exists():
                with folder.phase(f"{name}, {what}"):
                    found = found_by(_Client(CASES[name], own[name], audits.seed), audits, row)
                    write_json(path, found)
            row |= read_json(path, dict)
            print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    cells = [{"case": name} | row for name, row in rows.items()]
    write_rows(folder, "jaxleak beside breaching", args, cells, seeds=(audits.seed,))
    metrics = {"by_case": rows, **_summary(list(rows.values()))}
    folder.finish(metrics, cells=cells)
    return metrics


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ratios of breaching's to jaxleak's seconds per iteration, and in how many cases an audit has the higher score."""
    times = [row["breaching_seconds_per_iteration"] / row["jaxleak_seconds_per_iteration"] for row in rows]
    ahead = {score: sum(row[f"jaxleak_{score}"] > row[f"breaching_{score}"] for row in rows) for score in _SCORES[:2]}
    return {
        "cases": len(rows),
        "times_as_long_least": min(times),
        "times_as_long_median": float(np.median(times)),
        "times_as_long_most": max(times),
        **{f"higher_{score}": number for score, number in ahead.items()},
        **{
            f"{name}_{score}": float(np.mean([row[f"{name}_{score}"] for row in rows]))
            for name in ("jaxleak", "breaching")
            for score in _SCORES
        },
    }


def _audits_of(folder: Path) -> Audited:
    if not (folder / "config.json").exists():
        raise ValueError(f"audits must be a run folder of python -m experiments.audited, and {folder} is none")
    options = read_json(folder / "config.json", dict)
    return Audited(data=options["data"], seed=options["seed"], minutes=options["minutes"])


def _pace(client: "_Client", audits: Audited, row: dict[str, Any]) -> dict[str, float]:
    """Seconds of an iteration in both libraries, and how many iterations of breaching fit into an audit."""
    del row
    theirs = client.pace()
    ours, difference = client.jaxleak_pace()
    if difference > _SAME:
        raise RuntimeError(f"the libraries' distances for one image differ by {difference:.1e}")
    return {
        "breaching_seconds_per_iteration": theirs,
        "jaxleak_seconds_per_iteration": ours,
        "distances_differ_by": difference,
        "iterations": max(1, min(_MOST, math.floor(max(60 * audits.minutes, client.seconds_of_audit) / theirs))),
    }


def _scores(client: "_Client", audits: Audited, row: dict[str, Any]) -> dict[str, float]:
    """Scores of both libraries."""
    audited = read_json(client.files / "audit" / "results.json", dict)["metrics"]
    with np.load(client.files / "truth.npz") as truth:
        x, y = truth["x"], truth["y"]
    images, labels = client.attack(row["iterations"])
    scores, _ = metrics.image_scores(x, images, true_labels=y, labels=labels)
    return {
        **{f"jaxleak_{key}": audited[key] for key in _SCORES},
        **{f"breaching_{key}": scores[key] for key in _SCORES},
        "grey_psnr": scores["psnr_grey"],
    }


class _Client:
    """A client as both libraries see it: its network and its update."""

    def __init__(self, case: Case, files: Path, seed: int) -> None:
        import torch

        self.case, self.files, self.seed = case, files, seed
        self.update = capture.load(files / "update.safetensors").arrays
        network = module_at("examples/networks/torch_networks.py")
        self.net = getattr(network, case.network)()
        self.net.load_state_dict(torch.load(files / "weights.pt", weights_only=True))
        self.net.train(case.batch_norm == "train")

    @property
    def seconds_of_audit(self) -> float:
        """How long the attacks of the audit took."""
        return sum(attack["seconds"] for attack in read_json(self.files / "audit" / "results.json", dict)["attacks"])

    def attacker(self, iterations: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """An attacker of breaching, what the server sent, and what the client did."""
        import breaching
        import torch

        with contextlib.redirect_stdout(io.StringIO()):
            config = breaching.get_attack_config("invertinggradients", [f"optim.max_iterations={iterations}"])
        network = torch.nn.Sequential(_in_pixels(), self.net)
        attacker = breaching.attacks.prepare_attack(network, torch.nn.CrossEntropyLoss(), config)
        # breaching uses the batch's statistics if the server sends none, and evaluation mode otherwise.
        buffers = None if self.case.batch_norm == "train" else list(self.net.buffers())
        metadata = SimpleNamespace(shape=(3, 32, 32), modality="vision", mean=_MEAN, std=_DEVIATION)
        parameters = [parameter.detach() for parameter in self.net.parameters()]
        payload = {"parameters": parameters, "buffers": buffers, "metadata": metadata}
        told = {"num_data_points": self.case.batch_size, "labels": None, "local_hyperparams": None}
        gradients = [torch.tensor(self.update[name]) for name, _ in self.net.named_parameters()]
        return attacker, payload, {"gradients": gradients, "buffers": buffers, "metadata": told}

    def attack(self, iterations: int) -> tuple[np.ndarray, np.ndarray]:
        """Images (B, H, W, channels) and labels (B,) that breaching finds."""
        import torch

        torch.manual_seed(self.seed)
        attacker, payload, shared = self.attacker(iterations)
        # PyTorch's fused attention has no second derivative.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found, _ = attacker.reconstruct([payload], [shared], {})
        return _in_pixels()(found["data"]).permute(0, 2, 3, 1).numpy(), found["labels"].numpy()

    def pace(self) -> float:
        """Seconds of an iteration of breaching, without the time before and after the loop."""
        found = []
        for _ in range(_REPEATS):
            marks = [time.perf_counter()]
            for iterations in (_SHORT, _LONG):
                self.attack(iterations)
                marks.append(time.perf_counter())
            short, long = np.diff(marks)
            found.append((long - short) / (_LONG - _SHORT))
        return float(np.median(found))

    def jaxleak_pace(self) -> tuple[float, float]:
        """Seconds of an iteration of jaxleak's Inverting Gradients, and how far the libraries' distances differ."""
        model, variables = models.from_torch(self.net, image_shape=(32, 32, 3))
        share = protocols.ClientShare(model, batch_norm="train" if self.case.batch_norm == "train" else "eval")
        payload = {name: jnp.asarray(array) for name, array in self.update.items()}
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
        size = self.case.batch_size
        attack = attacks.inversion(model, share, presets.inverting_gradients(), batch_size=size)
        template = Batch(jnp.zeros((size, 1, 32, 32, 3)), jnp.zeros(size, jnp.int32), jnp.zeros(size, jnp.int32))
        marks, chunk = list[float](), _LONG - _SHORT
        audit.invert(
            attack, seen, audit.template_of(template), key=jax.random.key(0), iterations=(1 + _REPEATS) * chunk,
            chunk=chunk, callbacks=(lambda *_: marks.append(time.perf_counter()),),
        )  # fmt: skip
        return float(np.median(np.diff(marks))) / chunk, self._difference(share, seen)

    def _difference(self, share: protocols.ClientShare, seen: Observation) -> float:
        """How far the distances of the two libraries differ for random images with the labels of breaching."""
        import torch

        size = self.case.batch_size
        attacker, sent, shared = self.attacker(1)
        (network,), labels, _ = attacker.prepare_attack([sent], [shared])
        attacker.objective.initialize(attacker.loss_fn, attacker.cfg.impl, None)
        images = torch.rand((size, 3, 32, 32), generator=torch.Generator().manual_seed(0))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            theirs, _ = attacker.objective(network, shared["gradients"], _in_pixels().undo(images), labels)
        x, y = jnp.asarray(images.permute(0, 2, 3, 1).numpy())[:, None], jnp.asarray(labels.numpy(), jnp.int32)
        ours = objectives.cosine(seen.payload, share(seen.params, Batch(x, y, jnp.arange(size))))
        return abs(float(ours) - float(theirs))


def _in_pixels() -> Any:
    """A layer without parameters and buffers that turns pixels normalised by breaching into pixels in [0, 1]."""
    import torch

    mean, deviation = (torch.tensor(values)[:, None, None] for values in (_MEAN, _DEVIATION))

    class InPixels(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * deviation + mean

        def undo(self, x: torch.Tensor) -> torch.Tensor:
            return (x - mean) / deviation

    return InPixels()


if __name__ == "__main__":
    run_command(main, Args, __doc__)
