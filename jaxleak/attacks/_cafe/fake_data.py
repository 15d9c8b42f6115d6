"""Step III's machinery, shared by CAFE and the baselines: a table of fake samples, one row per private sample.

Index alignment (CAFE, NeurIPS 2021, section 3.3): row n plays the role of private sample n in every batch that sample
n takes part in. The attacks differ in the objective only.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree, _validate
from jaxleak._base import Batch, PyTree, ShareFn
from jaxleak.attacks._observed import Granted, Reads
from jaxleak.models import SplitModel
from jaxleak.objectives import TERMS, MatchingObjective, Quantities, group_consistency, soft_labels

LabelMode = Literal["joint", "given", "fixed"]
Optimizer: TypeAlias = optax.GradientTransformation | _tree.RowOptimizer


class FakeData(NamedTuple):
    """The fake samples and labels with their optimisers' states."""

    x: jax.Array  # (N, P, *slice), or (N, G, P, *slice) with G > 1 candidates
    y: jax.Array  # (N, C) free logits, or (N, G, C); one-hot labels once labels are granted
    x_optimizer: PyTree
    y_optimizer: PyTree


class FakeDataStep(NamedTuple):
    """init: `(key, template) -> FakeData`. update: `(data, observation, observed) -> (data, loss, terms)`.

    The observation has passed `require` with what `reads_of` says.
    """

    init: Callable[[jax.Array, Batch], FakeData]
    labels: Callable[[FakeData], jax.Array]  # the labels (N,) of the answer; all -1 if none were sought
    update: Callable[[FakeData, Granted, Quantities], tuple[FakeData, jax.Array, dict[str, jax.Array]]]


