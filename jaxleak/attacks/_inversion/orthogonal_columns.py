"""Factors of a dense layer's gradient, and vectors orthogonal to as many rows of the left factor as possible."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.models import Classifier

#: Sines up to which rows count as nearly orthogonal: the range of the first one in a descent, and the last one.
_FIRST_WIDTHS, _LAST_WIDTH = (0.05, 0.5), 1e-3
#: Sine of the angle below which an output's row counts as orthogonal to a drawn column, and sine of the angle below
#: which a column counts as dependent on others.
_NEARLY, DEPENDENT = 3e-3, 1e-2
#: Relative size below which an output counts as off for all images, and one below which a singular value is rounding.
_OFF, _ROUNDING = 1e-6, 3e-6
#: How often outputs are weighted anew by how far they are from zero, and the sine of the angle of rounding there.
_REWEIGHTED, _NOISE = 4, 1e-5


class Factors(NamedTuple):
    """Factors of the layer's gradient, for the outputs that at least one image turns on."""

    left: jax.Array  # (m, B) orthonormal columns
    right: jax.Array  # (B, k), so that left @ right is the kernel's gradient (m, k)
    bias: jax.Array  # (m,) the bias's gradient
    live: jax.Array  # (m,) bool, outputs that are on for some image
    rank: jax.Array  # () int32, at most B; -1 before the first observation

    @property
    def directions(self) -> jax.Array:
        """(m, B) the rows of `left`, each of length one."""
        lengths = jnp.linalg.norm(self.left, axis=1, keepdims=True)
        return self.left / jnp.where(lengths > 0, lengths, 1)


def factors_of(model: Classifier, payload: PyTree, layer: str, batch_size: int) -> Factors:
    """Factors of rank B of the gradient of the layer's kernel, and which outputs are on for some image."""
    gradients = named_leaves(payload)
    gradient = model.matrix(layer, gradients[layer]).T  # (m, k)
    sizes = jnp.linalg.norm(gradient, axis=1)
    live = sizes > _OFF * sizes.max()
    left, singular, right = jnp.linalg.svd(gradient, full_matrices=False)
    left = jnp.where(live[:, None], left[:, :batch_size], 0)
    return Factors(
        left,
        singular[:batch_size, None] * right[:batch_size],
        gradients[model.bias_of(layer)].reshape(-1),
        live,
        (singular[:batch_size] > _ROUNDING * singular[0]).sum(),
    )


def drawn_columns(factors: Factors, key: jax.Array, reweighted: int, *, draws: int) -> tuple[jax.Array, jax.Array]:
    """Unit vectors (draws, B), and the number (draws,) of live rows to which each is orthogonal.

    Each vector begins as the one orthogonal to B - 1 drawn rows. If these rows leave more than one such vector and
    `reweighted` is 0, the number is -1.
    """
    outputs, size = factors.left.shape
    directions = factors.directions
    of_rows, of_widths = jax.random.split(key)
    order = jax.random.uniform(of_rows, (draws, outputs)) + jnp.where(factors.live, 0.0, 1.0)
    chosen = jax.lax.top_k(-order, size - 1)[1]
    q, r = jnp.linalg.qr(jnp.swapaxes(directions[chosen], 1, 2), mode="complete")
    columns = q[:, :, -1]
    pivots = jnp.abs(jnp.diagonal(r, axis1=1, axis2=2)).min(axis=1)
    if not reweighted:
        return columns, jnp.where(pivots > DEPENDENT, off_by(factors, columns).sum(axis=1), -1)
    low, high = (math.log(width) for width in _FIRST_WIDTHS)
    first = jax.random.uniform(of_widths, (draws, 1), minval=low, maxval=high)

    def nearer(columns: jax.Array, done: jax.Array) -> tuple[jax.Array, None]:
        width = jnp.exp(first + done * (math.log(_LAST_WIDTH) - first))
        weights = factors.live / ((columns @ directions.T) ** 2 + width**2)
        moments = jnp.einsum("nj,ja,jb->nab", weights, directions, directions)
        return jnp.linalg.eigh(moments)[1][:, :, 0], None

    columns, _ = jax.lax.scan(nearer, columns, jnp.linspace(0.0, 1.0, reweighted))
    return columns, off_by(factors, columns).sum(axis=1)


def solution(factors: Factors, off: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The layer's inputs (B, k), and the loss gradients (B, m) at its outputs, which are zero for outputs that are off.

    A few outputs that are marked as off by mistake do little harm: an output counts the less, the further it is from
    zero.
    """

    def orthogonal(weights: jax.Array) -> jax.Array:  # (B, m) -> (B, B), by rows
        return jnp.linalg.svd(factors.left * weights[:, :, None], full_matrices=False)[2][:, -1]

    weights, directions = off.astype(factors.left.dtype), factors.directions
    for _ in range(_REWEIGHTED):
        sines = orthogonal(weights) @ directions.T
        weights = off / jnp.sqrt(1 + (sines / _NOISE) ** 2)
    q = orthogonal(weights).T
    lengths = jnp.linalg.lstsq(factors.left @ q, factors.bias)[0]
    q = q * lengths
    return jnp.linalg.solve(q, factors.right), (factors.left @ q).T


def off_by(factors: Factors, columns: jax.Array) -> jax.Array:
    """(B, m) bool, outputs that are off according to the columns (B, B), some of them perhaps by chance."""
    return (jnp.abs(columns @ factors.directions.T) < _NEARLY) & factors.live
