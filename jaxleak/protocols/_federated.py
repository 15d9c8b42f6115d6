"""Vertical and horizontal federated SGD, as the CAFE papers run them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import Batch, Loss, Protocol, ProtocolState, PyTree, Transcript
from jaxleak.defenses import Defense
from jaxleak.models import SplitModel
from jaxleak.objectives import cross_entropy
from jaxleak.objectives._losses import needs_distributions
from jaxleak.protocols._defending import check_defense, defended, memory
from jaxleak.protocols._objective import objective
from jaxleak.protocols._sampling import SAMPLINGS, Sampling, defense_key, draw_batch, draw_worker_batches


def vertical(
    model: SplitModel,
    *,
    num_samples: int,
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
    loss: Loss = cross_entropy,
    defense: Defense | None = None,
    sampling: Sampling = "epoch",
    with_statistics: bool = False,
) -> Protocol:
    """Vertical federated learning with data-index alignment (CAFE, NeurIPS 2021, section 2 and Algorithm 1).

    Every party holds one slice of each of the same N samples. In round t the server draws and broadcasts the batch
    indices, the parties compute the gradient of the joint batch loss, and the server receives the aggregate.

    Args:
        model: P parties' split model.
        num_samples: N.
        batch_size: K, 1 <= K <= N.
        optimizer: how the server updates the parameters; None keeps them frozen.
        loss: `(logits (B, C), y) -> ()`, the mean over the batch, with the labels of `ClientShare`'s loss.
        defense: transforms the payload before the server sees it; its state, if any, is kept from round to round.
        sampling: "epoch" or "uniform", see `draw_batch`.
        with_statistics: also record the batch's activation statistics, for threats that grant them.

    Returns:
        A `Protocol`. Its payload is the gradient tree of the mean loss over the K samples of the batch.

    Raises:
        ValueError: if a size is not whole, K is not in [1, N], or `sampling` or the defense's place ("payload"
            only) is unknown; when a round is run, if the private set does not hold N samples x (N, P, *slice) with
            labels in [0, C); under `jax.jit` the values of labels cannot be checked.
    """
    _validate.count(num_samples=num_samples)
    _validate.count_in_range(1, num_samples, batch_size=batch_size)
    _validate.one_of(SAMPLINGS, sampling=sampling)

    def draw(key: jax.Array, step: jax.Array) -> jax.Array:
        return draw_batch(key, step, num_samples=num_samples, batch_size=batch_size, sampling=sampling)

    return _protocol(model, draw, num_samples, optimizer, loss, defense, with_statistics)


def horizontal(
    model: SplitModel,
    *,
    workers: int,
    num_samples: int,
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
    loss: Loss = cross_entropy,
    defense: Defense | None = None,
    sampling: Sampling = "epoch",
    with_statistics: bool = False,
) -> Protocol:
    """Horizontal federated SGD with known indices (CAFE, ICLR 2021 submission, section 4.1).

    Worker m holds samples m N/M ... (m+1) N/M - 1 with all their features. In every round each worker draws K/M of
    its samples; the server receives the average of the workers' gradients, which for equal shares is the gradient of
    the mean loss over all K samples, and knows the indices.

    Args:
        model: a split model with one party.
        workers: M >= 1.
        num_samples: N over all workers, a multiple of M.
        batch_size: K over all workers, a multiple of M, K <= N.
        optimizer: how the server updates the parameters; None keeps them frozen.
        loss: `(logits (B, C), y) -> ()`, the mean over the batch, with the labels of `ClientShare`'s loss.
        defense: transforms the payload before the server sees it, with its state from round to round if it has any.
        sampling: "epoch" or "uniform", per worker.
        with_statistics: also record the batch's activation statistics.

    Raises:
        ValueError: if the model has several parties, or sizes are not whole, do not divide or are out of range, or the
            defense acts elsewhere than on the payload; when a round is run, if the private set does not hold N samples
            with labels in [0, C), see `vertical`.
    """
    _validate.made(SplitModel, "models.split_model", model=model)
    if model.parties != 1:
        raise ValueError(f"model must have one party in horizontal federated learning, got {model.parties}")
    _validate.count(workers=workers, num_samples=num_samples)
    _validate.count_in_range(workers, num_samples, batch_size=batch_size)
    _validate.one_of(SAMPLINGS, sampling=sampling)
    if num_samples % workers or batch_size % workers:
        raise ValueError(
            f"num_samples and batch_size must be multiples of workers={workers}, got {num_samples} and {batch_size}"
        )

    def draw(key: jax.Array, step: jax.Array) -> jax.Array:
        return draw_worker_batches(
            key, step, workers=workers, num_samples=num_samples, batch_size=batch_size, sampling=sampling
        )

    return _protocol(model, draw, num_samples, optimizer, loss, defense, with_statistics)


def _protocol(
    model: SplitModel,
    draw: Callable[[jax.Array, jax.Array], jax.Array],
    num_samples: int,
    optimizer: optax.GradientTransformation | None,
    loss: Loss,
    defense: Defense | None,
    with_statistics: bool,
) -> Protocol:
    _validate.made(SplitModel, "models.split_model", model=model)
    _validate.functions(loss=loss)
    _validate.optimizer(optimizer=optimizer)
    check_defense(defense, ("payload",), num_classes=model.num_classes)
    transform = optax.set_to_zero() if optimizer is None else optimizer

    def share(params: PyTree, batch: Batch) -> PyTree:
        return jax.grad(lambda p: objective(loss, model.apply(p, batch.x), batch.y, model.num_classes))(params)

    def init(key: jax.Array) -> ProtocolState:
        params = model.init(key)
        return ProtocolState(jnp.zeros((), jnp.int32), params, transform.init(params), memory(defense, params))

    def check(private: Batch) -> None:
        _validate.private_set(private, num_samples, model.num_classes, distributions=needs_distributions(loss))
        _validate.slices(private.x, model.parties, model.slice_shape)

    def round_(key: jax.Array, state: ProtocolState, private: Batch) -> tuple[ProtocolState, Transcript]:
        check(private)
        index = draw(key, state.round)
        batch = Batch(private.x[index], private.y[index], index)
        noise_key = defense_key(key, state.round)
        own = share(state.params, batch)
        payload, kept = defended(defense, "payload", noise_key, own, state.defense, round=state.round)
        statistics = model.statistics(state.params, batch.x) if with_statistics else None
        transcript = Transcript(state.round, state.params, payload, index, statistics, batch)
        if optimizer is None:
            return state._replace(round=state.round + 1, defense=kept), transcript
        updates, opt_state = transform.update(payload, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return ProtocolState(state.round + 1, params, opt_state, kept), transcript

    return Protocol(init, round_, share, check)
