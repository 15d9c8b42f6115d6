"""Flax NNX modules as functions of their parameters and statistics."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from jaxleak._base import PyTree
from jaxleak.models._classifier import BatchNormMode
from jaxleak.models._door.network import Computed, Function
from jaxleak.models._door.refused import RefusedError

#: Kinds of NNX variables in the order in which they are split: parameters, running statistics, all others.
_KINDS: Any = (nnx.Param, nnx.BatchStat, ...)


def of_nnx(
    module: object, train: Mapping[str, Any], evaluate: Mapping[str, Any]
) -> tuple[dict[BatchNormMode, Function], PyTree]:
    """A function of parameters, statistics and images for each mode of batch normalisation; and the module's arrays.

    Args:
        module: the NNX module; any other object is refused.
        train: arguments of a call in training mode.
        evaluate: arguments of a call in evaluation mode.

    Raises:
        TypeError: if `module` is not an NNX module.
        ValueError: if a layer of the module draws random numbers in training.
    """
    if not isinstance(module, nnx.Module):
        got = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise TypeError(f"module must be a Flax module, of Linen or NNX, got {got}")
    _refuse_dropout(module)
    # The module is copied, so that later changes to it do not change the classifier.
    graph, *states = nnx.split(nnx.clone(module), *_KINDS)
    params_state, stats_state, rest = states

    def filled(state: Any, values: PyTree) -> Any:
        state = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(state, values)
        return state

    def called(training: bool, arguments: Mapping[str, Any]) -> Function:
        def function(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
            # Without a copy Flax refuses to change batch statistics that belong to another trace.
            mine = nnx.merge(graph, filled(params_state, params), filled(stats_state, batch_stats), rest, copy=True)
            mine.train() if training else mine.eval()
            logits = mine(x, **arguments)
            new = nnx.to_pure_dict(nnx.state(mine, nnx.BatchStat))
            return Computed(logits, new if training and new else None)

        return function

    functions: dict[BatchNormMode, Function] = {"train": called(True, train), "eval": called(False, evaluate)}
    return functions, {"params": nnx.to_pure_dict(params_state), "batch_stats": nnx.to_pure_dict(stats_state)}


def _refuse_dropout(module: nnx.Module) -> None:
    for path, part in nnx.iter_graph(module):
        if isinstance(part, nnx.Dropout) and part.rate > 0:
            raise RefusedError(
                f"{'/'.join(map(str, path))} is dropout with rate {part.rate:g}, whose random masks no attacker knows: "
                "set its rate to 0, if the client trained without"
            )
