"""FedAvg over many clients (McMahan et al., *Communication-efficient learning*, AISTATS 2017).

Gradient inversion attacks one client's upload in one round (`jaxleak.protocols.client`). This module runs the training
around it. The training gives the weights of any later round, and shows how much accuracy a defense costs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import Batch, Loss, PyTree
from jaxleak.defenses import HORIZONTAL_PLACES, Defense
from jaxleak.defenses._representation import OfClient
from jaxleak.defenses.mechanisms import AdamStep
from jaxleak.models import Classifier
from jaxleak.models._classifier import BATCH_NORM_MODES, BatchNormMode
from jaxleak.objectives import cross_entropy
from jaxleak.objectives._losses import needs_distributions
from jaxleak.protocols._defending import acts_at, check_defense, defended, defended_upload, mean_of_examples, memory
from jaxleak.protocols._local_training import descend, gradient_of

Weighting = Literal["uniform", "samples"]
WEIGHTINGS: tuple[Weighting, ...] = ("uniform", "samples")


#: Number of samples in one forward pass of an evaluation.
_EVALUATED_TOGETHER = 200


class FederatedState(NamedTuple):
    """The state that is carried from one round to the next.

    Attributes:
        round: () int32, how many rounds are done.
        variables: {"params": ..., "batch_stats": ...} of the global model.
        clients: states of a defense that keeps some: leaves with a leading axis of all clients; otherwise ().
    """

    round: jax.Array
    variables: PyTree
    clients: PyTree = ()


class FederatedAveraging(NamedTuple):
    """A federation as three functions.

    init: `(key, variables=None) -> FederatedState`, round 0; the key draws the model if no variables are given.
    run: `(key, state, data, rounds) -> FederatedState`, the state after `rounds` more rounds. `data` is a `Batch` with
    x (N, 1, H, W, channels), y (N,). All randomness in round t depends only on the key and t, so 2 + 3 rounds give the
    same as 5.
    evaluate: `(variables, x (M, H, W, channels), y (M,)) -> float`, accuracy in [0, 1] with running statistics; raises
        `ValueError` on other shapes, labels out of range and no sample.
    """

    init: Callable[..., FederatedState]
    run: Callable[[jax.Array, FederatedState, Batch, int], FederatedState]
    evaluate: Callable[[PyTree, jax.Array, jax.Array], float]


def federated_averaging(
    model: Classifier,
    parts: Sequence[np.ndarray],
    *,
    batch_size: int,
    local_steps: int = 1,
    learning_rate: float = 1e-4,
    clients_per_round: int | None = None,
    batch_norm: BatchNormMode = "train",
    weighting: Weighting = "uniform",
    loss: Loss = cross_entropy,
    defense: Defense | None = None,
) -> FederatedAveraging:
    """Train a classifier by federated averaging (FedLeak, section 2: 100 clients, client learning rate 1e-4).

    In each round the server draws clients without replacement. Each client takes E SGD steps from the global model. The
    batches go through a fresh permutation of the client's samples, which starts again if the client has fewer than E *
    B samples. The client uploads `(w - w') / (learning_rate E)`, as in `jaxleak.protocols.ClientShare`, and its running
    statistics. The server averages both.

    Args:
        model: the global model.
        parts: per client the indices (N_i,) of its samples, e.g. from `jaxleak.data.partition_clients`.
        batch_size: B of each local step.
        local_steps: E >= 1.
        learning_rate: step size of the local steps, > 0.
        clients_per_round: from 1 to the number of clients; None takes all.
        batch_norm: "train" normalises by each local batch, "eval" by the running statistics, which then stay.
        weighting: how the average weighs clients: all alike ("uniform"), or each by its number of samples ("samples").
        loss: `(logits (B, C), y) -> ()`, with its reduction and the labels of `ClientShare`'s loss.
        defense: at any of `jaxleak.defenses.HORIZONTAL_PLACES`. "payload" and "representation" transform each upload,
            "client_payloads" transforms all uploads of a round, and "per_example_gradient" the gradients of every local
            step. "server_view" does not affect training. Keys differ by round, client and step; the keyword `round` is
            passed on. If the defense transforms each upload, a client keeps its state until the next round in which it
            takes part. Elsewhere a defense with state is refused when a round is run.

    Returns:
        A `FederatedAveraging`. Its `run` is compiled once for any number of rounds, and raises FloatingPointError if
        the final weights are not finite.

    Raises:
        ValueError: on arguments out of range, a client without samples, per-example gradients of a model whose batch
            normalisation mixes examples or of a client with fewer samples than a batch, or several local steps with a
            defense that supports only one.
    """
    _validate.made(Classifier, "models.from_flax or models.build", model=model)
    _validate.functions(loss=loss)
    parts = _validate.members("arrays, the indices of every client's samples", parts=parts)
    _validate.count(**{"the number of parts": len(parts)}, batch_size=batch_size, local_steps=local_steps)
    _validate.positive(learning_rate=learning_rate)
    _validate.one_of(BATCH_NORM_MODES, batch_norm=batch_norm)
    _validate.one_of(WEIGHTINGS, weighting=weighting)
    chosen_size = len(parts) if clients_per_round is None else clients_per_round
    _validate.count_in_range(1, len(parts), clients_per_round=chosen_size)
    own, counts = _padded(parts)
    check_defense(
        defense,
        HORIZONTAL_PLACES,
        num_classes=model.num_classes,
        local_steps=local_steps,
        mixes_examples=model.mixes_images(batch_norm),
        loss=loss,
    )
    if acts_at(defense, "per_example_gradient") and min(map(len, parts)) < batch_size:
        raise ValueError(
            "a defense of single examples needs clients with a batch of different ones: the smallest has "
            f"{min(map(len, parts))} samples, batch_size is {batch_size}"
        )
    step = None if defense is None or defense.mechanism is None else defense.mechanism.simulation
    if isinstance(step, AdamStep) and step.learning_rate != learning_rate:
        raise ValueError(
            f"learning_rate must be that of the clients' adam_step, {step.learning_rate:g}, got {learning_rate:g}"
        )
    if acts_at(defense, "client_payloads") and weighting == "samples" and len(set(map(len, parts))) > 1:
        raise ValueError("a defense of all clients' payloads sums them alike: needs weighting='uniform', got 'samples'")
    upload = _local_training(
        model, own, counts, batch_size, local_steps, learning_rate, batch_norm=batch_norm, loss=loss, defense=defense
    )

    def one_round(key: jax.Array, state: FederatedState, data: Batch) -> FederatedState:
        key = jax.random.fold_in(key, state.round)
        chosen = jax.random.permutation(jax.random.fold_in(key, 0), len(parts))[:chosen_size]
        keys = jax.random.split(jax.random.fold_in(key, 1), chosen_size)
        # Clients run one after the other: vmap over weights would turn convolutions into slow grouped ones.
        of_chosen = jax.tree.map(lambda leaf: leaf[chosen], state.clients)
        payloads, stats, of_chosen = jax.lax.map(
            lambda now: upload(now[0], state.variables, now[1], now[2], data, state.round), (keys, chosen, of_chosen)
        )
        clients = jax.tree.map(lambda leaf, new: leaf.at[chosen].set(new), state.clients, of_chosen)
        payloads, _ = defended(defense, "client_payloads", jax.random.fold_in(key, 2), payloads, round=state.round)
        share = counts[chosen].astype(jnp.float32) if weighting == "samples" else jnp.ones(chosen_size, jnp.float32)
        share = share / share.sum()
        update, stats = jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, axes=1), (payloads, stats))
        params = jax.tree.map(lambda w, u: w - learning_rate * local_steps * u, state.variables["params"], update)
        return FederatedState(state.round + 1, {"params": params, "batch_stats": stats}, clients)

    @jax.jit
    def advance(key: jax.Array, state: FederatedState, data: Batch, rounds: jax.Array) -> FederatedState:
        return jax.lax.fori_loop(0, rounds, lambda _, now: one_round(key, now, data), state)

    def init(key: jax.Array, variables: PyTree = None) -> FederatedState:
        start = model.init(key) if variables is None else variables
        _validate.variables(start)
        start = jax.tree.map(jnp.asarray, start)
        kept = memory(defense if acts_at(defense, "payload", "representation") else None, start["params"])
        clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(parts), *leaf.shape)), kept)
        return FederatedState(jnp.zeros((), jnp.int32), start, clients)

    def run(key: jax.Array, state: FederatedState, data: Batch, rounds: int) -> FederatedState:
        _validate.count_or_zero(rounds=rounds)
        _validate.batch_of_images(data.x, model.image_shape)
        _validate.batch_labels(data.y, len(data.x), model.num_classes, distributions=needs_distributions(loss))
        last = max(int(part.max()) for part in parts)
        if last >= len(data.y):
            raise ValueError(f"parts name sample {last}, but there are {len(data.y)} samples")
        new = advance(key, state, data, jnp.asarray(rounds, jnp.int32))
        _validate.finite(new.variables, f"rounds {int(state.round)} to {int(new.round)}")
        return new

    return FederatedAveraging(init, run, _evaluation(model))


def _local_training(
    model: Classifier,
    own: jax.Array,
    counts: jax.Array,
    batch_size: int,
    steps: int,
    learning_rate: float,
    *,
    batch_norm: BatchNormMode,
    loss: Loss,
    defense: Defense | None,
) -> Callable[..., tuple[PyTree, PyTree, PyTree]]:
    """One client's upload, its running statistics and its defense's state, after steps from the global model."""
    drawn = steps * batch_size

    def upload(
        key: jax.Array, start: PyTree, client: jax.Array, kept: PyTree, data: Batch, round_: jax.Array
    ) -> tuple[PyTree, PyTree, PyTree]:
        batch_key, step_key, upload_key = jax.random.split(key, 3)
        positions = _positions(batch_key, own[client], counts[client], drawn)
        x, y = data.x[positions, 0], data.y[positions]

        def gradient(number: jax.Array, variables: PyTree, x: jax.Array, y: jax.Array) -> tuple[PyTree, PyTree]:
            of = functools.partial(gradient_of, model, loss, batch_norm, variables)
            if not acts_at(defense, "per_example_gradient"):
                return of(x, y)
            examples = jax.vmap(lambda a, b: of(a[None], b[None])[0])(x, y)
            key = jax.random.fold_in(step_key, number)
            examples, _ = defended(defense, "per_example_gradient", key, examples, round=round_)
            return mean_of_examples(examples), variables["batch_stats"]

        payload, stats = descend(gradient, start, x, y, learning_rate, steps=steps, unrolled=False)
        known = OfClient(model=model, variables=start, x=x, y=y, mode=batch_norm, loss=loss)
        payload, kept = defended_upload(defense, upload_key, payload, kept, round=round_, **known)
        return payload, stats, kept

    return upload


def _evaluation(model: Classifier) -> Callable[[PyTree, jax.Array, jax.Array], float]:
    """A function that measures accuracy on samples x (n, H, W, c) with labels y (n,), from the weights."""

    @jax.jit
    def predicted(variables: PyTree, x: jax.Array) -> jax.Array:
        logits = model.apply(variables, x, mode="eval").logits
        # Without this check, NaN logits would be predicted as the first class.
        return jnp.where(jnp.isfinite(logits).all(axis=-1), jnp.argmax(logits, axis=-1), -1)

    def evaluate(variables: PyTree, x: jax.Array, y: jax.Array) -> float:
        if x.shape[1:] != model.image_shape:
            raise ValueError(f"x must have shape (n, {', '.join(map(str, model.image_shape))}), got {x.shape}")
        if y.ndim != 1:
            raise ValueError(f"y must hold one label per image, shape ({len(x)},), got {y.shape}")
        _validate.batch_labels(y, len(x), model.num_classes)
        _validate.finite(variables, "evaluate")  # otherwise the first class would be predicted
        pieces = [predicted(variables, x[i : i + _EVALUATED_TOGETHER]) for i in range(0, len(x), _EVALUATED_TOGETHER)]
        return float(np.mean(np.concatenate([np.asarray(piece) for piece in pieces]) == np.asarray(y)))

    return evaluate


def _padded(parts: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """Indices (clients, longest), padded with zeros, and how many are real (clients,)."""
    for client, part in enumerate(parts):
        _validate.members("indices of samples, as data.partition_clients makes", **{f"parts[{client}]": part})
        if len(part) and (np.asarray(part).dtype.kind not in "iu" or np.min(part) < 0):
            raise ValueError(f"parts must hold numbers of samples, whole and >= 0, but parts[{client}] has others")
    counts = np.array([len(part) for part in parts])
    if counts.min() < 1:
        raise ValueError(f"every client needs a sample, but client {int(counts.argmin())} has none")
    own = np.zeros((len(parts), counts.max()), np.int32)
    for row, part in zip(own, parts, strict=True):
        row[: len(part)] = part
    return jnp.asarray(own), jnp.asarray(counts, jnp.int32)


def _positions(key: jax.Array, own: jax.Array, count: jax.Array, drawn: int) -> jax.Array:
    """Draw `drawn` of a client's `count` samples in random order, starting again after the last one."""
    rank = jnp.where(jnp.arange(own.shape[0]) < count, jax.random.uniform(key, own.shape), jnp.inf)
    return own[jnp.argsort(rank)][jnp.arange(drawn) % count]
