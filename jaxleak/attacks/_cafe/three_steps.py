"""CAFE, the three-step attack (Jin et al., NeurIPS 2021, Algorithms 1 to 4)."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree, _validate
from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction, ShareFn
from jaxleak.attacks._cafe.fake_data import (
    FakeData,
    LabelMode,
    Optimizer,
    fake_data_step,
    reads_of,
)
from jaxleak.attacks._observed import Granted, Reads, require
from jaxleak.models import SplitModel
from jaxleak.objectives import TERMS, MatchingObjective, Quantities, cafe_objective

Loops = Literal["nested", "single"]

# Weight of the past in the running means of F1, F2 and F3. The paper compares the objective of a single batch with its
# thresholds, but that objective jumps from batch to batch. A mean over about the last ten batches crosses a threshold
# only once.
_MEAN_DECAY = 0.9


class CafeOptimizers(NamedTuple):
    """The optimiser of each step, as a function of its learning rate.

    The paper prints learning rates but no optimiser; its theorems are about SGD. The defaults are the kinds of
    optimiser that the authors' code uses.
    """

    output: Callable[[float], Optimizer] = optax.sgd  # Step I
    feature: Callable[[float], Optimizer] = optax.adam  # Step II
    data: Callable[[float], Optimizer] = optax.adam  # Step III


class CafeState(NamedTuple):
    """The state that CAFE carries from round to round."""

    batches: jax.Array  # () int32, number of batches seen so far
    phase: jax.Array  # () int32: 0, 1, 2 for Steps I, II, III; stays 0 when all steps run in every iteration
    V: jax.Array  # (N, P, d2), estimate of (1/K) dL(x_n)/du_n
    H: jax.Array  # (N, P, d1), estimate of the first dense layer's inputs
    data: FakeData  # fake samples (N, P, *slice) and label logits (N, C)
    V_optimizer: PyTree
    H_optimizer: PyTree
    F1: jax.Array  # () running mean of Step I's objective; inf until it has run
    F2: jax.Array  # () running mean of Step II's objective; inf until it has run
    F3: jax.Array  # () running mean of Step III's objective; inf until it has run
    seen: jax.Array  # (N,) bool, whether the sample was in a batch of Step III; its data are random otherwise


#: The fields of `CafeState` with one row per private sample.
_TABLES = ("V", "H", "data", "V_optimizer", "H_optimizer", "seen")


def output_step(v: jax.Array, bias_gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """F1 and its gradient in the batch's rows of V (NeurIPS 2021, equation 7), summed over the parties.

    Args:
        v: (B, P, d2), rows of V.
        bias_gradient: (P, d2), gradient of the batch loss in the first dense layer's bias.

    Returns:
        F1 = `sum_p ||sum_n v_np - g_p||^2`, and `2 (sum_n v_np - g_p)` for every row, (B, P, d2).
    """
    residual = v.sum(axis=0) - bias_gradient
    return jnp.sum(residual**2), jnp.broadcast_to(2.0 * residual, v.shape)


def feature_step(h: jax.Array, v: jax.Array, kernel_gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """F2 and its gradient in the batch's rows of H (NeurIPS 2021, equation 8), summed over the parties.

    Args:
        h: (B, P, d1), rows of H.
        v: (B, P, d2), rows of V.
        kernel_gradient: (P, d1, d2), gradient of the batch loss in the first dense layer's kernel.

    Returns:
        F2 = `sum_p ||sum_n h_np v_np^T - G_p||_F^2`, and `2 R_p v_np` with the residual R_p, (B, P, d1).
    """
    residual = jnp.einsum("bpd,bpe->pde", h, v) - kernel_gradient
    return jnp.sum(residual**2), 2.0 * jnp.einsum("pde,bpe->bpd", residual, v)


class CafeOptions(NamedTuple):
    """The options of `cafe`. The defaults are those of CIFAR-10 (NeurIPS 2021, Table 9).

    The paper does not say where V, H and the samples start. V starts uniform in +-`output_scale` and H in
    [0, `feature_scale`] as in the authors' code: V is of order 1/K times a small gradient, and a start far above it
    would take thousands of steps to fade. Samples start uniform in the box and are projected into it. See
    `fake_data_step` for labels and `truncated_tv` for xi.

    Attributes:
        batch_size: K < N; None checks K when the first batch is seen.
        loops: "nested" runs Step I, then Step II, then Step III; "single" runs all in every iteration.
        iterations: batches > 0 for Steps I and II of the nested loops; one number stands for both.
        switch: whether the single loop passes on from step to step; False runs all steps on every batch.
        thresholds: F1 and F2 >= 0 below which the single loop passes on.
        output_learning_rate: rate > 0 of Step I; SGD is stable below 1/K.
        feature_learning_rate: rate > 0 of Step II.
        data_learning_rate: rate > 0 of Step III.
        optimizers: optimisers of the three steps, each with a state per row.
        alpha: weight >= 0 of the gradient distance; at 0 labels are not recovered.
        beta: weight >= 0 of the total variation; must be 0 unless slices are images.
        gamma: weight >= 0 of the representation term.
        xi: total variation >= 0 of a tile below which the term of beta is off.
        objective: replaces F3, and with it alpha, beta, gamma and xi.
        inner_updates: updates > 0 of Step III per batch; k = 10 in ICLR 2021, section 4.4.
        label_mode: "joint" recovers labels with the samples; "given" takes those that the threat grants; "fixed" keeps
            those of the start.
        box: range of the samples' values, or None.
        output_scale: range > 0 of V's start.
        feature_scale: range > 0 of H's start.
    """

    batch_size: int | None = None
    loops: Loops = "nested"
    iterations: int | tuple[int, int] = 8000
    switch: bool = True
    thresholds: tuple[float, float] = (1e-9, 5e-9)
    output_learning_rate: float = 5e-3
    feature_learning_rate: float = 8e-3
    data_learning_rate: float = 2e-2
    optimizers: CafeOptimizers = CafeOptimizers()
    alpha: float = 1e-2
    beta: float = 1e-4
    gamma: float = 1e-3
    xi: float = 90.0
    objective: MatchingObjective | None = None
    inner_updates: int = 1
    label_mode: LabelMode = "joint"
    box: tuple[float, float] | None = (0.0, 1.0)
    output_scale: float = 8e-4
    feature_scale: float = 8e-2

    @property
    def lengths(self) -> tuple[int, int]:
        """How many batches Steps I and II of the nested loops see."""
        return self.iterations if isinstance(self.iterations, Sequence) else (self.iterations, self.iterations)

    def check(self, num_samples: int) -> None:
        """Raise `ValueError` naming the option that is out of range."""
        _validate.one_of(("nested", "single"), loops=self.loops)
        if self.loops == "nested" and not self.switch:
            raise ValueError(
                "switch must be True with loops='nested', which run one step after the other, got False: give "
                "loops='single' to run all steps on every batch"
            )
        _validate.count(num_samples=num_samples)
        _validate.positive(output_scale=self.output_scale, feature_scale=self.feature_scale)
        if self.batch_size is not None:
            _validate.count(batch_size=self.batch_size)
            _check_batch(self.batch_size, num_samples)
        if len(self.lengths) != 2:
            raise ValueError(f"iterations must be one number or two, for Steps I and II, got {self.iterations}")
        _validate.count(**{f"iterations[{i}]": length for i, length in enumerate(self.lengths)})
        if not isinstance(self.thresholds, Sequence) or len(self.thresholds) != 2:
            raise ValueError(f"thresholds must be two numbers, for Steps I and II, got {self.thresholds}")
        _validate.non_negative(**{f"thresholds[{i}]": value for i, value in enumerate(self.thresholds)})
        _validate.positive(
            output_learning_rate=self.output_learning_rate,
            feature_learning_rate=self.feature_learning_rate,
            data_learning_rate=self.data_learning_rate,
        )


def cafe(model: SplitModel, share: ShareFn, *, num_samples: int, options: CafeOptions | None = None) -> Attack:
    """CAFE: recover V, then H, then the data, from aggregated gradients and batch indices.

    Step I fits V to bias gradients (Algorithm 1), Step II fits H to kernel gradients with that V (Algorithm 2), Step
    III fits fake samples and labels to the whole gradient and to H (Algorithms 3 and 4). Every party owns a first
    dense layer, so Steps I and II run per party, side by side; a horizontal model is the case of one party.

    Nested loops (Algorithm 3) run each of Steps I and II for a number of batches, then Step III until the run ends.
    The single loop with `switch` moves on to the next step as soon as the running mean of F1, then of F2, falls below
    its threshold (section 4.2, iv), and never moves back. Both kinds of loop compute one step per batch. `switch=False`
    is Algorithm 4 as printed: every batch updates V, then H with the new V, then the data with the new H.

    Args:
        model: the model under attack.
        share: the protocol's own `share`.
        num_samples: size N of the private set.
        options: see `CafeOptions`; None takes the defaults.

    Returns:
        An `Attack`. Its info holds the phase, and this batch's F1, F2, F3 and unweighted terms of F3; a value is inf
        while its step does not run. The score of a sample is `||H_n - h(x_n)||^2`; a sample in no batch of
        Step III has the score inf and no answer.

    Raises:
        ValueError: if K = N, on arguments out of range, on `switch=False` with nested loops, and, when an observation
            is first seen, if the threat withholds indices, a payload leaf, labels or statistics that this configuration
            reads.
    """
    _validate.made(SplitModel, "models.split_model", model=model)
    o = CafeOptions() if options is None else options
    o.check(num_samples)
    first, second = o.lengths
    objective = o.objective
    if objective is None:
        objective = cafe_objective(alpha=o.alpha, beta=o.beta, gamma=o.gamma, xi=o.xi)
    who = "cafe with a gradient term (alpha)" if "gradient" in objective.needs else "cafe"
    reads = reads_of(who, objective, o.label_mode, leaves=("first/bias", "first/kernel"))
    output_rows = _rows(o.optimizers.output(o.output_learning_rate))
    feature_rows = _rows(o.optimizers.feature(o.feature_learning_rate))
    fake = fake_data_step(
        model,
        share,
        num_samples=num_samples,
        objective=objective,
        optimizer=o.optimizers.data(o.data_learning_rate),
        label_mode=o.label_mode,
        box=o.box,
        inner_updates=o.inner_updates,
    )

    def init(key: jax.Array, template: Batch) -> CafeState:
        v_key, h_key, data_key = jax.random.split(key, 3)
        shape = (num_samples, model.parties)
        V = jax.random.uniform(v_key, (*shape, model.width), minval=-o.output_scale, maxval=o.output_scale)
        H = jax.random.uniform(h_key, (*shape, model.feature_size), maxval=o.feature_scale)
        zero, never = jnp.zeros((), jnp.int32), jnp.full((), jnp.inf, jnp.float32)
        data = fake.init(data_key, template)
        optimizers, unseen = (output_rows.init(V), feature_rows.init(H)), jnp.zeros(num_samples, bool)
        return CafeState(zero, zero, V, H, data, *optimizers, never, never, never, unseen)

    def step_1(state: CafeState, seen: Granted) -> tuple[CafeState, dict[str, jax.Array]]:
        index = seen.index
        F1, grads = output_step(state.V[index], seen.payload["first"]["bias"])
        V, V_optimizer = output_rows.update(grads, state.V_optimizer, state.V, index)
        return state._replace(V=V, V_optimizer=V_optimizer, F1=_mean(state.F1, F1)), _info(F1=F1)

    def step_2(state: CafeState, seen: Granted) -> tuple[CafeState, dict[str, jax.Array]]:
        index = seen.index
        F2, grads = feature_step(state.H[index], state.V[index], seen.payload["first"]["kernel"])
        H, H_optimizer = feature_rows.update(grads, state.H_optimizer, state.H, index)
        return state._replace(H=H, H_optimizer=H_optimizer, F2=_mean(state.F2, F2)), _info(F2=F2)

    def step_3(state: CafeState, seen: Granted) -> tuple[CafeState, dict[str, jax.Array]]:
        observed = Quantities(
            gradient=seen.payload if "gradient" in objective.needs else None,
            features=state.H[seen.index] if "features" in objective.needs else None,
            statistics=seen.statistics if "statistics" in objective.needs else None,
        )
        data, F3, terms = fake.update(state.data, seen, observed)
        data_seen = jnp.ones_like(state.seen)
        return state._replace(data=data, F3=_mean(state.F3, F3), seen=data_seen), _info(F3=F3, **terms)

    def all_steps(state: CafeState, seen: Granted) -> tuple[CafeState, dict[str, jax.Array]]:
        state, info = step_1(state, seen)
        for one_step in (step_2, step_3):
            state, more = one_step(state, seen)
            info = {name: jnp.minimum(info[name], more[name]) for name in info}  # inf marks steps that did not run
        return state, info

    def phase_of(state: CafeState) -> jax.Array:
        if o.loops == "nested":
            return (state.batches >= first).astype(jnp.int32) + (state.batches >= first + second)
        objective_value = jnp.where(state.phase == 0, state.F1, state.F2)
        passed = objective_value < jnp.asarray(o.thresholds)[jnp.minimum(state.phase, 1)]
        return jnp.minimum(state.phase + passed, 2).astype(jnp.int32)

    def step(key: jax.Array, state: CafeState, observation: Observation) -> tuple[CafeState, dict[str, jax.Array]]:
        del key
        seen = require(observation, reads)
        index = seen.index
        _check_batch(index.shape[0], num_samples)
        # The steps see the batch's rows only: a branch that takes whole tables copies them every round.
        rows = _rows_of(state, index)
        local = seen._replace(index=jnp.arange(index.shape[0]))
        if o.loops == "single" and not o.switch:
            rows, info = all_steps(rows, local)
        else:
            rows = rows._replace(phase=phase_of(rows))
            rows, info = jax.lax.switch(rows.phase, (step_1, step_2, step_3), rows, local)
        return _with_rows(state, rows, index)._replace(batches=rows.batches + 1), {"phase": rows.phase, **info}

    def reconstruct(state: CafeState, observation: Observation) -> Reconstruction:
        h = model.features(require(observation, Reads(reads.who, params=True)).params, state.data.x)
        score = jnp.where(state.seen, jnp.sum((state.H - h) ** 2, axis=(1, 2)), jnp.inf)
        return Reconstruction(state.data.x, fake.labels(state.data), score, state.seen)

    return Attack(init, step, reconstruct)


def _rows_of(state: CafeState, index: jax.Array) -> CafeState:
    """The state with the rows of these samples alone in its tables."""
    return state._replace(
        **{name: jax.tree.map(lambda leaf: _take(leaf, index), getattr(state, name)) for name in _TABLES}
    )


def _with_rows(state: CafeState, rows: CafeState, index: jax.Array) -> CafeState:
    """The state `rows`, with its rows put into the tables of the whole state."""
    tables = {
        name: jax.tree.map(lambda leaf, new: _put(leaf, index, new), getattr(state, name), getattr(rows, name))
        for name in _TABLES
    }
    return rows._replace(**tables)


def _check_batch(batch_size: int, num_samples: int) -> None:
    if batch_size >= num_samples:
        raise ValueError(
            f"batch_size must be < num_samples={num_samples}, got {batch_size}: with K = N every batch gives the same "
            "equation, F1 is not strongly convex (Theorem 1), and gradients can be swapped between samples"
        )


def _take(leaf: jax.Array, index: jax.Array) -> jax.Array:
    return leaf[index] if leaf.ndim else leaf  # an optimizer's own step count has no rows


def _put(leaf: jax.Array, index: jax.Array, new: jax.Array) -> jax.Array:
    return leaf.at[index].set(new) if leaf.ndim else new


def _rows(optimizer: Optimizer) -> _tree.RowOptimizer:
    return optimizer if isinstance(optimizer, _tree.RowOptimizer) else _tree.row_optimizer(optimizer)


def _mean(mean: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.where(jnp.isinf(mean), value, _MEAN_DECAY * mean + (1.0 - _MEAN_DECAY) * value)


def _info(**values: jax.Array) -> dict[str, jax.Array]:
    return {name: values.get(name, jnp.full((), jnp.inf, jnp.float32)) for name in ("F1", "F2", "F3", *TERMS)}
