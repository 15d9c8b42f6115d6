"""Columns that name the rows of a table, such as customer numbers: as features they describe nothing."""

import warnings
from collections.abc import Mapping

import numpy as np

#: In a table with fewer rows, all values of an ordinary column may differ by chance.
_LEAST_ROWS = 20


def warn_of_ids(columns: Mapping[str, np.ndarray], where: str, remedy: str) -> None:
    """Warn of every column whose values look like ids of the rows: whole numbers or codes, all of them different.

    Args:
        columns: maps a column's name to its values (N,), numbers or the codes of texts; NaN is a missing number.
        where: the file, for the message.
        remedy: how a user leaves a column out; `{name}` in it stands for the column.
    """
    for name, values in columns.items():
        if len(values) >= _LEAST_ROWS and (values % 1 == 0).all() and len(np.unique(values)) == len(values):
            warnings.warn(
                f"{where}: column {name!r} looks like an id, since its {len(values)} values all differ. It is used as "
                f"a feature; {remedy.format(name=name)}",
                stacklevel=2,
            )
