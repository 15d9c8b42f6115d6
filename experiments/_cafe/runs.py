"""The runs behind the cells of the CAFE tables: the exact engine, the paper's descent, single loops, and training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import attacks, audit, defenses, models, protocols, threats
from jaxleak._base import Attack, PyTree
from jaxleak.attacks import aggregated
from jaxleak.objectives import cross_entropy
from jaxleak.study import rounds
from jaxleak.study.rounds import (
    SWEEPS,
    Knowledge,
    Problem,
    channel_peak_psnr,
    forward_features,
    image_psnr,
    observe_and_recover,
)

#: Interpretations of the paper's fake gradients, by name; the first reproduces the paper's numbers.
FAKE: dict[str, dict[str, Any]] = {
    "fake-capped": {"reading": "clamped", "scale": "gradient"},
    "fake-printed": {"reading": "printed", "scale": "absolute"},
    "fake-relative": {"reading": "clamped", "scale": "tensor"},
    "fake-repaired": {"reading": "clamped", "scale": "absolute"},
    "fake-paired-tensor": {"reading": "paired", "scale": "tensor"},
    "fake-paired": {"reading": "paired", "scale": "gradient"},
}
#: What an attacker knows of them, by name. A name is missing where every entry is noise of a size that says nothing.
KNOWLEDGE: dict[str, Knowledge] = {
    "fake-repaired": "clamped",
    "fake-relative": "clamped",
    "fake-capped": "clamped-gradient",
    "fake-paired": "paired-gradient",
    "fake-paired-tensor": "paired-tensor",
}


#: So many reconstructions of a run are kept as pictures.
PICTURES = 16
#: Where they stand among a run's results.
PICTURE_KEY = "pictures"

#: Table 5's caps on the iterations of every step, which are also those of Steps I and II here.
CAPS = {"linnaeus5": 20_000}
CAP = 8_000
#: F1 and F2 below which the paper passes on to the next step.
THRESHOLDS = (1e-9, 5e-9)


@dataclass(frozen=True)
class Setting:
    """One configuration to run. Defaults are those of NeurIPS 2021, Table 2."""

    kind: Literal["exact", "descent", "single", "training"]
    dataset: str = "mnist"
    num_samples: int = 800
    batch_size: int = 40
    parties: int = 4
    workers: int = 0  # M > 0: horizontal with one party
    method: str = "cafe"
    overrides: tuple[tuple[str, float], ...] = ()  # values that replace Table 9's hyper-parameters
    iterations: int = 0
    images: int = 32
    model_learning_rate: float = 0.0
    model_optimizer: str = "sgd"
    switch: bool = False  # the single loop passes on by thresholds
    defense: str = "none"
    adaptive: bool = False  # the exact engine's attacker knows that the defense is fake gradients
    network: Literal["cafe", "cafe-small"] = "cafe"
    seed: int = 0


def exact(setting: Setting, problem: Problem) -> dict[str, Any]:
    """The exact engine: Steps I and II on all samples, Step III on the first `images`.

    Undefended, samples for which the attack says that it has no answer are left out of the PSNR; `images` says how many
    of the `images_asked` are left, and `answered` is the share of answers among all samples. Against a defense
    everything is inverted: leaving samples out would flatter the attack.
    """
    defense = _defense(setting.defense)
    knows = KNOWLEDGE[setting.defense] if setting.adaptive else "nothing"
    plan = attacks.plan_cafe_exact(
        problem.model,
        num_samples=setting.num_samples,
        batch_size=setting.batch_size,
        workers=max(1, setting.workers),
    )
    if knows not in ("nothing", "clamped"):
        # Step I gains from rounds, and every sweep of Step II shows each sample eight times.
        plan = plan._replace(
            output_rounds=2 * plan.output_rounds,
            feature_rounds=SWEEPS * math.ceil(8 * setting.num_samples / setting.batch_size),
        )
    recovery = observe_and_recover(
        problem,
        forward_features(problem),
        plan,
        key=jax.random.key(setting.seed),
        horizontal=setting.workers > 0,
        defense=defense,
        knows=knows,
    )
    shown = recovery.answered[: setting.images] if defense is None else np.ones(setting.images, bool)
    wanted = np.flatnonzero(shown)
    answered = float(recovery.answered.mean())
    counts = {"answered": answered, "images": len(wanted), "images_asked": len(shown)}
    if not len(wanted):
        # In MNIST cut into sixteen tiles, for example, every image has a blank tile, through which no gradient passes.
        return {"psnr": float("nan"), **counts}
    result = aggregated.invert_slices(
        problem.model, problem.params, recovery.H[wanted], wanted, seed=setting.seed, chunk=8
    )
    psnr = np.minimum(image_psnr(problem, result.x, wanted), 200.0)
    scores: dict[str, Any] = {"psnr": float(psnr.mean()), **counts}
    if problem.dataset.x.ndim == 4:
        images = problem.assemble(np.asarray(result.x))
        scores["psnr_channel_peak"] = channel_peak_psnr(problem, images, wanted)
        scores[PICTURE_KEY] = pictures(problem, images, wanted)
    return scores


@dataclass(frozen=True)
class NestedTables:
    """Outcome of the paper's Steps I and II."""

    values: rounds.Tables
    history: list[tuple[int, float, float]]  # (rounds done, F1, F2) where a step ends a chunk or first passes on
    feature_error: float  # truth-side, median relative error of H


