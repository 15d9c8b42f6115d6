"""Attacks: what an honest-but-curious server computes from what it sees."""

from jaxleak.attacks import presets
from jaxleak.attacks._cafe.baselines import (
    bn_regularizer,
    cafe_cosine,
    cosine_tv,
    dlg,
    gc_regularizer,
    gradient_matching,
    idlg,
    sapag,
)
from jaxleak.attacks._cafe.censored import CafeCensoredState, cafe_censored, recover_censored, visible_entries
from jaxleak.attacks._cafe.exact import CafeExactPlan, Recovery, cafe_exact, plan_cafe_exact, recover
from jaxleak.attacks._cafe.feature_inversion import InversionOptions, InversionResult, invert_features
from jaxleak.attacks._cafe.labels import recover_labels, true_output_gradients
from jaxleak.attacks._cafe.ordinal import CafeOrdinalState, cafe_ordinal, recover_ordinal, size_ratio
from jaxleak.attacks._cafe.presets import (
    TABLE9,
    CafeHyperparameters,
    cafe_iclr,
    cafe_upstream,
    normalized_sgd,
    table9,
    twice_corrected_adam,
)
from jaxleak.attacks._cafe.sharded import shard_cafe
from jaxleak.attacks._cafe.slice_inverter import SliceInverter, invert_slices
from jaxleak.attacks._cafe.three_steps import CafeOptimizers, CafeState, cafe
from jaxleak.attacks._inversion.candidates import Candidate, generator_latents, generator_weights, pixels
from jaxleak.attacks._inversion.engine import MATCHED_BELOW, inversion
from jaxleak.attacks._inversion.evolution import cma_es
from jaxleak.attacks._inversion.label_rules import LABEL_RULES, infer_labels
from jaxleak.attacks._inversion.patch_embedding import patch_embedding
from jaxleak.attacks._inversion.priors import recommended_tv
from jaxleak.attacks._inversion.public_generator import PublicGenerator, train_generator
from jaxleak.attacks._inversion.reading import leaves_read
from jaxleak.attacks._inversion.row_space import RowSpace, Shifts
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks._inversion.smoothing import Smoothing, recommended_smoothing, smoothing
from jaxleak.attacks._observed import check_payload
from jaxleak.attacks._vertical.baselines import FeatureBaseline, LabelBaseline, fit_feature_baseline, fit_label_baseline
from jaxleak.attacks._vertical.label_comparisons import direction_labels, norm_labels, sign_labels
from jaxleak.attacks._vertical.reconstruction_net import ReconstructionNet
from jaxleak.attacks._vertical.selection import FIELD_CANDIDATES, Selection, select_fields
from jaxleak.attacks._vertical.vflrecon import (
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
from jaxleak.attacks._vertical.vflrecon_free import (
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
    "CafeOrdinalState",
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
    "RowSpace",
    "Recovery",
    "Selection",
    "Settings",
    "Shifts",
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
    "cafe_ordinal",
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
    "leaves_read",
    "norm_labels",
    "normalized_sgd",
    "patch_embedding",
    "pixels",
    "plan_cafe_exact",
    "presets",
    "recommended_smoothing",
    "recommended_tv",
    "recover",
    "recover_censored",
    "recover_ordinal",
    "recover_labels",
    "sapag",
    "select_fields",
    "shadow_params",
    "shard_cafe",
    "sign_labels",
    "size_ratio",
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
