"""Invert one client's gradient: any attack on any model and data.

    python -m experiments.invert
    python -m experiments.invert --attack inverting_gradients --model resnet10 --width 16 --batch-size 4 --seeds 0 1 2
    python -m experiments.invert --data cifar10 --model resnet10 --iterations 3500 --out runs/resnet
    python -m experiments.invert --data cifar10 --attack dlg --model lenet --iterations 1200 --seeds 10 11 12 13
    python -m experiments.invert --data cifar10 --model resnet10 --width 16 --activation sigmoid --batch-size 4 \\
        --labels calibrated --iterations 1500 --generator --tv 0.001 --seeds 3 4 5
    python -m experiments.invert --data cifar10 --attack patch_embedding --model vit_tiny --seeds 0 1 2 3
    python -m experiments.invert --data cifar10 --pool 512 --attack row_space --model resnet34 --iterations 4250 \\
        --seeds 4 5 6
    python -m experiments.invert --data cifar10 --pool 512 --attack row_space --model resnet34 --batch-size 4 --far \\
        --iterations 20380 --seeds 0
    python -m experiments.invert --attack rog --data digits --batch-size 4
    python -m experiments.invert --attack ggl --data mnist --public-data synthetic --iterations 300
    python -m experiments.invert --attack dlg --model lenet --restarts 32 --devices 2
    python -m experiments.invert --batch-size 4 --save-payload update.npz --save-weights model.safetensors
    python -m experiments.invert --payload update.npz --weights model.safetensors --model convnet --batch-size 4

The first line takes about 20 seconds on two cores and should print a PSNR above 30 dB. The third takes three minutes an
image; its PSNR depends on how bright the image is, up to one factor it is above 40 dB. The fourth takes five seconds an
image and should print 38 to 49 dB, or 24 after the 300 iterations of DLG's paper. The fifth takes three minutes a seed:
25 to 26 dB, and 28 to 30 without the generator.

A payload captured from another framework is an npz file with one float array per parameter, named by its path
(`conv_0/kernel`), in jaxleak's layout (HWIO convolutions, (in, out) dense kernels), with the weights as safetensors.
There is then no truth, and only the attacker's own measures are printed. The last two lines make such a pair of files
from a simulated client, and attack it. Runs resume; `--fresh` starts over.

With `--restarts 2` or more, the two best of the independent starts are compared, and the SSIM between their images is
reported as `agreement`, the mean and of each image: evidence that an image is right which needs no truth
(docs/agreement.md says from which value on).
`gradient_matched` is no such evidence.

The sixth takes a few seconds an image, nearly all of them to compile the client, and should print 87 dB: that
attack on vision transformers has a closed form. The seventh, for deep networks, takes two to four minutes an image
and should print an SSIM of .76, the mean of .34, 1.00 and .93; its PSNR depends on tints. The eighth, four images
behind one gradient, takes half an hour or more on one core and should print .86. The attacks ggl and rog are granted
public images beyond the update, `--public-data`, and train a generator on them.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments._inversion.attacker import ATTACKS, build_attack, check, iterations_of, leaves_read, threat_for
from experiments._inversion.case import HELD_OUT, SYNTHETIC, Case
from experiments._inversion.client import build_model, victim
from experiments._inversion.problem import Outcome, attack, captions, observe, own_opinion, where_seen
from experiments._inversion.public_data import generator_for, public_images
from experiments._inversion.size import require_memory
from experiments._inversion.sources import sources_of
from jaxleak import _validate, attacks, audit, capture, defenses, metrics, models, objectives, protocols
from jaxleak._base import Batch, Observation, PyTree
from jaxleak._tree import below, named_leaves
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import Progress, RunFolder, default_out, distributed, plots, print_metrics, run_command, sheets
from jaxleak.study.files import jsonable, naming, write_npz
from jaxleak.study.sources import contents

HELP = f"""{__doc__}
What the options may name:
    --attack: {", ".join(ATTACKS)}
    --model: {", ".join(models.CLASSIFIERS)}
    --labels: given, joint, none (row_space only), {", ".join(attacks.LABEL_RULES)}
    --activation: {", ".join(models.ACTIVATIONS)}
    --defense: {", ".join(defenses.CLIENT_DEFENSES)}
