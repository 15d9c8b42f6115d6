"""The runs that CAFE's papers compare: the exact engine, the paper's descent and its baselines, single loops, training.

A `Setting` says which run it is. Every run returns a dict of scores, curves and pictures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxleak import attacks, audit, models, threats
from jaxleak._base import Attack
from jaxleak.attacks import aggregated
from jaxleak.metrics._images import MOST_DB
from jaxleak.study.rounds._descent import Tables, reconstruction_metrics, step_three, steps_one_and_two
from jaxleak.study.rounds._exact import observe_and_recover
from jaxleak.study.rounds._problem import Problem, channel_peak_psnr, forward_features, image_psnr
from jaxleak.study.rounds._settings import (
    CAP,
    FAKE,
    FAKE_SAID,
    STEPS,
    THRESHOLDS,
    Setting,
    cap,
    defense_named,
    optimizer_of,
    step_options,
    steps_of,
    table9_row,
)
from jaxleak.study.rounds._training import training

__all__ = [
    "CAP",
    "FAKE",
    "FAKE_SAID",
    "PICTURES",
    "PICTURE_KEY",
    "STEPS",
    "THRESHOLDS",
    "NestedTables",
    "Setting",
    "cap",
    "defense_named",
    "descent",
    "exact",
    "nested_tables",
    "pictures",
    "single",
    "steps_of",
    "training",
]

#: Number of reconstructions of a run that are kept as pictures.
PICTURES = 16
#: Relative error of a sample's inputs of the first dense layer below which they count as found.
_RECOVERED_BELOW = 1e-2
#: Key of these pictures among a run's results.
PICTURE_KEY = "pictures"


def exact(setting: Setting, problem: Problem) -> dict[str, Any]:
    """Run the exact engine: Steps I and II on all samples, Step III on the first `images` samples.

    Without a defense, samples for which the attack says that it has no answer are left out of the PSNR. `images` says
    how many of the `images_asked` are left, and `answered` is the share of all samples that have an answer. `recovered`
    is the share of all samples that have an answer and whose true inputs of the first dense layer are found for every
    party.
    Against a defense, all samples are inverted, since leaving samples out would flatter the attack.

    Args:
        setting: a setting of kind "exact".
        problem: the attacked federation, of the setting's sizes.

    Returns:
        `psnr` in dB, at most 200 per sample and NaN if no sample has an answer; `images`, `images_asked`,
        `answered` and `recovered`. Image data also have the PSNR by the submission's formula (`psnr_channel_peak`) and
        the first pictures (`PICTURE_KEY`).

    Raises:
        ValueError: if sizes do not fit, or if the attacker is to know the defense and no such attack exists.
    """
    defense = defense_named(setting.defense, batch_size=setting.batch_size)
    plan = attacks.plan_cafe_exact(
        problem.model,
        num_samples=setting.num_samples,
        batch_size=setting.batch_size,
        workers=max(1, setting.workers),
    )
    features = forward_features(problem)
    recovery = observe_and_recover(
        problem,
        features,
        plan,
        key=jax.random.key(setting.seed),
        horizontal=setting.workers > 0,
        defense=defense,
        knows_defense=setting.adaptive,
    )
    shown = recovery.answered[: setting.images] if defense is None else np.ones(setting.images, bool)
    wanted = np.flatnonzero(shown)
    answered = float(recovery.answered.mean())
    found = _feature_errors(features, recovery.H).max(axis=1) < _RECOVERED_BELOW
    recovered = float((recovery.answered & found).mean())
    counts = {"answered": answered, "recovered": recovered, "images": len(wanted), "images_asked": len(shown)}
    if not len(wanted):
        # In MNIST cut into sixteen tiles, for example, every image has a blank tile, through which no gradient passes.
        return {"psnr": float("nan"), **counts}
    # The data sets of a study are in [0, 1], tables too, and its attacker knows that.
    options = aggregated.FeatureInversionOptions(bounds=(0.0, 1.0))
    result = aggregated.invert_slices(
        problem.model, problem.params, recovery.H[wanted], wanted, options=options, seed=setting.seed, chunk=8
    )
    psnr = np.minimum(image_psnr(problem, result.x, wanted), MOST_DB)
    scores: dict[str, Any] = {"psnr": float(psnr.mean()), **counts}
    if problem.dataset.x.ndim == 4:
        images = problem.assemble(np.asarray(result.x))
        scores["psnr_channel_peak"] = channel_peak_psnr(problem, images, wanted)
        scores[PICTURE_KEY] = pictures(problem, images, wanted)
    return scores


@dataclass(frozen=True)
class NestedTables:
    """Results of the paper's Steps I and II."""

    values: Tables
    history: list[tuple[int, float, float]]  # (rounds done, F1, F2) at the ends of chunks and where thresholds are met
    feature_error: float  # median relative error of H against the truth


