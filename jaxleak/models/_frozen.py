"""Networks that a client trains only in part, as in transfer learning; the other parameters are constants."""

from collections.abc import Iterable
from typing import Any

import jax

from jaxleak import _tree
from jaxleak._base import PyTree
from jaxleak.models._classifier import Classifier, Outputs, digest_of


def freeze(model: Classifier, variables: PyTree, names: Iterable[str]) -> tuple[Classifier, PyTree]:
    """The same network with some of its parameters as constants, so that gradients do not hold them.

    Args:
        model: any classifier.
        variables: weights of the model; the constants are taken from here.
        names: names of the parameters that are not trained, such as "conv1/kernel" or "conv1.weight", or of layers,
            such as "conv1", which stand for all their parameters.

    Returns:
        The classifier and its variables, in which None stands in the place of every constant; JAX does not count None
        as a leaf. The classifier has no rows for a linear layer whose kernel is a constant, and no head if the head's
        kernel is a constant. It raises ValueError for variables that hold a constant, since their gradient would hold
        it, too.

    Raises:
        ValueError: if the model does not have a parameter or layer that is named; if `names` is one text instead of
            several names; or if nothing is left to train.
    """
    whole = variables["params"]
    leaves = _tree.named_leaves(whole)
    fixed = _meant(names, leaves)
    if fixed == leaves.keys():
        raise ValueError("a client that trains nothing sends nothing: a parameter must be left that is not frozen")

    def trained(tree: PyTree) -> PyTree:
        return _tree.replaced(tree, dict.fromkeys(fixed))

    def filled(variables: PyTree) -> PyTree:
        given = _tree.named_leaves(variables["params"])
        # Otherwise a client that trains only a part would send the gradient of the whole, and an attack would read all
        # of it.
        if constant := sorted(fixed & given.keys()):
            raise ValueError(
                f"{constant[0]} is a constant of this model: pass the variables that freeze returned, with None there"
            )
        return {**variables, "params": _tree.replaced(whole, given)}

    def init(key: jax.Array) -> PyTree:
        drawn = model.init(key)
        return {**drawn, "params": trained(drawn["params"])}

    def apply(variables: PyTree, x: jax.Array, **options: Any) -> Outputs:
        return model.apply(filled(variables), x, **options)

    def rows(variables: PyTree, x: jax.Array, **options: Any) -> dict[str, jax.Array]:
        read = model.rows(filled(variables), x, **options)
        return {name: rows for name, rows in read.items() if name not in fixed}

    def bias_of(kernel: str) -> str:
        bias = model.bias_of(kernel)
        return "" if bias in fixed else bias

    kernel, *bias = model.head_names if model.head else ("",)
    has_head = bool(model.head) and kernel not in fixed
    changed = model._replace(
        init=init,
        apply=apply,
        rows=rows,
        bias_of=bias_of,
        head=model.head if has_head else "",
        head_leaves=(kernel, *(name for name in bias if name not in fixed)) if has_head else (),
        order=model.listed,
        constants=(*model.constants, *((name, digest_of(leaves[name])) for name in sorted(fixed))),
        untrained=(),
        notes=(*model.notes, f"{len(fixed)} of {len(leaves)} parameters are constants"),
    )
    return changed, {**variables, "params": trained(whole)}


def _meant(names: Iterable[str], leaves: Iterable[str]) -> frozenset[str]:
    """The parameters that are named or lie in a named layer. Raises `ValueError` as `freeze` does."""
    if isinstance(names, str):
        raise ValueError(f"names must be several names, as in [{names!r}], got the text {names!r}")
    fixed = set[str]()
    for name in names:
        below = {leaf for leaf in leaves if leaf == name or leaf.startswith((f"{name}/", f"{name}."))}
        if not below:
            raise ValueError(f"the model has no parameter or layer {name}; it has {', '.join(list(leaves)[:5])}, ...")
        fixed |= below
    return frozenset(fixed)