"""


@dataclass(frozen=True)
class Args:
    """One case, some seeds."""

    case: tyro.conf.OmitArgPrefixes[Case] = field(default_factory=Case)
    seeds: tuple[int, ...] = (0,)
    payload: Path | None = None
    """A captured update (npz) instead of a simulated client; needs --weights."""
    image_shape: tuple[int, int, int] = (32, 32, 3)
    """Height, width, channels behind a captured payload."""
    num_classes: int = 10
    """Classes of the model behind a captured payload."""
    save_payload: Path | None = None
    """Write the simulated client's update to this npz file, and stop; a name without .npz gets that ending."""
    save_weights: Path | None = None
    """With --save-payload: write the weights that the update was computed at to this safetensors file."""
    devices: int | None = None
    """Devices that share the restarts, or the images of a single trial; on CPU that many are made."""
    out: Path | None = None
    fresh: bool = False


def main(args: Args) -> dict[str, float]:
    """Attack; returns the metrics."""
    case = args.case
    mesh = distributed.join_devices(distributed.Devices(devices=args.devices))
    devices = () if mesh is None else tuple(mesh.devices.flat)
    _check(args)
    if args.payload is None:
        require_memory(case)
    else:
        require_memory(case, args.image_shape, args.num_classes)
    out = args.out or default_out("invert", f"{case.attack}-{case.model}-b{case.batch_size}")
    folder = RunFolder(out, "invert", jsonable(asdict(case)) | {"seeds": args.seeds}, fresh=args.fresh)
    if args.save_payload is not None:
        side = victim(case, args.seeds[0])
        folder.sources.bind(sources_of(case, args.seeds[0]))
        with folder.phase("client"):
            observation, _ = observe(case, args.seeds[0], side)
        written = save_payload(args.save_payload, observation.payload)
        print(f"payload written to {written}")
        if args.save_weights is not None:
            with naming(args.save_weights):
                models.save_weights(args.save_weights, observation.params)
            print(f"weights written to {args.save_weights}")
        return {}
    if args.payload is not None:
        return captured(args, folder, devices)
    identity = jsonable(asdict(case))
    saved = {
        seed: Checkpoints(folder.checkpoints / str(seed), identity | {"seed": seed}, fresh=args.fresh)
        for seed in args.seeds
    }
    model = _attackable(case, args.seeds[0])
    for seed in args.seeds:
        folder.sources.bind(sources_of(case, seed))
    print(f"the attacker is granted: {granted(case, model)}")
    outcomes = []
    folder.log_again()
    with Progress() as progress:
        for seed in args.seeds:

            def show(done: int, run: Any, infos: dict[str, np.ndarray], seed: int = seed) -> None:
                distance = float(np.min(infos["distance"][-1]))
                progress.update(f"seed {seed}", done, iterations_of(case), f"gradient distance {distance:.3g}")

            with folder.phase("attack"):
                outcomes.append(attack(case, seed, callbacks=(show,), checkpoints=saved[seed], devices=devices))
            folder.log(seed=seed, **outcomes[-1].scores)
    metrics = summary(outcomes)
    draw(folder, args.seeds, outcomes)
    cells = [
        {"seed": seed, **o.scores} | ({} if o.second is None else {"agreement_of_each": o.second.value})
        for seed, o in zip(args.seeds, outcomes, strict=True)
    ]
    folder.finish(metrics, cells=cells)
    print_metrics(metrics)
    print(folder.contents())
    return metrics


