"""What the charts of several subjects have in common: points with their spread, and the score of a grey image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
