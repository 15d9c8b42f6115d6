"""Whether a defense does what its mechanism declares: a wrong declaration misleads the attacker who believes it."""

import math

import jax
import numpy as np

from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, LaplaceNoise, Noise, ProportionalNoise, Replayed

#: Share by which the size of noise may differ from the declared one, beside what so few numbers tell.
_TOLERANCE = 0.1
#: Standard errors of a standard deviation that are still chance.
_ERRORS = 5.0
#: Share of the largest entry below which a difference is rounding.
_ROUNDING = 1e-5


def check_mechanism(defense: Defense, payload: PyTree, *, key: jax.Array) -> bool:
    """Run a defense twice on one payload, and compare what comes out with its declared mechanism.

    Attackers who know a defense believe its mechanism. Where it is wrong they are misled, and the defense looks better
    than it is. What is compared: whether anything is drawn, the size of Gaussian, Laplace and proportional noise,
    whether entries that arrive are the client's own where the mechanism says so, and whether entries are left out.
    Nothing is compared where the defense acts elsewhere than on the upload ("payload"), declares no mechanism, or
    declares one of another kind.

    Args:
        defense: as a client has it.
        payload: numbers in the place of a client's upload, such as normal ones; best of the size that gradients have,
            since noise can hide what else happens to numbers that are much smaller.
        key: key of both runs, which get different ones.

    Returns:
        Whether there was something to compare.

    Raises:
        ValueError: naming what the mechanism declares and what the defense does.
    """
    mechanism = defense.mechanism
    if mechanism is None or defense.place != "payload" or not _is_known(mechanism.simulation, mechanism.noise):
        return False
    sent = _flat(payload)
    first, second = (_flat(defense.apply(one, payload)) for one in jax.random.split(key))
    if mechanism.noise is None:
        if not (isinstance(mechanism.simulation, Replayed) and mechanism.simulation.random) and _differ(first, second):
            raise ValueError(
                "mechanism declares nothing random, and the defense sends other numbers under another key; declare "
                "its noise, or Replayed(random=True)"
            )
    else:
        _check_noise(mechanism.noise, sent, first, second)
    if mechanism.simulation is None and not mechanism.carries:
        _check_own(mechanism.noise, mechanism.zeroes, sent, first, second)
    return True


def _is_known(simulation: object, noise: Noise | None) -> bool:
    return isinstance(simulation, Replayed | Clipped | None) and (
        noise is None or (isinstance(noise, ProportionalNoise | LaplaceNoise | GaussianNoise))
    )


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max(initial=0) > _ROUNDING * np.abs(a).max(initial=0))


def _deviation(noise: Noise) -> float:
    """The standard deviation of noise in round 0, for proportional noise in units of the entry's magnitude."""
    if isinstance(noise, LaplaceNoise):
        return math.sqrt(2) * noise.scale
    assert isinstance(noise, GaussianNoise | ProportionalNoise)
    return noise.deviation


def _check_noise(noise: Noise, sent: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    arrived = (first != 0) & (second != 0)
    unit = np.abs(sent) if isinstance(noise, ProportionalNoise) else np.ones_like(sent)
    arrived &= unit > 0
    if not arrived.any():
        return
    found = math.sqrt(np.mean(((first - second)[arrived] / unit[arrived]) ** 2) / 2)
    declared = _deviation(noise)
    if abs(found / declared - 1) > max(_TOLERANCE, _ERRORS / math.sqrt(arrived.sum())):
        raise ValueError(
            f"mechanism declares noise with a standard deviation of {declared:.3g}, and the defense adds noise of "
            f"{found:.3g}"
        )


def _check_own(noise: Noise | None, zeroes: bool, sent: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Without a simulation, what arrives must be the client's own numbers, but for the noise and for zeros."""
    left_out = (first == 0) & (sent != 0)
    if left_out.any() and not zeroes:
        raise ValueError("the defense leaves entries out, and mechanism does not say zeroes=True")
    arrived = ~left_out & (second != 0)
    if not arrived.any():
        return
    moved = ((first + second) / 2 - sent)[arrived]
    unit = np.abs(sent)[arrived] if isinstance(noise, ProportionalNoise) else 1.0
    hidden = 0.0 if noise is None else _deviation(noise) / math.sqrt(2)
    chance = 1 + max(_TOLERANCE, _ERRORS / math.sqrt(arrived.sum()))
    allowed = np.maximum(_ROUNDING * np.abs(sent).max(), hidden * unit * chance)
    if np.mean((moved / allowed) ** 2) > 1:
        raise ValueError(
            "mechanism declares that entries which arrive are the client's own"
            f"{'' if noise is None else ' but for its noise'}, and the defense changes them; declare a simulation, "
            "such as Replayed()"
        )
