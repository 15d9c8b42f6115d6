"""Tables for vertical studies: raw columns first, then an encoding fitted on the attacker's rows only.

`load` scales a table over all its rows, which is fine if a reconstruction is scored against the same numbers. A
vertical study trains an attack on one part of the rows (the shadow part) and applies it to another. The encoding of
this module therefore uses the fitted rows only: the scale, the categories and the dropped columns all come from the
shadow part. Encoded values lie in [0, 1].
"""

import os
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from jaxleak import _validate
from jaxleak.data._csv import read_columns
from jaxleak.data._dataset import checked_labels
from jaxleak.data._files import array_names, existing_file, read_npz
from jaxleak.data._ids import warn_of_ids
from jaxleak.data._load import HOW_TO_MAKE, load

Scaling = Literal["minmax", "quantile"]
Categories = Literal["hashed", "one_hot"]

#: Largest number of names of columns or classes that a sentence lists.
_SHOWN = 5
#: Names of the tables that `load_table` reads from the data folder, with unscaled columns.
TABLES = ("adult", "avazu", "credit_default", "criteo", "sensorless")
_MEMBERS = ("x", "x_num", "x_cat", "y", "is_categorical")


class Table(NamedTuple):
    """Raw columns, before any scaling."""

    numeric: np.ndarray  # (N, F1) float64, NaN where a value is missing
    categorical: np.ndarray  # (N, F2) int64 codes, no order among them
    y: np.ndarray  # (N,) int32 in [0, C)
    num_classes: int  # C
    name: str
    classes: tuple[str, ...] = ()  # names of the classes in the file; empty if they are 0 ... C-1
    names: tuple[str, ...] = ()  # names of the features, numeric ones first; empty if the file has none

    @property
    def num_features(self) -> int:
        """The number of features, F1 + F2; numeric features are numbered first."""
        return self.numeric.shape[1] + self.categorical.shape[1]

    @property
    def about(self) -> str:
        """A sentence that says how the columns and labels were read, so that a user can notice a misreading."""
        missing = int(np.isnan(self.numeric).sum())
        columns = [f"{self.numeric.shape[1]} numeric" + (f" (missing values: {missing})" if missing else "")]
        if count := self.categorical.shape[1]:
            codes = self.names[self.numeric.shape[1] :]
            shown = ", ".join(map(repr, codes[:_SHOWN])) + (", ..." if len(codes) > _SHOWN else "")
            columns.append(f"{count} categorical" + (f" ({shown})" if shown else ""))
        names = self.classes or tuple(map(str, range(self.num_classes)))
        counts = np.bincount(self.y, minlength=self.num_classes)
        labels = ", ".join(f"{count} of {name!r}" for name, count in zip(names[:_SHOWN], counts[:_SHOWN], strict=True))
        more = ", ..." if self.num_classes > _SHOWN else ""
        return f"{len(self.y)} rows; columns: {' and '.join(columns)}; {self.num_classes} classes: {labels}{more}"


class TableEncoding(NamedTuple):
    """What `fit_encoding` learned from the shadow rows."""

    numeric: tuple[int, ...]  # kept columns of `Table.numeric`
    categorical: tuple[int, ...]  # kept columns of `Table.categorical`
    grids: tuple[np.ndarray, ...]  # per kept numeric column: sorted values whose codes are evenly spaced from 0 to 1
    codes: tuple[np.ndarray, ...]  # per kept categorical column: known codes in one-hot order, empty if hashed
    buckets: int
    columns: tuple[np.ndarray, ...]  # per kept feature, numeric first: its columns in the encoded array


