"""What an attacker takes for the variance of noise that grows with the gradient's entries."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import defenses, models, protocols
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks.adaptive._likelihood import proportional_likelihood


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


def test_entries_of_zero_are_weighed_by_a_tenth_of_the_mean_square():
    """Their noise vanishes with them, and what an attacker makes of them must not be infinitely wrong."""
    observed = {"w": np.array([2.0, 0.0, -1.0], np.float32), "b": np.array([1.0], np.float32)}
    simulated = {"w": np.array([1.5, 0.5, -1.0], np.float32), "b": np.array([0.0], np.float32)}
    a, b = (np.concatenate([tree["w"], tree["b"]]) for tree in (observed, simulated))
    expected = np.mean((a - b) ** 2 / (a**2 + 0.1 * np.mean(a**2))) / 0.5**2
    assert float(proportional_likelihood(0.5)(observed, simulated)) == pytest.approx(expected, rel=1e-5)
    nothing = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}
    assert float(proportional_likelihood(0.5)(nothing, simulated)) == pytest.approx(np.mean(b**2) / 0.5**2, rel=1e-5)
