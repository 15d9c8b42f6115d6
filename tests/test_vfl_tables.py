"""The tables of the VFLRecon study: every printed number has a case or a reason, budgets bind, runs resume."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments import _paper, vflrecon
from experiments._vfl import figures
from experiments._vfl.cells import TABLES
from experiments._vfl.cells_tables import Scored, cell
from experiments._vfl.figures import draw
from experiments._vfl.study import BESIDE_COLUMNS, _beside, plan, run_wanted
from jaxleak._base import Batch, Observation, PartyRecord
from jaxleak.attacks._vertical import baselines, vflrecon_free
from jaxleak.study import RunFolder
from jaxleak.study.cells import Cell
from jaxleak.study.parties import Runs, SplitCase, correlations, run_case, seconds_of
from jaxleak.study.parties import _comparisons as comparisons
from jaxleak.study.parties import _jobs as parties_jobs
from jaxleak.study.parties import _own_features as own
from jaxleak.study.parties import _problem as parties_problem
from jaxleak.study.parties import _runs as parties_runs
from jaxleak.study.parties import _truth as parties_truth
from jaxleak.study.parties._comparisons import fu_completion
from jaxleak.study.rows import require_runs, show_cells
from jaxleak.study.runner import Result

BASE = SplitCase("sensorless")
TINY = SplitCase("breast_cancer", shadow_records=48, victim_records=48, network_epochs=1, task_epochs=1)


@pytest.mark.parametrize("table", ["table3", "table4", "table5", "table6", "fig3", "fig5", "fig6"])
def test_no_printed_number_is_dropped(table):
    listed = {cell.id: cell for cell in TABLES[table](BASE)}
    printed = [
        entry
        for name, content in _paper.tables("vflrecon").items()
        if name.removeprefix("text-").split("-")[0] == table
        for entry in content["cell"]
    ]
    assert printed
    for entry in printed:
        if entry["id"].startswith("table5-utility/feature"):
            entry = {**entry, "id": entry["id"].replace("feature", "label")}  # printed twice with the same value
        assert listed[entry["id"]].paper == entry["value"]


def test_cells_ask_for_what_they_are_called():
    by_id = {cell.id: cell for table in TABLES for cell in TABLES[table](BASE)}
    assert len(by_id) == sum(len(list(TABLES[table](BASE))) for table in TABLES)

    def of(name):
        (scored,) = by_id[name].jobs
        return scored

    def ciphers(table, base=BASE):
        return {cell.id: cell.jobs[0].case.cipher for cell in TABLES[table](base)}

    four = "table4-participants-label/enc/4"
    assert (of(four).case.parties, of(four).case.cipher, of(four).score) == (4, "ckks", "label_accuracy_shared")
    assert by_id[four].read([Result({"label_accuracy_shared": 0.5}, {})]) == 50
    assert ciphers("table4", dataclasses.replace(BASE, cipher="plain"))[four] == "plain"
    assert of("fig7/label_accuracy/0.75").case.cipher == of("fig8/feature_mse/128").case.cipher == "ckks"
    assert of("fig7/label_accuracy/0.5").case.cipher == of("fig8/feature_mse/64").case.cipher == "none"
    gibbs = "table4-partition-feature/plain/gibbs"
    assert (of(gibbs).case.partition, of(gibbs).case.cipher) == ("gibbs", "none")
    assert by_id[gibbs].read([Result({"feature_mse_shared": 0.5}, {})]) == 0.5
    noisy, score = of("table5-label/noise0.01#cut#adaptive")
    assert (noisy.defense, noisy.strength, score) == ("noise_cut", 0.01, "label_accuracy_shared_adaptive")
    soft, score = of("table5-utility/label/noise0.1#probabilities")
    assert (soft.defense, soft.strength, soft.top_output, score) == (
        "noise",
        0.1,
        "probabilities",
        "task_accuracy_change",
    )
    private, score = of("table6-utility/dp-sgd-eps100/criteo")
    assert (private.data, private.defense, private.strength) == ("criteo", "dp_sgd", 100.0)
    assert score == "task_accuracy_change"
    assert by_id["table3/li/celeba"].reason == "no data: CelebA"
    assert set(ciphers("encryption").values()) == {"none", "plain", "ckks"}
    assert set(ciphers("table4", dataclasses.replace(BASE, cipher="ckks")).values()) == {"none", "ckks"}


def test_cases_run_what_any_of_their_cells_needs():
    def planned(*scores):
        return plan([Scored(TINY, score) for score in scores], ("shared",))

    assert planned("label_accuracy_shared", "feature_mse_shared", "task_accuracy") == {
        TINY: Runs(("shared",), True, True)
    }
    only_task = planned("task_accuracy_change")[TINY]
    assert only_task == Runs((), False, True)
    assert seconds_of(TINY, only_task) < seconds_of(TINY, planned("label_accuracy_shared")[TINY])
    assert planned("label_accuracy_li_norm")[TINY].comparisons
    assert planned() == {}


@pytest.fixture
def counted(monkeypatch):
    calls = []

    def run_case(case, seed, runs):
        calls.append((case, seed))
        return {"label_accuracy_shared": 0.5 + 0.1 * seed, "label_accuracy_free": 1.0}, {}

    monkeypatch.setattr(parties_jobs, "run_case", run_case)
    return calls


def _run(tmp_path, wanted, **options):
    folder = RunFolder(tmp_path, "vflrecon", {}, fresh=False)
    options = {"seeds": (0, 1), "budget": 60.0, "shadow_init": ("shared",), **options}
    return run_wanted(wanted, folder, **options)[0]


def test_rows_hold_paper_ours_difference_and_spread_and_runs_resume(tmp_path, counted, capsys):
    wanted = [
        cell("t/one", TINY, "label_accuracy_shared", 50.0, "%"),
        cell("t/two", TINY, "label_accuracy_free", None, "%"),
        cell("t/three", dataclasses.replace(TINY, data="nowhere"), "label_accuracy_shared", 1.0, "%"),
        Cell("t/four", 9.0, "%", reason="no data: CelebA"),
    ]
    one, two, three, four = _run(tmp_path, wanted)
    assert (one["ours"], one["spread"], one["free"]) == pytest.approx((55.0, 5.0, 100.0))
    assert two["ours"] == 100
    assert (one["shadow_records"], one["victim_records"]) == (48, 48)
    assert three["ours"] is None
    assert "nowhere" in three["not_run"]
    assert four["not_run"] == "no data: CelebA"
    assert counted == [(TINY, 0), (TINY, 1)]  # two cells of one case
    assert _run(tmp_path, wanted)[0] == one
    assert len(counted) == 2
    show_cells([one, two, three, four], BESIDE_COLUMNS)
    printed = capsys.readouterr().out
    assert "not run (no data: CelebA): t/four" in printed
    assert "+5 " in printed


def test_what_does_not_fit_the_budget_is_listed(tmp_path, counted):
    wanted = [cell("t/one", TINY, "label_accuracy_shared", 50.0, "%")]
    (row,) = _run(
        tmp_path, wanted, budget=seconds_of(TINY, plan(wanted[0].jobs, ("shared",))[TINY]) / 60
    )  # for one seed of two
    assert row["ours"] is None
    assert row["not_run"].startswith("beyond the budget")
    assert counted == []


def test_correlations_by_hand():
    rng = np.random.default_rng(0)
    victims = rng.normal(size=(500, 4))
    victims[:, 3] = victims[:, 2]
    estimate = victims * [1, 1, 1, -1]
    found = correlations({"victims": victims, "estimate": estimate}, seed=0)
    assert found["correlation_original"] == pytest.approx(1)
    assert found["correlation_reconstructed"] == pytest.approx(-1)
    flipped = [np.corrcoef(victims[:, i], victims[:, 3])[0, 1] for i in range(3)]
    assert found["correlation_error"] == pytest.approx(2 * np.abs(flipped).sum() / 6)
    constant = correlations({"victims": victims, "estimate": np.zeros_like(victims)}, seed=0)
    assert constant["correlation_reconstructed"] == 0
    assert correlations({"victims": victims[:, :3], "estimate": estimate[:, :3]}, seed=0) == {}
    spoilt, known = victims.copy(), np.ones(victims.shape, bool)
    spoilt[::2, 3], known[::2, 3] = 0, False  # missing in every other row
    found = correlations({"victims": spoilt, "estimate": estimate, "known": known}, seed=0)
    assert found["correlation_original"] == pytest.approx(1)
    known[1:] = False
    assert correlations({"victims": spoilt, "estimate": estimate, "known": known}, seed=0) == {}


def test_tables_without_data_end_with_an_error_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    parties_problem.whole_table.cache_clear()
    args = vflrecon.Args(table=("encryption",), out=tmp_path)
    assert vflrecon.main(args)["cells_run"] == 0
    with pytest.raises(FileNotFoundError, match=r"no cell could run: no data: .*JAXLEAK_DATA_DIR"):
        vflrecon.main(args, need_runs=True)
    assert "not run (no data" in capsys.readouterr().out


def test_a_table_of_which_no_cell_ran_is_an_error_that_says_why():
    missing = {"ours": None, "not_run": "no data: CelebA"}
    with pytest.raises(FileNotFoundError, match=r"no cell could run: no data: CelebA$"):
        require_runs([missing, missing, {"ours": None, "not_run": "not asked for"}])
    with pytest.raises(FileNotFoundError, match="2 such reasons are listed above"):
        require_runs([missing, {"ours": None, "not_run": "no data: BHI"}])
    with pytest.raises(ValueError, match="nothing was run: beyond the budget; raise --budget"):
        require_runs([missing, {"ours": None, "not_run": "beyond the budget"}])
    with pytest.raises(ValueError, match="nothing was run: no cell is what the options ask for"):
        require_runs([{"ours": None, "not_run": "not asked for"}])
    with pytest.raises(ValueError, match="nothing was run"):
        require_runs([])
    require_runs([missing, {"ours": 1.0}])


def test_figures_are_drawn_with_the_baseline(tmp_path, monkeypatch):
    rows = [
        {"id": f"fig7/{metric}/{share}", "ours": share, "spread": 0.1, "baseline": 0.2, "paper": None, "seeds": [0]}
        for metric in ("label_accuracy", "feature_mse")
        for share in (0.25, 0.5)
    ]
    labels = []
    monkeypatch.setattr("matplotlib.figure.Figure.legend", lambda self, handles, shown, **_: labels.append(shown))
    draw(tmp_path, "fig7", [*rows, {"id": "fig7/label_accuracy/0.75", "ours": None}], None)
    draw(tmp_path, "fig3", rows, None)
    draw(tmp_path, "fig6", rows, {name: np.random.default_rng(0).random((9, 5)) for name in ("victims", "estimate")})
    draw(tmp_path, "fig4", rows, {name: np.zeros((2, 32 * 3)) for name in ("victims", "estimate")})
    with pytest.raises(ValueError, match="a multiple of 32 pixels, got 33"):
        draw(tmp_path, "fig4", rows, {name: np.zeros((2, 33)) for name in ("victims", "estimate")})
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {name for name in drawn if name.endswith(".svg")} == {
        "fig7_label_accuracy.svg", "fig7_feature_mse.svg", "fig3.svg", "fig6.svg",
    }  # fmt: skip
    assert {name for name in drawn if name.endswith(".png")} == {
        "fig7_label_accuracy.png", "fig7_feature_mse.png", "fig3.png", "fig4.png", "fig6.png",
    }  # fmt: skip
    assert all(any("own features alone" in label for label in names) for names in labels)
    assert len(labels) == 3


@pytest.mark.parametrize(("seeds", "length"), [([0], None), ([0, 1], 0.1)])
def test_bars_of_several_seeds_have_the_deviation_of_their_own_attack(tmp_path, monkeypatch, seeds, length):
    shown = {}
    monkeypatch.setattr(figures, "grouped_bars", lambda path, bars, groups, **options: shown.update(options, bars=bars))
    row = {"id": "fig5/x", "ours": 0.5, "spread": 0.1, "free": 0.3, "free_spread": 0.2, "paper": 0.4, "seeds": seeds}
    draw(tmp_path, "fig5", [row], None)
    names = {name: figures.LABELS[name] for name in ("ours", "free", "paper")}
    assert {name: shown["bars"][label].tolist() for name, label in names.items()} == {
        "ours": [0.5], "free": [0.3], "paper": [0.4],
    }  # fmt: skip
    wanted = {"ours": [length or np.nan], "free": [2 * length if length else np.nan], "paper": [np.nan]}
    np.testing.assert_equal({name: shown["spreads"][label] for name, label in names.items()}, wanted)


def test_other_attacks_in_a_row_have_means_and_deviations_over_the_seeds():
    results = [[Result({"feature_mse_free": value, "feature_variance": 1.0}, {})] for value in (0.2, 0.6)]
    found = _beside(Cell("fig5/x", None, "1"), "feature_mse_shared", results)
    assert (found["free"], found["free_spread"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (found["own_bottom"], found["own_bottom_spread"]) == (None, None)


def test_the_seconds_of_a_step_are_those_of_all_steps_divided_by_their_number(monkeypatch):
    """A timed run is watched twice, and only the second time counts, since nothing compiles then."""
    clock, took = [0.0], iter((100.0, 6.0))

    def watch(*_, rounds, **__):
        clock[0] += next(took)
        return None, SimpleNamespace(index=np.tile(np.arange(2), (rounds, 1)))

    def answer(attack, seen, *_):
        return SimpleNamespace(y=np.zeros(48, np.int32), score=np.full(48, 0.25))

    protocol = SimpleNamespace(init=lambda key: SimpleNamespace(params=None))
    victim = Batch(np.zeros((48, 2, 3)), np.zeros(48, np.int32), np.arange(48))
    problem = SimpleNamespace(victim_protocol=protocol, victim=victim, model=None, without_truth=lambda: problem)
    monkeypatch.setattr(parties_runs, "split_problem", lambda case, seed: problem)
    monkeypatch.setattr(parties_runs.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(parties_runs.audit, "watch", watch)
    monkeypatch.setattr(parties_runs, "_answer", answer)
    monkeypatch.setattr(parties_runs, "_with_shadow_runs", lambda *_: ({}, {}))
    nothing = SimpleNamespace(labels=np.zeros(48, np.int32), scores=lambda truth: {}, arrays=lambda truth: {})
    monkeypatch.setattr(parties_runs, "own_features", lambda *_: nothing)
    monkeypatch.setattr(parties_runs.attacks, "vflrecon_free", lambda *_, **__: None)
    case, runs = dataclasses.replace(TINY, batch_size=16, victim_epochs=4), Runs((), False, False, timed=True)
    scores, arrays = run_case(case, 0, runs)
    assert scores["seconds_per_step"] == pytest.approx(6 / 12)
    assert scores["label_confidence_free"] == 0.75
    assert arrays["right_free"].shape == (12, 2)
    took = iter((100.0,))  # a run without timing runs once
    assert "seconds_per_step" not in run_case(case, 0, runs._replace(timed=False))[0]


@pytest.mark.slow
def test_a_defended_case_has_both_attackers_and_both_accuracies():
    case = dataclasses.replace(TINY, victim_records=200, network_epochs=10, defense="noise_cut", strength=1e4)
    scores, arrays = run_case(case, 0, Runs(("shared",), True, True))
    assert {"label_accuracy_shared", "label_accuracy_shared_adaptive", "feature_mse_shared_adaptive"} <= scores.keys()
    change = scores["task_accuracy"] - scores["task_accuracy_undefended"]
    assert scores["task_accuracy_change"] == pytest.approx(change)
    # With noise of a thousand times the gradient, an informed attacker has only its own features.
    assert scores["label_accuracy_shared_adaptive"] < scores["label_accuracy_baseline"] + 0.05
    assert arrays["victims"].shape == arrays["estimate"].shape == (192, 15)
    undefended, _ = run_case(dataclasses.replace(case, defense="none", strength=0.0), 0, Runs(("shared",)))
    assert undefended["label_accuracy_shared"] > 0.95
    assert undefended["label_accuracy_baseline"] == scores["label_accuracy_baseline"]


def test_the_paper_file_names_no_text():
    text = (_paper.FOLDER / "vflrecon.toml").read_text()
    assert "source =" not in text
    json.dumps(_paper.tables("vflrecon"))


@pytest.mark.slow
def test_a_completed_bottom_model_reads_labels_that_it_was_trained_for():
    case = dataclasses.replace(
        TINY, shadow_records=150, victim_records=240, task_epochs=5, defense="noise", strength=1.0
    )
    # This comparison has no defense, since noise of that size would leave little. The more frequent class has 63 %.
    assert fu_completion(case, 0)["label_accuracy_fu_completion"] > 0.85


@pytest.fixture
def shadows(monkeypatch):
    """A list of the shadow runs of a case as (how, adaptive, key); the runs are stubs."""
    made = []

    def shadow_run(case, problem, protocol, how, start, key):
        made.append((how, protocol == "defended", tuple(np.asarray(jax.random.key_data(key)))))
        return f"{how} {protocol}"

    def vflrecon(case, problem, shadows, seen, key, tasks):
        assert len(shadows) == case.shadow_runs
        return SimpleNamespace(y=np.zeros(2), x=np.full((2, 1), 5.0)), dict.fromkeys(tasks, ("gradient",))

    monkeypatch.setattr(parties_runs, "_shadow_run", shadow_run)
    monkeypatch.setattr(parties_runs, "_vflrecon", vflrecon)
    monkeypatch.setattr(parties_runs, "own_features", lambda *_, features: SimpleNamespace(features="known"))
    monkeypatch.setattr(
        parties_runs, "regression_scores", lambda problem, known, shadow, *_: ({"regression": (known, shadow)}, [0.5])
    )
    monkeypatch.setattr(parties_runs, "aligned_scores", lambda problem, shadow, *_: {"aligned": shadow})
    return made


def _shadowed(case, runs):
    problem = SimpleNamespace(shadow_protocol="plain", adaptive_protocol="defended")
    truth = SimpleNamespace(
        label_scores=lambda name, y: {f"label_accuracy_{name}": 0.5}, right=lambda y: "right",
        feature_mse=lambda x: 0.25, victims=lambda x: x,
        by_column=lambda estimate: estimate, took_part=np.array([1]),
    )  # fmt: skip
    return parties_runs._with_shadow_runs(case, 0, runs, problem, None, None, None, truth)


def test_regressions_on_two_epochs_hold_out_whole_samples(monkeypatch):
    rng, asked = np.random.default_rng(0), []
    fit = baselines.fit_feature_baseline

    def recorded(*given, groups=None, **options):
        asked.append(groups)
        return fit(*given, groups=groups, **options)

    for module in (vflrecon_free, parties_truth.party_records):
        monkeypatch.setattr(module, "fit_feature_baseline", recorded)
    index = np.array([[0, 1, 2], [3, 4, 5], [5, 3, 0], [1, 2, 4]])
    seen = Observation(
        np.arange(4), index=index,
        party=PartyRecord(
            rng.random((6, 2))[index], None, None, None, None, None, rng.standard_normal((4, 3, 2)),
        ),
    )  # fmt: skip
    records = SimpleNamespace(x=rng.random((6, 1)), y=np.arange(6) % 2)
    problem = SimpleNamespace(shadow=records, model=SimpleNamespace(num_classes=2))
    truth = SimpleNamespace(victims=lambda x: x, feature_mse_of=lambda table: table.shape)
    scores = parties_truth.aligned_scores(problem, seen, seen, records.y, truth, 0)
    assert scores == {"feature_mse_aligned": (6, 1), "feature_mse_free_labels": (6, 1)}
    assert len(asked) == 2
    for groups in asked:
        np.testing.assert_array_equal(groups, index.ravel())


@pytest.mark.parametrize("defended", [False, True])
def test_every_start_has_its_shadow_runs_and_its_scores(shadows, defended):
    case = dataclasses.replace(TINY, shadow_runs=2, defense="noise" if defended else "none")
    scores, arrays = _shadowed(case, Runs(("shared", "independent"), features=True, regressions=True))
    attackers = [f"{how}{suffix}" for how in ("shared", "independent") for suffix in ("", "_adaptive")[: 1 + defended]]
    assert scores.keys() == {
        *(f"label_accuracy_{name}" for name in attackers), *(f"feature_mse_{name}" for name in attackers),
        *(f"{name}{suffix}" for name in ("regression", "aligned") for suffix in ("", "_adaptive")[: 1 + defended]),
    }  # fmt: skip
    # Each regression reads the shadow runs of the one start for which it is made.
    assert scores["regression"] == ("known", "shared plain")
    assert scores["aligned"] == "independent plain"
    if defended:  # for an attacker who knows the defense
        assert scores["regression_adaptive"] == ("known", "shared defended")
        assert scores["aligned_adaptive"] == "independent defended"
    columns = {*attackers, *(f"regression{suffix}" for suffix in ("", "_adaptive")[: 1 + defended])}
    right = {f"right_{name}" for name in attackers}
    assert arrays.keys() == {"estimate", *right, *(f"columns_{name}" for name in columns)}
    np.testing.assert_array_equal(arrays["estimate"], [[5.0]])
    assert len(shadows) == 2 * len(attackers)
    of_one = [key for how, adaptive, key in shadows if not adaptive]
    assert len(set(of_one)) == 4
    # The informed attacker uses the same keys.
    assert not defended or of_one == [key for how, adaptive, key in shadows if adaptive]


def test_what_is_not_asked_for_is_not_scored(shadows):
    for runs, names in (
        (
            Runs(("own_bottom",), features=True, regressions=True),
            {"label_accuracy_own_bottom", "feature_mse_own_bottom"},
        ),
        (Runs(("shared",), features=False, regressions=True), {"label_accuracy_shared"}),
        (Runs(("independent",), features=True), {"label_accuracy_independent", "feature_mse_independent"}),
        (Runs((), features=True), set()),
    ):
        assert _shadowed(TINY, runs)[0].keys() == names
    scores, arrays = _shadowed(dataclasses.replace(TINY, select="validation"), Runs(("shared",), features=False))
    chosen = {name: value for name, value in scores.items() if name.startswith("chose_")}
    assert chosen == {
        f"chose_{field}_labels_shared": float(field == "gradient") for field in parties_runs.party_records.FIELDS
    }
    assert arrays.keys() == {"right_shared"}


def test_a_defense_is_measured_against_the_task_without_it(monkeypatch):
    def task(case, seed):
        return parties_runs._Task(*((0.5, 0.25, 0.4) if case.defense == "noise" else (0.75, 0.7, 0.4)))

    monkeypatch.setattr(parties_runs, "_task", task)
    alone = {"task_accuracy": 0.75, "task_balanced_accuracy": 0.7, "task_accuracy_most_frequent": 0.4}
    assert parties_runs.task_scores(TINY, 0) == alone
    assert parties_runs.task_scores(dataclasses.replace(TINY, defense="noise"), 0) == {
        "task_accuracy": 0.5, "task_balanced_accuracy": 0.25, "task_accuracy_most_frequent": 0.4,
        "task_accuracy_undefended": 0.75, "task_balanced_accuracy_undefended": 0.7, "task_accuracy_change": -0.25,
            "task_balanced_accuracy_change": pytest.approx(-0.45),
    }  # fmt: skip


def test_a_task_that_learned_one_class_alone_shows_beside_the_most_frequent_one(monkeypatch):
    """On an unbalanced table, a defense may cost no accuracy but everything that the model had learned."""
    shadow = SimpleNamespace(x=None, y=np.array([0, 0, 0, 1]))
    problem = SimpleNamespace(
        model=None, victim_protocol=None, shadow=shadow, victim=SimpleNamespace(y=np.array([0, 1, 0]))
    )
    monkeypatch.setattr(parties_runs, "split_problem", lambda case, seed: problem)
    monkeypatch.setattr(parties_runs, "rounds_of", lambda *_: 1)
    weights = {"top": np.zeros(3)}
    monkeypatch.setattr(parties_runs, "train", lambda *_: weights)
    monkeypatch.setattr(parties_runs, "predict", lambda *_: np.zeros(4, int))
    assert parties_runs._task.__wrapped__(TINY, 0) == (0.75, 0.5, 0.75)
    # A diverged training also predicts the first class, but has no accuracy.
    weights["top"][1] = np.nan
    np.testing.assert_array_equal(parties_runs._task.__wrapped__(TINY, 0), [np.nan, np.nan, 0.75])


def test_two_classes_are_compared_with_li_et_al_too(monkeypatch):
    monkeypatch.setattr(comparisons, "fu_free_top", lambda case, seed: {"free top": 0.1})
    monkeypatch.setattr(comparisons, "fu_completion", lambda case, seed: {"completion": 0.2})
    records = comparisons.party_records
    gradients, asked = np.arange(8.0).reshape(4, 2), []
    monkeypatch.setattr(records, "flat_observations", lambda seen: (np.array([3, 0, 5, 1]), None, gradients))
    monkeypatch.setattr(records, "norm_labels", lambda *given: asked.append(given) or np.array([1, 0, 1, 1]))
    monkeypatch.setattr(records, "direction_labels", lambda *given: asked.append(given) or np.array([0, 1, -1, 0]))
    problem = SimpleNamespace(
        model=SimpleNamespace(num_classes=2),
        shadow=SimpleNamespace(y=np.array([0, 1, 1, 1])),
        victim=SimpleNamespace(y=np.zeros(6)),
    )
    baseline = SimpleNamespace(log_proba=lambda x: np.log([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]]))
    truth = SimpleNamespace(label_scores=lambda name, labels: {name: labels.tolist()})
    found = comparisons.comparisons(TINY, 0, problem, None, baseline, truth)
    assert found == {
        "free top": 0.1,
        "completion": 0.2,
        "li_norm": [0, 1, 0, 1, 0, 1],
        "li_direction": [0, 1, 0, 1, 0, 1],  # exchanged, since three of four records are positive
    }
    assert asked[0][1] == 0.75
    np.testing.assert_array_equal(asked[1][1], gradients[2])  # the sample that is most certainly positive
    problem.model.num_classes = 3
    assert comparisons.comparisons(TINY, 0, problem, None, baseline, truth).keys() == {
        "free top", "completion",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("share", "found"),
    [(0.25, [0, 0, 0, 1]), (0.75, [1, 1, 1, 0]), (0.65, [1, 1, 1, 0]), (0.55, [1, 1, 1, 0]), (0.45, [1, 1, 1, 0])],
)
def test_shares_name_the_classes_where_they_differ(share, found):
    np.testing.assert_array_equal(comparisons._named(np.array([1, 1, 1, 0]), share), found)


@pytest.mark.parametrize(
    ("records", "size", "wanted"), [((40, 16), 4, 16), ((40, 40), 32, 16), ((15, 40), 4, 4), ((40, 15), 4, 4)]
)
def test_the_baseline_has_batches_of_the_default_size_unless_there_are_fewer_records(
    monkeypatch, records, size, wanted
):
    monkeypatch.setattr(own, "_fitted", lambda case, *_: case)
    shadow, victim = records
    kept = {"shadow_records": shadow, "victim_records": victim, "network_epochs": 3, "scales": "entry"}
    case = SplitCase("breast_cancer", batch_size=size, optimizer="sgd", **kept)
    asked = own.own_features(case.attacker_only(), 0, features=True)
    assert asked == SplitCase("breast_cancer", batch_size=wanted, **kept)


def test_the_mean_over_classes_stands_beside_a_baseline_that_answers_for_it():
    """The second sample probably belongs to the frequent class, but with less confidence than the class's share."""
    victim, shadow = SimpleNamespace(y=np.array([0, 1])), SimpleNamespace(y=np.array([0, 0, 0, 0, 1]))
    problem = SimpleNamespace(victim=victim, shadow=shadow, own=lambda _: np.zeros((2, 1)))
    proba, shares = np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0.8, 0.2])
    labels = own.party_records.LabelBaseline(lambda _: np.log(proba), "trees", 0.0, shares)
    truth = parties_runs.Truth(problem, np.array([[0, 1]]))
    scores = own.OwnFeatures(labels, None, {"labels": lambda record: proba}).scores(truth)
    assert scores["label_balanced_baseline"] == scores["label_balanced_most_frequent"] == 0.5
    assert scores["label_balanced_baseline_even"] == 1.0


