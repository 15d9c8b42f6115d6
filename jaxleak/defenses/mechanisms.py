"""What is public of a defense once its kind and strength are known: what others can simulate, and what stays random.

A defense declares its mechanism beside its transform, as `Defense.mechanism`. `jaxleak.attacks.adaptive` reads it and
attacks accordingly, so a mechanism states facts and names no attack. Nothing in it depends on a client's data or keys.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax


class Replayed(NamedTuple):
    """The transform needs nothing but the payload, so that anybody can run it on a payload of their own.

    Attributes:
        random: whether it draws numbers, which then differ from the client's.
        grid: where it rounds every entry to a grid that reaches to the tensor's largest magnitude, and does nothing
            else, the grid's steps on either side of zero, > 0; None elsewhere.
    """

    random: bool = False
    grid: int | None = None


class Recomputed(NamedTuple):
    """The payload is a gradient that the defense computes anew, with random numbers, from the images and labels.

    The attacker calls the defense on its candidate with the keywords that the client calls it with at "representation":
    `model`, `variables`, `x` (B, H, W, channels), `y`, `mode` and `round`; and with `sharpness`, None or () > 0, with
    which the kinks of the model are smoothed. Instead of the payload it hands over the weights, which only have its
    shapes.
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

    What arrives is the change of the weights over the learning rate, and the new weights were rounded to float32.
    Nothing is drawn: whoever knows the weights can bound g from both sides.
    """

    learning_rate: float  # > 0
    epsilon: float  # > 0, what Adam adds to the root of the second moment
    weight_decay: float  # >= 0, decoupled from the gradient as in AdamW


class GaussianNoise(NamedTuple):
    """Every entry gets Gaussian noise of the same standard deviation.

    Attributes:
        deviation: the standard deviation in round 0, > 0.
        decay: factor of the deviation per round, in (0, 1].
        of_sum: whether it is added to the sum over the batch, of which the payload is the mean.
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
    """Entries get Gaussian noise whose standard deviation follows from the weights, tensor by tensor."""

    deviation: Callable[[jax.Array], jax.Array]  # from a tensor of weights to its noise's deviation (), >= 0
    kept: Callable[[jax.Array], jax.Array]  # from what arrived of a tensor to a mask: not noise alone


class PrivateNoise(NamedTuple):
    """Noise that depends on the client's own batch, so that only runs on other batches tell how much there is."""


class RankedNoise(NamedTuple):
    """Gaussian noise that is sorted like the entries of a tensor stands in for them, rank by rank."""

    # "small": every entry whose magnitude is below the noise of its rank arrives true, and the others keep their order
    # and sign; "none": all entries are noise, and keep nothing but their order.
    kept: Literal["small", "none"]
    variance: float  # > 0, in squares of the unit
    # The unit of the noise's standard deviation: 1 ("absolute"), or the root mean square of a tensor or gradient.
    unit: Literal["absolute", "tensor", "gradient"]


Simulation: TypeAlias = Replayed | Recomputed | Clipped | AdamStep
Noise: TypeAlias = GaussianNoise | LaplaceNoise | ProportionalNoise | TensorNoise | PrivateNoise | RankedNoise


class Mechanism(NamedTuple):
    """What a defense does to a payload, as far as whoever knows its kind and strength can tell.

    Without simulation and noise, entries that arrive other than zero are the client's own.

    simulation: what others can do to a payload of their own that the client did to its own; None where nothing.
    noise: what stays unknown; None where nothing is added, or where it is part of what is replayed.
    zeroes: entries that arrive as exactly zero were left out, and say nothing of the client's.
    zeroes_head: the gradient of the last layer, which has the largest entries, is among those left out.
    carries: what was left out in earlier rounds may have been added to entries, which then are not those of one batch.
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
