"""Estimates of an inversion's time, made from the operations of a forward pass before anything is run."""

import functools
import math

import jax
import jax.numpy as jnp

from jaxleak.attacks import presets
from jaxleak.study.sources import form_of
from jaxleak.study.updates._attacker import resolved
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import build_model
from jaxleak.study.updates._training import Training

#: Floating-point operations per second of an attack: measured on one busy CPU core, and guessed for an accelerator.
RATE = {"cpu": 4e10, "other": 4e12}
#: Cost of one gradient of a gradient distance in forward passes; and number of evaluations in an L-BFGS iteration.
SECOND_ORDER, LINE_SEARCH = 8.0, 5.0
#: Cost of one gradient of the loss in forward passes; attacks without second derivatives evaluate only these.
FIRST_ORDER = 3.0
#: Floating-point operations of a generator's training per pixel of a public image and epoch.
GENERATOR = 6e4
#: Least number of seconds that an iteration takes.
OVERHEAD = 2e-3
#: Seconds that a compilation takes.
COMPILE_SECONDS = 30.0

_OF_THE_FORWARD_PASS = ("model", "activation", "width", "init", "mean", "std", "data", "weights", "batch_norm")


def seconds_of_update(case: Case, training: Training | None = None) -> float:
    """Estimate the seconds of one seed on one CPU core or on an accelerator, with `COMPILE_SECONDS` for compilation.

    Args:
        case: the case, which says what is attacked and with which attack.
        training: training of the attacked model, if its weights come from `trained`.

    Raises:
        ValueError, FileNotFoundError: if the data cannot be loaded.
    """
    s = resolved(case).settings
    forward = forward_seconds(case)
    evaluations: float = s.group * case.restarts * (2 if s.regularization.blend else 1)
    if case.attack in presets.LINE_SEARCHES and case.optimizer is None:
        evaluations *= LINE_SEARCH
    if s.gradient_free:
        evaluations *= presets.GGL_POPULATION * FIRST_ORDER / SECOND_ORDER
    each = max(OVERHEAD, SECOND_ORDER * case.images * case.local_epochs * forward) * evaluations
    learning = 0.0
    if case.attack in presets.GENERATIVE:
        pixels = math.prod(form_of(case.data)[0][:2])
        learning += GENERATOR / _rate() * pixels * case.public_samples * case.generator_epochs
    if training is not None:
        samples = training.rounds * training.clients_per_round * training.local_steps * training.batch_size
        learning += seconds_of_training(case, samples)
    return COMPILE_SECONDS + case.iterations * each + learning


def seconds_of_training(case: Case, samples: int) -> float:
    """Estimate the seconds that gradient descent takes to train on this number of samples.

    Args:
        case: case that names the model, and the data that give the size of the images.
        samples: number of samples of all steps together, >= 1.
    """
    return (1 + FIRST_ORDER) * forward_seconds(case) * samples


def forward_seconds(case: Case) -> float:
    """Estimate the seconds of one image's forward pass through the case's model.

    Args:
        case: case that names the model, and the data that give the size of the images.
    """
    # Counting operations traces the model, so the count is cached by the only options that change the model.
    return _forward_operations(Case(**{name: getattr(case, name) for name in _OF_THE_FORWARD_PASS})) / _rate()


def parameter_count(case: Case) -> int:
    """Count the entries of all parameters of the case's model.

    Args:
        case: case that names the model, and the data that give the size of the images and the number of classes.
    """
    shape, classes = form_of(case.data)
    model = build_model(case, shape, classes)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))["params"]))


def _rate() -> float:
    return RATE.get(jax.default_backend(), RATE["other"])


@functools.cache
def _forward_operations(case: Case) -> float:
    """Count the floating-point operations of one image's forward pass, as XLA does."""
    shape, classes = form_of(case.data)
    model = build_model(case, shape, classes)
    variables = jax.eval_shape(model.init, jax.random.key(0))
    count = 2 if case.own_model else 1  # PyTorch's batch normalisation refuses a batch with one value per channel
    images = jax.ShapeDtypeStruct((count, *shape), jnp.float32)
    forward = jax.jit(lambda v, x: model.apply(v, x, mode=case.batch_norm).logits)  # type: ignore[arg-type]
    try:
        with jax.default_device(jax.devices("cpu")[0]):
            analysis = forward.lower(variables, images).cost_analysis()
    except RuntimeError:  # JAX_PLATFORMS has no CPU; other devices count the operations of compiled programs only
        analysis = forward.lower(variables, images).compile().cost_analysis()
    return float(analysis["flops"]) / count  # type: ignore[index, call-overload]
