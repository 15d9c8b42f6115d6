"""The parts of attacks on a server's aggregated gradients of many rounds, with the indices of every batch.

The module holds the settings and parts of CAFE in its two forms: `cafe` descends an objective, and `cafe_exact` solves
equations. It also holds CAFE as its papers and its published code configure it. The last part is the attacks that CAFE
is compared with: they optimise index-aligned fake samples under other objectives (`aligned_dlg` and the other functions
whose names begin with `aligned`).
"""

from jaxleak.attacks._cafe.baselines import (
    aligned_batch_statistics,
    aligned_cosine_tv,
    aligned_dlg,
    aligned_group_consistency,
    aligned_idlg,
    aligned_matching,
    aligned_sapag,
)
from jaxleak.attacks._cafe.censored import CafeCensoredState, visible_entries
from jaxleak.attacks._cafe.exact import CafeExactPlan, Recovery
from jaxleak.attacks._cafe.feature_inversion import (
    FeatureInversionOptions,
    FeatureInversionResult,
    invert_features,
)
from jaxleak.attacks._cafe.labels import true_output_gradients
from jaxleak.attacks._cafe.ordinal import CafeOrdinalState, kernel_to_bias_ratio
from jaxleak.attacks._cafe.presets import (
    CAFE_ICLR,
    CAFE_UPSTREAM,
    TABLE9,
    CafeHyperparameters,
    cosine_options,
    normalized_sgd,
    published_hyperparameters,
    twice_corrected_adam,
)
from jaxleak.attacks._cafe.sharded import shard_cafe
from jaxleak.attacks._cafe.slice_inverter import SliceInverter, invert_slices
from jaxleak.attacks._cafe.three_steps import CafeOptimizers, CafeOptions, CafeState

__all__ = [
    "CAFE_ICLR",
    "CAFE_UPSTREAM",
    "TABLE9",
    "CafeCensoredState",
    "CafeExactPlan",
    "CafeHyperparameters",
    "CafeOptimizers",
    "CafeOptions",
    "CafeOrdinalState",
    "CafeState",
    "FeatureInversionOptions",
    "FeatureInversionResult",
    "Recovery",
    "SliceInverter",
    "aligned_batch_statistics",
    "aligned_cosine_tv",
    "aligned_dlg",
    "aligned_group_consistency",
    "aligned_idlg",
    "aligned_matching",
    "aligned_sapag",
    "cosine_options",
    "invert_features",
    "invert_slices",
    "kernel_to_bias_ratio",
    "normalized_sgd",
    "published_hyperparameters",
    "shard_cafe",
    "true_output_gradients",
    "twice_corrected_adam",
    "visible_entries",
]