def nested_tables(setting: Setting, problem: Problem) -> NestedTables:
    """Steps I and II by gradient descent, as many batches each as the data set's cap."""
    features = forward_features(problem)
    history: list[tuple[int, float, float]] = []
    values = rounds.steps_one_and_two(
        problem,
        features,
        iterations=cap(setting.dataset),
        batch_size=setting.batch_size,
        key=jax.random.key(setting.seed),
        options=aggregated.published_hyperparameters(_table9_row(setting))._asdict(),
        workers=setting.workers,
        defense=_defense(setting.defense),
        callbacks=[lambda done, _, infos: history.extend(_passing(done, infos))],
    )
    error = np.linalg.norm(values.H - features, axis=-1) / np.maximum(np.linalg.norm(features, axis=-1), 1e-12)
    return NestedTables(values, history, float(np.median(error)))


def cap(dataset: str) -> int:
    """The most iterations that a step takes."""
    return CAPS.get(dataset, CAP)


def _passing(done: int, infos: dict[str, np.ndarray]) -> list[tuple[int, float, float]]:
    """The first rounds below the thresholds, and the last round, of a chunk that ends after `done` rounds."""
    size = len(infos["F1"])
    below = [np.flatnonzero(infos[name] < limit) for name, limit in zip(("F1", "F2"), THRESHOLDS, strict=True)]
    kept = sorted({int(found[0]) for found in below if len(found)} | {size - 1})
    return [(done - size + k + 1, float(infos["F1"][k]), float(infos["F2"][k])) for k in kept]


