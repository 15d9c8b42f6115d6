"""An inversion as a command: checks of the options, the run folder, and the printed and drawn results."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from jaxleak import _validate, metrics, models
from jaxleak._command.invert import report
from jaxleak._command.invert.captured import captured, save_payload
from jaxleak._command.invert.options import Args
from jaxleak._own_files import short_name
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import Progress, RunFolder, default_out, distributed, sheets
from jaxleak.study.files import jsonable, naming, write_npz
from jaxleak.study.reports import print_measures
from jaxleak.study.updates import (
    Case,
    Outcome,
    attack,
    captions,
    check,
    check_effect,
    compared,
    observe,
    public_images,
    require_memory_of_update,
    resolved,
    settings_as_run,
    sources_of_update,
    victim,
)

#: Least width in pixels of an image on a contact sheet.
_LEAST_WIDTH = 96


def main(args: Args) -> dict[str, float]:
    """Run the attack; returns the metrics."""
    case = args.case
    mesh = distributed.join_devices(distributed.Devices(devices=args.devices))
    devices = () if mesh is None else tuple(mesh.devices.flat)
    _check(args)
    if args.payload is None:
        require_memory_of_update(case)
    else:
        require_memory_of_update(case, args.image_shape, args.num_classes)
    out = args.out or default_out("invert", _folder_name(case))
    config = jsonable(asdict(case)) | {"seeds": args.seeds}
    if args.payload is not None:
        config["data"] = f"not known: images behind the captured update {args.payload}"
    folder = RunFolder(out, "invert", config, fresh=args.fresh)
    if args.save_payload is not None:
        side = victim(case, args.seeds[0])
        folder.sources.bind(sources_of_update(case, args.seeds[0]))
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
    threat = resolved(case).granted(model)
    for seed in args.seeds:
        folder.sources.bind(sources_of_update(case, seed))
    print(f"the attacker is granted: {threat}")
    if knows := report.of_informed(case):
        print(knows)
    outcomes = []
    folder.log_again()
    with Progress() as progress:
        for seed in args.seeds:
            shown = report.watching(progress, f"seed {seed}", resolved(case).iterations)
            progress.begin(f"seed {seed}")
            with folder.phase("attack"):
                outcomes.append(attack(case, seed, callbacks=(shown,), checkpoints=saved[seed], devices=devices))
            folder.log(seed=seed, **outcomes[-1].scores)
            keep_arrays(folder, seed, outcomes[-1])
    forget_arrays(folder, args.seeds)
    metrics = summary(outcomes)
    draw(folder, case, args.seeds, outcomes)
    settings = settings_as_run(case, tuple(model.image_shape), model.num_classes)
    report.write(folder, args, threat, outcomes, settings)
    cells = [
        {"seed": seed, **o.scores}
        | ({} if o.second is None else {f"{field}_of_each": value for field, value in compared(o.second).items()})
        for seed, o in zip(args.seeds, outcomes, strict=True)
    ]
    folder.finish(metrics, cells=cells, settings=settings)
    print_measures((*report.MEASURES, *(report.SPREAD if len(outcomes) > 1 else ())), metrics)
    print(folder.contents())
    return metrics


def _folder_name(case: Case) -> str:
    """Make the name of the run's folder for a command that names none."""
    defended = "" if case.defense is None else f"-{short_name(case.defense)}{'-known' if case.adaptive else ''}"
    return f"{short_name(case.attack)}-{short_name(case.model)}-b{case.batch_size}{defended}"


def _check(args: Args) -> None:
    """Raise `ValueError` naming an option that is out of range, before any data are loaded."""
    _validate.seeds(seeds=args.seeds)
    _validate.count(num_classes=args.num_classes, **{f"image_shape[{i}]": n for i, n in enumerate(args.image_shape)})
    if args.save_weights is not None and args.save_payload is None:
        raise ValueError("--save-weights goes with --save-payload")
    for option, path in (("save-payload", args.save_payload), ("save-weights", args.save_weights)):
        if path is not None and path.is_dir():
            raise ValueError(f"--{option} must name a file, and {path} is a folder")
    check(args.case)
    check_effect(args.case)


def _attackable(case: Case, seed: int) -> models.Classifier:
    """Make the model; `ValueError` or `OSError` if data, model and the attack's settings do not go together."""
    side = victim(case, seed)
    check_effect(case, side.model)
    resolved(case).build(side.model, side.share)
    if case.attack in presets.GENERATIVE:
        public_images(case, seed, tuple(side.model.image_shape))
    return side.model


def summary(outcomes: list[Outcome]) -> dict[str, float]:
    """Compute every score's mean over the seeds, and `psnr_spread`, the spread of the PSNR.

    The spread is the standard deviation of these seeds as a population (`ddof=0`), and is 0 for one seed. Stored
    results have it in this form, and stay comparable. As an estimate for further seeds it is too small, by a factor of
    sqrt((n - 1) / n) for n seeds.
    """
    names = outcomes[0].scores
    means = {name: float(np.mean([o.scores[name] for o in outcomes])) for name in names}
    return means | {"psnr_spread": float(np.std([o.scores["psnr"] for o in outcomes])), "seeds": len(outcomes)}


def keep_arrays(folder: RunFolder, seed: int, outcome: Outcome) -> None:
    """Write the arrays of `Outcome.arrays` to `reconstructions/seed_<seed>.npz`, once a seed is done."""
    if folder.writes:
        folder.reconstructions.mkdir(exist_ok=True)
        write_npz(folder.reconstructions / f"seed_{seed}.npz", outcome.arrays())


def forget_arrays(folder: RunFolder, seeds: Sequence[int]) -> None:
    """Remove the arrays of other seeds, which an earlier command wrote, perhaps with other options."""
    kept = {f"seed_{seed}.npz" for seed in seeds}
    for file in folder.reconstructions.glob("seed_*.npz") if folder.writes else ():
        if file.name not in kept:
            file.unlink()


def draw(folder: RunFolder, case: Case, seeds: Sequence[int], outcomes: list[Outcome]) -> None:
    """Draw the contact sheet and the curves of the distance."""
    truth = np.concatenate([o.truth for o in outcomes])
    estimate = np.concatenate([o.estimate for o in outcomes])
    seconds = [o.second.other for o in outcomes if o.second is not None]
    second = np.concatenate(seconds) if seconds else None
    path = folder.figure("contact_sheet.png")
    psnr, own = metrics.psnr(truth, estimate), captions(outcomes)
    texts = [f"{value:.1f} dB\n{said}" for value, said in zip(psnr, own, strict=True)]
    drawn = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    title = f"{case.attack} on {case.model}, {drawn}: PSNR of each image, and what the attack says of it"
    if len(own) > 1 and len(set(own)) == 1:  # a text that is the same for every image is said once, in the title
        texts = [f"{value:.1f} dB" for value in psnr]
        title = f"{case.attack} on {case.model}, {drawn}: PSNR of each image. The attack says of all: {own[0]}"
    zoom = max(4, _LEAST_WIDTH // truth.shape[2])
    sheets.contact_sheet(path, truth, estimate, second=second, captions=texts, title=title, columns=8, zoom=zoom)
    report.draw_distances(folder, {f"seed {seed}": o.curve for seed, o in zip(seeds, outcomes, strict=True)})
