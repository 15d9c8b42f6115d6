"""The study of networks that others wrote: whose results it shows as its own, and what it needs."""

import importlib.util

import pytest
from tiny_studies import Killed, studies  # noqa: F401

from experiments import audited


def _psnr(metrics):
    return {name: row["psnr"] for name, row in metrics["by_case"].items()}


def test_results_of_another_seed_budget_or_data_set_are_not_taken_for_this_runs(studies):  # noqa: F811
    studies.draw("audited", 0)
    first = _psnr(studies.audited(out=studies.out))
    assert studies.calls == 2
    longer = _psnr(studies.audited(out=studies.out, minutes=3.0))
    other_seed = _psnr(studies.audited(out=studies.out, seed=1))
    studies.draw("audited", 1)
    (studies.root / "d.npz").rename(studies.root / "other.npz")
    studies.draw("audited", 0)
    mine, studies.spec = studies.spec, f"npz:{studies.root / 'other.npz'}"
    other_data = _psnr(studies.audited(out=studies.out))
    assert studies.calls == 8
    for name in first:
        assert len({round(found[name], 6) for found in (first, longer, other_seed, other_data)}) == 4
    studies.spec = mine
    assert _psnr(studies.audited(out=studies.out)) == first
    assert studies.calls == 8


def test_a_fresh_run_takes_nothing_over_even_if_it_is_killed(studies):  # noqa: F811
    studies.draw("audited", 0)
    first = _psnr(studies.audited(out=studies.out))
    studies.draw("audited", 1)
    studies.kill_at = 4
    with pytest.raises(Killed):
        studies.audited(out=studies.out, fresh=True)
    studies.kill_at = None
    second = _psnr(studies.audited(out=studies.out))
    assert all(abs(second[name] - first[name]) > 1e-6 for name in first)


@pytest.mark.parametrize(("only", "extras"), [(("cnn-b1",), "torch"), (("cnn-b1", "cnn-nnx-b1"), "torch,equinox")])
def test_a_missing_framework_is_named_with_its_extra_before_anything_is_written(only, extras, monkeypatch, tmp_path):
    there = importlib.util.find_spec
    absent = ("torch", "equinox")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else there(name))
    with pytest.raises(ImportError, match=rf"need .*torch.*pip install 'jaxleak\[{extras}\]'"):
        audited.main(audited.Args(only=only, data="digits", out=tmp_path / "out"))
    assert not list(tmp_path.iterdir())
