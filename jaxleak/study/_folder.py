"""A run folder that stays valid if its run is killed, and that a refused command leaves unchanged."""

import contextlib
import json
import math
import os
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxleak import _processes, _validate
from jaxleak._lock import FolderInUseError, lock_folder
from jaxleak.study._out import require_own_folder
from jaxleak.study._programs import forget_when_many
from jaxleak.study._provenance import provenance
from jaxleak.study.files import (
    append_line,
    as_text,
    jsonable,
    partial_of,
    read_json,
    read_lines,
    write_json,
    write_text,
)
from jaxleak.study.sources import Sources

#: Files of a run folder with the log and results of earlier sittings; a fresh run deletes them when its work begins.
OF_A_SITTING = ("metrics.jsonl", "results.json", "timing.json")


class RunFolder:
    """`runs/<experiment>/<name>/` with config.json, sources.json, metrics.jsonl, results.json, checkpoints/, figures/.

    Seconds of finished phases are stored as they happen, so that a resumed run reports the work of all its sittings (a
    sitting is the time from one start of the command to its end). config.json is that of the last run that began to
    work: a run that is refused before that leaves the folder unchanged. While the object lives, no other process can
    open the folder. If one run has several processes, each of them makes the object and calls it in the same way, and
    only the first process writes.
    """

    def __init__(
        self, path: str | Path, experiment: str, config: dict[str, Any], *, fresh: bool, program: str | None = None
    ):
        """Create or reopen the folder.

        Args:
            path: the folder to make or to reopen.
            experiment: the command's name.
            config: the command's options, for config.json.
            fresh: whether results, log and seconds of earlier sittings are ignored.
            program: what a person types before the options, for reports; None is the experiment's name.

        Raises:
            ValueError: if the path is the current folder, which would be filled, or if timing.json is damaged.
            FolderInUseError: if another process writes to the folder; names the process.
            OSError: if the folder cannot be written; nothing has been computed yet.
        """
        require_own_folder(path)
        self.path = Path(path).absolute()
        self.experiment, self.config, self.program = experiment, config, program or experiment
        self.writes, self._begun = _processes.is_writer(), False
        self._forgotten, self._logs_again = set(OF_A_SITTING if fresh else ()), False
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
            # Writing this file also shows whether the folder can be written at all.
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

    def log_again(self) -> None:
        """Forget the log of an earlier sitting, since this sitting reads finished work back and logs it again.

        A study that consists of several studies calls this for each of them; lines of this sitting stay.
        """
        if not self._logs_again:
            self._logs_again = True
            self._forget("metrics.jsonl")

    def _forget(self, *names: str) -> None:
        # Files are deleted only once work has begun, so that a run that is refused before has deleted nothing.
        self._forgotten |= set(names)
        if self._begun and self.writes:
            for name in self._forgotten:
                (self.path / name).unlink(missing_ok=True)
            self._forgotten.clear()

    def begin(self) -> None:
        """Make the folder this run's: from now on the command is not refused, and the folder may hold results."""
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
            with contextlib.suppress(OSError):  # another process has put something there meanwhile
                folder.rmdir()

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoints."""
        return self.path / "checkpoints"

    @property
    def reconstructions(self) -> Path:
        """The folder in which an inversion keeps the images of every seed as arrays; other runs do not have it."""
        return self.path / "reconstructions"

    def figure(self, name: str) -> Path:
        """Return the path of a figure."""
        return self.path / "figures" / name

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[name]`, and drop compiled programs if they became too many."""
        self.begin()
        begin = time.perf_counter()
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # on a full disk the block has failed too, with a better message
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
        """Drop lines of metrics.jsonl that a killed run wrote in part, or after the checkpoint from which it resumes.

        Args:
            **limits: largest value of a named entry that a kept line may have.

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
        self,
        metrics: Mapping[str, Any],
        *,
        status: str = "complete",
        cells: list[dict[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write results.json and return its path; if no cell of a table ran, the status is "nothing was run".

        Args:
            metrics: numbers by name, possibly in nested mappings.
            status: status of a run that has come to its end.
            cells: cells of a table, each with its number or `not_run`.
            settings: settings to which the run resolved its options, or None.
        """
        if not self.writes:
            return self.path / "results.json"
        self.begin()
        # A cell without a number of ours counts as not run only if it has the entry `not_run`.
        ran = cells is None or any(has_run(cell) or "not_run" not in cell for cell in cells)
        result = {
            "experiment": self.experiment,
            "status": status if ran else "nothing was run",
            "config": self.config,
            **({} if settings is None else {"settings": settings}),
            "provenance": provenance(),
            "timing": self.seconds,
            "metrics": metrics,
            "cells": cells or [],
        }
        write_json(self.path / "results.json", result)
        return self.path / "results.json"

    def contents(self) -> str:
        """Say where results and arrays are, and on the last line where the pictures are, for the end of a command."""
        said = f"results are in {self.path / 'results.json'}"
        report = self.path / "report.md"
        if report.exists():
            said += f"\nthe report is {report}"
        if (alone := self.path / "reconstruction.npz").exists():
            said += f"\nthe images as arrays are in {alone}"
        arrays = sorted((path.name for path in self.reconstructions.glob("seed_*.npz")), key=lambda n: (len(n), n))
        pictures = sorted(path.name for path in (self.path / "figures").glob("*.png"))
        for what, folder, names in (
            ("the images as arrays are in", self.reconstructions, arrays),
            ("pictures are in", self.path / "figures", pictures),
        ):
            if names:
                shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                said += f"\n{what} {folder}: {shown}"
        return said


#: Run folders that this process opened, so that a refused command can leave them unchanged.
_open_folders: "weakref.WeakSet[RunFolder]" = weakref.WeakSet()


def _seconds(stored: Any) -> dict[str, float]:
    seconds = {name: float(value) for name, value in stored.items()}
    _validate.non_negative(**seconds)
    return seconds


def has_run(row: dict[str, Any]) -> bool:
    """Whether a row of a table has a number of ours."""
    return row.get("ours") is not None


def take_back_folders() -> None:
    """Restore the run folders that this process opened, unless work has begun in them."""
    for folder in list(_open_folders):
        folder.take_back()
