"""Gaussian noise on the clipped payload, as CAFE's comparison uses it (NeurIPS 2021, supplement G.3, Table 11)."""

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense


def clipped_gaussian(clip: float = 3.0, noise_multiplier: float = 1.0) -> Defense:
    """Clip the payload to norm `clip`, then add Gaussian noise of standard deviation `noise_multiplier * clip`.

    This protects the aggregated gradient of a batch, not single examples; it carries an (epsilon, delta) only for the
    release of whole payloads. `noise_multiplier_for` gives the multiplier of the classical Gaussian mechanism.

    Args:
        clip: largest allowed Euclidean norm over all leaves, > 0 (the paper uses 3).
        noise_multiplier: >= 0; 0 only clips.

    Raises:
        ValueError: on values out of range.
    """
    _validate.positive(clip=clip)
    _validate.non_negative(noise_multiplier=noise_multiplier)

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, extra
        scale = jnp.minimum(1.0, clip / jnp.maximum(_tree.norm(updates), jnp.finfo(jnp.float32).tiny))
        leaves, treedef = jax.tree.flatten(updates)
        noisy = [
            leaf * scale + noise_multiplier * clip * jax.random.normal(jax.random.fold_in(key, i), leaf.shape)
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(treedef, noisy), state

    return Defense("payload", optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update))


def noise_multiplier_for(epsilon: float, delta: float) -> float:
    """sqrt(2 log(1.25 / delta)) / epsilon, the classical Gaussian mechanism (Dwork and Roth 2014, Theorem A.1).

    The theorem needs epsilon < 1; beyond, the same formula is used as the papers do, without its guarantee.

    Raises:
        ValueError: if epsilon <= 0 or delta is not in (0, 1).
    """
    _validate.positive(epsilon=epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(f"delta must be < 1, got {delta}")
    return float(jnp.sqrt(2 * jnp.log(1.25 / delta)) / epsilon)
