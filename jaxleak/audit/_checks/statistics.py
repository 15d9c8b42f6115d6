"""Whether the running statistics that a client sends with its weights changed as those of the stated client do.

In training mode, each local step changes the running statistics of batch normalisation and counts one batch in
PyTorch's `num_batches_tracked`. In evaluation mode both stay.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxleak import capture
from jaxleak._base import PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.finding import EVAL_LAYERS, MIXED_MODES, Finding
from jaxleak.audit._checks.frozen import moved
from jaxleak.capture._arrays import COUNTER
from jaxleak.capture._names import held_of, in_order
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

_NAME, _BATCHES = "running statistics", "number of batches"
#: How many images are simulated to learn which statistics a step changes.
_IMAGES = 2


def check_statistics(
    sent: capture.Update,
    share: ClientShare,
    variables: PyTree,
    names: Sequence[str],
    counters: Mapping[str, Any] | None = None,
    *,
    defended: bool = False,
) -> list[Finding]:
    """One finding on the mode and the steps that the running statistics of weights after training show.

    There is no finding if the update is not weights, or if it holds no running statistics that are the client's own.

    Args:
        sent: the update, with its facts.
        share: what the client computes, as is claimed.
        variables: the weights and running statistics at which the client began.
        names: names of the model's arrays in the order of a list, as in `capture.fit`.
        counters: PyTorch's counters of batches at which the client began, by name; None if they are not known.
        defended: whether the client states a defense, which may have changed all arrays of its file.
    """
    before = {name: np.asarray(leaf) for name, leaf in named_leaves(variables.get("batch_stats") or {}).items()}
    if sent.facts.kind != "weights" or defended:
        return []
    layers = list(dict.fromkeys(map(_layer, before)))
    try:
        arrays = in_order(sent.arrays, names, list(named_leaves(variables["params"])), what=sent.source)
        held = held_of(arrays, list(before), None, what=sent.source)
        grown = _grown(held_of(arrays, _counters(layers), None, what=sent.source), layers, counters)
    except ValueError:  # two names may differ only by a prefix; another check compares the names of the weights
        return []
    held = {name: array for name, array in held.items() if array.size == before[name].size}
    if not held:
        return []
    changed = {_layer(name) for name, array in held.items() if moved("weights", array, before[name])}
    known = [layer for layer in layers if any(_layer(name) == layer for name in held)]
    if lower := [layer for layer, count in grown.items() if count < 0]:
        evidence = f"{_counters(lower)[0]} is lower by {-grown[lower[0]]} than in --weights."
        cause = "--weights was saved after the update"
        return [Finding(_BATCHES, "failed", evidence, cause, ("--weights", "--update"))]
    if share.batch_norm == "eval":
        return [_in_evaluation(known, changed | {layer for layer, count in grown.items() if count})]
    return [_in_training(known, changed, grown, share, variables)]


def _in_evaluation(known: list[str], active: Collection[str]) -> Finding:
    if not active:
        evidence = f"All of them, of {_count(known)}, are those of --weights, as in evaluation mode."
        return Finding(_NAME, "passed", evidence)
    evidence = f"Those of {len(active)} of {_count(known)} changed, and in evaluation mode none changes."
    cause = "the client normalised by batch statistics, or began with other running statistics than those of --weights"
    some = (EVAL_LAYERS,) if len(active) < len(known) else ()
    return Finding(_NAME, "failed", evidence, cause, ("--batch-norm train", *some, "--weights"))


def _in_training(
    known: list[str], changed: set[str], grown: Mapping[str, int], share: ClientShare, variables: PyTree
) -> Finding:
    expected = _changing(share.model, variables).intersection(known)
    counting = {layer for layer, count in grown.items() if count}
    if expected and not changed and not counting:
        evidence = f"All of them, of {_count(known)}, are those of --weights, and a step in training mode changes them."
        cause = "the client normalised by running statistics, or --weights has the statistics of after the steps"
        return Finding(_NAME, "failed", evidence, cause, ("--batch-norm eval", "--weights"))
    if still := [layer for layer in known if layer in expected - changed - counting]:
        evidence = f"Those of {_listed(still)} are those of --weights, and those of other layers changed."
        return Finding(_NAME, "failed", evidence, MIXED_MODES, (EVAL_LAYERS,))
    if also := [layer for layer in known if layer in changed and layer not in expected]:
        evidence = f"Those of {_listed(also)} changed, and the training mode of the model does not change them."
        return Finding(_NAME, "failed", evidence, MIXED_MODES, (EVAL_LAYERS, "--model"))
    if counting and (steps := min(grown[layer] for layer in counting)) != share.total_steps:
        return _other_steps(steps, share)
    if not expected:
        return Finding(_NAME, "not applicable", "The training mode of the model does not change them.")
    counted = f", and {COUNTER} grew by the {share.total_steps} stated" if counting else ""
    return Finding(_NAME, "passed", f"Those of {_count(changed)} changed{counted}, as in training mode.")


def _other_steps(steps: int, share: ClientShare) -> Finding:
    """The finding that another number of batches than stated steps went through the network."""
    evidence = f"{COUNTER} grew by {steps}, and the stated number of steps is {share.total_steps}."
    cause = f"the client took {steps} steps, or batches without a step of their own ran in training mode"
    pairs = ("--local-steps", share.local_epochs), ("--local-epochs", share.local_steps)
    fitting = [f"{option} {steps // other}" for option, other in pairs if steps % other == 0]
    product = f"--local-steps and --local-epochs, whose product is {steps}"
    options = *(fitting or [product]), f"--update without {COUNTER} (more batches than steps)"
    return Finding(_BATCHES, "failed", evidence, cause, options)


def _grown(after: Mapping[str, np.ndarray], layers: list[str], counters: Mapping[str, Any] | None) -> dict[str, int]:
    """By how much each layer's counter of batches grew, where it is known before and after."""
    if not counters:
        return {}
    began = held_of(counters, _counters(layers), None, what="counters")
    found = {}
    for layer, name in zip(layers, _counters(layers), strict=True):
        last, first = _number(after, name), _number(began, name)
        if last is not None and first is not None:
            found[layer] = last - first
    return found


