"""What every study shares: a run folder that survives being killed, provenance, and a progress line."""

import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "orbax-checkpoint")


class RunFolder:
    """`runs/<experiment>/<name>/` with config.json, metrics.jsonl, results.json, checkpoints/ and figures/.

    Seconds of finished phases are stored as they happen, so that a resumed run reports the work of all its sittings.
    """

    def __init__(self, path: str | Path, experiment: str, config: dict[str, Any], *, fresh: bool):
        """Create or reopen the folder.

        Raises:
            OSError: if it cannot be written; nothing has been computed yet.
        """
        self.path = Path(path).absolute()
        self.experiment, self.config = experiment, config
        try:
            (self.path / "figures").mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise OSError(f"--out {self.path} cannot be written: {error.strerror or error}") from error
        if fresh:
            for name in ("metrics.jsonl", "results.json", "timing.json"):
                (self.path / name).unlink(missing_ok=True)
        write_json(self.path / "config.json", config)
        timing = self.path / "timing.json"
        self.seconds: dict[str, float] = json.loads(timing.read_text()) if timing.exists() else {}

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    def figure(self, name: str) -> Path:
        """Path of a figure."""
        return self.path / "figures" / name

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[name]`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
            write_json(self.path / "timing.json", self.seconds)

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(jsonable(values)) + "\n")

    def keep_log_before(self, **limits: int) -> None:
        """Drop lines of metrics.jsonl that a killed run wrote after the checkpoint it resumes from."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        lines = [line for line in file.read_text().splitlines() if line]
        kept = [
            line
            for line in lines
            if all(json.loads(line).get(name, -math.inf) <= limit for name, limit in limits.items())
        ]
        file.write_text("".join(line + "\n" for line in kept))

    def finish(
        self, metrics: dict[str, float], *, status: str = "complete", cells: list[dict[str, Any]] | None = None
    ) -> Path:
        """Write results.json and return its path."""
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


class Progress:
    """One live line on a terminal, one printed line per update elsewhere."""

    def __init__(self) -> None:
        """Start the line."""
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin, self._phase = time.perf_counter(), ""
        self._first = 0

    def __enter__(self) -> "Progress":
        """Show the line while the block runs."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._console.is_terminal:
            self._live.stop()

    def update(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Say where we are: phase, done of total, time left at the pace of this sitting, and a note."""
        now = time.perf_counter()
        if phase != self._phase:
            self._phase, self._begin, self._first = phase, now, done
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "..."
        line = f"{phase}: {done}/{total}, {left}{'  ' + note if note else ''}"
        if self._console.is_terminal:
            self._live.update(Text(line), refresh=True)
        else:
            print(line, file=sys.stderr, flush=True)


def default_out(experiment: str, name: str) -> Path:
    """`runs/<experiment>/<name>` below the current folder."""
    return Path("runs") / experiment / name


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(jsonable(value), indent=2) + "\n")
    os.replace(partial, path)


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
