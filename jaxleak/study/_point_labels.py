"""Texts beside the points of a chart, where they cover neither each other, nor a point, a line or the frame."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Letters beside points: their size in points, and what a letter takes of it in width.
_LETTERS, _LETTER_WIDTH = 7, 0.62
#: What is left free between two texts, in points: numbers would read as one.
_BETWEEN = 4
#: What a point of the chart takes to each side, in points.
_POINT = 3


def label_points(axes: "Axes", points: Sequence[tuple[float, float, str, str]]) -> None:
    """Write a text in a colour beside every (x, y, text, colour), where it covers no text, point, frame or line.

    One that has no such place may stand on a line, and one without any is left out.
    """
    from matplotlib.colors import to_rgb

    scale = axes.figure.dpi / 72
    at = {(x, y): axes.transData.transform((x, y)) / scale for x, y, *_ in points}
    taken = [(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in at.values()]
    lines = [(x - 1, y - 1, x + 1, y + 1) for line in axes.lines for x, y in _along(line, scale)]
    panel = np.asarray(axes.get_window_extent().extents) / scale
    for x, y, text, colour in dict.fromkeys(points):
        across, up = at[x, y]
        width, height = len(text) * _LETTERS * _LETTER_WIDTH, _LETTERS * 1.1
        free = list[tuple[tuple[float, float], tuple[float, float, float, float]]]()
        for right, above in _places(width, height):
            box = (across + right, up + above, across + right + width, up + above + height)
            inside = panel[0] <= box[0] and panel[1] <= box[1] and box[2] <= panel[2] and box[3] <= panel[3]
            if inside and not any(_overlap(box, other) for other in taken):
                free.append(((right, above), box))
        off_lines = [place for place in free if not any(_overlap(place[1], other) for other in lines)]
        for place, box in (off_lines or free)[:1]:
            shade = [0.6 * part for part in to_rgb(colour)]  # in which thin letters can be read on white
            axes.annotate(text, (x, y), fontsize=_LETTERS, color=shade, xytext=place, textcoords="offset points")
            taken.append((box[0] - _BETWEEN, box[1], box[2] + _BETWEEN, box[3]))


def _along(line: "Line2D", scale: float) -> np.ndarray:
    """Points (n, 2) of a line on the page, close enough to each other that no letter fits between them."""
    corners = line.get_transform().transform(line.get_xydata()) / scale
    steps = [np.linspace(0, 1, 2 + int(np.hypot(*(q - p)))) for p, q in itertools.pairwise(corners)]
    between = [p + t[:, None] * (q - p) for t, (p, q) in zip(steps, itertools.pairwise(corners), strict=True)]
    return np.concatenate([corners, *between])


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two boxes (left, bottom, right, top) have a point in common."""
    return not (a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1])


def _places(width: float, height: float) -> list[tuple[float, float]]:
    """Where a text of this size may stand, from its point: the corners, above, below and beside, and then further."""
    near = _POINT + 1
    corners = [(near, near), (near, -near - height), (-near - width, near), (-near - width, -near - height)]
    straight = [(-width / 2, near + 1), (-width / 2, -near - 1 - height), (near + 1, -height / 2)]
    further = [(near, near + height + 2), (near, -near - 2 * height - 2), (-near - width - 1, -height / 2)]
    further += [(-near - width, near + height + 2), (-near - width, -near - 2 * height - 2)]
    return [*corners, *straight, *further]
