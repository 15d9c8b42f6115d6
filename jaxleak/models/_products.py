"""Products of matrices whose derivatives, to any order, are products in layouts that are fast on CPU.

The derivatives of a product are products with one side transposed. Automatic differentiation writes them in the order
in which it comes across them, often as the transpose of a product of two transposed matrices, which XLA:CPU runs slowly
inside a large step (benchmarks/README.md: "plain products"). Here the derivatives of three primitives are these
primitives again. Each is lowered to a layout that is fast; for A^T B the side that is cheaper to copy is first copied
in transposed order.
"""

import functools

import jax
from jax.interpreters import ad, batching

from jaxleak.models._bilinear import by_groups, by_rows, primitive_of


def contract(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    """Contract two arrays (G, ., .) along these axes, 1 or 2: one product of matrices per group."""
    if len(a) == 1:  # XLA is slower with a batch of one
        return jax.lax.dot_general(a[0], b[0], (((axis_a - 1,), (axis_b - 1,)), ((), ())))[None]
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((0,), (0,))))


def _rows_by_columns(a: jax.Array, b: jax.Array) -> jax.Array:
    """A B: (G, M, K) and (G, K, N) to (G, M, N)."""
    return contract(a, b, 2, 1)


def _rows_by_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """A B^T: (G, M, K) and (G, N, K) to (G, M, N)."""
    return contract(a, b, 2, 2)


def _columns_by_columns(a: jax.Array, b: jax.Array) -> jax.Array:
    """A^T B: (G, K, M) and (G, K, N) to (G, M, N)."""
    _, k, m = a.shape
    n = b.shape[2]
    if m * k <= n * (k + m):
        return _rows_by_columns(jax.lax.optimization_barrier(a.mT), b)
    # The barriers keep XLA from folding the transposes into the product again.
    return jax.lax.optimization_barrier(_rows_by_columns(jax.lax.optimization_barrier(b.mT), a)).mT


_nn = primitive_of("product", _rows_by_columns, lambda a, b: (*a.shape[:2], b.shape[2]))
_nt = primitive_of("product_rows_by_rows", _rows_by_rows, lambda a, b: (*a.shape[:2], b.shape[1]))
_tn = primitive_of("product_columns_by_columns", _columns_by_columns, lambda a, b: (a.shape[0], a.shape[2], b.shape[2]))

# Each rule maps the cotangent and both operands to a derivative: one by the first operand, one by the second.
ad.defbilinear(_nn, lambda y, _, b: _nt.bind(y, b), lambda y, a, _: _tn.bind(a, y))
ad.defbilinear(_nt, lambda y, _, b: _nn.bind(y, b), lambda y, a, _: _tn.bind(y, a))
ad.defbilinear(_tn, lambda y, _, b: _nt.bind(b, y), lambda y, a, _: _nn.bind(a, y))

batching.primitive_batchers[_nn] = functools.partial(by_rows, _nn)
batching.primitive_batchers[_nt] = functools.partial(by_rows, _nt)
batching.primitive_batchers[_tn] = functools.partial(by_groups, _tn)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """(..., K) and (K, N) to (..., N): A B, differentiable to any order, and batched, as this module says."""
    return _nn.bind(a.reshape(1, -1, a.shape[-1]), b[None]).reshape(*a.shape[:-1], -1)
