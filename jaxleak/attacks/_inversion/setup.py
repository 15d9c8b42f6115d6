"""What an inversion is built for: a model, the client's share, and the number of images behind the payload."""

import functools
from typing import NamedTuple

from jaxleak._base import BatchNormMode, Share
from jaxleak.models import Classifier


class Setup(NamedTuple):
    """The public facts from which the parts of an inversion are made."""

    model: Classifier
    share: Share
    batch_size: int  # B, the number of images

    @property
    def mode(self) -> BatchNormMode:
        """The client's mode of batch normalisation."""
        return self.share.batch_norm

    @property
    def parts(self) -> int:
        """Number of parts of the batch: one for each local step of each client."""
        return self.share.local_steps * self.share.clients

    def check_parts(self) -> None:
        """Raise `ValueError` if the images cannot be split equally among all steps of all clients."""
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
