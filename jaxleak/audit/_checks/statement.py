"""Checks of a stated defense: whether an update can have passed through it, at the strength that is stated."""

import numpy as np

from jaxleak import _magnitudes
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.adam import check_adam_step
from jaxleak.audit._checks.defended import DEVIATIONS
from jaxleak.audit._checks.finding import Finding
from jaxleak.audit._checks.precision import Precision
from jaxleak.defenses import Defense, PayloadEncoding
from jaxleak.defenses.mechanisms import AdamStep, Clipped, GaussianNoise, LaplaceNoise, Noise

#: What rounding may add to a norm, relative to it, and to the distance of equal values, relative to the largest value.
_NORM, _EQUAL = 0.01, 1e-6
#: Share of an array's entries that rounding may leave at zero although noise was added to every entry.
_ZERO_SHARE = 0.01
#: Size of the stated noise, relative to an array, from which on the array must show it.
_NOISE_MATTERS = 0.01


def check_statement(
    defense: Defense | None, payload: PyTree, variables: PyTree, precision: Precision, *, samples: int = 1
) -> list[Finding]:
    """Findings on whether the stated defense allows the norm, values, number of entries, noise and step of an update.

    Args:
        defense: as it is stated; None if it is not known, so that nothing can be checked.
        payload: the update, a tree like `variables["params"]`, in units of a gradient of the mean loss.
        variables: the weights at which the client began.
        precision: format in which the update was sent.
        samples: n >= 1, by which noise that was added to a sum is divided.
    """
    if defense is None:
        return []
    leaves = {name: np.asarray(leaf, np.float64) for name, leaf in named_leaves(payload).items()}
    weights = {name: np.asarray(leaf) for name, leaf in named_leaves(variables["params"]).items()}
    encoding = defense.encode(PayloadEncoding())
    found = []
    if defense.mechanism is not None and isinstance(defense.mechanism.simulation, Clipped):
        noise = defense.mechanism.noise
        if noise is None or isinstance(noise, GaussianNoise):
            found.append(_norm(leaves, defense.mechanism.simulation.norm, 0.0 if noise is None else noise.deviation))
    if defense.mechanism is not None and isinstance(defense.mechanism.simulation, AdamStep):
        found.append(check_adam_step(defense.mechanism.simulation, payload, variables, precision))
    if defense.mechanism is not None and not defense.mechanism.zeroes:
        steps = {name: precision.step(leaf) for name, leaf in weights.items()}
        found += _untouched(leaves, steps, defense.mechanism.noise, samples)
    if encoding.value_bits < 32:
        found.append(_values(leaves, weights, encoding.value_bits, precision))
    if encoding.share < 1:
        found.append(_sent(leaves, encoding.share))
    return found


def _norm(leaves: dict[str, np.ndarray], clip: float, deviation: float) -> Finding:
    """Check the norm: noise on n entries has a norm of about sqrt(n) deviations, and may point along the update."""
    entries = np.concatenate([leaf.ravel() for leaf in leaves.values()])
    norm = float(np.linalg.norm(entries))
    along, across = clip + DEVIATIONS * deviation, (np.sqrt(entries.size) + DEVIATIONS) * deviation
    most = float(np.hypot(along, across))
    evidence = f"The update has the norm {norm:.3g}; clipped at {clip:g} and with the stated noise, at most {most:.3g}."
    if norm <= most * (1 + _NORM):
        return Finding("norm of the clipped update", "passed", evidence)
    cause = f"the client clips at another norm than {clip:g}, does not clip, or adds more noise than is stated"
    return Finding(
        "norm of the clipped update", "failed", evidence, cause, ("--clip", "--noise-multiplier", "--strength")
    )


def _untouched(
    leaves: dict[str, np.ndarray], steps: dict[str, float], noise: Noise | None, samples: int
) -> list[Finding]:
    """Check for entries at zero: continuous noise leaves none there, and rounding few if its steps are far smaller.

    Clients that only clip state noise that is too small to matter. Such noise is not looked for.
    """
    if not isinstance(noise, GaussianNoise | LaplaceNoise):
        return []
    of_sum = isinstance(noise, GaussianNoise) and noise.of_sum
    size = (noise.deviation if isinstance(noise, GaussianNoise) else noise.scale) / (samples if of_sum else 1)
    bare = {
        name: int((leaf == 0).sum())
        for name, leaf in leaves.items()
        if size * np.sqrt(leaf.size) > _NOISE_MATTERS * np.linalg.norm(leaf) and size > steps[name] / _ZERO_SHARE
    }
    name = max(bare, key=lambda name: (bare[name] / leaves[name].size, name), default=None)
    if name is None or bare[name] <= _ZERO_SHARE * leaves[name].size:
        return []
    evidence = f"{name} has {bare[name]} entries of {leaves[name].size} that are exactly zero."
    cause = "there is no noise on this array, or entries were left out after the noise was added"
    return [Finding("noise on every entry", "failed", evidence, cause, ("--defense none", "--defense other"))]


def _values(
    leaves: dict[str, np.ndarray], weights: dict[str, np.ndarray], bits: float, precision: Precision
) -> Finding:
    """Check the stated bits; the finding is suspicious at most, as clients may round every row on its own grid."""
    counts = {name: _different(leaf, precision.of_entry(leaf, weights[name])) for name, leaf in leaves.items()}
    name = max(counts, key=lambda name: (counts[name], name))
    evidence = f"{name} has {counts[name]} different values; the stated number of bits, {bits:g}, allows {2**bits:g}."
    if counts[name] <= 2**bits:
        return Finding("stated bits", "passed", evidence)
    cause = "the update was rounded to more bits than are stated, or on grids of its own for parts of a tensor"
    return Finding("stated bits", "suspicious", evidence, cause, ("--strength",))


def _different(leaf: np.ndarray, error: float) -> int:
    """How many different values there are; values that differ by no more than rounding are one."""
    values = np.sort(leaf.ravel())
    return 1 + int((np.diff(values) > 2 * error + _EQUAL * np.abs(values).max(initial=0.0)).sum())


def _sent(leaves: dict[str, np.ndarray], share: float) -> Finding:
    """Check the share that arrived; the finding is suspicious at most, as clients may send small tensors whole."""
    sizes = np.concatenate([np.abs(leaf).ravel() for leaf in leaves.values()])
    sent = sizes[sizes > 0]
    # All entries that tie with the smallest one are sent, and the share is rounded up in every tensor.
    larger = int((sent > sent.min(initial=np.inf)).sum())
    most = _magnitudes.share_count(sizes.size, 100 * share) + len(leaves) if share > 0 else 0
    evidence = f"{len(sent)} of {sizes.size} entries arrived; at the stated strength {share:.3g} of them are sent."
    if larger <= most:
        return Finding("stated share", "passed", evidence)
    cause = "more entries are sent than is stated, or some tensors whole"
    return Finding("stated share", "suspicious", evidence, cause, ("--strength",))
