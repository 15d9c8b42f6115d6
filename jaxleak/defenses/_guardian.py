"""Guardian (Fan et al., WSDM 2024), rebuilt from published descriptions of it."""

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Loss, PyTree
from jaxleak.defenses._base import Defense, map_with_keys, stateless
from jaxleak.defenses._representation import needs_batch, needs_labels
from jaxleak.defenses.mechanisms import Mechanism, PrivateNoise
from jaxleak.models._classifier import BatchNormMode, Classifier
from jaxleak.objectives import cross_entropy


def guardian(beta: float, *, probes: int = 8, loss: Loss | None = None) -> Defense:
    """Perturb the gradient entries that give the most privacy for their cost in performance.

    **This is not the authors' algorithm, whose formulas we do not have.** We know only the abstract ("transformed
    gradients by jointly optimizing two theoretically-derived metrics for performance maintenance and privacy
    protection"), and that FedLeak (2025) counts it among the defenses which "selectively perturb the most
    cost-effective gradient elements" and sweeps beta from 0.1 to 1000. We built the closest problem that we could from
    this. With e the change of the gradient g, it chooses e by

        minimise  sum_i u_i - beta * sum_i s_i log(1 + u_i),    u_i = e_i^2 / mean(g^2)

    * performance: the squared distance to the true gradient, which bounds what a step of descent loses;
    * privacy: s_i = ||dg_i/dx||^2, normalised to mean one, is how far the data have to move to explain a change of
      entry i; the logarithm says that hiding an entry twice is not worth twice as much.

    The minimum has a closed form, u_i = max(0, beta s_i - 1): entries below s_i = 1 / beta stay untouched. Signs are
    drawn at random, because the objective does not depend on them. We assume that beta weighs privacy, and not
    performance.

    s is estimated by random probes, the mean of (dg/dx v)^2 over Rademacher vectors v, which is unbiased.

    Args:
        beta: >= 0; up to 1 / max(s) it is the identity, 0 always is.
        probes: number of probes >= 1, each one derivative of the gradient in a direction of x.
        loss: `(logits (B, C), y) -> ()` that g is the gradient of, with the labels of `protocols.ClientShare`'s loss;
            None is the client's, which protocols pass on, or else the mean cross-entropy.

    Returns:
        A `Defense` at "representation" that needs the keywords `model`, `variables`, `x` and `y`. For a model update of
        several steps s is still that of the gradient at `variables`.

    Raises:
        ValueError: on values out of range; when applied without those keywords.
    """
    _validate.non_negative(beta=beta)
    _validate.count(probes=probes)
    chosen = loss

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        model: Classifier | None = None,
        variables: PyTree = None,
        x: jax.Array | None = None,
        y: jax.Array | None = None,
        mode: BatchNormMode = "train",
        loss: Loss | None = None,
        **extra: object,
    ) -> PyTree:
        del extra
        model, x = needs_batch("guardian", model, variables, x)
        y = needs_labels("guardian", y)
        probe_key, sign_key = jax.random.split(key)
        s = sensitivities(probe_key, model, variables, x, y, probes=probes, loss=chosen or loss, mode=mode)
        scale, mean_s = _root_mean_square(payload), _mean(s)

        def perturb(k: jax.Array, leaf: jax.Array, of_leaf: jax.Array) -> jax.Array:
            relative = of_leaf / jnp.where(mean_s > 0, mean_s, 1.0)
            size = scale * jnp.sqrt(jnp.maximum(beta * relative - 1, 0.0))
            return leaf + size * jax.random.rademacher(k, leaf.shape, leaf.dtype)

        return map_with_keys(perturb, sign_key, payload, s)

    return stateless("representation", update, mechanism=Mechanism(noise=PrivateNoise() if beta else None))


def sensitivities(
    key: jax.Array,
    model: Classifier,
    variables: PyTree,
    x: jax.Array,
    y: jax.Array,
    *,
    probes: int,
    loss: Loss | None = None,
    mode: BatchNormMode = "train",
) -> PyTree:
    """||dg_i/dx||^2 for every entry of the parameters' gradient g, estimated without bias.

    Args:
        key: random key of the probes.
        model: the model whose gradient it is.
        variables: the model's parameters and statistics.
        x: (B, H, W, channels).
        y: (B,) integers or (B, C) probabilities.
        probes: >= 1.
        loss: `(logits (B, C), y) -> ()`; None is the mean cross-entropy.
        mode: how batch normalisation computes, "train" or "eval".

    Returns:
        A tree like `variables["params"]`.
    """

    def gradient(images: jax.Array) -> PyTree:
        def objective(params: PyTree) -> jax.Array:
            logits = model.apply({**variables, "params": params}, images, mode=mode).logits
            return (cross_entropy if loss is None else loss)(logits, y)

        return jax.grad(objective)(variables["params"])

    def add_probe(total: PyTree, k: jax.Array) -> tuple[PyTree, None]:
        direction = jax.random.rademacher(k, x.shape, x.dtype)
        _, change = jax.jvp(gradient, (x,), (direction,))
        return jax.tree.map(lambda t, c: t + c**2 / probes, total, change), None

    start = jax.tree.map(jnp.zeros_like, variables["params"])
    return jax.lax.scan(add_probe, start, jax.random.split(key, probes))[0]


def _mean(tree: PyTree) -> jax.Array:
    leaves = jax.tree.leaves(tree)
    return sum((leaf.sum() for leaf in leaves), jnp.zeros(())) / sum(leaf.size for leaf in leaves)


def _root_mean_square(tree: PyTree) -> jax.Array:
    return jnp.sqrt(_mean(jax.tree.map(jnp.square, tree)))