def nested_tables(setting: Setting, problem: Problem) -> NestedTables:
    """Run Steps I and II by gradient descent, each for the setting's number of batches or the data set's cap.

    If the setting's `steps` is "stopped", F2 is compared at the end of every tenth of Step II, and H is taken from the
    end at which F2 was smallest.

    Args:
        setting: a setting of kind "descent"; its method and the options of Step III are not read.
        problem: the attacked federation, of the setting's sizes.
    """
    features = forward_features(problem)
    history: list[tuple[int, float, float]] = []
    best: list[tuple[float, Tables]] = []  # smallest F2, which the attacker knows, and the tables then; one at most

    def keep(done: int, state: audit.RunState, infos: dict[str, np.ndarray]) -> None:
        history.extend(_passing(done, infos))
        own = state.attack
        if setting.steps != "stopped" or done <= steps_of(setting):
            return
        if not best or float(own.F2) < best[0][0]:
            best[:] = [(float(own.F2), Tables(*(jnp.array(table, copy=True) for table in (own.V, own.H))))]

    values = steps_one_and_two(
        problem,
        features,
        iterations=steps_of(setting),
        batch_size=setting.batch_size,
        key=jax.random.key(setting.seed),
        options=aggregated.published_hyperparameters(table9_row(setting))._asdict() | step_options(setting),
        workers=setting.workers,
        defense=defense_named(setting.defense, batch_size=setting.batch_size),
        callbacks=[keep],
    )
    if setting.steps == "stopped":
        values = best[0][1]
    return NestedTables(values, history, float(np.median(_feature_errors(features, values.H))))


def _feature_errors(features: ArrayLike, found: ArrayLike) -> np.ndarray:
    """Compute relative errors (N, P) of the recovered inputs (N, P, d1) of the first dense layer."""
    true, error = np.asarray(features), np.asarray(found) - np.asarray(features)
    return np.asarray(np.linalg.norm(error, axis=-1) / np.maximum(np.linalg.norm(true, axis=-1), 1e-12))


def _passing(done: int, infos: dict[str, np.ndarray]) -> list[tuple[int, float, float]]:
    """List the first rounds below each threshold, and the last round, of a chunk that ends after `done` rounds."""
    size = len(infos["F1"])
    below = [np.flatnonzero(infos[name] < limit) for name, limit in zip(("F1", "F2"), THRESHOLDS, strict=True)]
    kept = sorted({int(found[0]) for found in below if len(found)} | {size - 1})
    return [(done - size + k + 1, float(infos["F1"][k]), float(infos["F2"][k])) for k in kept]


def descent(setting: Setting, problem: Problem, tables: NestedTables | None) -> dict[str, Any]:
    """Run the paper's Step III after Steps I and II, or a baseline without them.

    Args:
        setting: a setting of kind "descent".
        problem: the attacked federation, of the setting's sizes.
        tables: results of Steps I and II, or None for a method that reads none.

    Returns:
        Scores of `reconstruction_metrics`, `psnr` in dB, and `curve`: pairs of iteration and mean PSNR in dB.
    """
    key = jax.random.key(setting.seed)
    options = {
        **aggregated.published_hyperparameters(table9_row(setting))._asdict(),
        **dict(setting.overrides),
        **step_options(setting),
    }
    defense = defense_named(setting.defense, batch_size=setting.batch_size)
    threat = threats.Threat(statistics=setting.method == "bn", labels=setting.method == "idlg")
    curve: list[tuple[int, float]] = []
    reconstruction, _ = step_three(
        problem,
        lambda model, share: _attack(setting, options, model, share),
        rounds=setting.iterations,
        batch_size=setting.batch_size,
        key=key,
        threat=threat,
        tables=tables.values if tables else None,
        workers=setting.workers,
        defense=defense,
        callbacks=[_curve(problem, curve)],
    )
    known = {"f_history": tables.history, "feature_error": tables.feature_error} if tables else {}
    return {**_psnr(problem, reconstruction, granted=threat.labels), "curve": curve, **known}


