"""Pure functional models, built from Flax Linen modules and split at the first dense layer."""

from jaxleak.models._bottom_top import BottomTopModel, bottom_top
from jaxleak.models._conv import conv2d, max_pool
from jaxleak.models._networks import all_dense, cafe_horizontal, cafe_vertical, logistic
from jaxleak.models._split import SplitModel, frozen_features, split_model

__all__ = [
    "BottomTopModel",
    "SplitModel",
    "all_dense",
    "bottom_top",
    "cafe_horizontal",
    "cafe_vertical",
    "conv2d",
    "frozen_features",
    "logistic",
    "max_pool",
    "split_model",
]
