"""Pure functional models, built from Flax Linen modules.

Classifiers of whole images (`build`, `CLASSIFIERS`) share one contract, `Classifier`. Your own networks get this
contract as they are, by `from_torch`, `from_flax`, `from_equinox`, `from_function` or `from_file` (docs/your_model.md).
The built-in networks are ordinary Flax modules; `classifier` makes them a `Classifier`, which also draws their weights.
Models of vertical learning are split at the first dense layer (`SplitModel`) or into bottoms and a top
(`BottomTopModel`).
"""

import inspect
from collections.abc import Callable
from typing import Any

from jaxleak import _validate
from jaxleak.models._activations import ACTIVATIONS, smooth_max, soft_relu
from jaxleak.models._bottom_top import BottomTopModel, bottom_top
from jaxleak.models._classifier import Classifier, HeadLayer, Outputs
from jaxleak.models._conv import avg_pool, conv2d, global_avg_pool, max_pool
from jaxleak.models._convnets import convnet, convnet_ig, lenet, mlp, mlp3
from jaxleak.models._densenet import densenet121
from jaxleak.models._door import classifier, describe, from_equinox, from_file, from_flax, from_function, from_torch
from jaxleak.models._frozen import freeze
from jaxleak.models._layers import BatchNorm, initializers
from jaxleak.models._mobilenet import mobilenet_v2
from jaxleak.models._networks import all_dense, cafe_horizontal, cafe_vertical, logistic
from jaxleak.models._normalized import IMAGENET_MEAN, IMAGENET_STD, normalized
from jaxleak.models._resnets import resnet, resnet10, resnet10_x3, resnet10_x5, resnet18, resnet34
from jaxleak.models._split import SplitModel, frozen_features, split_model
from jaxleak.models._vit import vit, vit_small, vit_tiny
from jaxleak.models._weights import load_weights, save_weights

#: Factories of image classifiers by name: (image_shape, num_classes, **options) -> Classifier.
CLASSIFIERS: dict[str, Callable[..., Classifier]] = {
    "lenet": lenet,
    "convnet": convnet,
    "convnet_ig": convnet_ig,
    "mlp": mlp,
    "mlp3": mlp3,
    "resnet10": resnet10,
    "resnet10_x3": resnet10_x3,
    "resnet10_x5": resnet10_x5,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "densenet121": densenet121,
    "mobilenet_v2": mobilenet_v2,
    "vit_tiny": vit_tiny,
    "vit_small": vit_small,
}


def build(name: str, image_shape: tuple[int, ...], num_classes: int, **options: Any) -> Classifier:
    """The image classifier of this name.

    Args:
        name: a key of `CLASSIFIERS`.
        image_shape: (H, W, c).
        num_classes: C >= 2.
        options: options of the factory, such as `activation="sigmoid"` or `init="wide_uniform"`.

    Raises:
        ValueError: if the name is unknown, with a message that lists the known ones, or if a size or an option is
            invalid.
    """
    _validate.one_of(tuple(CLASSIFIERS), model=name)
    factory = CLASSIFIERS[name]
    known = [option for option in inspect.signature(factory).parameters if option not in ("image_shape", "num_classes")]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option}; it has {', '.join(known)}")
    return factory(image_shape, num_classes, **options)


__all__ = [
    "ACTIVATIONS",
    "CLASSIFIERS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "BatchNorm",
    "BottomTopModel",
    "Classifier",
    "HeadLayer",
    "Outputs",
    "SplitModel",
    "all_dense",
    "avg_pool",
    "bottom_top",
    "build",
    "cafe_horizontal",
    "cafe_vertical",
    "classifier",
    "conv2d",
    "convnet",
    "convnet_ig",
    "densenet121",
    "describe",
    "freeze",
    "from_equinox",
    "from_file",
    "from_flax",
    "from_function",
    "from_torch",
    "frozen_features",
    "global_avg_pool",
    "initializers",
    "lenet",
    "load_weights",
    "logistic",
    "max_pool",
    "mlp",
    "mlp3",
    "mobilenet_v2",
    "normalized",
    "resnet",
    "resnet10",
    "resnet10_x3",
    "resnet10_x5",
    "resnet18",
    "resnet34",
    "save_weights",
    "smooth_max",
    "soft_relu",
    "split_model",
    "vit",
    "vit_small",
    "vit_tiny",
]
