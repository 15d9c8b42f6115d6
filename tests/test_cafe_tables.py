"""The CAFE tables: their cells, the cost of cells, and the budget. No attack runs here."""

import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import _paper, cafe_tables
from experiments._cafe import tables
from experiments._cafe.tables import setting_of
from jaxleak import data, models, protocols
from jaxleak._base import Batch, Reconstruction
from jaxleak.study import rounds
from jaxleak.study.cells import curve_at, iterations_to
from jaxleak.study.files import write_json
from jaxleak.study.rounds import _settings
from jaxleak.study.rounds import runs as cafe_runs
from jaxleak.study.rounds.jobs import CafeJobs, seconds
from jaxleak.study.rounds.runs import Setting
from jaxleak.study.rows import show_cells
from jaxleak.study.runner import Result, Runner
from jaxleak.study.sources import Sources, unavailable

ALL = tables.NEURIPS + tables.FACES + tables.ICLR


@pytest.mark.parametrize("table", ALL)
@pytest.mark.parametrize("solver", ["exact", "paper"])
def test_every_printed_cell_is_planned(table, solver):
    planned = list(tables.cells((table,), tables.Options(solver=solver)))
    names = {cell.id.split("#")[0].removeprefix("iclr-") for cell in planned}
    if table.startswith("iclr-"):
        printed = {cell["id"] for cell in _paper.tables("cafe_iclr")[table.removeprefix("iclr-")]["cell"]}
    else:
        neurips = _paper.tables("cafe_neurips")
        ids = {
            "table8": ["table8-psnr", "table8-loss", "table8-accuracy"],
            "fake-gradients": ["text-fake-gradients"],
            "yale": ["text-yale"],
        }
        printed = {cell["id"] for name in ids.get(table, [table]) for cell in neurips[name]["cell"]}
        if table == "table11":  # training stops at --iterations of the printed 8,000
            printed = {name for name in printed if int(name.rsplit("iter", 1)[1]) <= tables.Options().iterations}
    assert names == printed
    assert all(np.isfinite(seconds(setting_of(cell))) and seconds(setting_of(cell)) > 0 for cell in planned)


def test_the_training_curves_are_planned_without_printed_numbers():
    planned = list(tables.cells(("fig7",), tables.Options(iterations=500, num_samples=200)))
    assert {setting_of(cell).dataset for cell in planned} == {"cifar10", "mnist", "linnaeus5"}
    assert {setting_of(cell).defense for cell in planned} == {"none", "fake-capped"}
    assert all((c.paper, setting_of(c).iterations, setting_of(c).num_samples) == (None, 500, 200) for c in planned)


def test_cells_that_share_a_run_share_its_setting():
    loss, accuracy = (
        [setting_of(cell) for cell in tables.cells(("table8",), tables.Options()) if kind in cell.id]
        for kind in ("loss", "accuracy")
    )
    assert len(set(loss) | set(accuracy)) == 1


class AskedError(Exception):
    """Raised in place of a run, with the name and options of the requested protocol."""


@pytest.fixture
def asked(monkeypatch):
    """Patch the protocols so that they raise `AskedError` with their name and options."""

    def asking(name):
        def protocol(model, **options):
            raise AskedError(name, options)

        return protocol

    for name in ("horizontal", "vertical"):
        monkeypatch.setattr(protocols, name, asking(name))
    monkeypatch.setattr(models, "frozen_features", lambda model: model)
    private = Batch(np.zeros((8, 1)), np.zeros(8), np.arange(8))
    return SimpleNamespace(private=private, model=None)


@pytest.mark.parametrize("run", [cafe_runs.single, lambda setting, problem: cafe_runs.descent(setting, problem, None)])
@pytest.mark.parametrize(("workers", "name"), [(4, "horizontal"), (0, "vertical")])
def test_descents_have_the_workers_of_their_setting(asked, run, workers, name):
    setting = Setting("single", method="cafe-iclr", num_samples=8, batch_size=4, workers=workers)
    with pytest.raises(AskedError) as found:
        run(setting, asked)
    assert found.value.args[0] == name
    assert found.value.args[1].get("workers", 0) == workers


