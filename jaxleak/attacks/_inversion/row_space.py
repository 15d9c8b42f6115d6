"""Gradient inversion without the backward pass: match the row spaces of layers instead of their gradients.

In a deep network with batch statistics the gradient is chaotic. Even an image at 40 dB has a gradient that is nearly as
far from the true gradient as that of any other image (`experiments.basin`), so descending a distance of gradients leads
nowhere. Most of this chaos comes from the backward pass through the layers above. `row_space_distance` leaves the
result of the backward pass free and compares only the inputs of layers. It takes the first layers that have fewer
output pixels than inputs per pixel. This is half as deep, needs one derivative instead of two, and needs no labels.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import Observation, PyTree
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.rows import sizes_of_rows
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BatchNormMode
from jaxleak.objectives import row_space_distance

#: A layer is informative if its centred rows span at most this share of their space.
LARGEST_SHARE = 0.5

#: Distance below which the row spaces count as matched. The value is a convention: the ridge leaves .009 at the truth,
#: answers of SSIM .97 had up to .017, tinted ones .03 and .06, misses .15.
ROWS_MATCHED_BELOW = 0.02
#: A constant added to a layer's outputs counts as having no effect if it changes the logits by less than this share of
#: the change that flipping the kernel's sign causes.
_NO_EFFECT_BELOW = 1e-2
#: Standard deviation of the random weights that replace initial zeros in the search for normalised layers.
_IN_PLACE_OF_ZEROS = 0.1


class RowSpaces(NamedTuple):
    """Compare the row spaces of a few layers in place of gradients."""

    layers: int = 4  # how many layers, from the first informative one on
    ridge: float = 0.01  # the ridge of the distance

    @property
    def reads_labels(self) -> bool:
        """Labels are not read, because the inputs of a layer do not depend on them."""
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
        measure = distance_of_rows(setup.model, self, layers, setup.mode, setup.batch_size)

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


@functools.lru_cache(maxsize=16)
def normalised_layers(
    model: Classifier, layers: tuple[str, ...], mode: BatchNormMode, batch_size: int
) -> frozenset[str]:
    """Which of these layers have outputs that batch statistics centre, so that the gradients there sum to zero.

    Behind such a layer, adding a number to an output everywhere changes nothing, whereas reversing the kernel's sign
    does. The layer has fewer rows than inputs, so some change of the kernel adds this number in all rows. Both changes
    are made in the model's initial weights, on random images. Leaves of zeros, with which heads and the ends of
    residual branches often begin, would hide the layers below, so they get random numbers. A layer without any effect
    counts as not normalised: the distance is then zero at the truth in either case, and only says less.
    """
    if not model.mixes_images(mode):
        return frozenset()

    @jax.jit
    def outputs(variables: PyTree, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        rows = model.rows(variables, x, mode=mode)
        return model.apply(variables, x, mode=mode).logits, {name: rows[name] for name in layers}

    centred = set()
    with jax.ensure_compile_time_eval():  # an attack may be built inside of a compiled function
        initial = jax.jit(model.init)(jax.random.key(0))
        variables = {**initial, "params": _without_zeros(initial["params"])}
        x = jax.random.uniform(jax.random.key(1), (batch_size, *model.image_shape))
        logits, rows = jax.tree.map(np.asarray, outputs(variables, x))
        for name, read in rows.items():
            leaf = _tree.named_leaves(variables["params"])[name]
            matrix = np.asarray(model.matrix(name, leaf))
            added, *_ = np.linalg.lstsq(read, np.full(len(read), np.std(read @ matrix), np.float32), rcond=None)
            change = added[:, None] * np.random.default_rng(0).standard_normal((1, matrix.shape[1]), np.float32)
            (of_leaf,) = jax.linear_transpose(lambda leaf, name=name: model.matrix(name, leaf), leaf)(change)
            moved = (_tree.replaced(variables["params"], {name: other}) for other in (leaf + of_leaf, -leaf))
            shifted, negated = (
                np.abs(outputs({**variables, "params": params}, x)[0] - logits).max() for params in moved
            )
            if shifted < _NO_EFFECT_BELOW * negated:
                centred.add(name)
    return frozenset(centred)


def _without_zeros(params: PyTree) -> PyTree:
    """The parameters, with small random numbers in place of leaves that are zero everywhere."""
    rng = np.random.default_rng(1)
    drawn = {
        name: jnp.asarray(_IN_PLACE_OF_ZEROS * rng.standard_normal(leaf.shape), leaf.dtype)
        for name, leaf in _tree.named_leaves(params).items()
        if not np.any(leaf)
    }
    return _tree.replaced(params, drawn)


def distance_of_rows(
    model: Classifier, plan: RowSpaces, layers: tuple[str, ...], mode: BatchNormMode, batch_size: int
) -> Callable[[PyTree, PyTree, jax.Array, Sharpness], jax.Array]:
    """Function from variables, payload, images and sharpness to the mean `row_space_distance` over these layers."""

    def distance(variables: PyTree, payload: PyTree, x: jax.Array, sharpness: Sharpness) -> jax.Array:
        normalised = normalised_layers(model, layers, mode, batch_size)  # cached; the first call takes seconds
        rows = model.rows(variables, x, mode=mode, sharpness=sharpness)
        total = jnp.zeros(())
        for name in layers:
            matrix = model.matrix(name, _tree.named_leaves(payload)[name])
            total += row_space_distance(rows[name], matrix, ridge=plan.ridge, centred=name in normalised)
        return total / len(layers)

    return distance
