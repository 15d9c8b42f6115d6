"""A distance between images and a gradient that needs no backward pass."""

import jax
import jax.numpy as jnp


def row_space_distance(rows: jax.Array, gradient: jax.Array, *, ridge: jax.Array | float, centred: bool) -> jax.Array:
    """How much of a kernel's gradient cannot come from these inputs, whatever has come back from the layers above.

    The gradient of a linear layer's kernel is P^T D: P holds what the layer read, a row per output pixel, and D the
    gradient of its outputs. D depends on everything above, through every kink of the network and twice through its
    statistics. Left free, it is the solution of a least-squares problem, and what remains,

        min over D of |G - P^T D|^2 / |G|^2,

    depends on the forward pass below the layer alone: variable projection (G. Golub and V. Pereyra, *SIAM Journal on
    Numerical Analysis* 10, 1973). It is informative if P has fewer rows than columns. That gradients of dense layers
    span the space of their inputs is used by L. Fowl et al. (ICLR 2022), S. Kariyappa et al. (ICML 2023) and D.
    Dimitrov et al. (*SPEAR*, NeurIPS 2024); I. Petrov et al. (*DAGER*, NeurIPS 2024) check tokens by it.

    Args:
        rows: P (n, k), n < k.
        gradient: G (k, channels), of any scale, which does not matter.
        ridge: scalar > 0, added to P P^T in units of its mean diagonal; the larger, the further the distance sees, and
            the less exactly it is zero at the truth.
        centred: whether the columns of D sum to zero, as they do where batch statistics normalise the layer's outputs;
            then only the rows' differences from their mean count.

    Returns:
        () in [0, 1]; 0 means that the gradient is explained. A gradient of zeros has 1: it says nothing.
    """
    if centred:
        rows = rows - rows.mean(axis=0)
    gram = rows @ rows.T
    size = jnp.trace(gram) / len(gram) + jnp.finfo(gram.dtype).tiny
    factor = jax.scipy.linalg.cho_factor(gram / size + ridge * jnp.eye(len(gram)))
    seen = rows @ gradient / jnp.sqrt(size)
    explained = jnp.vdot(seen, jax.scipy.linalg.cho_solve(factor, seen))
    return 1 - explained / (jnp.vdot(gradient, gradient) + jnp.finfo(gram.dtype).tiny)
