"""CAFE against fake gradients that keep the order of the entries and little else: the order is enough.

If fake entries are paired with true ones by rank (CAFE, NeurIPS 2021, Section 3.4), an uploaded tensor shows the order
of its true entries and how large they are on average. If true entries are capped at the noise of the same rank
(Algorithm 5), the smallest entries are also true. Steps I and II of `cafe_exact` are linear, so a solution predicts all
entries of all uploads. A prediction sorted into the observed order gives a better estimate of the true gradients, which
gives a better solution. The two alternate, as in nonmetric multidimensional scaling (Kruskal 1964). Step I
alternates on the rounds that it stored. Step II alternates in sweeps over new rounds, and every sweep predicts with the
features of the sweep before.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import Attack, Batch, Loss, Observation, PyTree, Reconstruction
from jaxleak.attacks._cafe.censored import visible_entries
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
from jaxleak.attacks._cafe.least_squares import incidence_matrix, incidence_solver, live_rows, solve_features
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import SplitModel
from jaxleak.objectives import cross_entropy

Kept = Literal["clamped", "paired"]
KEPT: tuple[Kept, ...] = ("clamped", "paired")

#: Alternations of Step I. The fit improves by orders of magnitude over all of them, but the solution hardly changes
#: after the first ten.
_ALTERNATIONS = 30
#: Ridge on the diagonal of a party's normal matrix, as a share of the matrix's mean eigenvalue. It allows for float32
#: rounding and for rows without gradient.
_RIDGE = 1e-5
#: Smallest denominator, which keeps a quotient of zeros finite.
_TINY = 1e-30


class CafeOrdinalState(NamedTuple):
    """The state that the attack carries from round to round. Memory O(T K + T1 P d2 + N P (d1 + d2))."""

    seen: jax.Array  # () int32, rounds seen
    batches: jax.Array  # (T1 + T2, K) int32
    bias_gradients: jax.Array  # (T1, P, d2), as uploaded
    V: jax.Array  # (N, P, d2), zero until round T1
    H: jax.Array  # (N, P, d1), features of the last finished sweep, zero before
    projected: jax.Array  # (N, P, d1), sum over the present sweep's rounds of v_n^T times the kernel gradient


def cafe_ordinal(
    model: SplitModel,
    plan: CafeExactPlan,
    *,
    reading: Kept = "paired",
    variance: float = 1.1,
    kernel_scale: float = 1.0,
    sweeps: int = 4,
    loss: Loss = cross_entropy,
    inversion: FeatureInversionOptions | None = None,
    invert: bool = True,
    seed: int = 0,
) -> Attack:
    """`cafe_exact` for rounds behind `defenses.fake_gradients`, by an attacker who knows the defense's reading.

    Capped uploads contain true entries, which tell the scale of the gradient, so capping noise may have any scale. If
    most entries of every tensor are true, `cafe_censored` is more accurate; this attack also works if, say, nearly all
    bias entries are capped.

    The plan's Step II rounds are divided among the sweeps; every sweep should show each sample about ten times. Step I
    gains from more rounds than without a defense. The answer is not exact: features usually have an error of 1 %.

    Args:
        model: the attacked model, possibly behind `models.frozen_features` for the rounds.
        plan: result of `plan_cafe_exact` for one worker.
        reading: the defense's reading, "clamped" or "paired".
        variance: variance of paired noise, > 0, from which the attack infers the gradient's size; clamped uploads
            ignore it.
        kernel_scale: factor > 0 on uploaded kernel gradients, hence on the features. It is 1 for capped uploads, and
            for paired noise that is scaled to each tensor. If the noise of all tensors has one scale, uploads do not
            show how large kernel gradients are relative to bias gradients. Pass the ratio of their root mean squares on
            samples of the attacker's own then, see `kernel_to_bias_ratio`.
        sweeps: number of sweeps of Step II, >= 1 and at most the plan's feature rounds.
        loss: the clients' loss.
        inversion: options of Step III.
        invert: whether `reconstruct` runs Step III, see `cafe_exact`.
        seed: random seed of Step III's synthetic slices and restarts.

    Returns:
        An `Attack` whose answer is like that of `cafe_exact`.

    Raises:
        ValueError: on values out of range, or a plan for several workers; when an observation is first seen, if the
            threat withholds what is read or the batch is not of the plan's size; and in `reconstruct`, if rounds of the
            plan are missing (says how many) or Step II's rounds did not show the kernel's gradient.
    """
    if plan.workers != 1:
        raise ValueError(f"cafe_ordinal attacks rounds of one worker, got a plan for {plan.workers} workers")
    check_step_three(inversion, seed)
    _validate.one_of(KEPT, reading=reading)
    _validate.positive(variance=variance, kernel_scale=kernel_scale)
    _validate.count(sweeps=sweeps)
    _validate.in_range(1, plan.feature_rounds, sweeps=sweeps)
    n, p, width, d1 = plan.num_samples, model.parties, model.width, model.feature_size
    length = sweep_length(plan, sweeps)
    unit = variance**-0.5 if reading == "paired" else 1.0
    # Step I needs only these leaves; Step II reads "first/kernel" too, as in `cafe_exact`.
    reads = Reads("cafe_ordinal", leaves=("first/bias",), index=True)

    def init(key: jax.Array, template: Batch) -> CafeOrdinalState:
        del key, template  # Nothing is random or data-shaped before Step III.
        return CafeOrdinalState(
            seen=jnp.zeros((), jnp.int32),
            batches=jnp.zeros((plan.rounds, plan.batch_size), jnp.int32),
            bias_gradients=jnp.zeros((plan.output_rounds, p, width)),
            V=jnp.zeros((n, p, width)),
            H=jnp.zeros((n, p, d1)),
            projected=jnp.zeros((n, p, d1)),
        )

    def next_sweep(state: CafeOrdinalState) -> CafeOrdinalState:
        """The state at the start of a sweep, with the features that the finished sweep gives."""
        first = state.seen - 1 - length  # first round of the finished sweep; `seen` counts the present round
        batches = jax.lax.dynamic_slice_in_dim(state.batches, first, length)
        features = _features(batches, state.V, state.projected)
        return state._replace(H=features, projected=jnp.zeros_like(state.projected))

    def step(
        key: jax.Array, state: CafeOrdinalState, observation: Observation
    ) -> tuple[CafeOrdinalState, dict[str, jax.Array]]:
        del key
        seen = require(observation, reads)
        index, first = seen.index, seen.payload["first"]
        t = state.seen
        state = state._replace(**recorded(state, index, first["bias"]))
        done = t - plan.output_rounds  # rounds of Step II before this one; negative in Step I
        if first.get("kernel") is not None:
            v = jax.lax.cond(
                done == 0,
                lambda: _output_gradients(state.batches[: plan.output_rounds], state.bias_gradients * unit, reading, n),
                lambda: state.V,
            )
            begins = (done > 0) & (done % length == 0) & (done < plan.feature_rounds)
            state = jax.lax.cond(begins, next_sweep, lambda s: s, state._replace(V=v))
            upload = first["kernel"] * (kernel_scale * unit)
            # The first sweep has no prediction and takes the upload, which has the gradient's order, for the gradient.
            kernel = jax.lax.cond(
                done < length,
                lambda: upload,
                lambda: _completed(upload, jnp.einsum("kpd,kpe->pde", state.H[index], v[index]), reading),
            )
            update = jnp.einsum("kpe,pde->kpd", v[index], kernel)
            projected = state.projected.at[rows_to_add(plan, t, index)].add(update, mode="drop")
            state = state._replace(projected=projected)
        phase = jnp.where(done < 0, 1, 2)
        return state, {"phase": phase, "bias_gradient_norm": jnp.linalg.norm(first["bias"])}

    def reconstruct(state: CafeOrdinalState, observation: Observation) -> Reconstruction:
        params = require(observation, Reads(reads.who, params=True)).params
        recovery = _recovered(model, params, plan, state, sweeps, loss)
        return answer_of(model, params, recovery, inversion, seed, invert=invert)

    return Attack(init, step, reconstruct)


def _recovered(
    model: SplitModel, params: PyTree, plan: CafeExactPlan, state: CafeOrdinalState, sweeps: int, loss: Loss
) -> Recovery:
    """Solve for H, recover labels and diagnose every sample, from the state after all rounds of the plan."""
    batches, v = np.asarray(state.batches), np.asarray(state.V)
    resolved = np.ones(v.shape[1:], bool)
    check_seen(plan, state.seen, v, resolved)
    length = sweep_length(plan, sweeps)
    last = batches[plan.rounds - ((plan.feature_rounds - 1) % length + 1) :]
    features = solve_features(last, v, np.asarray(state.projected), direct=plan.direct)
    return diagnose(model, params, plan, batches, v, resolved, features, loss)


def sweep_length(plan: CafeExactPlan, sweeps: int) -> int:
    """Number of rounds in every sweep but the last, which may be shorter."""
    return math.ceil(plan.feature_rounds / sweeps)


def in_order_of(observed: jax.Array, values: jax.Array) -> jax.Array:
    """The values (any shape) rearranged into the order of `observed` (same shape)."""
    return _ranked(jnp.argsort(observed.ravel()), values.ravel()).reshape(observed.shape)


def _ranked(order: jax.Array, values: jax.Array) -> jax.Array:
    """The values (n,) rearranged so that position order[k] holds the k-th smallest; `order` is a permutation (n,)."""
    return jnp.zeros_like(values).at[order].set(jnp.sort(values))


def _completed(upload: jax.Array, predicted: jax.Array, reading: Kept) -> jax.Array:
    """Estimate of one uploaded tensor before the defense: the prediction's values in the upload's order and scale."""
    ordered = in_order_of(upload, predicted)
    if reading == "paired":
        return ordered * (jnp.linalg.norm(upload) / jnp.maximum(jnp.linalg.norm(predicted), _TINY))
    visible = visible_entries(upload)
    return jnp.where(visible, upload, ordered * _unit(upload, predicted, visible))


def _unit(upload: jax.Array, predicted: jax.Array, visible: jax.Array) -> jax.Array:
    """The least-squares factor from the prediction to the entries that arrived unchanged; 1 if there are none."""
    seen = jnp.where(visible, predicted, 0.0)
    square = jnp.sum(seen**2)
    return jnp.where(square > 0, jnp.sum(seen * upload) / jnp.where(square > 0, square, 1.0), 1.0)


def kernel_to_bias_ratio(gradient: PyTree) -> float:
    """Root mean square of the first dense layer's kernel gradient over that of its bias gradient, >= 0."""
    first = gradient["first"]
    return float(jnp.sqrt(jnp.mean(first["kernel"] ** 2) / jnp.mean(first["bias"] ** 2)))


