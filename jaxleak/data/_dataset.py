"""Code that all sources of data share: the type of the result, the draw of samples, scaling and checks."""

from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

import numpy as np

from jaxleak import _validate

# A label beyond this is a corrupt file or a regression target, not a class.
_MAX_CLASSES = 2**16


#: Numbers of channels that an image may have: grey, colour, and colour with transparency.
_CHANNELS = (1, 3, 4)


class TooFewSamplesError(ValueError):
    """More samples were asked for than a source has."""


class Dataset(NamedTuple):
    """Samples with labels, on the host."""

    x: np.ndarray  # float32 in [0, 1]: (N, H, W, C) images, or (N, F) table with columns min-max scaled
    y: np.ndarray  # (N,) int32 in [0, len(classes))
    classes: tuple[str, ...]  # the names of all classes, including classes without a drawn sample
    name: str  # the spec that was loaded


def draw(available: int, n: int | None, seed: int, name: str) -> np.ndarray:
    """Draw the positions of `n` samples without replacement.

    The draw is a prefix of one seeded permutation, so the first k samples of a larger draw are the draw of k.

    Args:
        available: number of samples that exist.
        n: number of samples to draw; None draws all, which are shuffled too.
        seed: seed of `numpy.random.default_rng`.
        name: the spec, for the message.

    Returns:
        (n,) int64 positions in [0, available), all different.

    Raises:
        TooFewSamplesError: if n exceeds `available`.
    """
    if n is not None and n > available:
        raise TooFewSamplesError(f"{name} has {available} samples, fewer than the {n} asked for")
    return np.random.default_rng(seed).permutation(available)[:n]


def scaled_columns(x: np.ndarray) -> np.ndarray:
    """Min-max scale every column of a (N, F) table to [0, 1]; a constant column becomes 0. Float32."""
    x = x.astype(np.float64)
    low, high = x.min(axis=0), x.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return ((x - low) / span).astype(np.float32)


def unit_pixels(x: np.ndarray) -> np.ndarray:
    """Convert uint8 pixels to float32 in [0, 1]."""
    return x.astype(np.float32) / np.float32(255)


def checked_labels(y: np.ndarray, samples: int, where: str) -> np.ndarray:
    """Check labels and convert them to int32.

    Args:
        y: labels as the source holds them.
        samples: number of samples, which the labels must match.
        where: the file, for the message.

    Returns:
        (samples,) int32, non-negative.

    Raises:
        ValueError: if the labels are not integers of shape (samples,) in [0, 65536).
    """
    # The shape comes first: one-hot rows are often floats, and that is not what is wrong with them.
    if y.shape != (samples,):
        remedy = _validate.label_remedy(y)
        raise ValueError(f"{where}: labels must have shape ({samples},), one per sample, got {y.shape}{remedy}")
    _validate.integer_labels(f"{where}: labels must be integers", y.dtype)
    if y.min() < 0:
        raise ValueError(f"{where}: labels must be >= 0, got {y.min()}")
    _check_largest(y, _MAX_CLASSES, where)
    return y.astype(np.int32)


def class_names(y: np.ndarray, names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the given class names; without any, the numbers from 0 to the largest label as texts.

    Raises:
        ValueError: if a label has no name.
    """
    if names is None:
        return tuple(str(label) for label in range(int(y.max()) + 1))
    _check_largest(y, len(names), where)
    return tuple(str(name) for name in names)


def build(
    name: str,
    where: str,
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str] | None,
    n: int | None,
    seed: int,
) -> Dataset:
    """Check raw arrays, draw samples and scale them.

    A table is scaled over all rows before the draw, so that the features of a row do not depend on `n`.

    Args:
        name: the spec.
        where: the file, for messages.
        x: uint8 or float: (N, H, W, C) or (N, H, W) for images, or (N, F) for a table. Float images lie within [0, 1].
            uint8 images lie within [0, 255], and at least one of their pixels is above 1.
        y: (N,) integers.
        names: class names, or None.
        n: number of samples to draw, or None.
        seed: seed of the draw.

    Raises:
        ValueError: if an array has the wrong dtype, shape or range or is not finite, if images have their channels
            first, if labels without class names are counted from 1, or if n is too large.
    """
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise ValueError(f"{where}: x must be uint8 or float, got dtype {x.dtype}")
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise ValueError(f"{where}: x must be (N, H, W, C), (N, H, W) or (N, F), none of them 0, got {x.shape}")
    if x.dtype != np.uint8 and not np.all(np.isfinite(x)):
        raise ValueError(f"{where}: x holds non-finite values")
    if x.ndim > 2:
        _check_images(x, where)
    labels = checked_labels(y, len(x), where)
    if names is None:
        _check_count_from_zero(labels, where)
    classes = class_names(labels, names, where)
    picks = draw(len(x), n, seed, name)
    if x.ndim == 2:
        return Dataset(scaled_columns(x)[picks], labels[picks], classes, name)
    images = unit_pixels(x[picks]) if x.dtype == np.uint8 else x[picks].astype(np.float32)
    return Dataset(images[..., None] if x.ndim == 3 else images, labels[picks], classes, name)


def _check_images(x: np.ndarray, where: str) -> None:
    """Raise `ValueError` with all faults of images at once: a user who mends the first should not meet the second."""
    faults = []
    if x.ndim == 4 and x.shape[-1] not in _CHANNELS and x.shape[1] in _CHANNELS:
        faults.append(
            f"images must have their channels last, (N, H, W, C), got {x.shape}: transpose x by x.transpose(0, 2, 3, 1)"
        )
    if x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
        scale = ": divide x by 255" if x.min() >= 0 and 1 < x.max() <= 255 else ""
        faults.append(f"float images must lie within [0, 1], got {x.min():g} to {x.max():g}{scale}")
    if x.dtype == np.uint8 and x.max() <= 1:
        faults.append(
            f"uint8 images must have 255 for white, and the largest value here is {x.max()}, nearly black: "
            "multiply x by 255, or give floats in [0, 1]"
        )
    if faults:
        raise ValueError(f"{where}: {'; and '.join(faults)}")


def check_request(n: int | None, seed: int) -> None:
    """Raise `ValueError` unless n is None or an integer > 0, and seed an integer in [0, 2^32)."""
    if n is not None:
        if not isinstance(n, Integral):
            raise ValueError(f"n must be an integer or None, got {n!r}")
        _validate.positive(n=n)
    _validate.seeds(seed=seed)


def _check_count_from_zero(y: np.ndarray, where: str) -> None:
    # Samples may lack class 0 by chance. Labels count from 1 only if class 0 is absent and no later class is missing.
    present = np.unique(y)
    if len(present) > 1 and np.array_equal(present, np.arange(1, len(present) + 1)):
        raise ValueError(f"{where}: labels must be counted from 0, got 1 to {present[-1]}: subtract 1 from y")


def _check_largest(y: np.ndarray, bound: int, where: str) -> None:
    if y.max() >= bound:
        raise ValueError(f"{where}: labels must be below the number of classes, {bound}, got {y.max()}")