def _check(args: Args) -> None:
    """Raise `ValueError` on options out of range, by their names, before any data are loaded."""
    _validate.seeds(seeds=args.seeds)
    _validate.count(num_classes=args.num_classes, **{f"image_shape[{i}]": n for i, n in enumerate(args.image_shape)})
    if args.save_weights is not None and args.save_payload is None:
        raise ValueError("--save-weights goes with --save-payload")
    for option, path in (("save-payload", args.save_payload), ("save-weights", args.save_weights)):
        if path is not None and path.is_dir():
            raise ValueError(f"--{option} must name a file, and {path} is a folder")
    check(args.case)


def _attackable(case: Case, seed: int) -> models.Classifier:
    """The model; `ValueError` or `OSError` where the data, the model or the attack's settings do not go together."""
    side = victim(case, seed)
    build_attack(case, side.model, side.share)
    if case.attack in presets.GENERATIVE:
        public_images(case, seed, tuple(side.model.image_shape))
    return side.model


def summary(outcomes: list[Outcome]) -> dict[str, float]:
    """Mean and spread over the seeds of every score."""
    names = outcomes[0].scores
    means = {name: float(np.mean([o.scores[name] for o in outcomes])) for name in names}
    return means | {"psnr_spread": float(np.std([o.scores["psnr"] for o in outcomes])), "seeds": len(outcomes)}


def granted(case: Case, model: models.Classifier) -> str:
    """The threat in words."""
    read = leaves_read(case, model)
    update = "one update" if read is None else f"{', '.join(read)} of one update"
    threat = threat_for(case)
    extra = [name for name in ("labels", "statistics", "running_statistics") if getattr(threat, name)]
    if case.attack in presets.GENERATIVE and case.public_data != SYNTHETIC:
        source = f"{case.data}, held out" if case.public_data == HELD_OUT else case.public_data
        extra.append(f"public images ({source})")
    return ", ".join(["the model", update, "the batch size", *extra])


def draw(folder: RunFolder, seeds: Sequence[int], outcomes: list[Outcome]) -> None:
    """Contact sheet and curves."""
    truth = np.concatenate([o.truth for o in outcomes])
    estimate = np.concatenate([o.estimate for o in outcomes])
    seconds = [o.second.other for o in outcomes if o.second is not None]
    second = np.concatenate(seconds) if seconds else None
    path = folder.figure("contact_sheet.png")
    texts = [
        f"{psnr:.1f} dB\n{own}" for psnr, own in zip(metrics.psnr(truth, estimate), captions(outcomes), strict=True)
    ]
    title = f"seeds {', '.join(map(str, seeds))}; PSNR, and what the attack says of itself"
    sheets.contact_sheet(path, truth, estimate, second=second, captions=texts, title=title, columns=8, zoom=4)
    series = {
        f"seed {seed}": (np.arange(len(o.curve)), o.curve)
        for seed, o in zip(seeds, outcomes, strict=True)
        if len(o.curve)
    }
    if series:
        plots.curves(folder.figure("distance.png"), series, xlabel="iteration", ylabel="gradient distance", log_y=True)


