"""Figures of the pages show the stored results."""

import numpy as np
import pytest

from docs._figures import cafe, defended, fedleak, networks, reliability
from docs._figures import drawn as figures
from jaxleak.study import plots


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """A function that draws a named figure from its stored results; it returns these and the figure."""

    def draw(name):
        kept, (function, results) = [], figures.DRAWN[name]
        stored = [figures.read(result) for result in results]
        with monkeypatch.context() as patch:
            patch.setattr(plots, "save_figure", lambda figure, _: kept.append(figure))
            function(*stored, path=tmp_path / f"{name}.png")
        return stored[0] if len(stored) == 1 else stored, kept[0]

    yield draw
    import matplotlib.pyplot as plt

    plt.close("all")


def test_every_page_s_figure_is_committed():
    assert {"agreement", "audited", "brightness", "cafe_descent", "deep", "defenses", "labels", "vit"} < set(
        figures.DRAWN
    )
    for name in figures.DRAWN:
        assert (figures.RESULTS.parent / "figures" / f"{name}.png").exists()


@pytest.mark.slow
def test_every_page_s_figure_is_drawn_by_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    figures.main([])
    assert {path.stem for path in tmp_path.glob("*.png")} == set(figures.DRAWN)


@pytest.mark.parametrize("name", ["baselines", "cafe_descent", "clients", "defenses", "labels", "terms"])
def test_figures_of_several_panels_have_a_title_above_all(drawn, name):
    _, figure = drawn(name)
    assert figure.get_suptitle()


def test_a_rule_that_finds_as_many_labels_as_another_shows_around_it(drawn):
    _, figure = drawn("labels")
    for axes in figure.axes:
        assert (np.diff([line.get_linewidth() for line in axes.lines]) < 0).all()
        assert (np.diff([line.get_markersize() for line in axes.lines]) < 0).all()


def test_defenses_stand_in_the_order_of_what_leaks_to_the_best_attacker(drawn):
    stored, figure = drawn("defenses")
    names = ("ssim", "ssim_adaptive", "ssim_adaptive_weak")
    cells = {defended.DEFENSES[c["defense"]].format(c["strength"]): c for c in stored["cells"]}
    rows = [cells[label.get_text()] for label in figure.axes[0].get_yticklabels()]
    for name, line in zip(names, figure.axes[0].lines[:3], strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [row.get(name, np.nan) for row in rows])
    assert any("ssim_adaptive_weak" in row for row in rows)
    best = [max(row.get(name, 0.0) for name in names) for row in rows]
    assert best == sorted(best, reverse=True)
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


def test_both_libraries_stand_at_their_scores_and_no_case_is_left_out(drawn):
    stored, figure = drawn("against_breaching")
    (axes,) = figure.axes
    cases = stored["metrics"]["by_case"]
    for points, wanted in zip(axes.collections[1:], ("jaxleak_psnr", "breaching_psnr", "grey_psnr"), strict=True):
        shown = points.get_offsets()
        assert sorted(shown[:, 0]) == pytest.approx(sorted(case[wanted] for case in cases.values()))
    assert len(axes.get_yticklabels()) == len(cases) == stored["metrics"]["cases"]


def test_cases_count_as_certified_where_the_verdict_says_so(drawn):
    stored, figure = drawn("audited")
    certified, not_certified = (bars.patches for bars in figure.axes[0].containers)
    cases = stored["metrics"]["by_case"].values()
    similar = {case["psnr"]: case["ssim"] for case in cases}
    # As the page says: sixteen certified cases, all with the right images, and one right image without a certificate.
    assert len(certified) == 16
    assert min(similar[bar.get_width()] for bar in certified) >= 0.95
    missed = [
        case
        for case in cases
        if case["ssim"] > 0.97 and any(reason.startswith("No image is certified") for reason in case["reasons"])
    ]
    assert [(case["network"], case["batch_norm"], case["batch_size"]) for case in missed] == [("NormCnn", "eval", 1)]
    assert len(certified) + len(not_certified) == len(cases)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(set(rows)) == len(rows)
    assert "CNN with batch norm, trained, evaluation mode, four images" in rows


def test_every_noisy_run_stands_at_its_noise_and_flagged_answers_are_marked(drawn):
    stored, figure = drawn("vit")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none", "1e-6", "1e-5", "1e-4"]
    *_, given, flagged, grey = axes.lines
    assert sorted(zip(*given.get_data(), strict=True)) == sorted(
        (place, cell["psnr"]) for place, run in enumerate(stored) for cell in run["cells"] if cell["answered"]
    )
    assert set(flagged.get_xdata()) == {2, 3}
    assert len(given.get_xdata()) + len(flagged.get_xdata()) == 16
    assert grey.get_ydata()[0] == pytest.approx(np.mean([cell["psnr_grey"] for cell in stored[0]["cells"]]))


