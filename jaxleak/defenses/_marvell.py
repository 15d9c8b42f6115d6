"""Marvell (Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022).

Cut gradients of positive and negative samples are modelled as Gaussians N(g1, v I) and N(g0, u I). Of all Gaussian
perturbations with p tr(S1) + (1 - p) tr(S0) <= P, the one is chosen that makes the two perturbed distributions hardest
to tell apart: it minimises the sum of both Kullback-Leibler divergences. Each optimal covariance has one eigenvalue
along g1 - g0 and another one across it, so that four numbers remain.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense

_TINY = float(jnp.finfo(jnp.float32).tiny)
_GROWTH = 1.5  # factor of the power while the divergence is too large, as in the authors' code
_MAX_GROWTHS = 100
_GRID, _REFINEMENTS = 32, 5  # resolve 32^-5 of the range; float32 holds no more


class Variances(NamedTuple):
    """Variances of the noise along g1 - g0 and across it, for both classes, and what they achieve."""

    negative_along: jax.Array
    negative_across: jax.Array
    positive_along: jax.Array
    positive_across: jax.Array
    sum_kl: jax.Array  # KL(N1 || N0) + KL(N0 || N1) of the perturbed distributions


def marvell(*, num_classes: int, power: float = 1.0, max_sum_kl: float | None = None) -> Defense:
    """Perturb every party's cut gradient by the noise that, for the given power, hides the label best.

    The statistics (means, isotropic variances, share of positives) are those of the batch, as in the paper. The power
    is P = power * ||g1 - g0||^2, hence the defense does not depend on the scale of the gradient. Each party's gradient
    is treated on its own: the model does not cover parties that pool what they see.

    Two rules are not in the paper. A batch with only one class has no difference to hide along; the missing class is
    then taken to have gradient zero and the other's variance. For C > 2 the problem is solved for each class against
    the rest, with power / C, and the C noises are added; only classes that are present count. This extension does not
    have the paper's optimality.

    Args:
        num_classes: number of classes C >= 2, as in the model. A larger number shares the power among classes that no
            label has, and hides less. For C = 2 label 1 is the positive class.
        power: factor > 0 in the power P of the noise.
        max_sum_kl: if given (> 0), the power grows by factors of 1.5 from `power` until the divergence is at most this;
            the paper shows that the average of both error rates of any detector is then at least
            1/2 - sqrt(max_sum_kl) / 4. For C > 2 it bounds each of the C problems.

    Returns:
        A `Defense` at "cut_gradient" that needs the keyword `labels` (B,), integers. A protocol refuses it for a model
        of another number of classes.

    Raises:
        ValueError: on values out of range; when applied without integer labels of shape (B,).
    """
    _validate.count_in_range(2, 10**6, num_classes=num_classes)
    _validate.positive(power=power)
    if max_sum_kl is not None:
        _validate.positive(max_sum_kl=max_sum_kl)

    def perturb(key: jax.Array, gradient: jax.Array, labels: jax.Array) -> jax.Array:
        if num_classes == 2:
            return gradient + label_noise(key, gradient, labels == 1, power, max_sum_kl)

        def against_rest(c: jax.Array) -> jax.Array:
            own = labels == c
            noise = label_noise(jax.random.fold_in(key, c), gradient, own, power / num_classes, max_sum_kl)
            return jnp.where(own.any(), noise, 0.0)

        return gradient + jax.vmap(against_rest)(jnp.arange(num_classes)).sum(axis=0)

    def update(
        updates: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        key: jax.Array,
        labels: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        if labels is None or labels.ndim != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError("marvell needs the keyword labels, integers of shape (B,), which only a label holder has")
        leaves, treedef = jax.tree.flatten(updates)
        new = [perturb(jax.random.fold_in(key, i), leaf, labels) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, new), state

    transform = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    return Defense("cut_gradient", transform, num_classes=num_classes)


def label_noise(
    key: jax.Array, gradient: jax.Array, positive: jax.Array, power: float, max_sum_kl: float | None = None
) -> jax.Array:
    """Draw the noise (B, e) of one binary problem.

    Args:
        key: random key of the draw.
        gradient: (B, e).
        positive: (B,) bool.
        power: see `marvell`.
        max_sum_kl: see `marvell`.
    """
    # Gradients of a trained network are tiny and enter by fourth powers, which float32 could not hold.
    scale = jnp.maximum(jnp.abs(gradient).max(), _TINY)
    g, batch, d = gradient / scale, len(gradient), gradient.shape[1]

    def moments(member: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        weight, count = member[:, None].astype(g.dtype), member.sum()
        mean = (weight * g).sum(axis=0) / jnp.maximum(count, 1)
        return count, mean, (weight * (g - mean) ** 2).sum() / (jnp.maximum(count, 1) * d)

    ones, mean1, variance1 = moments(positive)
    zeros, mean0, variance0 = moments(~positive)
    u, v = jnp.where(zeros > 0, variance0, variance1), jnp.where(ones > 0, variance1, variance0)
    difference = mean1 - mean0
    gap = jnp.sum(difference**2)
    share = jnp.clip(ones / batch, 0.5 / batch, 1 - 0.5 / batch)

    def solve(power: jax.Array) -> Variances:
        return optimal_variances(u, v, gap, d, share, power * gap)

    best = solve(jnp.asarray(power))
    if max_sum_kl is not None:
        _, best, _ = jax.lax.while_loop(
            lambda carry: (carry[1].sum_kl > max_sum_kl) & (carry[2] < _MAX_GROWTHS),
            lambda carry: (_GROWTH * carry[0], solve(_GROWTH * carry[0]), carry[2] + 1),
            (jnp.asarray(power, jnp.float32), best, 0),
        )
    across = jnp.where(positive, best.positive_across, best.negative_across)[:, None]
    along = jnp.where(positive, best.positive_along, best.negative_along)[:, None]
    key_along, key_across = jax.random.split(key)
    unit = difference / jnp.sqrt(jnp.maximum(gap, _TINY))
    # Isotropic noise acts along the difference as well, so only what is missing there is added.
    noise = jnp.sqrt(jnp.maximum(along - across, 0)) * jax.random.normal(key_along, (batch, 1)) * unit
    return scale * (noise + jnp.sqrt(across) * jax.random.normal(key_across, (batch, d)))


def optimal_variances(
    u: jax.Array, v: jax.Array, gap: jax.Array, d: int, share: jax.Array, power: jax.Array
) -> Variances:
    """Minimise the divergence of N(g0, u I + S0) and N(g1, v I + S1) under share tr(S1) + (1 - share) tr(S0) = power.

    The class with the larger variance gets no noise across the difference of the means. Given the other class's
    variance across it, the two variances along it have a closed form (one stationary point, clipped to what is
    feasible: no less along than across). In logarithms of the variances the whole problem is a geometric program, so it
    is convex. The minimum over the remaining number is where the slope changes sign, which nested grids find.

    Args:
        u: variance of the negative class >= 0.
        v: variance of the positive class >= 0.
        gap: squared distance of the means >= 0.
        d: dimension >= 1.
        share: share of positives in the batch, in (0, 1).
        power: total power of the noise, >= 0.
    """
    swapped = u > v
    low, high = jnp.minimum(u, v), jnp.maximum(u, v)
    of_high = jnp.where(swapped, 1 - share, share)
    of_low = 1 - of_high

    def best(across: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Map noise across (low class) to the total variances along, of low and high class, and the divergence."""
        total = power - of_low * (d - 1) * across + of_high * high + of_low * low
        ratio = jnp.sqrt((total + of_low * gap) / jnp.maximum(total + of_high * gap, _TINY))
        low_along = total / (of_high * ratio + of_low)
        low_along = jnp.clip(low_along, low + across, (total - of_high * high) / of_low)
        high_along = (total - of_low * low_along) / of_high
        # The divergences minus d, written without cancellation.
        twice = ((low_along - high_along) ** 2 + gap * (low_along + high_along)) / (low_along * high_along)
        if d > 1:
            low_across = low + across
            extra = (d - 1) * (low_across - high) ** 2 / (low_across * high)
            twice += jnp.where(high > 0, extra, 0.0)  # without any variance, both distributions are points on one line
        return low_along, high_along, 0.5 * twice

    slope = jax.vmap(jax.grad(lambda across: best(across)[2]))

    def refine(_: int, interval: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        grid = jnp.linspace(*interval, _GRID + 1)
        # NaN counts as falling: it can only stand at zero variance, where the divergence is infinite.
        last_falling = jnp.clip(jnp.sum(~(slope(grid) > 0)) - 1, 0, _GRID - 1)
        return grid[last_falling], grid[last_falling + 1]

    largest = jnp.minimum(high - low, power / (d * of_low))
    interval = jax.lax.fori_loop(0, _REFINEMENTS, refine, (jnp.zeros_like(largest), largest))
    across = interval[1]
    low_along, high_along, sum_kl = best(across)
    low_noise, high_noise = jnp.maximum(low_along - low, 0), jnp.maximum(high_along - high, 0)
    nothing = jnp.zeros_like(across)
    return Variances(
        negative_along=jnp.where(swapped, high_noise, low_noise),
        negative_across=jnp.where(swapped, nothing, across),
        positive_along=jnp.where(swapped, low_noise, high_noise),
        positive_across=jnp.where(swapped, across, nothing),
        sum_kl=sum_kl,
    )
