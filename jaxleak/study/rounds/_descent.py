"""CAFE by gradient descent, as the paper runs it, and the attacks that it is compared with.

Steps I and II of the nested loops read gradients of the dense layer only. The simulated parties therefore compute
their forward features once, and simulate thousands of rounds a minute. Step III needs the whole gradient, and every
iteration of it takes second derivatives.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxleak import attacks, audit, metrics, models, protocols, threats
from jaxleak._base import Attack, Batch, Protocol, Reconstruction, ShareFn
from jaxleak.attacks import aggregated
from jaxleak.checkpoint import Checkpoints
from jaxleak.defenses import Defense
from jaxleak.metrics._images import mean_psnr
from jaxleak.study.rounds._problem import Problem, channel_peak_psnr, image_psnr

Build = Callable[[models.SplitModel, ShareFn], Attack]


class Tables(NamedTuple):
    """Results of Steps I and II."""

    V: jax.Array  # (N, P, d2), gradients with respect to the outputs of the first dense layer, divided by K
    H: jax.Array  # (N, P, d1), inputs of the first dense layer


def steps_one_and_two(
    problem: Problem,
    features: jax.Array,
    *,
    iterations: int,
    batch_size: int,
    key: jax.Array,
    options: dict[str, Any],
    workers: int = 0,
    defense: Defense | None = None,
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
) -> Tables:
    """Steps I and II of the nested loops (CAFE, Algorithms 1 and 2).

    Args:
        problem: the attacked federation.
        features: (N, P, d1), the parties' forward features.
        iterations: number of batches of each step.
        batch_size: batch size K.
        key: random key of the audit.
        options: learning rates and weights of `attacks.cafe`.
        workers: number M > 0 of workers in horizontal rounds, 0 for vertical rounds.
        defense: defense of the payload, or None.
        callbacks: functions that see the progress, see `audit.run`.
        checkpoints: checkpoints that save the rounds, see `audit.run`; None saves none.

    Returns:
        Gradients V and inputs H of the first dense layer for all N samples.
    """
    head = models.frozen_features(problem.model)
    size = features.shape[0]
    protocol = _protocol(head, workers, num_samples=size, batch_size=batch_size, defense=defense)
    # Slices of the head are features, which have no total variation; Step III is not reached here.
    attack = attacks.cafe(
        head,
        protocol.share,
        num_samples=size,
        options=aggregated.CafeOptions(loops="nested", iterations=iterations, **{**options, "beta": 0.0}),
    )
    state, _ = audit.run(
        attack,
        protocol,
        threats.HONEST_BUT_CURIOUS_SERVER,
        Batch(features, problem.private.y, problem.private.index),
        key=key,
        rounds=2 * iterations,
        chunk=max(100, iterations // 10),
        callbacks=callbacks,
        checkpoints=checkpoints,
    )
    return Tables(state.attack.V, state.attack.H)


def step_three(
    problem: Problem,
    build: Build,
    *,
    rounds: int,
    batch_size: int,
    key: jax.Array,
    threat: threats.Threat = threats.HONEST_BUT_CURIOUS_SERVER,
    tables: Tables | None = None,
    workers: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    defense: Defense | None = None,
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
    on_resume: Callable[[int], None] = lambda _: None,
) -> tuple[Reconstruction, dict[str, np.ndarray]]:
    """Descend on fake data for `rounds` batches: CAFE's Step III, a baseline, or (tables=None) the single loop.

    Args:
        problem: the attacked federation.
        build: function `(model, share) -> Attack`.
        rounds: number of batches.
        batch_size: batch size K.
        key: random key of the audit.
        threat: threat model.
        tables: V and H from `steps_one_and_two`; the attack's state then starts in Step III.
        workers: number M > 0 of workers in horizontal rounds, 0 for vertical rounds.
        optimizer: optimizer that trains the model during the attack; None keeps the model frozen.
        defense: defense of the payload, or None.
        callbacks: functions that see the progress, see `audit.run`; without checkpoints they also see the start, as
            iteration 0.
        checkpoints: checkpoints that save and resume the rounds, see `audit.run`; None saves none.
        on_resume: function that is called before the first round with the number of rounds in the checkpoint, or 0
            without one.

    Returns:
        The reconstruction of the private set, and what the attack reports of every round.
    """
    size = len(problem.private.y)
    protocol = _protocol(
        problem.model,
        workers,
        num_samples=size,
        batch_size=batch_size,
        optimizer=optimizer,
        defense=defense,
        with_statistics=threat.statistics,
    )
    attack = build(problem.model, protocol.share)
    state = audit.start(attack, protocol, problem.private, key=key)
    if tables is not None:
        # Two batches are behind an attack built with iterations=1: the next one belongs to Step III.
        state = state._replace(attack=state.attack._replace(V=tables.V, H=tables.H, batches=state.attack.batches + 2))
    if checkpoints is not None:
        state = checkpoints.restore_latest(state)
    on_resume(int(state.protocol.round))
    watching = tuple(callbacks)
    for callback in watching if checkpoints is None else ():
        callback(0, state, {})  # a curve begins where the attack does
    state, infos = audit.run(
        attack,
        protocol,
        threat,
        problem.private,
        key=key,
        rounds=rounds,
        state=state,
        chunk=25,
        callbacks=watching,
        checkpoints=checkpoints,
    )
    _, transcript = jax.eval_shape(lambda s: protocol.round(key, s, problem.private), state.protocol)
    observation = threats.view(threat, transcript)._replace(params=state.protocol.params)
    return attack.reconstruct(state.attack, observation), infos


def _protocol(model: models.SplitModel, workers: int, **options: Any) -> Protocol:
    """Rounds of batches that are drawn uniformly: horizontal if `workers` > 0, vertical if it is 0."""
    if workers:
        return protocols.horizontal(model, workers=workers, sampling="uniform", **options)
    return protocols.vertical(model, sampling="uniform", **options)


def reconstruction_metrics(
    problem: Problem, reconstruction: Reconstruction, *, granted: bool = False
) -> dict[str, float]:
    """Scores of a reconstruction of the whole private set against the truth, each in a unit of its own.

    PSNR is in dB, the label accuracy is in [0, 1], and the mean squared error is on the scale of the data. In the mean,
    a sample has 200 dB at most.

    Args:
        problem: the problem with the truth.
        reconstruction: the attack's answer.
        granted: whether the attacker was given the labels. The label accuracy is left out if so, or if the attack
            does not answer all labels.
    """
    index = np.arange(len(problem.private.y))
    slices = np.asarray(reconstruction.x)
    psnr = image_psnr(problem, slices, index)
    images = problem.assemble(slices)
    scores: dict[str, float] = {
        "psnr_mean": mean_psnr(psnr),
        "psnr_median": float(np.median(psnr)),
        "psnr_min": float(psnr.min()),
        "mse_mean": float(np.mean((images - problem.dataset.x) ** 2)),
    }
    if not granted and np.all(np.asarray(reconstruction.y) >= 0):
        scores["label_accuracy"] = metrics.label_accuracy(problem.dataset.y, np.asarray(reconstruction.y))
    if problem.dataset.x.ndim == 4:
        tiles = np.asarray(problem.private.x)
        scores["psnr_upstream"] = metrics.psnr_upstream(tiles, slices)
        scores["psnr_channel_peak"] = channel_peak_psnr(problem, images, index)
        scores["ssim_mean"] = float(np.mean(metrics.ssim(problem.dataset.x, np.clip(images, 0, 1))))
        grey = np.full_like(tiles, 0.5)
        scores["psnr_grey"] = float(image_psnr(problem, grey, index).mean())
    else:
        scores["feature_r2"] = table_r2(problem, images, index)
    return scores


def table_r2(problem: Problem, found: np.ndarray, rows: np.ndarray) -> float:
    """The share of a table's variance that reconstructed rows explain (`metrics.feature_r2`), NaN if none varies.

    Args:
        problem: the problem with the truth, a table.
        found: (N, d) what was reconstructed of the first N rows of the table.
        rows: (n,) numbers of the rows that count.
    """
    truth = problem.dataset.x[rows]
    return metrics.feature_r2(truth, found[rows]) if np.ptp(truth, axis=0).any() else float("nan")
