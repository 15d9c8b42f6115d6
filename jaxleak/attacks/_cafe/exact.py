"""CAFE without gradient descent: least squares for Steps I and II, smoothed Gauss-Newton for Step III.

The attack of "CAFE: Catastrophic Data Leakage in Vertical Federated Learning" (NeurIPS 2021) for frozen parameters,
with the same threat model: the server knows the model, the batch indices and the aggregated gradients. Where the paper
descends for thousands of iterations, this engine solves equations, and reports for every sample whether its answer can
be trusted.
"""

import logging
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxleak import _mesh, _validate
from jaxleak._base import Attack, Batch, Loss, Observation, PyTree, Reconstruction
from jaxleak.attacks._cafe.feature_inversion import FeatureInversionOptions, check_step_three
from jaxleak.attacks._cafe.labels import recover_labels
from jaxleak.attacks._cafe.least_squares import (
    DIRECT_LIMIT,
    LinearSolution,
    live_rows,
    output_gradient_conditioning,
    solve_features,
    solve_output_gradients,
)
from jaxleak.attacks._cafe.slice_inverter import invert_slices
from jaxleak.attacks._cafe.worker_gauge import SMALLEST_CROWD, fix_worker_gauge
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import SplitModel
from jaxleak.objectives import cross_entropy

Solver = Literal["auto", "direct", "matrix_free"]

_log = logging.getLogger("jaxleak")

#: How often Step II sees every sample, by whether the plan factorises matrices. A factorisation costs the same for any
#: number of rounds, while an iteration of the matrix-free solver costs more with every round.
VISITS = {True: 20, False: 6}

#: A sample is trusted when the gradient predicted from its solved features and label agrees with the one of Step I up
#: to this relative error. Clean runs have errors of about 1e-5, runs with noise on the payload 1 and above.
CONSISTENT = 1e-2


class CafeExactPlan(NamedTuple):
    """How many rounds the attack watches, and how it solves."""

    num_samples: int  # N
    batch_size: int  # K
    workers: int  # M workers with fixed shares of every batch in horizontal rounds, 1 otherwise
    output_rounds: int  # T1, rounds of Step I
    feature_rounds: int  # T2, rounds of Step II
    direct: bool  # factorise N x N matrices, or iterate without them

    @property
    def rounds(self) -> int:
        """All rounds that the attack watches."""
        return self.output_rounds + self.feature_rounds


class CafeExactState(NamedTuple):
    """The state that the attack carries from round to round. Memory O(T K + T1 P d2 + N P (d1 + d2))."""

    seen: jax.Array  # () int32, rounds seen
    batches: jax.Array  # (T1 + T2, K) int32
    bias_gradients: jax.Array  # (T1, P, d2)
    V: jax.Array  # (N, P, d2), zero until round T1
    resolved: jax.Array  # (P, d2) bool, hidden units whose worker gauge is known
    projected: jax.Array  # (N, P, d1), sum over Step II rounds of v_n^T times the kernel gradient


class Recovery(NamedTuple):
    """Outcome of Steps I and II and of the labels, with the attacker's own diagnosis of each sample.

    Attributes:
        V: (N, P, d2), the loss gradient dL/du at the outputs of the first dense layer, divided by K.
        H: (N, P, d1), the inputs of that layer; zero where the slice is not live.
        labels: (N,) int32.
        live: (N, P) bool, False where a slice sends no gradient back (dead ReLUs).
        consistency: (N,) relative error of the gradient that H and the label predict, against V.
        label_margin: (N,) error of the second best label over that of the best one, > 1.
        answered: (N,) bool, live in every slice and consistent; the attack has no answer for the others.
        output_rank: effective rank of Step I's system, at most N (N - M + 1 with M workers).
        output_condition: condition number of Step I's system.
        feature_rank: effective rank of Step II's system for the worst party, at most N.
        feature_condition: condition number of Step II's system for the worst party.
    """

    V: np.ndarray
    H: np.ndarray
    labels: np.ndarray
    live: np.ndarray
    consistency: np.ndarray
    label_margin: np.ndarray
    answered: np.ndarray
    output_rank: int
    output_condition: float
    feature_rank: int
    feature_condition: float


