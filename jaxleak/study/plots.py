"""Figures, drawn from arrays and stored results; nothing here computes."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from jaxleak.study.files import write_bytes

__all__ = [
    "FLAG_COLOUR",
    "LEAST_SPAN",
    "certificate",
    "comparison_sheet",
    "contact_sheet",
    "curves",
    "residual_scatter",
    "save_figure",
    "scaling",
    "trade_off",
]

FLAG_COLOUR = (1.0, 0.45, 0.0)
#: The shortest range that an axis of accuracies shows.
LEAST_SPAN = 0.2


def contact_sheet(
    path: Path,
    truth: np.ndarray,
    estimate: np.ndarray,
    *,
    second: np.ndarray | None = None,
    unanswered: np.ndarray | None = None,
    captions: Sequence[str] = (),
    columns: int = 20,
    zoom: int = 2,
) -> None:
    """Rows of private images, each with its reconstruction below.

    Args:
        path: PNG to write.
        truth: (I, H, W, C) in [0, 1].
        estimate: (I, H, W, C).
        second: (I, H, W, C), what another start of the attack found, shown below the reconstruction.
        unanswered: (I,) bool, samples for which the attack says that it has no answer; they are shown as framed grey
            tiles, which a line at the end explains.
        captions: one per image, below its reconstruction; lines of one caption are separated by a newline.
        columns: images per row.
        zoom: every pixel becomes zoom x zoom.
    """
    count, height, width, _ = truth.shape
    unanswered = np.zeros(count, bool) if unanswered is None else unanswered
    columns = min(columns, count)
    rows = -(-count // columns)
    caption_w, caption_h = _text_size(captions)
    cell_h, cell_w = height * zoom + 4, max(width * zoom + 4, caption_w + 4)
    shown = [truth, estimate] if second is None else [truth, estimate, second]
    row_h = len(shown) * cell_h + caption_h + 6
    legend = "private images above, reconstructions below"
    if second is not None:
        legend += ", then those of the second best start"
    if unanswered.any():
        legend += "; framed grey: the attack has no answer"
    legend_w, legend_h = _text_size([legend])
    sheet = np.ones((rows * row_h + legend_h + 4, max(columns * cell_w, legend_w + 4), 3))
    for i in range(count):
        top, left = (i // columns) * row_h, (i % columns) * cell_w
        for k, images in enumerate(shown):
            image = np.full_like(truth[i], 0.5) if k == 1 and unanswered[i] else images[i]
            y = top + k * cell_h
            if k == 1 and unanswered[i]:
                sheet[y : y + cell_h, left : left + width * zoom + 4] = FLAG_COLOUR
            image = np.broadcast_to(np.clip(image, 0, 1), (height, width, 3)).repeat(zoom, axis=0).repeat(zoom, axis=1)
            sheet[y + 2 : y + 2 + height * zoom, left + 2 : left + 2 + width * zoom] = image
    drawn = Image.fromarray((sheet * 255).round().astype(np.uint8))
    pen = ImageDraw.Draw(drawn)
    for i, caption in enumerate(captions):
        pen.text(((i % columns) * cell_w + 2, (i // columns) * row_h + len(shown) * cell_h), caption, fill="black")
    pen.text((2, rows * row_h), legend, fill="black")
    content = io.BytesIO()
    drawn.save(content, "png")
    write_bytes(path, content.getvalue())


def _text_size(lines: Sequence[str]) -> tuple[int, int]:
    """Width and height in pixels that the largest of these texts takes in the default font."""
    pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    boxes = [pen.textbbox((0, 0), line) for line in lines]
    return max((int(box[2]) + 1 for box in boxes), default=0), max((int(box[3]) + 3 for box in boxes), default=0)


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG and close it; `OSError` names the file that cannot be written."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    plt.close(figure)
    write_bytes(path, content.getvalue())


#: Width of one letter of a label in the font size of sheets, with some room.
_INCHES_PER_LETTER = 0.08


def comparison_sheet(path: Path, rows: dict[str, np.ndarray], *, columns: int = 8, zoom: int = 3) -> None:
    """One labelled row of images per entry: the truth first, then every attack's reconstruction of the same images.

    Args:
        path: PNG to write.
        rows: label to images (I, H, W, C) in [0, 1]; all of one size.
        columns: how many images of a row are shown at most.
        zoom: every pixel becomes zoom x zoom.
    """
    count, height, width, _ = next(iter(rows.values())).shape
    count = min(count, columns)
    inches = max(count * width * zoom / 80, _INCHES_PER_LETTER * max(map(len, rows)))
    figure, panels = plt.subplots(
        len(rows), 1, figsize=(max(3.0, inches), len(rows) * (height * zoom / 80 + 0.3)),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for axes, (label, images) in zip(panels[:, 0], rows.items(), strict=True):
        strip = np.ones((height, count * (width + 1) - 1, 3))
        for i, image in enumerate(np.clip(images[:count], 0, 1)):
            strip[:, i * (width + 1) : i * (width + 1) + width] = np.broadcast_to(image, (height, width, 3))
        axes.imshow(strip, interpolation="nearest")
        axes.set_anchor("W")
        axes.set_title(label, fontsize=8, loc="left", pad=2)
        axes.axis("off")
    save_figure(figure, path, dpi=80)


def residual_scatter(path: Path, residual: np.ndarray, psnr: np.ndarray) -> None:
    """The attacker's certificate (relative feature residual) against the truth (PSNR), one point per sample."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(np.maximum(residual, 1e-9), np.minimum(psnr, 150), "o", markersize=3, alpha=0.6)
    axes.set_xlabel("relative feature residual, worst slice (known to the attacker)")
    axes.set_ylabel("PSNR in dB (needs the truth)")
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def certificate(
    path: Path,
    points: dict[str, tuple[np.ndarray, np.ndarray]],
    curves: dict[str, tuple[np.ndarray, list[float]]],
    *,
    threshold: float,
    right: float,
) -> None:
    """What an attacker can compute against the truth, one point per image, and rates along its threshold.

    Args:
        path: PNG to write.
        points: label to (agreement, SSIM to the truth).
        curves: label to (threshold, rate); NaN leaves a gap.
        threshold: the one that is recommended.
        right: SSIM to the truth above which an image counts as right.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, (agreement, ssim) in points.items():
        panels[0].plot(agreement, ssim, "o", markersize=4, alpha=0.5, label=label)
    panels[0].axhline(right, color="grey", linewidth=1)
    panels[0].set_xlabel("agreement: SSIM between two starts (needs no truth)")
    panels[0].set_ylabel("SSIM of the answer to the truth")
    for label, (along, rate) in curves.items():
        panels[1].plot(along, rate, label=label)
    panels[1].set_xlabel("images are believed from this agreement on")
    panels[1].set_ylabel("share of images")
    for axes in panels:
        axes.axvline(threshold, color="black", linewidth=1, linestyle=":", label=f"threshold {threshold:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def scaling(path: Path, sizes: list[int], seconds: list[float], memory_gb: list[float], psnr: list[float]) -> None:
    """Time, memory and PSNR against the size of the private set, with lines of linear growth."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axes, values, label in zip(
        panels, (seconds, memory_gb, psnr), ("Steps I and II, seconds", "peak memory, GB", "mean PSNR, dB"), strict=True
    ):
        axes.plot(sizes, values, "o-", label="measured")
        if label != "mean PSNR, dB":
            axes.plot(sizes, np.asarray(sizes) * values[0] / sizes[0], "k:", label="linear in N")
            axes.set_yscale("log")
            axes.legend(loc="upper left")
        axes.set_xscale("log")
        axes.set_xlabel("private samples N")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def curves(
    path: Path,
    series: dict[str, tuple[np.ndarray, np.ndarray]],
    *,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Named curves `{label: (x, y)}` in one panel."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for label, (x, y) in series.items():
        axes.plot(x, y, label=label)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=5 if len(series) > 8 else None)
    save_figure(figure, path)


