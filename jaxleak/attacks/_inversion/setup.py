"""What an inversion is built for: a model, what the client ran on it, and how many images are behind the payload."""

import functools
from typing import NamedTuple

from jaxleak._base import BatchNormMode, Share
from jaxleak.models import Classifier


class Setup(NamedTuple):
    """What the parts of an inversion are made from; nothing in it is private."""

    model: Classifier
    share: Share
    batch_size: int  # B, the number of images

    @property
    def mode(self) -> BatchNormMode:
        """How the client normalised."""
        return self.share.batch_norm

    @property
    def parts(self) -> int:
        """How many parts of the batch were computed one after the other, or by several clients."""
        return self.share.local_steps * self.share.clients

    def check_parts(self) -> None:
        """Raise `ValueError` if the images are not equally many of every step of every client."""
        if self.batch_size % self.parts:
            raise ValueError(
                "batch_size must be the number of all samples behind the payload, a multiple of clients * local_steps "
                f"= {self.parts}, got {self.batch_size}"
            )

    @property
    def of_a_step(self) -> int:
        """How many images are behind one step of one client."""
        return max(1, self.batch_size // self.parts)

    @property
    def coupled_kinks(self) -> bool:
        """Whether statistics of the batch couple kinks, as in a ResNet of ReLUs in training mode."""
        return self.model.mixes_images(self.mode) and has_kinks(self.model)


@functools.lru_cache(maxsize=8)  # tracing a deep network takes seconds
def has_kinks(model: Classifier) -> bool:
    """`Classifier.has_kinks`, remembered."""
    return model.has_kinks
