"""Turn a JAX function into a flat list of steps: its jaxpr, with calls inlined.

Functions arrive wrapped in calls: `jit` around every function of `jax.nn`, `remat` around blocks, rules for derivatives
around ReLU. Rules for convolutions and kinks look at single primitives, so calls that only group primitives are
inlined. Loops stay closed. Calls with a hand-written derivative stay closed too, but a piecewise linear one (ReLU,
ReLU6) also keeps its inner steps, from which its smooth form is made.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

#: Calls that group primitives and mean nothing by themselves, and the parameter that holds their jaxpr.
_GROUPS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}

#: Calls with a derivative of their own, and the parameter that holds their jaxpr.
_OWN_DERIVATIVE = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

#: Primitives that make piecewise linear functions of their inputs, and nothing else.
PIECEWISE_LINEAR = frozenset(
    [
        "max",
        "min",
        "clamp",
        "select_n",
        "gt",
        "ge",
        "lt",
        "le",
        "mul",
        "add",
        "sub",
        "neg",
        "abs",
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
    ]
)

#: Larger constants are not searched for one repeated number.
_LARGEST_CONSTANT = 1 << 16


class Step(NamedTuple):
    """One primitive that reads and writes slots of a table."""

    equation: Any  # equation of the jaxpr, for its primitive and parameters
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    # The steps inside a piecewise linear call that has a derivative of its own; they write the same outputs.
    inside: tuple["Step", ...] = ()

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.equation.params

    def bind(self, arguments: Iterable[Any]) -> list[Any]:
        """Apply the primitive itself."""
        params = self.equation.primitive.get_bind_params(self.equation.params)
        # Since jax 0.9 functions are among the parameters; before, they were separate.
        functions, params = ((), params) if isinstance(params, dict) else params
        found = self.equation.primitive.bind(*functions, *arguments, **params)
        return list(found) if self.equation.primitive.multiple_results else [found]

    def bodies(self) -> Iterator["Program"]:
        """Programs inside a step that stays closed: a loop, a branch, or a call with its own derivative."""
        for value in self.params.values():
            for body in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(body, (jex.core.ClosedJaxpr, jex.core.Jaxpr)):
                    yield flattened(body)


class Program(NamedTuple):
    """Steps in order, and a description of their slots."""

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: dict[int, Any]  # slots whose values are known before the program runs
    avals: tuple[Any, ...]  # shapes and dtypes by slot

    def all_steps(self) -> Iterator[Step]:
        """Every step, with the steps inside a call in place of the call."""
        for step in self.steps:
            yield from step.inside or (step,)

    def used(self, outputs: Iterable[int]) -> frozenset[int]:
        """The slots on which these outputs depend, and the outputs themselves."""
        used = set(outputs)
        for step in reversed(self.steps):
            if used.intersection(step.outputs):
                used.update(step.inputs)
        return frozenset(used)

    def evaluated(self, arguments: Iterable[Any], outputs: Iterable[int]) -> list[Any]:
        """The values of these slots; steps that they do not need are left out, and `stop_gradient` stops nothing."""
        used = self.used(outputs)
        table = {**self.constants, **dict(zip(self.inputs, arguments, strict=True))}
        for step in self.steps:
            if used.intersection(step.outputs):
                values = [table[slot] for slot in step.inputs]
                table.update(
                    zip(step.outputs, values if step.name == "stop_gradient" else step.bind(values), strict=True)
                )
        return [table[slot] for slot in outputs]

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of a slot's value; () for a value without a shape."""
        return tuple(getattr(self.avals[slot], "shape", ()))


def flattened(jaxpr: Any) -> Program:
    """The program of a jaxpr; the constants of an open jaxpr count as unknown."""
    builder = _Builder()
    body = jaxpr.jaxpr if isinstance(jaxpr, jex.core.ClosedJaxpr) else jaxpr
    inputs = [builder.slot(var.aval) for var in body.invars]
    steps, outputs = builder.inline(body, getattr(jaxpr, "consts", None), inputs)
    return Program(tuple(steps), tuple(inputs), tuple(outputs), builder.constants, tuple(builder.avals))


class _Builder:
    """Assigns slot numbers to the variables of a jaxpr and of all that it calls."""

    def __init__(self) -> None:
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}

    def slot(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, value: Any, aval: Any) -> int:
        slot = self.slot(aval)
        self.constants[slot] = value
        return slot

    def inline(self, jaxpr: Any, constants: Any, inputs: list[int]) -> tuple[list[Step], list[int]]:
        """The steps of an open jaxpr with its inputs in these slots, and the slots of its outputs."""
        table: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for i, var in enumerate(jaxpr.constvars):
            table[var] = self.slot(var.aval) if constants is None else self.constant(constants[i], var.aval)

        def read(atom: Any) -> int:
            return self.constant(atom.val, atom.aval) if isinstance(atom, jex.core.Literal) else table[atom]

        steps: list[Step] = []
        for equation in jaxpr.eqns:
            arguments = [read(atom) for atom in equation.invars]
            group, own = _body(equation, _GROUPS), _body(equation, _OWN_DERIVATIVE)
            inside: list[Step] = []
            if group is not None:
                inner, outputs = self.inline(group.jaxpr, group.consts, arguments)
                steps += inner
            elif own is not None and _is_piecewise_linear(own.jaxpr):
                inside, outputs = self.inline(own.jaxpr, own.consts, arguments)
            else:
                outputs = [self.slot(var.aval) for var in equation.outvars]
            table.update(zip(equation.outvars, outputs, strict=True))
            if group is None:
                steps.append(Step(equation, tuple(arguments), tuple(outputs), tuple(inside)))
        return steps, [read(atom) for atom in jaxpr.outvars]


def _body(equation: Any, calls: dict[str, str]) -> Any:
    """The closed jaxpr of an equation that is one of these `calls`, else None."""
    body = equation.params.get(calls.get(equation.primitive.name))
    return jex.core.ClosedJaxpr(body, ()) if isinstance(body, jex.core.Jaxpr) else body


def _is_piecewise_linear(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        body = _body(equation, _GROUPS)
        if not (_is_piecewise_linear(body.jaxpr) if body else equation.primitive.name in PIECEWISE_LINEAR):
            return False
    return True


def uniform(value: Any) -> float | None:
    """The one number that fills a constant, or None if its entries differ."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, jax.core.Tracer) or not 0 < np.size(value) <= _LARGEST_CONSTANT:
        return None
    if not (jnp.issubdtype(value.dtype, np.number) or value.dtype == np.bool_):
        return None
    flat = np.asarray(value).ravel()
    return float(flat[0]) if (flat == flat[0]).all() else None
