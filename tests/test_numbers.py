"""Marked numbers of the pages equal the stored results."""

import json
import re

import pytest

from experiments import numbers as command
from experiments._by_path import module_at

numbers = module_at("docs/_numbers.py")


@pytest.fixture
def root(tmp_path):
    cells = [{"id": "t1/a", "ours": 1.0}, {"id": "t1/a0.5", "ours": 2.0}]
    (tmp_path / "run.json").write_text(
        json.dumps({"metrics": {"psnr": 30.456}, "seeds": [1.5, 2.5], "ok": True, "cells": cells})
    )
    entries = [
        {"cell": "table3/a", "variant": "printed", "value": 43.0},
        {"cell": "table3/a", "variant": "ours", "value": 125.7},
        {"cell": "table3/a", "variant": "ours", "name": "exact", "value": 99.0},
    ]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return tmp_path


@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ("run.json metrics.psnr .1f", "30.5"),
        ("run.json seeds.1 .2f", "2.50"),
        ("run.json t1/a0.5@ours .1f", "2.0"),
        ("ledger.jsonl table3/a@printed value .2f", "43.00"),
        ("ledger.jsonl table3/a@ours value .1f", "125.7"),
        ("ledger.jsonl table3/a@ours@exact value .0f", "99"),
    ],
)
def test_a_stale_number_is_replaced(root, marker, shown):
    page = f"| PSNR | <!-- {marker} -->0<!-- / --> dB |\nnot marked: 0"
    assert numbers.fill(page, root) == f"| PSNR | <!-- {marker} -->{shown}<!-- / --> dB |\nnot marked: 0"


@pytest.mark.parametrize(
    "marker",
    [
        "none.json metrics.psnr .1f",
        "run.json metrics.nothing .1f",
        "run.json ok .1f",
        "run.json metrics .1f",
        "run.json seeds.9 .1f",
        "run.json metrics.psnr .1q",
        "run.json t1/b@ours .1f",
        "run.json t1/a@theirs .1f",
        "ledger.jsonl table3/b@ours value .1f",
    ],
)
def test_a_marker_that_leads_nowhere_is_named(root, marker):
    with pytest.raises(ValueError, match=f"the marker <!-- {marker} --> cannot be filled"):
        numbers.fill(f"<!-- {marker} -->1<!-- / -->", root)


def test_every_page_shows_what_is_stored():
    stale = [page.name for page in numbers.pages() if numbers.fill(page.read_text(), numbers.ROOT) != page.read_text()]
    assert not stale, "run python -m experiments.numbers"


def test_no_line_begins_with_a_marker():
    """In Markdown, a comment at the start of a line, or after up to three spaces, ends a paragraph and its emphasis."""
    for page in numbers.pages():
        assert not [line for line in page.read_text().splitlines() if re.match(" {0,3}<!-- .*<!-- / -->", line)], page


def test_the_command_writes_and_checks(root, monkeypatch, capsys):
    (root / "docs").mkdir()
    page = root / "README.md"
    page.write_text("<!-- run.json metrics.psnr .1f -->0<!-- / -->")
    monkeypatch.setattr(numbers, "ROOT", root)
    with pytest.raises(SystemExit, match="1"):
        command.main(command.Args(check=True))
    assert "README.md is out of date" in capsys.readouterr().out
    assert command.main(command.Args()) == [page]
    assert "30.5" in page.read_text()
    assert command.main(command.Args(check=True)) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It has <!-- run.json metrics.psnr .1f -->30.5<!-- / --> dB, above <!-- given -->20 dB<!-- / -->.", []),
        ("It has 30.5 dB, and 8.1 +- 0.3 dB.", ["30.5 dB", "8.1 +- 0.3"]),
        ("**12** +- 3 and SSIM .97 in 3 rows", ["12** +- 3", ".97"]),
        ("| `0.01` | 2 runs | **8.25** | -1.5 |", ["8.25", "-1.5"]),
        ("Version 0.10 of `x 3.5 dB` in [a table](t.97.md)\n```\n30 dB\n```", []),
    ],
)
def test_measurements_without_a_source_are_found(text, left):
    assert numbers.unsourced(text) == left


def test_no_page_has_a_measurement_without_a_source():
    written = numbers.ROOT / "docs" / "reproduction"  # a command writes these pages from the ledger
    typed = {page.name: numbers.unsourced(page.read_text()) for page in numbers.pages() if written not in page.parents}
    assert {page: found for page, found in typed.items() if found} == {}
