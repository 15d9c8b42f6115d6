"""What a stated defense leaves of the head's bias gradient, whose negative entries prove labels."""

import jax.numpy as jnp
import numpy as np

from jaxleak.audit._checks.head import Head
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import (
    GaussianNoise,
    LaplaceNoise,
    Noise,
    ProportionalNoise,
    Recomputed,
    Replayed,
    TensorNoise,
)

#: Standard deviations of Gaussian noise, and scales of Laplace noise, beyond which noise moves one entry in 1e9.
DEVIATIONS, _SCALES = 6.0, 20.0


def certain(head: Head, defense: Defense | None) -> Head | None:
    """The head, with its bias gradient reduced to what the defense cannot have made: its signs are the client's own.

    Every entry is moved towards zero by as much as the defense and rounding may have moved it. Clipping, of the whole
    update or of every example, multiplies by positive factors of 1 at most: that keeps signs and makes entries smaller.

    Args:
        head: from `head_of`, of a defended update that has a bias gradient.
        defense: as it is stated; None if it is not known.

    Returns:
        None where entries of the update may have any sign, whatever the client's own have.
    """
    assert head.bias_gradient is not None
    # Noise may depend on the bias's weights. With one logit, the first of them is not the client's.
    weights = head.bias[1:] if head.one_logit and head.bias is not None else head.bias
    error = None if defense is None else _error(defense, head.bias_gradient, weights)
    if error is None:
        return None
    left = np.maximum(np.abs(head.bias_gradient) - error - head.bias_rounding, 0.0)
    return head._replace(bias_gradient=np.sign(head.bias_gradient) * left)


def _error(defense: Defense, sent: np.ndarray, weights: np.ndarray | None) -> np.ndarray | float | None:
    """How far the entries of a tensor that arrived may be from the client's own; None where nothing bounds this."""
    mechanism = defense.mechanism
    # An entry that other clients or earlier rounds had a part in may have a sign that says nothing of this batch.
    if mechanism is None or mechanism.carries or defense.place == "client_payloads":
        return None
    if isinstance(mechanism.simulation, Recomputed):
        return None
    if not isinstance(mechanism.simulation, Replayed):
        return _of_noise(mechanism.noise, sent, weights)
    grid = mechanism.simulation.grid
    if grid is None or mechanism.noise is not None:
        return None
    step = float(np.abs(sent).max(initial=0.0)) / grid
    return step if mechanism.simulation.random else step / 2


def _of_noise(noise: Noise | None, sent: np.ndarray, weights: np.ndarray | None) -> np.ndarray | float | None:
    if noise is None:
        return 0.0
    if isinstance(noise, GaussianNoise):
        # In the mean, noise on a sum is divided by B, but the batch need not hold as many samples as are stated.
        return DEVIATIONS * noise.deviation
    if isinstance(noise, LaplaceNoise):
        return _SCALES * noise.scale
    if isinstance(noise, TensorNoise) and weights is not None:
        return DEVIATIONS * float(noise.deviation(jnp.asarray(weights, jnp.float32)))
    if isinstance(noise, ProportionalNoise) and DEVIATIONS * noise.deviation < 1:
        most = DEVIATIONS * noise.deviation  # relative to the client's own entry, of which at most 1 + most arrives
        return np.abs(sent) * most / (1 + most)
    return None