def test_steps_one_and_two_have_the_workers_too(asked):
    with pytest.raises(AskedError) as found:
        rounds.steps_one_and_two(
            asked, np.zeros((8, 1, 4)), iterations=1, batch_size=4, key=None, options={}, workers=2
        )
    assert found.value.args[0] == "horizontal"


def test_the_papers_solver_is_that_of_the_paper():
    iclr = [setting_of(c) for c in tables.cells(("iclr-table1b", "iclr-table3b"), tables.Options(solver="paper"))]
    assert {s.method for s in iclr if s.kind == "single"} == {"cafe-iclr"}
    assert not any(s.kind == "exact" for s in iclr)
    fake = [setting_of(c) for c in tables.cells(("fake-gradients",), tables.Options(solver="paper"))]
    assert {s.kind for s in fake} == {"descent"}
    assert {s.defense for s in fake} == {"none", *cafe_runs.FAKE}
    single = [setting_of(c) for c in tables.cells(("table5",), tables.Options()) if "single" in c.id]
    assert {s.switch for s in single} == {True, False}


@pytest.fixture
def no_data(monkeypatch):
    """Disable checks and fingerprints of data, since tables with stubbed runs need no data."""
    monkeypatch.setattr(cafe_tables, "unavailable", lambda spec: None)
    monkeypatch.setattr(CafeJobs, "sources", lambda self, setting, seed: {})


def test_a_cell_that_asks_for_too_many_images_does_not_end_the_table(tmp_path, monkeypatch, capsys, no_data):
    def problem(self, setting):
        if setting.dataset == "mnist":
            raise ValueError("mnist has 2000 samples, n=9000 were asked for")

    monkeypatch.setattr(cafe_runs, "exact", lambda setting, problem: {"psnr": 100.0})
    monkeypatch.setattr(CafeJobs, "_problem", problem)
    rows = cafe_tables.main(cafe_tables.Args(table=("table3",), only="cafe", out=tmp_path))
    assert {row["ours"] for row in rows if "cifar10" in row["id"]} == {100.0}
    assert "n=9000 were asked for" in capsys.readouterr().out


def test_a_budget_too_small_runs_nothing_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cafe_tables, "unavailable", lambda spec: None)
    rows = cafe_tables.main(cafe_tables.Args(table=("table3",), budget=0.01, out=tmp_path))
    assert all(row["ours"] is None for row in rows)
    assert "beyond the budget" in capsys.readouterr().out
    stored = json.loads((tmp_path / "results.json").read_text())
    assert {row["id"] for row in stored["cells"]} == {row["id"] for row in rows}
    assert stored["metrics"]["cells_run"] == 0
    assert stored["status"] == "nothing was run"


def test_a_run_that_does_not_fit_in_memory_is_listed_and_the_others_go_on(tmp_path, capsys, monkeypatch, no_data):
    def exact(setting, problem):
        if setting.dataset == "mnist":
            raise MemoryError("out of memory: this needs about 21 GB")
        return {"psnr": 100.0}

    monkeypatch.setattr(cafe_runs, "exact", exact)
    monkeypatch.setattr(CafeJobs, "_problem", lambda self, setting: None)
    args = cafe_tables.Args(table=("table3",), only="cafe", seeds=(0, 1), out=tmp_path)
    rows = {row["id"]: row for row in cafe_tables.main(args) if "cafe" in row["id"] and "linnaeus" not in row["id"]}
    assert any(row["ours"] == 100.0 for row in rows.values())
    refused = [row for name, row in rows.items() if "mnist" in name]
    assert refused
    assert all(row["not_run"].startswith("out of memory") for row in refused)
    assert "out of memory: this needs about 21 GB" in capsys.readouterr().out


