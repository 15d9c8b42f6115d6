"""What every study shares: a run folder that survives being killed, provenance, and a progress line."""

import contextlib
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import jax
import psutil
import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments._files import append_line, as_text, jsonable, partial_of, read_json, read_lines, write_json, write_text
from experiments._programs import forget_when_many
from experiments._rows import has_run
from experiments._sources import Sources
from experiments._streams import outlive_readers
from jaxleak import _mesh, _validate
from jaxleak._lock import FolderInUseError, lock_folder
from jaxleak.checkpoint import ConfigMismatchError

Arguments = TypeVar("Arguments")

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "orbax-checkpoint")


#: Files of a run folder that only its last sitting has written.
OF_A_SITTING = ("metrics.jsonl", "results.json", "timing.json")


class RunFolder:
    """`runs/<experiment>/<name>/` with config.json, sources.json, metrics.jsonl, results.json, checkpoints/, figures/.

    Seconds of finished phases are stored as they happen, so that a resumed run reports the work of all its sittings.
    config.json is that of the last run that began to work: one that is refused before leaves the folder as it was.
    While the object lives no other process can open the folder. Of several processes of one run, each of which makes
    and calls this alike, only the first one writes.
    """

    def __init__(self, path: str | Path, experiment: str, config: dict[str, Any], *, fresh: bool):
        """Create or reopen the folder.

        Raises:
            ValueError: if the path is that of the current folder, which would be filled, or timing.json is damaged.
            FolderInUseError: if another process writes to it; names the process.
            OSError: if it cannot be written; nothing has been computed yet.
        """
        require_own_folder(path)
        self.path = Path(path).absolute()
        self.experiment, self.config = experiment, config
        self.writes, self._begun = _mesh.is_writer(), False
        self._forgotten = set(OF_A_SITTING if fresh else ())
        self.sources = Sources(self.path, fresh=fresh, write=write_json if self.writes else lambda *_: None)
        timing = self.path / "timing.json"
        self.seconds = read_json(timing, _seconds) if timing.exists() and not fresh else dict[str, float]()
        if self.writes:
            self._open()

    def _open(self) -> None:
        self._new_folders = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self._there = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set[str]()
        try:
            (self.path / "figures").mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            _open_folders.add(self)
            # Also shows whether the folder can be written at all.
            self._next_config.write_text(as_text(self.config))
            self.keep_log_before()
        except FolderInUseError:
            raise
        except OSError as error:
            self.take_back()
            raise OSError(f"--out {self.path} cannot be written: {error.strerror or error}") from error

    @property
    def _next_config(self) -> Path:
        return partial_of(self.path / "config.json")

    def work_again(self) -> None:
        """Forget log, results and seconds of an earlier sitting, all of whose work this one does again."""
        self._forget(*OF_A_SITTING)
        self.seconds = {}

    def log_again(self) -> None:
        """Forget the log of an earlier sitting, whose finished work is read back and logged by this one too."""
        self._forget("metrics.jsonl")

    def _forget(self, *names: str) -> None:
        # A run that is refused before it works has forgotten nothing.
        self._forgotten |= set(names)
        if self._begun and self.writes:
            for name in self._forgotten:
                (self.path / name).unlink(missing_ok=True)
            self._forgotten.clear()

    def begin(self) -> None:
        """The folder becomes this run's: from now on nothing is refused, and there may be results."""
        if self._begun:
            return
        self._begun = True
        self.sources.begin()
        self._forget()
        if self.writes and self._next_config.exists():
            os.replace(self._next_config, self.path / "config.json")

    def take_back(self) -> None:
        """Remove all that was not in the folder when it was opened, unless work has begun."""
        _open_folders.discard(self)
        if self._begun or not self.writes or not self.path.is_dir():
            return
        for entry in self.path.iterdir():
            if entry.name not in self._there:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for folder in self._new_folders:
            with contextlib.suppress(OSError):  # somebody else has put something there meanwhile
                folder.rmdir()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    def figure(self, name: str) -> Path:
        """Path of a figure."""
        return self.path / "figures" / name

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[name]`, and give up compiled programs that became too many."""
        self.begin()
        begin = time.perf_counter()
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # on a full disk the block has failed too, and says so better
                self._add_seconds(name, begin)
            raise
        else:
            self._add_seconds(name, begin)
        finally:
            forget_when_many()

    def _add_seconds(self, name: str, begin: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        if self.writes:
            write_json(self.path / "timing.json", self.seconds)

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        self.begin()
        if self.writes:
            append_line(self.path / "metrics.jsonl", json.dumps(jsonable(values)))

    def keep_log_before(self, **limits: int) -> None:
        """Drop lines of metrics.jsonl that a killed run wrote beyond the checkpoint it resumes from, or by half.

        Raises:
            ValueError: naming the file and the line, if a line is no JSON object.
        """
        file = self.path / "metrics.jsonl"
        if not self.writes or not file.exists() or file.name in self._forgotten:
            return

        def within(line: dict[str, Any]) -> bool:
            values = dict(line.items())
            return all(values.get(name, -math.inf) <= limit for name, limit in limits.items())

        kept = "".join(line for line, wanted in read_lines(file, within) if wanted)
        if kept != file.read_text():
            write_text(file, kept)

    def finish(
        self, metrics: dict[str, float], *, status: str = "complete", cells: list[dict[str, Any]] | None = None
    ) -> Path:
        """Write results.json and return its path; the status of a table none of whose cells ran is never "complete"."""
        if not self.writes:
            return self.path / "results.json"
        self.begin()
        result = {
            "experiment": self.experiment,
            "status": status if cells is None or any(map(has_run, cells)) else "nothing was run",
            "config": self.config,
            "provenance": provenance(),
            "timing": self.seconds,
            "metrics": metrics,
            "cells": cells or [],
        }
        write_json(self.path / "results.json", result)
        return self.path / "results.json"


#: Run folders that this process opened, so that a command that is refused can leave them as they were.
_open_folders: "weakref.WeakSet[RunFolder]" = weakref.WeakSet()


def _seconds(stored: Any) -> dict[str, float]:
    seconds = {name: float(value) for name, value in stored.items()}
    _validate.non_negative(**seconds)
    return seconds


class StoppedBySignal(SystemExit):
    """SIGTERM or Ctrl-C, answered where nothing is lost; the exit status is 128 plus the signal's number."""

    def __init__(self, number: int):
        """`number` of the signal."""
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class Progress:
    """One live line on a terminal, one printed line per update elsewhere; and the place where signals are answered.

    While the block runs, SIGTERM and Ctrl-C wait for the next update, which comes when a chunk is done, and end the run
    there, or at the end of the block, with a message that says how to continue. A second signal ends it at once.
    """

    def __init__(self) -> None:
        """Start the line."""
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin, self._phase = time.perf_counter(), ""
        self._first = 0
        self._signal = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Progress":
        """Show the line while the block runs."""
        if self._shown():
            self._live.start()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._wait_for_update)
        except ValueError:  # only the main thread may answer signals
            pass
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        """Take the line away."""
        if self._shown():
            self._live.stop()
        self._give_back()
        late = self._stop() if error is None else None
        stopped = late or error
        if isinstance(stopped, StoppedBySignal) and _mesh.is_writer():
            print(stopped_message(stopped.signal.name), file=sys.stderr, flush=True)
        if late is not None:
            raise late

    def _stop(self) -> StoppedBySignal | None:
        if _mesh.any_process(self._signal != 0):
            return StoppedBySignal(self._signal or signal.SIGTERM)
        return None

    def _shown(self) -> bool:
        return self._console.is_terminal and _mesh.is_writer()

    def _wait_for_update(self, number: int, _: object) -> None:
        self._signal = number
        self._give_back()
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"{signal.Signals(number).name}: stopping when this chunk is done\n".encode())

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def update(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Say where we are: phase, done of total, time left at the pace of this sitting, and a note.

        Raises:
            StoppedBySignal: if a signal came, in any process of the run.
        """
        now = time.perf_counter()
        if phase != self._phase:
            self._phase, self._begin, self._first = phase, now, done
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "..."
        line = f"{phase}: {done}/{total}, {left}{'  ' + note if note else ''}"
        if self._shown():
            self._live.update(Text(line), refresh=True)
        elif _mesh.is_writer():
            print(line, file=sys.stderr, flush=True)
        if (stop := self._stop()) is not None:
            raise stop


def stopped_message(why: str) -> str:
    """What was asked of this process, as the command that takes it up again."""
    words = [word for word in sys.orig_argv[1:] if word != "--fresh"]
    return f"{why}: stopped; what was done is saved. Continue with:\n  python {shlex.join(words)}"


def run_command(main: Callable[[Arguments], Any], arguments: type[Arguments], doc: str | None) -> None:
    """A study's main block: options from the command line, and one line instead of a traceback for what users can mend.

    Args:
        main: the study.
        arguments: the dataclass of its options.
        doc: what --help says.
    """
    outlive_readers()
    try:
        main(tyro.cli(arguments, description=doc))
    except KeyboardInterrupt:
        print(stopped_message("SIGINT"), file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except _MENDABLE as error:
        message = _message(error)
        if message is None:
            raise
        for folder in list(_open_folders):
            folder.take_back()
        sys.exit(f"error: {message}")


#: Errors that end a command with their message; any other is a bug, and shows where it happened.
_MENDABLE = (
    ValueError, OSError, FloatingPointError, MemoryError, ImportError, ConfigMismatchError, jax.errors.JaxRuntimeError,
)  # fmt: skip


def _message(error: Exception) -> str | None:
    """What is wrong, in words, also where the error has none; None for an error of XLA that no user can mend."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        if "RESOURCE_EXHAUSTED" not in str(error):
            return None
        error = MemoryError()
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory: what was asked for does not fit; take fewer or smaller images, or a smaller model"
    return str(error).strip() or f"{type(error).__name__}, about which nothing more is known"


def require_own_folder(out: str | Path) -> None:
    """Raise `ValueError` if `--out` is the current folder, which an empty name also means and which would be filled."""
    if Path(out) == Path():
        raise ValueError("--out must name a folder of its own; an empty name, or a dot, is the current folder")


def default_out(experiment: str, name: str) -> Path:
    """`runs/<experiment>/<name>` below the current folder."""
    return Path("runs") / experiment / name


def digest(what: dict[str, Any]) -> str:
    """A short name for a configuration."""
    return hashlib.sha256(json.dumps(jsonable(what), sort_keys=True).encode()).hexdigest()[:16]


def provenance() -> dict[str, Any]:
    """Commit, versions and device of this run."""
    root = Path(__file__).parent.parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    device = jax.devices()[0]
    return {
        "commit": commit,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "device": f"{device.platform}: {device.device_kind}",
        "cores": os.cpu_count(),
    }


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far, in GB (10^9 bytes)."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 1e9
    import resource  # which Windows lacks

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics, one per line."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, (int, float)) else f"  {name:<{width}}  {value}")
