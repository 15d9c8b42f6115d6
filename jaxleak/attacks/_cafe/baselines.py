"""The attacks that CAFE is compared with: Step III alone, with another objective in place of F3.

NeurIPS 2021, Table 2, and ICLR 2021, Tables 1 and 2, compare these attacks. In the former table all run for the same
number of iterations on the same model, with aligned indices. The attacks recover neither V nor H and have no tables for
them.
"""

from collections.abc import Callable
from typing import NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import Attack, Batch, Observation, Reconstruction, ShareFn
from jaxleak.attacks._cafe.fake_data import (
    FakeData,
    LabelMode,
    Optimizer,
    fake_data_step,
    reads_of,
)
from jaxleak.attacks._observed import require
from jaxleak.models import SplitModel
from jaxleak.objectives import (
    MatchingObjective,
    Quantities,
    bn_objective,
    cosine_tv_objective,
    dlg_objective,
    gc_objective,
    sapag_objective,
)


class MatchingState(NamedTuple):
    """State of a matching attack."""

    batches: jax.Array  # () int32, number of batches seen so far
    data: FakeData
    misfit: jax.Array  # (N,) objective of the last batch that a sample was in; inf before


class MatchingOptions(TypedDict, total=False):
    """Keyword arguments of `aligned_matching` that the baselines pass through."""

    learning_rate: float
    optimizer: Callable[[float], Optimizer]
    label_mode: LabelMode
    box: tuple[float, float] | None
    inner_updates: int


def aligned_matching(
    model: SplitModel,
    share: ShareFn,
    *,
    num_samples: int,
    objective: MatchingObjective,
    learning_rate: float = 1e-2,
    optimizer: Callable[[float], Optimizer] = optax.adam,
    label_mode: LabelMode = "joint",
    box: tuple[float, float] | None = (0.0, 1.0),
    inner_updates: int = 1,
    candidates: int = 1,
) -> Attack:
    """Descend `objective` on the rows of every observed batch.

    Args:
        model: the model under attack.
        share: the protocol's own `share`.
        num_samples: size N of the private set; unlike for CAFE, K = N is allowed.
        objective: the objective to minimise; it may not need features, which these attacks do not recover.
        learning_rate: learning rate, > 0.
        optimizer: function from a learning rate to an optimiser with a state per row; CAFE's papers name none for
            these attacks.
        label_mode: "joint", "given" or "fixed", see `fake_data_step`.
        box: (lowest, highest) value of a sample, to which candidates are clipped, in the unit of the data; or None.
        inner_updates: updates per batch, >= 1.
        candidates: number G >= 1 of candidates per sample, which only group consistency couples; the answer is their
            mean.

    Returns:
        An `Attack`. Its info holds the objective, as F3, and the objective's unweighted terms. A batch's objective says
        nothing about single samples, so a sample's score is the objective of the last batch it was in.

    Raises:
        ValueError: on arguments out of range, and, when an observation is first seen, if the threat withholds
            indices, a payload leaf, labels or statistics that this configuration reads.
    """
    _validate.positive(learning_rate=learning_rate)
    if "features" in objective.needs:
        raise ValueError("aligned_matching recovers no features; use cafe for objectives with gamma > 0")
    fake = fake_data_step(
        model,
        share,
        num_samples=num_samples,
        objective=objective,
        optimizer=optimizer(learning_rate),
        label_mode=label_mode,
        box=box,
        inner_updates=inner_updates,
        candidates=candidates,
    )
    reads = reads_of("aligned_matching", objective, label_mode)

    def init(key: jax.Array, template: Batch) -> MatchingState:
        return MatchingState(
            jnp.zeros((), jnp.int32), fake.init(key, template), jnp.full(num_samples, jnp.inf, jnp.float32)
        )

    def step(
        key: jax.Array, state: MatchingState, observation: Observation
    ) -> tuple[MatchingState, dict[str, jax.Array]]:
        del key
        seen = require(observation, reads)
        observed = Quantities(
            gradient=seen.payload if "gradient" in objective.needs else None,
            statistics=seen.statistics if "statistics" in objective.needs else None,
        )
        data, value, terms = fake.update(state.data, seen, observed)
        state = MatchingState(state.batches + 1, data, state.misfit.at[seen.index].set(value))
        return state, {"F3": value, **terms}

    def reconstruct(state: MatchingState, observation: Observation) -> Reconstruction:
        del observation
        x = state.data.x if candidates == 1 else state.data.x.mean(axis=1)
        return Reconstruction(
            x, fake.labels(state.data), state.misfit, jnp.isfinite(state.misfit)
        )  # inf where never seen

    return Attack(init, step, reconstruct)


