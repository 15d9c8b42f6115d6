"""Figures of the pages show what is stored."""

import json

import numpy as np
import pytest

from experiments._by_path import module_at
from jaxleak.study import plots

figures = module_at("docs/_figures.py")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw the figure of a name from its stored results; returns these and the figure."""

    def draw(name):
        kept, stored = [], json.loads((figures.RESULTS / f"{name}.json").read_text())
        with monkeypatch.context() as patch:
            patch.setattr(plots, "save_figure", lambda figure, _: kept.append(figure))
            getattr(figures, name)(stored, tmp_path / f"{name}.png")
        return stored, kept[0]

    yield draw
    import matplotlib.pyplot as plt

    plt.close("all")


def test_every_page_s_figure_is_drawn_by_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    figures.main([])
    names = {path.stem for path in tmp_path.glob("*.png")}
    assert names == {"agreement", "audited", "deep", "defenses", "labels", "mistakes"}
    for name in names:
        assert (figures.RESULTS.parent / "figures" / f"{name}.png").exists()


def test_defenses_stand_in_the_order_of_what_leaks_to_the_better_attacker(drawn):
    stored, figure = drawn("defenses")
    does_not, knows = (line.get_xdata() for line in figure.axes[0].lines[:2])
    cells = {figures.DEFENSES[c["defense"]].format(c["strength"]): c for c in stored["cells"]}
    rows = [cells[label.get_text()] for label in figure.axes[0].get_yticklabels()]
    assert list(does_not) == [row["psnr"] for row in rows]
    assert list(knows[2:]) == [row["psnr_adaptive"] for row in rows[2:]]
    assert [row["leak"] for row in rows] == sorted((row["leak"] for row in rows), reverse=True)
    widths = [bar.get_width() for bar in figure.axes[1].patches]
    np.testing.assert_array_equal(widths, [100 * float(row["accuracy"]) for row in rows])  # NaN where training diverged


def test_bars_of_mistakes_are_complete(drawn):
    stored, figure = drawn("mistakes")
    (axes,) = figure.axes
    kinds = list(stored["metrics"]["by_mistake"].values())
    for row in range(len(kinds)):
        widths = [bars[row].get_width() for bars in axes.containers]
        assert sum(widths) == pytest.approx(100)
        assert widths[0] == pytest.approx(100 * kinds[row]["failed"] / kinds[row]["made"])


def test_cases_count_as_certified_where_the_verdict_says_so(drawn):
    stored, figure = drawn("audited")
    certified, not_certified = (bars.patches for bars in figure.axes[0].containers)
    cases = stored["metrics"]["by_case"].values()
    similar = {case["psnr"]: case["ssim"] for case in cases}
    # As the page says: seventeen cases, in each of which the images are right.
    assert len(certified) == 17
    assert min(similar[bar.get_width()] for bar in certified) >= 0.925
    reasons_of_similar = [reason for case in cases if case["ssim"] > 0.97 for reason in case["reasons"]]
    assert not any(reason.startswith("No image is certified") for reason in reasons_of_similar)
    assert len(certified) + len(not_certified) == len(cases)
