"""Checks of the arrays themselves: names, shapes, values, and whether they look like a gradient at all."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.attacks._observed import check_shapes
from jaxleak.audit._checks.finding import Finding, Status
from jaxleak.audit._checks.precision import Precision
from jaxleak.capture._names import dotted
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import Replayed

#: Cosine between the update and the model's own weights above which it is taken for weights.
_WEIGHTS_ABOVE = 0.9
#: Distinct values, up to sign, below which an array of many entries counts as quantised.
_FEW_VALUES = 256
_MANY_ENTRIES = 2000
#: Number of entries from which on an update with the direction of the weights is certainly taken for weights.
_MANY_WEIGHTS = 100
#: Relative misfit below which a matrix has rank one; float16 leaves 5e-4, and quantising to 8 bits more than 2e-3.
_RANK_ONE_BELOW = 1e-3
#: Share of an update's norm from which on the rounding of weights hides much of it.
_ROUNDED_ABOVE = 0.1


def check_contents(
    payload: PyTree,
    variables: PyTree,
    defense: Defense | None = None,
    *,
    vanishing: Callable[[], Collection[str]] = tuple,
) -> list[Finding]:
    """Findings on names and shapes, finite values, zeros, quantisation, and weights in the place of a gradient.

    Args:
        payload: the update as a tree like the model's parameters; a leaf that is None is missing.
        variables: the model's.
        defense: as the client states it; it may explain zeros and few values. None if there is none or it is not known.
        vanishing: the names of the leaves whose gradient is zero in theory, so that zeros there are no mistake. Called
            only if a leaf is zero.

    Returns:
        One finding per check. If the names, shapes or values are wrong, the other checks are skipped.

    Raises:
        ValueError: if the variables are no model's, or not finite.
    """
    _validate.weights(variables)
    try:
        check_shapes(payload, variables)
    except ValueError as error:
        cause = "the update is of another model, or lacks a layer"
        return [Finding("names and shapes", "failed", f"{error}.", cause, ("--model", "--weights", "--update"))]
    leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(payload).items()}
    found = [Finding("names and shapes", "passed", f"All {len(leaves)} leaves have the shapes of the model.")]
    bad = [name for name, leaf in leaves.items() if not np.isfinite(leaf).all()]
    if bad:
        evidence = f"{bad[0]} holds values that are not finite, as {len(bad)} of {len(leaves)} leaves do."
        cause = "the client's loss overflowed, or the file is damaged"
        return [*found, Finding("finite values", "failed", evidence, cause, ("--update",))]
    found.append(Finding("finite values", "passed", "All values are finite."))
    mechanism = None if defense is None else defense.mechanism
    left_out = mechanism is not None and mechanism.zeroes
    rounded = mechanism is not None and isinstance(mechanism.simulation, Replayed)
    return [
        *found,
        _zeros(leaves, left_out=left_out, vanishing=vanishing),
        _few_values(leaves, rounded=rounded),
        _weights(leaves, named_leaves(variables["params"])),
    ]


def check_rounding(precision: Precision, payload: PyTree, variables: PyTree) -> list[Finding]:
    """A finding on how much of an update that is read from weights is their rounding to float32; none of a gradient.

    Args:
        precision: in which the update was sent.
        payload: the update, a tree like `variables["params"]`, in units of a gradient.
        variables: the weights at which the client began.
    """
    if not precision.of_weights:
        return []
    update, weights = (
        np.concatenate([np.ravel(leaf) for leaf in named_leaves(tree).values()])
        for tree in (payload, variables["params"])
    )
    most = precision.relative(update, weights)
    evidence = f"Rounding the weights after training to {precision.name} may be {most:.1e} of the update's norm."
    if most < _ROUNDED_ABOVE:
        return [Finding("precision of weights", "passed", evidence)]
    cause = "a learning rate so small that the step is lost in the rounding of the weights, or weights of another round"
    return [Finding("precision of weights", "suspicious", evidence, cause, ("an update that is a gradient",))]


def zero_layers(leaves: Mapping[str, Any]) -> list[str]:
    """Names, with dots, of the layers that are zero throughout, and of parameters that are zero in other layers."""
    zero = {dotted(name): not np.any(leaf) for name, leaf in leaves.items()}
    layers: dict[str, None] = {}
    for name in (name for name, nothing in zero.items() if nothing):
        parts = name.split(".")
        above = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        layers[
            next(top for top in above if all(zero[below] for below in zero if f"{below}.".startswith(f"{top}.")))
        ] = None
    return list(layers)


def _zeros(
    leaves: dict[str, np.ndarray], *, left_out: bool = False, vanishing: Callable[[], Collection[str]] = tuple
) -> Finding:
    dead = [name for name, leaf in leaves.items() if not leaf.any()]
    if len(dead) == len(leaves):
        cause = "the gradients were cleared before they were recorded, or nothing was trained"
        if left_out:
            cause += ". If the stated defense left out every entry, the update holds nothing of the data"
        return Finding("zeros", "failed", "All values are zero.", cause, ("--update",))
    if dead:
        evidence = f"{len(dead)} of {len(leaves)} leaves are zero throughout, such as {dead[0]}."
        if left_out:
            return Finding("zeros", "passed", f"{evidence} The defense that is stated leaves entries out.")
        if set(dead) <= set(vanishing()):
            why = "By batch statistics, the gradient of such leaves is zero, since these take off what they add."
            return Finding("zeros", "passed", f"{evidence} {why}")
        cause = (
            "frozen layers, a layer that was not recorded, a factor beside one of zeros (as in LoRA's first step), "
            "images that are zero in every pixel, or a defense that leaves entries out"
        )
        options = f"--frozen {' '.join(zero_layers(leaves))}", "--update", "--defense"
        return Finding("zeros", "suspicious", evidence, cause, options)
    return Finding("zeros", "passed", "No leaf is zero throughout.")


def _few_values(leaves: dict[str, np.ndarray], *, rounded: bool = False) -> Finding:
    large = {name: leaf for name, leaf in leaves.items() if leaf.size >= _MANY_ENTRIES and leaf.any()}
    if not large:
        return Finding("quantisation", "not applicable", f"No leaf that is not zero has {_MANY_ENTRIES} entries.")
    sizes = {name: len(np.unique(np.abs(leaf))) for name, leaf in large.items()}
    # A defense that leaves most entries out also leaves few values, but each has a size of its own.
    few = [name for name, count in sizes.items() if count <= _FEW_VALUES and _share_of_sizes(large[name]) <= 0.5]
    suspects = [name for name in few if not _is_outer_product(large[name])]
    name = min(suspects or sizes, key=lambda name: (sizes[name], name))
    evidence = f"{name} has {large[name].size} entries of {sizes[name]} different sizes"
    if suspects and rounded:
        return Finding("quantisation", "passed", evidence + ", as the defense that is stated may give.")
    if suspects:
        cause = "the update was quantised or reduced to signs"
        return Finding("quantisation", "suspicious", evidence + ".", cause, ("--defense",))
    if few:
        evidence += ", which are products of what one sample's layer reads, of few different values, and its slopes"
    return Finding("quantisation", "passed", evidence + ".")


def _is_outer_product(leaf: np.ndarray) -> bool:
    """Whether a matrix has rank one, up to rounding, and few different values in only one factor explain its few sizes.

    A dense layer that reads an image of few grey levels has such a gradient: products of few numbers with many
    different slopes. If neither factor has many different sizes, the leaf may as well be one of signs.
    """
    if leaf.ndim != 2:
        return False
    matrix = np.asarray(leaf, np.float64)
    i, j = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    row, column = matrix[i], matrix[:, j]
    misfit = np.linalg.norm(matrix - np.outer(column, row / row[j])) / np.linalg.norm(matrix)
    return bool(misfit < _RANK_ONE_BELOW) and max(map(_share_of_sizes, (row, column))) > 0.5


def _share_of_sizes(factor: np.ndarray) -> float:
    """Number of different sizes among the entries that are not zero, over the number of these entries."""
    sizes = np.abs(factor[factor != 0])
    return len(np.unique(sizes)) / len(sizes) if len(sizes) > 1 else 0.0


def _weights(leaves: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> Finding:
    pairs = [(leaves[name].ravel(), np.asarray(weights[name]).ravel()) for name in leaves]
    if all(np.array_equal(a, b) for a, b in pairs) and any(a.any() for a, _ in pairs):
        evidence, cause = "The update and the model's weights are equal.", "one file was given for both"
        return Finding("gradient, not weights", "failed", evidence, cause, ("--weights", "--update"))
    inner = sum(float(a @ b) for a, b in pairs)
    norms = np.sqrt(sum(float(a @ a) for a, _ in pairs) * sum(float(b @ b) for _, b in pairs))
    cosine = inner / norms if norms else 0.0
    evidence = f"The cosine between the update and the model's weights is {cosine:.3f}."
    if abs(cosine) > _WEIGHTS_ABOVE:
        # A gradient of few entries may have the direction of the weights, such as that of two biases of opposite signs.
        status: Status = "failed" if sum(a.size for a, _ in pairs) >= _MANY_WEIGHTS else "suspicious"
        cause = "the file holds weights after training"
        return Finding("gradient, not weights", status, evidence, cause, ("--kind weights",))
    return Finding("gradient, not weights", "passed", evidence)
