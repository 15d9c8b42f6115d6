"""Loss functions, gradient distances and regularizers of matching attacks."""

from jaxleak.objectives._distances import Distance, cosine, gaussian_kernel, l1, squared_l2
from jaxleak.objectives._losses import cross_entropy, double_softmax_cross_entropy, soft_labels
from jaxleak.objectives._matching import (
    TERMS,
    MatchingObjective,
    Quantities,
    bn_objective,
    cafe_objective,
    cosine_tv_objective,
    dlg_objective,
    gc_objective,
    matching_objective,
    sapag_objective,
)
from jaxleak.objectives._regularizers import (
    activation_statistics_distance,
    feature_distance,
    group_consistency,
    total_variation,
    truncated_tv,
)

__all__ = [
    "TERMS",
    "Distance",
    "MatchingObjective",
    "Quantities",
    "activation_statistics_distance",
    "bn_objective",
    "cafe_objective",
    "cosine",
    "cosine_tv_objective",
    "cross_entropy",
    "dlg_objective",
    "double_softmax_cross_entropy",
    "feature_distance",
    "gaussian_kernel",
    "gc_objective",
    "group_consistency",
    "l1",
    "matching_objective",
    "sapag_objective",
    "soft_labels",
    "squared_l2",
    "total_variation",
    "truncated_tv",
]