def load_table(spec: str) -> Table:
    """Load all rows of a table without scaling them.

    | spec | columns |
    |---|---|
    | `adult`, `avazu`, `credit_default`, `criteo`, `sensorless`, `npz:FILE` | members `x` (N, F), whose columns \
marked by `is_categorical` (F,) are codes, or `x_num` (N, F1) with NaN for missing values and `x_cat` (N, F2); and `y` |
    | `csv:FILE?label=COLUMN` | numbers, with NaN for missing ones; columns of texts, and those that \
`&categorical=A,B` names, are codes; `&drop=C` leaves columns out |
    | any other spec of `load` | its features, all numeric; images (colours averaged) have one feature per pixel |

    Files are read without unpickling; the names are files of the folder that JAXLEAK_DATA_DIR names.

    Raises:
        FileNotFoundError: if a file is missing, or JAXLEAK_DATA_DIR is not set where it is needed.
        ValueError: if a member is missing, has the wrong form, or labels are not exactly 0 ... C-1.
    """
    if spec.startswith("npz:") or spec in TABLES:
        return _npz_table(spec)
    if spec.startswith("csv:"):
        found = read_columns(spec)
        table = _table(found.numeric, found.categorical, found.y, spec)
        return table._replace(classes=found.classes, names=found.names)
    dataset = load(spec)
    x = dataset.x.mean(axis=-1) if dataset.x.ndim == 4 else dataset.x
    numeric = x.reshape(len(x), -1).astype(np.float64)
    return _table(numeric, np.zeros((len(x), 0), np.int64), dataset.y, spec)


def fit_encoding(
    table: Table,
    rows: np.ndarray,
    *,
    scaling: Scaling = "minmax",
    categories: Categories = "hashed",
    buckets: int = 100,
    max_categories: int = 20,
) -> TableEncoding:
    """Learn an encoding to [0, 1] from the rows of the attacker's shadow part.

    Numeric columns are scaled so that the fitted rows fill [0, 1]. Values outside are clipped, and missing values
    become 0. A hashed categorical column becomes one feature (code mod `buckets`, divided by `buckets - 1`), which
    keeps the feature counts that the papers print. A one-hot column becomes one feature for each of the most frequent
    codes; any other code is all zeros. Columns that are constant over the fitted rows are dropped, because they would
    only make a mean squared error look small.

    Args:
        table: table from `load_table`.
        rows: (n,) positions of the rows to fit on, not empty.
        scaling: "minmax" keeps distances; "quantile" maps a value to its rank among the fitted rows, so that long
            tails (Criteo) do not squeeze everything to 0.
        categories: "hashed" or "one_hot".
        buckets: number of buckets of a hashed column, >= 2.
        max_categories: largest number of codes of a one-hot column with a feature of their own, >= 1.

    Raises:
        ValueError: if options are out of range, if there are no rows, or if every column is constant.
    """
    _validate.one_of(("minmax", "quantile"), scaling=scaling)
    _validate.one_of(("hashed", "one_hot"), categories=categories)
    _validate.count(max_categories=max_categories)
    _validate.in_range(2, 2**30, buckets=buckets)
    if len(rows) == 0:
        raise ValueError("rows must not be empty")
    numeric, grids = [], []
    for column in range(table.numeric.shape[1]):
        values = table.numeric[rows, column]
        values = np.sort(values[~np.isnan(values)])
        if len(values) and values[0] < values[-1]:
            numeric.append(column)
            grids.append(values[[0, -1]] if scaling == "minmax" else values)
    categorical, codes = [], []
    for column in range(table.categorical.shape[1]):
        of_rows = table.categorical[rows, column]
        found, counts = np.unique(of_rows % buckets if categories == "hashed" else of_rows, return_counts=True)
        if len(found) > 1:
            categorical.append(column)
            codes.append(np.empty(0, np.int64) if categories == "hashed" else found[np.argsort(-counts, kind="stable")])
    if not numeric and not categorical:
        raise ValueError(f"{table.name}: every column is constant over the fitted rows")
    codes = [known[:max_categories] for known in codes]
    sizes = [1] * len(numeric) + [max(len(known), 1) for known in codes]
    columns = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return TableEncoding(tuple(numeric), tuple(categorical), tuple(grids), tuple(codes), buckets, tuple(columns))


def encode(encoding: TableEncoding, table: Table) -> np.ndarray:
    """Encode every row: (N, width) float32 in [0, 1]."""
    blocks = [_scaled(table.numeric[:, c], grid) for c, grid in zip(encoding.numeric, encoding.grids, strict=True)]
    for column, known in zip(encoding.categorical, encoding.codes, strict=True):
        codes = table.categorical[:, column]
        if len(known) == 0:
            blocks.append((codes % encoding.buckets)[:, None] / (encoding.buckets - 1))
        else:
            blocks.append(codes[:, None] == known)
    return np.concatenate(blocks, axis=1).astype(np.float32)


