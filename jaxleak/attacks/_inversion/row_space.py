"""Gradient inversion without the backward pass: match the row spaces of layers instead of their gradients.

In a deep network with batch statistics the gradient is chaotic: the image at 40 dB has one that is nearly as far from
the truth's as any other image's (`experiments.basin`), so that descending a distance of gradients leads nowhere. Most
of that comes back from the layers above. `row_space_distance` leaves what comes back free and compares only what went
in, of the first layers that have fewer output pixels than inputs of each: half as deep, one derivative instead of two,
no labels.

Sets of patches hardly tell where in the image they stood, only the zeros around it do: descent often ends with the
truth a few pixels off. So the candidate is tried shifted, every shift is descended from for some iterations, and the
best by the attack's own objective is kept.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.attacks._inversion.smoothing import Smoothing
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BatchNormMode
from jaxleak.objectives import row_space_distance

#: A layer is informative if its rows, centred, span at most this share of their space.
LARGEST_SHARE = 0.5

#: Above this distance the attack says that it has no answer. A convention: the ridge leaves .009 at the truth, answers
#: of SSIM .97 had up to .017, tinted ones .03 and .06, misses .15.
ROWS_MATCHED_BELOW = 0.02


class Shifts(NamedTuple):
    """Shifts by up to `reach` pixels either way, every `stride`, each descended from for `tries` iterations."""

    reach: int
    stride: int
    tries: int = 30

    @property
    def offsets(self) -> np.ndarray:
        """(S, 2) rows and columns; the first is no shift."""
        along = range(-self.reach, self.reach + 1, self.stride)
        return np.array(sorted(((i, j) for i in along for j in along), key=lambda o: o != (0, 0)), np.int32)


#: When which shifts are tried: after these shares of the iterations, not counting those that try shifts.
Search: TypeAlias = tuple[tuple[float, Shifts], ...]
#: 2,250 iterations per image.
NEAR: Search = ((0.2, Shifts(6, 3)), (0.3, Shifts(6, 3)), (0.4, Shifts(2, 1)))
#: 4,470 iterations per image.
FAR: Search = (*NEAR[:2], (0.4, Shifts(12, 4)), (0.45, Shifts(6, 3)), (0.5, Shifts(2, 1)))


class RowSpace(NamedTuple):
    """Compare row spaces in place of gradients."""

    layers: int = 4  # how many, from the first informative one on
    ridge: float = 0.01  # of the distance
    shifts: Search = NEAR


class Trying(NamedTuple):
    """What the search for a shift carries."""

    home: jax.Array  # (B, H, W, C) the candidate when it began
    best: jax.Array  # (B, H, W, C)
    loss: jax.Array  # () the objective of `best`


def check_row_space(plan: RowSpace) -> None:
    """Refuse values out of range.

    Raises:
        ValueError: naming the field and its range.
    """
    _validate.count(layers=plan.layers)
    _validate.positive(ridge=plan.ridge)
    for i, (share, shifts) in enumerate(plan.shifts):
        _validate.in_range(0, 1, **{f"shifts[{i}][0]": share})
        _validate.count(**{f"shifts[{i}].{name}": value for name, value in shifts._asdict().items()})
        if shifts.tries < 2:
            raise ValueError(f"shifts[{i}].tries must be > 1, got {shifts.tries}")
    if sorted(plan.shifts, key=lambda entry: entry[0]) != list(plan.shifts):
        raise ValueError(f"shifts must be in the order of their shares, got {[share for share, _ in plan.shifts]}")


@functools.lru_cache(maxsize=8)  # tracing a deep network takes seconds, and a command asks several times
def _sizes_of_rows(model: Classifier, batch_size: int) -> dict[str, tuple[int, ...]]:
    """Rows and inputs of each, of every layer but the head, in the order of the forward pass."""
    variables = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, *model.image_shape), jnp.float32)
    order: list[str] = []

    def rows(variables: PyTree, x: jax.Array) -> dict[str, jax.Array]:
        found = model.rows(variables, x)
        order.extend(found)  # a traced function gives dictionaries back in the order of their names
        return found

    shapes = jax.eval_shape(rows, variables, x)
    # The last layer's row is the features of the image, which its gradient shows anyway.
    return {name: shapes[name].shape for name in order if name != model.head}


def informative_layers(model: Classifier, plan: RowSpace, batch_size: int) -> tuple[str, ...]:
    """The layers whose row spaces are compared, by their paths in the parameters.

    Raises:
        ValueError: if the model has none for so many images.
    """
    sizes = _sizes_of_rows(model, batch_size)
    fit = [name for name, (n, k) in sizes.items() if n <= LARGEST_SHARE * k]
    if not fit:
        least = min((n / k for n, k in sizes.values()), default=float("inf"))
        raise ValueError(
            f"row_space needs a layer with at most {LARGEST_SHARE:g} output pixels per input of each; with batch_size "
            f"= {batch_size} this model's best has {least:.2g}"
        )
    return tuple(fit[: plan.layers])


def distance_of_rows(
    model: Classifier, plan: RowSpace, layers: tuple[str, ...], mode: BatchNormMode
) -> Callable[[PyTree, PyTree, jax.Array, Sharpness], jax.Array]:
    """Mean of `row_space_distance` over such layers, from variables, payload, images and sharpness."""

    def distance(variables: PyTree, payload: PyTree, x: jax.Array, sharpness: Sharpness) -> jax.Array:
        rows = model.rows(variables, x, mode=mode, sharpness=sharpness)
        total = jnp.zeros(())
        for name in layers:
            gradient = payload
            for part in (*name.split("/"), "kernel"):
                gradient = gradient[part]
            # In these models statistics normalise the outputs of every convolution or of none, and of no dense layer.
            centred = model.has_batch_norm and mode == "train" and gradient.ndim == 4
            matrix = gradient.reshape(-1, gradient.shape[-1])
            total += row_space_distance(rows[name], matrix, ridge=plan.ridge, centred=centred)
        return total / len(layers)

    return distance


#: What an iteration does to the search for a shift, before and after its step.
_NOTHING, _NEXT, _ALL = 0, 1, 2


class _Entry(NamedTuple):
    """One iteration of a `Timetable`."""

    progress: float
    image: int = 0
    rows: int = 0
    columns: int = 0
    begins: int = _NOTHING  # _NEXT shift, or _ALL of them
    ends: int = _NOTHING  # one shift, or _ALL of them


class Timetable:
    """Which iterations try which shifts, and how far a run is without them: tables, made before anything is traced."""

    def __init__(self, plan: RowSpace, iterations: int, batch_size: int):
        """Of a run of so many iterations, in which every image is shifted by itself.

        Raises:
            ValueError: if the shifts take all of them.
        """
        taken = batch_size * sum(len(shifts.offsets) * shifts.tries for _, shifts in plan.shifts)
        plain = iterations - taken
        if plain < 1:
            raise ValueError(f"iterations must be > {taken}, which the shifts of {batch_size} images take")
        entries: list[_Entry] = []
        done = 0
        for share, shifts in plan.shifts:
            until = round(share * plain)
            entries += [_Entry(n / plain) for n in range(done, until)]
            done, last = until, len(shifts.offsets) - 1
            for image in range(batch_size):
                for number, (rows, columns) in enumerate(shifts.offsets):
                    entry = _Entry(until / plain, image, rows, columns)
                    tries = [entry] * shifts.tries
                    tries[0] = entry._replace(begins=_NEXT if number else _ALL)
                    tries[-1] = tries[-1]._replace(ends=_NEXT if number < last else _ALL)
                    entries += tries
        entries += [_Entry(n / plain) for n in range(done, plain)]
        progress, self._image, down, right, self._begins, self._ends = map(np.array, zip(*entries, strict=True))
        self._progress = progress.astype(np.float32)
        self._offset = np.stack([down, right], axis=1)

    @staticmethod
    def not_yet(x: jax.Array) -> Trying:
        """A search that has found nothing."""
        return Trying(jnp.copy(x), jnp.copy(x), jnp.float32(jnp.inf))

    def progress(self, iteration: jax.Array) -> jax.Array:
        """From 0 to 1; it stands still while shifts are tried."""
        return jnp.asarray(self._progress)[iteration]

    def sharpness(self, plan: Smoothing, iteration: jax.Array) -> jax.Array:
        """Of that iteration: geometric in the progress."""
        return plan.start * (plan.end / plan.start) ** self.progress(iteration)

    def shifted(self, iteration: jax.Array, x: jax.Array, trying: Trying) -> tuple[jax.Array, Trying]:
        """The candidate that this iteration starts from."""
        begins = jnp.asarray(self._begins)[iteration]
        trying = _tree.where(begins == _ALL, self.not_yet(x), trying)
        image, offset = jnp.asarray(self._image)[iteration], jnp.asarray(self._offset)[iteration]
        return jnp.where(begins != _NOTHING, shift(trying.home, image, offset), x), trying

    def fresh(self, iteration: jax.Array, optimizer: PyTree, initial: PyTree) -> PyTree:
        """The optimizer's state where a shift is first descended from: nothing of what it learned elsewhere."""
        begins = jnp.asarray(self._begins)[iteration] != _NOTHING
        # Its schedule goes on: counts are scalars.
        return jax.tree.map(lambda new, old: jnp.where(begins & (old.ndim > 0), new, old), initial, optimizer)

    def kept(self, iteration: jax.Array, x: jax.Array, loss: jax.Array, trying: Trying) -> tuple[jax.Array, Trying]:
        """The candidate after the iteration, whose objective was `loss` before its move."""
        ends = jnp.asarray(self._ends)[iteration]
        better = (ends != _NOTHING) & (loss < trying.loss)
        trying = _tree.where(better, trying._replace(best=x, loss=loss), trying)
        return jnp.where(ends == _ALL, trying.best, x), trying


def shift(x: jax.Array, image: jax.Array, offset: jax.Array) -> jax.Array:
    """x (B, H, W, C) with one image moved down and right by (2,) pixels; its border is drawn out."""
    height, width = x.shape[1:3]
    rows = jnp.clip(jnp.arange(height) - offset[0], 0, height - 1)
    columns = jnp.clip(jnp.arange(width) - offset[1], 0, width - 1)
    return x.at[image].set(x[image][rows][:, columns])
