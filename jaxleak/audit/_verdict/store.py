"""What an audit has done so far, kept in a folder if there is one: answers of finished attacks and seconds spent."""

import hashlib
import io
import json
import math
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak._lock import lock_folder
from jaxleak._replacing import replacing
from jaxleak.audit._verdict.verdict import Answer
from jaxleak.checkpoint import Checkpoints

_ELSEWHERE = "choose another folder, or start over with fresh=True (--fresh)"
_ARRAYS = ("x", "y", "agreement", "undetermined", "toned")
#: Errors that a damaged file raises in json, NumPy, zipfile or in code that reads its content.
_DAMAGED = (
    ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, MemoryError, NotImplementedError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


class SpentError(Exception):
    """The budget is spent."""


class Store:
    """The answers of an audit by attack, and the clock that all its sittings share."""

    def __init__(
        self,
        folder: Path | None,
        identity: dict[str, Any],
        minutes: float,
        *,
        fresh: bool = False,
        since: float | None = None,
    ):
        """Reopen what an earlier sitting left; while this object lives, no other process can open the folder.

        Args:
            folder: the folder for answers; None keeps nothing.
            identity: what identifies the inputs. A folder with answers of other inputs is refused.
            minutes: budget of all sittings.
            fresh: start over, whatever is there.
            since: when this sitting began, by `time.monotonic()`; None: now.

        Raises:
            ValueError: if the folder belongs to other inputs, or its audit.json is damaged.
            FolderInUseError: if another process writes to the folder.
        """
        self.folder, self.identity, self._limit, self._fresh = folder, identity, 60 * minutes, fresh
        self._begin, self._before = time.monotonic() if since is None else since, 0.0
        self._notes: dict[str, Any] = {"identity": identity, "seconds": 0.0, "answers": {}, "files": {}}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(folder)
        state = folder / "audit.json"
        if state.exists() and not fresh:
            stored = _read_notes(state)
            different = [name for name in identity if stored["identity"].get(name) != identity[name]]
            if different:
                raise ValueError(f"{folder} holds an audit of other inputs ({', '.join(different)}): {_ELSEWHERE}")
            self._notes, self._before = stored, stored["seconds"]

    @property
    def seconds(self) -> float:
        """Seconds that all sittings have spent so far."""
        return self._before + time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """Seconds that the budget has left."""
        return self._limit - self.seconds

    def checkpoints(self, name: str) -> Checkpoints | None:
        """Where one attack saves its state."""
        if self.folder is None:
            return None
        return Checkpoints(self.folder / "checkpoints" / name, self.identity, fresh=self._fresh)

    def answer(self, name: str) -> Answer | None:
        """The answer of an attack that finished in an earlier sitting.

        Raises:
            ValueError: naming the file, if the stored answer is damaged.
        """
        noted = self._notes["answers"].get(name)
        if noted is None or self.folder is None:
            return None
        file = self.folder / f"{name}.npz"
        try:
            content = file.read_bytes()
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found = {field: arrays[field] for field in _ARRAYS if field in arrays}
            answer = Answer(**noted, **found)
        except (OSError, *_DAMAGED) as error:
            raise _damaged(file, error) from error
        if self._notes["files"].get(name) not in (None, _digest(content)):  # earlier versions kept no digest
            raise _damaged(file, "it is not the file that audit.json was written with")
        if answer.undetermined is not None and "beyond" not in noted:
            return None  # an earlier version certified more: it tested lower layers, defenses and the range less
        if answer.x.ndim != 4 or answer.y.shape != answer.x.shape[:1] or not np.isfinite(answer.x).all():
            raise _damaged(file, "it holds no images with their labels")
        return answer

    def keep(self, name: str, answer: Answer) -> None:
        """Store an answer, and the time spent; a kill leaves either all of it or nothing."""
        if self.folder is not None:
            fields = answer._asdict()
            del fields["contradicted"]  # every sitting tests this anew
            arrays = {field: fields.pop(field) for field in _ARRAYS}
            content = io.BytesIO()
            np.savez(content, **{field: array for field, array in arrays.items() if array is not None})
            with replacing(self.folder / f"{name}.npz") as partial:
                partial.write_bytes(content.getvalue())
            self._notes["answers"][name], self._notes["files"][name] = fields, _digest(content.getvalue())
        self.note()

    def note(self) -> None:
        """Store the time spent."""
        if self.folder is not None:
            self._notes["seconds"] = self.seconds
            write_text(self.folder / "audit.json", json.dumps(self._notes))


def _read_notes(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_bytes())
        seconds = float(stored["seconds"])
        stored.setdefault("files", {})
        kinds = [type(stored[name]) for name in ("identity", "answers", "files")]
        kinds += [type(answer) for answer in stored["answers"].values()]
        numbers = [value for noted in stored["answers"].values() for name, value in noted.items() if name != "attack"]
    except _DAMAGED as error:
        raise _damaged(file, error) from error
    if set(kinds) != {dict} or not 0 <= seconds < math.inf or any(isinstance(n, str | list | dict) for n in numbers):
        raise _damaged(file, "its content has another form than an audit writes")
    return {name: stored[name] for name in ("identity", "answers", "files")} | {"seconds": seconds}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def require_none(folder: Path | None, *, fresh: bool, why: str) -> None:
    """Raise `ValueError` if a folder holds an audit: its inputs are not these, which the checks named `why` refuse."""
    if folder is not None and not fresh and (folder / "audit.json").exists():
        raise ValueError(f"{folder} holds an audit of other inputs, and these are inconsistent ({why}): {_ELSEWHERE}")


def _damaged(file: Path, why: object) -> ValueError:
    return ValueError(f"{file} is damaged ({why}): {_ELSEWHERE}")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a kill leaves either the old one or the new one."""
    with replacing(path) as partial:
        partial.write_text(text)
