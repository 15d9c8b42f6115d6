"""Labels from recovered gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Loss, PyTree
from jaxleak.models import SplitModel
from jaxleak.objectives import cross_entropy


def recover_labels(
    model: SplitModel,
    params: PyTree,
    v: np.ndarray,
    h: np.ndarray,
    live: np.ndarray,
    resolved: np.ndarray,
    batch_size: int,
    *,
    loss: Loss = cross_entropy,
    chunk: int = 256,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels in closed form: for every sample the label whose gradient at the first dense layer is the recovered one.

    If h_n is known, the network behind the first dense layer can be run. Then v_n = (1/K) dL/du_n differs between
    labels only through the loss, and the label with the smallest misfit over live slices is chosen. A slice without
    features enters the forward pass with zeros.

    Args:
        model: the model under attack.
        params: the model's frozen parameters.
        v: (N, P, d2), recovered (1/K) dL/du.
        h: (N, P, d1), recovered inputs of the first dense layer.
        live: (N, P) bool, slices that send a gradient back.
        resolved: (d2,) or (P, d2) bool, entries of v that are determined.
        batch_size: batch size K of the rounds.
        loss: the clients' loss, a function of logits and labels.
        chunk: samples that are computed at once; the results do not depend on it.

    Returns:
        Labels (N,), the best label's relative misfit (N,), and the second best label's misfit over the best's (N,).
    """

    def one(inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        v_n, h_n, live_n = inputs
        u = model.pre_activations(params, h_n[None])

        def predicted(label: jax.Array) -> jax.Array:
            return jax.grad(lambda u: loss(model.rest(params, u), label[None]))(u)[0] / batch_size

        weight = live_n[:, None] & resolved
        candidates = jax.vmap(predicted)(jnp.arange(model.num_classes))
        misfits = jnp.sqrt(jnp.sum(jnp.where(weight, candidates - v_n, 0.0) ** 2, axis=(1, 2)))
        size = jnp.sqrt(jnp.sum(jnp.where(weight, v_n, 0.0) ** 2))
        best_two = jax.lax.top_k(-misfits, 2)
        tiny = jnp.finfo(v_n.dtype).tiny
        best, second = -best_two[0][0], -best_two[0][1]
        return best_two[1][0].astype(jnp.int32), best / (size + tiny), second / (best + tiny)

    run = jax.jit(lambda args: jax.lax.map(one, args, batch_size=chunk))
    labels, misfit, margin = run((jnp.asarray(v), jnp.asarray(h), jnp.asarray(live)))
    return np.asarray(labels), np.asarray(misfit), np.asarray(margin)


def true_output_gradients(
    model: SplitModel,
    params: PyTree,
    h: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    *,
    loss: Loss = cross_entropy,
    chunk: int = 256,
) -> np.ndarray:
    """V (N, P, d2) = (1/K) dL/du_n from features and labels; Step I is scored against V from the true ones.

    Arguments as in `recover_labels`.
    """

    def one(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        h_n, label = inputs
        u = model.pre_activations(params, h_n[None])
        return jax.grad(lambda u: loss(model.rest(params, u), label[None]))(u)[0] / batch_size

    return np.asarray(
        jax.jit(lambda args: jax.lax.map(one, args, batch_size=chunk))((jnp.asarray(h), jnp.asarray(labels)))
    )
