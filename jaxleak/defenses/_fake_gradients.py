"""CAFE's fake gradients (NeurIPS 2021, Algorithm 5): upload noise that is ordered like the true gradient."""

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense


def fake_gradients(
    pool_size: int = 1000,
    variance: float = 1.1,
    threshold: float = jnp.inf,
    max_redraws: int = 0,
    repair: bool = True,
    relative: bool = False,
) -> Defense:
    """Replace every gradient tensor by noise that keeps its order of magnitudes (and, repaired, its signs).

    Per round a pool of `pool_size` gradients with i.i.d. Normal(0, variance) entries is drawn and each tensor's
    entries are sorted in descending order. The pool member psi nearest to the true gradient, sorted by magnitude, is
    chosen, and the entry of rank l becomes `min(psi_l, max(g, -psi_l))`.

    psi is signed, so for its negative half the clamp interval [-psi_l, psi_l] is empty and the printed rule returns
    psi_l itself: the smallest true entries become large negative values. `repair=True` clamps to |psi| sorted in
    descending order instead, the reading under which Algorithm 5 does what its text says; `repair=False` is the
    algorithm as printed.

    With the printed variance the noise is far larger than the gradients of a normalised network, so the repaired clamp
    hardly ever binds and the upload is the true gradient. `relative=True` reads the variance in units of each tensor's
    mean square instead, the scale at which the clamp does bind.

    The printed loop redraws the pool until a member lies within tau of the gradient, and need not end; tau is not
    printed. Here the nearest member is used after at most `max_redraws` new pools.

    A leaf of the payload is one tensor here; leaves with a party axis are ranked over all parties together.

    Args:
        pool_size: number of candidates nu >= 1 (paper: 1000). Time grows linearly with it, memory does not.
        variance: sigma squared > 0 of the entries (paper: 1.1).
        threshold: tau > 0, largest accepted distance; inf accepts the nearest of the first pool.
        max_redraws: further pools to try, >= 0.
        repair: clamp to magnitudes.
        relative: measure the noise in units of each tensor's root mean square.

    Raises:
        ValueError: on values out of range.
    """
    _validate.count(pool_size=pool_size)
    _validate.positive(variance=variance)
    _validate.non_negative(max_redraws=max_redraws)
    if not threshold > 0:
        raise ValueError(f"threshold must be > 0, got {threshold}")
    sigma = variance**0.5

    def candidate(key: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        draws = []
        for i, leaf in enumerate(leaves):
            scale = sigma * jnp.sqrt(jnp.mean(leaf**2)) if relative else sigma
            psi = scale * jax.random.normal(jax.random.fold_in(key, i), (leaf.size,))
            draws.append(_descending(jnp.abs(psi) if repair else psi))
        return draws

    def distance(psi: list[jax.Array], ranked: list[jax.Array]) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum((p - g) ** 2) for p, g in zip(psi, ranked, strict=True)))

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        leaves, treedef = jax.tree.flatten(updates)
        orders = [jnp.argsort(-jnp.abs(leaf.ravel())) for leaf in leaves]
        ranked = [leaf.ravel()[order] for leaf, order in zip(leaves, orders, strict=True)]
        # Distances are to what the upload is compared with: magnitudes when repaired, signed values as printed.
        target = [jnp.abs(g) for g in ranked] if repair else ranked

        def imitate(psi: list[jax.Array]) -> list[jax.Array]:
            return [
                jnp.zeros_like(p).at[order].set(jnp.minimum(p, jnp.maximum(g, -p))).reshape(leaf.shape)
                for p, g, order, leaf in zip(psi, ranked, orders, leaves, strict=True)
            ]

        def pool_distances(redraw: jax.Array) -> jax.Array:
            keys = jax.random.split(jax.random.fold_in(key, redraw), pool_size)
            return jax.lax.map(lambda k: distance(candidate(k, leaves), target), keys)

        def draw_again(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            redraw, _ = carry
            return redraw + 1, pool_distances(redraw + 1)

        if pool_size == 1 and not max_redraws:
            # No choice to make: tensors stay independent, and those that nobody reads are never drawn.
            return jax.tree.unflatten(
                treedef, imitate(candidate(jax.random.split(jax.random.fold_in(key, 0), 1)[0], leaves))
            ), state

        redraw, distances = jax.lax.while_loop(
            lambda carry: (carry[1].min() > threshold) & (carry[0] < max_redraws),
            draw_again,
            (jnp.zeros((), jnp.int32), pool_distances(jnp.zeros((), jnp.int32))),
        )
        keys = jax.random.split(jax.random.fold_in(key, redraw), pool_size)
        return jax.tree.unflatten(treedef, imitate(candidate(keys[jnp.argmin(distances)], leaves))), state

    return Defense("payload", optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update))


def _descending(x: jax.Array) -> jax.Array:
    """`x`, of shape (n,) and finite, from the largest to the smallest."""
    # XLA sorts floats by a comparator, six times slower on a CPU than integers; bits of floats are ordered as integers
    # are once those of negative numbers are reversed, which undoes itself.
    integer = jnp.iinfo(f"int{8 * x.dtype.itemsize}")

    def reverse_negative(bits: jax.Array) -> jax.Array:
        return bits ^ ((bits >> (integer.bits - 1)) & integer.max)

    ordered = jax.lax.sort(reverse_negative(jax.lax.bitcast_convert_type(x, integer.dtype)))
    return jax.lax.bitcast_convert_type(reverse_negative(ordered), x.dtype)[::-1]
