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

#: What reading a damaged file raises, in the hands of json, NumPy, zipfile or of whoever looks into the content.
_DAMAGED = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, RecursionError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


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


def as_text(value: Any) -> str:
    """`value` as the text of a JSON file."""
    return json.dumps(jsonable(value), indent=2) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    write_text(path, as_text(value))


def write_text(path: Path, text: str) -> None:
    """Write text so that a kill leaves either the old file or the new one."""
    write_bytes(path, text.encode())


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file, under this very name, so that a kill leaves either the old file or the new one."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file once all of its new content is on the disk.

    Raises:
        OSError: naming the file, if it cannot be written; the old one stays, and no part of the new one.
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
    """Where the new content of a file is until it is complete."""
    return path.with_name(path.name + ".partial")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an `OSError` of the block, since a full disk is reported without it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot write {path}: {reason}; what was written before stays valid") from error


class Stored(dict[str, Any]):
    """What a file held by name; a name that it lacks is an error that names the file."""

    def __init__(self, path: Path, content: Mapping[str, Any]):
        """`content` of `path`."""
        super().__init__(content)
        self._path = path

    def __missing__(self, name: str) -> Any:
        """Raise `ValueError` that names the file and what it lacks."""
        raise ValueError(f"{self._path} is damaged (it lacks {name}); delete it, or start over with --fresh")


def read_json(path: Path, read: Callable[[Any], Read]) -> Read:
    """What `read` takes out of the content of a JSON file.

    Raises:
        ValueError: naming the file, if it holds no JSON, or if `read` fails on what it holds.
        OSError: if it cannot be read.
    """
    return _read(path, lambda: _parsed(path.read_text(), read))


def read_numbers(path: Path, read: Callable[[Any], Mapping[str, Any]] = lambda content: content) -> dict[str, float]:
    """Numbers by name that `read` takes out of a JSON file, as they stand there, NaN and infinities included.

    Units are those of the file; errors as in `read_json`.
    """
    return Stored(path, read_json(path, lambda content: {n: float(value) for n, value in read(content).items()}))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file, none of them unpickled; errors as in `read_json`."""

    def read() -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    return Stored(path, _read(path, read))


def read_lines(path: Path, read: Callable[[Any], Read]) -> list[tuple[str, Read]]:
    """The complete lines of a file of JSON lines, each with what `read` takes out of it; errors as in `read_json`.

    A last line without its end was being written when the run was killed, and is left out.
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
    if isinstance(error, (TypeError, AttributeError, IndexError)):  # Python's words about what the reader did with it
        return "its content has another form than this command writes"
    return str(error)[:200] or type(error).__name__
