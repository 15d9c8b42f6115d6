"""A user's own network in a study: loading it, and finding its properties by trying it on a few images.

A study asks more of a network than an audit of a given update: it trains the network, infers labels from the last
layer, and computes the gradients of single examples. Properties that the file does not state are found by trying the
network on a few images.
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxleak import models
from jaxleak._base import PyTree
from jaxleak._own_files import file_of
from jaxleak.audit._checks.head import ends_with_head
from jaxleak.models._classifier import BATCH_NORM_MODES, BatchNormMode
from jaxleak.study._weights import read_weights
from jaxleak.study.sources import Arrays, contents, form_of
from jaxleak.study.updates._case import Case

#: Differences of logits below this share of the largest logit count as rounding.
_ROUNDING = 1e-4
#: Number of images on which a network is tried.
_TRIED = 3


class _Tried(NamedTuple):
    """A network that was tried on a few images."""

    model: models.Classifier
    variables: PyTree  # given by `--weights` or made by the file; None in the place of a constant
    logits: dict[str, np.ndarray]  # logits (_TRIED, C) by mode


def own_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> models.Classifier:
    """Load the network of a case with `own_model`; it is traced again only if its file or its weights change.

    Parameters that the module does not train (`requires_grad=False`) become constants; `--weights` may give them.

    Args:
        case: case that names the network's file, and the file of weights if there is one.
        image_shape: (H, W, channels).
        num_classes: C >= 2.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if `models.from_file` refuses the network, if the outputs are probabilities, if the network keeps
            running statistics but ignores the batch's statistics in training, or if the weights are of another network.
    """
    return _tried(case, tuple(image_shape), num_classes).model


def given_weights(case: Case, model: models.Classifier) -> PyTree:
    """Return the variables that `--weights` gives to the case's model; the file of a user's own network is read once.

    Args:
        case: case that names a file of weights.
        model: the model of the case.

    Raises:
        FileNotFoundError, ValueError: as in `read_weights`.
    """
    assert case.weights is not None
    if case.own_model:
        return _tried(case, model.image_shape, model.num_classes).variables
    return read_weights(case.weights, model)


def files_of_own_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> Arrays:
    """Name the sources of a case with `own_model`: the network's file, and the logits that the network computes.

    The logits also reveal changes in what the file imports.

    Args:
        case: case that names the network's file, and the file of weights if there is one.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
    """
    computed = f"what {case.model} computes"
    of_file = contents(f"the file of the network {case.model}", file_of(case.model))

    def rounded() -> dict[str, np.ndarray]:
        """Round the logits to three digits, since further digits differ between machines."""
        found = _tried(case, tuple(image_shape), num_classes).logits
        places = {mode: 2 - math.floor(math.log10(max(np.abs(rows).max(), 1e-6))) for mode, rows in found.items()}
        return {mode: np.round(rows, places[mode]) + 0.0 for mode, rows in found.items()}

    return {**of_file, computed: rounded}


def about_model(case: Case) -> list[str]:
    """Write sentences about a user's own network for a report; a built-in network has none.

    Args:
        case: case that names the network, and the data that give the size of the images and the number of classes.
    """
    if not case.own_model:
        return []
    model = own_model(case, *form_of(case.data))
    weights = [model.init(jax.random.key(seed))["params"] for seed in (0, 1)]
    alike = all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, weights), strict=True))
    fixed = ["The weights before training are the same for every seed."] if alike or case.weights else []
    return fixed + [f"Of the network: {note}." for note in model.notes]


def _tried(case: Case, image_shape: tuple[int, ...], num_classes: int) -> _Tried:
    weights = case.weights
    of_weights = 0 if weights is None or not weights.exists() else weights.stat().st_mtime_ns
    written = file_of(case.model).stat().st_mtime_ns
    return _loaded(case.model, written, weights, of_weights, image_shape, num_classes, case.batch_norm == "train")


@functools.lru_cache(maxsize=8)
def _loaded(
    spec: str,
    written: int,
    weights: Path | None,
    of_weights: int,
    image_shape: tuple[int, int, int],
    num_classes: int,
    trains: bool,
) -> _Tried:
    """Load the network and try it; the times of the files are arguments, so that a changed file is loaded again.

    `trains` says whether the client uses the training mode of batch normalisation.
    """
    model = models.from_file(spec, image_shape=image_shape, num_classes=num_classes)
    if (tuple(model.image_shape), model.num_classes) != (image_shape, num_classes):
        raise ValueError(
            f"{spec} reads images {tuple(model.image_shape)} of {model.num_classes} classes, and the data have "
            f"{image_shape} and {num_classes}"
        )
    variables = model.init(jax.random.key(0)) if weights is None else read_weights(weights, model)
    found = _as_tried(model, variables, trains)
    if not model.untrained:
        return found
    model, variables = models.freeze(found.model, variables, model.untrained)
    return found._replace(model=model, variables=variables)


def _as_tried(model: models.Classifier, variables: PyTree, trains: bool) -> _Tried:
    """Try the network to find whether images of a batch affect each other, and whether it ends with its head."""
    images = np.random.default_rng(0).random((_TRIED, *model.image_shape), np.float32)
    others = np.concatenate([images[:1], images[1:] ** 2])  # the first image, among others than before
    logits, by_batch = dict[str, np.ndarray](), list[BatchNormMode]()
    for mode in BATCH_NORM_MODES:
        try:
            apply = jax.jit(functools.partial(model.apply, mode=mode))
            out, moved = apply(variables, images), apply(variables, others)
        except ValueError:  # an exported program, or a function, has only one mode
            continue
        logits[mode] = np.asarray(out.logits)
        if mode in (model.by_batch or ()) or not _same(logits[mode][0], moved.logits[0]):
            by_batch.append(mode)
        if model.head and not ends_with_head(model, variables["params"], out.logits, out.features):
            note = "something follows its last dense layer, so that neither label rules nor defenses of features apply"
            model = model._replace(head="", head_leaves=(), notes=(*model.notes, note))
    for rows in logits.values():
        if rows.min() >= 0 and np.allclose(rows.sum(axis=1), 1, atol=1e-4):
            raise ValueError(
                "the network's outputs are probabilities: take the softmax off its end, since the loss has one"
            )
    told = any(note.startswith("it ends in a softmax or in sigmoids") for note in model.notes)
    if not told and all(((rows > 0) & (rows < 1)).all() for rows in logits.values()):
        note = (
            "all of its outputs lay between 0 and 1 on images that were tried, as those of sigmoids do; the loss reads "
            "them as logits, so take sigmoids off the end if there are any"
        )
        model = model._replace(notes=(*model.notes, note))
    # PyTorch's graphs state the modes of the layers; in other networks the training flag may have an unknown name.
    if trains and model.by_batch is None and model.has_running_statistics and not by_batch:
        raise ValueError(
            "the network keeps running statistics and does not use the batch's in training: call the argument that "
            "tells the modes apart train, training or deterministic, or state the evaluation mode (--batch-norm eval)"
        )
    return _Tried(model._replace(by_batch=tuple(by_batch)), variables, logits)


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return bool(np.abs(a - b).max() <= _ROUNDING * max(np.abs(a).max(), np.abs(b).max(), 1e-6))