def aligned_dlg(model: SplitModel, share: ShareFn, *, num_samples: int, **options: Unpack[MatchingOptions]) -> Attack:
    """Deep leakage from gradients (Zhu et al. 2019): the squared gradient distance, labels optimised jointly.

    Arguments and errors as in `aligned_matching`.
    """
    return aligned_matching(model, share, num_samples=num_samples, objective=dlg_objective(), **options)


def aligned_idlg(model: SplitModel, share: ShareFn, *, num_samples: int, **options: Unpack[MatchingOptions]) -> Attack:
    """DLG given the labels (ICLR 2021, section 4.1, after Zhao et al. 2020); the threat must grant labels.

    Arguments and errors as in `aligned_matching`.
    """
    preset: MatchingOptions = {"label_mode": "given"}
    preset.update(options)
    return aligned_matching(model, share, num_samples=num_samples, objective=dlg_objective(), **preset)


def aligned_cosine_tv(
    model: SplitModel, share: ShareFn, *, num_samples: int, beta: float = 1e-4, **options: Unpack[MatchingOptions]
) -> Attack:
    """Cosine distance plus total variation (Geiping et al. 2020).

    CAFE's papers print no weight for this attack: `beta` is CAFE's own. Slices that are no images need `beta=0`.
    Arguments and errors as in `aligned_matching`.
    """
    return aligned_matching(model, share, num_samples=num_samples, objective=cosine_tv_objective(beta), **options)


def aligned_sapag(model: SplitModel, share: ShareFn, *, num_samples: int, **options: Unpack[MatchingOptions]) -> Attack:
    """SAPAG (Wang et al. 2020): the Gaussian-kernel distance of `jaxleak.objectives.gaussian_kernel`.

    Arguments and errors as in `aligned_matching`.
    """
    return aligned_matching(model, share, num_samples=num_samples, objective=sapag_objective(), **options)


def aligned_batch_statistics(
    model: SplitModel,
    share: ShareFn,
    *,
    num_samples: int,
    alpha: float = 1e-2,
    statistics: float = 1e-3,
    **options: Unpack[MatchingOptions],
) -> Attack:
    """F3's gradient term plus matched activation statistics (Yin et al. 2021); the threat must grant statistics.

    CAFE's papers do not print the weight; `statistics` takes the value of gamma, whose term it replaces. `alpha` weighs
    the gradient term. Other arguments and errors as in `aligned_matching`.
    """
    objective = bn_objective(alpha, statistics)
    return aligned_matching(model, share, num_samples=num_samples, objective=objective, **options)


def aligned_group_consistency(
    model: SplitModel,
    share: ShareFn,
    *,
    num_samples: int,
    alpha: float = 1e-2,
    consistency: float = 1e-3,
    candidates: int = 3,
    **options: Unpack[MatchingOptions],
) -> Attack:
    """F3's gradient term plus group consistency over parallel candidates (Yin et al. 2021); the answer is their mean.

    CAFE's papers print neither the weight nor the number of candidates; `consistency` takes the value of gamma, whose
    term it replaces. `alpha` weighs the gradient term. Other arguments as in `aligned_matching`.

    Raises:
        ValueError: if `candidates` < 2, besides what `aligned_matching` raises.
    """
    if candidates < 2:
        raise ValueError(f"candidates must be >= 2, got {candidates}: one candidate is always consistent")
    objective = gc_objective(alpha, consistency)
    return aligned_matching(
        model, share, num_samples=num_samples, objective=objective, candidates=candidates, **options
    )
