"""What every study shares: a run folder that survives being killed, provenance, and a progress line."""

import hashlib
import json
import math
import os
import platform
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments._programs import forget_when_many
from jaxleak import _mesh
from jaxleak._lock import FolderInUseError, lock_folder

Arguments = TypeVar("Arguments")

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "orbax-checkpoint")


#: How a cell's reason for not having been run begins where data are missing, and what it says beyond the budget.
NO_DATA, BEYOND_BUDGET = "no data: ", "beyond the budget"


class RunFolder:
    """`runs/<experiment>/<name>/` with config.json, metrics.jsonl, results.json, checkpoints/ and figures/.

    Seconds of finished phases are stored as they happen, so that a resumed run reports the work of all its sittings.
    config.json is that of the last run that began to work: one that is refused before leaves it as it was.
    While the object lives no other process can open the folder. Of several processes of one run, each of which makes
    and calls this alike, only the first one writes.
    """

    def __init__(self, path: str | Path, experiment: str, config: dict[str, Any], *, fresh: bool):
        """Create or reopen the folder.

        Raises:
            FolderInUseError: if another process writes to it; names the process.
            OSError: if it cannot be written; nothing has been computed yet.
        """
        self.path = Path(path).absolute()
        self.experiment, self.config = experiment, config
        self.writes = _mesh.is_writer()
        if self.writes:
            self._open(fresh)
        timing = self.path / "timing.json"
        self.seconds: dict[str, float] = json.loads(timing.read_text()) if timing.exists() else {}

    def _open(self, fresh: bool) -> None:
        try:
            (self.path / "figures").mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            if fresh:
                for name in ("metrics.jsonl", "results.json", "timing.json"):
                    (self.path / name).unlink(missing_ok=True)
            # Also shows whether the folder can be written at all.
            self._next_config.write_text(_as_text(self.config))
            self.keep_log_before()
        except FolderInUseError:
            raise
        except OSError as error:
            raise OSError(f"--out {self.path} cannot be written: {error.strerror or error}") from error

    @property
    def _next_config(self) -> Path:
        return _partial(self.path / "config.json")

    def _work_begins(self) -> None:
        if self.writes and self._next_config.exists():
            os.replace(self._next_config, self.path / "config.json")

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
        self._work_begins()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
            if self.writes:
                write_json(self.path / "timing.json", self.seconds)
            forget_when_many()

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        self._work_begins()
        if self.writes:
            file = self.path / "metrics.jsonl"
            with _named_when_failing(file), file.open("a") as open_file:
                open_file.write(json.dumps(jsonable(values)) + "\n")

    def keep_log_before(self, **limits: int) -> None:
        """Drop lines of metrics.jsonl that a killed run wrote beyond the checkpoint it resumes from, or by half."""
        file = self.path / "metrics.jsonl"
        if not self.writes or not file.exists():
            return
        lines = file.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.strip() and line.endswith("\n")]
        kept = [
            line
            for line in whole
            if all(json.loads(line).get(name, -math.inf) <= limit for name, limit in limits.items())
        ]
        if kept != lines:
            _write(file, "".join(kept))

    def finish(
        self, metrics: dict[str, float], *, status: str = "complete", cells: list[dict[str, Any]] | None = None
    ) -> Path:
        """Write results.json and return its path."""
        if not self.writes:
            return self.path / "results.json"
        self._work_begins()
        result = {
            "experiment": self.experiment,
            "status": status,
            "config": self.config,
            "provenance": provenance(),
            "timing": self.seconds,
            "metrics": metrics,
            "cells": cells or [],
        }
        write_json(self.path / "results.json", result)
        return self.path / "results.json"


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
    try:
        main(tyro.cli(arguments, description=doc))
    except KeyboardInterrupt:
        print(stopped_message("SIGINT"), file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except (ValueError, OSError, FloatingPointError, MemoryError, ImportError) as error:
        sys.exit(f"error: {error}")


def default_out(experiment: str, name: str) -> Path:
    """`runs/<experiment>/<name>` below the current folder."""
    return Path("runs") / experiment / name


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    _write(path, _as_text(value))


def _as_text(value: Any) -> str:
    return json.dumps(jsonable(value), indent=2) + "\n"


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _write(path: Path, text: str) -> None:
    partial = _partial(path)
    with _named_when_failing(path):
        partial.write_text(text)
        os.replace(partial, path)


@contextmanager
def _named_when_failing(path: Path) -> Iterator[None]:
    # A full disk is reported without the name of the file.
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot write {path}: {reason}; what was written before stays valid") from error


def jsonable(value: Any) -> Any:
    """NumPy scalars and arrays as Python numbers and lists; infinities and NaN, which JSON lacks, as strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def digest(what: dict[str, Any]) -> str:
    """A short name for a configuration."""
    return hashlib.sha256(json.dumps(jsonable(what), sort_keys=True).encode()).hexdigest()[:16]


def require_data(rows: Sequence[dict[str, Any]]) -> None:
    """Raise `FileNotFoundError` if no cell ran, some for lack of data, and none for the budget alone.

    Args:
        rows: of a table, with `ours`, and where that is None the reason `not_run`.
    """
    reasons = dict.fromkeys(row["not_run"] for row in rows if row["ours"] is None)
    missing = [reason for reason in reasons if reason.startswith(NO_DATA)]
    if not missing or any(row["ours"] is not None for row in rows) or any(BEYOND_BUDGET in r for r in reasons):
        return
    more = f" ({len(missing)} such reasons are listed above)" if len(missing) > 1 else ""
    raise FileNotFoundError(f"no cell could run: {missing[0]}{more}")


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics, one per line."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, (int, float)) else f"  {name:<{width}}  {value}")


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Identifiers by what is said of them: `pairs` of (text, identifier), both in the order of the pairs."""
    by_text: dict[str, list[str]] = {}
    for text, identifier in pairs:
        by_text.setdefault(text, []).append(identifier)
    return by_text


def print_grouped(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """One line for each text of `grouped`."""
    for text, identifiers in grouped(pairs).items():
        print(f"{title} ({text}): {', '.join(identifiers)}")