@pytest.fixture
def ran(monkeypatch, no_data):
    """The batch sizes of all exact runs; every run is a stub, and the third is killed."""
    made = []

    def exact(setting, problem):
        made.append(setting.batch_size)
        if len(made) == 3:
            raise KeyboardInterrupt
        return {"psnr": 100.0 + setting.batch_size, "answered": np.float32(0.5), "curve": [(1, float("nan"))]}

    monkeypatch.setattr(cafe_runs, "exact", exact)
    monkeypatch.setattr(CafeJobs, "_problem", lambda self, setting: None)
    return made


def test_a_killed_table_goes_on_where_it_was(ran, tmp_path):
    args = {"table": ("table3",), "datasets": ("mnist",), "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        cafe_tables.main(cafe_tables.Args(**args))
    *finished, killed = ran
    rows = cafe_tables.main(cafe_tables.Args(**args))
    assert ran[3] == killed
    assert not set(finished) & set(ran[3:])
    assert all(row["ours"] > 100 for row in rows if "mnist" in row["id"])
    before = len(ran)
    assert cafe_tables.main(cafe_tables.Args(**args, budget=1e-6)) == rows  # stored results cost nothing
    assert len(ran) == before
    cafe_tables.main(cafe_tables.Args(**args, fresh=True))
    assert ran[before:] == [*finished, killed, *ran[4:before]]


def test_a_row_says_how_many_images_its_mean_is_over_and_keeps_every_seed(monkeypatch, tmp_path, capsys, no_data):
    monkeypatch.setattr(CafeJobs, "_problem", lambda self, setting: None)

    def exact(setting, problem):
        return {"psnr": 100.0 + setting.seed, "images": 30 - setting.seed, "images_asked": 32, "answered": 0.5}

    monkeypatch.setattr(cafe_runs, "exact", exact)
    args = cafe_tables.Args(table=("table3",), datasets=("mnist",), only="cafe", seeds=(0, 3), out=tmp_path)
    row = next(row for row in cafe_tables.main(args) if row["ours"] is not None)
    assert (row["values"], row["images"], row["images_asked"]) == ([100.0, 103.0], [30, 27], [32, 32])
    assert (row["answered"], row["feature_error"]) == ([0.5, 0.5], [None, None])
    show_cells([row], cafe_tables.BESIDE)
    assert "57 of 64" in capsys.readouterr().out


def test_finished_results_are_read_back_as_they_were(ran, tmp_path):
    sources, setting = Sources(tmp_path, fresh=False, write=write_json), Setting("exact")

    def runner(spec="mnist", fresh=False):
        return Runner(CafeJobs({"mnist": spec}), tmp_path / "cells", sources, fresh=fresh)

    first, again = runner()(setting, 0), runner()
    assert again.done(setting, 0)
    assert again(setting, 0).scores == first.scores
    np.testing.assert_array_equal(again(setting, 0).arrays["curve"], [[1, np.nan]])
    assert not again.done(setting, 1)
    assert not runner(spec="npz:other").done(setting, 0)
    assert not runner(fresh=True).done(setting, 0)


def test_a_table_without_data_ends_with_an_error_where_it_is_asked_to(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    args = cafe_tables.Args(table=("table3",), out=tmp_path)
    rows = cafe_tables.main(args)
    with pytest.raises(FileNotFoundError, match=r"no cell could run: no data: .*JAXLEAK_DATA_DIR"):
        cafe_tables.main(args, need_runs=True)
    assert json.loads((tmp_path / "results.json").read_text())["cells"] == rows
    printed = capsys.readouterr().out
    assert "not run (no data: linnaeus5 needs --linnaeus5" in printed


def test_missing_data_are_named():
    assert "linnaeus5" in unavailable("linnaeus5")
    assert unavailable("digits") == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "budget must be > 0"),
        ({"seeds": ()}, "seeds must hold at least one seed"),
        ({"datasets": ("imagenet",)}, "datasets must be"),
        ({"only": "nosuchcell"}, "--only nosuchcell is in no cell's id"),
        ({"linnaeus5": "nosuch"}, "--linnaeus5 cannot be loaded: .*nosuch"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        cafe_tables.main(cafe_tables.Args(out=tmp_path, **options))


def test_curves_are_read_at_the_last_point_before():
    results = [Result({}, {"curve": np.array([(25, 8.0), (50, 20.0), (75, 31.0)])})]
    assert curve_at(60, 1)(results) == 20.0
    assert iterations_to(30.0)(results) == 75
    assert np.isnan(iterations_to(40.0)(results))


def test_steps_end_at_the_first_iteration_below_their_threshold():
    infos = {"F1": np.array([1.0, 1e-10, 1e-8, 1.0]), "F2": np.array([1.0, 1.0, 1.0, 1e-9])}
    points = cafe_runs._passing(104, infos)
    assert points == [(102, 1e-10, 1.0), (104, 1.0, 1e-9)]
    by_id = {c.id: c for c in tables.cells(("table5",), tables.Options(solver="paper", iterations=8000))}
    points = [(100, 1.0, 1.0), (102, 1e-10, 1.0), (8102, np.inf, 1e-9), (16_000, 1.0, 1.0)]
    history = [Result({}, {"f_history": np.array(points)})]
    assert by_id["table5/nested/step1/mnist"].read(history) == 102
    assert by_id["table5/nested/step2/mnist"].read(history) == 102
    longer = [Result({}, {"f_history": np.array([*points[:3], (40_000, 1.0, 1.0)])})]  # Step II begins after 20,000
    assert np.isnan(by_id["table5/nested/step2/linnaeus5"].read(longer))  # none of its losses was below the threshold
    assert setting_of(by_id["table5/single/linnaeus5"]).iterations == 20_000


def test_cost_grows_with_the_work():
    assert seconds(Setting("descent", iterations=600)) > seconds(Setting("descent", method="dlg", iterations=600))
    assert seconds(Setting("exact", images=64)) > seconds(Setting("exact", images=8))


def test_a_table_of_images_gets_a_sheet_of_the_samples_that_all_rows_have(monkeypatch, tmp_path, no_data):
    monkeypatch.setattr(CafeJobs, "_problem", lambda self, setting: None)
    level = {"dlg": 0.1, "cosine": 0.2, "sapag": 0.3, "bn": 0.4, "gc": 0.5}

    def made(index, estimate):
        shape = (len(index), 4, 4, 1)
        truth = np.broadcast_to(np.array(index)[:, None, None, None] / 10, shape)
        return {"index": np.array(index), "truth": truth, "estimate": np.full(shape, estimate)}

    def exact(setting, problem):  # the exact engine leaves out sample 1
        return {"psnr": 100.0, cafe_runs.PICTURE_KEY: made([0, 2, 3], 0.9)}

    def descent(setting, problem, tables):
        return {"psnr": 7.0, "curve": [(1, 7.0)], cafe_runs.PICTURE_KEY: made([0, 1, 2], level[setting.method])}

    monkeypatch.setattr(cafe_runs, "exact", exact)
    monkeypatch.setattr(cafe_runs, "descent", descent)
    drawn = {}
    monkeypatch.setattr(
        cafe_tables.sheets, "comparison_sheet", lambda path, images, **_: drawn.update({path.name: images})
    )
    cafe_tables.main(cafe_tables.Args(table=("table2",), datasets=("mnist",), budget=1e6, out=tmp_path))
    sheet = drawn["table2-mnist.png"]
    assert next(iter(sheet)) == "private images"
    np.testing.assert_array_equal(sheet["private images"][:, 0, 0, 0], [0.0, 0.2])
    for row, value in {"cafe/mnist": 0.9, "dlg/mnist": 0.1, "gc/mnist": 0.5}.items():
        label = f"{row}: mean PSNR {100 if row == 'cafe/mnist' else 7}.0 dB"
        np.testing.assert_array_equal(sheet[label], np.full((2, 4, 4, 1), value))


def _problem(spec="digits", **options):
    sizes = {"num_samples": 4, "parties": 4, "seed": 3, "network": "logistic"}
    return rounds.vertical_problem(spec, key=jax.random.key(0), **sizes | options)


@pytest.mark.parametrize(("spec", "slices"), [("digits", (4, 4, 1)), ("breast_cancer", (8,))])
def test_a_problem_has_the_samples_of_its_seed_and_tests_on_the_next(spec, slices):
    problem = _problem(spec, held_out=5)
    drawn = data.load(spec, 9, 3)
    assert problem.private.x.shape == (4, 4, *slices)
    np.testing.assert_array_equal(problem.private.index, range(4))
    for batch, part in ((problem.private, slice(0, 4)), (problem.held_out, slice(4, 9))):
        np.testing.assert_array_equal(problem.assemble(np.asarray(batch.x)), drawn.x[part])
        np.testing.assert_array_equal(batch.y, drawn.y[part])
    np.testing.assert_array_equal(problem.dataset.x, drawn.x[:4])
    assert problem.model.num_classes == len(drawn.classes)
    assert len(_problem(spec).held_out.y) == 0


def test_scores_of_a_reconstruction_by_hand():
    problem = _problem()
    truth = problem.dataset.x
    off = np.array([0.1, 0.2, 0.2, 0.4])
    slices = np.asarray(problem.private.x) + off[:, None, None, None, None].astype(np.float32)
    labels = np.array(problem.dataset.y)
    labels[0] = (labels[0] + 1) % 10
    found = rounds.reconstruction_metrics(problem, Reconstruction(slices, labels, None, None))
    psnr = -20 * np.log10(off)
    assert (found["psnr_mean"], found["psnr_median"], found["psnr_min"]) == pytest.approx(
        (psnr.mean(), psnr[1], psnr[3]), abs=1e-3
    )
    assert found["mse_mean"] == pytest.approx(np.mean(off**2), rel=1e-4)
    assert found["label_accuracy"] == 0.75
    grey = -10 * np.log10(((truth - 0.5) ** 2).mean(axis=(1, 2, 3)))
    assert found["psnr_grey"] == pytest.approx(grey.mean(), abs=1e-3)
    peaks = truth.max(axis=(1, 2, 3))
    everyone = np.arange(4)
    assert found["psnr_channel_peak"] == pytest.approx(np.mean(20 * np.log10(peaks / off)), abs=1e-3)
    assert rounds.channel_peak_psnr(problem, truth, everyone) == 200
    np.testing.assert_allclose(rounds.image_psnr(problem, slices[1:3], everyone[1:3]), psnr[1:3], atol=1e-3)
    exact = np.where(everyone[:, None, None, None, None] == 0, np.asarray(problem.private.x), slices)
    found = rounds.reconstruction_metrics(problem, Reconstruction(exact, labels, None, None))
    assert found["psnr_mean"] == pytest.approx((200 + psnr[1:].sum()) / 4, abs=1e-3)


def test_scores_of_a_table_by_hand():
    problem = _problem("breast_cancer")
    truth, labels = problem.dataset.x, np.array(problem.dataset.y)
    found = rounds.reconstruction_metrics(problem, Reconstruction(np.zeros((4, 4, 8)), labels, None, None))
    assert found.keys() == {"psnr_mean", "psnr_median", "psnr_min", "mse_mean", "label_accuracy", "feature_r2"}
    spread = np.sum((truth[:3] - truth[:3].mean(axis=0)) ** 2)
    assert rounds.table_r2(problem, 0 * truth, np.arange(3)) == pytest.approx(1 - np.sum(truth[:3] ** 2) / spread)
    assert rounds.table_r2(problem, truth, np.arange(4)) == 1
    assert math.isnan(rounds.table_r2(problem, truth, np.arange(1)))  # one row does not vary


def test_relative_errors_by_hand():
    truth = np.array([[[3.0, 4.0], [1.0, 0.0]], [[0.0, 2.0], [5.0, 5.0]]])
    estimate = np.add(truth, [1.0, 0.0])
    found = rounds.relative_errors(truth, estimate, np.array([[True, False], [True, False]]))
    np.testing.assert_allclose(found, [1 / 5, 1 / 2])


@pytest.mark.parametrize(
    ("defense", "answered", "counts", "psnr"),
    [
        ("none", [True, False, True, True], (2, 3, 0.75, 0.5), 20.0),
        ("none", [False, False, False, True], (0, 3, 0.25, 0.25), float("nan")),
        ("dp-1.0", [False, False, True, True], (3, 3, 0.5, 0.25), 20.0),
    ],
)
def test_the_exact_engine_leaves_out_samples_without_an_answer_unless_they_are_defended(
    monkeypatch, defense, answered, counts, psnr
):
    problem = _problem()
    features = np.ones((4, 4, 3))
    found_features = features * np.array([1.005, 1.0, 1.0, 1.0])[:, None, None]
    found_features[2, 3] *= 1.02  # one party's inputs of the third sample are 2 % off
    recovery = SimpleNamespace(answered=np.array(answered), H=found_features)
    asked = []

    def invert(model, params, features, index, **_):
        assert len(features) == len(index)
        return SimpleNamespace(x=np.asarray(problem.private.x)[index] + np.float32(0.1))

    def recover(*_, **options):
        asked.append(options)
        return recovery

    monkeypatch.setattr(cafe_runs, "forward_features", lambda problem: features)
    monkeypatch.setattr(cafe_runs, "observe_and_recover", recover)
    monkeypatch.setattr(cafe_runs.attacks, "plan_cafe_exact", lambda model, **sizes: sizes)
    monkeypatch.setattr(cafe_runs.aggregated, "invert_slices", invert)
    for workers in (0, 2):
        setting = Setting("exact", num_samples=4, batch_size=2, images=3, defense=defense, workers=workers)
        found = cafe_runs.exact(setting, problem)
        assert tuple(found[name] for name in ("images", "images_asked", "answered", "recovered")) == counts
        assert found["psnr"] == pytest.approx(psnr, abs=1e-3, nan_ok=True)
        assert asked[-1]["horizontal"] == bool(workers)
        assert (asked[-1]["defense"] is None) == (defense == "none")
        if counts[0]:
            np.testing.assert_array_equal(
                found[cafe_runs.PICTURE_KEY]["index"], [0, 2] if defense == "none" else [0, 1, 2]
            )


def test_pictures_are_the_first_sixteen():
    problem = SimpleNamespace(dataset=SimpleNamespace(x=np.arange(40.0)[:, None]))
    shown = cafe_runs.pictures(problem, np.arange(20.0)[:, None], np.arange(0, 40, 2))
    np.testing.assert_array_equal(shown["index"], range(0, 32, 2))
    np.testing.assert_array_equal(shown["truth"][:, 0], range(0, 32, 2))
    np.testing.assert_array_equal(shown["estimate"][:, 0], range(16))


def test_step_three_goes_on_from_the_tables_where_there_are_some(monkeypatch):
    found = []
    monkeypatch.setattr(cafe_runs, "step_three", lambda *_, tables, **__: (found.append(tables), {}))
    monkeypatch.setattr(cafe_runs, "_psnr", lambda *_, **__: {"psnr": 1.0})
    problem = SimpleNamespace(private=SimpleNamespace(y=[0]))
    tables_of = cafe_runs.NestedTables("V and H", [(1, 2.0, 3.0)], 0.25)
    with_tables = cafe_runs.descent(Setting("descent"), problem, tables_of)
    without = cafe_runs.descent(Setting("descent"), problem, None)
    assert found == ["V and H", None]
    assert (with_tables["f_history"], with_tables["feature_error"]) == ([(1, 2.0, 3.0)], 0.25)
    assert without.keys() == {"psnr", "curve"}


def test_settings_name_a_row_and_an_optimizer():
    assert [rounds.runs.cap(name) for name in ("mnist", "linnaeus5")] == [8_000, 20_000]
    assert _settings.table9_row(Setting("exact", dataset="cifar100")) == "cifar10"
    assert _settings.table9_row(Setting("exact", dataset="linnaeus5")) == "linnaeus5"
    assert _settings.optimizer_of(Setting("single")) is None
    for name, step in (("sgd", -0.75), ("adam", -0.25)):
        optimizer = _settings.optimizer_of(Setting("single", model_learning_rate=0.25, model_optimizer=name))
        assert optimizer.update(jnp.float32(3.0), optimizer.init(jnp.float32(1.0)))[0] == pytest.approx(step, rel=1e-5)


def test_training_alone_is_watched_from_its_start():
    setting = Setting("training", num_samples=24, batch_size=8, iterations=20, model_learning_rate=0.5)
    problem = _problem("breast_cancer", num_samples=24, parties=2, held_out=10)
    curve = cafe_runs.training(setting, problem)["curve"]
    assert [done for done, _, _ in curve] == [0, 10, 20]
    assert curve[0][1] > curve[1][1] > curve[2][1]
    logits = np.asarray(problem.model.apply(problem.params, problem.private.x), np.float64)
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(24), problem.dataset.y])
    assert curve[0][1] == pytest.approx(loss, abs=1e-4)
    right = np.asarray(problem.model.apply(problem.params, problem.held_out.x)).argmax(axis=1) == problem.held_out.y
    assert curve[0][2] == pytest.approx(float(np.mean(right)))