def captured(args: Args, folder: RunFolder, devices: Sequence[jax.Device] = ()) -> dict[str, float]:
    """Attack a payload from elsewhere; nothing is known of the truth."""
    case, seed = args.case, args.seeds[0]
    if case.weights is None:
        raise ValueError("--payload needs the model's weights: --weights FILE.safetensors")
    if case.defense is not None:
        raise ValueError("--payload is attacked as it is; --defense is for simulated clients")
    if len(args.seeds) > 1:
        raise ValueError(f"--payload is attacked from one start: --seeds takes one number, got {len(args.seeds)}")
    model = build_model(case, args.image_shape, args.num_classes)
    variables = models.load_weights(case.weights, jax.eval_shape(model.init, jax.random.key(0)))
    read = leaves_read(case, model)
    payload = load_payload(args.payload, variables["params"], read)
    attacks.check_payload(payload, variables, read)
    share = protocols.ClientShare(
        model, local_steps=case.local_steps, learning_rate=case.learning_rate, clients=case.clients,
        batch_norm=case.batch_norm,  # type: ignore[arg-type]
    )  # fmt: skip
    generator = generator_for(case, seed, args.image_shape, captured=True)
    engine = build_attack(case, model, protocols.averaged_share(share) if case.estimate else share, generator)
    saved = Checkpoints(folder.checkpoints / "payload", jsonable(asdict(case)) | {"seed": seed}, fresh=args.fresh)
    assert args.payload is not None
    # Without its path: a folder holds the results of one payload.
    folder.sources.bind({**contents("the payload", args.payload), **contents("the weights", case.weights)})
    if generator is not None:
        folder.sources.bind({"the public images": lambda: public_images(case, seed, args.image_shape, captured=True)})
    print(f"the attacker is granted: {granted(case, model)}")
    template = Batch(jnp.zeros((case.images, 1, *args.image_shape)), jnp.zeros(case.images, jnp.int32), jnp.zeros(1))
    with folder.phase("attack"):
        observation = Observation(jnp.zeros((), jnp.int32), variables, payload)
        found, run, _ = audit.invert(
            engine,
            observation,
            audit.template_of(template),
            key=jax.random.key(seed),
            iterations=iterations_of(case),
            restarts=case.restarts,
            microbatch=case.microbatch,
            checkpoints=saved,
            devices=devices,
        )
    x = np.asarray(found.x[:, 0])
    write_npz(folder.path / "reconstruction.npz", {"x": x, "y": np.asarray(found.y)})
    rows = {f"reconstruction, from image {first}": x[first : first + 8] for first in range(0, len(x), 8)}
    metrics = {"score": float(found.score[0]), **own_opinion(found)}
    cells: list[dict[str, Any]] = []
    if case.restarts > 1:
        second = audit.agreement(audit.all_starts(engine, run, observation, restarts=case.restarts))
        metrics["agreement"] = float(np.mean(second.value))
        cells = [{"image": i, "agreement": value} for i, value in enumerate(second.value)]
        for first in range(0, len(x), 8):
            rows[f"second best start, from image {first}"] = second.other[first : first + 8]
    if case.labels != "none":
        simulated = jax.jit(share)(variables, Batch(found.x, found.y, jnp.arange(case.images)))
        metrics["cosine_distance"] = float(objectives.cosine(payload, where_seen(payload, simulated)))
    sheets.comparison_sheet(folder.figure("contact_sheet.png"), rows)
    folder.finish(metrics, cells=cells)
    print_metrics(metrics)
    return metrics


def save_payload(path: Path, payload: PyTree) -> Path:
    """One array per parameter, named by its path; returns the file's name, to which `.npz` is added if it lacks it."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    write_npz(path, {name: np.asarray(leaf) for name, leaf in named_leaves(payload).items()})
    return path


def load_payload(path: Path | None, params: PyTree, read: Sequence[str] | None = None) -> PyTree:
    """The arrays of an npz file as a tree like `params`; nothing is unpickled, and no more is read than `params` need.

    Args:
        path: of the file.
        params: of the model.
        read: what the attack reads, as in `attacks.check_payload`; other arrays may be missing and are None then.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file and what is wrong with it.
    """
    if path is None or not path.is_file():
        raise FileNotFoundError(f"--payload {path} does not exist or is not a file")
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            if missing := sorted(set(below(shapes, read)) - names):
                raise ValueError(f"it lacks {', '.join(missing[:3])} ({len(missing)} arrays in all)")
            if extra := sorted(names - shapes.keys()):
                raise ValueError(f"it has arrays that the model does not know: {', '.join(map(repr, extra[:3]))}")
            arrays = [
                jnp.asarray(capture.read_npz_array(archive, name, shape)) if name in names else None
                for name, shape in shapes.items()
            ]
    except Exception as error:  # zipfile, zlib and NumPy raise many types for a damaged file
        raise ValueError(f"--payload {path} is no npz file of this model's gradients: {error}") from error
    return jax.tree.unflatten(jax.tree.structure(params), arrays)


if __name__ == "__main__":
    run_command(main, Args, HELP)
