"""How close a reconstruction came, judged with the truth in hand.

Only evaluation may use these functions: attacks never import this package, because an attacker has no truth to
compare with. NumPy on the host, float64 inside. Values that are not finite in an estimate give scores that are
not finite either.
"""

from jaxleak.metrics._images import mse, psnr, psnr_channel_peak, psnr_upstream, ssim
from jaxleak.metrics._labels import label_accuracy, label_multiset_accuracy
from jaxleak.metrics._matching import match_one_to_one

__all__ = [
    "label_accuracy",
    "label_multiset_accuracy",
    "match_one_to_one",
    "mse",
    "psnr",
    "psnr_channel_peak",
    "psnr_upstream",
    "ssim",
]
