"""Smoothing homotopy: attack a smooth copy of the model first, and sharpen it slowly until it is the model.

The gradient of a ReLU network jumps whenever an activation changes sign. Even an image at 40 dB has a mismatched
gradient. The matching loss consists of flat pieces with cliffs between them, which no first- or second-order method can
follow. Attacks on randomly initialised ReLU networks with batch normalisation therefore stay at the score of a grey
image. The attacker owns a copy of the model, and may evaluate that copy with softplus(beta z) / beta in place of ReLU
(and max-pools smoothed likewise), beta in units of one over the layer's standard deviation. At small beta the loss is
smooth and descent makes progress, but its minimum is biased, since the observed gradient came from the exact network.
Raising beta slowly removes the bias while the iterate follows the minimum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _validate

#: Sharpness at which no pre-activation lies inside the rounded part of a kink.
_EXACT = 1e6


class Smoothing(NamedTuple):
    """Sharpness beta over the iterations: geometric from `start` to `end`, then constant."""

    start: float = 1.0
    end: float = 30.0
    hold: float = 0.0  # share of the iterations, before the finish, during which beta stays at `end`
    finish: float = 0.0  # share of the iterations, at the end, with practically exact kinks
    # None follows the clock. Otherwise beta rises only while the data distance is below this.
    progress_below: float | None = None

    def check(self) -> None:
        """Raise `ValueError` naming a field that is out of its range."""
        _validate.positive(start=self.start, end=self.end)
        _validate.in_range(self.start, float("inf"), end=self.end)
        _validate.in_range(0, 1, hold=self.hold, finish=self.finish)
        if self.hold + self.finish >= 1:
            raise ValueError(f"hold + finish must be < 1, got {self.hold} + {self.finish}")
        if self.progress_below is not None:
            _validate.positive(progress_below=self.progress_below)


def smoothing(
    start: float = 1.0,
    end: float = 30.0,
    *,
    hold: float = 0.0,
    finish: float = 0.0,
    progress_below: float | None = None,
) -> Smoothing:
    """A schedule for the sharpness of the attacker's copy of the model.

    Args:
        start: beta of the first iteration, > 0; 1 to 2 has worked.
        end: beta of the last iteration, >= start; 15 to 50 has worked. A much larger beta brings the jumps back.
        hold: in [0, 1), share of the iterations that stay at `end`.
        finish: in [0, 1), share of the iterations at the end that use the exact model: near the truth the jumps are
            small, and the remaining bias vanishes.
        progress_below: let beta rise only in iterations whose data distance is below this value, > 0; a run that
            never gets there keeps `start`.

    Raises:
        ValueError: on values out of range.
    """
    made = Smoothing(start, end, hold, finish, progress_below)
    made.check()
    return made


def recommended_smoothing(*, batch_norm: bool, batch_size: int) -> Smoothing | None:
    """The schedule that worked best in `experiments.homotopy`, or None where exact kinks did.

    Batch normalisation couples all pixels of a batch. Attacks on deep networks with it must start where the network is
    nearly linear, must not end too sharp, and fail without smoothing. (Shallow networks, of two or three convolutions,
    are better attacked with exact kinks, but this rule does not check the depth.) Without batch normalisation, attacks
    on several images are faster from a sharper start. For a single image the exact model was best on a ConvNet and an
    MLP; on LeNet with ReLUs, the smoothing for several images gained 5 dB. The rule is for networks with kinks
    (`Classifier.has_kinks`): without kinks, a schedule only changes the choice of the best iterate, as losses at
    different sharpness are not compared.
    """
    if batch_norm:
        return smoothing(1.0, 30.0)
    return smoothing(4.0, 100.0) if batch_size > 1 else None


def next_sharpness(
    plan: Smoothing, sharpness: jax.Array, iteration: jax.Array, iterations: int, distance: jax.Array
) -> jax.Array:
    """Beta of the next iteration, from this iteration's number, beta and data distance."""
    rises = max(1, round(iterations * (1 - plan.hold - plan.finish)) - 1)
    factor = (plan.end / plan.start) ** (1 / rises)
    raised = jnp.minimum(sharpness * factor, plan.end)
    if plan.progress_below is not None:
        raised = jnp.where(distance < plan.progress_below, raised, sharpness)
    if not plan.finish:
        return raised
    finishing = iteration + 1 >= round(iterations * (1 - plan.finish))
    return jnp.where(finishing, _EXACT, raised)
