"""Defenses: optax transforms of what is shared, each with the place it acts."""

from jaxleak.defenses._base import Defense, chain
from jaxleak.defenses._fake_gradients import fake_gradients
from jaxleak.defenses._gaussian import clipped_gaussian, noise_multiplier_for

__all__ = ["Defense", "chain", "clipped_gaussian", "fake_gradients", "noise_multiplier_for"]