def trade_off(
    path: Path,
    curves: dict[str, list[dict[str, Any]]],
    *,
    undefended: tuple[float, float] | None = None,
    grey: float | None = None,
    title: str = "",
    xlabel: str = "PSNR of the reconstruction in dB (leak)",
    ylabel: str = "test accuracy",
) -> None:
    """Test accuracy against what an attack recovers: one colour per defense, one point per strength.

    Args:
        path: PNG to write.
        curves: label to points in the order of strength, each with `accuracy` and `psnr` of the attacker who does not
            know the defense (dashed), and `psnr_adaptive` of the one who does (solid); None or NaN leaves a point out.
        undefended: (PSNR, accuracy), a star.
        grey: PSNR of a grey image, where nothing is left to protect.
        title: of the figure.
        xlabel: what the leak is measured in, where it is not the PSNR.
        ylabel: of the utility.
    """
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (label, points) in enumerate(curves.items()):
        for name, style, marker in (("psnr", "--", "o"), ("psnr_adaptive", "-", "s")):
            shown = [p for p in points if _number(p.get("accuracy")) and _number(p.get(name))]
            x, y = [p[name] for p in shown], [p["accuracy"] for p in shown]
            if not shown:
                continue
            axes.plot(x, y, style, marker=marker, markersize=4, color=f"C{number % 10}")
            for p, at in zip(shown, zip(x, y, strict=True), strict=True):
                axes.annotate(f"{p['strength']:g}", at, fontsize=5, xytext=(2, 3), textcoords="offset points")
        trained = any(_number(p.get("accuracy")) for p in points)
        axes.plot([], [], "-", color=f"C{number % 10}", label=label if trained else f"{label} (diverged)")
    if undefended is not None:
        axes.plot(*undefended, "k*", markersize=10, label="no defense")
    if grey is not None:
        axes.axvline(grey, color="grey", linewidth=1, linestyle=":", label="grey image")
    axes.plot([], [], "k--o", markersize=4, label="attacker does not know")
    axes.plot([], [], "k-s", markersize=4, label="adaptive attacker")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    # Differences of a few samples shall not fill the panel.
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - LEAST_SPAN), high)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=6)
    save_figure(figure, path)


def _number(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))
