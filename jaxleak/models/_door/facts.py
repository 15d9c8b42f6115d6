"""Facts about a program before it runs: constants, piecewise linear functions, parameters, dependence on images.

A rule that replaces a primitive has to know what the primitive does at that place. `x > 0` in a `select` may choose the
branch of a leaky ReLU or mask a loss; a maximum with zero is a ReLU, or keeps a variance from being negative. Passes
over the steps find this out, and nothing here computes with images.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._door.piecewise import Piecewise, larger, smaller
from jaxleak.models._door.program import PIECEWISE_LINEAR, Program, Step, uniform

#: Functions with smooth derivatives that count as the non-linearity of a layer.
_SMOOTH = frozenset(["logistic", "tanh", "erf", "erfc", "expm1"])

#: Primitives that act entry by entry.
_ELEMENTWISE = (
    _SMOOTH
    | PIECEWISE_LINEAR
    | frozenset(
        [
            "div",
            "exp",
            "log",
            "log1p",
            "integer_pow",
            "pow",
            "square",
            "sqrt",
            "rsqrt",
            "eq",
            "ne",
        ]
    )
)

_COMPARISONS = {"gt": True, "ge": True, "lt": False, "le": False}

#: Primitives that only move a parameter's entries.
_MOVES = frozenset(["reshape", "transpose", "squeeze", "expand_dims", "rev", "convert_element_type", "copy"])

#: Primitives between a sum and the mean that it becomes.
_SCALES = frozenset(["div", "mul", "reshape", "broadcast_in_dim", "convert_element_type"])

#: A bound this large bounds nothing, and a bound this small only keeps a division from failing.
_NO_BOUND, _GUARD = 1e30, 1e-6


class Sign(NamedTuple):
    """The result of a comparison: whether the slot `of` is above (or else below) a threshold."""

    of: int
    threshold: float
    above: bool


class Origin(NamedTuple):
    """The parameter that a slot comes from, and the steps that moved its entries."""

    leaf: str
    moves: tuple[Step, ...] = ()
    repeated: bool = False  # broadcast along an axis: a bias, but no kernel any more

    def moved(self, leaf: jax.Array) -> jax.Array:
        """Apply the same steps to another array of the parameter's shape, such as its gradient; its dtype is kept."""
        for step in self.moves:
            if step.name != "convert_element_type":
                (leaf,) = step.bind([leaf])
        return leaf