def plan_cafe_exact(
    model: SplitModel,
    *,
    num_samples: int,
    batch_size: int,
    workers: int = 1,
    output_rounds: int | None = None,
    feature_rounds: int | None = None,
    solver: Solver = "auto",
) -> CafeExactPlan:
    """Choose, or check, how many rounds Steps I and II need.

    Step I needs N independent batches. The batches of every epoch add up to the same vector, so up to one equation per
    epoch is redundant. Step I therefore needs more than N N/(N-K) rounds. The default is twice that, since the
    condition number falls quickly with the excess. Step II needs N / min(K, d2) batches to determine H at all; the
    default shows every sample `VISITS` times, which keeps Step II's condition number in the hundreds.

    Args:
        model: the attacked model.
        num_samples: N, the size of the private set.
        batch_size: K, 1 <= K < N.
        workers: number M of workers in horizontal rounds, a divisor of N and K; 1 for vertical rounds.
        output_rounds: T1, rounds of Step I; None takes the default above.
        feature_rounds: T2, rounds of Step II; None takes the default above.
        solver: "direct", "matrix_free", or "auto": direct up to N = 20,000.

    Raises:
        ValueError: if K >= N, too few rounds are given (says how many are needed), or an option is unknown.
    """
    _validate.made(SplitModel, "models.split_model", model=model)
    _validate.count(num_samples=num_samples, batch_size=batch_size, workers=workers)
    _validate.one_of(("auto", "direct", "matrix_free"), solver=solver)
    if batch_size > num_samples:
        raise ValueError(f"batch_size must be <= num_samples={num_samples}, got {batch_size}")
    if batch_size == num_samples:
        raise ValueError(
            f"batch_size must be < num_samples={num_samples}: with K = N every round is the same equation and single "
            "samples cannot be told apart (CAFE, Theorem 1 needs K < N)"
        )
    if num_samples % workers or batch_size % workers:
        raise ValueError(
            f"num_samples and batch_size must be multiples of workers={workers}, got {num_samples} and {batch_size}"
        )
    if workers > 1 and num_samples < SMALLEST_CROWD * workers:
        raise ValueError(
            f"every worker must have {SMALLEST_CROWD} samples or more, got num_samples={num_samples} for "
            f"workers={workers}: what rounds leave open is found where several samples of a worker agree"
        )
    needed_outputs = math.ceil((num_samples - 1) * num_samples / (num_samples - batch_size)) + 1
    usable = min(batch_size, model.width)
    needed_features = math.ceil(num_samples / usable)
    output_rounds = 2 * needed_outputs if output_rounds is None else output_rounds
    direct = factorises(num_samples, solver)
    if feature_rounds is None:
        feature_rounds = max(math.ceil(VISITS[direct] * num_samples / batch_size), 4 * needed_features)
    if output_rounds < needed_outputs:
        raise ValueError(
            f"output_rounds={output_rounds} is too few: Step I needs at least {needed_outputs} rounds to tell "
            f"{num_samples} samples apart in batches of {batch_size}"
        )
    if feature_rounds < needed_features:
        why = ""
        if model.width < batch_size:
            why = f"d2={model.width} < K={batch_size}, so a batch has fewer equations than samples, and "
        raise ValueError(
            f"feature_rounds={feature_rounds} is too few: {why}Step II needs at least {needed_features} rounds"
        )
    return CafeExactPlan(num_samples, batch_size, workers, output_rounds, feature_rounds, direct)


def factorises(num_samples: int, solver: Solver) -> bool:
    """Whether a plan with this solver factorises N x N matrices, which takes 16 N^2 bytes."""
    return num_samples <= DIRECT_LIMIT if solver == "auto" else solver == "direct"


