"""What the charts of several subjects have in common: points with their spread, the score of a grey image, shares."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

#: What a vertical axis of scores says.
PSNR = "PSNR in dB (higher leaks more)"


def with_spread(axes: "Axes", x: Sequence[float], cells: Sequence[dict[str, Any]], look: str, label: str) -> None:
    """Points of stored cells, with bars for their spread over the seeds."""
    ours, spread = ([cell[key] for cell in cells] for key in ("ours", "spread"))
    axes.errorbar(x, ours, yerr=spread, fmt=look, capsize=3, label=label)


def grey_images(axes: "Axes", x: Sequence[float], cells: Sequence[dict[str, Any]]) -> None:
    """What a grey image scores against the private images of each cell."""
    grey = [cell["psnr_grey"] for cell in cells]
    axes.plot(x, grey, color="black", linewidth=1, linestyle=":", label="a grey image, which shows nothing")


def shares(
    axes: "Axes", rows: Mapping[str, Mapping[str, int]], kinds: Mapping[str, tuple[str, str]]
) -> dict[str, "BarContainer"]:
    """One full bar for each row, from the top, with a part for each kind.

    Args:
        axes: where they are drawn.
        rows: what stands beside a bar, to its counts by kind; other counts are left out.
        kinds: kind to what a reader is told of it, and its colour.

    Returns:
        The bars of every kind.
    """
    places, left, bars = np.arange(len(rows))[::-1], np.zeros(len(rows)), {}
    totals = np.array([sum(counts[kind] for kind in kinds) for counts in rows.values()])
    for kind, (label, colour) in kinds.items():
        share = 100 * np.array([counts[kind] for counts in rows.values()]) / totals
        bars[kind] = axes.barh(places, share, left=left, height=0.7, color=colour, label=label)
        left += share
    axes.set_yticks(places, list(rows))
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")
    return bars
