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

#: Rounding of what lies between g and the new weight: at most sixteen operations and constants in float32, which round
#: by 2^-24 each. PyTorch's step has twelve.
_OPERATIONS = 16 * 2.0**-24
#: How far below 1 the factor of a step may be. PyTorch corrects the bias of the moments in float64, which leaves 1.
#: Optax does it in float32, and 1 - 0.999 is rounded so that the factor is 1 - 6.7e-6.
_FACTOR = 7e-6


class BeforeAdam(NamedTuple):
    """The gradient before a first step of Adam, as the server can tell it from the weights and the upload.

    Everywhere `sent` is what arrived of one tensor, the change of its weights over the learning rate, and `weights` are
    those before the step, of the same shape.
    """

    step: AdamStep

    def read(self, observation: Observation) -> Observation:
        """The observation with the likeliest gradient as its payload, of which entries may be far off."""

        def likeliest(sent: jax.Array, weights: jax.Array) -> jax.Array:
            own = self.of_gradient(sent, weights)
            size, error = jnp.abs(own), self.error(sent, weights)
            # The largest gradients that can be told from larger ones stand for these.
            gradient = self.step.epsilon * size / jnp.maximum(1 - size, error)
            return jnp.where(size > error, jnp.sign(own) * gradient, 0.0)

        return observation._replace(payload=jax.tree.map(likeliest, observation.payload, observation.params["params"]))

    def nearest(self, observation: Observation, simulated: PyTree) -> PyTree:
        """The gradient nearest to a simulated one, among those that may have been there before the step."""
        factor = self._factor_error(observation)

        def clipped(sent: jax.Array, weights: jax.Array, own: jax.Array) -> jax.Array:
            return jnp.clip(own, *self.bounds(sent, weights, factor))

        return jax.tree.map(clipped, observation.payload, observation.params["params"], simulated)

    def told(self, observation: Observation) -> PyTree:
        """Which entries of the gradient are known up to a quarter; of the others little more than the sign may be."""
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
        """What was sent without the weight decay: in [-1, 1] but for rounding, and due to the gradient alone."""
        return sent - self.step.weight_decay * weights

    def error(self, sent: jax.Array, weights: jax.Array) -> jax.Array:
        """How far rounding may have moved what was sent: half the last place of a weight, whenever one was rounded."""
        rate, decay = self.step.learning_rate, self.step.weight_decay
        largest = jnp.maximum(jnp.abs(weights), jnp.abs(weights - rate * sent))
        _, exponent = jnp.frexp(largest)
        unit = jnp.where(largest > 0, jnp.ldexp(jnp.ones_like(largest), exponent - 24), 0.0)
        # AdamW rounds the factor by which it shrinks the weight and the shrunk weight, too.
        of_weights = (1.5 if decay else 0.5) * unit / rate
        return of_weights + _OPERATIONS * (1.0 + decay * jnp.abs(weights))

    def _factor_error(self, observation: Observation) -> jax.Array:
        """() by how much the step's factor may be below 1: by nothing if an entry shows that it is not."""
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
