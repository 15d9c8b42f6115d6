"""Attacks: what an honest-but-curious server computes from what it sees."""

from jaxleak.attacks import presets
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
from jaxleak.attacks._cafe_censored import CafeCensoredState, cafe_censored, recover_censored, visible_entries
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
from jaxleak.attacks._cafe_sharded import shard_cafe
from jaxleak.attacks._candidates import Candidate, generator_latents, generator_weights, pixels
from jaxleak.attacks._evolution import cma_es
from jaxleak.attacks._feature_inversion import InversionOptions, InversionResult, invert_features
from jaxleak.attacks._inversion import MATCHED_BELOW, inversion
from jaxleak.attacks._label_rules import LABEL_RULES, infer_labels
from jaxleak.attacks._labels import recover_labels, true_output_gradients
from jaxleak.attacks._patch_embedding import patch_embedding
from jaxleak.attacks._payload import check_payload
from jaxleak.attacks._public_generator import PublicGenerator, train_generator
from jaxleak.attacks._reconstruction_net import ReconstructionNet
from jaxleak.attacks._settings import Settings
from jaxleak.attacks._slice_inverter import SliceInverter, invert_slices
from jaxleak.attacks._smoothing import Smoothing, recommended_smoothing, smoothing
from jaxleak.attacks._vfl_baselines import FeatureBaseline, LabelBaseline, fit_feature_baseline, fit_label_baseline
from jaxleak.attacks._vfl_label_comparisons import direction_labels, norm_labels, sign_labels
from jaxleak.attacks._vfl_selection import FIELD_CANDIDATES, Selection, select_fields
from jaxleak.attacks._vflrecon import (
    FIELDS,
    PAPER_FIELDS,
    SHADOW_INITS,
    ShadowInit,
    flat_observations,
    join_runs,
    shadow_params,
    train_vflrecon,
    vflrecon,
    victims_features,
)
from jaxleak.attacks._vflrecon_free import (
    FreeLabels,
    aligned_signals,
    fit_aligned_features,
    free_labels,
    vflrecon_free,
)

__all__ = [
    "FIELDS",
    "FIELD_CANDIDATES",
    "LABEL_RULES",
    "MATCHED_BELOW",
    "PAPER_FIELDS",
    "SHADOW_INITS",
    "TABLE9",
    "CafeCensoredState",
    "CafeExactPlan",
    "CafeHyperparameters",
    "CafeOptimizers",
    "CafeState",
    "Candidate",
    "FeatureBaseline",
    "FreeLabels",
    "InversionOptions",
    "InversionResult",
    "LabelBaseline",
    "PublicGenerator",
    "ReconstructionNet",
    "Recovery",
    "Selection",
    "Settings",
    "ShadowInit",
    "SliceInverter",
    "Smoothing",
    "aligned_signals",
    "bn_regularizer",
    "cafe",
    "cafe_censored",
    "cafe_cosine",
    "cafe_exact",
    "cafe_iclr",
    "cafe_upstream",
    "check_payload",
    "cma_es",
    "cosine_tv",
    "direction_labels",
    "dlg",
    "fit_aligned_features",
    "fit_feature_baseline",
    "fit_label_baseline",
    "flat_observations",
    "free_labels",
    "gc_regularizer",
    "generator_latents",
    "generator_weights",
    "gradient_matching",
    "idlg",
    "infer_labels",
    "inversion",
    "invert_features",
    "invert_slices",
    "join_runs",
    "norm_labels",
    "normalized_sgd",
    "patch_embedding",
    "pixels",
    "plan_cafe_exact",
    "presets",
    "recommended_smoothing",
    "recover",
    "recover_censored",
    "recover_labels",
    "sapag",
    "select_fields",
    "shadow_params",
    "shard_cafe",
    "sign_labels",
    "smoothing",
    "table9",
    "train_generator",
    "train_vflrecon",
    "true_output_gradients",
    "twice_corrected_adam",
    "vflrecon",
    "vflrecon_free",
    "victims_features",
    "visible_entries",
]