def cafe_exact(
    model: SplitModel,
    plan: CafeExactPlan,
    *,
    loss: Loss = cross_entropy,
    inversion: FeatureInversionOptions | None = None,
    invert: bool = True,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> Attack:
    """The exact CAFE attack on frozen parameters.

    Rounds 0 ... T1-1 record the first dense layer's bias gradients. V is solved when round T1 arrives, and rounds
    T1 ... T1+T2-1 accumulate kernel gradients projected onto it; later rounds change nothing. `reconstruct` solves for
    H, labels and data. A threat may grant only "first/bias" in Step I; the kernel gradient is then never computed.

    Args:
        model: the attacked model, possibly behind `models.frozen_features` for the rounds; `reconstruct` inverts the
            extractor of this one.
        plan: result of `plan_cafe_exact`.
        loss: the clients' loss.
        inversion: options of Step III. Its bounds say what values a sample can have: [0, 1] behind an extractor unless
            they are given, and any where the features are the data.
        invert: whether `reconstruct` runs Step III; "Returns" says what the answer is without it.
        seed: random seed of Step III's synthetic slices and restarts.
        mesh: devices on which `shard_cafe` places the state; None if it stays on one device.

    Returns:
        An `Attack`; its score is the worst relative feature residual over a sample's slices, and its
        diagnosis is a `Recovery`. Without Step III all data of the answer are NaN, and its score is the diagnosis's
        consistency. A sample without an answer has the score inf either way.

    Raises:
        ValueError: on options or a seed out of range; when an observation is first seen, if the threat withholds what
            is read or the batch is not of the plan's size; and in `reconstruct`, if rounds of the plan are missing
            (says how many), Step II's rounds did not show the kernel's gradient, or V has too low a rank for the number
            of rounds.
    """
    _validate.made(SplitModel, "models.split_model", model=model)
    _validate.made(CafeExactPlan, "attacks.plan_cafe_exact", plan=plan)
    check_step_three(inversion, seed)
    # Step I needs no more than these; Step II reads "first/kernel" too, once the threat grants it.
    reads = Reads("cafe_exact", leaves=("first/bias",), index=True)

    def init(key: jax.Array, template: Batch) -> CafeExactState:
        del key, template  # Nothing is random or data-shaped before Step III.
        n, p = plan.num_samples, model.parties
        return CafeExactState(
            seen=jnp.zeros((), jnp.int32),
            batches=jnp.zeros((plan.rounds, plan.batch_size), jnp.int32),
            bias_gradients=jnp.zeros((plan.output_rounds, p, model.width)),
            V=jnp.zeros((n, p, model.width)),
            resolved=jnp.ones((p, model.width), bool),
            projected=jnp.zeros((n, p, model.feature_size)),
        )

    def solve(batches: jax.Array, bias_gradients: jax.Array) -> tuple[jax.Array, jax.Array]:
        v = solve_output_gradients(batches, bias_gradients, plan.num_samples, direct=plan.direct)
        if plan.workers == 1:
            return v, jnp.ones((model.parties, model.width), bool)
        return fix_worker_gauge(v, plan.workers)

    def step(
        key: jax.Array, state: CafeExactState, observation: Observation
    ) -> tuple[CafeExactState, dict[str, jax.Array]]:
        del key
        seen = require(observation, reads)
        index, first = seen.index, seen.payload["first"]
        t = state.seen
        state = state._replace(**recorded(state, index, first["bias"]))
        if first.get("kernel") is not None:
            v, resolved = jax.lax.cond(
                t == plan.output_rounds,
                lambda: solve(state.batches[: plan.output_rounds], state.bias_gradients),
                lambda: (state.V, state.resolved),
            )
            # V is zero during Step I, so nothing is projected then.
            rows, kernel = v[index], first["kernel"]
            if mesh is not None:  # K rows of V go to every device, so that no whole table has to
                rows = jax.lax.with_sharding_constraint(rows, _mesh.replicated(mesh))
                kernel = jax.lax.with_sharding_constraint(kernel, _mesh.divided(mesh, 3, axis=1))
            update = jnp.einsum("kpe,pde->kpd", rows, kernel)
            projected = state.projected.at[rows_to_add(plan, t, index)].add(update, mode="drop")
            state = state._replace(V=v, resolved=resolved, projected=projected)
        phase = jnp.where(t < plan.output_rounds, 1, 2)
        return state, {"phase": phase, "bias_gradient_norm": jnp.linalg.norm(first["bias"])}

    def reconstruct(state: CafeExactState, observation: Observation) -> Reconstruction:
        params = require(observation, Reads(reads.who, params=True)).params
        recovery = _recovered(model, params, plan, state, loss)
        return answer_of(model, params, recovery, inversion, seed, invert=invert)

    return Attack(init, step, reconstruct)


def answer_of(
    model: SplitModel,
    params: PyTree,
    recovery: Recovery,
    inversion: FeatureInversionOptions | None,
    seed: int,
    *,
    invert: bool,
) -> Reconstruction:
    """Step III, if asked for, on the samples that Steps I and II answer; all other data are NaN."""
    wanted = np.flatnonzero(recovery.answered)
    x = np.full((len(recovery.labels), model.parties, *model.slice_shape), np.nan, np.float32)
    score = np.full(len(recovery.labels), np.inf, np.float32)
    if invert:
        result = invert_slices(model, params, recovery.H[wanted], wanted, options=inversion, seed=seed)
        x[wanted], score[wanted] = result.x, result.residual.max(axis=1)
    else:
        score[wanted] = recovery.consistency[wanted]
    return Reconstruction(
        jnp.asarray(x),
        jnp.asarray(recovery.labels),
        jnp.asarray(score),
        jnp.asarray(recovery.answered),
        diagnosis=recovery,
    )


def _recovered(model: SplitModel, params: PyTree, plan: CafeExactPlan, state: CafeExactState, loss: Loss) -> Recovery:
    """Solve Step II, recover labels, and diagnose every sample, from the state after all rounds of the plan.

    A state that `shard_cafe` placed on a mesh is solved there; every process gets the whole tables.
    """
    batches, v, projected, resolved = map(_mesh.gather, (state.batches, state.V, state.projected, state.resolved))
    check_seen(plan, state.seen, v, resolved)
    mesh = _mesh.mesh_of(state.projected)
    features = solve_features(batches[plan.output_rounds :], v, projected, direct=plan.direct, mesh=mesh)
    if mesh is not None:
        params = jax.tree.map(_mesh.gather, params)
    recovery = diagnose(model, params, plan, batches, v, resolved, features, loss)
    if not recovery.answered.any():
        _log.warning(
            "no sample has an answer, since the gradients of the rounds contradict each other: the parameters may have "
            "changed between rounds, which this attack needs frozen, or a defense changed the gradients"
        )
    return recovery


def check_seen(plan: CafeExactPlan, seen: jax.Array, v: np.ndarray, resolved: np.ndarray) -> None:
    """Raise `ValueError` if what has been seen is not enough to solve Step II.

    Args:
        plan: the attack's plan.
        seen: () number of rounds that were seen.
        v: (N, P, d2), the solution of Step I.
        resolved: (P, d2) bool, which units Step I determined; all are True before it is solved.

    Raises:
        ValueError: if rounds of the plan are missing (says how many), or if V is zero although Step I left no unit
            open: no kernel gradient was shown, or no bias had a gradient.
    """
    if int(seen) < plan.rounds:
        raise ValueError(f"the attack has seen {int(seen)} of {plan.rounds} rounds; run the rest first")
    if not v.any() and resolved.all():
        raise ValueError(
            f"Step II saw no gradient: after {plan.output_rounds} rounds the threat must grant first/kernel as well, "
            "and the gradient of first/bias must not be zero in all rounds"
        )


def diagnose(
    model: SplitModel,
    params: PyTree,
    plan: CafeExactPlan,
    batches: np.ndarray,
    v: np.ndarray,
    resolved: np.ndarray,
    features: LinearSolution,
    loss: Loss,
) -> Recovery:
    """Labels, and which samples can be trusted, from V (N, P, d2), its resolved units (P, d2) and the features."""
    rank, condition = output_gradient_conditioning(batches[: plan.output_rounds], plan.num_samples, direct=plan.direct)
    live = np.asarray(live_rows(jnp.asarray(v))[1])
    labels, consistency, margin = recover_labels(
        model, params, v, features.table, live, resolved, plan.batch_size, loss=loss
    )
    return Recovery(
        V=v,
        H=features.table,
        labels=labels,
        live=live,
        consistency=consistency,
        label_margin=margin,
        answered=live.all(axis=1) & (consistency < CONSISTENT),
        output_rank=rank,
        output_condition=condition,
        feature_rank=features.rank,
        feature_condition=features.condition,
    )


def recorded(state: Any, index: jax.Array, bias: jax.Array) -> dict[str, jax.Array]:
    """The fields of a state after one more round: how many it has seen, their batches, and Step I's bias gradients.

    A round beyond the plan's leaves them as they are.

    Raises:
        ValueError: if the round's batch has another size than the plan's.
    """
    _validate.batch_as_planned(index, state.batches.shape[1])
    t = state.seen
    return {
        "seen": jnp.minimum(t + 1, len(state.batches)),
        # Rounds after the plan, or after Step I, write beyond their table, which drops them.
        "batches": state.batches.at[t].set(index, mode="drop"),
        "bias_gradients": state.bias_gradients.at[t].set(bias, mode="drop"),
    }


def rows_to_add(plan: CafeExactPlan, t: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of a table of all samples that round `t` adds to: its batch's, and none after the plan's last round.

    Sums over rounds whose batches are not recorded would no longer fit the equations that are solved.
    """
    return jnp.where(t < plan.rounds, index, plan.num_samples)  # rows beyond the table are dropped