def _number(arrays: Mapping[str, Any], name: str) -> int | None:
    """The number under this name; None if there is none, or no finite one."""
    array = np.asarray(arrays.get(name, ()))
    return int(array.item()) if array.size == 1 and np.isfinite(array).all() else None


def _changing(model: Classifier, variables: PyTree) -> set[str]:
    """The layers whose running statistics a step in training mode changes; a momentum may keep them as they are."""
    images = np.random.default_rng(0).uniform(size=(_IMAGES, *model.image_shape)).astype(np.float32)
    old, new = (named_leaves(tree) for tree in (variables["batch_stats"], _trained(model, variables, images)))
    return {_layer(name) for name, leaf in new.items() if not np.array_equal(leaf, old[name])}


@jitted_for_few(0)
def _trained(model: Classifier, variables: PyTree, images: Any) -> PyTree:
    """The running statistics after a pass of these images (B, H, W, channels) in training mode."""
    found: jax.Array = model.apply(variables, images, mode="train").batch_stats
    return found


def _layer(name: str) -> str:
    """The layer of a statistic, such as "bn" of "bn.running_mean" and of "bn/mean"."""
    return name.replace("/", ".").rpartition(".")[0]


def _counters(layers: Collection[str]) -> list[str]:
    return [f"{layer}.{COUNTER}" for layer in layers]


def _count(layers: Collection[str]) -> str:
    return f"{len(layers)} layer{'' if len(layers) == 1 else 's'}"


def _listed(layers: list[str]) -> str:
    return f"{layers[0]} and {len(layers) - 1} more" if len(layers) > 1 else layers[0]
