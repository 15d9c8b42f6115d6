"""Inverting a captured update, for which the true images are unknown."""

import zipfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import attacks, audit, capture, objectives, protocols
from jaxleak._base import Batch, Observation, PyTree
from jaxleak._command.invert import report
from jaxleak._command.invert.options import Args
from jaxleak._tree import below, named_leaves
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import Progress, RunFolder, sheets
from jaxleak.study.files import jsonable, write_npz
from jaxleak.study.reports import print_measures
from jaxleak.study.sources import contents
from jaxleak.study.updates import (
    Case,
    asked_for_rivals,
    build_model,
    check_effect,
    compared,
    first_distances,
    generator_for,
    own_opinion,
    public_images,
    resolved,
    settings_as_run,
    share_of,
    where_seen,
)
from jaxleak.study.updates._own_model import files_of_own_model, given_weights
from jaxleak.study.updates._sources import sources_of_attack


def captured(args: Args, folder: RunFolder, devices: Sequence[jax.Device] = ()) -> dict[str, float]:
    """Attack a captured payload, for which the true images are unknown."""
    case, seed = args.case, args.seeds[0]
    if case.weights is None:
        raise ValueError("--payload needs the model's weights: --weights FILE")
    if case.defense is not None:
        raise ValueError("--payload is attacked as it is; --defense is for simulated clients")
    if len(args.seeds) > 1:
        raise ValueError(f"--payload is attacked from one start: --seeds takes one number, got {len(args.seeds)}")
    model = build_model(case, args.image_shape, args.num_classes)
    check_effect(case, model)
    variables = given_weights(case, model)
    read = resolved(case).leaves(model)
    payload = load_payload(args.payload, variables["params"], read, case, model.listed)
    attacks.check_payload(payload, variables, read)
    share = share_of(case, model)
    generator = generator_for(case, seed, args.image_shape, captured=True)
    attacker = resolved(case, generator)
    engine = attacker.build(model, protocols.averaged_share(share) if case.estimate else share)
    saved = Checkpoints(folder.checkpoints / "payload", jsonable(asdict(case)) | {"seed": seed}, fresh=args.fresh)
    assert args.payload is not None
    # The payload's path is not a part of its name, since a folder holds the results of one payload.
    of_model = files_of_own_model(case, args.image_shape, args.num_classes) if case.own_model else {}
    of_files = {**contents("the payload", args.payload), **contents("the weights", case.weights)}
    folder.sources.bind({**of_files, **of_model, **sources_of_attack(case)})
    if generator is not None:
        folder.sources.bind({"the public images": lambda: public_images(case, seed, args.image_shape, captured=True)})
    threat = attacker.granted(model)
    print(f"the attacker is granted: {threat}")
    template = Batch(jnp.zeros((case.images, 1, *args.image_shape)), jnp.zeros(case.images, jnp.int32), jnp.zeros(1))
    with Progress() as progress, folder.phase("attack"):
        progress.begin("attack")
        observation = Observation(jnp.zeros((), jnp.int32), variables, payload)
        found, run, infos = audit.invert(
            engine,
            observation,
            audit.template_of(template),
            key=jax.random.key(seed),
            iterations=attacker.iterations,
            restarts=case.restarts,
            microbatch=case.microbatch,
            callbacks=(report.watching(progress, "attack", attacker.iterations),),
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
        second = asked_for_rivals(case, second, observation, share, found, seed)
        of_each = compared(second)
        metrics |= {field: float(np.mean(values)) for field, values in of_each.items()}
        cells = [{"image": i} | {field: values[i] for field, values in of_each.items()} for i in range(len(x))]
        for first in range(0, len(x), 8):
            rows[f"second best start, from image {first}"] = second.other[first : first + 8]
    if case.labels != "none":
        simulated = jax.jit(share)(variables, Batch(found.x, found.y, jnp.arange(case.images)))
        metrics["cosine_distance"] = float(objectives.cosine(payload, where_seen(payload, simulated)))
    title = f"{case.attack} on {case.model}: images that the attack found, in no particular order"
    sheets.comparison_sheet(folder.figure("contact_sheet.png"), rows, title=title, truth_first=False)
    report.draw_distances(folder, {"the captured update": first_distances(infos)})
    settings = settings_as_run(case, args.image_shape, args.num_classes)
    report.write_captured(folder, args, threat, metrics, settings)
    folder.finish(metrics, cells=cells or None, settings=settings)
    print_measures(report.MEASURES_CAPTURED, metrics)
    print(folder.contents())
    return metrics


def save_payload(path: Path, payload: PyTree) -> Path:
    """Write one array per parameter, named by its path; returns the file, whose name gets the ending `.npz`."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    write_npz(path, {name: np.asarray(leaf) for name, leaf in named_leaves(payload).items()})
    return path


def load_payload(
    path: Path | None,
    params: PyTree,
    read: Sequence[str] | None = None,
    case: Case | None = None,
    names: Sequence[str] | None = None,
) -> PyTree:
    """Read the arrays of a file as a tree like `params`; nothing is unpickled.

    From an npz file, only the arrays that `params` need are read. Any other file is read as one of `capture.save`, and
    weights or differences of weights in it become a gradient.

    Args:
        path: the file that holds the payload.
        params: the model's parameters, whose shapes the payload must have.
        read: the part of the update that the attack reads, as in `attacks.check_payload`; other arrays of an npz file
            may be missing, and are then None.
        case: options that state the facts about the client that a file of `capture.save` leaves out. They must not
            contradict the file. None uses the file alone.
        names: names for the entries of a list in a file of `capture.save`, as in `capture.fit`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: naming the file and what is wrong with it, or the options that contradict it.
        ImportError: if the file is a PyTorch file and PyTorch is not installed.
    """
    if path is None or not path.is_file():
        raise FileNotFoundError(f"--payload {path} does not exist or is not a file")
    if path.suffix != ".npz":
        update = capture.load(path)
        if case is not None:
            update = _as_stated(update, case)
        return jax.tree.map(jnp.asarray, capture.gradient_of(update, params, names=names))
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    try:
        with zipfile.ZipFile(path) as archive:
            held = {name.removesuffix(".npy") for name in archive.namelist()}
            if missing := sorted(set(below(shapes, read)) - held):
                raise ValueError(f"it lacks {', '.join(missing[:3])} ({len(missing)} arrays in all)")
            if extra := sorted(held - shapes.keys()):
                raise ValueError(f"it has arrays that the model does not know: {', '.join(map(repr, extra[:3]))}")
            arrays = [
                jnp.asarray(capture.read_npz_array(archive, name, shape)) if name in held else None
                for name, shape in shapes.items()
            ]
    except Exception as error:  # zipfile, zlib and NumPy raise many types for a damaged file
        raise ValueError(f"--payload {path} is no npz file of this model's gradients: {error}") from error
    return jax.tree.unflatten(jax.tree.structure(params), arrays)


#: Options that state facts about a client that the header of a file may also state.
_STATED = ("batch_size", "local_steps", "local_epochs", "learning_rate", "momentum", "batch_norm", "loss")


def _as_stated(update: capture.Update, case: Case) -> capture.Update:
    """Fill in the facts that an update's file does not state from the options.

    Raises:
        ValueError: if file and options contradict each other, or if the file states a fact that no option can state.
    """
    facts = update.facts
    # A gradient depends on neither the learning rate nor the momentum.
    read = [name for name in _STATED if facts.kind != "gradient" or name not in ("learning_rate", "momentum")]
    # A gradient comes from one step unless the file says otherwise.
    one = {"local_steps": 1, "local_epochs": 1} if facts.kind == "gradient" else {}
    stated = {name: one.get(name) if getattr(facts, name) is None else getattr(facts, name) for name in read}
    others = {name: value for name, value in stated.items() if value is not None and value != getattr(case, name)}
    if others:
        wanted = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in others.items())
        got = ", ".join(str(getattr(case, name)) for name in others)
        raise ValueError(f"options must say what {update.source} says: {wanted}; got {got}")
    for name, usual in (("reduction", "mean"), ("defense", "none"), ("frozen", None), ("eval_layers", None)):
        if (said := getattr(facts, name)) not in (None, usual):
            raise ValueError(f"{update.source} says {name}={said}, which --payload cannot state: use jaxleak audit")
    scales = ("local_steps", "local_epochs", "learning_rate", "momentum")
    told: dict[str, Any] = {name: getattr(case, name) for name in read if name in scales}
    return update._replace(facts=replace(facts, **told))
