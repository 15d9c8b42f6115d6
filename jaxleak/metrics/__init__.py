"""How close a reconstruction came, judged with the truth in hand.

Only evaluation may use these functions: attacks never import this package, because an attacker has no truth to
compare with. NumPy on the host, float64 inside. Values that are not finite in an estimate give scores that are
not finite either; what matches images with each other refuses them.
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
