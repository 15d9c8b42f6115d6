"""The kinks of a program: which are smoothed and how, and which stay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak.models._activations import Sharpness, in_units_of, smooth_max, soft_relu
from jaxleak.models._conv import Padding, max_pool
from jaxleak.models._door.facts import Facts
from jaxleak.models._door.layouts import in_order, inverse, moved
from jaxleak.models._door.linear import Pads
from jaxleak.models._door.program import Step

#: Primitives that make a function with kinks out of linear functions.
FOLDS = frozenset(["max", "min", "clamp", "select_n", "abs"])

#: Primitives with kinks or steps for which there is no smooth form here.
_NEVER_SMOOTH = frozenset(
    [
        "sign",
        "floor",
        "ceil",
        "round",
        "sort",
        "top_k",
        "reduce_min",
        "reduce_window",
        "reduce_window_min",
        "argmax",
        "argmin",
        "cummax",
        "cummin",
        "rem",
    ]
)


class Pool(NamedTuple):
    """A max-pool over two axes, in any order and with any number of other axes."""

    axes: tuple[int, ...]  # order of all axes: the others, the two of the windows, and the last of the others
    window: int
    stride: int
    padding: Pads

    def __call__(self, x: Any, sharpness: Sharpness) -> Any:
        """What the primitive computes, or its smooth form; see `jaxleak.models._door.layouts`."""
        z = in_order(x, self.axes)
        others = z.shape[:-3]
        z = z.reshape(-1, *z.shape[-3:])
        plain = self.window == self.stride == 2 and not any(map(any, self.padding))
        even = plain and z.shape[1] % 2 == z.shape[2] % 2 == 0
        padding: Padding = "SAME" if even else self.padding
        pooled = max_pool(z, self.window, self.stride, padding, sharpness=in_units_of(z, sharpness))
        return moved(pooled.reshape(*others, *pooled.shape[1:]), inverse(self.axes))


def pool_of(step: Step) -> Pool | str:
    """The max-pool of a `reduce_window_max`, or why it stays as it is."""
    p = step.params
    if set(p["base_dilation"]) != {1} or set(p["window_dilation"]) != {1}:
        return "dilated max-pool"
    window, strides, padding = p["window_dimensions"], p["window_strides"], p["padding"]
    axes = [i for i, k in enumerate(window) if (k, strides[i], tuple(padding[i])) != (1, 1, (0, 0))]
    others = [i for i in range(len(window)) if i not in axes]
    if not others or len(axes) != 2 or len({(window[i], strides[i]) for i in axes}) != 1:
        return "max-pool over windows that are not square"
    if min(min(padding[i]) for i in axes) < 0:
        return "max-pool that cuts its images"
    pads = (tuple(padding[axes[0]]), tuple(padding[axes[1]]))
    return Pool((*others[:-1], *axes, others[-1]), window[axes[0]], strides[axes[0]], pads)


def maximum_over(axes: tuple[int, ...], x: jax.Array, sharpness: Sharpness) -> jax.Array:
    """The smooth form of a maximum over axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    z = jnp.transpose(x, (*kept, *axes)).reshape(*(x.shape[axis] for axis in kept), -1)
    beta = in_units_of(x, sharpness)
    assert beta is not None
    return smooth_max(z, z.ndim - 1, beta)


def maximum_of_two(a: jax.Array, b: jax.Array, sharpness: Sharpness) -> jax.Array:
    """The smooth form of the maximum of two arrays."""
    beta = in_units_of(a - b, sharpness)
    assert beta is not None
    return b + soft_relu(a - b, beta)


def joins_two(step: Step, facts: Facts) -> bool:
    """Whether the step is a maximum or minimum of two arrays of which neither is a constant."""
    if step.name not in ("max", "min"):
        return False
    a, b = step.inputs
    varying = not any(slot in facts.numbers or slot in facts.program.constants for slot in (a, b))
    return varying and facts.program.shape(a) == facts.program.shape(b) and facts.counts(step.outputs[0])


def stays(step: Step, facts: Facts) -> str | None:
    """The name of the step's kink if it has no smooth form here, else None."""
    if not any(facts.counts(slot) for slot in step.outputs):
        return None
    (out, *_) = step.outputs
    if step.name in _NEVER_SMOOTH:
        return step.name
    if step.name == "clamp" and not facts.has_hinges(out):
        return step.name
    if step.name == "select_n" and step.inputs[0] in facts.compared and out not in facts.functions:
        if out in facts.guards:
            return None
        return "select_n, a branch chosen by the sign of a number"
    return None


def count_inside(step: Step) -> str | None:
    """Names of kinks and linear layers inside a step that stays closed, such as a loop; None without any."""
    hidden = [
        inner.name
        for body in step.bodies()
        for inner in body.all_steps()
        if inner.name in {"max", "min", "clamp", "reduce_window_max", "conv_general_dilated", "dot_general"}
        or inner.name in _NEVER_SMOOTH
    ]
    deeper = [found for body in step.bodies() for inner in body.steps if (found := count_inside(inner))]
    if step.inside or not (hidden or deeper) or _keeps_its_own(step, hidden):
        return None
    return f"{step.name} (with {', '.join(sorted(set(hidden))) or deeper[0]} inside)"


def _keeps_its_own(step: Step, hidden: list[str]) -> bool:
    """Whether the step is a smooth function with its own derivative, where maxima only keep exponentials in range."""
    return step.name == "custom_jvp_call" and set(hidden) <= {"max", "min"}
