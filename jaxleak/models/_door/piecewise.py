"""Piecewise linear functions of one number, and their smooth forms.

ReLU, leaky ReLU, ReLU6, hard tanh, hard sigmoid, absolute values and clipping are all a line plus a few hinges,
`slope * z + offset + sum_i change_i * relu(z - at_i)`. Whether code writes such a function by maxima, by minima or by a
choice by sign, it is brought to this form. The smooth form has `soft_relu` in place of every `relu`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax

from jaxleak.models._activations import Sharpness, in_units_of, soft_relu

#: Relative error up to which two numbers of single precision count as equal.
_SAME = 1e-6


class Hinge(NamedTuple):
    """A place where the slope changes."""

    at: float
    change: float


class Piecewise(NamedTuple):
    """A continuous piecewise linear function of the number in the slot `of`."""

    of: int
    slope: float = 1.0
    offset: float = 0.0
    hinges: tuple[Hinge, ...] = ()  # in the order of their places

    def at(self, z: float) -> float:
        """The value at z."""
        return self.slope * z + self.offset + sum(h.change * max(z - h.at, 0.0) for h in self.hinges)

    def scaled(self, by: float) -> "Piecewise":
        """The function times a number."""
        hinges = tuple(Hinge(h.at, h.change * by) for h in self.hinges) if by else ()
        return Piecewise(self.of, self.slope * by, self.offset * by, hinges)

    def raised(self, by: float) -> "Piecewise":
        """The function plus a number."""
        return self._replace(offset=self.offset + by)

    def plus(self, other: "Piecewise") -> "Piecewise":
        """The sum of two functions of the same slot."""
        changes: dict[float, float] = {}
        for hinge in (*self.hinges, *other.hinges):
            changes[hinge.at] = changes.get(hinge.at, 0.0) + hinge.change
        scale = max(map(abs, changes.values()), default=0.0)
        hinges = tuple(Hinge(at, c) for at, c in sorted(changes.items()) if abs(c) > _SAME * scale)
        return Piecewise(self.of, self.slope + other.slope, self.offset + other.offset, hinges)

    def pieces(self) -> Iterator[tuple[float, float, float, float]]:
        """Start, end, slope and offset of every piece."""
        slope, offset, start = self.slope, self.offset, -math.inf
        for hinge in self.hinges:
            yield start, hinge.at, slope, offset
            slope, offset, start = slope + hinge.change, offset - hinge.change * hinge.at, hinge.at
        yield start, math.inf, slope, offset

    def positive(self) -> "Piecewise":
        """The larger of the function and zero."""
        lines: list[tuple[float, float, float]] = []  # from, slope, offset
        for start, end, slope, offset in self.pieces():
            crossing = -offset / slope if slope else math.nan
            if start < crossing < end:
                parts = [(start, slope < 0), (crossing, slope > 0)]
            else:
                inner = start + 1.0 if math.isinf(end) else end - 1.0 if math.isinf(start) else (start + end) / 2
                inner = 0.0 if math.isinf(inner) else inner
                if not math.isnan(crossing) and start <= crossing <= end:
                    # The piece touches zero at one of its ends.
                    inner = crossing + (1.0 if crossing == start else -1.0)
                parts = [(start, slope * inner + offset > 0)]
            lines += [(at, slope if kept else 0.0, offset if kept else 0.0) for at, kept in parts]
        return _joined(self.of, lines)

    def right_of(self, place: float) -> "Piecewise | None":
        """The function to the right of a place and zero to its left; None if this would jump at the place."""
        if not math.isfinite(place) or abs(self.at(place)) > _SAME * (abs(self.offset) + abs(self.slope * place)):
            return None
        lines = [(-math.inf, 0.0, 0.0)]
        lines += [(max(start, place), slope, offset) for start, end, slope, offset in self.pieces() if end > place]
        return _joined(self.of, lines)

    def smooth(self, z: jax.Array, sharpness: Sharpness) -> jax.Array:
        """The smooth form at z, where the sharpness is relative to z's standard deviation."""
        beta = in_units_of(z, sharpness)
        assert beta is not None
        out = self.slope * z + self.offset if self.slope or self.offset else None
        for at, change in self.hinges:
            term = soft_relu(z - at if at else z, beta)
            term = term if change == 1.0 else change * term
            out = term if out is None else out + term
        assert out is not None
        return out


def _joined(of: int, lines: list[tuple[float, float, float]]) -> Piecewise:
    """The function whose pieces begin at these places with these slopes and offsets."""
    (_, first, offset), rest = lines[0], lines[1:]
    hinges, slope = [], first
    for start, next_slope, _ in rest:
        if abs(next_slope - slope) > _SAME * max(abs(next_slope), abs(slope)):
            hinges.append(Hinge(start, next_slope - slope))
            slope = next_slope
    return Piecewise(of, first, offset, tuple(hinges))


def larger(a: Piecewise, b: Piecewise) -> Piecewise:
    """The maximum of two functions of the same slot."""
    return b.plus(a.plus(b.scaled(-1.0)).positive())


def smaller(a: Piecewise, b: Piecewise) -> Piecewise:
    """The minimum of two functions of the same slot."""
    return larger(a.scaled(-1.0), b.scaled(-1.0)).scaled(-1.0)
