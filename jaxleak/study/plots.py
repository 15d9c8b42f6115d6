"""Charts in one style, drawn from arrays and stored results; no results are computed here."""

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxleak.study._point_labels import label_points
from jaxleak.study.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LEAST_SPAN",
    "SPOKEN",
    "STYLE",
    "certificate",
    "curves",
    "grouped_bars",
    "legend_below",
    "residual_scatter",
    "save_figure",
    "scaling",
    "subplots",
    "trade_off",
]

STYLE = Path(__file__).with_name("jaxleak.mplstyle")
#: The shortest range that an axis of accuracies shows.
LEAST_SPAN = 0.1
#: Width of a letter in a legend, as a fraction of the font size.
_LETTER_WIDTH = 0.62
#: Width of the line sample in front of a legend's text, in points.
_HANDLE = 34
#: Height of one line of a legend, as a multiple of the font size.
_LINE = 1.5
#: Line styles of the curves in one panel: an earlier curve shows through the gaps of a later one that covers it.
_STYLES = ("-", "--", "-.", ":")
#: How many colours the style has.
_COLOURS = 8


def subplots(*shape: int, size: tuple[float, float]) -> tuple["Figure", Any]:
    """Make a figure of the given size in inches, and its axes, in the style of all charts.

    Matplotlib is imported here: most commands end without a figure, and --help needs none.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(STYLE)
    return plt.subplots(*shape, figsize=size)


def save_figure(figure: "Figure", path: Path | str) -> None:
    """Write a figure as PNG and beside it as SVG, then close it; `OSError` names a file that cannot be written."""
    import matplotlib.pyplot as plt

    for name, metadata in ((Path(path), None), (Path(path).with_suffix(".svg"), {"Date": None})):
        content = io.BytesIO()
        figure.savefig(content, format=name.suffix[1:], metadata=metadata)
        write_bytes(name, content.getvalue())
    plt.close(figure)


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """Draw a legend below the chart, in as many columns as fit; the figure grows, so that the panel keeps its size.

    Args:
        figure: figure that `subplots` made.
        axes: panel whose labels the legend shows.
    """
    handles, labels = axes.get_legend_handles_labels()
    size = 8 if len(labels) <= 8 else 6
    widest = max(map(len, labels), default=0) * size * _LETTER_WIDTH + _HANDLE
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 72 / widest)))
    figure.set_figheight(figure.get_figheight() + -(-len(labels) // columns) * size * _LINE / 72)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=size)


def residual_scatter(
    path: Path | str, residual: np.ndarray, psnr: np.ndarray, *, certified_below: float, unanswered: int = 0
) -> None:
    """Draw the attacker's certificate (relative feature residual) against the PSNR, one point per sample.

    Args:
        path: PNG to write.
        residual: (I,) relative residual of the worst slice of each sample.
        psnr: (I,) PSNR of each reconstruction in dB.
        certified_below: relative residual >= 0 below which the attacker trusts a sample; drawn as a dotted line.
        unanswered: number of samples without an answer; they have no point, and the legend says how many they are.
    """
    figure, axes = subplots(size=(6, 4))
    shown, certified = np.minimum(psnr, 150), residual < certified_below
    for name, some, colour in (("certified", certified, "C0"), ("not certified", ~certified, "C1")):
        axes.plot(
            np.maximum(residual[some], 1e-9), shown[some], "o", color=colour, alpha=0.6, label=f"{name}: {some.sum()}"
        )
    axes.plot([], [], " ", label=f"no answer, hence no point: {unanswered}")
    axes.axvline(
        certified_below, color="black", linewidth=1, linestyle=":", label=f"certified below {certified_below:g}"
    )
    axes.set_xscale("log")
    # The axis begins at 0 dB, so that small differences among exact images do not fill the panel; and the margin at
    # the top keeps every point away from the frame.
    axes.set_ylim(min(0.0, shown.min(initial=0.0)), 1.1 * max(shown.max(initial=0.0), 30.0))
    axes.set_xlabel("relative feature residual, worst slice (known to the attacker)")
    axes.set_ylabel("PSNR in dB (needs the truth; higher is closer)")
    axes.set_title(f"Certificate against PSNR, {len(psnr) + unanswered} samples")
    legend_below(figure, axes)
    save_figure(figure, path)


def certificate(
    path: Path | str,
    points: dict[str, tuple[np.ndarray, np.ndarray]],
    rates: dict[str, tuple[np.ndarray, list[float], list[float]]],
    *,
    thresholds: dict[str, float],
    right: float,
) -> None:
    """Draw the agreement between two starts against the truth, and the share of images believed at each threshold.

    The left panel has one point per image: agreement, which an attacker can compute, against SSIM to the truth.

    Args:
        path: PNG to write.
        points: maps a group to (agreement, SSIM to the truth); each group has a colour of its own.
        rates: maps a group to (thresholds, share of the wrong images that are believed, share of the right images that
            are believed), all in [0, 1] and in the colours of the points; NaN leaves a gap.
        thresholds: maps the name of a threshold to the agreement in [0, 1] at which its vertical line stands.
        right: SSIM to the truth, <= 1, above which an image counts as right.
    """
    figure, panels = subplots(1, 2, size=(10, 5))
    for group, (agreement, ssim) in points.items():
        panels[0].plot(agreement, ssim, "o", alpha=0.5, label=f"an image behind {group}")
    panels[0].axhline(right, color="grey", linewidth=1, label=f"images above this line, at {right:g}, are right")
    panels[0].set_title("How far two starts agree, and how right the answer is")
    panels[0].set_xlabel("agreement: SSIM between two starts (needs no truth)")
    panels[0].set_ylabel("SSIM of the answer to the truth (higher is closer)")
    for number, (group, (along, wrong, found)) in enumerate(rates.items()):
        panels[1].plot(along, found, f"C{number}-", label=f"right images behind {group} (higher is better)")
        panels[1].plot(along, wrong, f"C{number}--", label=f"wrong images behind {group} (lower is better)")
    panels[1].set_title("A higher threshold errs less, and finds less")
    panels[1].set_xlabel("threshold: the agreement from which on an image is believed")
    panels[1].set_ylabel("share of the images that is believed")
    for axes in panels:
        for style, (label, threshold) in zip((":", "-.", "--"), thresholds.items(), strict=False):
            axes.axvline(
                threshold, color="black", linewidth=1, linestyle=style, label=f"the threshold {label}: {threshold:g}"
            )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14))
    save_figure(figure, path)


def scaling(
    path: Path | str, sizes: list[int], seconds: list[float], memory_gb: list[float], psnr: list[float]
) -> None:
    """Draw time, memory and PSNR against the size of the private set, with lines of linear growth.

    Args:
        path: PNG to write.
        sizes: number of private samples of each run.
        seconds: wall-clock seconds that Steps I and II took.
        memory_gb: peak memory in GB (10^9 bytes).
        psnr: mean PSNR in dB.
    """
    figure, panels = subplots(1, 3, size=(12, 3.6))
    labels = (
        "seconds of Steps I and II (lower is better)",
        "peak memory in GB (lower is better)",
        "mean PSNR in dB (higher leaks more)",
    )
    for axes, values, label in zip(panels, (seconds, memory_gb, psnr), labels, strict=True):
        axes.plot(sizes, values, "o-", label="measured")
        if values is not psnr:
            axes.plot(sizes, np.asarray(sizes) * values[0] / sizes[0], "k:", label="in proportion to N")
            axes.set_yscale("log")
            axes.legend(loc="upper left")
        axes.set_xscale("log")
        axes.set_xlabel("number N of private samples")
        axes.set_ylabel(label)
    figure.suptitle("What more private samples cost, and what they change", fontsize=11)
    save_figure(figure, path)


def curves(
    path: Path | str,
    series: Mapping[str, tuple[np.ndarray, ...]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draw named curves in one panel.

    Args:
        path: PNG to write.
        series: maps a label to (x, y), each (n,), or to (x, y, spread); the spread is drawn as error bars up and down.
        xlabel: text at the horizontal axis.
        ylabel: text at the vertical axis.
        title: what the curves show.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is logarithmic.
        levels: maps a label to a height, in the unit of `ylabel`; a dashed line there can be compared with the curves.
    """
    figure, axes = subplots(size=(6, 4))
    for (label, (x, y, *spread)), style in zip(series.items(), itertools.cycle(_STYLES), strict=False):
        (line,) = axes.plot(x, y, style, label=label)
        if spread:
            axes.errorbar(x, y, yerr=spread[0], fmt="none", ecolor=line.get_color(), capsize=2)
    for label, height in (levels or {}).items():
        axes.axhline(height, color="grey", linestyle="--", label=label)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    legend_below(figure, axes)
    save_figure(figure, path)


