"""Whether an update is a step of Adam: by what is stated of it, and by its entries where nothing is stated."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Observation, PyTree
from jaxleak._tree import named_leaves
from jaxleak.attacks.adaptive._adam import BeforeAdam
from jaxleak.audit._checks.finding import Finding
from jaxleak.audit._checks.precision import Precision
from jaxleak.defenses.mechanisms import AdamStep

_NAME = "step of Adam"
#: The least that the largest entry of a first step may be, over the learning rate: that of a gradient of 1e-7.
_LARGEST_ABOVE = 0.9
#: A first step of Adam moves nearly all weights equally far, and few gradients do: share of the entries that are not
#: zero from which on they count as equal, and how near in size. Steps behind our networks have a share above 0.9.
_SHARE, _NEAR = 0.5, 0.01
#: Sizes over the learning rate that a first step has only of gradients near epsilon, and their share from which on the
#: step may be a later one, whose moments remember others. First steps behind our networks have a share below 0.01.
_BETWEEN, _BETWEEN_SHARE = (0.05, 0.95), 0.1
#: Entries from which on shares say anything.
_ENTRIES = 100


def nearest_to_zero(step: AdamStep, payload: PyTree, variables: PyTree) -> PyTree:
    """The gradient nearest to zero, among those that may be behind a first step: its signs are certain."""
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    return BeforeAdam(step).nearest(seen, jax.tree.map(jnp.zeros_like, payload))


def of_one_size(entries: np.ndarray, *, near: float = _NEAR, at_least: int = _ENTRIES) -> float:
    """The share of the entries that are not zero whose size is within `near` of the largest; 0 of too few entries."""
    sizes = np.abs(np.asarray(entries, np.float64))
    sizes = sizes[sizes > 0]
    # A few entries may be larger, such as those of another optimizer's group of weights.
    return float((sizes >= (1 - near) * np.quantile(sizes, 0.999)).mean()) if len(sizes) >= at_least else 0.0


def check_adam_step(step: AdamStep, payload: PyTree, variables: PyTree, precision: Precision) -> Finding:
    """A first step moves no weight further than the learning rate, and most of them nearly so far.

    Args:
        step: as it is stated.
        payload: the change of the weights over the stated learning rate, a tree like `variables["params"]`.
        variables: the weights before the step.
        precision: in which the update was sent.
    """
    if precision.unit:
        evidence = f"All numbers are those of {precision.name}, whose rounding leaves little more than signs of a step."
        cause = "the step or the weights after it were rounded to 16 bits before they were sent"
        return Finding(_NAME, "failed", evidence, cause, ("--defense other",))
    before, weights = BeforeAdam(step), named_leaves(variables["params"])
    over, all_sizes = {}, []
    for name, sent in named_leaves(payload).items():
        size = np.abs(np.asarray(before.of_gradient(sent, weights[name]), np.float64)).ravel()
        error = np.asarray(before.error(sent, weights[name]), np.float64).ravel()
        over[name] = float((size - error).max(initial=0.0))
        all_sizes.append(size[size > 0])
    worst, sizes = max(over, key=lambda name: (over[name], name)), np.concatenate(all_sizes)
    largest = float(sizes.max(initial=0.0))
    evidence = f"The largest entry is {largest:.4g} times the stated learning rate; a first step of Adam has nearly 1."
    cause = (
        "another learning rate, another weight decay (or Adam's own, which is added to the gradient), moments that "
        "remember earlier steps, several steps, clipping, other weights, or another optimizer"
    )
    options = "--learning-rate", "--weights", "--defense other"
    if over[worst] > 1:
        return Finding(_NAME, "failed", f"{evidence} Entries of {worst} are too large.", cause, options)
    if largest < _LARGEST_ABOVE:
        # A wrong rate leaves most entries at one size. Where a client fits its samples, entries differ.
        cause = f"gradients as small as 1e-8, {cause}"
        if of_one_size(sizes) >= _SHARE:
            return Finding(_NAME, "failed", evidence, cause, options)
        return Finding(_NAME, "suspicious", evidence, cause, options)
    between = float(((sizes > _BETWEEN[0]) & (sizes < _BETWEEN[1])).mean())
    if between < _BETWEEN_SHARE:
        return Finding(_NAME, "passed", evidence)
    evidence += f" {between:.0%} are far from 0 and from 1, which a first step has only of gradients near 1e-8."
    return Finding(_NAME, "suspicious", evidence, cause, options)


def check_not_adam(payload: PyTree) -> list[Finding]:
    """A finding if most entries of an update that broke an equation are of one size, as of a step of Adam."""
    share = of_one_size(np.concatenate([np.asarray(leaf).ravel() for leaf in named_leaves(payload).values()]))
    if share < _SHARE:
        return []
    evidence = f"{share:.0%} of the entries that are not zero have nearly the size of the largest, in all layers."
    cause = "the client took a step of Adam, which moves all weights equally far, or sent the signs of its gradient"
    options = "--defense adam_step (or adamw_step) with --learning-rate", "--defense other"
    return [Finding(_NAME, "failed", evidence, cause, options)]
