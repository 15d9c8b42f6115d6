"""Defenses: optax transforms of shared values, each with the place where it acts."""

from jaxleak.defenses import mechanisms
from jaxleak.defenses._accounting import (
    classical_noise_multiplier,
    epsilon_of,
    epsilon_of_schedule,
    noise_multiplier_of,
    noise_multiplier_shorthand,
)
from jaxleak.defenses._adam_step import adam_step
from jaxleak.defenses._base import (
    HORIZONTAL_PLACES,
    SPLIT_PLACES,
    Defense,
    PayloadEncoding,
    chain,
    per_leaf,
    stateless,
)
from jaxleak.defenses._client_accounting import true_epsilon
from jaxleak.defenses._client_defenses import CLIENT_DEFENSES, SHORTHAND_DELTA, ClientDefense, client_defense
from jaxleak.defenses._composed import composed
from jaxleak.defenses._compression import bits_on_the_wire, quantize, sparsify, withhold_top
from jaxleak.defenses._declared import MechanismComparison, check_mechanism
from jaxleak.defenses._dp_sgd import adaptive_dp_sgd, dp_sgd
from jaxleak.defenses._fake_gradients import fake_gradients
from jaxleak.defenses._feature_dropout import feature_dropout
from jaxleak.defenses._gaussian import clipped_gaussian
from jaxleak.defenses._guardian import guardian
from jaxleak.defenses._label_noise import label_dp_scale
from jaxleak.defenses._marvell import marvell
from jaxleak.defenses._noise import cancelling_noise, gaussian_noise, laplace_noise, magnitude_noise
from jaxleak.defenses._outpost import outpost
from jaxleak.defenses._soteria import soteria
from jaxleak.defenses._split_defenses import SPLIT_DEFENSES, SplitDefense, SplitRun, split_defense
from jaxleak.defenses._vfl_defender import Reading, vfl_defender

__all__ = [
    "CLIENT_DEFENSES",
    "ClientDefense",
    "Defense",
    "PayloadEncoding",
    "HORIZONTAL_PLACES",
    "MechanismComparison",
    "Reading",
    "SHORTHAND_DELTA",
    "SPLIT_DEFENSES",
    "SPLIT_PLACES",
    "SplitDefense",
    "SplitRun",
    "adam_step",
    "adaptive_dp_sgd",
    "bits_on_the_wire",
    "cancelling_noise",
    "chain",
    "check_mechanism",
    "client_defense",
    "classical_noise_multiplier",
    "clipped_gaussian",
    "composed",
    "dp_sgd",
    "epsilon_of",
    "epsilon_of_schedule",
    "fake_gradients",
    "feature_dropout",
    "gaussian_noise",
    "guardian",
    "label_dp_scale",
    "laplace_noise",
    "magnitude_noise",
    "marvell",
    "mechanisms",
    "noise_multiplier_of",
    "noise_multiplier_shorthand",
    "outpost",
    "per_leaf",
    "quantize",
    "soteria",
    "sparsify",
    "split_defense",
    "stateless",
    "true_epsilon",
    "vfl_defender",
    "withhold_top",
]