def trade_off(
    path: Path | str,
    curves: dict[str, list[dict[str, Any]]],
    *,
    undefended: tuple[float, float] | None = None,
    grey: float | None = None,
    average: float | None = None,
    title: str = "",
    xlabel: str = "PSNR of the reconstruction in dB (further left leaks less)",
    ylabel: str = "test accuracy (higher is better)",
) -> None:
    """Draw test accuracy against what an attack recovers: one colour per defense, one point per strength.

    Args:
        path: PNG to write.
        curves: maps a label to points in the order of strength. Each point has `strength`, `accuracy` and the PSNR of
            up to three attackers: `psnr` if the attacker does not know the defense (dashed), `psnr_adaptive` if the
            attacker knows it (solid), and `psnr_adaptive_weak` if the attacker knows it and has a weak prior (dotted).
            None or NaN leaves a point out. The legend replaces a defense's name by the words of `SPOKEN`.
        undefended: (PSNR in dB, accuracy in [0, 1]) without a defense, drawn as a star.
        grey: PSNR of a grey image in dB, which shows nothing of the data.
        average: PSNR in dB of the average training image, which shows nothing of a single sample.
        title: the figure's title.
        xlabel: label of the leak, for a measure other than PSNR.
        ylabel: label of the utility.
    """
    figure, axes = subplots(size=(7, 5))
    marked: list[tuple[float, float, str, str]] = []
    all_points = [p for points in curves.values() for p in points]
    leaks = {name: [p[name] for p in all_points if _number(p.get(name))] for name in _LEAKS}
    edge = _outlier_edge([leak for of_attacker in leaks.values() for leak in of_attacker])
    for number, (label, points) in enumerate(curves.items()):
        look: dict[str, Any] = {"color": f"C{number}", "markersize": 4}
        if number >= _COLOURS:  # the colours repeat from here on
            look["markerfacecolor"] = "white"
        for name, (style, marker, _) in _LEAKS.items():
            shown = [p for p in points if _number(p.get("accuracy")) and _number(p.get(name))]
            x, y = [min(p[name], edge) for p in shown], [p["accuracy"] for p in shown]
            axes.plot(x, y, style, marker=marker, **look)
            for p, at in zip(shown, zip(x, y, strict=True), strict=True):
                beyond = f" ({p[name]:.3g} dB, beyond the edge)" if p[name] > edge else ""
                marked.append((*at, f"{p['strength']:g}{beyond}", f"C{number}"))
        trained = any(_number(p.get("accuracy")) for p in points)
        said = SPOKEN.get(label, label)
        axes.plot([], [], "o-", label=said if trained else f"{said} (diverged)", **look)
    if undefended is not None:
        axes.plot(*undefended, "k*", markersize=10, label="no defense", clip_on=False)
    if grey is not None:
        axes.axvline(grey, color="grey", linewidth=1, linestyle=":", label="a grey image, which shows nothing")
    if average is not None:
        words = "the average training image, a blur of all samples"
        axes.axvline(average, color="grey", linewidth=1, linestyle="-.", label=words)
    for name, (style, marker, who) in _LEAKS.items():
        if leaks[name]:
            axes.plot([], [], f"k{style}{marker}", markersize=4, label=who)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.margins(0.06, 0.1)
    # The axis spans at least LEAST_SPAN, so that differences of a few samples do not fill the panel.
    low, high = axes.get_ylim()
    lacking = max(0.0, LEAST_SPAN - (high - low)) / 2
    axes.set_ylim(low - lacking, high + lacking)
    legend_below(figure, axes)
    figure.draw_without_rendering()  # settles where the points stand on the page
    label_points(axes, marked)
    save_figure(figure, path)