def test_brightness_shows_answers_with_the_update_s_gradient_alone(drawn):
    (deep, *trained), figure = drawn("brightness")
    plain, scaled = figure.axes[0].lines
    cells = [cell for run in (deep, *trained) for cell in run["cells"] if cell["gradient_matched"] == 1]
    assert len(cells) < sum(len(run["cells"]) for run in (deep, *trained))
    assert sorted(scaled.get_xdata()) == sorted(cell["psnr_up_to_scale"] for cell in cells)
    costs = scaled.get_xdata() - plain.get_xdata()
    assert list(costs) == sorted(costs, reverse=True)
    assert f"up to {costs[0]:.0f} dB" in figure.axes[0].get_title(loc="left")


def test_the_descents_of_cafe_are_those_of_the_ledger(drawn):
    entries, figure = drawn("cafe_descent")
    for axes, data in zip(figure.axes, ("mnist", "cifar10"), strict=True):
        solved, paper, here = ([bar.get_width() for bar in bars] for bars in axes.containers)
        found = [entries[cell.format(data), "reduced", ""] for cell in cafe.DESCENTS]
        assert solved == [entries[f"table2/cafe/{data}", "ours", ""].value]
        assert paper == [entry.paper for entry in found]
        assert here == [entry.value for entry in found]
        assert all("200 iterations" in e.differs and "N 80 for 800" in e.differs for e in found)  # as in the legend
        assert max(here) == here[0]  # CAFE is best, as in the title


def test_the_basins_of_all_stored_runs_are_shown_in_order(drawn):
    stored, figure = drawn("basin")
    cells = {networks.NETWORKS[cell["id"]]: cell for run in stored for cell in run["cells"]}
    (axes,) = figure.axes
    rows = [cells[label.get_text()] for label in axes.get_yticklabels()]
    assert len(rows) == len(cells) == 10
    for container, noise in zip(axes.containers, ("40 dB", "30 dB", "20 dB"), strict=True):
        assert list(container.lines[0].get_xdata()) == [row["reach"][noise] for row in rows]
    at_30 = [row["reach"]["30 dB"] for row in rows]
    assert at_30 == sorted(at_30, reverse=True)
    assert {run["config"]["data"] for run in stored} == {"cifar10"}


@pytest.mark.parametrize("name", ["clients", "terms"])
def test_panels_have_the_stored_means_and_spreads_beside_the_paper(drawn, name):
    stored, figure = drawn(name)
    found = {cell["id"]: cell for cell in stored["cells"]}
    for (title, beginning, strengths), axes in zip(getattr(fedleak, name.upper()), figure.axes, strict=False):
        cells = [found[beginning + strength] for strength in strengths]
        assert axes.get_title(loc="left") == title
        (bars,) = axes.containers
        assert list(bars.lines[0].get_ydata()) == [cell["ours"] for cell in cells]
        lows = [segment[0][1] for segment in bars.lines[2][0].get_segments()]
        np.testing.assert_allclose(lows, [cell["ours"] - cell["spread"] for cell in cells])
        assert [cell["paper"] for cell in cells] in [list(line.get_ydata()) for line in axes.lines]


def test_rounds_stand_in_their_order(drawn):
    stored, figure = drawn("rounds")
    line = figure.axes[0].containers[0].lines[0]
    runs = sorted(stored, key=lambda run: run["config"]["attacked_round"])
    assert list(line.get_ydata()) == [run["cells"][0]["psnr"] for run in runs]
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == [str(run["config"]["attacked_round"]) for run in runs]


def test_baselines_stand_beside_the_paper_and_a_grey_image(drawn):
    stored, figure = drawn("baselines")
    found = {cell["id"]: cell for cell in stored["cells"]}
    for axes, data in zip(figure.axes, fedleak.COMPARED_ON, strict=True):
        cells = [found[f"table3/{attack}/b16/{data}"] for attack in fedleak.ATTACKS]
        paper, ours = ([bar.get_width() for bar in bars] for bars in axes.containers if len(bars) == len(cells))
        assert paper == [cell["paper"] for cell in cells]
        assert ours == [cell["ours"] for cell in cells]


def test_the_local_steps_of_both_runs_are_those_of_the_table(drawn):
    (exact, smooth), figure = drawn("local_steps")
    assert exact["config"]["exact_kinks"]
    assert not smooth["config"]["exact_kinks"]
    shown = [list(bars.lines[0].get_ydata()) for bars in figure.axes[0].containers]
    for stored, line in zip((smooth, exact), shown, strict=True):
        found = {cell["id"]: cell["ours"] for cell in stored["cells"]}
        assert line == [found[f"table9/fedleak/steps{steps}"] for steps in fedleak.STEPS]


def test_weights_of_the_variation_are_in_units_of_the_root_of_the_batch(drawn):
    stored, figure = drawn("variation")
    assert {cell["id"] for run in stored for cell in run["cells"]} == {"resnet10_16-b4/homotopy"}
    weights, psnr = figure.axes[0].containers[0].lines[0].get_data()
    np.testing.assert_allclose(list(weights), [0.1, 0.3, 1.0])
    assert list(psnr) == [run["cells"][0]["ours"] for run in stored]


