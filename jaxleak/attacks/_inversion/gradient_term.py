"""The data term of nearly all inversions: the distance of the observed from the simulated gradient."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Batch, Observation, PyTree
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.objectives import Distance, Selection, apply_mask, cosine

#: Below this cosine distance between the observed and the simulated gradient the gradient counts as matched. This is a
#: convention, and it says nothing about the image. In our runs iDLG on a sigmoid ResNet ended at 0.0012 with 9.9 dB
#: where a grey image scores 13.1, an attack on a vision transformer at 3.6e-6 with 12.8 dB, and digits out of a
#: generator at 0.004 with 13 dB; a smoothed attack on a ResNet found an image of SSIM .99 and stayed at 0.08.
MATCHED_BELOW = 0.01


class Gradients(NamedTuple):
    """Compare whole gradients or updates, or the entries that a selection picks."""

    distance: Distance
    selection: Selection | None = None  # which entries are compared; None compares all

    @property
    def reads_labels(self) -> bool:
        """A gradient depends on the labels."""
        return True

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """The whole payload is compared."""
        del model, batch_size
        return None

    def term(self, setup: Setup) -> DataTerm:
        """The distance of what was observed from what `setup.share` makes of the candidate."""
        distance, selection = self

        def compare(
            observation: Observation, x: jax.Array, y: jax.Array, mask: PyTree, sharpness: Sharpness
        ) -> Compared:
            batch = Batch(x[:, None], y, jnp.arange(setup.batch_size))
            observed = observation.payload
            simulated = setup.share(observation.params, batch, sharpness=sharpness)
            if mask is None and selection is not None:
                mask = selection(observed, simulated)
            if mask is not None:
                value = distance(apply_mask(mask, observed), apply_mask(mask, simulated))
            else:
                value = distance(observed, simulated)
            return Compared(mask, value, jax.lax.stop_gradient(cosine(observed, simulated)))

        return DataTerm(compare, MATCHED_BELOW)
