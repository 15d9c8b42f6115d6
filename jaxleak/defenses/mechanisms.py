"""Mechanisms: what is public about a defense of known kind and strength, and what stays random.

A defense declares its mechanism as `Defense.mechanism`, beside its transform. `jaxleak.attacks.adaptive` reads it and
chooses the attack, so a mechanism states facts and names no attack. Nothing in it depends on a client's data or keys.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax


class Replayed(NamedTuple):
    """The transform needs only the payload, so that anybody can run it on a payload of their own.

    Attributes:
        random: whether the transform draws random numbers, which then differ from the client's.
        grid: number > 0 of grid steps on either side of zero, if all that the transform does is to round every entry to
            a grid that reaches to the tensor's largest magnitude; None otherwise.
    """

    random: bool = False
    grid: int | None = None


class Recomputed(NamedTuple):
    """The payload is a gradient that the defense computes anew, with random numbers, from the images and labels.

    The attacker calls the defense on its candidate with the keywords that the client uses at "representation": `model`,
    `variables`, `x` (B, H, W, channels), `y`, `mode` and `round`. It also passes `sharpness`, None or () > 0, with
    which the kinks of the model are smoothed. In place of the payload it passes the weights, of which only the shapes
    matter.
    """


class Clipped(NamedTuple):
    """The payload is clipped before anything else happens to it.

    Attributes:
        norm: the largest Euclidean norm over all leaves, > 0.
        examples: whether every example's gradient is clipped, instead of the whole payload.
    """

    norm: float
    examples: bool = False


class AdamStep(NamedTuple):
    """Every entry g of a gradient becomes `g / (|g| + epsilon) + weight_decay w`: the first step of Adam at weights w.

    The server receives the change of the weights divided by the learning rate, after the new weights were rounded to
    float32. Nothing is random, so whoever knows the weights can bound g from both sides.
    """

    learning_rate: float  # > 0
    epsilon: float  # > 0, what Adam adds to the root of the second moment
    weight_decay: float  # >= 0, decoupled from the gradient as in AdamW


class GaussianNoise(NamedTuple):
    """Every entry gets Gaussian noise of the same standard deviation.

    Attributes:
        deviation: the standard deviation in round 0, > 0.
        decay: factor of the deviation per round, in (0, 1].
        of_sum: whether the noise is added to the sum over the batch, while the payload is the mean.
    """

    deviation: float
    decay: float = 1.0
    of_sum: bool = False


class LaplaceNoise(NamedTuple):
    """Every entry gets Laplace noise of density exp(-|t| / scale) / (2 scale)."""

    scale: float  # > 0


class ProportionalNoise(NamedTuple):
    """Every entry gets Gaussian noise whose standard deviation is proportional to the entry's magnitude."""

    deviation: float  # > 0, in units of the magnitude


class TensorNoise(NamedTuple):
    """Entries get Gaussian noise whose standard deviation is a function of the tensor's weights."""

    deviation: Callable[[jax.Array], jax.Array]  # a tensor of weights -> deviation () >= 0 of its noise
    kept: Callable[[jax.Array], jax.Array]  # the tensor as uploaded -> mask of entries that are not noise alone


class PrivateNoise(NamedTuple):
    """Noise that depends on the client's own batch: others can only estimate its size from runs on other batches."""


class RankedNoise(NamedTuple):
    """Gaussian noise, sorted like the entries of a tensor, replaces them rank by rank."""

    # "small": every entry whose magnitude is below the noise of its rank arrives true, and the others keep only their
    # order and sign. "none": all entries are noise, and only their order is kept.
    kept: Literal["small", "none"]
    variance: float  # > 0, in squares of the unit
    # The unit of the noise's standard deviation: 1 ("absolute"), or the root mean square of a tensor or gradient.
    unit: Literal["absolute", "tensor", "gradient"]


Simulation: TypeAlias = Replayed | Recomputed | Clipped | AdamStep
Noise: TypeAlias = GaussianNoise | LaplaceNoise | ProportionalNoise | TensorNoise | PrivateNoise | RankedNoise


class Mechanism(NamedTuple):
    """What is known about a defense's effect on a payload if its kind and strength are known.

    Without simulation and noise, entries that arrive other than zero are the client's own.

    simulation: the part of the defense that others can apply to their own payloads; None if there is none.
    noise: the noise, which stays unknown; None if there is none, or if it is part of the simulation.
    zeroes: entries that arrive as exactly zero were left out, and carry no information about the client's entries.
    zeroes_head: the left-out entries include the gradient of the last layer, which has the largest entries.
    carries: entries may include what was left out in earlier rounds, so they need not belong to one batch.
    """

    simulation: Simulation | None = None
    noise: Noise | None = None
    zeroes: bool = False
    zeroes_head: bool = False
    carries: bool = False


__all__ = [
    "AdamStep",
    "Clipped",
    "GaussianNoise",
    "LaplaceNoise",
    "Mechanism",
    "Noise",
    "PrivateNoise",
    "ProportionalNoise",
    "RankedNoise",
    "Recomputed",
    "Replayed",
    "Simulation",
    "TensorNoise",
]
