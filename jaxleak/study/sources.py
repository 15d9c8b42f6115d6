"""Fingerprints of the data, weights and payloads from which a run folder's results come, so that others are refused.

The name of a data set says where its files are, and not what they hold: a file may be replaced, and JAXLEAK_DATA_DIR
may change.
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

#: Functions that load arrays, by the name that messages use for the arrays.
Arrays = Mapping[str, Callable[[], PyTree]]

SOURCES_FILE = "sources.json"
_HOW_TO_GO_ON = "choose another --out, or start over with --fresh"


class Sources:
    """Fingerprints of the arrays from which a run folder's results come, kept in the folder's `sources.json`."""

    def __init__(self, folder: Path, *, fresh: bool, write: Callable[[Path, dict[str, str]], None]):
        """Read the fingerprints that the folder already has.

        Args:
            folder: the run's folder.
            fresh: whether earlier results do not count.
            write: called as `write(file, fingerprints)` when work begins, and later whenever fingerprints are added.
        """
        self.file = folder / SOURCES_FILE
        self._write = write
        # A folder with results has a configuration, which is written together with this file.
        self._unknown = not fresh and not self.file.exists() and (folder / "config.json").exists()
        self._known = {} if fresh or not self.file.exists() else _read(self.file)
        self._seen: dict[str, str] = {}
        self._begun = False

    def begin(self) -> None:
        """Write the file, since from now on the folder may hold results."""
        if not self._begun:
            self._begun = True
            self._write(self.file, self._known)

    def check(self, arrays: Arrays) -> None:
        """Refuse arrays that differ from those of earlier results; a name without earlier results is accepted.

        Raises:
            ConfigMismatchError: naming the arrays that changed; nothing has been overwritten.
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
                f"{self.file.parent} holds results on other contents of {'; '.join(changed)}{hint}; its results were "
                f"left as they are: {_HOW_TO_GO_ON}"
            )

    def bind(self, arrays: Arrays) -> None:
        """Refuse arrays as `check` does, and record that the folder's results come from these arrays from now on."""
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
    """Name the samples that `data.load` draws, for `Sources.check` and `Sources.bind`.

    Args:
        spec: data specification, see `jaxleak.data.load`.
        n: number of samples; None draws all.
        seed: seed of the draw.
    """
    return {drawn_name(spec, n, seed): lambda: arrays_of(data.load(spec, n, seed))}


def drawn_name(spec: str, n: int | None, seed: int) -> str:
    """Return the name that messages use for the samples that `data.load` draws. Arguments as in `drawn`."""
    return f"the data {spec} ({'all samples' if n is None else f'{n} samples'} drawn with seed {seed})"


def arrays_of(dataset: "data.Dataset") -> dict[str, Any]:
    """Return the parts of a data set that attacks and scores use: samples, labels and the names of the classes."""
    return {"x": dataset.x, "y": dataset.y, "classes": np.array(dataset.classes)}


def contents(what: str, path: Path) -> Arrays:
    """Name the bytes of a file, or of all files in a folder, for `Sources.check` and `Sources.bind`.

    Args:
        what: name that messages use for the file or folder.
        path: path of the file or folder.
    """

    def load() -> dict[str, np.ndarray]:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): np.frombuffer(file.read_bytes(), np.uint8) for file in files}

    return {what: load}


def own_code(what: str, spec: str) -> Arrays:
    """Name the source files of a user's own code, as they were when the code was run.

    Args:
        what: what the code is, such as "attack" or "defense".
        spec: "FILE.py:NAME".
    """
    return {
        f"the {what} {spec} (its file {file})": functools.partial(np.frombuffer, source, np.uint8)
        for file, source in read_once(spec).sources.items()
    }


def samples_in(spec: str) -> int:
    """Count the samples of a data specification; the data are loaded once, and later calls reuse the answer.

    Raises:
        ValueError, OSError: if the data cannot be loaded.
    """
    return _samples_in(spec, os.environ.get("JAXLEAK_DATA_DIR"))


def form_of(spec: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of one sample of a data specification, and the number of classes.

    One sample is loaded once, and later calls reuse the answer.

    Raises:
        ValueError, OSError: if the data cannot be loaded.
    """
    return _form_of(spec, os.environ.get("JAXLEAK_DATA_DIR"))


def unavailable(spec: str) -> str:
    """Say why a data specification cannot be loaded, or return an empty text; one sample is loaded, only once."""
    return _unavailable(spec, os.environ.get("JAXLEAK_DATA_DIR"))


# The answers depend on the data folder, so the folder is a part of the caches' keys.
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