#: The legend's words for a client's defense, by the defense's name.
SPOKEN = {
    "soteria": "Soteria (ratio)",
    "quantization": "quantization (bits per entry)",
    "encrypt_bottom": "smallest entries encrypted (%)",
    "encrypt_top": "largest entries encrypted (%)",
    "sparsification": "sparsification (% sent)",
    "magnitude_noise": "noise in proportion to the entries",
    "outpost": "OUTPOST (ratio)",
    "gaussian": "Gaussian noise (deviation)",
    "dp_sgd": "DP-SGD (shorthand epsilon)",
    "dp_soteria": "DP-SGD with Soteria (epsilon)",
    "error_feedback": "sparsification (% sent), the rest later",
    "guardian": "Guardian, rebuilt (beta)",
    "adaptive_dp": "DP-SGD whose noise decays (shorthand epsilon)",
    "adaptive_dp_soteria": "the same with Soteria (shorthand epsilon)",
    "dp_update": "DP of the whole update (shorthand epsilon)",
    "laplace": "Laplace noise (scale)",
    "cancelling_noise": "noise that clients cancel (relative deviation)",
    "feature_dropout": "feature dropout (rate)",
    "stochastic_quantization": "stochastic quantization (bits per entry)",
    "withhold_top": "largest entries withheld (%)",
    "adam_step": "step of Adam (learning rate)",
    "adamw_step": "step of AdamW (learning rate)",
}
#: The attackers of a trade-off: line style, marker, and the words of the legend.
_LEAKS = {
    "psnr": ("--", "o", "attacker who does not know the defense"),
    "psnr_adaptive": ("-", "s", "attacker who knows it"),
    "psnr_adaptive_weak": (":", "^", "attacker who knows it, with a weak prior"),
}


