"""A network of one's own in a study: what is trained of it, and what it is found to do on images that are tried.

Studies ask more of a network than an audit of a given update: they train it, infer labels by its head, and compute the
gradients of single examples. What the file does not say is found by trying the network on a few images.
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

#: Differences of logits below this share of the largest one are rounding.
_ROUNDING = 1e-4
#: Images that a network is tried on.
_TRIED = 3


class _Tried(NamedTuple):
    """A network that was tried on a few images."""

    model: models.Classifier
    variables: PyTree  # given by `--weights` or made by the file; None in the place of a constant
    logits: dict[str, np.ndarray]  # by mode, (_TRIED, C)


def own_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> models.Classifier:
    """The network of a case with `own_model`, exported and traced once until its file or its weights are written again.

    Parameters that the module does not train (`requires_grad=False`) are constants, which `--weights` gives.

    Args:
        case: names the file, and weights if there are any.
        image_shape: (H, W, channels).
        num_classes: C >= 2.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: on a network that `models.from_file` refuses, or whose outputs are probabilities; on one that keeps
            running statistics and computes the same in training as in evaluation; on weights of another network.
    """
    return _tried(case, tuple(image_shape), num_classes).model


def given_weights(case: Case, model: models.Classifier) -> PyTree:
    """The variables that `--weights` gives to the case's model; the file of one's own network is read once.

    Args:
        case: names weights.
        model: the model of the case.

    Raises:
        FileNotFoundError, ValueError: as `read_weights`.
    """
    assert case.weights is not None
    if case.own_model:
        return _tried(case, model.image_shape, model.num_classes).variables
    return read_weights(case.weights, model)


def files_of_own_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> Arrays:
    """What results of a case with `own_model` depend on: its file, and what the network computes, with what it imports.

    Args:
        case: names the file, and weights if there are any.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
    """
    computed = f"what {case.model} computes"
    of_file = contents(f"the file of the network {case.model}", file_of(case.model))

    def rounded() -> dict[str, np.ndarray]:
        """The logits to three digits, since another machine has other last ones."""
        found = _tried(case, tuple(image_shape), num_classes).logits
        places = {mode: 2 - math.floor(math.log10(max(np.abs(rows).max(), 1e-6))) for mode, rows in found.items()}
        return {mode: np.round(rows, places[mode]) + 0.0 for mode, rows in found.items()}

    return {**of_file, computed: rounded}


def about_model(case: Case) -> list[str]:
    """Sentences for a report on a network of one's own; none on a built-in one.

    Args:
        case: names the network, and the data that give the size of the images and the number of classes.
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
    """The network and its logits by mode, of files written at these times; the client `trains` its layers."""
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
    """The network with what trying it shows: whether images change each other, and whether it ends with its head."""
    images = np.random.default_rng(0).random((_TRIED, *model.image_shape), np.float32)
    others = np.concatenate([images[:1], images[1:] ** 2])  # the first image, among others than before
    logits, by_batch = dict[str, np.ndarray](), list[BatchNormMode]()
    for mode in BATCH_NORM_MODES:
        try:
            apply = jax.jit(functools.partial(model.apply, mode=mode))
            out, moved = apply(variables, images), apply(variables, others)
        except ValueError:  # an exported program, or a function, has one mode
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
    # PyTorch's graphs tell the modes of the layers; elsewhere a flag for training may have a name that is not known.
    if trains and model.by_batch is None and model.has_running_statistics and not by_batch:
        raise ValueError(
            "the network keeps running statistics and does not use the batch's in training: call the argument that "
            "tells the modes apart train, training or deterministic, or state the evaluation mode (--batch-norm eval)"
        )
    return _Tried(model._replace(by_batch=tuple(by_batch)), variables, logits)


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return bool(np.abs(a - b).max() <= _ROUNDING * max(np.abs(a).max(), np.abs(b).max(), 1e-6))
