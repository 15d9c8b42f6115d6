"""Texts beside the points of a chart, placed so that they cover no other text, point, line or frame."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Font size of the texts in points, and width of a letter as a fraction of the font size.
_LETTERS, _LETTER_WIDTH = 7, 0.62
#: Space between two texts, in points, without which two numbers would read as one.
_BETWEEN = 4
#: Half the width of a marker of the chart, in points.
_POINT = 3


def label_points(axes: "Axes", points: Sequence[tuple[float, float, str, str]]) -> None:
    """Write a text in a colour beside every (x, y, text, colour), so that it covers no text, point, frame or line.

    If there is no such place, the text may cover a line; if there is no place at all, the text is left out.
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
            shade = [0.6 * part for part in to_rgb(colour)]  # darker, so that thin letters can be read on white
            axes.annotate(text, (x, y), fontsize=_LETTERS, color=shade, xytext=place, textcoords="offset points")
            taken.append((box[0] - _BETWEEN, box[1], box[2] + _BETWEEN, box[3]))


def _along(line: "Line2D", scale: float) -> np.ndarray:
    """Sample points (n, 2) of a line on the page, so densely that no letter fits between two of them."""
    corners = line.get_transform().transform(line.get_xydata()) / scale
    steps = [np.linspace(0, 1, 2 + int(np.hypot(*(q - p)))) for p, q in itertools.pairwise(corners)]
    between = [p + t[:, None] * (q - p) for t, (p, q) in zip(steps, itertools.pairwise(corners), strict=True)]
    return np.concatenate([corners, *between])


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two boxes (left, bottom, right, top) have a point in common."""
    return not (a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1])


def _places(width: float, height: float) -> list[tuple[float, float]]:
    """List offsets from a point for a text of this size: the corners, above, below and beside, and then farther."""
    near = _POINT + 1
    corners = [(near, near), (near, -near - height), (-near - width, near), (-near - width, -near - height)]
    straight = [(-width / 2, near + 1), (-width / 2, -near - 1 - height), (near + 1, -height / 2)]
    further = [(near, near + height + 2), (near, -near - 2 * height - 2), (-near - width - 1, -height / 2)]
    further += [(-near - width, near + height + 2), (-near - width, -near - 2 * height - 2)]
    return [*corners, *straight, *further]
