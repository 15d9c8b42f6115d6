"""`jaxleak audit`: reads an update file, and gives a verdict and a report."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import platform
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxleak import _validate, capture
from jaxleak._command.models import model_of
from jaxleak._lock import lock_folder
from jaxleak._own_files import file_of, is_own
from jaxleak.audit import EXIT_STATUS, update, write_report
from jaxleak.defenses import Defense
from jaxleak.study import Progress, read_weights_and_counters, require_own_folder
from jaxleak.study.files import naming, write_json, write_npz
from jaxleak.study.updates import kind_of_defense

#: Exit status for an update that leaks if `--fail-on-leak` is given.
LEAK_STATUS = 5

#: Largest number of images for which the SSIM of each image is printed; results.json has all.
_SHOWN_SINGLY = 16

_PACKAGES = ("jaxleak", "jax", "jaxlib", "flax", "optax", "numpy")


def audit(options: argparse.Namespace) -> int:
    """Run the audit, print the verdict, and write results.json, reconstruction.npz and report.html."""
    begin = time.monotonic()
    require_own_folder(options.out)
    _validate.seeds(seed=options.seed)
    if options.out.exists() and not options.out.is_dir():
        raise FileExistsError(f"--out {options.out} is a file; it must name a folder, which may be there already")
    for name in ("weights", "update", "truth"):  # checked before anything is built from one of them
        path = getattr(options, name)
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"--{name} {path} does not exist or is not a file")
    with Progress() as progress:
        sent = capture.load(options.update)
        model = model_of(options, sent.facts.eval_layers or ())
        variables, counters = read_weights_and_counters(options.weights, model)
        truth = None if options.truth is None else read_truth(options.truth)
        facts = {
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(capture.Facts)
            if getattr(options, field.name, None) is not None
        }
        after_training = (options.kind or sent.facts.kind) == "weights"
        own = own_defense_of(options)
        with naming(options.out):
            options.out.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(options.out)  # held until the report is written
        verdict = update(
            model, variables, sent, minutes=options.minutes, truth=truth, out=options.out, seed=options.seed,
            fresh=options.fresh, show=progress.update, since=begin, own_defense=own,
            counters=counters if after_training else None, **facts,
        )  # fmt: skip
    print(f"\n{verdict.headline.upper()}")
    for reason in verdict.reasons:
        print(f"  {reason}")
    if "psnr" in verdict.metrics:
        print(f"  Scored against --truth, which no attack saw: {_scored(verdict.metrics)}.")
    for note in verdict.notes:
        print(f"  Note on the network: {note}.")
    found = options.out / "reconstruction.npz"
    if verdict.best is not None:
        write_npz(found, {"x": verdict.best.x, "y": verdict.best.y})
    else:
        found.unlink(missing_ok=True)  # an earlier audit may have left this file
    provenance = {
        "weights": _named_file(options.weights),
        "update": f"{options.update} (SHA-256 {sent.sha256})",
        "model": options.model,
        **({} if own is None else {"defense": _named_file(file_of(options.defense))}),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "device": f"{jax.devices()[0].platform}: {jax.devices()[0].device_kind}",
        "command": " ".join(sys.argv),
        "seconds": round(time.monotonic() - begin, 1),
    }
    results = {
        "experiment": "audit",
        "status": "complete",
        "config": _asked(options, dataclasses.replace(sent.facts, **facts)),
        "metrics": verdict.metrics,
        "reasons": verdict.reasons,
        "headline": verdict.headline,
        "notes": verdict.notes,
        "threat": verdict.threat,
        "findings": [finding._asdict() for finding in verdict.findings],
        "attacks": [_without_images(answer) for answer in verdict.answers],
        "provenance": provenance,
    }
    write_json(options.out / "results.json", results)
    report = write_report(options.out / "report.html", verdict, provenance)
    print(f"  The report is {report}.")
    del lock
    return LEAK_STATUS if options.fail_on_leak and verdict.verdict == "leaks" else EXIT_STATUS[verdict.verdict]


def _asked(options: argparse.Namespace, known: capture.Facts) -> dict[str, Any]:
    """Return the options and the stated facts by the names of the options, with the digest of the file of weights."""
    names = ("model", "image", "classes", "option", "mean", "std", "minutes", "seed")
    return {
        **{name: getattr(options, name) for name in names},
        **dataclasses.asdict(known),
        "samples": (known.batch_size or 1) * (known.local_steps or 1),
        "weights": _digest(options.weights),
    }


def own_defense_of(options: argparse.Namespace) -> Defense | None:
    """Make the defense of `--defense FILE.py:NAME` from `--strength`; None if the option names no file.

    Code is only run if the command line names it, never because an update's file names it.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if there is no strength, or if the file makes no defense from it.
    """
    if options.defense is None or not is_own(options.defense):
        return None
    if options.strength is None:
        raise ValueError(f"--strength must be given: {options.defense} makes a defense from it")
    try:
        return kind_of_defense(options.defense).build(options.strength)
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"--defense: {error}") from error


def read_truth(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Read images and, if the file has them, labels; `ValueError` if it is no npz file or has no array x."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays.get("y")
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"--truth {path} must be an npz file with x and y: {error}") from error


def _scored(metrics: dict[str, Any]) -> str:
    """Say the scores against the truth in words, beside those of answers that need no gradient.

    Images that are too small have no SSIM, and attacks that seek no labels have no accuracy of labels.
    """
    ssim = ", SSIM {ssim:.2f}" if "ssim" in metrics else ""
    each = metrics.get("ssim_each", [])
    single = f" ({', '.join(f'{value:.2f}' for value in each)})" if 1 < len(each) <= _SHOWN_SINGLY else ""
    labels = ", {label_accuracy:.0%} of the labels" if "label_accuracy" in metrics else ""
    mean = ", and the mean of the true images {psnr_mean_image:.1f} dB" if "psnr_mean_image" in metrics else ""
    nothing = labels + ". Without any gradient, a grey image has {psnr_grey:.1f} dB" + mean
    return ("PSNR {psnr:.1f} dB" + ssim).format_map(metrics) + single + nothing.format_map(metrics)


def _without_images(answer: Any) -> dict[str, Any]:
    """Return the entries of an answer for results.json; an agreement that does not count is left out."""
    kept = {name: value for name, value in answer._asdict().items() if name != "x"}
    return kept | {"agreement": answer.counted_agreement}


def _named_file(path: Path) -> str:
    return f"{path} (SHA-256 {_digest(path)})"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
