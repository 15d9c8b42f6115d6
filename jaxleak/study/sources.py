"""What the results of a run folder come from: fingerprints of data, weights and payloads, so that others are refused.

A name of data says where they are, and not what is there: a file may be replaced, and JAXLEAK_DATA_DIR may change.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak import data
from jaxleak._base import PyTree
from jaxleak._configuration import fingerprint
from jaxleak._own_files import read_once
from jaxleak.checkpoint import ConfigMismatchError

__all__ = [
    "SOURCES_FILE",
    "Arrays",
    "Sources",
    "arrays_of",
    "contents",
    "drawn",
    "drawn_name",
    "form_of",
    "own_code",
    "samples_in",
    "unavailable",
]

#: Arrays by the name that a message gives them; they are loaded when they are asked for.
Arrays = Mapping[str, Callable[[], PyTree]]

SOURCES_FILE = "sources.json"
_HOW_TO_GO_ON = "choose another --out, or start over with --fresh"


class Sources:
    """Fingerprints of the arrays that the results of a run folder come from, in the folder's `sources.json`."""

    def __init__(self, folder: Path, *, fresh: bool, write: Callable[[Path, dict[str, str]], None]):
        """Read what is there.

        Args:
            folder: the run's folder.
            fresh: earlier results do not count.
            write: called as `write(file, fingerprints)`, once work has begun and whenever there are more.
        """
        self.file = folder / SOURCES_FILE
        self._write = write
        # A folder with results has a configuration, which is written together with this file.
        self._unknown = not fresh and not self.file.exists() and (folder / "config.json").exists()
        self._known = {} if fresh or not self.file.exists() else _read(self.file)
        self._seen: dict[str, str] = {}
        self._begun = False

    def begin(self) -> None:
        """Write the file: from now on there may be results."""
        if not self._begun:
            self._begun = True
            self._write(self.file, self._known)

    def check(self, arrays: Arrays) -> None:
        """Refuse arrays that are not those that earlier results come from. Names without earlier results may be any.

        Raises:
            ConfigMismatchError: naming what has changed; nothing has been overwritten.
        """
        if self._unknown:
            raise ConfigMismatchError(
                f"{self.file.parent} holds results, and no {SOURCES_FILE} says which data they come from; "
                f"{_HOW_TO_GO_ON}"
            )
        changed = [
            f"{name} (SHA-256 {self._known[name][:12]} there, {now[:12]} now)"
            for name, load in arrays.items()
            if name in self._known and (now := self._fingerprint(name, load)) != self._known[name]
        ]
        if changed:
            where = os.environ.get("JAXLEAK_DATA_DIR")
            hint = f"; JAXLEAK_DATA_DIR is {where}" if where else ""
            raise ConfigMismatchError(
                f"{self.file.parent} holds results on other contents of {'; '.join(changed)}{hint}; nothing there was "
                f"changed: {_HOW_TO_GO_ON}"
            )

    def bind(self, arrays: Arrays) -> None:
        """As `check`; and from now on the folder's results come from these arrays."""
        self.check(arrays)
        new = {name: self._fingerprint(name, load) for name, load in arrays.items() if name not in self._known}
        self._known |= new
        if new and self._begun:
            self._write(self.file, self._known)

    def _fingerprint(self, name: str, load: Callable[[], PyTree]) -> str:
        if name not in self._seen:
            self._seen[name] = fingerprint(load())
        return self._seen[name]


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes())
        if isinstance(found, dict) and all(isinstance(entry, str) for entry in found.values()):
            return found
    except (ValueError, RecursionError):
        pass
    raise ConfigMismatchError(
        f"{file} is damaged, so nobody knows which data the results beside it come from; {_HOW_TO_GO_ON}"
    )


def drawn(spec: str, n: int | None, seed: int) -> Arrays:
    """The samples that `data.load` draws.

    Args:
        spec: see `jaxleak.data.load`.
        n: how many; None draws all.
        seed: seed of the draw.
    """
    return {drawn_name(spec, n, seed): lambda: arrays_of(data.load(spec, n, seed))}


def drawn_name(spec: str, n: int | None, seed: int) -> str:
    """What messages call the samples that `data.load` draws. Arguments as in `drawn`."""
    return f"the data {spec} ({'all samples' if n is None else f'{n} samples'} drawn with seed {seed})"


def arrays_of(dataset: "data.Dataset") -> dict[str, Any]:
    """What attacks and scores use of a data set: samples, labels and the names of the classes."""
    return {"x": dataset.x, "y": dataset.y, "classes": np.array(dataset.classes)}


def contents(what: str, path: Path) -> Arrays:
    """The bytes of a file, or of all files in a folder.

    Args:
        what: what a message calls it.
        path: the file or folder.
    """

    def load() -> dict[str, np.ndarray]:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): np.frombuffer(file.read_bytes(), np.uint8) for file in files}

    return {what: load}


def own_code(what: str, spec: str) -> Arrays:
    """The sources of somebody's own code as they were when they were run.

    Args:
        what: what the code is, as "attack" or "defense".
        spec: "FILE.py:NAME".
    """
    return {
        f"the {what} {spec} (its file {file})": functools.partial(np.frombuffer, source, np.uint8)
        for file, source in read_once(spec).sources.items()
    }


def samples_in(spec: str) -> int:
    """How many samples a data specification has; it is loaded once for all that ask.

    Raises:
        ValueError, OSError: on data that cannot be loaded.
    """
    return _samples_in(spec, os.environ.get("JAXLEAK_DATA_DIR"))


def form_of(spec: str) -> tuple[tuple[int, ...], int]:
    """Shape of a sample of a data specification, and its number of classes; one sample is loaded once for all that ask.

    Raises:
        ValueError, OSError: on data that cannot be loaded.
    """
    return _form_of(spec, os.environ.get("JAXLEAK_DATA_DIR"))


def unavailable(spec: str) -> str:
    """Why a data specification cannot be loaded, or nothing; one sample is loaded once for all that ask."""
    return _unavailable(spec, os.environ.get("JAXLEAK_DATA_DIR"))


# The answers depend on the data folder, so the caches know it.
@functools.cache
def _samples_in(spec: str, folder: str | None) -> int:
    return len(data.load(spec).y)


@functools.cache
def _form_of(spec: str, folder: str | None) -> tuple[tuple[int, ...], int]:
    one = data.load(spec, 1)
    return one.x.shape[1:], len(one.classes)


@functools.cache
def _unavailable(spec: str, folder: str | None) -> str:
    try:
        data.load(spec, 1)
    except (ValueError, OSError, MemoryError) as error:
        return str(error)
    return ""
