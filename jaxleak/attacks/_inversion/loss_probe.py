"""What a client's loss makes of labels, found on a few random logits before an attack relies on it."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Loss
from jaxleak.objectives import cross_entropy, double_softmax_cross_entropy

#: Losses that are known to take labels (B,) and (B, C) alike.
_TAKE_BOTH = (cross_entropy, double_softmax_cross_entropy)
#: Relative difference of two gradients above which they are not those of one loss; rounding leaves about 1e-6.
_SAME_BELOW = 1e-3

_CONTRACT = (
    "loss must take labels (B,) and the same labels as distributions (B, C), which attacks give it, and mean the same "
    "by both, as objectives.cross_entropy does by objectives.soft_labels"
)


def check_soft_labels(loss: Loss, classes: int) -> None:
    """Refuse a loss that means something else by soft labels than the client means by integers.

    A client with labels (B,) and its attacker, who has them as (B, C), would not have one loss. A loss that refuses
    labels (B,), such as one of several labels per image, leaves nothing to compare: its client has labels (B, C) too.

    Args:
        loss: the client's.
        classes: C >= 2.

    Raises:
        ValueError: if the loss takes no soft labels, or has another gradient with them.
    """
    if loss in _TAKE_BOTH:
        return
    # Labels (B,) must not broadcast against logits (B, C), or a loss without them would seem to take them.
    several = 3 if classes == 2 else 2
    for size in (several, 1):
        logits, y = _logits(size, classes), (np.arange(size, dtype=np.int32) + 1) % classes
        soft = _gradient(loss, logits, _one_hot(y, classes))
        if isinstance(soft, Exception):
            reason = " ".join(f"{type(soft).__name__}: {soft}".split())[:200]
            raise ValueError(f"{_CONTRACT}; with labels ({size}, {classes}) this one raises {reason}") from soft
        hard = _gradient(loss, logits, y)
        if isinstance(hard, Exception):
            return
        if not np.linalg.norm(hard - soft) <= _SAME_BELOW * np.linalg.norm(hard):
            raise ValueError(f"{_CONTRACT}; with labels ({size}, {classes}) this one has another gradient")


def _logits(size: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, classes)).astype(np.float32)


def _one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[y]


def _gradient(loss: Loss, logits: np.ndarray, y: np.ndarray) -> np.ndarray | Exception:
    """The loss's gradient by the logits, or what it raised: a function of the user's may raise anything."""
    try:
        with jax.ensure_compile_time_eval():  # an attack may be built inside of a compiled function
            return np.asarray(jax.grad(loss)(jnp.asarray(logits), jnp.asarray(y)))
    except Exception as error:
        return error