def single(setting: Setting, problem: Problem) -> dict[str, Any]:
    """Run the single loop. The model trains meanwhile if the setting's `model_learning_rate` is above 0.

    Every iteration makes all three updates (Algorithm 4), or one of them, chosen by thresholds (Section 4.2).

    Args:
        setting: a setting of kind "single".
        problem: the attacked federation, of the setting's sizes.

    Returns:
        The same dict as `descent`.
    """
    key = jax.random.key(setting.seed)
    curve: list[tuple[int, float]] = []
    reconstruction, _ = step_three(
        problem,
        lambda model, share: _single_loop(setting, model, share),
        rounds=setting.iterations,
        batch_size=setting.batch_size,
        key=key,
        workers=setting.workers,
        optimizer=optimizer_of(setting),
        defense=defense_named(setting.defense, batch_size=setting.batch_size),
        callbacks=[_curve(problem, curve)],
    )
    return {**_psnr(problem, reconstruction), "curve": curve}


def _single_loop(setting: Setting, model: models.SplitModel, share: Any) -> Attack:
    overrides: dict[str, Any] = dict(setting.overrides)
    if setting.method == "cafe-iclr":
        options = aggregated.CAFE_ICLR._replace(**overrides)
    elif setting.method == "cafe-cosine":
        options = aggregated.cosine_options(**aggregated.CAFE_ICLR._replace(**overrides)._asdict())
    else:
        printed = {**aggregated.published_hyperparameters(table9_row(setting))._asdict(), **overrides}
        options = aggregated.CafeOptions(loops="single", switch=setting.switch, **printed)
    return attacks.cafe(model, share, num_samples=setting.num_samples, options=options)


def _attack(setting: Setting, options: dict[str, Any], model: models.SplitModel, share: Any) -> Attack:
    size: dict[str, Any] = {"num_samples": setting.num_samples}
    rate: dict[str, Any] = {"learning_rate": options["data_learning_rate"]}
    if setting.data_optimizer == "normalized":
        rate["optimizer"] = aggregated.CAFE_ICLR.optimizers.data
    nested = {**options, "loops": "nested", "iterations": 1}
    builders: dict[str, Callable[[], Attack]] = {
        "cafe": lambda: attacks.cafe(model, share, **size, options=aggregated.CafeOptions(**nested)),
        "dlg": lambda: aggregated.aligned_dlg(model, share, **size, **rate),
        "idlg": lambda: aggregated.aligned_idlg(model, share, **size, **rate),
        "cosine": lambda: aggregated.aligned_cosine_tv(model, share, **size, beta=options["beta"], **rate),
        "sapag": lambda: aggregated.aligned_sapag(model, share, **size, **rate),
        "bn": lambda: aggregated.aligned_batch_statistics(model, share, **size, **rate),
        "gc": lambda: aggregated.aligned_group_consistency(model, share, **size, **rate),
    }
    return builders[setting.method]()


def pictures(problem: Problem, images: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
    """Keep the first reconstructed images of a run and the truth, for contact sheets.

    Args:
        problem: the attacked federation.
        images: (I, H, W, C), reconstructions of the samples `index`, shown as values in [0, 1].
        index: (I,) sample numbers in ascending order.
    """
    index = index[:PICTURES]
    truth = problem.dataset.x[index]
    return {"index": index, "truth": truth.astype(np.float32), "estimate": images[:PICTURES].astype(np.float32)}


def _curve(problem: Problem, curve: list[tuple[int, float]]) -> audit.Callback:
    """Make a callback that appends (iteration, mean PSNR) to `curve`."""
    everyone = np.arange(len(problem.private.y))

    def record(done: int, state: audit.RunState, _: dict[str, np.ndarray]) -> None:
        x = np.asarray(state.attack.data.x)
        if x.ndim > problem.private.x.ndim:  # group consistency answers the mean of its candidates
            x = x.mean(axis=1)
        curve.append((done, float(image_psnr(problem, x, everyone).mean())))

    return record


def _psnr(problem: Problem, reconstruction: Any, *, granted: bool = False) -> dict[str, Any]:
    scores = reconstruction_metrics(problem, reconstruction, granted=granted)
    everyone = len(problem.private.y)
    found: dict[str, Any] = {"psnr": scores["psnr_mean"], "images": everyone, "images_asked": everyone, **scores}
    if problem.dataset.x.ndim == 4:
        first = np.arange(everyone)[:PICTURES]
        found[PICTURE_KEY] = pictures(problem, problem.assemble(np.asarray(reconstruction.x)[first]), first)
    return found
