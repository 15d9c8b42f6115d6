"""Tests, on a few random logits, of how a client's loss treats labels, before an attack relies on it."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Loss
from jaxleak.objectives import cross_entropy
from jaxleak.objectives._losses import needs_distributions

#: Relative difference of two gradients above which they belong to different losses; rounding leaves about 1e-6.
_SAME_BELOW = 1e-3

#: Relative difference from a multiple of the mean cross-entropy's gradient up to which label rules are valid. The
#: logits here are those of a network that is not sure yet. On them, labels smoothed by 0.1 stay below (0.01 to 0.05),
#: and so does a focal loss of ten classes or more (0.04 to 0.07). Class weights from 0.8 to 1.2 (from 0.12 on), a focal
#: loss of two classes, squared losses, binary cross-entropies and a second softmax lie above.
_RULES_SERVE_BELOW = 0.08
#: Number of samples of this test. One sample of two classes has the same gradient direction under nearly every loss.
_SAMPLES = 128

_CONTRACT = (
    "loss must take labels (B,) and the same labels as distributions (B, C), which attacks give it, and mean the same "
    "by both, as objectives.cross_entropy does by objectives.soft_labels"
)


def check_soft_labels(loss: Loss, classes: int, batch_size: int) -> None:
    """Refuse a loss that treats soft labels differently from the same labels as integers.

    With such a loss, a client with labels (B,) and its attacker, who has them as (B, C), would compute two different
    losses. A loss that refuses labels (B,), such as one for several labels per image, leaves nothing to compare: its
    client has labels (B, C) too.

    Args:
        loss: the client's loss.
        classes: number of classes C >= 2.
        batch_size: batch size B >= 1 of one step, the only size that the loss must take.

    Raises:
        ValueError: if the loss takes no soft labels, or has another gradient with them.
    """
    if needs_distributions(loss):  # jaxleak's own, which take labels of both shapes
        return
    # Labels (1,) and (C,) broadcast against logits (B, C), so a loss that takes no labels (B,) would seem to take them.
    several = 3 if classes == 2 else 2
    slope = jax.jit(jax.grad(loss))
    for size in dict.fromkeys((several, batch_size)):
        logits, y = _logits(size, classes), (np.arange(size, dtype=np.int32) + 1) % classes
        soft, hard = (_called(slope, logits, labels) for labels in (_one_hot(y, classes), y))
        if isinstance(soft, Exception):
            if size != batch_size:
                continue  # the loss may have weights for the client's samples
            reason = " ".join(f"{type(soft).__name__}: {soft}".split())[:200]
            raise ValueError(f"{_CONTRACT}; with labels ({size}, {classes}) this one raises {reason}") from soft
        if isinstance(hard, Exception):
            return
        if np.linalg.norm(hard - soft) > _SAME_BELOW * np.linalg.norm(hard):  # False if either is NaN
            raise ValueError(f"{_CONTRACT}; with labels ({size}, {classes}) this one has another gradient")


def scale_for_rules(loss: Loss, classes: int, batch_size: int) -> float:
    """The factor by which a loss's gradient by the logits exceeds the mean cross-entropy's, (softmax - label) / B.

    For a sum over the batch the factor is exactly B; for smoothed labels it is nearly 1 - smoothing. Label rules that
    count would take such a factor for more or fewer samples, so gradients are divided by it.

    Args:
        loss: the client's loss.
        classes: number of classes C >= 2.
        batch_size: batch size B >= 1 of one step.

    Returns:
        The factor; 1 for the mean cross-entropy.

    Raises:
        ValueError: if the gradient is no such multiple, so that label rules would misread it, or if the loss takes no
            soft labels.
    """
    if loss is cross_entropy:
        return 1.0
    # Labels run from the first class to the last one, so that class weights, if there are any, differ among them.
    draws = -(-_SAMPLES // batch_size)
    labels = np.linspace(0, classes - 1, draws * batch_size).round().astype(np.int32).reshape(draws, batch_size)
    soft, logits = _one_hot(labels, classes), _logits(labels.size, classes).reshape(*labels.shape, classes)
    found = _called(jax.jit(jax.vmap(jax.grad(loss))), logits, soft)
    if isinstance(found, Exception):
        raise ValueError(f"loss must take soft labels (B, C): {type(found).__name__}: {found}") from found
    exponentials = np.exp(logits)
    wanted = (exponentials / exponentials.sum(axis=-1, keepdims=True) - soft) / batch_size
    own, expected = np.ravel(found), np.ravel(wanted)
    factor = float(own @ expected / (expected @ expected))
    if not np.linalg.norm(own - factor * expected) <= _RULES_SERVE_BELOW * abs(factor) * np.linalg.norm(expected):
        raise ValueError(
            "label rules read the gradient of a loss by the logits as a multiple of (softmax - label) / B, that of "
            "objectives.cross_entropy, and that of this loss is none"
        )
    return factor


def _logits(size: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(size, classes)).astype(np.float32)


def _one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[y]


def _called(slope: Loss, logits: np.ndarray, y: np.ndarray) -> np.ndarray | Exception:
    """A loss's gradient by the logits, or the exception that it raised: a user's function may raise anything."""
    try:
        with jax.ensure_compile_time_eval():  # an attack may be built inside of a compiled function
            return np.asarray(slope(jnp.asarray(logits), jnp.asarray(y)))
    except Exception as error:
        return error
