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
        name: of the primitive; the other one's ends in "_by_kernel".
        convolve: (G, B, H, W, C) and (G, kh, kw, C, O) to (G, B, H, W, O), G convolutions side by side; or its adjoint,
            (G, B, H, W, O) and the same kernel to (G, B, H, W, C), which an algorithm may have without a copy of the
            kernel.
        correlate: the derivative of `<y, convolve(x, kernel)>` by the kernel, from x, y and (kh, kw).

    Returns:
        A function of (B, H, W, C) and (kh, kw, C, O), kh and kw odd, to (B, H, W, O).
    """
    conv, correlation = Primitive(name), Primitive(name + "_by_kernel")

    def by_image(x: jax.Array, kernel: jax.Array, *, adjoint: bool) -> jax.Array:
        return convolve(x, kernel, adjoint)

    conv.def_impl(by_image)
    conv.def_abstract_eval(
        lambda x, kernel, adjoint: x.update(shape=(*x.shape[:-1], kernel.shape[3 if adjoint else 4]))
    )
    mlir.register_lowering(conv, mlir.lower_fun(by_image, multiple_results=False))

    def by_kernel(x: jax.Array, y: jax.Array, *, window: Window) -> jax.Array:
        return correlate(x, y, window)

    correlation.def_impl(by_kernel)
    correlation.def_abstract_eval(lambda x, y, window: x.update(shape=(x.shape[0], *window, x.shape[-1], y.shape[-1])))
    mlir.register_lowering(correlation, mlir.lower_fun(by_kernel, multiple_results=False))

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

    def batched(
        operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], *, adjoint: bool
    ) -> tuple[jax.Array, int]:
        x, kernel = operands
        if axes[1] is None and axes[0] is not None:  # one kernel for all: more images
            x = jnp.moveaxis(x, axes[0], 1)
            y = conv.bind(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel, adjoint=adjoint)
            return y.reshape(*x.shape[:-1], y.shape[-1]), 1
        return by_groups(conv, operands, axes, adjoint=adjoint)

    batching.primitive_batchers[conv] = batched
    batching.primitive_batchers[correlation] = functools.partial(by_groups, correlation)
    return lambda x, kernel: conv.bind(x[None], kernel[None], adjoint=False)[0]


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
    return out.reshape(size, -1, *out.shape[1:]), 0
