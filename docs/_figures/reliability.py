"""Figures about how far numbers can be believed: runs that were repeated, and mistakes put into the source."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs._figures.lines import shares
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
    _counted(axes, rows, REPEATED)
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
    _counted(axes, rows, MISTAKEN)
    axes.set_xlabel("% of the mistakes of a sample (bars: their number)")
    axes.set_title("Random mistakes in the source: do the tests notice them?")
    plots.legend_below(figure, axes)
    plots.save_figure(figure, path)


def _counted(axes: "Axes", rows: Mapping[str, Mapping[str, int]], kinds: Mapping[str, tuple[str, str]]) -> None:
    """Shares whose parts have their counts on them; a part that is empty has none."""
    for kind, bars in shares(axes, rows, kinds).items():
        counts = [str(row[kind] or "") for row in rows.values()]
        axes.bar_label(bars, counts, label_type="center", fontsize=8)
