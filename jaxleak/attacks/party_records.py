"""The parts of attacks on one party's record of split vertical learning: `vflrecon` and `vflrecon_free`.

The parts are the fields of a record that may be read, the shadow runs that train the reconstruction network, what the
attacker predicts from its own features alone, and labels from comparisons of returned gradients. Two further attacks
are for the label holder, who receives the embeddings that the parties send. It can predict the parties' features by
regression (`fit_embedding_regression`). Where a cipher hides the embeddings, it can solve equations for them
(`solved_embeddings`).
"""

from jaxleak.attacks._vertical.baselines import FeatureBaseline, LabelBaseline, fit_feature_baseline, fit_label_baseline
from jaxleak.attacks._vertical.embedding_regression import (
    EmbeddingRegression,
    fit_embedding_regression,
    solved_embeddings,
)
from jaxleak.attacks._vertical.gradient_regression import GradientRegression, fit_gradient_regression
from jaxleak.attacks._vertical.label_comparisons import direction_labels, norm_labels, sign_labels
from jaxleak.attacks._vertical.reconstruction_net import ReconstructionNet
from jaxleak.attacks._vertical.record_fields import FIELDS, PAPER_FIELDS
from jaxleak.attacks._vertical.recorded import recorded
from jaxleak.attacks._vertical.selection import FIELD_CANDIDATES, FieldSelection, select_fields
from jaxleak.attacks._vertical.vflrecon import (
    SHADOW_INITS,
    ShadowInit,
    flat_observations,
    join_runs,
    shadow_params,
    victims_features,
)
from jaxleak.attacks._vertical.vflrecon_free import FreeLabels, aligned_signals, fit_aligned_features, free_labels

__all__ = [
    "FIELDS",
    "FIELD_CANDIDATES",
    "PAPER_FIELDS",
    "SHADOW_INITS",
    "EmbeddingRegression",
    "FeatureBaseline",
    "FieldSelection",
    "FreeLabels",
    "GradientRegression",
    "LabelBaseline",
    "ReconstructionNet",
    "ShadowInit",
    "aligned_signals",
    "direction_labels",
    "fit_aligned_features",
    "fit_embedding_regression",
    "fit_feature_baseline",
    "fit_gradient_regression",
    "fit_label_baseline",
    "flat_observations",
    "free_labels",
    "join_runs",
    "norm_labels",
    "recorded",
    "select_fields",
    "shadow_params",
    "sign_labels",
    "solved_embeddings",
    "victims_features",
]
