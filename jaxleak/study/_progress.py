"""Progress of a run, and stopping it after a signal at a point where no work is lost."""

import os
import shlex
import signal
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from jaxleak import _processes

#: Seconds between two lines of a phase in a log.
LOG_EVERY = 5.0
#: Text that is shown before the first update of a phase.
COMPILING = "compiling, which may take minutes for a deep network"


class StoppedBySignal(SystemExit):
    """A run was stopped by SIGTERM or Ctrl-C without losing work; the exit status is 128 plus the signal's number."""

    def __init__(self, number: int):
        """Take the `number` of the signal."""
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class Progress:
    """A progress bar on a terminal, or a line every few seconds elsewhere; it also handles signals.

    While the block runs, SIGTERM and Ctrl-C wait for the next update, which comes when a chunk is done, or for the end
    of the block. The run then ends with a message that says how to continue. A second signal ends the run at once.
    """

    def __init__(self) -> None:
        """Prepare the bar."""
        self._console = Console(stderr=True)
        note = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[pace]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=note, markup=False),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task(COMPILING, total=None, pace="", note="")
        self._begin, self._phase = time.perf_counter(), ""
        self._first = 0
        self._said = 0.0
        self._signal = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Progress":
        """Show the bar while the block runs."""
        if self._shown():
            self._bar.start()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._wait_for_update)
        except ValueError:  # only the main thread may handle signals
            pass
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        """Take the bar away."""
        if self._shown():
            self._bar.stop()
        self._give_back()
        late = self._stop() if error is None else None
        stopped = late or error
        if isinstance(stopped, StoppedBySignal) and _processes.is_writer():
            print(stopped_message(stopped.signal.name), file=sys.stderr, flush=True)
        if late is not None:
            raise late

    def _stop(self) -> StoppedBySignal | None:
        if _processes.any_process(self._signal != 0):
            return StoppedBySignal(self._signal or signal.SIGTERM)
        return None

    def _shown(self) -> bool:
        return self._console.is_terminal and _processes.is_writer()

    def _wait_for_update(self, number: int, _: object) -> None:
        self._signal = number
        self._give_back()
        # This does not use print, since the signal may have come in the middle of a print.
        os.write(2, f"{signal.Signals(number).name}: stopping when this chunk is done\n".encode())

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def begin(self, phase: str) -> None:
        """Say that the program of a phase is being compiled, since the first update may be a minute away."""
        if self._shown():
            self._bar.update(self._task, description=COMPILING, completed=0, total=None, pace="", note=phase)
        elif _processes.is_writer():
            print(f"{phase}: {COMPILING}", file=sys.stderr, flush=True)

    def update(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Show the progress: phase, done of total, time left at the present pace, and a note.

        Raises:
            StoppedBySignal: if a signal came, in any process of the run.
        """
        now = time.perf_counter()
        begins = phase != self._phase
        if begins:
            self._phase, self._begin, self._first = phase, now, done
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        pace = f"{done}/{total}, " + (f"{_each(rate)}, {duration((total - done) / rate)} left" if rate > 0 else "...")
        if self._shown():
            self._bar.update(self._task, description=phase, completed=done, total=total, pace=pace, note=note)
        elif _processes.is_writer() and (begins or done == total or now - self._said >= LOG_EVERY):
            self._said = now
            print(f"{phase}: {pace}{'  ' + note if note else ''}", file=sys.stderr, flush=True)
        if (stop := self._stop()) is not None:
            raise stop


def _each(rate: float) -> str:
    return f"{rate:.0f} per s" if rate >= 10 else f"{rate:.1f} per s" if rate >= 1 else f"{1 / rate:.1f} s each"


def duration(seconds: float) -> str:
    """Format a time in seconds if it is below two minutes, in minutes if it is below two hours, and else in hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def stopped_message(why: str) -> str:
    """Say why a run stopped, and which command continues it: this process's own command without `--fresh`."""
    words = [word for word in sys.orig_argv[1:] if word != "--fresh"]
    return f"{why}: stopped; what was done is saved. Continue with:\n  python {shlex.join(words)}"
