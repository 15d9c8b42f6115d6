"""The display of a run's progress on a terminal and in a log."""

import io
import itertools
import re

import pytest
from rich.console import Console

from jaxleak.study import Progress, RunFolder, _progress, print_metrics


@pytest.fixture
def clock(monkeypatch):
    """A stub of the clock that advances one second per call."""
    seconds = itertools.count()
    monkeypatch.setattr(_progress.time, "perf_counter", lambda: float(next(seconds)))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7100.0, "118 min"), (9000.0, "2.5 h")]
)
def test_times_are_in_the_unit_that_a_person_would_say(seconds, said):
    assert _progress.duration(seconds) == said


def test_a_log_gets_lines_with_pace_and_time_left_some_seconds_apart(capsys, clock, monkeypatch):
    monkeypatch.setattr(_progress, "LOG_EVERY", 2.0)
    with Progress() as progress:
        for done in (100, 150, 200, 250):
            progress.update("Step I", done, 1000, "half a note" if done == 200 else "")
        for done in (1, 3, 5):
            progress.update("Step II", done, 5)
    assert capsys.readouterr().err.splitlines() == [
        "Step I: 100/1000, ...",
        "Step I: 200/1000, 50 per s, 16 s left  half a note",
        "Step II: 1/5, ...",
        "Step II: 5/5, 2.0 per s, 0 s left",
    ]


def test_a_log_says_that_a_program_is_compiled_before_its_first_line(capsys):
    with Progress() as progress:
        progress.begin("Step III")
        progress.update("Step III", 8, 100)
    assert capsys.readouterr().err.splitlines() == [f"Step III: {_progress.COMPILING}", "Step III: 8/100, ..."]


def test_a_terminal_gets_a_bar_of_its_width_that_first_says_what_takes_so_long(monkeypatch):
    shown = io.StringIO()
    screen = Console(file=shown, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(_progress, "Console", lambda **_: screen)
    with Progress() as progress:
        progress._bar.refresh()
        progress.begin("seed 0")
        progress._bar.refresh()
        progress.update("seed 0", 300, 1000, "gradient distance 0.0123 and [markup] that is none")
        progress._bar.refresh()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, drawn)) <= 80
    first = next(line for line in drawn if line.strip())
    last = [line for line in drawn if line.strip()][-1]
    assert _progress.COMPILING in first
    assert all(part in last for part in ("seed 0", "300/1000", "gradient distance"))


def test_metrics_have_names_that_a_person_would_say_and_one_seed_has_no_deviation(capsys):
    print_metrics({"psnr": 30.12345678, "psnr_spread": 0.0, "cosine_distance": 0.25, "seeds": 1})
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == ["PSNR, dB 30.1235", "cosine distance 0.25", "seeds 1"]
    print_metrics({"psnr": 30.0, "psnr_spread": 0.5, "seeds": 2})
    assert "PSNR, deviation over seeds, dB  0.5" in capsys.readouterr().out


def test_a_command_ends_with_where_its_pictures_are(tmp_path):
    folder = RunFolder(tmp_path, "study", {}, fresh=False)
    folder.finish({})
    assert folder.contents() == f"results are in {tmp_path / 'results.json'}"
    for name in ("b.png", "a.png", "a.svg"):
        folder.figure(name).touch()
    assert folder.contents().splitlines()[-1] == f"pictures are in {tmp_path / 'figures'}: a.png, b.png"
