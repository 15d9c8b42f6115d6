"""Objectives of matching attacks: CAFE's F3, and the objectives that its papers compare it with.

An objective compares the known `Quantities` of the real batch with those of the fake batch. It states which quantities
it needs. An attack then computes no others, and can refuse early if the threat grants too little.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.objectives._distances import Distance, cosine, gaussian_kernel, squared_l2
from jaxleak.objectives._regularizers import activation_statistics_distance, feature_distance, truncated_tv

#: The terms that every objective reports, unweighted; a term that it does not use is 0.
TERMS = ("gradient", "tv", "features", "statistics")


class Quantities(NamedTuple):
    """What is known about a batch. Fields that an objective does not need may be None."""

    x: Any = None  # (B, P, *slice); None for the real batch
    gradient: PyTree = None  # the shared gradient
    features: Any = None  # (B, P, d1), inputs of the first dense layer
    statistics: PyTree = None  # means and variances of the extractor's pre-activations


class MatchingObjective(NamedTuple):
    """An objective that is minimised over the fake batch.

    needs: which of "gradient", "features" and "statistics" `value` reads, and "images" if slices must be images.
    value: `(observed, simulated) -> (loss (), terms)`, terms a dict with the keys `TERMS`.
    consistency: weight of `group_consistency` for attacks that run several candidates.
    """

    needs: frozenset[str]
    value: Callable[[Quantities, Quantities], tuple[jax.Array, dict[str, jax.Array]]]
    consistency: float = 0.0


def matching_objective(
    *,
    alpha: float = 0.0,
    distance: Distance = squared_l2,
    beta: float = 0.0,
    xi: float = 0.0,
    gamma: float = 0.0,
    statistics: float = 0.0,
    consistency: float = 0.0,
) -> MatchingObjective:
    """The weighted sum of all terms of this module; a term of weight 0 is neither computed nor needed.

    Args:
        alpha: weight of the gradient distance, >= 0.
        distance: gradient distance.
        beta: weight of the truncated total variation, >= 0.
        xi: threshold of that variation, >= 0, see `truncated_tv`.
        gamma: weight of the representation term, >= 0.
        statistics: weight of the activation statistics, >= 0.
        consistency: weight of the group consistency, >= 0.

    Raises:
        ValueError: if a weight is negative or not finite, or all of them are 0.
    """
    weights = {"alpha": alpha, "beta": beta, "gamma": gamma, "statistics": statistics, "consistency": consistency}
    _validate.non_negative(**weights, xi=xi)
    if not (alpha or beta or gamma or statistics):
        raise ValueError("an objective needs at least one positive weight among alpha, beta, gamma, statistics")
    used = {"gradient": alpha, "images": beta, "features": gamma, "statistics": statistics}

    def value(observed: Quantities, simulated: Quantities) -> tuple[jax.Array, dict[str, jax.Array]]:
        terms = dict.fromkeys(TERMS, jnp.zeros(()))
        if alpha:
            terms["gradient"] = distance(observed.gradient, simulated.gradient)
        if beta:
            terms["tv"] = truncated_tv(simulated.x, xi)
        if gamma:
            terms["features"] = feature_distance(observed.features, simulated.features)
        if statistics:
            terms["statistics"] = activation_statistics_distance(observed.statistics, simulated.statistics)
        loss = alpha * terms["gradient"] + beta * terms["tv"] + gamma * terms["features"]
        return loss + statistics * terms["statistics"], terms

    return MatchingObjective(frozenset(name for name, weight in used.items() if weight), value, consistency)


def cafe_objective(
    *, alpha: float = 1e-2, beta: float = 1e-4, gamma: float = 1e-3, xi: float = 90.0, distance: Distance = squared_l2
) -> MatchingObjective:
    """CAFE's F3 (NeurIPS 2021, equation 9): `alpha ||g - g'||^2 + beta TV_xi + gamma sum_n ||h_n - h'_n||^2`.

    The ICLR 2021 submission's loss (equation 8) is alpha = 1. Defaults are those of CIFAR-10 (NeurIPS, Table 9).

    Args:
        alpha: weight of the gradient term, >= 0.
        beta: weight of the truncated total variation, >= 0.
        gamma: weight of the features' term, >= 0; 0 needs no features.
        xi: the total variation counts only above this value, >= 0.
        distance: the distance between two gradients.

    Raises:
        ValueError: on a negative weight.
    """
    return matching_objective(alpha=alpha, distance=distance, beta=beta, xi=xi, gamma=gamma)


def dlg_objective() -> MatchingObjective:
    """Deep leakage from gradients: the squared distance only (NeurIPS 2021, section 4.1, i)."""
    return matching_objective(alpha=1.0)


def cosine_tv_objective(beta: float = 1e-4) -> MatchingObjective:
    """Cosine distance plus total variation, never truncated (Geiping et al. 2020; NeurIPS 2021, section 4.1, ii).

    `beta` >= 0 is the weight of the total variation, and that of the distance is 1.
    """
    return matching_objective(alpha=1.0, distance=cosine, beta=beta)


def sapag_objective() -> MatchingObjective:
    """SAPAG: the Gaussian-kernel distance only (NeurIPS 2021, section 4.1, iii)."""
    return matching_objective(alpha=1.0, distance=gaussian_kernel)


def bn_objective(alpha: float = 1e-2, statistics: float = 1e-3) -> MatchingObjective:
    """The gradient term of F3 plus matched activation statistics (NeurIPS 2021, section 4.1, iv).

    `alpha` and `statistics` are the weights of the two terms, >= 0.
    """
    return matching_objective(alpha=alpha, statistics=statistics)


def gc_objective(alpha: float = 1e-2, consistency: float = 1e-3) -> MatchingObjective:
    """The gradient term of F3 plus group consistency (NeurIPS 2021, section 4.1, v).

    `alpha` and `consistency` are the weights of the two terms, >= 0.
    """
    return matching_objective(alpha=alpha, consistency=consistency)
