"""The figure of speeds is drawn from stored numbers, and names the steps without numbers."""

import pytest

from benchmarks import figure

RUNS = [{"device": "cpu (2 cores)"}, {"device": "a GPU"}]


def _entry(group, name, median, run=0):
    return {"group": group, "name": name, "stats": {"median": median}, "extra_info": {"rounds_per_call": 2}, "run": run}


def test_ratios_are_of_the_fastest_entries_of_both_sides_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(figure, "STEPS", {"a": "A"})
    entries = [_entry("a, B = 1", name, s) for name, s in (("op by op", 0.1), ("jit", 2.0), ("jit, scan", 1.0))]
    entries += [_entry("a, B = 1", name, s) for name, s in (("PyTorch eager", 9.0), ("PyTorch compiled", 3.0))]
    entries += [_entry("a, B = 1, elsewhere", name, s, run=1) for name, s in (("jit", 0.5), ("PyTorch eager", 0.75))]
    figure.draw({"benchmarks": entries, "runs": RUNS}, tmp_path / "speed.png")
    assert "3.00" in (tmp_path / "speed.svg").read_text().replace("<!-- ", "").replace(" -->", "")


def test_a_step_without_a_pair_is_named(tmp_path):
    with pytest.raises(ValueError, match="no pair of entries for the step 'CAFE iteration"):
        figure.draw({"benchmarks": [], "runs": RUNS}, tmp_path / "speed.png")
