"""What an inversion reads of an observation, and what it refuses before anything is compiled."""

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Observation
from jaxleak.attacks._inversion.label_rules import LABEL_RULES, infer_labels
from jaxleak.attacks._inversion.row_space import informative_layers
from jaxleak.attacks._inversion.settings import Settings, check_settings
from jaxleak.attacks._observed import check_shapes, require_leaves, require_params
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode


def check(model: Classifier, s: Settings, batch_size: int) -> None:
    """Refuse settings that no attack on so many images through this model could mean; nothing is compiled.

    Raises:
        ValueError: naming the field and its range.
    """
    _validate.count(batch_size=batch_size)
    check_settings(s, model)
    if s.labels in LABEL_RULES:
        # A rule outside its range says so before anything is compiled.
        variables = jax.eval_shape(model.init, jax.random.key(0))
        seen = Observation(jnp.zeros((), jnp.int32), variables, variables["params"])
        jax.eval_shape(
            lambda seen: inferred_labels(model, s, seen, batch_size, jax.random.key_data(jax.random.key(0))), seen
        )


def leaves_read(model: Classifier, settings: Settings, *, batch_size: int) -> tuple[str, ...] | None:
    """Which part of the payload an inversion reads: paths like "head", with all below; None is the whole.

    Row spaces take a few layers, and the head where a rule infers labels: the rest may be encrypted, frozen or lost.

    Raises:
        ValueError: if no layer's row space says anything about so many images.
    """
    if settings.row_space is None:
        return None
    layers = informative_layers(model, settings.row_space, batch_size)
    kernels = tuple(f"{layer}/kernel" for layer in layers)
    return (*kernels, model.head) if settings.labels in LABEL_RULES else kernels


def require(observation: Observation, s: Settings, read: tuple[str, ...] | None) -> None:
    """`ValueError` if the threat withholds what is read, or the payload does not fit the model."""
    params = require_params(observation)
    require_leaves(observation, params["params"], read, why="gradient inversion")
    # A leaf that broadcasts against the model's would be compared without an error, and matched with nothing.
    check_shapes(observation.payload, params, read)
    if s.batch_norm and observation.statistics is None:
        raise ValueError("batch_norm > 0 matches the batch's statistics; the threat must grant statistics")


def batch_norm_mode(model: Classifier, share: object) -> BatchNormMode:
    """How the client normalised, by its own account; `ValueError` where it gives none."""
    if not model.has_batch_norm:
        return "train"
    mode = getattr(share, "batch_norm", None)
    if mode is None:
        raise ValueError('share must say how the client normalised: an attribute batch_norm, "train" or "eval"')
    return mode


def inferred_labels(
    model: Classifier, s: Settings, observation: Observation, batch_size: int, label_key: jax.Array
) -> jax.Array:
    """(B,) what the rule of `s` reads off the head's gradient."""
    if model.head not in observation.params["params"]:
        raise ValueError(f"the model's head is {model.head!r}, which its parameters do not hold")
    gradient, weights = observation.payload[model.head], observation.params["params"][model.head]
    return infer_labels(
        s.labels,
        gradient["kernel"],
        gradient.get("bias"),
        batch_size,
        kernel=weights["kernel"],
        bias=weights.get("bias"),
        key=jax.random.wrap_key_data(label_key) if s.labels == "random" else None,
    )