def descent(setting: Setting, problem: Problem, tables: NestedTables | None) -> dict[str, Any]:
    """The paper's Step III after Steps I and II, or a baseline without them."""
    key = jax.random.key(setting.seed)
    options = {
        **aggregated.published_hyperparameters(_table9_row(setting))._asdict(),
        **dict(setting.overrides),
    }
    defense = _defense(setting.defense)
    threat = threats.Threat(statistics=setting.method == "bn", labels=setting.method == "idlg")
    curve: list[tuple[int, float]] = []
    reconstruction, _ = rounds.step_three(
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
    return {**_psnr(problem, reconstruction), "curve": curve, **known}


def single(setting: Setting, problem: Problem) -> dict[str, Any]:
    """The single loop, while the model trains if it has a learning rate.

    All three updates in every iteration (Algorithm 4), or one of them, passing on by thresholds (Section 4.2).
    """
    key = jax.random.key(setting.seed)
    curve: list[tuple[int, float]] = []
    reconstruction, _ = rounds.step_three(
        problem,
        lambda model, share: _single_loop(setting, model, share),
        rounds=setting.iterations,
        batch_size=setting.batch_size,
        key=key,
        workers=setting.workers,
        optimizer=_optimizer(setting),
        defense=_defense(setting.defense),
        callbacks=[_curve(problem, curve)],
    )
    return {**_psnr(problem, reconstruction), "curve": curve}


def training(setting: Setting, problem: Problem) -> dict[str, Any]:
    """No attack: the model's training loss on the private set, and accuracy on held-out samples, along the way."""
    key = jax.random.key(setting.seed)
    protocol = protocols.vertical(
        problem.model,
        num_samples=setting.num_samples,
        batch_size=setting.batch_size,
        optimizer=_optimizer(setting),
        defense=_defense(setting.defense),
    )
    private, test = problem.private, problem.held_out
    watch = Attack(lambda key, template: jnp.zeros(()), lambda key, state, observation: (state, {}), _no_reconstruction)

    @jax.jit
    def evaluate(params: PyTree) -> tuple[jax.Array, jax.Array]:
        def logits(x: jax.Array) -> jax.Array:
            return jax.lax.map(lambda one: problem.model.apply(params, one[None])[0], x, batch_size=100)

        loss = cross_entropy(logits(private.x), private.y)
        return loss, jnp.mean(jnp.argmax(logits(test.x), axis=-1) == test.y)

    curve: list[tuple[int, float, float]] = []

    def record(done: int, state: audit.RunState, _: dict[str, np.ndarray]) -> None:
        loss, accuracy = evaluate(state.protocol.params)
        curve.append((done, float(loss), float(accuracy)))

    start = audit.start(watch, protocol, private, key=key)
    record(0, start, {})
    try:
        audit.run(
            watch,
            protocol,
            threats.HONEST_BUT_CURIOUS_SERVER,
            private,
            key=key,
            rounds=setting.iterations,
            state=start,
            chunk=max(10, setting.iterations // 40),  # so that Table 11's rounds, all in thousands, are recorded
            callbacks=[record],
        )
    except FloatingPointError:
        curve.append((setting.iterations, float("nan"), float("nan")))
    return {"curve": curve}


def _table9_row(setting: Setting) -> str:
    # The ICLR data set CIFAR-100 has no row; it takes that of CIFAR-10.
    return setting.dataset if setting.dataset in aggregated.TABLE9 else "cifar10"


def _single_loop(setting: Setting, model: models.SplitModel, share: Any) -> Attack:
    overrides: dict[str, Any] = dict(setting.overrides)
    if setting.method == "cafe-iclr":
        options = aggregated.CAFE_ICLR._replace(**overrides)
    else:
        printed = {**aggregated.published_hyperparameters(_table9_row(setting))._asdict(), **overrides}
        options = aggregated.CafeOptions(loops="single", switch=setting.switch, **printed)
    return attacks.cafe(model, share, num_samples=setting.num_samples, options=options)


def _attack(setting: Setting, options: dict[str, Any], model: models.SplitModel, share: Any) -> Attack:
    size: dict[str, Any] = {"num_samples": setting.num_samples}
    rate: dict[str, Any] = {"learning_rate": options["data_learning_rate"]}
    nested = {**options, "loops": "nested", "iterations": 1}
    builders: dict[str, Callable[[], Attack]] = {
        "cafe": lambda: attacks.cafe(model, share, **size, options=aggregated.CafeOptions(**nested)),
        "cafe-cosine": lambda: attacks.cafe(model, share, **size, options=aggregated.cosine_options(**nested)),
        "dlg": lambda: aggregated.aligned_dlg(model, share, **size, **rate),
        "idlg": lambda: aggregated.aligned_idlg(model, share, **size, **rate),
        "cosine": lambda: aggregated.aligned_cosine_tv(model, share, **size, beta=options["beta"], **rate),
        "sapag": lambda: aggregated.aligned_sapag(model, share, **size, **rate),
        "bn": lambda: aggregated.aligned_batch_statistics(model, share, **size, **rate),
        "gc": lambda: aggregated.aligned_group_consistency(model, share, **size, **rate),
    }
    return builders[setting.method]()


def pictures(problem: Problem, images: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
    """The first reconstructed images of a run beside the truth, to be looked at.

    Args:
        problem: what is attacked.
        images: (I, H, W, C), reconstructions of samples `index`.
        index: (I,) rising sample numbers.
    """
    index = index[:PICTURES]
    truth = problem.dataset.x[index]
    return {"index": index, "truth": truth.astype(np.float32), "estimate": images[:PICTURES].astype(np.float32)}


def _optimizer(setting: Setting) -> optax.GradientTransformation | None:
    if not setting.model_learning_rate:
        return None
    return {"sgd": optax.sgd, "adam": optax.adam}[setting.model_optimizer](setting.model_learning_rate)


def _defense(name: str) -> defenses.Defense | None:
    if name == "none":
        return None
    if name.startswith("dp-"):
        epsilon = float(name.removeprefix("dp-"))
        return defenses.clipped_gaussian(3.0, defenses.noise_multiplier_for(epsilon, 1e-5))
    # With millions of entries sorted noise hardly varies between draws, so a pool of one replaces the paper's 1000.
    return defenses.fake_gradients(pool_size=1, **FAKE[name])


def _curve(problem: Problem, curve: list[tuple[int, float]]) -> audit.Callback:
    """A callback that appends (iteration, mean PSNR) to `curve`."""
    everyone = np.arange(len(problem.private.y))

    def record(done: int, state: audit.RunState, _: dict[str, np.ndarray]) -> None:
        x = np.asarray(state.attack.data.x)
        if x.ndim > problem.private.x.ndim:  # group consistency answers the mean of its candidates
            x = x.mean(axis=1)
        curve.append((done, float(image_psnr(problem, x, everyone).mean())))

    return record


def _psnr(problem: Problem, reconstruction: Any) -> dict[str, Any]:
    scores = rounds.reconstruction_metrics(problem, reconstruction)
    everyone = len(problem.private.y)
    found: dict[str, Any] = {"psnr": scores["psnr_mean"], "images": everyone, "images_asked": everyone, **scores}
    if problem.dataset.x.ndim == 4:
        first = np.arange(everyone)[:PICTURES]
        found[PICTURE_KEY] = pictures(problem, problem.assemble(np.asarray(reconstruction.x)[first]), first)
    return found


def _no_reconstruction(state: PyTree, observation: Any) -> Any:
    raise ValueError("training without an attack reconstructs nothing")
