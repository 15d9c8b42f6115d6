"""Check whether a defense contradicts its declared mechanism, which would mislead an attacker who believes it."""

import dataclasses
import itertools
import math

import jax
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import Defense
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise, LaplaceNoise, Mechanism, ProportionalNoise, Replayed

#: Noise whose size can be read off two runs.
_Sized = GaussianNoise | LaplaceNoise | ProportionalNoise
#: Sizes at which the numbers are tried, since a threshold, a clip or a unit may show at only one of them. The smallest
#: come first, because the size of noise can be measured beside small numbers, while large ones hide it.
_SCALES = (1e-4, 1e-2, 1.0, 10.0)
#: Relative difference that is allowed between the measured and the declared size of noise, apart from chance.
_TOLERANCE = 0.1
#: Runs of each size.
_RUNS = 4
#: Standard errors of a standard deviation that are still chance.
_ERRORS = 5.0
#: Share of the largest entry below which a difference is rounding of float32.
_ROUNDING = 1e-5
#: Cosine between a change of a tensor and what arrives of it, below which who replays the defense cannot follow it.
_FOLLOWED = 0.2
#: What to declare for random numbers that are no noise of a known size beside the client's own entries.
_RANDOM = "if the defense rounds at random, or draws in a way that no noise describes, simulation=Replayed(random=True)"


@dataclasses.dataclass(frozen=True)
class MechanismComparison:
    """What `check_mechanism` found; true if everything that the mechanism declares was compared.

    Attributes:
        uncompared: what could not be compared, as a clause; "" if everything was.
        blind: why an attacker who replays the defense learns next to nothing, as a clause; "" if it can learn. Such an
            attacker takes what arrives to change as the upload does. A random rotation or permutation breaks that.
    """

    uncompared: str
    blind: str = ""

    def __bool__(self) -> bool:
        """Whether everything was compared."""
        return not self.uncompared


def check_mechanism(defense: Defense, payload: PyTree, *, key: jax.Array) -> MechanismComparison:
    """Run a defense on numbers of several sizes, and compare what comes out with its declared mechanism.

    Attackers who know a defense believe its mechanism. A wrong mechanism misleads them, and the defense looks better
    than it is. The check compares, leaf by leaf: whether the output is random; the size of Gaussian, Laplace and
    proportional noise; whether entries that arrive are the client's own (after the clip) if the mechanism says so; and
    whether entries are left out. A wrong mechanism may still pass. Beside a `Replayed` mechanism it also measures
    whether an attacker who believes it can learn anything (`MechanismComparison.blind`).

    Args:
        defense: as a client has it.
        payload: numbers in place of a client's upload, such as normal random ones; they are tried times 10, 1, 0.01 and
            0.0001.
        key: key of the runs, which get different ones.

    Returns:
        A `MechanismComparison`, which is true if everything that the mechanism declares was compared. Otherwise its
        `uncompared` says what was not: the defense acts elsewhere than on the upload ("payload"), or declares no
        mechanism, noise that decays, noise of the sum over the batch, random numbers that are replayed, entries carried
        over from earlier rounds, or anything of another kind; or nothing arrives.

    Raises:
        ValueError: naming what the mechanism declares and what the defense does.
    """
    _validate.made(Defense, "defenses.per_leaf", defense=defense)
    mechanism = defense.mechanism
    if mechanism is None:
        return MechanismComparison("the defense declares no mechanism")
    if defense.place != "payload":
        return MechanismComparison(f"the defense acts at {defense.place}, and the check runs those of the payload")
    if unknown := _unknown(mechanism):
        return MechanismComparison(unknown)
    deviation = _deviation(mechanism)
    if deviation is not None and not 0 < deviation < math.inf:
        raise ValueError(f"mechanism must declare noise with a finite standard deviation > 0, got {deviation:g}")
    keys = jax.random.split(key, _RUNS)  # little may arrive in one run, where whole layers are dropped
    arrived = [_compare(defense, mechanism, payload, scale, one) for scale in _SCALES for one in keys]
    gaussian = mechanism.noise if isinstance(mechanism.noise, GaussianNoise) else GaussianNoise(1.0)
    if not any(arrived):
        return MechanismComparison("no entry arrives")
    blind = _blind(defense, payload, keys) if isinstance(mechanism.simulation, Replayed) else ""
    if _replays_noise(mechanism):
        law = "the simulation draws numbers, Replayed(random=True), whose law is not declared"
        return MechanismComparison(law, blind)
    if mechanism.carries:
        return MechanismComparison("entries are carried over from earlier rounds, and one round was run", blind)
    decays = "" if gaussian.decay == 1 else "the noise decays over the rounds, and one round was run"
    return MechanismComparison(decays, blind)


def _blind(defense: Defense, payload: PyTree, keys: jax.Array) -> str:
    """The clause of `MechanismComparison.blind`: whether most entries are in tensors whose changes do not arrive.

    The derivative of an attacker who replays a defense ignores it. So a change of a tensor has to arrive as a similar
    change, on average over keys; the two uploads that are compared are defended with the same key.
    """
    rng = np.random.default_rng(np.ravel(jax.random.key_data(keys)))  # not a seed that the payload may come from
    changed = jax.tree.map(lambda leaf: _scaled(leaf, rng.standard_normal(np.shape(leaf))), payload)
    cosines = []
    for scale, key in itertools.product(_SCALES, keys):
        before, after = (jax.tree.map(lambda leaf, c=scale: _scaled(leaf, c * leaf), own) for own in (payload, changed))
        arrived = zip(_leaves(defense.apply(key, after)), _leaves(defense.apply(key, before)), strict=True)
        sent = zip(_leaves(after), _leaves(before), strict=True)
        cosines.append([_cosine(a - b, c - d) for (a, b), (c, d) in zip(arrived, sent, strict=True)])
    sizes = np.array([np.size(leaf) for leaf in jax.tree.leaves(payload)])
    lost = sizes[np.mean(cosines, axis=0) < _FOLLOWED].sum() / sizes.sum()
    if lost <= 0.5:
        return ""
    return f"in tensors with {lost:.0%} of the entries, a change of the upload does not arrive as a similar change"


