"""What horizontal rounds hide when every worker has a fixed share of the batch, and how ReLU zeros reveal it.

When every round takes exactly k_m samples from worker m, adding a constant c_m to all rows of V that belong to worker
m changes no observed sum as long as sum_m k_m c_m = 0: the incidence matrix has rank N - (M - 1) only. Least squares
then returns V up to such shifts, one per worker and hidden unit. (The CAFE papers do not mention this null space.)

But a hidden unit that is inactive for a sample gives that entry of V the exact value zero. Within one worker's rows of
one unit the shifted zeros all coincide, so the most crowded value of the column is the shift.
"""

import jax
import jax.numpy as jnp

#: Share of a worker's samples that must agree on a value before it counts as the shifted zero.
CROWD = 0.1
#: Smallest number of samples that make a crowd; every worker must have at least as many.
SMALLEST_CROWD = 3

#: How closely these samples must agree, relative to the largest entry of V.
AGREEMENT = 1e-5


def fix_worker_gauge(v: jax.Array, workers: int) -> tuple[jax.Array, jax.Array]:
    """Remove the per-worker shifts from V.

    Args:
        v: (N, P, d2) with worker m's samples in rows m N/M to (m+1) N/M - 1; N/M >= `SMALLEST_CROWD`.
        workers: number M of workers.

    Returns:
        (V (N, P, d2), resolved (P, d2)). A unit is resolved when every worker's block has a crowd of zeros; the
        entries of unresolved units are set to zero, so that Step II does not use them.
    """
    blocks = v.reshape(workers, -1, *v.shape[1:])
    ordered = jnp.sort(blocks, axis=1)
    crowd = max(SMALLEST_CROWD, int(CROWD * blocks.shape[1]))
    width = ordered[:, crowd - 1 :] - ordered[:, : ordered.shape[1] - crowd + 1]
    narrowest = jnp.argmin(width, axis=1, keepdims=True)
    low = jnp.take_along_axis(ordered, narrowest, axis=1)
    high = jnp.take_along_axis(ordered, narrowest + crowd - 1, axis=1)
    shift = (low + high) / 2
    tight = (high - low)[:, 0] <= AGREEMENT * jnp.abs(v).max()
    resolved = jnp.all(tight, axis=0)
    return jnp.where(resolved, blocks - shift, 0.0).reshape(v.shape), resolved
