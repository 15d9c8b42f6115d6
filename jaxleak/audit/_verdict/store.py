"""What an audit has done so far: answers of finished attacks, seconds spent; in a folder, or nowhere."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak.audit._verdict.verdict import Answer
from jaxleak.checkpoint import Checkpoints

_ARRAYS = ("x", "y", "agreement")


class SpentError(Exception):
    """The budget is spent."""


class Store:
    """Answers by attack, and the clock that all sittings share."""

    def __init__(self, folder: Path | None, identity: dict[str, Any], minutes: float):
        """Reopen what an earlier sitting left.

        Args:
            folder: where; None keeps nothing.
            identity: of the inputs. Answers of other inputs are refused.
            minutes: budget of all sittings.

        Raises:
            ValueError: if the folder belongs to other inputs.
        """
        self.folder, self.identity, self._limit = folder, identity, 60 * minutes
        self._begin, self._before = time.monotonic(), 0.0
        self._notes: dict[str, Any] = {"identity": identity, "seconds": 0.0, "answers": {}}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / "audit.json"
        if state.exists():
            stored = json.loads(state.read_text())
            different = [name for name in identity if stored["identity"].get(name) != identity[name]]
            if different:
                raise ValueError(
                    f"{folder} holds an audit of other inputs ({', '.join(different)}): choose another --out"
                )
            self._notes, self._before = stored, stored["seconds"]

    @property
    def seconds(self) -> float:
        """Spent so far, in all sittings."""
        return self._before + time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """Seconds that the budget has left."""
        return self._limit - self.seconds

    def checkpoints(self, name: str) -> Checkpoints | None:
        """Where one attack saves its state."""
        return None if self.folder is None else Checkpoints(self.folder / "checkpoints" / name, self.identity)

    def answer(self, name: str) -> Answer | None:
        """The answer of an attack that finished in an earlier sitting."""
        noted = self._notes["answers"].get(name)
        if noted is None or self.folder is None:
            return None
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as arrays:
            found = {field: arrays[field] for field in _ARRAYS if field in arrays}
        return Answer(**noted, **found)

    def keep(self, name: str, answer: Answer) -> None:
        """Store an answer, and the time spent; a kill leaves either all of it or nothing."""
        if self.folder is not None:
            fields = answer._asdict()
            arrays = {field: fields.pop(field) for field in _ARRAYS}
            partial = self.folder / f"{name}.partial.npz"
            np.savez(partial, **{field: array for field, array in arrays.items() if array is not None})
            os.replace(partial, self.folder / f"{name}.npz")
            self._notes["answers"][name] = fields
        self.note()

    def note(self) -> None:
        """Store the time spent."""
        if self.folder is not None:
            self._notes["seconds"] = self.seconds
            write_text(self.folder / "audit.json", json.dumps(self._notes))


def write_text(path: Path, text: str) -> None:
    """Write a file so that a kill leaves either the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