def _scaled(leaf: PyTree, values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.asarray(leaf).dtype)


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-30))


def _unknown(mechanism: Mechanism) -> str:
    """What makes a mechanism one of which nothing is compared; "" if there is nothing of the kind."""
    simulation, noise = mechanism.simulation, mechanism.noise
    if _replays_noise(mechanism) and noise is not None:
        return "the simulation draws random numbers, Replayed(random=True), beside the declared noise"
    if isinstance(simulation, Clipped) and simulation.examples:
        return "every example's gradient is clipped, and the check has only their mean"
    if isinstance(noise, GaussianNoise) and noise.of_sum:
        return "the noise is that of a sum over the batch, whose size the check does not know"
    for part, compared in ((simulation, Replayed | Clipped | None), (noise, _Sized | None)):
        if not isinstance(part, compared):
            return f"no check is known for {type(part).__name__}"
    return ""


def _replays_noise(mechanism: Mechanism) -> bool:
    return isinstance(mechanism.simulation, Replayed) and mechanism.simulation.random


def _deviation(mechanism: Mechanism) -> float | None:
    """The standard deviation of the noise in round 0; of proportional noise in units of the entry's magnitude."""
    if isinstance(mechanism.noise, LaplaceNoise):
        return math.sqrt(2) * mechanism.noise.scale
    return mechanism.noise.deviation if isinstance(mechanism.noise, GaussianNoise | ProportionalNoise) else None


def _compare(defense: Defense, mechanism: Mechanism, payload: PyTree, scale: float, key: jax.Array) -> bool:
    """Raise `ValueError` as `check_mechanism`, for numbers of one size; whether any of them arrived."""
    own = jax.tree.map(lambda leaf: np.asarray(scale * leaf, np.asarray(leaf).dtype), payload)
    first, second = (_leaves(defense.apply(one, own)) for one in jax.random.split(key))
    sent = _leaves(own)
    if isinstance(mechanism.simulation, Clipped):
        norm = math.sqrt(sum(float((leaf**2).sum()) for leaf in sent))
        sent = [leaf * min(1.0, mechanism.simulation.norm / max(norm, 1e-30)) for leaf in sent]
    largest = max(float(np.abs(leaf).max(initial=0)) for leaf in sent)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(own)]
    for name, leaf, one, other in zip(names, sent, first, second, strict=True):
        both = (one != 0) & (other != 0) if mechanism.zeroes else np.ones(leaf.shape, bool)
        if (deviation := _deviation(mechanism)) is not None:
            unit = np.abs(leaf) if isinstance(mechanism.noise, ProportionalNoise) else np.ones(leaf.shape)
            # Noise near the last digits of the numbers is changed by their rounding.
            if deviation > 10 * _ROUNDING * largest:
                _check_noise(name, deviation, unit, one - other, both & (unit > 0))
        elif not _replays_noise(mechanism) and (np.abs(one - other)[both] > _ROUNDING * largest).any():
            raise ValueError(
                "mechanism declares nothing random, and what arrives differs from key to key; declare the noise, or "
                f"{_RANDOM}"
            )
        if not isinstance(mechanism.simulation, Replayed) and not mechanism.carries:
            _check_own(mechanism, leaf, one, other, both, largest)
    return any((one != 0).any() for one in first)


def _leaves(tree: PyTree) -> list[np.ndarray]:
    return [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]


def _chance(count: int) -> float:
    """Share by which a standard deviation of so many numbers may differ from its own."""
    return max(_TOLERANCE, _ERRORS / math.sqrt(count))


def _check_noise(name: str, declared: float, unit: np.ndarray, difference: np.ndarray, arrived: np.ndarray) -> None:
    if not arrived.any():
        return
    found = math.sqrt(np.mean((difference[arrived] / unit[arrived]) ** 2) / 2)
    if abs(found / declared - 1) > _chance(int(arrived.sum())):
        remedy = f"; {_RANDOM}" if found else ""
        raise ValueError(
            f"mechanism declares noise with a standard deviation of {declared:.3g}, and the defense adds noise of "
            f"{found:.3g} to the leaf {name}{remedy}"
        )


def _check_own(
    mechanism: Mechanism, sent: np.ndarray, one: np.ndarray, other: np.ndarray, both: np.ndarray, largest: float
) -> None:
    """Without a replay, what arrives must be the client's own numbers, but for the noise and for zeros."""
    if ((one == 0) & (np.abs(sent) > _ROUNDING * largest)).any() and not mechanism.zeroes:
        raise ValueError("the defense leaves entries out, and mechanism does not say zeroes=True")
    if not both.any():
        return
    deviation = _deviation(mechanism)
    unit = np.abs(sent) if isinstance(mechanism.noise, ProportionalNoise) else np.ones(sent.shape)
    hidden = 0.0 if deviation is None else deviation / math.sqrt(2) * (1 + _chance(int(both.sum())))
    allowed = np.maximum(_ROUNDING * largest, hidden * unit)
    if np.mean((((one + other) / 2 - sent) / allowed)[both] ** 2) > 1:
        raise ValueError(
            "mechanism declares that entries which arrive are the client's own"
            f"{'' if deviation is None else ' but for its noise'}, and the defense changes them; declare a simulation, "
            f"such as Replayed(), Clipped(norm) if it clips before its noise, or {_RANDOM}"
        )
