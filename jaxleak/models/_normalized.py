"""Wrap networks that were trained on normalised images, so that clients and attackers use images in [0, 1]."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.models._classifier import Classifier, Outputs

#: Mean and standard deviation of ImageNet's training images per channel; weights of torchvision and timm expect images
#: that were normalised by them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalized(model: Classifier, mean: Sequence[float], std: Sequence[float]) -> Classifier:
    """Make a network read (x - mean) / std, so that its images, and with them candidates and answers, are plain pixels.

    Args:
        model: a network that was trained on normalised images and does not normalise them itself.
        mean: mean of each channel, in [0, 1] as the pixels are.
        std: standard deviation of each channel, in (0, 1], in the same unit.

    Returns:
        A `Classifier` with the same variables.

    Raises:
        ValueError: on another number of channels, a mean or std out of its range, such as those of pixels up to 255, or
            a model that normalises already.
    """
    channels = model.image_shape[-1]
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"mean and std must have one entry for each of {channels} channels, got {mean} and {std}")
    _validate.positive(**{f"std[{i}]": value for i, value in enumerate(std)})
    if not (all(0 <= value <= 1 for value in mean) and max(std) <= 1):
        raise ValueError(
            f"mean must be in [0, 1] and std in (0, 1], since pixels are in [0, 1], got {tuple(mean)} and "
            f"{tuple(std)}: divide both by 255 if they are of pixels up to 255"
        )
    if model.mean:
        raise ValueError(f"the model takes off mean={model.mean} already")
    shift, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def apply(variables: PyTree, x: jax.Array, **options: Any) -> Outputs:
        return model.apply(variables, (x - shift) / scale, **options)

    def rows(variables: PyTree, x: jax.Array, **options: Any) -> dict[str, jax.Array]:
        return model.rows(variables, (x - shift) / scale, **options)

    return model._replace(apply=apply, rows=rows, mean=tuple(map(float, mean)), std=tuple(map(float, std)))
