"""A distance between candidate images and an observed gradient that needs no backward pass."""

import jax
import jax.numpy as jnp


def row_space_distance(rows: jax.Array, gradient: jax.Array, *, ridge: jax.Array | float, centred: bool) -> jax.Array:
    """The share of a kernel's gradient that these inputs cannot explain, whatever the layers above send back.

    The gradient of a linear layer's kernel is P^T D. P holds the layer's inputs, one row per output pixel, and D is the
    gradient of its outputs. D depends on all layers above, through every kink of the network and twice through its
    statistics. Here D is left free and replaced by the solution of a least-squares problem. The residual

        min over D of |G - P^T D|^2 / |G|^2,

    then depends only on the forward pass below the layer. This is variable projection (G. Golub and V. Pereyra, *SIAM
    Journal on Numerical Analysis* 10, 1973). It is informative if P has fewer rows than columns. Others have used that
    gradients of dense layers span the space of their inputs: L. Fowl et al. (ICLR 2022), S. Kariyappa et al. (ICML
    2023), D. Dimitrov et al. (*SPEAR*, NeurIPS 2024), and I. Petrov et al. (*DAGER*, NeurIPS 2024), who check tokens
    this way.

    Args:
        rows: P (n, k), n < k.
        gradient: G (k, channels); its scale does not matter.
        ridge: scalar > 0, added to the diagonal of P P^T, in units of the mean diagonal. A larger ridge makes the
            distance informative further from the truth, but leaves it less close to zero at the truth.
        centred: whether the columns of D sum to zero, as they do if batch statistics normalise the layer's outputs.
            Only the rows' differences from their mean count then.

    Returns:
        () in [0, 1]; 0 means that the inputs explain the gradient. A gradient of zeros, which carries no information,
        gives 1.
    """
    if centred:
        rows = rows - rows.mean(axis=0)
    gram = rows @ rows.T
    size = jnp.trace(gram) / len(gram) + jnp.finfo(gram.dtype).tiny
    factor = jax.scipy.linalg.cho_factor(gram / size + ridge * jnp.eye(len(gram)))
    seen = rows @ gradient / jnp.sqrt(size)
    explained = jnp.vdot(seen, jax.scipy.linalg.cho_solve(factor, seen))
    return 1 - explained / (jnp.vdot(gradient, gradient) + jnp.finfo(gram.dtype).tiny)