def _outlier_edge(values: Sequence[float]) -> float:
    """Find the largest value within three interquartile ranges above the upper quartile; of < 8 values, the largest."""
    if len(values) < 8:
        return max(values, default=np.inf)
    low, high = np.percentile(values, [25, 75])
    return float(max(value for value in values if value <= high + 3 * (high - low)))


def _number(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def grouped_bars(
    path: Path | str,
    bars: Mapping[str, Sequence[float]],
    groups: Sequence[str],
    *,
    ylabel: str,
    title: str = "",
    spreads: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Draw bars side by side in groups, one colour for each name.

    Args:
        path: PNG to write.
        bars: maps a name to one value per group, in the unit that `ylabel` states; NaN leaves a gap.
        groups: labels of the groups.
        ylabel: label of the vertical axis.
        title: what the bars show.
        spreads: maps a name to the length of each of its bars' error bars to either side, in the unit of `bars`, such
            as the standard deviation over seeds; NaN draws none.
    """
    figure, axes = subplots(size=(max(6.0, 1.6 * len(groups)), 4.5))
    x = np.arange(len(groups))
    for number, (name, values) in enumerate(bars.items()):
        error = (spreads or {}).get(name)
        places = x + (number - (len(bars) - 1) / 2) * 0.8 / len(bars)
        axes.bar(places, values, 0.8 / len(bars), yerr=error, capsize=2, label=name)
    axes.set_xticks(x, groups, rotation=20 if len(groups) > 4 else 0, fontsize=8)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    legend_below(figure, axes)
    save_figure(figure, path)
