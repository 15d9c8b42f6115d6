"""What an inversion is built for: a model, what the client ran on it, and how many images are behind the payload."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from jaxleak._base import PyTree
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode

#: `share(variables, batch, sharpness=...) -> payload`, differentiable in the batch: what the client ran.
SmoothableShare: TypeAlias = Callable[..., PyTree]


class Setup(NamedTuple):
    """What the parts of an inversion are made from; nothing in it is private."""

    model: Classifier
    share: SmoothableShare
    batch_size: int  # B, the number of images
    mode: BatchNormMode  # how the client normalised

    @property
    def parts(self) -> int:
        """How many parts of the batch were computed one after the other, or by several clients."""
        return getattr(self.share, "local_steps", 1) * getattr(self.share, "clients", 1)

    @property
    def coupled_kinks(self) -> bool:
        """Whether statistics of the batch couple kinks, as in a ResNet of ReLUs in training mode."""
        return self.model.has_batch_norm and self.mode == "train" and has_kinks(self.model)


@functools.lru_cache(maxsize=8)  # tracing a deep network takes seconds
def has_kinks(model: Classifier) -> bool:
    """`Classifier.has_kinks`, remembered."""
    return model.has_kinks


def batch_norm_mode(model: Classifier, share: object) -> BatchNormMode:
    """How the client normalised, by its own account; `ValueError` where it gives none."""
    if not model.has_batch_norm:
        return "train"
    mode = getattr(share, "batch_norm", None)
    if mode is None:
        raise ValueError('share must say how the client normalised: an attribute batch_norm, "train" or "eval"')
    return mode
