"""The search over shifts: try candidates that are shifted by a few pixels, and keep the best.

A set of patches hardly reveals where in the image each patch was; only the zero padding around the image does. Descent
on row spaces therefore often ends at the true image shifted by a few pixels. The search shifts every image, descends
from every shift for some iterations, and keeps the best by the attack's own objective.

The engine asks a `Search` what to do before a step and after it; `NoSearch` does nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from typing import Protocol as TypingProtocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.attacks._inversion.candidates import Candidate
from jaxleak.attacks._inversion.smoothing import Smoothing, next_sharpness

#: Function from the candidate's variables to a fresh optimizer state.
Fresh: TypeAlias = Callable[[PyTree], PyTree]


class Search(TypingProtocol):
    """The interface of a search, which acts before and after each step; `carried` is the search's own state."""

    def init(self, x: PyTree) -> Any:
        """The state before the first step, from the candidate's variables."""

    def before(
        self, iteration: jax.Array, x: PyTree, optimizer: PyTree, carried: Any, fresh: Fresh
    ) -> tuple[PyTree, PyTree, Any]:
        """The candidate's variables, the optimizer's state and the search's that this iteration starts from."""

    def after(self, iteration: jax.Array, x: PyTree, loss: jax.Array, carried: Any) -> tuple[PyTree, Any]:
        """The candidate's variables and the search's state after a step whose objective was `loss` before its move."""

    def sharpness(self, plan: Smoothing, sharpness: jax.Array, iteration: jax.Array, distance: jax.Array) -> jax.Array:
        """The sharpness of the next iteration, from this iteration's sharpness, number and data distance."""


class NoSearch(NamedTuple):
    """The search that tries no shifts: a plain descent."""

    iterations: int

    def init(self, x: PyTree) -> tuple[()]:
        """There is nothing to carry."""
        del x
        return ()

    def before(
        self, iteration: jax.Array, x: PyTree, optimizer: PyTree, carried: Any, fresh: Fresh
    ) -> tuple[PyTree, PyTree, Any]:
        """Everything stays as it is."""
        del iteration, fresh
        return x, optimizer, carried

    def after(self, iteration: jax.Array, x: PyTree, loss: jax.Array, carried: Any) -> tuple[PyTree, Any]:
        """Everything stays as it is."""
        del iteration, loss
        return x, carried

    def sharpness(self, plan: Smoothing, sharpness: jax.Array, iteration: jax.Array, distance: jax.Array) -> jax.Array:
        """The sharpness rises with the iterations, or with progress."""
        return next_sharpness(plan, sharpness, iteration, self.iterations, distance)


class Shifts(NamedTuple):
    """Shifts by up to `reach` pixels in each direction, in steps of `stride`; each is descended for `tries` iterations.

    The stride divides the reach, so the shift by zero is among them.
    """

    reach: int
    stride: int
    tries: int = 30

    @property
    def offsets(self) -> np.ndarray:
        """The shifts (S, 2) in rows and columns; the first one is zero."""
        along = range(-self.reach, self.reach + 1, self.stride)
        return np.array(sorted(((i, j) for i in along for j in along), key=lambda o: o != (0, 0)), np.int32)


#: Which shifts are tried, and when: after these shares of the iterations, not counting iterations that try shifts.
ShiftPlan: TypeAlias = tuple[tuple[float, Shifts], ...]
#: 2,250 iterations per image.
NEAR: ShiftPlan = ((0.2, Shifts(6, 3)), (0.3, Shifts(6, 3)), (0.4, Shifts(2, 1)))
#: 4,470 iterations per image.
FAR: ShiftPlan = (*NEAR[:2], (0.4, Shifts(12, 4)), (0.45, Shifts(6, 3)), (0.5, Shifts(2, 1)))


class Trying(NamedTuple):
    """The state of the search for a shift."""

    home: jax.Array  # (B, H, W, C) the candidate when it began
    best: jax.Array  # (B, H, W, C)
    loss: jax.Array  # () the lowest objective so far, of the point whose move ended at `best`


#: What an iteration does to the search for a shift, before and after its step.
_NOTHING, _NEXT, _ALL = 0, 1, 2


class _Entry(NamedTuple):
    """One iteration of a `ShiftSearch`."""

    progress: float
    image: int = 0
    rows: int = 0
    columns: int = 0
    begins: int = _NOTHING  # the _NEXT shift, or the first of _ALL
    ends: int = _NOTHING  # a shift before the _NEXT one, or the last of _ALL


