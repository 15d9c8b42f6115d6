"""Peel the dense layers off a single image's gradient, and invert what is left of the network.

For one sample, a dense layer u = W^T h + b has the gradients db = dL/du and dW = h db^T, so its inputs are h = dW db /
|db|^2 whatever lies above, and dL/dh = W db is known as well. The gradients of the layers below are then those of the
scalar product <h(x), dL/dh>: labels, loss and upper layers no longer matter, and h itself is one more equation. Aono et
al., *Privacy-preserving deep learning via additively homomorphic encryption*, 2017, show that a dense layer gives its
inputs away. Inverting the layers below from h and dL/dh is ours.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Batch, Observation, PyTree
from jaxleak._tree import named_leaves
from jaxleak.attacks._inversion.affine import LARGEST, by_pixel, images_of
from jaxleak.attacks._inversion.rows import sizes_of_all_rows
from jaxleak.models import Classifier, Outputs
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BatchNormMode

#: Name of the pseudo-parameter that stands for dL/dh, and whose gradient is h.
CUT = "cut"
#: Relative misfit, on a simulated image, above which the layer is no cut through the network.
_CUT_BELOW = 1e-3


class PeeledShare:
    """The gradient of `<h(x), cut>` with respect to the layers below and to the cut: a payload like any other."""

    def __init__(self, model: Classifier, batch_norm: BatchNormMode):
        """`model` is that of `Peeled`."""
        self.model, self.batch_norm = model, batch_norm
        self.local_steps = self.clients = 1

    def __call__(self, params: PyTree, batch: Batch, *, sharpness: Sharpness = None) -> PyTree:
        """The payload of a batch of one image; `params` are the variables of the peeled model."""

        def product(weights: PyTree) -> jax.Array:
            out = self.model.apply(
                {**params, "params": weights}, batch.x[:, 0], mode=self.batch_norm, sharpness=sharpness
            )
            return jnp.vdot(out.logits[0], weights[CUT])

        return jax.grad(product)(params["params"])


class Peeled(NamedTuple):
    """What is left of a network and of its update below one dense layer."""

    model: Classifier  # a network whose "logits" are the inputs of that layer
    share: PeeledShare
    observation: Observation
    layer: str  # the name of the dense layer's kernel


def dense_inputs(kernel_gradient: jax.Array, bias_gradient: jax.Array) -> jax.Array:
    """The inputs (k,) of a dense layer from one sample's gradients (k, m) and (m,)."""
    # The square of a small gradient, such as that of a confident network, would be zero in float32.
    size = jnp.max(jnp.abs(bias_gradient))
    direction = bias_gradient / size
    return kernel_gradient / size @ direction / jnp.vdot(direction, direction)


def misfit_of_one_sample(model: Classifier, payload: PyTree, layer: str) -> float:
    """How far a dense kernel's gradient is from `h db^T`, relative to the gradient's norm; 0 in theory if B = 1.

    One sample's gradient has this form for every loss, whatever a client does to the layers above. A second sample,
    noise or rounding to few values destroys the form.

    Args:
        model: the network.
        payload: a gradient, with the layer's kernel and bias.
        layer: name of the kernel, as `Peeled.layer`.
    """
    gradients = named_leaves(payload)
    kernel, db = model.matrix(layer, gradients[layer]), _bias(model, gradients, layer)
    rest, size = kernel - jnp.outer(dense_inputs(kernel, db), db), float(jnp.linalg.norm(kernel))
    return float(jnp.linalg.norm(rest)) / size if size else 0.0  # a kernel's gradient is zero if all inputs are


def _bias(model: Classifier, leaves: dict[str, jax.Array], layer: str) -> jax.Array:
    """The leaf of the layer's bias as (m,); a single output's bias may be stored as a number."""
    return leaves[model.bias_of(layer)].reshape(-1)


def peel(model: Classifier, observation: Observation, *, batch_norm: BatchNormMode, key: jax.Array) -> Peeled | None:
    """Everything below the first dense layer with a bias, for the gradient of one image.

    Args:
        model: the network.
        observation: with params and payload of one sample and one local step.
        batch_norm: mode of the client's normalisation.
        key: random key of the image on which cuts are tested.

    Returns:
        The network below that layer. None if no dense layer has a bias with a nonzero gradient, or if none of them is a
        cut: for each, results of the layers below also reach the layers above on a path around its inputs.
    """
    variables, payload = observation.params, observation.payload
    gradients = named_leaves(payload)
    dense = [name for name, (count, _) in sizes_of_all_rows(model, 1, batch_norm).items() if count == 1]
    for layer in dense:
        if model.bias_of(layer) not in gradients or not jnp.any(_bias(model, gradients, layer)):
            continue
        below = _below(model, variables, layer, batch_norm, key)
        if below is not None:
            small = _truncated(model, layer, below, variables)
            seen = _cut(model, variables, payload, layer, below)
            return Peeled(
                small, PeeledShare(small, batch_norm), observation._replace(params=seen[0], payload=seen[1]), layer
            )
    return None