def test_training_that_diverges_has_no_loss_from_there_on():
    setting = Setting("training", num_samples=24, batch_size=8, iterations=40, model_learning_rate=3e38)
    problem = _problem("breast_cancer", num_samples=24, parties=2, held_out=10)
    curve = cafe_runs.training(setting, problem)["curve"]
    assert [iteration for iteration, *_ in curve] == [0, 10]
    assert np.isnan(curve[-1][1:]).all()
    read = curve_at(20, 1)
    assert np.isnan(read([Result({}, {"curve": np.array(curve)})]))


@pytest.mark.parametrize("steps", ["adam", "stopped"])
def test_step_two_may_end_where_its_own_loss_was_smallest(monkeypatch, steps):
    losses = {5: jnp.inf, 10: jnp.inf, 15: 2.0, 20: 1.0, 25: 3.0}  # after ten rounds of Step I

    def told(problem, features, *, callbacks, **_):
        for done, loss in losses.items():
            own = SimpleNamespace(F2=jnp.float32(loss), V=jnp.full((2, 1, 1), done), H=jnp.full((2, 1, 1), done))
            infos = {"F1": np.ones(5), "F2": np.full(5, loss)}
            for callback in callbacks:
                callback(done, SimpleNamespace(attack=own), infos)
        return cafe_runs.Tables(own.V, own.H)

    monkeypatch.setattr(_settings, "CAP", 10)
    monkeypatch.setattr(cafe_runs, "forward_features", lambda problem: np.full((2, 1, 1), 20.0))
    monkeypatch.setattr(cafe_runs, "steps_one_and_two", told)
    found = cafe_runs.nested_tables(Setting("descent", steps=steps), None)
    assert found.values.H.ravel().tolist() == [{"adam": 25, "stopped": 20}[steps]] * 2
    assert found.feature_error == pytest.approx({"adam": 0.25, "stopped": 0.0}[steps])
    assert [point[0] for point in found.history] == list(losses)


def test_the_authors_steps_take_the_authors_adam():
    assert not _settings.step_options(Setting("descent"))
    assert not _settings.step_options(Setting("descent", steps="stopped"))
    optimizers = _settings.step_options(Setting("descent", steps="authors"))["optimizers"]
    state = optimizers.feature(0.01).init(jnp.zeros((3, 2)))
    assert type(state).__name__ == "TwiceCorrectedState"
    assert type(optimizers.data(0.01).init(jnp.zeros((3, 2)))) is type(state)


def test_runs_from_before_there_were_readings_keep_their_names():
    jobs = CafeJobs({"mnist": "mnist"})
    assert "steps" not in jobs.identity(Setting("descent"), 0)
    assert jobs.identity(Setting("descent", steps="authors"), 0)["steps"] == "authors"