class Facts:
    """Tables of what is known of a program's slots; nothing is known of a slot that is not in a table."""

    def __init__(self, program: Program, leaves: tuple[str, ...], of_batch: frozenset[int]):
        """Fill the tables from the steps of a program.

        Args:
            program: the program, whose first inputs are the parameters.
            leaves: names of the parameters, in the order of the inputs.
            of_batch: see `slots_of_batch`.
        """
        self.program, self.of_batch, self.alive = program, of_batch, _alive(program)
        #: Slots that are filled with one number.
        self.numbers = {s: number for s, v in program.constants.items() if (number := uniform(v)) is not None}
        #: Slots that are a piecewise linear function of another slot.
        self.functions: dict[int, Piecewise] = {}
        self.signs: dict[int, Sign] = {}
        #: Results of comparisons between numbers that depend on the images.
        self.compared: set[int] = set()
        self.origins = {slot: Origin(name) for slot, name in zip(program.inputs, leaves, strict=False)}
        #: Slots that are an elementwise function of another slot, and those slots where this function is curved.
        self.roots: dict[int, int] = {}
        self.curved: set[int] = set()
        #: Choices by sign that make no kinks, because another choice by the same sign replaces them there.
        self.guards: set[int] = set()
        self._makers = {step.outputs[0]: step for step in program.all_steps() if len(step.outputs) == 1}
        for step in self._makers.values():
            self._count(step)
            self._follow(step)
        self._forget_guards()
        for step in self._makers.values():
            self._chain(step)

    def function(self, slot: int, of: int | None = None) -> Piecewise | None:
        """A slot as a piecewise linear function of `of`, or else of whatever slot it derives from; None if unknown."""
        if slot in self.numbers and of is not None:
            return Piecewise(of, 0.0, self.numbers[slot])
        found = self.functions.get(slot, Piecewise(slot))
        return found if of in (None, found.of) else None

    def has_hinges(self, slot: int) -> bool:
        """Whether the slot is a function with kinks, of numbers that depend on images and pass a derivative on."""
        function = self.functions.get(slot)
        return bool(function and function.hinges) and self.counts(slot)

    def counts(self, slot: int) -> bool:
        """Whether a kink in the slot may be smoothed: it holds floats, depends on images and passes derivatives on."""
        dtype = getattr(self.program.avals[slot], "dtype", None)
        floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        return floating and slot in self.of_batch and slot in self.alive

    def _forget_guards(self) -> None:
        """Find choices that only keep a discarded branch finite, and count them as guards instead of kinks.

        An example is the inner choice of ELU, `where(x > 0, x, expm1(where(x > 0, 0, x)))`.
        """
        for step in self._makers.values():
            if step.name != "select_n" or step.outputs[0] in self.functions or step.inputs[0] not in self.signs:
                continue
            of, waiting = self.signs[step.inputs[0]].of, list(step.inputs[1:])
            while waiting:
                maker = self._makers.get(slot := waiting.pop())
                if maker is None or maker.name not in _ELEMENTWISE:
                    continue
                if maker.name == "select_n" and slot in self.functions and self.functions[slot].of == of:
                    del self.functions[slot]
                    self.guards.add(slot)
                waiting += maker.inputs

    def _count(self, step: Step) -> None:
        """Record whether a step makes a number, a sign or a piecewise linear function."""
        (out,), name, inputs = step.outputs, step.name, step.inputs
        if name in ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "stop_gradient"):
            if inputs[0] in self.numbers:
                self.numbers[out] = self.numbers[inputs[0]]
            elif name in ("convert_element_type", "copy") and self._shape_is_kept(step):
                self._set(out, self.function(inputs[0]))
            return
        if name in _COMPARISONS:
            self._compare(step)
        if name == "max" and any(map(self._is_variance, inputs)):
            return  # a bound that only rounding errors reach is no kink
        varying = [slot for slot in inputs[1 if name == "select_n" else 0 :] if slot not in self.numbers]
        if not varying or not all(slot in self.numbers or self._same_shape(slot, out) for slot in inputs):
            return
        of = self.functions.get(varying[0], Piecewise(varying[0])).of
        if name == "select_n" and inputs[0] in self.signs:
            of = self.signs[inputs[0]].of
        if name in _FUNCTIONS:
            self._set(out, _FUNCTIONS[name](self, inputs, of))

    def _is_variance(self, slot: int) -> bool:
        """Whether the slot is a mean of squares minus the square of a mean, as Flax computes variances."""
        less = self._makers.get(slot)
        if less is None or less.name != "sub" or not self._is_square(less.inputs[1]):
            return False
        maker = self._makers.get(less.inputs[0])
        while maker is not None and maker.name in _SCALES:
            maker = self._makers.get(maker.inputs[0])
        return maker is not None and maker.name == "reduce_sum" and self._is_square(maker.inputs[0])

    def _is_square(self, slot: int) -> bool:
        maker = self._makers.get(slot)
        if maker is None:
            return False
        twice = maker.name == "mul" and maker.inputs[0] == maker.inputs[1]
        return twice or maker.name == "square" or (maker.name == "integer_pow" and maker.params["y"] == 2)

    def _set(self, slot: int, function: Piecewise | None) -> None:
        if function is not None and function.of != slot:
            self.functions[slot] = function

    def _compare(self, step: Step) -> None:
        (out,), (a, b) = step.outputs, step.inputs
        if self.counts(a) or self.counts(b):
            self.compared.add(out)
        for slot, other, flipped in ((a, b, False), (b, a, True)):
            line = self.function(slot)
            if other in self.numbers and line is not None and line.slope and not line.hinges:
                above = _COMPARISONS[step.name] ^ flipped ^ (line.slope < 0)
                self.signs[out] = Sign(line.of, (self.numbers[other] - line.offset) / line.slope, above)

    def _same_shape(self, slot: int, other: int) -> bool:
        return self.program.shape(slot) == self.program.shape(other)

    def _shape_is_kept(self, step: Step) -> bool:
        floating = jnp.issubdtype(getattr(self.program.avals[step.outputs[0]], "dtype", np.int32), jnp.floating)
        return floating and self._same_shape(step.inputs[0], step.outputs[0])

    def _follow(self, step: Step) -> None:
        """Follow parameters through steps that only move their entries."""
        origin = self.origins.get(step.inputs[0]) if len(step.inputs) == 1 else None
        if origin is None:
            return
        (out,) = step.outputs
        if step.name in _MOVES:
            self.origins[out] = origin._replace(moves=(*origin.moves, step))
        elif step.name == "broadcast_in_dim":
            same = np.prod(self.program.shape(out)) == np.prod(self.program.shape(step.inputs[0]))
            self.origins[out] = Origin(origin.leaf, (*origin.moves, step), origin.repeated or not same)

    def _chain(self, step: Step) -> None:
        """Record elementwise functions of one slot that consist of several steps: GELU is made of eight primitives."""
        (out,) = step.outputs
        inputs = [slot for slot in step.inputs if slot not in self.numbers]
        closed = step.name == "custom_jvp_call" and not step.inside and _is_elementwise(step)
        roots = {self.roots.get(slot, slot) for slot in inputs}
        if self.has_hinges(out) or len(roots) != 1 or not (step.name in _ELEMENTWISE or closed):
            return
        if self._same_shape(inputs[0], out):
            self.roots[out] = roots.pop()
            if step.name in _SMOOTH or closed or self.curved.intersection(inputs):
                self.curved.add(out)


