"""Readers of data sets in the form in which their authors publish them; no file is ever unpickled.

Every reader takes the files of one data set and yields dictionaries of arrays. These are the members of an archive
that `load` and `load_table` read. A large file is read in several pieces, each of which fits into memory.
"""

import csv
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxleak.data._files import UNREADABLE, read_idx_pair

#: Members of an archive; every array except `class_names` has one row per sample.
Members = dict[str, np.ndarray]

#: Number of lines of a table that are read at once.
_LINES = 100_000
#: Number of codes for the categories of Criteo and Avazu: the code is a hash of "column=value" modulo this number.
_CODES = 2**20
#: Columns of Avazu that follow the column of clicks.
_AVAZU = (
    "hour",
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{number}" for number in range(14, 22)),
)


def mnist(files: Sequence[Path]) -> Iterator[Members]:
    """Read MNIST from its idx files of images and of labels, raw or gzip, in this order."""
    images, labels = _exactly(files, "images", "labels")
    x, y = read_idx_pair(images, labels)
    yield {"x": x[..., None], "y": y.astype(np.int64)}


def cifar10(files: Sequence[Path]) -> Iterator[Members]:
    """Read CIFAR-10 from files of the binary version: a label and 3,072 bytes of pixels for each image."""
    return _cifar(files, labels=1, names="batches.meta.txt")


def cifar100(files: Sequence[Path]) -> Iterator[Members]:
    """Read CIFAR-100's binary version: a coarse label, a fine label and 3,072 bytes of pixels for each image."""
    return _cifar(files, labels=2, names="fine_label_names.txt")


def _cifar(files: Sequence[Path], *, labels: int, names: str) -> Iterator[Members]:
    for file in files:
        content = np.frombuffer(file.read_bytes(), np.uint8)
        if len(content) == 0 or len(content) % (labels + 3072):
            raise ValueError(
                f"{file} has {len(content)} bytes, which is no multiple of {labels + 3072}: it is no file of the "
                "binary version"
            )
        rows = content.reshape(-1, labels + 3072)
        x = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        members: Members = {"x": np.ascontiguousarray(x), "y": rows[:, labels - 1].astype(np.int64)}
        if (beside := file.parent / names).is_file():
            members["class_names"] = np.array(beside.read_text().split())
        yield members


def yale32(files: Sequence[Path]) -> Iterator[Members]:
    """Read Deng Cai's `Yale_32x32.mat`: images `fea` (165, 1024), stored column by column, and labels `gnd` from 1."""
    import scipy.io  # slow to import, and no other data set needs it

    (file,) = _exactly(files, "Yale_32x32.mat")
    try:
        found = scipy.io.loadmat(file, variable_names=("fea", "gnd"))
        images, persons = found["fea"].reshape(-1, 32, 32), found["gnd"].ravel()
    except (*UNREADABLE, TypeError, scipy.io.matlab.MatReadError) as error:
        raise ValueError(f"{file} is no file of Yale faces of 32 x 32 pixels: {error}") from error
    yield {"x": images.transpose(0, 2, 1)[..., None].astype(np.uint8), "y": persons.astype(np.int64) - 1}


def sensorless(files: Sequence[Path]) -> Iterator[Members]:
    """Read UCI's `Sensorless_drive_diagnosis.txt`: each line has 48 numbers and the class, counted from 1."""
    (file,) = _exactly(files, "Sensorless_drive_diagnosis.txt")
    for first, rows in _lines(file, " "):
        table = _numbers(rows, 49, file, first)
        yield {"x": table[:, :48].astype(np.float32), "y": table[:, 48].astype(np.int64) - 1}


def criteo(files: Sequence[Path]) -> Iterator[Members]:
    """Read Criteo's `train.txt`: each line has a click, 13 counts and 26 codes, separated by tabs; some are missing."""
    (file,) = _exactly(files, "train.txt")
    names = [f"C{number}" for number in range(1, 27)]
    for first, rows in _lines(file, "\t"):
        counts = [[value or "nan" for value in row[:14]] for row in rows]
        numbers = _numbers(counts, 14, file, first)
        codes = np.array([_codes(names, row[14:], file, first) for row in rows])
        yield {"x_num": numbers[:, 1:].astype(np.float32), "x_cat": codes, "y": numbers[:, 0].astype(np.int64)}


def avazu(files: Sequence[Path]) -> Iterator[Members]:
    """Read Avazu's `train.csv`: id, click, hour (YYMMDDHH) and 21 further columns, named in the first line."""
    (file,) = _exactly(files, "train.csv")
    for first, rows in _lines(file, ","):
        rows = rows[1:] if rows[0][:2] == ["id", "click"] else rows
        codes = np.array([_codes(_AVAZU, row[2:], file, first) for row in rows])
        numbers = _numbers([[row[1], row[2][-2:]] for row in rows], 2, file, first)
        yield {"x_num": numbers[:, 1:].astype(np.float32), "x_cat": codes, "y": numbers[:, 0].astype(np.int64)}


#: The reader of every data set that `archive` makes.
PUBLISHED: dict[str, Callable[[Sequence[Path]], Iterator[Members]]] = {
    reader.__name__: reader for reader in (avazu, cifar10, cifar100, criteo, mnist, sensorless, yale32)
}


def _exactly(files: Sequence[Path], *names: str) -> Sequence[Path]:
    if len(files) != len(names):
        raise ValueError(f"files must be {len(names)} ({', '.join(names)}), got {len(files)}")
    return files


def _lines(file: Path, between: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the pieces of a text file, each with the number of its first line."""
    try:
        with file.open(newline="") as stream:
            rows = csv.reader(stream, delimiter=between, quoting=csv.QUOTE_NONE)
            for first in itertools.count(1, _LINES):
                piece = [row for row in itertools.islice(rows, _LINES) if row]
                if not piece:
                    return
                yield first, piece
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is no text file: {error}") from error


def _numbers(rows: list[list[str]], width: int, file: Path, first: int) -> np.ndarray:
    """Convert texts to numbers: float64 (rows, width)."""
    try:
        found = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{file}, in the {len(rows)} lines from line {first}: {error}") from error
    if found.shape != (len(rows), width):
        raise ValueError(f"{file}, from line {first}: lines must have {width} numbers, got {found.shape[1]}")
    return found


def _codes(names: Sequence[str], values: list[str], file: Path, first: int) -> list[int]:
    if len(values) != len(names):
        raise ValueError(f"{file}, from line {first}: a line has {len(values)} categories, and not {len(names)}")
    return [zlib.crc32(f"{name}={value}".encode()) % _CODES for name, value in zip(names, values, strict=True)]
