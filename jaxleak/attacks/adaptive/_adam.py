"""What the first step of Adam leaves of a gradient: every entry, between two bounds that rounding sets.

A first step maps a gradient g to `r = |g| / (|g| + epsilon)` times its sign. That is close to 1, and `1 - r` is
`epsilon / (|g| + epsilon)`: the distance to 1 tells |g|, up to the rounding of the weights and of r. Gradients so large
that their distance is less than the rounding have a lower bound alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Observation, PyTree
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import AdamStep

#: Rounding of what lies between g and the new weight: about eight operations in float32, each by 2^-24 at the most.
_OPERATIONS = 8 * 2.0**-24


class BeforeAdam(NamedTuple):
    """The gradient before a first step of Adam, as the server can tell it from the weights and the upload."""

    step: AdamStep

    def read(self, observation: Observation) -> Observation:
        """The observation with the likeliest gradient as its payload, of which entries may be far off."""

        def likeliest(sent: jax.Array, weights: jax.Array) -> jax.Array:
            own = sent - self.step.weight_decay * weights
            size, error = jnp.abs(own), self.error(sent, weights)
            # The largest gradients that can be told from larger ones stand for these.
            gradient = self.step.epsilon * size / jnp.maximum(1 - size, error)
            return jnp.where(size > error, jnp.sign(own) * gradient, 0.0)

        return observation._replace(payload=jax.tree.map(likeliest, observation.payload, observation.params["params"]))

    def bounds(self, sent: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Lower and upper bounds of the gradient's entries, which may be infinite, from what was sent of a tensor."""
        own = sent - self.step.weight_decay * weights
        size, error, epsilon = jnp.abs(own), self.error(sent, weights), self.step.epsilon
        gap = 1 - size
        least = epsilon * jnp.maximum(size - error, 0.0) / jnp.maximum(gap + error, error)
        told = gap > error
        most = jnp.where(told, epsilon * (size + error) / jnp.where(told, gap - error, 1.0), jnp.inf)
        signed = size > error
        lower = jnp.where(signed & (own > 0), least, -most)
        upper = jnp.where(signed & (own < 0), -least, most)
        return lower, upper

    def nearest(self, observation: Observation, simulated: PyTree) -> PyTree:
        """The gradient nearest to a simulated one, among those that may have been there before the step."""

        def clipped(sent: jax.Array, weights: jax.Array, own: jax.Array) -> jax.Array:
            return jnp.clip(own, *self.bounds(sent, weights))

        return jax.tree.map(clipped, observation.payload, observation.params["params"], simulated)

    def told(self, observation: Observation) -> PyTree:
        """Which entries of the gradient are known up to a tenth; of the others little more than the sign may be."""

        def of_tensor(sent: jax.Array, weights: jax.Array) -> jax.Array:
            lower, upper = self.bounds(sent, weights)
            least, most = jnp.minimum(jnp.abs(lower), jnp.abs(upper)), jnp.maximum(jnp.abs(lower), jnp.abs(upper))
            return (jnp.sign(lower) == jnp.sign(upper)) & (most <= 1.1 * least)

        return jax.tree.map(of_tensor, observation.payload, observation.params["params"])

    def error(self, sent: jax.Array, weights: jax.Array) -> jax.Array:
        """How far rounding may have moved an entry: half a unit in the last place of a weight at every rounding."""
        rate, decay = self.step.learning_rate, self.step.weight_decay
        largest = jnp.maximum(jnp.abs(weights), jnp.abs(weights - rate * sent))
        _, exponent = jnp.frexp(largest)
        last = jnp.where(largest > 0, jnp.ldexp(jnp.ones_like(largest), exponent - 24), 0.0)
        # AdamW rounds the factor by which it shrinks the weight and the shrunk weight, too.
        of_weights = (1.5 if decay else 0.5) * last / rate
        return of_weights + _OPERATIONS * (1.0 + decay * jnp.abs(weights))


def undone_by(defense: Defense | None) -> BeforeAdam | None:
    """What the server knows of the gradient before a step of Adam; None where the upload is the gradient itself."""
    mechanism = None if defense is None else defense.mechanism
    if mechanism is None or not isinstance(mechanism.simulation, AdamStep):
        return None
    return BeforeAdam(mechanism.simulation)
