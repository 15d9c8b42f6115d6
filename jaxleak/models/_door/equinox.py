"""Equinox modules as classifiers."""

from collections.abc import Callable
from typing import Any

import jax

from jaxleak import _tree
from jaxleak._base import PyTree
from jaxleak.models._classifier import BatchNormMode, Classifier
from jaxleak.models._door.function import assemble
from jaxleak.models._door.network import Computed, Function, Layout
from jaxleak.models._door.refused import RefusedError
from jaxleak.models._door.trees import as_dict, filled


def from_equinox(
    module: Callable[..., Any],
    state: Any = None,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    layout: Layout = "NCHW",
    batched: bool = False,
    head: str | None = None,
) -> tuple[Classifier, PyTree]:
    """A `Classifier` of an Equinox module, which is left as it is; see `jaxleak.models.from_function`.

    Args:
        module: the network. It is called with one image, as `module(x)` or, with a state, as
            `module(x, state) -> (logits, state)`, and is mapped over a batch by `jax.vmap(..., axis_name="batch")`.
        state: `equinox.nn.State` of a module with batch normalisation.
        image_shape: (H, W, channels), whatever the layout.
        num_classes: C >= 2; by default as many as there are logits, or 2 for one logit.
        layout: axes of the images that the module reads: "NCHW", that is (channels, H, W) for one image, or "NHWC".
        batched: whether the module takes a batch of images at once instead of one.
        head: name of the last dense layer; by default the last one with C outputs.

    Returns:
        The classifier, and its variables. Parameters are nested dictionaries by the module's fields, as in
        "layers/0/weight"; `jaxleak.capture.fit` brings the arrays of a gradient into this form.

    Raises:
        ImportError: without the package equinox (`pip install equinox`).
        ValueError: on arguments out of range; if a dropout layer is active; if the module gives no logits (B, C).
    """
    try:
        import equinox as eqx
    except ImportError as error:
        raise ImportError("from_equinox needs the package equinox: pip install equinox") from error
    module = _without_dropout(eqx, module)
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    stats, rest = eqx.partition(state, eqx.is_inexact_array)

    def called(inference: bool) -> Function:
        def function(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
            mine = eqx.nn.inference_mode(eqx.combine(filled(arrays, params), static), inference)
            if state is None:
                return Computed(mine(x) if batched else jax.vmap(mine, axis_name="batch")(x))
            known = eqx.combine(filled(stats, batch_stats), rest)
            if batched:
                logits, new = mine(x, known)
            else:
                logits, new = jax.vmap(mine, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, known)
            return Computed(logits, None if inference else as_dict(eqx.filter(new, eqx.is_inexact_array)))

        return function

    functions: dict[BatchNormMode, Function] = {"train": called(False), "eval": called(True)}
    model, variables = assemble(
        functions,
        {"params": as_dict(arrays), "batch_stats": {} if state is None else as_dict(stats)},
        image_shape=image_shape,
        num_classes=num_classes,
        layout=layout,
        head=head,
    )
    # `jax.tree.leaves` lists the leaves of a module in the order of its fields, not of their names.
    return model._replace(order=tuple(_tree.named_leaves(arrays))), variables


def _without_dropout(eqx: Any, module: Any) -> Any:
    """Replace dropout that is in inference mode by dropout with p = 0; raise `RefusedError` on active dropout."""
    is_dropout = lambda part: isinstance(part, eqx.nn.Dropout)  # noqa: E731

    def off(part: Any) -> Any:
        if is_dropout(part) and part.p > 0 and not part.inference:
            raise RefusedError(
                f"the module has dropout with p = {part.p:g}, whose random masks no attacker knows: set p to 0, if the "
                "client trained without"
            )
        return eqx.nn.Dropout(0.0) if is_dropout(part) else part

    return jax.tree.map(off, module, is_leaf=is_dropout)