def _output_gradients(batches: jax.Array, uploads: jax.Array, reading: Kept, n: int) -> jax.Array:
    """Step I: V (N, P, d2) from batches (T1, K) and the uploaded, defended bias gradients (T1, P, d2)."""
    incidence, solve = incidence_solver(batches, n)
    observed = uploads.reshape(len(uploads), -1)
    visible = jax.vmap(visible_entries)(observed) if reading == "clamped" else jnp.zeros(observed.shape, bool)

    orders = jnp.argsort(observed, axis=1)

    def alternate(_: int, v: jax.Array) -> jax.Array:
        predicted = incidence @ v
        ordered = jax.vmap(_ranked)(orders, predicted)
        # A round's noise has a few hundred entries only, so that its size differs from round to round. The prediction
        # tells the size of single rounds better, and all uploads together tell the size over all rounds.
        rounds = (predicted * ordered).sum(axis=1) / jnp.maximum((ordered**2).sum(axis=1), _TINY)
        ordered = ordered * rounds[:, None]
        if reading == "clamped":
            return solve(jnp.where(visible, observed, ordered * _unit(observed, predicted, visible)))
        v = solve(ordered)
        return v * (jnp.linalg.norm(observed) / jnp.maximum(jnp.linalg.norm(incidence @ v), _TINY))

    v = jax.lax.fori_loop(0, _ALTERNATIONS, alternate, solve(observed))
    return v.reshape(n, *uploads.shape[1:])


def _features(batches: jax.Array, v: jax.Array, projected: jax.Array) -> jax.Array:
    """Step II of one sweep: H (N, P, d1), zero where a slice sends no gradient back."""
    norms, live = live_rows(v)
    incidence = incidence_matrix(batches, len(v))
    counts = incidence.T @ incidence

    def one_party(arguments: tuple[jax.Array, ...]) -> jax.Array:
        v, rhs, norm, live = arguments
        inverse = jnp.where(live, 1 / jnp.where(live, norm, 1.0), 0.0)[:, None]
        unit = v * inverse
        normal = counts * (unit @ unit.T) + jnp.diag(jnp.where(live, 0.0, 1.0))
        ridge = _RIDGE * jnp.trace(normal) / len(normal) * jnp.eye(len(normal))
        return inverse * jax.scipy.linalg.solve(normal + ridge, inverse * rhs, assume_a="pos")

    return jax.lax.map(one_party, (v.transpose(1, 0, 2), projected.transpose(1, 0, 2), norms.T, live.T)).transpose(
        1, 0, 2
    )
