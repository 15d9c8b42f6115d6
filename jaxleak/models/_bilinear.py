"""Primitives that make a convolution algorithm differentiable to any order, and batched, without leaving it.

Fast algorithms transform images, kernels and outputs by linear maps. Automatic differentiation would transpose those
maps operation by operation, which XLA runs slowly: slices become paddings, products end in transposed layouts. So this
module makes two primitives with rules written by hand: the convolution, and the correlation, which is the derivative of
the convolution with respect to its kernel. Both are bilinear, and their derivatives are convolutions and correlations
again.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Window = tuple[int, int]


def closed_convolution(
    name: str,
    convolve: Callable[[jax.Array, jax.Array, bool], jax.Array],
    correlate: Callable[[jax.Array, jax.Array, Window], jax.Array],
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Make a 2-D cross-correlation of stride 1, with zero padding that keeps the size, out of an algorithm.

    Args:
        name: name of the convolution primitive; the name of the correlation adds "_by_kernel".
        convolve: maps (G, B, H, W, C) and (G, kh, kw, C, O) to (G, B, H, W, O), which are G convolutions side by side.
            A third argument that is true asks for the adjoint, which maps (G, B, H, W, O) and the same kernel to (G, B,
            H, W, C); an algorithm may do this without a copy of the kernel.
        correlate: the derivative of `<y, convolve(x, kernel)>` with respect to the kernel, as a function of x, y and
            (kh, kw).

    Returns:
        A function that maps (B, H, W, C) and (kh, kw, C, O), with odd kh and kw, to (B, H, W, O).
    """

    def by_image(x: jax.Array, kernel: jax.Array, *, adjoint: bool) -> jax.Array:
        return convolve(x, kernel, adjoint)

    def by_kernel(x: jax.Array, y: jax.Array, *, window: Window) -> jax.Array:
        return correlate(x, y, window)

    conv = primitive_of(name, by_image, lambda x, kernel, adjoint: (*x.shape[:-1], kernel.shape[3 if adjoint else 4]))
    correlation = primitive_of(
        name + "_by_kernel", by_kernel, lambda x, y, window: (x.shape[0], *window, x.shape[-1], y.shape[-1])
    )

    def correlation_of(x: jax.Array, y: jax.Array, window: Window, adjoint: bool) -> jax.Array:
        return correlation.bind(*((y, x) if adjoint else (x, y)), window=window)

    # Each rule maps the cotangent and both operands to a derivative: one by the first operand, one by the second.
    ad.defbilinear(
        conv,
        lambda y, _, kernel, *, adjoint: conv.bind(y, kernel, adjoint=not adjoint),
        lambda y, x, kernel, *, adjoint: correlation_of(x, y, kernel.aval.shape[1:3], adjoint),
    )
    ad.defbilinear(
        correlation,
        lambda kernel, _, y, *, window: conv.bind(y, kernel, adjoint=True),
        lambda kernel, x, _, *, window: conv.bind(x, kernel, adjoint=False),
    )

    batching.primitive_batchers[conv] = functools.partial(by_rows, conv)
    batching.primitive_batchers[correlation] = functools.partial(by_groups, correlation)
    return lambda x, kernel: conv.bind(x[None], kernel[None], adjoint=False)[0]


def primitive_of(name: str, function: Callable[..., jax.Array], shape: Callable[..., tuple[int, ...]]) -> Primitive:
    """Make a primitive that is lowered to `function`; `shape` gives the shape of the result from the same arguments."""
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x, y, **parameters: x.update(shape=shape(x, y, **parameters)))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive


def by_rows(
    primitive: Primitive, operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], **parameters: Window | bool
) -> tuple[jax.Array, int]:
    """Batch a primitive: the new axis joins the second axis if only the first operand has it, and G otherwise."""
    x, kernel = operands
    if axes[1] is not None or axes[0] is None:
        return by_groups(primitive, operands, axes, **parameters)
    x = jnp.moveaxis(x, axes[0], 1)
    y = primitive.bind(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel, **parameters)
    return y.reshape(*x.shape[:3], *y.shape[2:]), 1


def by_groups(
    primitive: Primitive, operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], **parameters: Window | bool
) -> tuple[jax.Array, int]:
    """Batch a primitive: the new axis becomes part of G, the first axis."""
    size = next(a.shape[axis] for a, axis in zip(operands, axes, strict=True) if axis is not None)
    first = [
        jnp.broadcast_to(a, (size, *a.shape)) if axis is None else jnp.moveaxis(a, axis, 0)
        for a, axis in zip(operands, axes, strict=True)
    ]
    out = primitive.bind(*(a.reshape(-1, *a.shape[2:]) for a in first), **parameters)
    return out.reshape(size, len(out) // size, *out.shape[1:]), 0
