"""What makes an algorithm for convolutions differentiable to any order, and batched, without leaving the algorithm.

Fast algorithms transform images, kernels and outputs by linear maps. Automatic differentiation would transpose those
maps operation by operation, which XLA runs slowly: slices become paddings, products end in transposed layouts. So two
primitives carry their rules by hand: the convolution, and the correlation that is its derivative by the kernel. Both
are bilinear, and the derivatives of either are the other and itself.
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
    """A 2-D cross-correlation of stride 1 whose zeros around keep the size, by an algorithm of one's own.

    Args:
        name: what the primitive is called; the other one's ends in "_by_kernel".
        convolve: (G, B, H, W, C) and (G, kh, kw, C, O) to (G, B, H, W, O), G convolutions side by side; or its adjoint,
            (G, B, H, W, O) and the same kernel to (G, B, H, W, C), which an algorithm may have without a copy of the
            kernel.
        correlate: the derivative of `<y, convolve(x, kernel)>` by the kernel, from x, y and (kh, kw).

    Returns:
        A function of (B, H, W, C) and (kh, kw, C, O), kh and kw odd, to (B, H, W, O).
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

    # Cotangent and both operands, to the derivatives by the first and by the second.
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
    """One that is lowered to `function`; `shape` is that of its result, from the same arguments."""
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x, y, **parameters: x.update(shape=shape(x, y, **parameters)))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive


def by_rows(
    primitive: Primitive, operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], **parameters: Window | bool
) -> tuple[jax.Array, int]:
    """The new axis becomes part of the second one where only the first operand has it, else of G."""
    x, kernel = operands
    if axes[1] is not None or axes[0] is None:
        return by_groups(primitive, operands, axes, **parameters)
    x = jnp.moveaxis(x, axes[0], 1)
    y = primitive.bind(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel, **parameters)
    return y.reshape(*x.shape[:3], *y.shape[2:]), 1


def by_groups(
    primitive: Primitive, operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], **parameters: Window | bool
) -> tuple[jax.Array, int]:
    """The new axis becomes part of G."""
    size = next(a.shape[axis] for a, axis in zip(operands, axes, strict=True) if axis is not None)
    first = [
        jnp.broadcast_to(a, (size, *a.shape)) if axis is None else jnp.moveaxis(a, axis, 0)
        for a, axis in zip(operands, axes, strict=True)
    ]
    out = primitive.bind(*(a.reshape(-1, *a.shape[2:]) for a in first), **parameters)
    return out.reshape(size, len(out) // size, *out.shape[1:]), 0
