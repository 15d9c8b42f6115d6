"""What an attacker takes for the variance of noise that grows with the gradient's entries."""

import jax.numpy as jnp
import pytest

from jaxleak import defenses, models, protocols
from jaxleak.attacks import adaptive, presets


def test_a_neighbours_noise_doubles_the_variance():
    model = models.build("mlp", (4, 4, 1), 3)
    share = protocols.ClientShare(model)
    observed, simulated = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.9, -2.2, 0.7])}
    own, shared = (
        adaptive.informed(noise, model, share, presets.fedleak(5), batch_size=1).settings.gradients.distance(
            observed, simulated
        )
        for noise in (defenses.magnitude_noise(0.5), defenses.cancelling_noise(0.5, 2))
    )
    assert float(own) == pytest.approx(2 * float(shared))  # a client's own noise and that of one neighbour
    assert float(shared) > 0
