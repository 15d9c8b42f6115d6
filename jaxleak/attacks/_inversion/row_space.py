"""Gradient inversion without the backward pass: match the row spaces of layers instead of their gradients.

In a deep network with batch statistics the gradient is chaotic: the image at 40 dB has one that is nearly as far from
the truth's as any other image's (`experiments.basin`), so that descending a distance of gradients leads nowhere. Most
of that comes back from the layers above. `row_space_distance` leaves what comes back free and compares only what went
in, of the first layers that have fewer output pixels than inputs of each: half as deep, one derivative instead of two,
no labels.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import Observation, PyTree
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.rows import sizes_of_rows
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BatchNormMode
from jaxleak.objectives import row_space_distance

#: A layer is informative if its rows, centred, span at most this share of their space.
LARGEST_SHARE = 0.5

#: Below this distance the row spaces count as matched. This is a convention: the ridge leaves .009 at the truth,
#: answers of SSIM .97 had up to .017, tinted ones .03 and .06, misses .15.
ROWS_MATCHED_BELOW = 0.02


class RowSpaces(NamedTuple):
    """Compare the row spaces of a few layers in place of gradients."""

    layers: int = 4  # how many layers, from the first informative one on
    ridge: float = 0.01  # the ridge of the distance

    @property
    def reads_labels(self) -> bool:
        """What went into a layer does not depend on the labels."""
        return False

    def leaves(self, model: Classifier, batch_size: int) -> tuple[str, ...] | None:
        """The kernels of the layers that are compared; raises `ValueError` if the model has none for so many images."""
        _validate.count(layers=self.layers)
        return informative_layers(model, self, batch_size)

    def term(self, setup: Setup) -> DataTerm:
        """The mean distance of row spaces over the layers.

        Raises:
            ValueError: on values out of range, or if no layer's row space says anything about so many images.
        """
        _validate.count(layers=self.layers)
        _validate.positive(ridge=self.ridge)
        layers = informative_layers(setup.model, self, setup.batch_size)
        measure = distance_of_rows(setup.model, self, layers, setup.mode)

        def compare(
            observation: Observation, x: jax.Array, y: jax.Array, mask: PyTree, sharpness: Sharpness
        ) -> Compared:
            del y, mask
            distance = measure(observation.params, observation.payload, x, sharpness)
            return Compared(None, distance, jax.lax.stop_gradient(distance))

        return DataTerm(compare, ROWS_MATCHED_BELOW)


def informative_layers(model: Classifier, plan: RowSpaces, batch_size: int) -> tuple[str, ...]:
    """The layers whose row spaces are compared, by the names of their kernels.

    Raises:
        ValueError: if the model has none for so many images.
    """
    sizes = sizes_of_rows(model, batch_size)
    fit = [name for name, (n, k) in sizes.items() if n <= LARGEST_SHARE * k]
    if not fit:
        least = min((n / k for n, k in sizes.values()), default=float("inf"))
        raise ValueError(
            f"row_space needs a layer with at most {LARGEST_SHARE:g} output pixels per input of each; with batch_size "
            f"= {batch_size} this model's best has {least:.2g}"
        )
    return tuple(fit[: plan.layers])


def distance_of_rows(
    model: Classifier, plan: RowSpaces, layers: tuple[str, ...], mode: BatchNormMode
) -> Callable[[PyTree, PyTree, jax.Array, Sharpness], jax.Array]:
    """Mean of `row_space_distance` over such layers, from variables, payload, images and sharpness."""

    def distance(variables: PyTree, payload: PyTree, x: jax.Array, sharpness: Sharpness) -> jax.Array:
        rows = model.rows(variables, x, mode=mode, sharpness=sharpness)
        total = jnp.zeros(())
        for name in layers:
            gradient = _tree.named_leaves(payload)[name]
            # In these models statistics normalise the outputs of every convolution or of none, and of no dense layer.
            centred = model.mixes_images(mode) and gradient.ndim == 4
            matrix = model.matrix(name, gradient)
            total += row_space_distance(rows[name], matrix, ridge=plan.ridge, centred=centred)
        return total / len(layers)

    return distance
