"""CAFE against fake gradients, by an attacker who knows the defense: the entries that arrive unchanged are enough.

Fake gradients (CAFE, NeurIPS 2021, Algorithm 5, with its negative half repaired) upload min(|g_l|, psi_l) with the sign
of g, where psi is noise sorted like |g|. An uploaded entry is therefore either true or cut off at the noise of its
rank. Entries that are cut off follow the half-normal curve over their ranks, which reveals the scale of the noise. The
rest is least squares with missing equations: Steps I and II of `cafe_exact` hold entry by entry, so every hidden unit
(Step I) and every feature (Step II) is solved from the equations of true entries.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # scipy's subpackages load when they are first used

from jaxleak._base import Attack, Batch, Loss, Observation, PyTree, Reconstruction
from jaxleak.attacks._cafe.exact import (
    CafeExactPlan,
    Recovery,
    answer_of,
    check_seen,
    diagnose,
    recorded,
    rows_to_add,
)
from jaxleak.attacks._cafe.feature_inversion import FeatureInversionOptions, check_step_three
from jaxleak.attacks._cafe.least_squares import LinearSolution, incidence_matrix, live_rows
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import SplitModel
from jaxleak.objectives import cross_entropy

#: Share of the largest entries from which the scale of the noise is read: if any entries are cut off, these are.
_TOP = 0.01
#: Number of entries that are sampled from a larger tensor and ranked in its place: sorting millions of entries in every
#: round would cost more than everything else.
_SAMPLE = 2**16
#: How far below the curve an entry still counts as cut off: this share of the scale, plus about three standard
#: deviations of it.
_SLACK = 0.1
#: Smallest eigenvalue of a unit's or feature's normal matrix, as a share of the largest, that counts as determined.
_DETERMINED = 1e-5


class CafeCensoredState(NamedTuple):
    """The state that the attack carries from round to round. Memory O(T1 P d2 + P d1 N^2)."""

    seen: jax.Array  # () int32, rounds seen
    batches: jax.Array  # (T1 + T2, K) int32
    bias_gradients: jax.Array  # (T1, P, d2)
    visible: jax.Array  # (T1, P, d2) bool, which bias gradients arrived unchanged
    V: jax.Array  # (N, P, d2), zero until round T1
    resolved: jax.Array  # (P, d2) bool, hidden units whose V the visible entries determine; all before round T1
    normal: jax.Array  # (N, N, P, d1), every feature's normal matrix
    projected: jax.Array  # (N, P, d1), right-hand side of these normal equations


def visible_entries(upload: jax.Array) -> jax.Array:
    """Which entries of one uploaded tensor are true gradients rather than the noise that caps them.

    Args:
        upload: tensor of any shape, behind `defenses.fake_gradients(reading="clamped")` with any variance. It has at
            least 8 entries and should have hundreds, since the ranks of few entries scatter beyond the slack.

    Returns:
        Booleans of the same shape. In an upload that was never capped, about the largest percent is wrongly False.

    Raises:
        ValueError: on fewer than 8 entries, whose ranks say too little.
    """
    size = upload.size
    if size < 8:
        raise ValueError(f"upload must have at least 8 entries to read the noise from their ranks, got {size}")
    magnitudes = jnp.abs(upload)
    ranked = magnitudes.ravel()
    if size > _SAMPLE:
        ranked = ranked[np.random.default_rng(0).choice(size, _SAMPLE, replace=False)]
    ranked = -jnp.sort(-ranked)
    count = ranked.size
    ratio = ranked / -scipy.special.ndtri((np.arange(count) + 0.5) / count / 2).astype(np.float32)
    scale = jnp.median(ratio[: max(8, round(_TOP * count))])
    slack = min(_SLACK + 3 / count**0.5, 0.5)
    # Every rank up to the last one on the curve counts as cut off, since single ranks may dip below the curve.
    last = count - 1 - jnp.argmax((ratio >= (1 - slack) * scale)[::-1])
    return magnitudes < ranked[last]


def cafe_censored(
    model: SplitModel,
    plan: CafeExactPlan,
    *,
    loss: Loss = cross_entropy,
    inversion: FeatureInversionOptions | None = None,
    invert: bool = True,
    seed: int = 0,
) -> Attack:
    """`cafe_exact` for rounds that fake gradients protect, by an attacker who knows the defense but not its variance.

    Step I needs more rounds than without a defense, and their number grows with the share of bias entries that are cut
    off: pass `output_rounds` to `plan_cafe_exact`. Every feature has a normal matrix of its own, so N is limited by
    memory: 4 P d1 N^2 bytes.

    Args:
        model: the attacked model, possibly behind `models.frozen_features` for the rounds.
        plan: result of `plan_cafe_exact` for one worker.
        loss: the clients' loss.
        inversion: options of Step III.
        invert: whether `reconstruct` runs Step III, see `cafe_exact`.
        seed: random seed of Step III's synthetic slices and restarts.

    Returns:
        An `Attack` whose answer is like that of `cafe_exact`.

    Raises:
        ValueError: if the plan is for several workers, or options or the seed are out of range; when an observation is
            first seen, if the threat withholds what is read or the batch is not of the plan's size; and in
            `reconstruct`, if rounds of the plan are missing (says how many) or Step II's rounds did not show the
            kernel's gradient.
    """
    if plan.workers != 1:
        raise ValueError(f"cafe_censored attacks rounds of one worker, got a plan for {plan.workers} workers")
    check_step_three(inversion, seed)
    n, p, width, d1 = plan.num_samples, model.parties, model.width, model.feature_size
    # Step I needs only these leaves; Step II reads "first/kernel" too, as in `cafe_exact`.
    reads = Reads("cafe_censored", leaves=("first/bias",), index=True)

    def init(key: jax.Array, template: Batch) -> CafeCensoredState:
        del key, template  # Nothing is random or data-shaped before Step III.
        return CafeCensoredState(
            seen=jnp.zeros((), jnp.int32),
            batches=jnp.zeros((plan.rounds, plan.batch_size), jnp.int32),
            bias_gradients=jnp.zeros((plan.output_rounds, p, width)),
            visible=jnp.zeros((plan.output_rounds, p, width), bool),
            V=jnp.zeros((n, p, width)),
            resolved=jnp.ones((p, width), bool),
            normal=jnp.zeros((n, n, p, d1)),
            projected=jnp.zeros((n, p, d1)),
        )

    def step(
        key: jax.Array, state: CafeCensoredState, observation: Observation
    ) -> tuple[CafeCensoredState, dict[str, jax.Array]]:
        del key
        seen = require(observation, reads)
        index, first = seen.index, seen.payload["first"]
        t, visible = state.seen, visible_entries(first["bias"])
        state = state._replace(
            **recorded(state, index, first["bias"]),
            visible=state.visible.at[t].set(visible, mode="drop"),
        )
        if first.get("kernel") is not None:
            v, resolved = jax.lax.cond(
                t == plan.output_rounds,
                lambda: _output_gradients(state.batches[: plan.output_rounds], state.bias_gradients, state.visible, n),
                lambda: (state.V, state.resolved),
            )
            kernel = first["kernel"]
            weight = (visible_entries(kernel) & resolved[:, None]).astype(jnp.float32)
            # V is zero during Step I, so nothing is added then.
            gram, rhs = _equations(v[index], kernel, weight)
            rows = rows_to_add(plan, t, index)
            state = state._replace(
                V=v,
                resolved=resolved,
                normal=state.normal.at[rows[:, None], rows[None, :]].add(gram, mode="drop"),
                projected=state.projected.at[rows].add(rhs, mode="drop"),
            )
        phase = jnp.where(t < plan.output_rounds, 1, 2)
        return state, {"phase": phase, "visible_bias_entries": visible.mean()}

    def reconstruct(state: CafeCensoredState, observation: Observation) -> Reconstruction:
        params = require(observation, Reads(reads.who, params=True)).params
        recovery = _recovered(model, params, plan, state, loss)
        return answer_of(model, params, recovery, inversion, seed, invert=invert)

    return Attack(init, step, reconstruct)


def _recovered(
    model: SplitModel, params: PyTree, plan: CafeExactPlan, state: CafeCensoredState, loss: Loss
) -> Recovery:
    """Solve for H, recover labels and diagnose every sample, from the state after all rounds of the plan."""
    batches, v, resolved = (np.asarray(part) for part in (state.batches, state.V, state.resolved))
    check_seen(plan, state.seen, v, resolved)
    table, determined = jax.jit(_features)(state.V, state.normal, state.projected)
    # A feature that the visible entries do not determine is left at zero and shows in the samples' consistency.
    features = LinearSolution(np.asarray(table), plan.num_samples if bool(determined.all()) else 0, float("nan"))
    return diagnose(model, params, plan, batches, v, resolved, features, loss)


def _equations(v: jax.Array, kernel: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A batch's part of the normal matrices (K, K, P, d1) and of their right-hand sides (K, P, d1)."""

    def one_party(v: jax.Array, kernel: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        k = v.shape[0]
        pairs = (v[:, None] * v[None]).reshape(k * k, -1)  # one matrix product instead of d1 small ones
        return (pairs @ weight.T).reshape(k, k, -1), v @ (weight * kernel).T

    gram, rhs = jax.lax.map(lambda arguments: one_party(*arguments), (v.transpose(1, 0, 2), kernel, weight))
    return gram.transpose(1, 2, 0, 3), rhs.transpose(1, 0, 2)


def _output_gradients(
    batches: jax.Array, bias_gradients: jax.Array, visible: jax.Array, n: int
) -> tuple[jax.Array, jax.Array]:
    """Step I, unit by unit: V (N, P, d2) and which units (P, d2) the visible entries determine; V is 0 elsewhere."""
    incidence = incidence_matrix(batches, n)

    def one_unit(arguments: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        g, weight = arguments
        eigenvalues, q = jnp.linalg.eigh((incidence * weight[:, None]).T @ incidence)

        def solve(residual: jax.Array) -> jax.Array:
            return q @ ((q.T @ (incidence.T @ residual)) / eigenvalues)

        v = solve(weight * g)
        for _ in range(2):  # the normal matrix squares the condition number; refinement restores float32 accuracy
            v = v + solve(weight * (g - incidence @ v))
        determined = eigenvalues[0] > _DETERMINED * eigenvalues[-1]
        return jnp.where(determined, v, 0.0), determined

    rounds, p, width = bias_gradients.shape
    columns = (bias_gradients.reshape(rounds, -1).T, visible.reshape(rounds, -1).T.astype(bias_gradients.dtype))
    v, determined = jax.lax.map(one_unit, columns)
    return v.T.reshape(n, p, width), determined.reshape(p, width)


def _features(v: jax.Array, normal: jax.Array, projected: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Step II, feature by feature: H (N, P, d1), and which features (P, d1) are determined."""
    norms, live = live_rows(v)

    def one_party(arguments: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        normal, rhs, scale, live = arguments
        inverse = jnp.where(live, 1 / jnp.where(live, scale, 1.0), 0.0)

        def one_feature(arguments: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            a, b = arguments
            # Dead rows get the mean eigenvalue of the live rows on the diagonal, or 1 if there are no live rows.
            unit = inverse[:, None] * a * inverse
            typical = jnp.where(live.any(), jnp.trace(unit) / jnp.maximum(live.sum(), 1), 1.0)
            stand_in = jnp.where(live, 0.0, typical)
            eigenvalues, q = jnp.linalg.eigh(unit + jnp.diag(stand_in))
            determined = eigenvalues[0] > _DETERMINED * eigenvalues[-1]
            h = inverse * (q @ ((q.T @ (inverse * b)) / eigenvalues))
            return jnp.where(determined, h, 0.0), determined

        return jax.lax.map(one_feature, (normal.transpose(2, 0, 1), rhs.T))

    h, determined = jax.lax.map(
        one_party, (normal.transpose(2, 0, 1, 3), projected.transpose(1, 0, 2), norms.T, live.T)
    )
    return h.transpose(2, 0, 1), determined
