"""Whether an update is a step of Adam: the stated one, or by the sizes of its entries if no step is stated."""

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
#: The largest entry of a first step over the learning rate must be at least this; a gradient of 1e-7 gives it.
_LARGEST_ABOVE = 0.9
#: A first step of Adam moves nearly all weights equally far, and few gradients do. These are the share of equal entries
#: among those that are not zero from which on an update counts as such a step, and how near in size equal entries are.
#: Steps of our networks have a share above 0.9.
_SHARE, _NEAR = 0.5, 0.01
#: Sizes over the learning rate that a first step has only for gradients near epsilon. From this share of such entries
#: on, the step may be a later one, whose moments remember other gradients. First steps of our networks have a share
#: below 0.01.
_BETWEEN, _BETWEEN_SHARE = (0.05, 0.95), 0.1
#: Number of entries from which on their shares say anything.
_ENTRIES = 100


def nearest_to_zero(step: AdamStep, payload: PyTree, variables: PyTree) -> PyTree:
    """The gradient nearest to zero among those that give this first step; its signs are certain."""
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    return BeforeAdam(step).nearest(seen, jax.tree.map(jnp.zeros_like, payload))


def of_one_size(entries: np.ndarray, *, near: float = _NEAR, at_least: int = _ENTRIES) -> float:
    """The share of entries, among those not zero, with a size within `near` of the largest; 0 if they are too few."""
    sizes = np.abs(np.asarray(entries, np.float64))
    sizes = sizes[sizes > 0]
    # A few entries may be larger, such as those of weights with another optimizer.
    return float((sizes >= (1 - near) * np.quantile(sizes, 0.999)).mean()) if len(sizes) >= at_least else 0.0


def check_adam_step(step: AdamStep, payload: PyTree, variables: PyTree, precision: Precision) -> Finding:
    """Check that a first step moves no weight further than the learning rate, and most weights nearly as far.

    Args:
        step: as it is stated.
        payload: the change of the weights over the stated learning rate, a tree like `variables["params"]`.
        variables: the weights before the step.
        precision: format in which the update was sent.
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
        # A wrong rate leaves most entries at one size. If the client has fitted its samples, sizes differ.
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
    """A finding if most entries of an update that broke an equation have one size, as in a step of Adam."""
    share = of_one_size(np.concatenate([np.asarray(leaf).ravel() for leaf in named_leaves(payload).values()]))
    if share < _SHARE:
        return []
    evidence = f"{share:.0%} of the entries that are not zero have nearly the size of the largest, in all layers."
    cause = "the client took a step of Adam, which moves all weights equally far, or sent the signs of its gradient"
    options = "--defense adam_step (or adamw_step) with --learning-rate", "--defense other"
    return [Finding(_NAME, "failed", evidence, cause, options)]
