"""Whether an update is a step of Adam: by what is stated of it, and by its entries where nothing is stated."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Observation, PyTree
from jaxleak._tree import named_leaves
from jaxleak.attacks.adaptive._adam import BeforeAdam
from jaxleak.audit._checks.finding import Finding
from jaxleak.defenses.mechanisms import AdamStep

_NAME = "step of Adam"
#: The least that the largest entry of a first step may be, over the learning rate: that of a gradient of 1e-7.
_LARGEST_ABOVE = 0.9
#: A first step of Adam moves most weights equally far: share of the entries that are not zero, and how near in size.
_SHARE, _NEAR = 0.5, 0.01
#: Sizes over the learning rate that a first step has only of gradients near epsilon, and their share from which on the
#: step may be a later one, whose moments remember others.
_BETWEEN, _BETWEEN_SHARE = (0.05, 0.95), 0.1
#: Entries from which on shares say anything.
_ENTRIES = 100


def nearest_to_zero(step: AdamStep, payload: PyTree, variables: PyTree) -> PyTree:
    """The gradient nearest to zero, among those that may be behind a first step: its signs are certain."""
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    return BeforeAdam(step).nearest(seen, jax.tree.map(jnp.zeros_like, payload))


def check_adam_step(step: AdamStep, payload: PyTree, variables: PyTree) -> Finding:
    """A first step moves no weight further than the learning rate, and most of them nearly so far.

    Args:
        step: as it is stated.
        payload: the change of the weights over the stated learning rate, a tree like `variables["params"]`.
        variables: the weights before the step.
    """
    before, weights = BeforeAdam(step), named_leaves(variables["params"])
    over, sizes = {}, []
    for name, sent in named_leaves(payload).items():
        size = np.abs(np.asarray(sent - step.weight_decay * weights[name], np.float64))
        over[name] = float((size - np.asarray(before.error(sent, weights[name]), np.float64)).max(initial=0.0))
        sizes.append(size[size > 0])
    worst = max(over, key=lambda name: (over[name], name))
    moved = np.concatenate(sizes)
    largest = float(moved.max(initial=0.0))
    evidence = f"The largest entry is {largest:.4g} times the stated learning rate; a first step of Adam has nearly 1."
    cause = (
        "another learning rate, another weight decay, moments that remember earlier steps, several steps, other "
        "weights, or another optimizer"
    )
    if over[worst] <= 1 and largest >= _LARGEST_ABOVE:
        between = float(((moved > _BETWEEN[0]) & (moved < _BETWEEN[1])).mean())
        if between < _BETWEEN_SHARE:
            return Finding(_NAME, "passed", evidence)
        evidence += f" {between:.0%} are far from 0 and from 1, which a first step has only of gradients near 1e-8."
        return Finding(_NAME, "suspicious", evidence, cause, "--learning-rate, --weights, or --defense other")
    if over[worst] > 1:
        evidence += f" Entries of {worst} are too large."
    return Finding(_NAME, "failed", evidence, cause, "--learning-rate, --weights, or --defense other")


def check_not_adam(payload: PyTree) -> list[Finding]:
    """A finding if most entries of an update, for which no defense is stated, are of one size, as of a step of Adam."""
    sizes = np.concatenate([np.abs(np.asarray(leaf, np.float64)).ravel() for leaf in named_leaves(payload).values()])
    sizes = sizes[sizes > 0]
    if len(sizes) < _ENTRIES:
        return []
    share = float((sizes >= (1 - _NEAR) * np.quantile(sizes, 0.999)).mean())
    if share < _SHARE:
        return []
    evidence = (
        f"{share:.0%} of the entries that are not zero have nearly the size of the largest, whatever their layer."
    )
    cause = "the client took a step of Adam, which moves all weights equally far, or sent the signs of its gradient"
    option = "--defense adam_step (or adamw_step) with --learning-rate, or --defense other"
    return [Finding(_NAME, "failed", evidence, cause, option)]
