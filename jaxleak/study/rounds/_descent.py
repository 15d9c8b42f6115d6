"""CAFE by gradient descent, as the paper runs it, and the attacks that it is compared with.

Steps I and II of the nested loops read dense-layer gradients only, so the simulated parties keep their forward
features and run them thousands of times a minute. Step III needs the whole gradient and costs a second-order step.
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
from jaxleak.study.rounds._problem import Problem, channel_peak_psnr, image_psnr

Build = Callable[[models.SplitModel, ShareFn], Attack]


class Tables(NamedTuple):
    """What Steps I and II end with."""

    V: jax.Array
    H: jax.Array


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
    """Algorithms 1 and 2 in nested loops, `iterations` batches each.

    Args:
        problem: what is attacked.
        features: (N, P, d1), the parties' forward features.
        iterations: batches per step.
        batch_size: K.
        key: of the audit.
        options: learning rates and weights of `attacks.cafe`.
        workers: M > 0 for horizontal rounds, 0 for vertical ones.
        defense: acts on the payload.
        callbacks: see `audit.run`.
        checkpoints: see `audit.run`.
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
        problem: what is attacked.
        build: `(model, share) -> Attack`.
        rounds: batches.
        batch_size: K.
        key: of the audit.
        threat: what the attacker is granted.
        tables: V and H from `steps_one_and_two`; the attack's state then starts in Step III.
        workers: M > 0 for horizontal rounds, 0 for vertical ones.
        optimizer: trains the model meanwhile; None keeps it frozen.
        defense: acts on the payload.
        callbacks: see `audit.run`; without checkpoints they are also told of the start, as iteration 0.
        checkpoints: see `audit.run`.
        on_resume: called with the number of rounds in the checkpoint, 0 without one, before any further round.
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
    """Rounds of batches drawn uniformly, horizontal with `workers` or, at 0, vertical."""
    if workers:
        return protocols.horizontal(model, workers=workers, sampling="uniform", **options)
    return protocols.vertical(model, sampling="uniform", **options)


def reconstruction_metrics(problem: Problem, reconstruction: Reconstruction) -> dict[str, float]:
    """Truth-side scores of a reconstruction of the whole private set."""
    index = np.arange(len(problem.private.y))
    slices = np.asarray(reconstruction.x)
    psnr = image_psnr(problem, slices, index)
    images = problem.assemble(slices)
    scores: dict[str, float] = {
        "psnr_mean": float(psnr.mean()),
        "psnr_median": float(np.median(psnr)),
        "psnr_min": float(psnr.min()),
        "mse_mean": float(np.mean((images - problem.dataset.x) ** 2)),
        "label_accuracy": metrics.label_accuracy(problem.dataset.y, np.asarray(reconstruction.y)),
    }
    if problem.dataset.x.ndim == 4:
        tiles = np.asarray(problem.private.x)
        scores["psnr_upstream"] = metrics.psnr_upstream(tiles, slices)
        scores["psnr_channel_peak"] = channel_peak_psnr(problem, images, index)
        scores["ssim_mean"] = float(np.mean(metrics.ssim(problem.dataset.x, np.clip(images, 0, 1))))
        grey = np.full_like(tiles, 0.5)
        scores["psnr_grey"] = float(image_psnr(problem, grey, index).mean())
    return scores