class ShiftSearch:
    """A search over shifts, planned before tracing: tables of the shift and the progress for every iteration."""

    def __init__(self, plan: ShiftPlan, iterations: int, batch_size: int):
        """Plan a run of `iterations` in which every image is shifted separately.

        Raises:
            ValueError: if the shifts take all iterations.
        """
        taken = batch_size * sum(len(shifts.offsets) * shifts.tries for _, shifts in plan)
        plain = iterations - taken
        if plain < 1:
            raise ValueError(f"iterations must be > {taken}, since the shifts of {batch_size} images take so many")
        entries: list[_Entry] = []
        done = 0
        for share, shifts in plan:
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

    def init(self, x: PyTree) -> Trying:
        """A search that has found nothing."""
        return Trying(jnp.copy(x), jnp.copy(x), jnp.float32(jnp.inf))

    def progress(self, iteration: jax.Array) -> jax.Array:
        """From 0 to 1; it stands still while shifts are tried."""
        return jnp.asarray(self._progress)[iteration]

    def sharpness(self, plan: Smoothing, sharpness: jax.Array, iteration: jax.Array, distance: jax.Array) -> jax.Array:
        """The sharpness is geometric in the progress, which stands still while shifts are tried."""
        del sharpness, distance
        return plan.start * (plan.end / plan.start) ** self.progress(iteration + 1)

    def before(
        self, iteration: jax.Array, x: PyTree, optimizer: PyTree, carried: Trying, fresh: Fresh
    ) -> tuple[PyTree, PyTree, Trying]:
        """Shift one image where a try begins, and let the optimizer begin anew there."""
        x, carried = self.shifted(iteration, x, carried)
        return x, self.begun_anew(iteration, optimizer, fresh(x)), carried

    def shifted(self, iteration: jax.Array, x: jax.Array, trying: Trying) -> tuple[jax.Array, Trying]:
        """The candidate that this iteration starts from."""
        begins = jnp.asarray(self._begins)[iteration]
        trying = _tree.where(begins == _ALL, self.init(x), trying)
        image, offset = jnp.asarray(self._image)[iteration], jnp.asarray(self._offset)[iteration]
        return jnp.where(begins != _NOTHING, shift(trying.home, image, offset), x), trying

    def begun_anew(self, iteration: jax.Array, optimizer: PyTree, initial: PyTree) -> PyTree:
        """The optimizer's state, reset where the descent from a new shift begins."""
        begins = jnp.asarray(self._begins)[iteration] != _NOTHING
        # Scalars are kept: they are counts, and the optimizer's schedule goes on.
        return jax.tree.map(lambda new, old: jnp.where(begins & (old.ndim > 0), new, old), initial, optimizer)

    def after(self, iteration: jax.Array, x: PyTree, loss: jax.Array, carried: Trying) -> tuple[PyTree, Trying]:
        """Keep the best shift where a try ends, and go back to it where the last one does."""
        trying = carried
        ends = jnp.asarray(self._ends)[iteration]
        better = (ends != _NOTHING) & (loss < trying.loss)
        trying = _tree.where(better, trying._replace(best=x, loss=loss), trying)
        return jnp.where(ends == _ALL, trying.best, x), trying


def search_for(
    plan: ShiftPlan, iterations: int, batch_size: int, *, candidate: Candidate, smoothing: Smoothing | None
) -> Search:
    """The search that a plan asks for; none for an empty plan.

    Raises:
        ValueError: on a plan out of range, a candidate without pixels to shift, or a sharpness that follows another
            clock than the search's.
    """
    if not plan:
        return NoSearch(iterations)
    _check(plan)
    if not candidate.of_pixels:
        raise ValueError("shifts move the candidate's pixels, which this candidate does not have")
    if smoothing is not None and smoothing != Smoothing(smoothing.start, smoothing.end):
        raise ValueError("shifts sharpen by a clock of their own: smoothing takes a start and an end only")
    return ShiftSearch(plan, iterations, batch_size)


def _check(plan: Sequence[tuple[float, Shifts]]) -> None:
    for i, (share, shifts) in enumerate(plan):
        _validate.in_range(0, 1, **{f"shifts[{i}][0]": share})
        _validate.count(**{f"shifts[{i}].{name}": value for name, value in shifts._asdict().items()})
        if shifts.reach % shifts.stride:
            raise ValueError(f"shifts[{i}].stride must divide the reach {shifts.reach}, got {shifts.stride}")
        if shifts.tries < 2:
            raise ValueError(f"shifts[{i}].tries must be > 1, got {shifts.tries}")
    if sorted(plan, key=lambda entry: entry[0]) != list(plan):
        raise ValueError(f"shifts must be in the order of their shares, got {[share for share, _ in plan]}")


def shift(x: jax.Array, image: jax.Array, offset: jax.Array) -> jax.Array:
    """x (B, H, W, C) with one image moved down and right by `offset` (2,) pixels; its border pixels are repeated."""
    height, width = x.shape[1:3]
    rows = jnp.clip(jnp.arange(height) - offset[0], 0, height - 1)
    columns = jnp.clip(jnp.arange(width) - offset[1], 0, width - 1)
    return x.at[image].set(x[image][rows][:, columns])
