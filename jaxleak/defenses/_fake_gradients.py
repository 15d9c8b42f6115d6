"""CAFE's fake gradients (NeurIPS 2021, Algorithm 5): upload noise that is ordered like the true gradient."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, broken
from jaxleak.defenses.mechanisms import Mechanism, RankedNoise

Reading = Literal["clamped", "paired", "printed"]
READINGS: tuple[Reading, ...] = ("clamped", "paired", "printed")
Scale = Literal["absolute", "tensor", "gradient"]
SCALES: tuple[Scale, ...] = ("absolute", "tensor", "gradient")


def fake_gradients(
    pool_size: int = 1000,
    variance: float = 1.1,
    threshold: float = jnp.inf,
    max_redraws: int = 0,
    reading: Reading = "clamped",
    scale: Scale = "gradient",
) -> Defense:
    """Replace every gradient tensor by noise that is ordered like it.

    Per round a pool of `pool_size` gradients with i.i.d. Normal(0, variance) entries is drawn and each tensor's
    entries are sorted in descending order. The pool member psi that is nearest to the true gradient, sorted likewise,
    replaces it rank by rank. The paper describes the replacement in two places that differ:

    * "printed", Algorithm 5: entries are ranked by magnitude, and the one of rank l becomes
      `min(psi_l, max(g, -psi_l))`. For the negative half of psi the clamp interval [-psi_l, psi_l] is empty and the
      rule returns psi_l itself, so the smallest true entries become large negative values.
    * "clamped": the same with magnitudes |psi| in descending order, with which Algorithm 5 does what its text says. An
      uploaded entry is the true one, or the noise of its rank where that is smaller.
    * "paired", Section 3.4: entries are ranked by signed value, and the one of rank l becomes psi_l. The upload is all
      noise and keeps only the order of the gradient's entries.

    With the printed variance taken as it is ("absolute") the noise is far larger than the gradients of a normalised
    network. Clamps then hardly ever take effect, so that nothing is protected, and paired noise makes steps that are
    far too long. The algorithm's threshold asks for noise near the gradient. `scale` therefore measures the noise in
    units of the whole gradient's root mean square ("gradient", the unit in which it comes near) or of each tensor's
    ("tensor").

    The printed loop redraws the pool until a member lies within tau of the gradient, and may never end; tau is not
    printed. Here the nearest member is used after at most `max_redraws` new pools.

    A leaf of the payload is one tensor here; leaves with a party axis are ranked over all parties together.

    Args:
        pool_size: number of candidates nu >= 1 (paper: 1000). Time grows linearly with it, memory does not.
        variance: sigma squared > 0 of the entries (paper: 1.1).
        threshold: tau > 0, largest accepted distance; inf accepts the nearest of the first pool.
        max_redraws: further pools to try, >= 0.
        reading: which of the rules above replaces the entries.
        scale: the unit of sigma: a root mean square of the payload, or 1 ("absolute", as printed).

    Raises:
        ValueError: on values out of range, or an unknown reading or scale.
    """
    _validate.count(pool_size=pool_size)
    _validate.positive(variance=variance)
    _validate.count_or_zero(max_redraws=max_redraws)
    _validate.one_of(READINGS, reading=reading)
    _validate.one_of(SCALES, scale=scale)
    if not threshold > 0:
        raise ValueError(f"threshold must be > 0, got {threshold}")

    def candidate(key: jax.Array, leaves: list[jax.Array], sigmas: list[jax.Array]) -> list[jax.Array]:
        draws = []
        for i, (leaf, sigma) in enumerate(zip(leaves, sigmas, strict=True)):
            psi = sigma * jax.random.normal(jax.random.fold_in(key, i), (leaf.size,))
            draws.append(_descending(jnp.abs(psi) if reading == "clamped" else psi))
        return draws

    def distance(psi: list[jax.Array], ranked: list[jax.Array]) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum((p - g) ** 2) for p, g in zip(psi, ranked, strict=True)))

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        leaves, treedef = jax.tree.flatten(updates)
        sigmas = _sigmas(leaves, variance**0.5, scale)
        orders = [jnp.argsort(-(leaf if reading == "paired" else jnp.abs(leaf)).ravel()) for leaf in leaves]
        ranked = [leaf.ravel()[order] for leaf, order in zip(leaves, orders, strict=True)]
        # Distances are to magnitudes if the reading is "clamped", and to signed values otherwise.
        target = [jnp.abs(g) for g in ranked] if reading == "clamped" else ranked

        def imitate(psi: list[jax.Array]) -> list[jax.Array]:
            if reading != "paired":
                psi = [jnp.minimum(p, jnp.maximum(g, -p)) for p, g in zip(psi, ranked, strict=True)]
            return [
                jnp.zeros_like(p).at[order].set(p).reshape(leaf.shape) + broken(leaf)
                for p, order, leaf in zip(psi, orders, leaves, strict=True)
            ]

        def pool_distances(redraw: jax.Array) -> jax.Array:
            keys = jax.random.split(jax.random.fold_in(key, redraw), pool_size)
            return jax.lax.map(lambda k: distance(candidate(k, leaves, sigmas), target), keys)

        def draw_again(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            redraw, best, distances = carry
            found = pool_distances(redraw + 1)
            nearer = found.min() < distances.min()
            return redraw + 1, jnp.where(nearer, redraw + 1, best), jnp.where(nearer, found, distances)

        if pool_size == 1 and not max_redraws:
            # There is no choice to make, so tensors stay independent, and noise that nobody reads is never drawn.
            only = jax.random.split(jax.random.fold_in(key, 0), 1)[0]
            return jax.tree.unflatten(treedef, imitate(candidate(only, leaves, sigmas))), state

        none = jnp.zeros((), jnp.int32)
        _, best, distances = jax.lax.while_loop(
            lambda carry: (carry[2].min() > threshold) & (carry[0] < max_redraws),
            draw_again,
            (none, none, pool_distances(none)),
        )
        keys = jax.random.split(jax.random.fold_in(key, best), pool_size)
        nearest = candidate(keys[jnp.argmin(distances)], leaves, sigmas)
        return jax.tree.unflatten(treedef, imitate(nearest)), state

    # No attack is known that reads what the printed rule leaves of the gradient.
    kept: dict[Reading, Literal["small", "none"]] = {"clamped": "small", "paired": "none"}
    mechanism = Mechanism(noise=RankedNoise(kept[reading], variance, scale)) if reading in kept else None
    transform = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    return Defense("payload", transform, mechanism=mechanism)


def _sigmas(leaves: list[jax.Array], sigma: float, scale: Scale) -> list[jax.Array]:
    """The noise's standard deviation for every tensor."""
    if scale == "absolute":
        return [jnp.asarray(sigma)] * len(leaves)
    squares = [jnp.mean(leaf**2) for leaf in leaves]
    if scale == "gradient":
        weights = [leaf.size for leaf in leaves]
        mean = jnp.average(jnp.stack(squares), weights=jnp.asarray(weights, jnp.float32))
        squares = [mean] * len(leaves)
    return [sigma * jnp.sqrt(s) for s in squares]


def _descending(x: jax.Array) -> jax.Array:
    """`x`, of shape (n,) and finite, from the largest to the smallest."""
    # XLA sorts floats by a comparator, which on a CPU is six times slower than sorting integers. As integers, the bits
    # of floats have the same order once those of negative numbers are reversed; a second reversal undoes the first.
    integer = jnp.iinfo(f"int{8 * x.dtype.itemsize}")

    def reverse_negative(bits: jax.Array) -> jax.Array:
        return bits ^ ((bits >> (integer.bits - 1)) & integer.max)

    ordered = jax.lax.sort(reverse_negative(jax.lax.bitcast_convert_type(x, integer.dtype)))
    return jax.lax.bitcast_convert_type(reverse_negative(ordered), x.dtype)[::-1]
