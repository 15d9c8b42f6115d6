"""Defenses: optax transforms of what is shared, each with the place it acts."""

from jaxleak.defenses._base import SPLIT_PLACES, Defense, chain
from jaxleak.defenses._fake_gradients import fake_gradients
from jaxleak.defenses._gaussian import clipped_gaussian, noise_multiplier_for
from jaxleak.defenses._marvell import marvell
from jaxleak.defenses._noise import gaussian_noise
from jaxleak.defenses._vfl_defender import vfl_defender

__all__ = [
    "Defense",
    "SPLIT_PLACES",
    "chain",
    "clipped_gaussian",
    "fake_gradients",
    "gaussian_noise",
    "marvell",
    "noise_multiplier_for",
    "vfl_defender",
]
