"""Charts: nothing is cropped, covered or left out, and the panel keeps its width."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex

from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import plots, sheets


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """A function that draws a chart and returns its figure in the layout of the file."""

    def draw(chart, *args, **options):
        kept = []
        with monkeypatch.context() as patch:
            patch.setattr(plots, "save_figure", lambda figure, _: kept.append(figure))
            chart(tmp_path / "chart.png", *args, **options)
        (figure,) = kept
        figure.draw_without_rendering()
        return figure

    yield draw
    import matplotlib.pyplot as plt

    plt.close("all")


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def point(strength, accuracy, psnr, adaptive):
    return {"strength": strength, "accuracy": accuracy, "psnr": psnr, "psnr_adaptive": adaptive}


CURVES = {
    "gaussian": [point(0.001, 0.9525, 30.7, 23.6), point(0.01, 0.9525, 15.0, 14.6)],
    "sparsification": [point(10, 0.9425, 14.5, 24.8), point(1, 0.9025, 7.2, 8.7)],
    "soteria": [point(0.9, 0.9075, 7.0, 50.0)],
}


def test_strengths_beside_the_points_cover_neither_each_other_nor_a_point_nor_the_frame(drawn):
    figure = drawn(plots.trade_off, CURVES, undefended=(50.0, 0.9525), grey=7.2)
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert sorted(text.get_text() for text in axes.texts) == sorted(
        f"{p['strength']:g}" for points in CURVES.values() for p in points for _ in range(2)
    )
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for line in axes.lines:
        for p, q in itertools.pairwise(line.get_transform().transform(line.get_xydata())):
            along = p + np.linspace(0, 1, 500)[:, None] * (q - p)
            assert not any(box.contains(*at) for box in boxes for at in along)
    panel = axes.get_window_extent()
    for points in CURVES.values():
        for p, name in itertools.product(points, ("psnr", "psnr_adaptive")):
            x, y = axes.transData.transform((p[name], p["accuracy"]))
            assert not any(box.contains(x, y) for box in boxes)
    assert all(panel.contains(*corner) for box in boxes for corner in box.corners())


def test_numbers_side_by_side_do_not_read_as_one(drawn):
    near = {"soteria": [point(20, 0.9, 10.0, None)], "gaussian": [point(0.01, 0.9, 10.3, None)]}
    figure = drawn(plots.trade_off, near | {"sparsification": [point(5, 0.8, 30.0, None)]})
    left, right = sorted((t.get_window_extent() for t in figure.axes[0].texts[:2]), key=lambda box: box.x0)
    assert right.x0 - left.x1 >= 3 * figure.dpi / 72 or not (left.y0 < right.y1 and right.y0 < left.y1)


def test_the_legend_of_a_trade_off_names_defenses_in_words(drawn):
    assert set(plots.SPOKEN) == set(CLIENT_DEFENSES)
    figure = drawn(plots.trade_off, {name: [point(1, 0.9, 10.0, 20.0)] for name in plots.SPOKEN})
    assert not any("_" in text for text in texts(figure.legends[0]))


def test_a_trade_off_shows_the_attackers_that_there_are(drawn):
    drawn_with = lambda **more: texts(drawn(plots.trade_off, {"a": [point(1, 0.9, 10.0, None) | more]}).legends[0])  # noqa: E731
    weak = "attacker who knows it, with a weak prior"
    assert drawn_with(psnr_adaptive_weak=30.0)[-2:] == ["attacker who does not know the defense", weak]
    assert drawn_with()[-1] == "attacker who does not know the defense"


def test_accuracies_fill_their_panel_and_no_point_touches_its_frame(drawn):
    figure = drawn(plots.trade_off, CURVES, undefended=(50.0, 0.9525))
    low, high = figure.axes[0].get_ylim()
    assert pytest.approx(high - low) == plots.LEAST_SPAN
    assert low < 0.9025 - 0.1 * (high - low)
    assert high > 0.9525 + 0.1 * (high - low)


def test_wide_ranges_of_accuracies_are_shown_whole(drawn):
    figure = drawn(plots.trade_off, {"a": [point(1, 0.2, 10.0, 20.0), point(2, 0.9, 30.0, 40.0)]})
    low, high = figure.axes[0].get_ylim()
    assert low < 0.2 < 0.9 < high < 1.05


@pytest.mark.parametrize("unanswered", [0, 3])
def test_a_certificate_counts_its_failures_also_where_there_are_none(drawn, unanswered):
    residual, psnr = np.array([1e-7, 1e-6, 1e-2]), np.array([115.0, np.inf, 12.0])
    figure = drawn(plots.residual_scatter, residual, psnr, certified_below=1e-4, unanswered=unanswered)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == f"Certificate against PSNR, {3 + unanswered} samples"
    assert texts(figure.legends[0])[:3] == [
        "certified: 2", "not certified: 1", f"no answer, hence no point: {unanswered}",
    ]  # fmt: skip
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 160  # 150 dB marks an exact image


def test_a_chart_without_a_point_says_so(drawn):
    figure = drawn(plots.residual_scatter, np.zeros(0), np.zeros(0), certified_below=1e-4, unanswered=4)
    assert "no answer, hence no point: 4" in texts(figure.legends[0])


def test_both_panels_of_a_certificate_say_what_their_colours_and_thresholds_are(drawn):
    along, agreement = np.array([0.5, 0.9]), np.array([0.4, 0.8])
    points, rates = {"updates": (agreement, agreement)}, {"updates": (along, [0.5, 0.0], [1.0, 0.9])}
    figure = drawn(plots.certificate, points, rates, thresholds={"that is recommended": 0.95}, right=0.8)
    for axes in figure.axes:
        assert texts(axes.get_legend())[-1] == "the threshold that is recommended: 0.95"
        assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    found, wrong, _ = figure.axes[1].lines
    assert (found.get_linestyle(), wrong.get_linestyle()) == ("-", "--")
    colours = [to_hex(line.get_color()) for line in (found, wrong, figure.axes[0].lines[0])]
    assert len(set(colours)) == 1
    assert list(wrong.get_ydata()) == [0.5, 0.0]


def test_equal_curves_are_drawn_in_styles_of_their_own(drawn):
    same = (np.arange(3), np.arange(3))
    figure = drawn(plots.curves, dict.fromkeys("abcd", same), xlabel="x", ylabel="y")
    assert len({line.get_linestyle() for line in figure.axes[0].lines}) == 4


def test_a_spread_is_a_bar_of_the_curves_colour_on_either_side(drawn):
    x, y, spread = np.arange(3.0), np.array([1.0, 4.0, 9.0]), np.array([0.5, 0.1, 2.0])
    figure = drawn(plots.curves, {"plain": (x, y), "spread": (x, y, spread)}, xlabel="x", ylabel="y")
    (bars,) = figure.axes[0].collections
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends, np.stack([y - spread, y + spread], axis=1))
    assert to_hex(bars.get_color()[0]) == to_hex(figure.axes[0].lines[1].get_color())


def test_a_bar_has_an_error_bar_where_its_deviation_is_known(drawn):
    bars, spreads = {"a": [3.0, 2.0], "b": [1.0, 4.0]}, {"a": [0.5, np.nan]}
    figure = drawn(plots.grouped_bars, bars, "xy", ylabel="", spreads=spreads)
    ends = [s[:, 1].tolist() for lines in figure.axes[0].collections for s in lines.get_segments() if len(s) == 2]
    assert [pair for pair in ends if not np.isnan(pair).any()] == [[2.5, 3.5]]
    assert not drawn(plots.grouped_bars, bars, "xy", ylabel="").axes[0].collections


def test_a_file_may_be_named_by_a_text(tmp_path):
    plots.curves(f"{tmp_path}/a.png", {"a": (np.arange(2), np.arange(2))}, xlabel="x", ylabel="y")
    sheets.contact_sheet(f"{tmp_path}/b.png", np.zeros((1, 8, 8, 1)), np.zeros((1, 8, 8, 1)))
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg", "b.png"}


def test_panels_of_growing_sets_have_a_title_above_all(drawn):
    figure = drawn(plots.scaling, [1, 2], [1.0, 2.0], [1.0, 1.0], [30.0, 30.0])
    assert "private samples" in figure.get_suptitle()


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_legend_takes_no_space_from_the_curves_and_is_not_cut(drawn, count):
    series = {f"a curve whose name is long, number {i}": (np.arange(3), np.arange(3) + i) for i in range(count)}
    figure = drawn(plots.curves, series, xlabel="x", ylabel="y", title="Curves")
    assert figure.axes[0].get_title(loc="left") == "Curves"
    width = figure.get_window_extent().width
    assert figure.axes[0].get_window_extent().width > 0.8 * width
    assert figure.axes[0].get_window_extent().height > 3 * figure.dpi  # curves without a legend have 4 inches
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= width
    assert not legend.overlaps(figure.axes[0].get_window_extent())
