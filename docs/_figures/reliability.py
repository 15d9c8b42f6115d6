"""Figures about how far numbers can be believed: runs that were repeated, and mistakes put into the source."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxleak.study import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What may become of a repeated measurement: what a reader is told, and its colour.
REPEATED = {
    "same": ("the same bits", "C5"),
    "near": ("another number, within its spread or 5 %", "C7"),
    "far": ("further off", "C1"),
}
#: What may become of a mistake, by its name in the stored results: what a reader is told, and its colour.
MISTAKEN = {
    "killed": ("noticed by a test at once", "C5"),
    "survived": ("not noticed, or a change of nothing that counts", "C1"),
    "not judged": ("not judged: a picked test could not run", "0.75"),
}


def repeated(*checks: dict[str, Any], path: Path) -> None:
    """What became of the measurements of every check of the ledger, one bar for each check."""
    rows = {}
    for check in checks:
        counts = dict.fromkeys(REPEATED, 0)
        for cell in check["cells"]:
            same = cell["recorded"] == cell["again"]
            counts["same" if same else "near" if cell["agrees"] else "far"] += 1
        rows[f"{check['date']}\n({len(check['cells'])} measurements)"] = counts
    figure, axes = plots.subplots(size=(8, 1.2 + 0.6 * len(rows)))
    _stacked(axes, rows, REPEATED)
    axes.set_xlabel("% of the measurements of a check (bars: their number)")
    axes.set_title("Random measurements of the papers' tables, run again")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def mutants(first: dict[str, Any], later: dict[str, Any], unseen: dict[str, Any], path: Path) -> None:
    """What became of the random mistakes of every sample, one bar for each, the oldest at the top."""
    rows = {}
    for sample in (first, later, *reversed(unseen["earlier"]), unseen):
        seed = sample["command"].rpartition(" ")[2]
        outcomes = [mutant["outcome"] for mutant in sample["mutants"]]
        rows[f"seed {seed} ({len(outcomes)} mistakes)"] = {name: outcomes.count(name) for name in MISTAKEN}
    figure, axes = plots.subplots(size=(8, 1.2 + 0.36 * len(rows)))
    _stacked(axes, rows, MISTAKEN)
    axes.set_xlabel("% of the mistakes of a sample (bars: their number)")
    axes.set_title("Random mistakes in the source: do the tests notice them?")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def _stacked(axes: "Axes", rows: Mapping[str, Mapping[str, int]], kinds: Mapping[str, tuple[str, str]]) -> None:
    """One full bar for each row, its parts in the colours of their kinds and with their counts."""
    places, left = np.arange(len(rows))[::-1], np.zeros(len(rows))
    totals = np.array([sum(counts.values()) for counts in rows.values()])
    for kind, (label, colour) in kinds.items():
        counts = np.array([row[kind] for row in rows.values()])
        share = 100 * counts / totals
        bars = axes.barh(places, share, left=left, height=0.7, color=colour, label=label)
        axes.bar_label(bars, _shown(counts), label_type="center", fontsize=8)
        left += share
    axes.set_yticks(places, list(rows))
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")


def _shown(counts: Sequence[int] | np.ndarray) -> list[str]:
    """Counts as labels; a part that is empty has none."""
    return [str(count) if count else "" for count in counts]
