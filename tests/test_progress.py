"""What a run says of where it stands, on a terminal and in a log."""

import io
import itertools
import re

import pytest
from rich.console import Console

from jaxleak.study import Progress, _progress


@pytest.fixture
def clock(monkeypatch):
    """A second passes at every look."""
    seconds = itertools.count()
    monkeypatch.setattr(_progress.time, "perf_counter", lambda: float(next(seconds)))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7100.0, "118 min"), (9000.0, "2.5 h")]
)
def test_times_are_in_the_unit_that_a_person_would_say(seconds, said):
    assert _progress.duration(seconds) == said


def test_a_log_gets_a_line_per_update_with_pace_and_time_left(capsys, clock):
    with Progress() as progress:
        progress.update("Step I", 100, 1000)
        progress.update("Step I", 200, 1000, "half a note")
        progress.update("Step II", 1, 5)
        progress.update("Step II", 2, 5)
    assert capsys.readouterr().err.splitlines() == [
        "Step I: 100/1000, ...",
        "Step I: 200/1000, 100 per s, 8 s left  half a note",
        "Step II: 1/5, ...",
        "Step II: 2/5, 1.0 per s, 3 s left",
    ]


def test_a_terminal_gets_a_bar_of_its_width_that_first_says_what_takes_so_long(monkeypatch):
    shown = io.StringIO()
    screen = Console(file=shown, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(_progress, "Console", lambda **_: screen)
    with Progress() as progress:
        progress._bar.refresh()
        progress.update("seed 0", 300, 1000, "gradient distance 0.0123 and [markup] that is none")
        progress._bar.refresh()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, drawn)) <= 80
    first = next(line for line in drawn if line.strip())
    last = [line for line in drawn if line.strip()][-1]
    assert _progress.COMPILING in first
    assert all(part in last for part in ("seed 0", "300/1000", "gradient distance"))
