"""The CAFE tables: which cells there are, what they cost, and that a budget is respected. Nothing is attacked here."""

import json

import numpy as np
import pytest

from experiments import _paper, cafe_tables
from experiments._cafe_cells import Setting, at_iteration, available, cost, iterations_to

ALL = cafe_tables.NEURIPS + cafe_tables.ICLR


@pytest.mark.parametrize("table", ALL)
@pytest.mark.parametrize("solver", ["exact", "paper"])
def test_every_printed_cell_is_planned(table, solver):
    planned = list(cafe_tables.cells(cafe_tables.Args(table=(table,), solver=solver)))
    names = {cell.id.split("#")[0].removeprefix("iclr-") for cell in planned}
    if table.startswith("iclr-"):
        printed = {cell["id"] for cell in _paper.tables("cafe_iclr")[table.removeprefix("iclr-")]["cell"]}
    else:
        tables = _paper.tables("cafe_neurips")
        ids = {"table8": ["table8-psnr", "table8-loss", "table8-accuracy"], "fake-gradients": ["text-fake-gradients"]}
        printed = {cell["id"] for name in ids.get(table, [table]) for cell in tables[name]["cell"]}
        if table == "table11":  # training stops at --iterations of the printed 8,000
            printed = {name for name in printed if int(name.rsplit("iter", 1)[1]) <= cafe_tables.Args().iterations}
    assert names == printed
    assert all(np.isfinite(cost(cell.setting)) and cost(cell.setting) > 0 for cell in planned)


def test_cells_that_share_a_run_share_its_setting():
    loss, accuracy = (
        [cell.setting for cell in cafe_tables.cells(cafe_tables.Args(table=("table8",))) if kind in cell.id]
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


def test_missing_data_are_named():
    assert "linnaeus5" in available("linnaeus5")
    assert available("digits") is None


@pytest.mark.parametrize(
    ("options", "message"), [({"budget": 0.0}, "budget must be > 0"), ({"datasets": ("imagenet",)}, "datasets must be")]
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
