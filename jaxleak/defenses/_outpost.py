"""OUTPOST (Wang, Hugh, Li: "More than Enough is Too Much", INFOCOM 2023 and ToN 2024)."""

import jax
import jax.numpy as jnp

from jaxleak import _magnitudes, _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, map_with_keys, stateless
from jaxleak.defenses.mechanisms import Mechanism, TensorNoise

#: Default deviation of the noise, in units of a tensor's risk.
NOISE = 0.8


def outpost(
    ratio: float = 0.8, *, noise_scale: float = NOISE, fisher_percent: float = 40.0, decay: float = 0.125
) -> Defense:
    """Prune small gradient entries and add noise to those with the largest Fisher information.

    Per round, with probability 1 / (1 + decay * round) (otherwise the payload goes out as it is):

    1. in every tensor the share `ratio` of entries smallest in magnitude becomes zero;
    2. the `fisher_percent` percent of entries of the whole model with the largest diagonal empirical Fisher
       information, here the squared entry of the shared gradient, get Gaussian noise of standard deviation
       `noise_scale` times the risk of their tensor: the variance of its weights, at most 1.

    Defaults, and the definitions where the paper's text leaves a choice, are those of the authors' framework (Plato).
    Its code averages the squared gradients over each tensor's first axis, which is not the examples' axis; that is not
    followed here. There, `decay` counts local iterations and starts anew in every upload, so that uploads of one step
    are always perturbed: decay = 0 here, where it counts rounds. It also returns the unperturbed gradient, because the
    perturbed one is assigned to a loop variable.

    The noise does not scale with the gradient, so its relative size depends on the loss's reduction and on the stage of
    training; measure it. A constant tensor, such as a bias that starts at zero, gets no noise.

    Args:
        ratio: share of pruned entries, in [0, 1] (FedLeak: 0.1 to 0.9, rho in the paper).
        noise_scale: >= 0. With `ratio` 0 and `noise_scale` 0 the defense is the identity.
        fisher_percent: share of entries that get noise, in (0, 100].
        decay: >= 0, how fast perturbations become rare; with 0 every round is perturbed.

    Returns:
        A `Defense` at "representation" that needs the keyword `variables`, and `round` () unless decay is 0.

    Raises:
        ValueError: on values out of range; when applied without those keywords.
    """
    _validate.in_range(0, 1, ratio=ratio)
    _validate.non_negative(noise_scale=noise_scale, decay=decay)
    _magnitudes.share_count(1, fisher_percent)

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        variables: PyTree = None,
        round: jax.Array | int | None = None,
        **extra: object,
    ) -> PyTree:
        del extra
        if variables is None:
            raise ValueError("outpost needs the keyword variables: the client's model")
        if decay and round is None:
            raise ValueError("outpost needs the keyword round, unless decay is 0")
        noise_key, coin_key = jax.random.split(key)
        # Squares keep the order of magnitudes and may underflow, so magnitudes are compared.
        informative = _magnitudes.magnitude_threshold(jax.tree.leaves(payload), fisher_percent)

        def perturb(k: jax.Array, leaf: jax.Array, weights: jax.Array) -> jax.Array:
            noise = noise_scale * risk(weights) * jax.random.normal(k, leaf.shape)
            # Zeros would tie with the most informative entries of a gradient that is mostly zeros.
            chosen = _magnitudes.reaches(leaf, informative) & (leaf != 0)
            return prune_small(leaf, ratio) + jnp.where(chosen, noise, 0.0)

        perturbed = map_with_keys(perturb, noise_key, payload, variables["params"])
        if not decay:
            return perturbed
        acts = jax.random.uniform(coin_key) < 1 / (1 + decay * jnp.asarray(round))
        return jax.tree.map(lambda new, old: jnp.where(acts, new, old), perturbed, payload)

    # Only the most informative entries carry noise, and one that was pruned may carry nothing but noise: as many
    # entries as survive in a tensor count as kept, the largest that arrived.
    noise = TensorNoise(lambda weights: noise_scale * risk(weights), lambda leaf: prune_small(leaf, ratio) != 0)
    mechanism = None if decay else Mechanism(noise=noise) if noise_scale else Mechanism(zeroes=True)
    return stateless("representation", update, mechanism=mechanism)


def risk(weights: jax.Array) -> jax.Array:
    """Variance of a tensor's weights (unbiased), at most 1; 0 for a single weight."""
    return jnp.minimum(1.0, jnp.sum((weights - weights.mean()) ** 2) / max(weights.size - 1, 1))


def prune_small(leaf: jax.Array, ratio: float) -> jax.Array:
    """`leaf` with the share `ratio` of its entries that is smallest in magnitude set to zero."""
    pruned = round(ratio * leaf.size)
    if not pruned:
        return leaf
    if pruned == leaf.size:
        return jnp.zeros_like(leaf)
    kept = _magnitudes.magnitude_threshold([leaf], 100 * (leaf.size - pruned) / leaf.size)
    return jnp.where(_magnitudes.reaches(leaf, kept), leaf, 0.0)