def test_bars_of_fake_gradients_are_what_each_server_recovers(drawn):
    (undefended, defended_runs), figure = drawn("fake_gradients")
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    found = {cell["id"].removeprefix("text-fake-gradients/"): cell for cell in defended_runs["cells"]}
    _, plain, known = cafe.SERVERS
    assert widths == [undefended["cells"][0]["ours"], found[plain]["ours"], found[known]["ours"]]


def test_priors_stand_by_attack_and_by_noise(drawn):
    stored, figure = drawn("priors")
    runs = {(run["config"]["attack"], run["config"]["strength"]): run["metrics"]["psnr"] for run in stored}
    bars = [container for container in figure.axes[0].containers if len(getattr(container, "patches", ())) > 0]
    for attack, container in zip(fedleak.PRIORS, bars, strict=True):
        heights = [bar.get_height() for bar in container]
        assert heights == [runs[attack, float(noise)] for noise in fedleak.NOISE]


def test_bars_of_epochs_are_named_as_their_runs(drawn):
    stored, figure = drawn("epochs")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    for run, label in zip(stored, labels, strict=True):
        config = run["config"]
        images = config["batch_size"] * config["local_steps"]
        assert ("4 images" in label) <= (images == 4)
        assert ("8 images" in label) <= (images == 8)
        assert ("5 epochs" in label) == (config["local_epochs"] == 5)
        assert ("rate" in label) == (config["learning_rate"] != 0.1)
        assert "rate" not in label or f"rate {config['learning_rate']:g}" in label
        assert ("new orders" in label) == config["reshuffle"]
        assert ("momentum" in label) == (config["momentum"] > 0)
        assert ("one gradient" in label) == config["estimate"]
    assert [bar.get_width() for bar in axes.patches] == [run["metrics"]["psnr"] for run in stored]


def test_smooth_networks_are_named_as_their_runs(drawn):
    stored, figure = drawn("smooth")
    labels = [label.get_text().lower().replace(",", "") for label in figure.axes[0].get_yticklabels()]
    for run, label in zip(stored, labels, strict=True):
        config = run["config"]
        assert config["model"] in label
        assert config["attack"].replace("_", " ") in label
        assert config["attack"] != "dlg" or str(config["iterations"]) in label
        assert ("four" in label) == (config["batch_size"] == 4)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [run["metrics"]["psnr"] for run in stored]


def test_bars_of_mutants_are_what_was_counted_when_they_were_tried(drawn):
    (first, later, unseen), figure = drawn("mutants")
    (axes,) = figure.axes
    samples = {run["command"].split()[-1]: run for run in (first, later, unseen, *unseen["earlier"])}
    labels = [label.get_text() for label in axes.get_yticklabels()]
    seeds = [label.split()[1] for label in labels]
    assert seeds == sorted(samples, key=int)  # later samples have higher seeds
    for row, seed in enumerate(seeds):
        counted, (noticed, survived, not_judged) = samples[seed]["metrics"], (bars[row] for bars in axes.containers)
        assert noticed.get_width() == pytest.approx(100 * counted["noticed"] / counted["made"])
        assert not_judged.get_width() == pytest.approx(100 * counted.get("not_judged", 0) / counted["made"])
        assert survived.get_x() + survived.get_width() == pytest.approx(not_judged.get_x())
        assert not_judged.get_x() + not_judged.get_width() == pytest.approx(100)


def test_repeated_measurements_are_told_apart_by_whether_they_agree(drawn):
    stored, figure = drawn("repeated")
    (axes,) = figure.axes
    for row, check in enumerate(stored):
        same, near, far = (bars[row].get_width() * len(check["cells"]) / 100 for bars in axes.containers)
        assert same + near == pytest.approx(check["agree"])
        assert far == pytest.approx(sum(not cell["agrees"] for cell in check["cells"]))
        assert same == pytest.approx(sum(cell["again"] - cell["recorded"] == 0 for cell in check["cells"]))
    assert len(axes.containers) == len(reliability.REPEATED)


def test_the_printed_descent_ends_at_the_number_of_the_ledger(drawn):
    _, figure = drawn("cafe_printed")
    entries = figures.read("cafe")
    runs = [figures.read(name) for name in figures.DRAWN["cafe_printed"][1]]
    ends = [line.get_ydata()[-1] for line in figure.axes[1].lines[: len(runs)]]
    kinds = {"adam": ("printed", ""), "authors": ("printed", "authors-adam"), "stopped": ("ours", "descent-stopped")}
    of_run = [entries[run["cell"], *kinds[run["job"].get("steps", "adam")]] for run in runs]
    values = [entry.seeds[run["job"]["seed"]] for entry, run in zip(of_run, runs, strict=True)]
    assert ends == pytest.approx(values, abs=1e-3)
    losses = [line.get_ydata() for line in figure.axes[0].lines]
    assert all(len(loss) == 10 for loss in losses)  # one point per tenth of Step II, and none of Step I
    assert losses[0][-1] > min(losses[0])
