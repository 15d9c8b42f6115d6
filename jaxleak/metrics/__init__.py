"""Scores of a reconstruction against the truth.

Only evaluation may use these functions: attacks never import this package, because an attacker has no truth to compare
with. They compute with NumPy on the host in float64. If an estimate has values that are not finite, its scores are not
finite either; functions that match images with each other refuse such values.
"""

from jaxleak.metrics._features import feature_mse, feature_r2, feature_variance
from jaxleak.metrics._images import (
    grey_psnr,
    mean_color_psnr,
    mse,
    psnr,
    psnr_channel_peak,
    psnr_up_to_scale,
    psnr_upstream,
    ssim,
    tinted_like,
)
from jaxleak.metrics._labels import balanced_label_accuracy, label_accuracy, label_multiset_accuracy
from jaxleak.metrics._matching import best_match_psnr, match_best, match_one_to_one
from jaxleak.metrics._perceptual import lpips
from jaxleak.metrics._scores import image_scores

__all__ = [
    "balanced_label_accuracy",
    "best_match_psnr",
    "feature_mse",
    "feature_r2",
    "feature_variance",
    "grey_psnr",
    "image_scores",
    "label_accuracy",
    "label_multiset_accuracy",
    "lpips",
    "match_best",
    "match_one_to_one",
    "mean_color_psnr",
    "mse",
    "psnr",
    "psnr_channel_peak",
    "psnr_up_to_scale",
    "psnr_upstream",
    "ssim",
    "tinted_like",
]
