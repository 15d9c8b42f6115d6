"""Attacks: what an honest-but-curious server computes from what it sees."""

from jaxleak.attacks._baselines import (
    bn_regularizer,
    cafe_cosine,
    cosine_tv,
    dlg,
    gc_regularizer,
    gradient_matching,
    idlg,
    sapag,
)
from jaxleak.attacks._cafe import CafeOptimizers, CafeState, cafe
from jaxleak.attacks._cafe_exact import CafeExactPlan, Recovery, cafe_exact, plan_cafe_exact, recover
from jaxleak.attacks._cafe_presets import (
    TABLE9,
    CafeHyperparameters,
    cafe_iclr,
    cafe_upstream,
    normalized_sgd,
    table9,
    twice_corrected_adam,
)
from jaxleak.attacks._feature_inversion import InversionOptions, InversionResult, invert_features
from jaxleak.attacks._labels import recover_labels, true_output_gradients
from jaxleak.attacks._slice_inverter import SliceInverter, invert_slices

__all__ = [
    "TABLE9",
    "CafeExactPlan",
    "CafeHyperparameters",
    "CafeOptimizers",
    "CafeState",
    "InversionOptions",
    "InversionResult",
    "Recovery",
    "SliceInverter",
    "bn_regularizer",
    "cafe",
    "cafe_cosine",
    "cafe_exact",
    "cafe_iclr",
    "cafe_upstream",
    "cosine_tv",
    "dlg",
    "gc_regularizer",
    "gradient_matching",
    "idlg",
    "invert_features",
    "invert_slices",
    "normalized_sgd",
    "plan_cafe_exact",
    "recover",
    "recover_labels",
    "sapag",
    "table9",
    "true_output_gradients",
    "twice_corrected_adam",
]
