"""CSV files with a header that names the columns, and one row per sample."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxleak.data._dataset import Dataset, build
from jaxleak.data._files import existing_file
from jaxleak.data._ids import warn_of_ids

#: Texts that stand for a missing value, in upper or lower case.
_MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))
#: Number of different texts that a column may always have. A column with more, most of them different, is refused: it
#: names the rows and describes nothing.
_FEW = 100
#: Settings behind the question mark of a specification.
_SETTINGS = ("label", "categorical", "drop")


class Columns(NamedTuple):
    """The columns of a CSV file, before any scaling."""

    numeric: np.ndarray  # (N, F1) float64, NaN where a value is missing
    categorical: np.ndarray  # (N, F2) int64 codes in the alphabetical order of the texts; a missing value has its own
    y: np.ndarray  # (N,) int64 in [0, C)
    classes: tuple[str, ...]  # the C texts of the labels, in the order of numbers where all are numbers
    names: tuple[str, ...] = ()  # names of all columns, numeric ones first


def read_columns(spec: str) -> Columns:
    """Read the columns of the CSV file in a data specification.

    A column is numeric if every value that is not missing is a finite number; any other column is categorical. The
    header decides whether commas, semicolons or tabs separate the values. A column whose values are whole numbers or
    texts that all differ is kept with a `UserWarning`, as it may be an id.

    Args:
        spec: "csv:FILE?label=NAME", optionally followed by "&categorical=NAME,NAME" for columns whose numbers are codes
            without an order, and "&drop=NAME,NAME" for columns that are left out.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: naming the file and the column or the row, if a setting or a column is unknown, rows have unequal
            lengths, a label is missing, all rows have the same label or too many different ones, or a column of texts
            differs in most rows.
    """
    path, settings = _parsed(spec)
    names, rows = _rows(path)
    (label,) = settings["label"]
    named = [*settings["label"], *settings["categorical"], *settings["drop"]]
    if unknown := [name for name in named if name not in names]:
        raise ValueError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")
    columns = {name: [row[number].strip() for row in rows] for number, name in enumerate(names)}
    y, classes = _labels(columns.pop(label), label, path)
    numeric, categorical = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, texts in columns.items():
        if name in settings["drop"]:
            continue
        numbers = None if name in settings["categorical"] else _numbers(texts)
        if numbers is not None:
            numeric[name] = numbers
            continue
        found, codes = np.unique(["" if _is_missing(text) else text for text in texts], return_inverse=True)
        if len(found) > max(_FEW, len(rows) // 2):
            raise ValueError(
                f"{path}: column {name!r} {_why_too_many(texts, found)}, or leave the column out by &drop={name}"
            )
        categorical[name] = codes
    warn_of_ids({**numeric, **categorical}, str(path), "leave it out by &drop={name} in the specification")
    return Columns(
        _side_by_side(numeric, len(rows), float),
        _side_by_side(categorical, len(rows), int),
        y,
        classes,
        (*numeric, *categorical),
    )


def csv_table(spec: str, n: int | None, seed: int) -> Dataset:
    """Load a CSV file as a table with one column per number and one per category, scaled over all rows.

    Args:
        spec: data specification as in `read_columns`; it becomes the name of the dataset.
        n: number of samples to draw, or None for all.
        seed: seed of the draw.

    Raises:
        FileNotFoundError, ValueError: as `read_columns`; and `ValueError` if a number is missing.
    """
    found = read_columns(spec)
    if np.isnan(found.numeric).any():
        raise ValueError(
            f"{spec}: a number is missing, which only vertical studies take: fill it in or drop its column"
        )
    one_hot = [column[:, None] == np.unique(column) for column in found.categorical.T]
    x = np.concatenate([found.numeric, *one_hot], axis=1)
    return build(spec, spec, x, found.y, found.classes, n, seed)


def _parsed(spec: str) -> tuple[Path, dict[str, list[str]]]:
    source, _, query = spec.removeprefix("csv:").partition("?")
    settings = {name: list[str]() for name in _SETTINGS}
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        if name not in settings or not value:
            raise ValueError(f"{spec}: settings must be {', '.join(_SETTINGS)}, each as NAME=VALUE, got {part!r}")
        settings[name] += value.split(",")
    if len(settings["label"]) != 1:
        raise ValueError(f"{spec}: must name the column of the labels, as in csv:table.csv?label=income")
    return existing_file(source), settings


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the rows that are not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            header, *rows = [row for row in csv.reader(file, delimiter=delimiter, skipinitialspace=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV in UTF-8: {error}") from error
    except ValueError as error:  # no header to unpack
        raise ValueError(f"{path} is empty") from error
    if delimiter == ";":  # in such files, a comma is the decimal separator
        rows = [[re.sub(r"^(\s*[+-]?\d*),(\d+\s*)$", r"\1.\2", value) for value in row] for row in rows]
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: the header must have a name of its own for every column, got {', '.join(names)}")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(
                f"{path}: row {number + 1} has {len(row)} values, and the header names {len(names)} columns"
            )
    if not rows:
        raise ValueError(f"{path} has a header and no rows")
    return names, rows


def _is_missing(text: str) -> bool:
    return text.lower() in _MISSING


def _numbers(texts: Sequence[str]) -> np.ndarray | None:
    """Return the numbers (N,) of a column, NaN for a missing one; None if it holds anything else, or no number."""
    try:
        numbers = np.array([np.nan if _is_missing(text) else float(text.replace("_", "x")) for text in texts])
    except ValueError:
        return None
    return None if np.isinf(numbers).any() or np.isnan(numbers).all() else numbers


def _why_too_many(texts: Sequence[str], found: np.ndarray) -> str:
    """Say what is wrong with a column that has too many different texts, and what to do about it."""
    present = [(row, text) for row, text in enumerate(texts, 1) if not _is_missing(text)]
    others = [(row, text) for row, text in present if _numbers([text]) is None]
    if others and 2 * len(others) < len(present):
        row, text = others[0]
        return (
            f"must hold numbers alone, but row {row} holds {text!r}, and {len(present) - len(others)} of {len(texts)} "
            "values are numbers: leave a missing value empty"
        )
    return (
        f"holds {len(found)} different texts in {len(texts)} rows, such as {str(found[-1])!r}: group them into a few "
        "categories"
    )


def _labels(texts: Sequence[str], name: str, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    for number, text in enumerate(texts):
        if _is_missing(text):
            raise ValueError(f"{path}: the label in row {number + 1} of column {name!r} is missing")
    different = set(texts)
    if not 1 < len(different) <= max(_FEW, len(texts) // 10):
        raise ValueError(
            f"{path}: column {name!r} must hold a few classes, got {len(different)} different values in {len(texts)} "
            "rows; divide a number into classes first"
        )
    if (numbers := _numbers(texts)) is not None:  # 1 and 1.0 are one class
        found, codes = np.unique(numbers, return_inverse=True)
        return codes, tuple(repr(float(number)).removesuffix(".0") for number in found)
    found, codes = np.unique(texts, return_inverse=True)
    return codes, tuple(found.tolist())


def _side_by_side(columns: Mapping[str, np.ndarray], rows: int, dtype: type) -> np.ndarray:
    return np.stack([*columns.values()], axis=1).astype(dtype) if columns else np.zeros((rows, 0), dtype)