@pytest.mark.parametrize("features", [True, False])
def test_networks_of_own_features_see_whole_batches_of_shadow_records(monkeypatch, features):
    trained = []
    monkeypatch.setattr(
        own.attacks, "train_vflrecon", lambda key, records, *_, **given: trained.append((records, given))
    )
    monkeypatch.setattr(own.party_records, "fit_label_baseline", lambda *_, **__: "labels")
    monkeypatch.setattr(own.party_records, "fit_feature_baseline", lambda *_, **__: "features")
    case = SplitCase(
        "breast_cancer", shadow_records=40, victim_records=20, shadow_epochs=5, shadow_runs=2, network_epochs=7,
        scales="entry",
    )  # fmt: skip
    found = own._fitted.__wrapped__(case, 0, features)
    assert (found.labels, found.features) == ("labels", "features" if features else None)
    assert [given["task"] for _, given in trained] == ["labels", "features"][: 1 + features] == list(found.networks)
    problem = parties_problem.split_problem(case, 0)
    for records, given in trained:
        # As often as R sees every shadow record: five epochs of two shadow runs, seven times.
        assert given["epochs"] == 5 * 2 * 7
        assert given["scales"] == "entry"
        assert given["fields"] == ("inputs",)
        np.testing.assert_array_equal(records.index, np.arange(32).reshape(2, 16))
        np.testing.assert_array_equal(records.party.x, problem.own(problem.shadow)[:32].reshape(2, 16, -1))
