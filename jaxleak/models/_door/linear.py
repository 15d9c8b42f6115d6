"""Linear layers in a program: convolutions in the library's fast forms, and the inputs of all linear layers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak.models._conv import Form, conv2d, patches
from jaxleak.models._door.facts import Facts, Origin
from jaxleak.models._door.layouts import in_order, inverse, moved, plain
from jaxleak.models._door.program import Step

Pads = tuple[tuple[int, int], tuple[int, int]]


class Convolution(NamedTuple):
    """A convolution that `conv2d` can compute, whatever the order of its axes."""

    image: tuple[int, ...]  # axes of the input as (B, H, W, C)
    kernel: tuple[int, ...]  # axes of the kernel as (kh, kw, C_in, C_out)
    output: tuple[int, ...]  # from (B, H', W', C_out) to the order of the output
    stride: int
    padding: Pads
    groups: int
    origin: Origin | None  # where the kernel comes from, if it is a parameter
    form: Form = "auto"  # see `jaxleak.models.conv2d`

    def __call__(self, x: Any, kernel: Any) -> Any:
        """What the primitive computes; see `jaxleak.models._door.layouts`."""
        fast = conv2d(
            in_order(x, self.image),
            in_order(kernel, self.kernel),
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            form=self.form,
        )
        return moved(fast, self.output)

    def rows(self, x: Any, kernel: Any) -> jax.Array:
        """What the convolution reads, as rows (n, kh kw C_in): one per output pixel and image."""
        kh, kw, *_ = in_order(kernel, self.kernel).shape
        read = patches(in_order(x, self.image), (kh, kw), self.stride, self.padding)
        return read.reshape(-1, read.shape[-1])

    def matrix(self, kernel: jax.Array) -> jax.Array:
        """The kernel as a matrix (kh kw C_in, C_out)."""
        kernel = jnp.transpose(kernel, self.kernel)
        return kernel.reshape(-1, kernel.shape[-1])


class Product(NamedTuple):
    """A dense layer: the product of an input with a parameter."""

    kernel_first: bool
    contracted: tuple[int, ...]  # axes of the input
    kernel_contracted: tuple[int, ...]  # axes of the kernel
    origin: Origin

    def rows(self, first: Any, second: Any) -> jax.Array:
        """What the layer reads, as rows (n, k)."""
        x = plain(second if self.kernel_first else first)
        free = [axis for axis in range(x.ndim) if axis not in self.contracted]
        size = int(np.prod([x.shape[axis] for axis in self.contracted], dtype=np.int64))
        return jnp.transpose(x, (*free, *self.contracted)).reshape(-1, size)

    def matrix(self, kernel: jax.Array) -> jax.Array:
        """The kernel as a matrix (k, channels)."""
        free = [axis for axis in range(kernel.ndim) if axis not in self.kernel_contracted]
        size = int(np.prod([kernel.shape[axis] for axis in self.kernel_contracted], dtype=np.int64))
        return jnp.transpose(kernel, (*self.kernel_contracted, *free)).reshape(size, -1)


def convolution_of(step: Step, facts: Facts, form: Form) -> Convolution | str:
    """The convolution of a `conv_general_dilated`, or why it stays as it is."""
    p = step.params
    if len(p["window_strides"]) != 2:
        return f"convolution over {len(p['window_strides'])} axes"
    if set(p["lhs_dilation"]) != {1} or set(p["rhs_dilation"]) != {1}:
        return "dilated convolution"
    if p["batch_group_count"] != 1:
        return "convolution with groups of images"
    if len(set(p["window_strides"])) != 1:
        return "convolution with two strides"
    if p["precision"] is not None or any(facts.program.avals[slot].dtype != np.float32 for slot in step.inputs):
        return "convolution of another precision"
    if min(map(min, p["padding"])) < 0:
        return "convolution that cuts its images"
    lhs, rhs, out = p["dimension_numbers"]
    order = (out[0], out[2], out[3], out[1])
    return Convolution(
        (lhs[0], lhs[2], lhs[3], lhs[1]),
        (rhs[2], rhs[3], rhs[1], rhs[0]),
        inverse(order),
        p["window_strides"][0],
        (tuple(p["padding"][0]), tuple(p["padding"][1])),
        p["feature_group_count"],
        _kernel(facts, step.inputs[1]),
        form,
    )


def product_of(step: Step, facts: Facts) -> Product | None:
    """The dense layer of a `dot_general`, if one side is a parameter and the other is not."""
    (contracted, batched) = step.params["dimension_numbers"]
    origins = [_kernel(facts, slot) for slot in step.inputs]
    if any(batched) or (origins[0] is None) == (origins[1] is None):
        return None
    first = origins[0] is not None
    origin = origins[0] if first else origins[1]
    assert origin is not None
    return Product(first, tuple(contracted[1 if first else 0]), tuple(contracted[0 if first else 1]), origin)


def _kernel(facts: Facts, slot: int) -> Origin | None:
    origin = facts.origins.get(slot)
    return None if origin is None or origin.repeated else origin
