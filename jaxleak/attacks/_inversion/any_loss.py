"""The data term of an inversion that knows neither the client's loss nor the labels.

The gradient of a loss over B samples is the sum over b of J_b^T d_b. Here J_b are the derivatives of sample b's outputs
z_b (C,) with respect to the weights, and d_b (C,) are those of the loss with respect to z_b. The loss, the labels,
class weights and the reduction enter through the d_b alone. The last dense layer z_b = W^T h_b + c has the gradients dW
= sum_b h_b d_b^T and dc = sum_b d_b. The candidate images determine the h_b, so these are linear equations for the d_b.
The data term uses their least-squares solution as the d_b, and only the images are left to search (variable projection:
Golub and Pereyra, *The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
separate*, 1973). That an inversion then needs neither the loss nor labels is ours. The loss must depend on the outputs
alone: if it also reads features or weights, its gradient has another form.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from jaxleak import _validate
from jaxleak._base import Batch, BatchNormMode, Observation, PyTree, Share, TransformedShare, total_steps
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.gradient_term import Gradients
from jaxleak.attacks._inversion.rows import sizes_of_all_rows
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.objectives import Distance

#: Name of the collection, beside the weights, that holds the observed gradient of the last dense layer.
_SEEN = "seen_head"
#: Weight of the ridge that keeps the equations solvable if candidates have the same features, as random candidates
#: nearly do. With 0.1 the solutions for d were too small; with 0.01 or less nothing changed.
_RIDGE = 1e-3


class AnyLossShare:
    """`share(params, batch) -> payload` for a client whose loss and labels are those that fit the last layer best.

    Its `params` come from `seen_by_any_loss`. It does not read the labels of the batch.
    """

    def __init__(self, model: Classifier, batch_norm: BatchNormMode, ridge: float = _RIDGE):
        """State what the client computes.

        Args:
            model: a network with a last dense layer.
            batch_norm: mode of the client's normalisation.
            ridge: > 0, relative to the root mean square of the features' norms.
        """
        self.model, self.batch_norm, self.ridge = model, batch_norm, ridge
        self.local_steps = self.clients = 1

    def __call__(self, params: PyTree, batch: Batch, *, sharpness: Sharpness = None) -> PyTree:
        """The gradient of images x (B, 1, H, W, channels) under the loss that fits."""
        variables = {name: tree for name, tree in params.items() if name != _SEEN}

        def outputs(weights: PyTree) -> tuple[jax.Array, jax.Array]:
            known, x = {**variables, "params": weights}, batch.x[:, 0]
            features = self.model.rows(known, x, mode=self.batch_norm, sharpness=sharpness)[self.model.head_names[0]]
            return self.model.apply(known, x, mode=self.batch_norm, sharpness=sharpness).logits, features

        _, backward, features = jax.vjp(outputs, variables["params"], has_aux=True)
        (payload,) = backward(output_gradients(features, params[_SEEN], self.ridge))
        return payload


@functools.lru_cache(maxsize=8)  # the same object every time, so that nothing is compiled twice
def any_loss_share(model: Classifier, batch_norm: BatchNormMode, ridge: float = _RIDGE) -> AnyLossShare:
    """The share that simulates the client in a search without the loss, with the ridge of that search."""
    return AnyLossShare(model, batch_norm, ridge)


def output_gradients(features: jax.Array, seen: dict[str, jax.Array], ridge: float) -> jax.Array:
    """The derivatives (B, C) of the loss with respect to the outputs that fit the last layer's gradient best.

    Args:
        features: (B, D) inputs of the layer.
        seen: the layer's "kernel" gradient (D, C) and, where it has one, "bias" gradient (C,).
        ridge: > 0, relative to the root mean square of the features' norms.
    """
    size = features.shape[0]
    rows, given = [features.T], [seen["kernel"]]
    if "bias" in seen:
        rows, given = [*rows, jnp.ones((1, size))], [*given, seen["bias"][None]]
    left, right = jnp.concatenate(rows), jnp.concatenate(given)
    # Solve by QR of the equations and the ridge: normal equations would square the condition number in float32.
    weight = ridge * jnp.sqrt(jnp.sum(left**2) / size + jnp.finfo(left.dtype).tiny)
    q, r = jnp.linalg.qr(jnp.concatenate([left, weight * jnp.eye(size)]))
    return solve_triangular(r, q.T @ jnp.concatenate([right, jnp.zeros((size, right.shape[1]))]))


def seen_by_any_loss(model: Classifier, observation: Observation) -> Observation:
    """The observation as an `AnyLossShare` reads it, with the last layer's gradient beside the weights.

    Args:
        model: a network with a last dense layer.
        observation: with params, and a payload that holds the gradient of that layer.

    Raises:
        ValueError: if the network ends in no dense layer, or the payload lacks its gradient.
    """
    head = model.head_of(observation.payload, gradient=True)
    seen = {"kernel": head.kernel} if head.bias is None else {"kernel": head.kernel, "bias": head.bias}
    return observation._replace(params={**observation.params, _SEEN: seen})


class AnyLoss(NamedTuple):
    """Compare whole gradients of one local step, whatever the loss and the labels."""

    distance: Distance
    ridge: float = _RIDGE  # > 0, keeps the equations solvable where candidates have the same features

    @property
    def reads_labels(self) -> bool:
        """Labels are not read: their effect on the gradient is inferred from the last layer."""
        return False

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """The whole payload is compared."""
        del model, batch_size
        return None

    def term(self, setup: Setup) -> DataTerm:
        """The distance between the observed gradient and the candidate's gradient under the best-fitting loss.

        Raises:
            ValueError: on a ridge out of range, a client of several steps or clients, or a network whose last dense
                layer is not known or does not read one row of features per image.
        """
        _validate.positive(ridge=self.ridge)
        if why := why_not_any_loss(setup.model, setup.share, setup.batch_size):
            raise ValueError(f"AnyLoss does not apply: {why}")
        share = any_loss_share(setup.model, setup.mode, self.ridge)
        gradients = Gradients(self.distance).term(setup._replace(share=share))

        def compare(
            observation: Observation, x: jax.Array, y: jax.Array, mask: PyTree, sharpness: Sharpness
        ) -> Compared:
            return gradients.compare(seen_by_any_loss(setup.model, observation), x, y, mask, sharpness)

        def simulate(observation: Observation, x: jax.Array, sharpness: Sharpness) -> PyTree:
            batch = Batch(x[:, None], jnp.zeros(len(x), jnp.int32), jnp.arange(len(x)))  # the labels are not read
            return share(seen_by_any_loss(setup.model, observation).params, batch, sharpness=sharpness)

        return DataTerm(compare, gradients.matched_below, simulate)


def why_not_any_loss(model: Classifier, share: Share, batch_size: int) -> str:
    """The reason why images cannot be searched without the loss, or an empty string if they can.

    Args:
        model: the network.
        share: what the client ran.
        batch_size: B >= 1 images.
    """
    if isinstance(share, TransformedShare):
        return "it would leave out the defense, or whatever else changes what the client computes"
    if total_steps(share) * share.clients > 1:
        return "every step of every client has derivatives of its own, and the last layer's gradient is their sum"
    if not model.head:
        return "the network ends in no dense layer that is known"
    read = sizes_of_all_rows(model, batch_size).get(model.head_names[0])
    if read is None:
        return "the weights of the last dense layer are used elsewhere in the network as well"
    count, features = read
    if count != batch_size:
        return f"the last dense layer reads {count // batch_size} rows of features for each image"
    if features < batch_size:
        return f"the last dense layer reads {features} features, too few to tell {batch_size} images apart"
    return ""