def fake_data_step(
    model: SplitModel,
    share: ShareFn,
    *,
    num_samples: int,
    objective: MatchingObjective,
    optimizer: Optimizer,
    label_mode: LabelMode = "joint",
    box: tuple[float, float] | None = (0.0, 1.0),
    inner_updates: int = 1,
    candidates: int = 1,
) -> FakeDataStep:
    """Gradient descent of an objective on the rows of the observed batch.

    Labels start as logits uniform in [0, 1]. "joint" optimises them together with the samples through a softmax (the
    papers optimise labels but name no parametrisation; the authors' code has the softmax). "given" uses granted labels.
    "fixed" leaves the logits as they were drawn, and the answer has no labels.

    Args:
        model: the model under attack.
        share: the protocol's own function from parameters and batch to payload.
        num_samples: size N >= 1 of the private set.
        objective: the objective to minimise.
        optimizer: an optax transform, applied per row, or a `RowOptimizer`.
        label_mode: "joint", "given" or "fixed".
        box: samples start uniform in [low, high] and are projected back after every update; None starts in [0, 1]
            and never projects.
        inner_updates: updates of the fake batch per observed batch, >= 1.
        candidates: number G >= 1 of candidates per sample.

    Raises:
        ValueError: on arguments out of range, an image prior on slices that are no images, or activation statistics
            of a model whose extractor records none.
    """
    _validate.count(num_samples=num_samples, inner_updates=inner_updates, candidates=candidates)
    _validate.one_of(("joint", "given", "fixed"), label_mode=label_mode)
    if box is not None and not box[0] < box[1]:
        raise ValueError(f"box must be (low, high) with low < high, got {box}")
    if "images" in objective.needs and len(model.slice_shape) != 3:
        raise ValueError(
            f"total variation needs slices that are images (h, w, c), got slices of shape {model.slice_shape}; "
            "set its weight beta to 0"
        )
    if "statistics" in objective.needs:
        _check_statistics(model)
    rows = optimizer if isinstance(optimizer, _tree.RowOptimizer) else _tree.row_optimizer(optimizer)
    group = () if candidates == 1 else (candidates,)
    low, high = (0.0, 1.0) if box is None else box

    def init(key: jax.Array, template: Batch) -> FakeData:
        expected = (num_samples, model.parties, *model.slice_shape)
        if tuple(template.x.shape) != expected:
            raise ValueError(f"private set must have shape {expected} for this attack, got {tuple(template.x.shape)}")
        x_key, y_key = jax.random.split(key)
        x = jax.random.uniform(x_key, (num_samples, *group, *expected[1:]), minval=low, maxval=high)
        y = jax.random.uniform(y_key, (num_samples, *group, model.num_classes))
        return FakeData(x, y, rows.init(x), rows.init(y))

    def simulate(params: PyTree, x: jax.Array, y: jax.Array, index: jax.Array) -> Quantities:
        needs = objective.needs
        return Quantities(
            x=x,
            gradient=share(params, Batch(x, y, index)) if "gradient" in needs else None,
            features=model.features(params, x) if "features" in needs else None,
            statistics=model.statistics(params, x) if "statistics" in needs else None,
        )

    def update(
        data: FakeData, observation: Granted, observed: Quantities
    ) -> tuple[FakeData, jax.Array, dict[str, jax.Array]]:
        index = observation.index
        granted = soft_labels(observation.labels, model.num_classes) if label_mode == "given" else None

        def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            labels = jax.nn.softmax(y) if granted is None else granted
            return objective.value(observed, simulate(observation.params, x, labels, index))

        def loss(variables: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
            if candidates == 1:
                value, terms = one(*variables)
                return value, (value, terms)
            # Only the consistency term couples candidates; otherwise each descends as it would alone.
            values, terms = jax.vmap(one, in_axes=1)(*variables)
            total = values.sum() + objective.consistency * group_consistency(jnp.moveaxis(variables[0], 1, 0))
            return total, (total / candidates, {name: terms[name].mean() for name in TERMS})

        def descend(data: FakeData) -> tuple[FakeData, jax.Array, dict[str, jax.Array]]:
            (x_grad, y_grad), (value, terms) = jax.grad(loss, has_aux=True)((data.x[index], data.y[index]))
            x, x_optimizer = rows.update(x_grad, data.x_optimizer, data.x, index)
            if box is not None:
                x = x.at[index].set(jnp.clip(x[index], low, high))
            data = data._replace(x=x, x_optimizer=x_optimizer)
            if label_mode == "joint":
                y, y_optimizer = rows.update(y_grad, data.y_optimizer, data.y, index)
                data = data._replace(y=y, y_optimizer=y_optimizer)
            return data, value, terms

        if granted is not None:
            per_row = granted if candidates == 1 else jnp.broadcast_to(granted[:, None], data.y[index].shape)
            data = data._replace(y=data.y.at[index].set(per_row))
        if inner_updates == 1:
            return descend(data)

        def again(carry: FakeData, _: None) -> tuple[FakeData, tuple[jax.Array, dict[str, jax.Array]]]:
            carry, value, terms = descend(carry)
            return carry, (value, terms)

        data, (values, terms) = jax.lax.scan(again, data, length=inner_updates)
        return data, values[-1], {name: term[-1] for name, term in terms.items()}

    def labels(data: FakeData) -> jax.Array:
        # Labels enter the objective through the gradient only; otherwise the logits stay as they were drawn.
        if label_mode == "fixed" or (label_mode == "joint" and "gradient" not in objective.needs):
            return jnp.full(num_samples, -1, jnp.int32)
        soft = data.y if candidates == 1 else jax.nn.softmax(data.y).mean(axis=1)
        return jnp.argmax(soft, axis=-1).astype(jnp.int32)

    return FakeDataStep(init, labels, update)


def reads_of(who: str, objective: MatchingObjective, label_mode: LabelMode, leaves: tuple[str, ...] = ()) -> Reads:
    """What an attack reads in every round: what Step III needs, and the given leaves of the payload for other steps."""
    return Reads(
        who,
        params=True,
        leaves=None if "gradient" in objective.needs else leaves,
        index=True,
        labels=label_mode == "given",
        statistics="statistics" in objective.needs,
    )


def _check_statistics(model: SplitModel) -> None:
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, model.parties, *model.slice_shape), jnp.float32)
    if not jax.tree.leaves(jax.eval_shape(model.statistics, params, x)):
        raise ValueError("the objective matches activation statistics, but this model's extractor records none")
