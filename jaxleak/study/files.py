"""Files of a run folder: written whole or not at all, and read back with an error that names the file."""

import functools
import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "Stored",
    "append_line",
    "as_text",
    "jsonable",
    "naming",
    "partial_of",
    "read_json",
    "read_lines",
    "read_npz",
    "read_numbers",
    "write_bytes",
    "write_json",
    "write_npz",
    "write_text",
]

Read = TypeVar("Read")

#: Exceptions that json, NumPy, zipfile or the caller's `read` raise on a damaged file.
_DAMAGED = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, RecursionError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


def jsonable(value: Any) -> Any:
    """Convert NumPy scalars and arrays to numbers and lists, and infinities and NaN, which JSON lacks, to strings."""
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


def as_text(value: Any) -> str:
    """Return `value` as the text of a JSON file."""
    return json.dumps(jsonable(value), indent=2) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    write_text(path, as_text(value))


def write_text(path: Path, text: str) -> None:
    """Write text so that a kill leaves either the old file or the new one."""
    write_bytes(path, text.encode())


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file under exactly this name, so that a kill leaves either the old file or the new one."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file once all of its new content is on the disk.

    Raises:
        OSError: naming the file, if it cannot be written; the old file stays, and no part of the new one is left.
    """
    partial = partial_of(path)
    with naming(path):
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file; `OSError` names the file."""
    with naming(path), path.open("a") as file:
        file.write(line + "\n")


def partial_of(path: Path) -> Path:
    """Return the path at which the new content of a file is written until it is complete."""
    return path.with_name(path.name + ".partial")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` that the block raises, since the error of a full disk names no file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot write {path}: {reason}; what was written before stays valid") from error


class Stored(dict[str, Any]):
    """The named entries of a file; asking for a name that the file lacks is an error that names the file."""

    def __init__(self, path: Path, content: Mapping[str, Any]):
        """Keep the `content` that was read from the file `path`."""
        super().__init__(content)
        self._path = path

    def __missing__(self, name: str) -> Any:
        """Raise a `ValueError` that names the file and the entry that it lacks."""
        raise ValueError(f"{self._path} is damaged (it lacks {name}); delete it, or start over with --fresh")


def read_json(path: Path, read: Callable[[Any], Read]) -> Read:
    """Read a JSON file and return what `read` takes out of its content.

    Raises:
        ValueError: naming the file, if it holds no JSON, or if `read` fails on its content.
        OSError: if the file cannot be read.
    """
    return _read(path, lambda: _parsed(path.read_text(), read))


def read_numbers(path: Path, read: Callable[[Any], Mapping[str, Any]] = lambda content: content) -> dict[str, float]:
    """Read a JSON file and return the numbers by name that `read` takes out of it, NaN and infinities included.

    The numbers keep the units of the file; errors as in `read_json`.
    """
    return Stored(path, read_json(path, lambda content: {n: float(value) for n, value in read(content).items()}))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an npz file without unpickling any; errors as in `read_json`."""

    def read() -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    return Stored(path, _read(path, read))


def read_lines(path: Path, read: Callable[[Any], Read]) -> list[tuple[str, Read]]:
    """Read the complete lines of a JSON lines file, each with what `read` takes out of it; errors as in `read_json`.

    A last line without a line end is left out: the run was killed while it wrote that line.
    """
    found = []
    for number, line in enumerate(_read(path, path.read_text).splitlines(keepends=True), 1):
        if line.strip() and line.endswith("\n"):
            found.append((line, _read(path, functools.partial(_parsed, line, read), f", line {number},")))
    return found


def _parsed(text: str, read: Callable[[Any], Read]) -> Read:
    return read(json.loads(text))


def _read(path: Path, read: Callable[[], Read], where: str = "") -> Read:
    try:
        return read()
    except _DAMAGED as error:
        raise ValueError(
            f"{path}{where} is damaged ({_reason(error)}); delete it, or start over with --fresh"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]}"
    if isinstance(error, (TypeError, AttributeError, IndexError)):  # their messages describe the reader, not the file
        return "its content has another form than this command writes"
    return str(error)[:200] or type(error).__name__
