"""Gaussian noise on the clipped payload, as CAFE's comparison uses it (NeurIPS 2021, supplement G.3, Table 11)."""

import jax

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense, map_with_keys, stateless
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, Mechanism


def clipped_gaussian(clip: float = 3.0, noise_multiplier: float = 1.0) -> Defense:
    """Clip the payload to norm `clip`, then add Gaussian noise of standard deviation `noise_multiplier * clip`.

    This protects the aggregated gradient of a batch, not single examples: its (epsilon, delta) holds only for the
    release of whole payloads. `classical_noise_multiplier` gives the noise multiplier of the classical Gaussian
    mechanism. `dp_sgd` protects single examples.

    Args:
        clip: largest allowed Euclidean norm over all leaves, > 0 (the paper uses 3).
        noise_multiplier: >= 0; 0 only clips.

    Raises:
        ValueError: on values out of range.
    """
    _validate.positive(clip=clip)
    _validate.non_negative(noise_multiplier=noise_multiplier)

    def update(key: jax.Array, payload: PyTree, **extra: object) -> PyTree:
        del extra
        scale = _tree.clip_factor(payload, clip)
        sigma = noise_multiplier * clip
        return map_with_keys(lambda k, leaf: leaf * scale + sigma * jax.random.normal(k, leaf.shape), key, payload)

    noise = GaussianNoise(noise_multiplier * clip) if noise_multiplier else None
    return stateless("payload", update, mechanism=Mechanism(Clipped(clip), noise))
