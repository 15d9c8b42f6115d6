"""Recover a gradient from the first step of Adam: every entry, between two bounds that rounding sets.

A first step maps a gradient g to `r = |g| / (|g| + epsilon)` times the sign of g. This r is close to 1, and `1 - r`
equals `epsilon / (|g| + epsilon)`. The distance of r from 1 therefore determines |g|, up to the rounding of the weights
and of r. If |g| is so large that this distance is below the rounding error, |g| only has a lower bound.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Observation, PyTree
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import AdamStep

#: Bound on the rounding error between g and the new weight: at most sixteen operations and constants in float32, each
#: of which rounds by 2^-24. PyTorch's step has twelve.
_OPERATIONS = 16 * 2.0**-24
#: How far below 1 the factor of a step may be. PyTorch corrects the bias of the moments in float64, which leaves 1.
#: Optax does it in float32, and 1 - 0.999 is rounded so that the factor is 1 - 6.7e-6.
_FACTOR = 7e-6


class BeforeAdam(NamedTuple):
    """The gradient before a first step of Adam, as the server can infer it from the weights and the upload.

    In all methods, `sent` is what arrived for one tensor: the change of its weights divided by the learning rate.
    `weights` are the weights before the step and have the same shape.
    """

    step: AdamStep

    def read(self, observation: Observation) -> Observation:
        """The observation with the likeliest gradient as its payload; single entries may be far off."""

        def likeliest(sent: jax.Array, weights: jax.Array) -> jax.Array:
            own = self.of_gradient(sent, weights)
            size, error = jnp.abs(own), self.error(sent, weights)
            # Gradients that are too large to be distinguished get the largest value that can be.
            gradient = self.step.epsilon * size / jnp.maximum(1 - size, error)
            return jnp.where(size > error, jnp.sign(own) * gradient, 0.0)

        return observation._replace(payload=jax.tree.map(likeliest, observation.payload, observation.params["params"]))

    def nearest(self, observation: Observation, simulated: PyTree) -> PyTree:
        """The gradient nearest to a simulated one, among all gradients that agree with the upload."""
        factor = self._factor_error(observation)

        def clipped(sent: jax.Array, weights: jax.Array, own: jax.Array) -> jax.Array:
            return jnp.clip(own, *self.bounds(sent, weights, factor))

        return jax.tree.map(clipped, observation.payload, observation.params["params"], simulated)

    def told(self, observation: Observation) -> PyTree:
        """Mask of the entries whose size is known up to 25 %; of the others, often only the sign is known."""
        factor = self._factor_error(observation)

        def of_tensor(sent: jax.Array, weights: jax.Array) -> jax.Array:
            lower, upper = self.bounds(sent, weights, factor)
            least, most = jnp.minimum(jnp.abs(lower), jnp.abs(upper)), jnp.maximum(jnp.abs(lower), jnp.abs(upper))
            return (jnp.sign(lower) == jnp.sign(upper)) & (most <= 1.25 * least)

        return jax.tree.map(of_tensor, observation.payload, observation.params["params"])

    def bounds(
        self, sent: jax.Array, weights: jax.Array, factor_error: jax.Array | float = _FACTOR
    ) -> tuple[jax.Array, jax.Array]:
        """Lower and upper bounds of the gradient's entries, which may be infinite; `factor_error` () is >= 0."""
        own = self.of_gradient(sent, weights)
        size, error, epsilon = jnp.abs(own), self.error(sent, weights), self.step.epsilon
        gap, wide = 1 - size, error + factor_error
        least = epsilon * jnp.maximum(size - wide, 0.0) / jnp.maximum(gap + wide, wide)
        bounded = gap > wide
        most = jnp.where(bounded, epsilon * (size + wide) / jnp.where(bounded, gap - wide, 1.0), jnp.inf)
        has_sign = size > error
        lower = jnp.where(has_sign & (own > 0), least, -most)
        upper = jnp.where(has_sign & (own < 0), -least, most)
        return lower, upper

    def of_gradient(self, sent: jax.Array, weights: jax.Array) -> jax.Array:
        """What was sent, minus the weight decay: it depends on the gradient alone, and is in [-1, 1] up to rounding."""
        return sent - self.step.weight_decay * weights

    def error(self, sent: jax.Array, weights: jax.Array) -> jax.Array:
        """Bound on the rounding error of what was sent: half a unit in the last place for each rounding of a weight."""
        rate, decay = self.step.learning_rate, self.step.weight_decay
        largest = jnp.maximum(jnp.abs(weights), jnp.abs(weights - rate * sent))
        _, exponent = jnp.frexp(largest)
        unit = jnp.where(largest > 0, jnp.ldexp(jnp.ones_like(largest), exponent - 24), 0.0)
        # AdamW rounds the factor by which it shrinks the weight and the shrunk weight, too.
        of_weights = (1.5 if decay else 0.5) * unit / rate
        return of_weights + _OPERATIONS * (1.0 + decay * jnp.abs(weights))

    def _factor_error(self, observation: Observation) -> jax.Array:
        """() how far the step's factor may be below 1; 0 if some entry proves that the factor is 1."""
        largest = jnp.zeros(())
        pairs = zip(jax.tree.leaves(observation.payload), jax.tree.leaves(observation.params["params"]), strict=True)
        for sent, weights in pairs:
            certain = jnp.abs(self.of_gradient(sent, weights)) - self.error(sent, weights)
            largest = jnp.maximum(largest, jnp.max(certain, initial=0.0))
        return jnp.where(largest > 1 - _FACTOR, 0.0, _FACTOR)


def undone_by(defense: Defense | None) -> BeforeAdam | None:
    """What the server knows of the gradient before a step of Adam; None where the upload is the gradient itself."""
    mechanism = None if defense is None else defense.mechanism
    if mechanism is None or not isinstance(mechanism.simulation, AdamStep):
        return None
    return BeforeAdam(mechanism.simulation)