def _maximum(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    return _bounded(facts, inputs[0], inputs[1], of, -1.0)


def _minimum(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    return _bounded(facts, inputs[0], inputs[1], of, 1.0)


def _bounded(facts: Facts, a: int, b: int, of: int, side: float) -> Piecewise | None:
    """The maximum (side -1) or minimum (side 1) of two slots."""
    if a in facts.numbers:
        a, b = b, a
    bound = facts.numbers.get(b)
    function = facts.function(a, of)
    if function is not None and bound is not None and (side * bound >= _NO_BOUND or 0 < abs(bound) <= _GUARD):
        return function if side * bound >= _NO_BOUND else None
    other = facts.function(b, of)
    if function is None or other is None:
        return None
    return (larger if side < 0 else smaller)(function, other)


def _clamped(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    low, x, high = (facts.function(slot, of) for slot in inputs)
    return None if low is None or x is None or high is None else smaller(larger(x, low), high)


def _selected(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    sign = facts.signs.get(inputs[0])
    if sign is None or len(inputs) != 3:
        return None
    otherwise, chosen = (facts.function(slot, of) for slot in inputs[1:])
    if otherwise is None or chosen is None:
        return None
    left, right = (otherwise, chosen) if sign.above else (chosen, otherwise)
    added = right.plus(left.scaled(-1.0)).right_of(sign.threshold)
    return None if added is None else left.plus(added)


def _sum(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    a, b = (facts.function(slot, of) for slot in inputs)
    return None if a is None or b is None else a.plus(b)


def _difference(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    a, b = (facts.function(slot, of) for slot in inputs)
    return None if a is None or b is None else a.plus(b.scaled(-1.0))


def _product(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    for slot, other in (inputs, inputs[::-1]):
        function = facts.function(slot, of)
        if other in facts.numbers and function is not None:
            return function.scaled(facts.numbers[other])
    return None


def _quotient(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    function, number = facts.function(inputs[0], of), facts.numbers.get(inputs[1])
    return function.scaled(1 / number) if function is not None and number else None


def _negative(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    function = facts.function(inputs[0], of)
    return None if function is None else function.scaled(-1.0)


def _absolute(facts: Facts, inputs: tuple[int, ...], of: int) -> Piecewise | None:
    function = facts.function(inputs[0], of)
    return None if function is None else function.positive().scaled(2.0).plus(function.scaled(-1.0))


_FUNCTIONS = {
    "max": _maximum,
    "min": _minimum,
    "clamp": _clamped,
    "select_n": _selected,
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "neg": _negative,
    "abs": _absolute,
}


def slots_of_batch(program: Program, larger_batch: Program) -> frozenset[int]:
    """Slots that grow with the batch, found by comparison with the same function's program for one more image.

    Where the two programs differ in their steps, every slot with at least two axes counts.
    """
    if len(program.avals) != len(larger_batch.avals):
        return frozenset(slot for slot in range(len(program.avals)) if len(program.shape(slot)) > 1)
    return frozenset(slot for slot in range(len(program.avals)) if program.shape(slot) != larger_batch.shape(slot))


def _is_elementwise(step: Step) -> bool:
    return all(inner.name in _ELEMENTWISE for body in step.bodies() for inner in body.steps)


def _alive(program: Program) -> frozenset[int]:
    """Slots through which a derivative of the first output passes."""
    alive = {program.outputs[0]}
    for step in reversed(tuple(program.all_steps())):
        if step.name != "stop_gradient" and alive.intersection(step.outputs):
            alive.update(step.inputs)
    return frozenset(alive)
