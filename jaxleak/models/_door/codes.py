"""Find out whether a network reads inputs as integer codes, which an embedding looks up or which are made one-hot."""

import jax.numpy as jnp

from jaxleak.models._door.program import Program, Step

#: Primitives whose results are still inputs, but moved, rescaled or rounded.
_STILL_INPUTS = frozenset(
    [
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "slice",
        "dynamic_slice",
        "gather",
        "split",
        "concatenate",
        "rev",
        "copy",
        "convert_element_type",
        "reduce_precision",
        "stop_gradient",
        "mul",
        "add",
        "sub",
        "div",
        "neg",
        "max",
        "min",
        "clamp",
        "select_n",
        "round",
        "floor",
        "ceil",
        "rem",
    ]
)

#: Primitives that look rows up, with the number of the first input that holds places.
_LOOKS_UP = {"gather": 1, "dynamic_slice": 1}


def reads_codes(program: Program) -> bool:
    """Whether inputs become integers that choose rows of an array, or are compared with other integers.

    Some integers are not codes: those that are computed from more than a rescaled input, such as the places at which a
    spatial transformer reads, the results of comparisons, and the places of maxima.

    Args:
        program: a network's program, whose last input is x.
    """
    inputs, codes = {program.inputs[-1]}, set[int]()
    for step in program.all_steps():
        if codes.intersection(step.inputs[_LOOKS_UP.get(step.name, len(step.inputs)) :]):
            return True
        if step.name == "eq" and codes.intersection(step.inputs):
            return True
        if step.name not in _STILL_INPUTS:
            continue
        if codes.intersection(step.inputs):
            codes.update(slot for slot in step.outputs if _is_integer(program, slot))
        elif inputs.intersection(step.inputs[:1] if step.name in _LOOKS_UP else step.inputs):
            (codes if _makes_integers(program, step) else inputs).update(step.outputs)
    return False


def _makes_integers(program: Program, step: Step) -> bool:
    return step.name == "convert_element_type" and _is_integer(program, step.outputs[0])


def _is_integer(program: Program, slot: int) -> bool:
    dtype = getattr(program.avals[slot], "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.integer))