def _cut(
    model: Classifier, variables: PyTree, payload: PyTree, layer: str, below: tuple[str, ...]
) -> tuple[PyTree, PyTree]:
    """Variables and payload of the peeled model, scaled so that both kinds of equations have the same L1 norm."""
    weights, gradients = named_leaves(variables["params"]), named_leaves(payload)
    db = _bias(model, gradients, layer)
    h = dense_inputs(model.matrix(layer, gradients[layer]), db)
    mass = sum((jnp.sum(jnp.abs(gradients[name])) for name in below), jnp.zeros(()))
    scale = jnp.where(mass > 0, jnp.sum(jnp.abs(h)) / jnp.where(mass > 0, mass, 1.0), 1.0)
    params = {name: weights[name] for name in below} | {CUT: scale * (model.matrix(layer, weights[layer]) @ db)}
    return {**variables, "params": params}, {name: scale * gradients[name] for name in below} | {CUT: h}


def _below(
    model: Classifier, variables: PyTree, layer: str, mode: BatchNormMode, key: jax.Array
) -> tuple[str, ...] | None:
    """The leaves on which the layer's inputs depend, or None if they also reach the loss around these inputs.

    A parallel branch with leaves of its own does no harm: the equations of the leaves below the layer stay true.
    """
    x = jax.random.uniform(key, (1, *model.image_shape))

    def loss(params: PyTree) -> jax.Array:
        return -jax.nn.log_softmax(model.apply({**variables, "params": params}, x, mode=mode).logits)[0, 0]

    def inputs(params: PyTree) -> jax.Array:
        return model.rows({**variables, "params": params}, x, mode=mode)[layer][0]

    @jax.jit
    def both(params: PyTree) -> tuple[PyTree, PyTree]:
        gradient = jax.grad(loss)(params)
        db = _bias(model, named_leaves(gradient), layer)
        slope = jax.lax.stop_gradient(model.matrix(layer, named_leaves(params)[layer]) @ db)
        return gradient, jax.grad(lambda p: jnp.vdot(inputs(p), slope))(params)

    true, peeled = (named_leaves(tree) for tree in both(variables["params"]))
    names = tuple(name for name, leaf in peeled.items() if jnp.any(leaf != 0))
    error = sum(float(jnp.sum((true[name] - peeled[name]) ** 2)) for name in names)
    size = sum(float(jnp.sum(true[name] ** 2)) for name in names)
    return names if error <= _CUT_BELOW**2 * size else None


def _truncated(model: Classifier, layer: str, below: tuple[str, ...], observed: PyTree) -> Classifier:
    """The network up to the inputs of `layer`, with parameters by name; missing ones are as in `observed`."""
    names = list(named_leaves(observed["params"]))
    structure = jax.tree.structure(observed["params"])

    def whole(given: PyTree) -> PyTree:
        own = named_leaves(observed["params"])
        leaves = [given["params"].get(name, own[name]) for name in names]
        return {**given, "params": jax.tree.unflatten(structure, leaves)}

    def apply(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
    ) -> Outputs:
        h = model.rows(whole(variables), x, mode=mode, sharpness=sharpness)[layer]
        return Outputs(h, h, (), {}, variables.get("batch_stats"))

    def init(key: jax.Array) -> PyTree:
        drawn = model.init(key)
        params = {name: leaf for name, leaf in named_leaves(drawn["params"]).items() if name in below}
        size = model.matrix(layer, named_leaves(drawn["params"])[layer]).shape[0]
        return {**drawn, "params": params | {CUT: jnp.zeros(size)}}

    def rows(given: PyTree, x: jax.Array, **options: Any) -> dict[str, jax.Array]:
        return model.rows(whole(given), x, **options)

    return model._replace(apply=apply, init=init, rows=rows, head=CUT, head_leaves=(CUT,))


def affine_solution(peeled: Peeled) -> jax.Array | None:
    """The image (H, W, channels) behind the observed inputs of the layer, if they are an affine map of the image.

    Args:
        peeled: what `peel` returned.

    Returns:
        The only image with these inputs, or None if other images have them too, or the map is not affine or too large
        to invert.
    """
    model, seen = peeled.model, peeled.observation
    shape = model.image_shape
    observed = seen.payload[CUT]
    if set(seen.params["params"]) != {CUT} or observed.size < jnp.zeros(shape).size:
        return None

    @jax.jit
    def inputs(x: jax.Array) -> jax.Array:
        return model.apply(seen.params, x[None], mode=peeled.share.batch_norm).logits[0]

    one_by_one = by_pixel(inputs, shape)
    if not one_by_one and math.prod(shape) > LARGEST:
        return None
    (x,), unique = jax.jit(lambda h: images_of(inputs, shape, h[None], one_by_one=one_by_one))(observed)
    misfit = jnp.linalg.norm(inputs(x) - observed) / jnp.linalg.norm(observed)
    return x if unique and misfit < _CUT_BELOW else None
