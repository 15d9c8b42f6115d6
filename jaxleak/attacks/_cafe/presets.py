"""CAFE as its two papers and its published code configure it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._tree import RowOptimizer
from jaxleak.attacks._cafe.three_steps import CafeOptimizers, CafeOptions
from jaxleak.objectives import cafe_objective, cosine


class CafeHyperparameters(NamedTuple):
    """One row of NeurIPS 2021, Table 9; the fields are options of `cafe`."""

    output_learning_rate: float
    feature_learning_rate: float
    data_learning_rate: float
    alpha: float
    beta: float
    gamma: float
    xi: float


#: NeurIPS 2021, Table 9: four parties, K = 40, batch ratio 0.05, nested loops.
TABLE9: dict[str, CafeHyperparameters] = {
    "cifar10": CafeHyperparameters(5e-3, 8e-3, 2e-2, 1e-2, 1e-4, 1e-3, 90.0),
    "mnist": CafeHyperparameters(1e-2, 1e-2, 1e-2, 1e-2, 1e-4, 1e-3, 25.0),
    "linnaeus5": CafeHyperparameters(5e-3, 5e-3, 1e-2, 1e-2, 1e-4, 1e-3, 110.0),
    "yale32": CafeHyperparameters(1e-2, 1e-2, 1e-2, 1e-2, 1e-4, 1e-3, 32.0),
}


def published_hyperparameters(dataset: str) -> CafeHyperparameters:
    """Table 9's row of a dataset: `CafeOptions(**published_hyperparameters("mnist")._asdict())`.

    Raises:
        ValueError: if the table has no such dataset.
    """
    _validate.one_of(sorted(TABLE9), dataset=dataset)
    return TABLE9[dataset]


def normalized_sgd(learning_rate: float) -> optax.GradientTransformation:
    """Normalised gradient descent (ICLR 2021, section 4.1): steps of length `learning_rate`, or 0 at gradient 0.

    CAFE applies it row by row, so every sample's gradient is normalised on its own. The paper does not say whether it
    normalises single samples or whole batches.
    """
    return optax.chain(optax.normalize_by_update_norm(eps=1e-20), optax.scale_by_learning_rate(learning_rate))


class TwiceCorrectedState(NamedTuple):
    """Moments per row, one counter for the whole table."""

    updates: jax.Array  # () int32
    mu: jax.Array  # (N, ...)
    nu: jax.Array  # (N, ...)


def twice_corrected_adam(
    learning_rate: float, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7
) -> RowOptimizer:
    """Adam as CAFE's published code has it: bias correction applied twice, with the count of all updates.

    The moments are corrected as usual, and then the learning rate is multiplied by sqrt(1 - b2^t) / (1 - b1^t) as well.
    The count t counts updates of the whole table, while a row's moments decay only when the row is in the batch.

    Args:
        learning_rate: learning rate, > 0.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        eps: added to the root of the second moment, > 0.
    """

    def init(table: jax.Array) -> TwiceCorrectedState:
        return TwiceCorrectedState(jnp.zeros((), jnp.int32), jnp.zeros_like(table), jnp.zeros_like(table))

    def update(
        grads: jax.Array, state: TwiceCorrectedState, table: jax.Array, index: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        t = state.updates + 1
        first, second = 1.0 - b1**t, 1.0 - b2**t
        mu = b1 * state.mu[index] + (1.0 - b1) * grads
        nu = b2 * state.nu[index] + (1.0 - b2) * grads**2
        step = learning_rate * jnp.sqrt(second) / first * (mu / first) / (jnp.sqrt(nu / second) + eps)
        state = TwiceCorrectedState(t, state.mu.at[index].set(mu), state.nu.at[index].set(nu))
        return table.at[index].add(-step), state

    return RowOptimizer(init, update)


#: CAFE as in its ICLR 2021 submission (equation 8, Algorithm 1): alpha = 1, normalised gradient descent. It works on
#: vertical models and, with one party, on horizontal ones (section 3.4). `inner_updates=10` is the submission's k for
#: attacks during training (section 4.4). The submission optimises the data in every iteration and does not say where
#: the true inputs of the first dense layer come from; here Steps I and II of the NeurIPS version run in every iteration
#: too (`switch=False`). The submission's Algorithm 1 also trains the model; here the protocol does that. No learning
#: rates, beta, gamma or xi are printed: the data's learning rate is 0.1 here, all others are the NeurIPS version's.
CAFE_ICLR = CafeOptions(
    loops="single", switch=False, optimizers=CafeOptimizers(data=normalized_sgd), data_learning_rate=0.1, alpha=1.0
)

#: CAFE as the authors' published code runs it on MNIST quadrants, quirks included. It is Algorithm 4 with all steps in
#: every iteration. V starts uniform in +-8e-4, H in [0, 0.08], data and label logits in [0, 1]. Step I is plain SGD at
#: 5e-3; Steps II and III are `twice_corrected_adam` at 1e-2. The data's loss is 1e-2 times the squared gradient
#: distance, plus 1e-3 times the representation distance, plus 1e-4 times the total variation while its mean per tile
#: exceeds 25. Pixels are not projected. The label variable never moves: the fused cross-entropy that the code
#: differentiates twice drops the gradient in the labels. Two quirks belong to the attacked model, so the caller chooses
#: them: the loss applies softmax twice (`loss=jaxleak.objectives.double_softmax_cross_entropy` in the protocol), and
#: each party's last dense layer ends in a ReLU (`output_activation=flax.linen.relu` in the model). N is 800 in the
#: code.
CAFE_UPSTREAM = CafeOptions(
    loops="single",
    switch=False,
    output_learning_rate=5e-3,
    feature_learning_rate=1e-2,
    data_learning_rate=1e-2,
    optimizers=CafeOptimizers(optax.sgd, twice_corrected_adam, twice_corrected_adam),
    xi=25.0,
    label_mode="fixed",
    box=None,
)


def cosine_options(**options: Any) -> CafeOptions:
    """CAFE with the cosine distance in place of the squared one (ICLR 2021, Table 2).

    Args:
        **options: other fields of `CafeOptions`; alpha, beta, gamma and xi weigh the terms as in `cafe`.
    """
    plain = CafeOptions(**options)
    objective = cafe_objective(alpha=plain.alpha, beta=plain.beta, gamma=plain.gamma, xi=plain.xi, distance=cosine)
    return plain._replace(objective=objective)