def missing_entries(encoding: TableEncoding, table: Table) -> np.ndarray:
    """Mark the entries of `encode` that stand for a missing value: (N, width) bool.

    Only numeric columns have such entries, since a missing category counts as a category of its own.
    """
    absent = np.zeros((len(table.y), sum(map(len, encoding.columns))), bool)
    absent[:, : len(encoding.numeric)] = np.isnan(table.numeric[:, list(encoding.numeric)])
    return absent


def _scaled(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    if len(grid) == 2:
        unit = np.clip((values - grid[0]) / (grid[1] - grid[0]), 0, 1)
    else:
        # Ties share the middle of their ranks, so that a value's code does not depend on the order of equal rows.
        ranks = np.searchsorted(grid, values, "left") + np.searchsorted(grid, values, "right")
        unit = np.clip(ranks / (2 * len(grid)), 0, 1)
    return np.where(np.isnan(values), 0.0, unit)[:, None]


def _npz_table(spec: str) -> Table:
    if spec.startswith("npz:"):
        path = existing_file(spec.removeprefix("npz:"))
    else:
        folder = os.environ.get("JAXLEAK_DATA_DIR")
        if not folder:
            raise FileNotFoundError(
                f"{spec} needs the environment variable JAXLEAK_DATA_DIR, the folder with {spec}.npz; it is not set "
                f"({HOW_TO_MAKE})"
            )
        path = Path(folder).expanduser() / f"{spec}.npz"
        if not path.is_file():
            raise FileNotFoundError(f"{spec} needs {path}, which does not exist; {HOW_TO_MAKE}")
    members = read_npz(path, _MEMBERS)
    if "y" not in members or not ({"x", "x_cat", "x_num"} & members.keys()):
        raise ValueError(f"{path} must have an array y, and x or x_num and x_cat; it has {array_names(path)}")
    for name in ("x", "x_num", "x_cat"):
        if name in members and members[name].dtype.kind not in "biuf":
            raise ValueError(
                f"{path}: {name} must hold numbers, got dtype {members[name].dtype}: encode text columns as codes first"
            )
    samples = len(members["y"])
    numeric = members.get("x_num", np.zeros((samples, 0)))
    categorical = members.get("x_cat", np.zeros((samples, 0), np.int64))
    if "x" in members:
        x = members["x"].reshape(len(members["x"]), -1)
        marked = members.get("is_categorical", np.zeros(x.shape[1], bool))
        if marked.shape != x.shape[1:] or marked.dtype != bool:
            raise ValueError(f"{path}: is_categorical must be bool of shape {x.shape[1:]}, got {marked.shape}")
        numeric, categorical = x[:, ~marked], x[:, marked]
    for name, part in (("numeric columns", numeric), ("categorical columns", categorical)):
        if part.ndim != 2 or len(part) != samples:
            raise ValueError(f"{path}: {name} must have shape ({samples}, F), got {part.shape}")
    if np.isinf(numeric).any() or not np.isfinite(categorical).all():
        raise ValueError(
            f"{path}: only numeric columns may hold missing values (NaN), and none may be infinite: give the missing "
            "values of a categorical column a code of their own"
        )
    if (broken := categorical[categorical % 1 != 0]).size:
        raise ValueError(f"{path}: categorical columns must hold whole numbers as codes, got {broken[0]}")
    labels = checked_labels(members["y"], samples, str(path))
    if spec.startswith("npz:"):
        for kind, part in (("numeric", numeric), ("categorical", categorical)):
            named = {f"{kind} {number}": column for number, column in enumerate(part.T)}
            warn_of_ids(named, str(path), "leave it out of the file's array, such as by numpy.delete")
    return _table(numeric.astype(np.float64), categorical.astype(np.int64), labels, spec)


def _table(numeric: np.ndarray, categorical: np.ndarray, y: np.ndarray, name: str) -> Table:
    check_classes(y, name)
    return Table(numeric, categorical, np.asarray(y, np.int32), int(y.max()) + 1, name)


def check_classes(y: np.ndarray, where: str) -> None:
    """Raise `ValueError` unless the labels (N,) are exactly 0 ... C-1 with C >= 2, each of them present."""
    present = np.unique(y)
    if len(present) < 2 or not np.array_equal(present, np.arange(len(present))):
        raise ValueError(f"{where}: labels must be 0 ... C-1 with every class present and C >= 2, got {present[:20]}")
