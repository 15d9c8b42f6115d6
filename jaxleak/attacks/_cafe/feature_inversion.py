"""CAFE's Step III once H is known: one nonlinear least-squares problem per slice, by smoothed Gauss-Newton.

With alpha = 0 in CAFE's objective the samples decouple, and Step III looks for an x with h(x) = h for each of them. For
a ReLU network with max pooling, the function h(x) is piecewise linear and has more outputs than x has pixels, so inside
the right piece one Gauss-Newton step is exact. The difficulty is that the pieces are small: a step computed from one
piece is wrong in the next. The residual is therefore exact, while the Jacobian is smoothed over the pieces that lie
within the current misfit (`SplitModel.party_features` with a temperature proportional to the root mean square of the
residual). As the residual falls, the smoothing vanishes by itself, and the last steps are plain Gauss-Newton.

Each step runs conjugate gradients on the smoothed normal equations, with products by the Jacobian and its transpose in
place of matrices, and keeps the iterate with the smallest exact residual. This choice sets both step length and damping
without a parameter, and no step can raise the residual. The relative residual ||h(x) - h|| / ||h|| at the end is a
certificate that needs no truth: if it is near float32 rounding, the slice is right wherever h(x) is injective.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree

FeatureFn = Callable[[PyTree, jax.Array, jax.Array | None], jax.Array]


class FeatureInversionOptions(NamedTuple):
    """Settings of `invert_features`; the defaults recover natural image tiles of 14 to 32 pixels.

    Attributes:
        tolerance: relative residual > 0 at which a slice is done.
        settled: relative residual >= 0 below which a slice is done once two steps in a row improve nothing.
        max_steps: Gauss-Newton steps per start, > 0.
        max_restarts: perturbed restarts >= 0 from the best point of a slice that is not done.
        kick: standard deviation >= 0 of the first perturbation, in the unit of the samples.
        max_cg: conjugate-gradient iterations per step, > 0; they run two by two, so that an odd number runs one more.
        patience: checks without progress, > 0, after which a step's inner iteration ends.
        batch_size: slices advanced together; None is 1 on a CPU, which is fastest there, and 64 on accelerators.
        bounds: lowest and highest value that the attacker considers possible. None means [0, 1], the range of images,
            if there is an extractor, and no bound if features are the data, which are then known directly. (-inf, inf)
            is no bound.
    """

    tolerance: float = 2e-6
    settled: float = 1e-3
    max_steps: int = 40
    max_restarts: int = 4
    kick: float = 0.03
    max_cg: int = 16
    patience: int = 2
    batch_size: int | None = None
    bounds: tuple[float, float] | None = None

    def check(self) -> None:
        """Raise `ValueError` naming the option that is out of range."""
        _validate.positive(tolerance=self.tolerance)
        _validate.non_negative(settled=self.settled, kick=self.kick)
        _validate.count(max_steps=self.max_steps, max_cg=self.max_cg, patience=self.patience)
        _validate.count_or_zero(max_restarts=self.max_restarts)
        if self.batch_size is not None:
            _validate.count(batch_size=self.batch_size)
        bounds_of(self)


def check_step_three(options: FeatureInversionOptions | None, seed: int) -> None:
    """Raise `ValueError` on options or a seed out of range; attacks call this before the rounds and before Step III."""
    _validate.seeds(seed=seed)
    (options or FeatureInversionOptions()).check()


class FeatureInversionResult(NamedTuple):
    """Slices with their certificates."""

    x: Any  # (B, *slice) within the bounds of the options
    residual: Any  # (B,) relative residual ||h(x) - h|| / ||h||
    steps: Any  # (B,) Gauss-Newton steps taken
    restarts: Any  # (B,) perturbed restarts used


class _Carry(NamedTuple):
    x: jax.Array
    scale: jax.Array  # factor on the temperature, in (0, 1]
    failures: jax.Array  # steps in a row without progress
    since: jax.Array  # steps since the last restart
    steps: jax.Array
    restarts: jax.Array
    settled: jax.Array
    best_x: jax.Array
    best_residual: jax.Array


def invert_features(
    features: FeatureFn,
    extractor_params: PyTree,
    h: jax.Array,
    start: jax.Array,
    *,
    keys: jax.Array,
    options: FeatureInversionOptions | None = None,
) -> FeatureInversionResult:
    """Find x within bounds with features(x) = h, slice by slice. Pure and jit-able; slices do not influence each other.

    An x outside of the bounds is not found, and the remaining residual shows this. Samples that were standardised, or
    normalised by a mean and a deviation, need bounds of their own.

    Args:
        features: `(extractor_params, x (B, *slice), temperature (B,) | None) -> (B, d1)`, one party's extractor.
        extractor_params: parameters of the party's extractor.
        h: (B, d1) features to invert.
        start: (B, *slice) first guesses, which are clipped to the bounds.
        keys: (B,) random keys of the slices' perturbed restarts.
        options: see `FeatureInversionOptions`; bounds of None are [0, 1] here.

    Returns:
        A `FeatureInversionResult`. A slice that did not converge keeps its best iterate, and its residual shows this.

    Raises:
        ValueError: if the numbers of features and starts differ, or an option is out of range.
    """
    options = options or FeatureInversionOptions()
    options.check()
    if h.shape[0] != start.shape[0]:
        raise ValueError(f"h and start must have the same length, got {h.shape[0]} and {start.shape[0]}")
    fastest = 1 if jax.default_backend() == "cpu" else 64
    options = options._replace(bounds=bounds_of(options))

    def one(inputs: tuple[jax.Array, jax.Array, jax.Array]) -> FeatureInversionResult:
        return _invert_one(features, extractor_params, *inputs, options)

    return jax.lax.map(one, (h, start, keys), batch_size=options.batch_size or fastest)


def bounds_of(options: FeatureInversionOptions, *, features_are_data: bool = False) -> tuple[float, float]:
    """The lowest and the highest value that the options allow.

    Args:
        options: see `FeatureInversionOptions`.
        features_are_data: whether there is no extractor; values are then unbounded unless the options give bounds.

    Raises:
        ValueError: if the bounds are not two numbers, the first below the second.
    """
    if options.bounds is None:
        return (-math.inf, math.inf) if features_are_data else (0.0, 1.0)
    low, high = options.bounds
    if not low < high:
        raise ValueError(f"bounds must be (lowest, highest) with lowest < highest, got {options.bounds}")
    return low, high


def _invert_one(
    features: FeatureFn,
    extractor_params: PyTree,
    h: jax.Array,
    start: jax.Array,
    key: jax.Array,
    options: FeatureInversionOptions,
) -> FeatureInversionResult:
    low, high = bounds_of(options)
    h_norm = jnp.linalg.norm(h) + jnp.finfo(h.dtype).tiny

    def misfit(x: jax.Array) -> jax.Array:
        return features(extractor_params, x[None], None)[0] - h

    def body(c: _Carry) -> _Carry:
        x, improved, residual = _gauss_newton_step(features, extractor_params, c.x, h, c.scale, options)
        residual = residual / h_norm
        better = residual < c.best_residual
        best_x, best_residual = jnp.where(better, x, c.best_x), jnp.where(better, residual, c.best_residual)
        failures = jnp.where(improved, 0, c.failures + 1)
        # A failed step is retried with a sharper Jacobian; after success the smoothing relaxes again.
        scale = jnp.where(improved, jnp.minimum(1.0, 1.5 * c.scale), 0.5 * c.scale)
        # A large residual means a wrong piece, and x is kicked out of it. A small residual that stays is noise on h.
        settled = (best_residual < options.settled) & (failures >= 2)
        stuck = ~settled & ((failures >= 6) | (c.since + 1 >= options.max_steps))
        kick = _kick(jax.random.fold_in(key, c.restarts), x.shape, c.restarts, options.kick)
        kicked = jnp.clip(best_x + kick, low, high)
        return _Carry(
            x=jnp.where(stuck, kicked, x),
            scale=jnp.where(stuck, 1.0, scale),
            failures=jnp.where(stuck, 0, failures),
            since=jnp.where(stuck, 0, c.since + 1),
            steps=c.steps + 1,
            restarts=c.restarts + stuck,
            settled=settled,
            best_x=best_x,
            best_residual=best_residual,
        )

    zero = jnp.zeros((), jnp.int32)
    start = jnp.clip(start, low, high)
    first = _Carry(
        start,
        jnp.ones(()),
        zero,
        zero,
        zero,
        zero,
        jnp.zeros((), bool),
        start,
        jnp.linalg.norm(misfit(start)) / h_norm,
    )
    last = jax.lax.while_loop(
        lambda c: (c.best_residual > options.tolerance) & ~c.settled & (c.restarts <= options.max_restarts), body, first
    )
    restarts = jnp.minimum(last.restarts, options.max_restarts)  # the loop counts one more, which it does not run
    return FeatureInversionResult(last.best_x, last.best_residual, last.steps, restarts)


def _gauss_newton_step(
    features: FeatureFn,
    extractor_params: PyTree,
    x: jax.Array,
    h: jax.Array,
    scale: jax.Array,
    options: FeatureInversionOptions,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step from x: the new point, whether the residual fell by more than rounding, and the new residual's norm."""
    low, high = bounds_of(options)
    r = features(extractor_params, x[None], None)[0] - h
    loss = jnp.vdot(r, r)
    temperature = scale * jnp.sqrt(loss / r.size) + 1e-9
    _, push = jax.linearize(lambda z: features(extractor_params, z[None], temperature[None])[0], x)
    pull_tuple = jax.linear_transpose(push, x)

    def pull(cotangent: jax.Array) -> jax.Array:
        return pull_tuple(cotangent)[0]

    gradient = pull(r)
    # Pixels at a bound that the gradient pushes outwards stay there for this step.
    free = ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))
    s = -gradient * free

    def conjugate_gradient(v: tuple) -> tuple:
        _, p, s_squared, move, res = v
        q = push(p)
        alpha = s_squared / (jnp.vdot(q, q) + 1e-30)
        move, res = move + alpha * p, res - alpha * q
        s = pull(res) * free
        new_squared = jnp.vdot(s, s)
        return s, s + (new_squared / (s_squared + 1e-30)) * p, new_squared, move, res

    def body(carry: tuple) -> tuple:
        k, cg, best_x, best_loss, stalled = carry
        cg = conjugate_gradient(conjugate_gradient(cg))
        candidate = jnp.clip(x + cg[3], low, high)
        misfit = features(extractor_params, candidate[None], None)[0] - h
        candidate_loss = jnp.vdot(misfit, misfit)
        better = candidate_loss < best_loss
        stalled = jnp.where(candidate_loss < 0.98 * best_loss, 0, stalled + 1)
        best_x = jnp.where(better, candidate, best_x)
        return k + 2, cg, best_x, jnp.where(better, candidate_loss, best_loss), stalled

    zero = jnp.zeros((), jnp.int32)
    cg = (s, s, jnp.vdot(s, s), jnp.zeros_like(x), -r)
    _, _, best_x, best_loss, _ = jax.lax.while_loop(
        lambda c: (c[0] < options.max_cg) & (c[4] < options.patience), body, (zero, cg, x, loss, zero)
    )
    return best_x, best_loss < 0.999 * loss, jnp.sqrt(best_loss)


def _kick(key: jax.Array, shape: tuple[int, ...], restarts: jax.Array, size: float) -> jax.Array:
    # Smooth noise moves many pixels together, as wrong pieces do; every second restart kicks half as hard.
    coarse = (4, 4, *shape[2:]) if len(shape) >= 2 else shape
    noise = jax.image.resize(jax.random.normal(key, coarse), shape, "cubic")
    return size * 0.5 ** (restarts // 2) * noise / (jnp.std(noise) + 1e-12)
