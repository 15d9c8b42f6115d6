"""Whether what a client says it did not train has stayed as it was."""

from collections.abc import Sequence

import numpy as np

from jaxleak import capture
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.finding import Finding
from jaxleak.audit._checks.precision import FORMATS
from jaxleak.capture._names import held_of, matching


def check_frozen(sent: capture.Update, params: PyTree, names: Sequence[str]) -> list[Finding]:
    """A failed finding, if the update has changed a parameter that is stated to be a constant.

    An audit takes such parameters for constants, and attacks the update of the others alone. A real attacker has the
    update of all of them.

    Args:
        sent: the update, with its facts.
        params: all weights at which the client began.
        names: names of the model's arrays in the order of a list, as in `capture.fit`.
    """
    frozen = sent.facts.frozen
    if not frozen:
        return []
    leaves = named_leaves(params)
    try:
        held = held_of(sent.arrays, list(leaves), names, what=sent.source)
    except ValueError:  # a list of what is trained, for example, which has no entries of the others
        return []
    changed = [
        name
        for name in matching(frozen, list(leaves), what="frozen")
        if name in held and moved(sent.facts.kind, held[name], np.asarray(leaves[name]))
    ]
    if not changed:
        return []
    what = "other weights than --weights" if sent.facts.kind == "weights" else "entries other than zero"
    which = f"{changed[0]} and {len(changed) - 1} more are" if len(changed) > 1 else f"{changed[0]} is"
    evidence = f"{which} said to be frozen, and the update has {what} there."
    cause = "the client trained these layers"
    if sent.facts.kind == "weights":
        cause += ", or the weights are those of another round"
    return [Finding("frozen layers", "failed", evidence, cause, ("--frozen", "--weights"))]


def moved(kind: str, array: np.ndarray, before: np.ndarray) -> bool:
    """Whether an array of an update of this kind differs from the array before training by more than its format."""
    if kind != "weights":
        return bool(np.any(array != 0))
    if array.size != before.size:
        return False  # another check compares names and shapes
    array, before = np.asarray(array, np.float32).ravel(), before.astype(np.float32).ravel()
    # If the weights were saved in 16 bits, those of a constant are rounded.
    rounded = (before, *(before.astype(kind).astype(np.float32) for kind, _ in FORMATS.values()))
    return not any(np.array_equal(array, same) for same in rounded)
