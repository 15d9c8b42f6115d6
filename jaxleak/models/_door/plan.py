"""Decide which steps of a program are replaced and what is recorded, and run the program with images."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak.models._activations import Sharpness
from jaxleak.models._conv import Form
from jaxleak.models._door import kinks, linear
from jaxleak.models._door.facts import Facts
from jaxleak.models._door.layouts import bind, entry_by_entry, plain
from jaxleak.models._door.program import Program, Step

#: Replaces the primitive of a step: (inputs, sharpness) -> output, with arrays as in `jaxleak.models._door.layouts`.
Rule = Callable[[list[Any], Sharpness], Any]


class Head(NamedTuple):
    """The last dense layer."""

    step: int
    kernel: str
    bias: str | None


class Pass(NamedTuple):
    """The results of one pass through a program."""

    outputs: list[Any]
    features: jax.Array | None
    activations: tuple[jax.Array, ...]
    rows: dict[str, jax.Array]


class Plan:
    """A program with the rules for its steps."""

    def __init__(self, program: Program, facts: Facts, form: Form = "auto"):
        """Look at every step once; `form` is how convolutions are written, see `jaxleak.models.conv2d`."""
        self.program, self.facts, self.form = program, facts, form
        self.rules: dict[int, Rule] = {}
        self.layers: dict[int, linear.Convolution | linear.Product] = {}
        self.smoothed: list[str] = []  # kinds of kinks with a smooth form, one entry for each kink
        self.exact: list[str] = []  # kinds of kinks without a smooth form
        self.slow: list[str] = []  # convolutions that stay in XLA's form
        outputs: set[int] = set()
        made_of: dict[int, set[int]] = {}  # outputs that a piecewise linear function is made of
        for number, step in enumerate(program.steps):
            below = {slot for before in step.inputs for slot in made_of.get(before, ())}
            if self._fold(number, step) or self._combines(step):
                # A maximum and a minimum together make one ReLU6; its output is that of the second step.
                outputs.difference_update(below)
                outputs.add(step.outputs[0])
                below = {step.outputs[0]}
            elif step.name == "conv_general_dilated":
                self._convolution(number, step)
            elif step.name == "dot_general":
                product = linear.product_of(step, facts)
                if product is not None:
                    self.layers[number] = product
            elif (closed := kinks.count_inside(step)) or (closed := kinks.stays(step, facts)):
                self.exact.append(closed)
            if step.outputs and step.outputs[0] in facts.functions:
                made_of[step.outputs[0]] = below
        #: Slots that are the output of a non-linearity.
        self.activations = outputs | self._curved()
        self._drop_what_is_used_otherwise()
        self.used = program.used(program.outputs[:1])

    def _fold(self, number: int, step: Step) -> bool:
        """Make a rule for a kink; return whether the kink's output is an activation."""
        facts, out = self.facts, step.outputs[0] if step.outputs else -1
        if step.name == "reduce_window_max" and facts.counts(out):
            pool = kinks.pool_of(step)
            if isinstance(pool, str):
                self.exact.append(pool)
            else:
                self.rules[number] = lambda inputs, sharpness: pool(inputs[0], sharpness)
                self.smoothed.append("max-pool")
            return False
        if step.name == "reduce_max" and facts.counts(out):
            axes = tuple(step.params["axes"])
            self._smooth_only(number, step, lambda inputs, beta: kinks.maximum_over(axes, inputs[0], beta))
            self.smoothed.append("maximum over axes")
            return False
        if kinks.joins_two(step, facts):
            sign = 1.0 if step.name == "max" else -1.0
            self._smooth_only(
                number, step, lambda inputs, beta: sign * kinks.maximum_of_two(sign * inputs[0], sign * inputs[1], beta)
            )
            self.smoothed.append(f"{step.name} of two arrays")
            return True
        folds = any(inner.name in kinks.FOLDS for inner in step.inside or (step,))
        if folds and facts.has_hinges(out):
            # The whole function is evaluated from the slot that it is a function of; see `_apply`.
            self.smoothed.append("piecewise linear activation")
            return True
        return False

    def _combines(self, step: Step) -> bool:
        """Whether the step adds up two functions of one number, as a leaky ReLU written as a line plus a ReLU does."""
        two = len(step.inputs) == 2 and not any(slot in self.facts.numbers for slot in step.inputs)
        return step.name in ("add", "sub") and two and self.facts.has_hinges(step.outputs[0])

    def _smooth_only(self, number: int, step: Step, rule: Callable[[list[Any], Sharpness], jax.Array]) -> None:
        self.rules[number] = lambda inputs, sharpness: (
            step.bind(map(plain, inputs))[0] if sharpness is None else rule([*map(plain, inputs)], sharpness)
        )

    def _convolution(self, number: int, step: Step) -> None:
        found = linear.convolution_of(step, self.facts, self.form)
        if isinstance(found, str):
            self.slow.append(found)
            return
        self.rules[number] = lambda inputs, sharpness: found(*inputs)
        if found.origin is not None and found.groups == 1:
            self.layers[number] = found

    def _curved(self) -> set[int]:
        """The ends of chains of elementwise functions that contain a smooth non-linearity."""
        facts, ends = self.facts, {slot for slot in self.facts.curved if self.facts.counts(slot)}
        for step in self.program.steps:
            for slot in ends.intersection(step.inputs):
                if any(out in facts.curved and facts.roots[out] == facts.roots[slot] for out in step.outputs):
                    ends.discard(slot)
        return ends

    def _drop_what_is_used_otherwise(self) -> None:
        """Drop layers with kernels that are also used elsewhere: the gradients of these parameters have other parts."""
        otherwise = {
            origin.leaf
            for number, step in enumerate(self.program.steps)
            for slot in step.inputs
            if number not in self.layers
            and (origin := self.facts.origins.get(slot)) is not None
            and not any(out in self.facts.origins for out in step.outputs)
        }
        self.layers = {
            n: layer for n, layer in self.layers.items() if layer.origin and layer.origin.leaf not in otherwise
        }

    def matrix(self, name: str, leaf: jax.Array) -> jax.Array:
        """A kernel or its gradient as a matrix (k, channels), in the order of the layer's rows."""
        for layer in self.layers.values():
            if layer.origin is not None and layer.origin.leaf == name:
                return layer.matrix(layer.origin.moved(leaf))
        raise ValueError(f"{name} is the kernel of no linear layer; they are {', '.join(self.kernels())}")

    def bias_of(self, name: str) -> str:
        """The name of the bias that is added to the output of a linear layer, or "" without one."""
        for number, layer in self.layers.items():
            if layer.origin is not None and layer.origin.leaf == name:
                return self._bias(number, self.matrix_shape(number)[1]) or ""
        return ""

    def matrix_shape(self, number: int) -> tuple[int, int]:
        """(k, channels) of the linear layer at this step."""
        layer, step = self.layers[number], self.program.steps[number]
        kernel = step.inputs[0 if isinstance(layer, linear.Product) and layer.kernel_first else 1]
        shape = jax.ShapeDtypeStruct(self.program.shape(kernel), jnp.float32)
        found = jax.eval_shape(layer.matrix, shape)
        return (found.shape[0], found.shape[1])

    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels of linear layers, in the order of the forward pass."""
        return tuple(dict.fromkeys(layer.origin.leaf for layer in self.layers.values() if layer.origin))

    def head(self, batch: int, classes: int) -> Iterable[Head]:
        """Dense layers that read one row per image and give one number per class, the last one first."""
        for number in sorted(self.layers, reverse=True):
            layer, step = self.layers[number], self.program.steps[number]
            if isinstance(layer, linear.Product) and step.outputs[0] in self.used:
                x = self.program.shape(step.inputs[1 if layer.kernel_first else 0])
                rows = math.prod(n for axis, n in enumerate(x) if axis not in layer.contracted)
                if rows == batch and math.prod(self.program.shape(step.outputs[0])) == batch * classes:
                    yield Head(number, layer.origin.leaf, self._bias(number, classes))

    def _bias(self, number: int, classes: int) -> str | None:
        """The parameter that is added to the step's output; None without one."""
        reached = set(self.program.steps[number].outputs)
        for step in self.program.steps[number + 1 :]:
            if not reached.intersection(step.inputs):
                continue
            if step.name == "add":
                for slot in step.inputs:
                    origin = self.facts.origins.get(slot)
                    shape = self.program.shape(slot)
                    if origin and math.prod(shape) == math.prod(n for n in shape if n == classes) == classes:
                        return origin.leaf
                return None
            if step.name not in ("transpose", "reshape", "squeeze", "convert_element_type", "copy"):
                return None
            reached.update(step.outputs)
        return None

    def run(
        self, arguments: Iterable[Any], sharpness: Sharpness, *, head: Head | None = None, rows: bool = False
    ) -> Pass:
        """Run the program once.

        Args:
            arguments: the inputs of the program.
            sharpness: None, or the sharpness beta > 0 of the smooth forms.
            head: the last dense layer; its inputs are recorded as the features.
            rows: whether to record what linear layers read.
        """
        table: dict[int, Any] = dict(self.program.constants)
        table.update(zip(self.program.inputs, arguments, strict=True))
        features: jax.Array | None = None
        read: dict[str, list[jax.Array]] = {}
        for number, step in enumerate(self.program.steps):
            inputs = [table[slot] for slot in step.inputs]
            layer = self.layers.get(number)
            if layer is not None and head is not None and number == head.step:
                features = layer.rows(*inputs)
            if rows and layer is not None and layer.origin is not None:
                read.setdefault(layer.origin.leaf, []).append(layer.rows(*inputs))
            table.update(zip(step.outputs, self._apply(number, step, inputs, table, sharpness), strict=True))
        return Pass(
            [plain(table[slot]) for slot in self.program.outputs],
            features,
            tuple(plain(table[slot]) for slot in sorted(self.activations)),
            # Weights that one layer uses as they are and another one transposed have rows of two lengths, so they have
            # no rows.
            {
                name: jnp.concatenate(parts)
                for name, parts in read.items()
                if len({part.shape[1] for part in parts}) == 1
            },
        )

    def _apply(
        self, number: int, step: Step, inputs: list[Any], table: dict[int, Any], sharpness: Sharpness
    ) -> list[Any]:
        out = step.outputs[0] if step.outputs else -1
        if number in self.rules:
            return [self.rules[number](inputs, sharpness)]
        if sharpness is not None and self.facts.has_hinges(out):
            function = self.facts.functions[out]
            if any(inner.name in kinks.FOLDS for inner in step.inside or (step,)):
                dtype = self.program.avals[out].dtype
                return [entry_by_entry(lambda z: function.smooth(z, sharpness).astype(dtype), table[function.of])]
        if step.name == "stop_gradient" and out not in self.used:
            # This step serves running statistics: only the client's derivatives were meant to stop there.
            return inputs
        return bind(step, inputs)
