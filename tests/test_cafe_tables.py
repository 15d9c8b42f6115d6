"""The CAFE tables: which cells there are, what they cost, and that a budget is respected. Nothing is attacked here."""

import json

import numpy as np
import pytest

from experiments import _paper, cafe_tables
from experiments._cafe import runs as cafe_runs
from experiments._cafe import tables
from experiments._cafe.cells import Runner, at_iteration, available, cost, iterations_to
from experiments._cafe.runs import Setting

ALL = tables.NEURIPS + tables.ICLR


@pytest.mark.parametrize("table", ALL)
@pytest.mark.parametrize("solver", ["exact", "paper"])
def test_every_printed_cell_is_planned(table, solver):
    planned = list(tables.cells((table,), tables.Options(solver=solver)))
    names = {cell.id.split("#")[0].removeprefix("iclr-") for cell in planned}
    if table.startswith("iclr-"):
        printed = {cell["id"] for cell in _paper.tables("cafe_iclr")[table.removeprefix("iclr-")]["cell"]}
    else:
        neurips = _paper.tables("cafe_neurips")
        ids = {"table8": ["table8-psnr", "table8-loss", "table8-accuracy"], "fake-gradients": ["text-fake-gradients"]}
        printed = {cell["id"] for name in ids.get(table, [table]) for cell in neurips[name]["cell"]}
        if table == "table11":  # training stops at --iterations of the printed 8,000
            printed = {name for name in printed if int(name.rsplit("iter", 1)[1]) <= tables.Options().iterations}
    assert names == printed
    assert all(np.isfinite(cost(cell.setting)) and cost(cell.setting) > 0 for cell in planned)


def test_the_training_curves_are_planned_without_printed_numbers():
    planned = list(tables.cells(("fig7",), tables.Options(iterations=500, num_samples=200)))
    assert {cell.setting.dataset for cell in planned} == {"cifar10", "mnist", "linnaeus5"}
    assert {cell.setting.defense for cell in planned} == {"none", "fake-capped"}
    assert all((c.paper, c.setting.iterations, c.setting.num_samples) == (None, 500, 200) for c in planned)


def test_cells_that_share_a_run_share_its_setting():
    loss, accuracy = (
        [cell.setting for cell in tables.cells(("table8",), tables.Options()) if kind in cell.id]
        for kind in ("loss", "accuracy")
    )
    assert len(set(loss) | set(accuracy)) == 1


def test_a_budget_too_small_runs_nothing_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cafe_tables, "available", lambda spec: None)
    rows = cafe_tables.main(cafe_tables.Args(table=("table3",), budget=0.01, out=tmp_path))
    assert all(row["ours"] is None for row in rows)
    assert "beyond the budget" in capsys.readouterr().out
    stored = json.loads((tmp_path / "results.json").read_text())
    assert {row["id"] for row in stored["cells"]} == {row["id"] for row in rows}
    assert stored["metrics"]["cells_run"] == 0


def test_a_run_that_does_not_fit_in_memory_is_listed_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    def exact(setting, problem):
        if setting.dataset == "mnist":
            raise MemoryError("out of memory: this needs about 21 GB")
        return {"psnr": 100.0}

    monkeypatch.setattr(cafe_tables, "available", lambda spec: None)
    monkeypatch.setattr(cafe_runs, "exact", exact)
    monkeypatch.setattr(Runner, "_problem", lambda self, setting: None)
    args = cafe_tables.Args(table=("table3",), only="cafe", seeds=(0, 1), out=tmp_path)
    rows = {row["id"]: row for row in cafe_tables.main(args) if "cafe" in row["id"] and "linnaeus" not in row["id"]}
    assert any(row["ours"] == 100.0 for row in rows.values())
    refused = [row for name, row in rows.items() if "mnist" in name]
    assert refused
    assert all(row["not_run"].startswith("out of memory") for row in refused)
    assert "out of memory: this needs about 21 GB" in capsys.readouterr().out


@pytest.fixture
def ran(monkeypatch):
    """The batch sizes of all exact runs, none of which does anything; the third is killed."""
    made = []

    def exact(setting, problem):
        made.append(setting.batch_size)
        if len(made) == 3:
            raise KeyboardInterrupt
        return {"psnr": 100.0 + setting.batch_size, "recovered": np.float32(0.5), "curve": [(1, float("nan"))]}

    monkeypatch.setattr(cafe_tables, "available", lambda spec: None)
    monkeypatch.setattr(cafe_runs, "exact", exact)
    monkeypatch.setattr(Runner, "_problem", lambda self, setting: None)
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
    assert cafe_tables.main(cafe_tables.Args(**args, budget=1e-6)) == rows  # which costs nothing
    assert len(ran) == before
    cafe_tables.main(cafe_tables.Args(**args, fresh=True))
    assert ran[before:] == [*finished, killed, *ran[4:before]]


def test_finished_results_are_read_back_as_they_were(ran, tmp_path):
    specs, setting = {"mnist": "mnist"}, Setting("exact")
    first = Runner(specs, tmp_path / "cells", fresh=False)(setting)
    again = Runner(specs, tmp_path / "cells", fresh=False)
    assert again.done(setting)
    np.testing.assert_equal(again(setting), {**first, "curve": [list(point) for point in first["curve"]]})
    assert not again.done(Setting("exact", seed=1))
    assert not Runner({"mnist": "npz:other"}, tmp_path / "cells", fresh=False).done(setting)
    assert not Runner(specs, tmp_path / "cells", fresh=True).done(setting)


def test_a_table_without_data_ends_with_an_error_where_it_is_asked_to(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    args = cafe_tables.Args(table=("table3",), out=tmp_path)
    rows = cafe_tables.main(args)
    with pytest.raises(FileNotFoundError, match=r"no cell could run: no data: .*JAXLEAK_DATA_DIR"):
        cafe_tables.main(args, need_data=True)
    assert json.loads((tmp_path / "results.json").read_text())["cells"] == rows
    printed = capsys.readouterr().out
    assert "not run (no data: linnaeus5 needs --linnaeus5" in printed


def test_missing_data_are_named():
    assert "linnaeus5" in available("linnaeus5")
    assert available("digits") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "budget must be > 0"),
        ({"seeds": ()}, "seeds must be > 0"),
        ({"datasets": ("imagenet",)}, "datasets must be"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        cafe_tables.main(cafe_tables.Args(out=tmp_path, **options))


def test_curves_are_read_at_the_last_point_before():
    results = {"curve": [(25, 8.0), (50, 20.0), (75, 31.0)]}
    assert at_iteration(60, 1)(results) == 20.0
    assert iterations_to(30.0)(results) == 75
    assert np.isnan(iterations_to(40.0)(results))


def test_cost_grows_with_the_work():
    assert cost(Setting("descent", iterations=600)) > cost(Setting("descent", method="dlg", iterations=600))
    assert cost(Setting("exact", images=64)) > cost(Setting("exact", images=8))
