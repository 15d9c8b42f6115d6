"""Dealing the columns of a table to the parties by name."""

import numpy as np

from jaxleak import data
from jaxleak.study.parties._case import SplitCase


def named_parts(case: SplitCase, table: data.Table, kept: np.ndarray) -> tuple[np.ndarray, ...]:
    """Find the features that every party holds by `case.columns`; the last party gets the columns that no list names.

    Args:
        case: case that names the columns of all parties, or of all but the last.
        table: table with the names of the columns; without names, columns are named by number, numeric ones first.
        kept: (F,) numbers in the table of the features that are not constant.

    Returns:
        For each party the positions of its features in `kept`, in ascending order.

    Raises:
        ValueError: if the lists do not fit the parties, if a column is unknown or given twice, if nobody holds a
            column, or if all columns of a party are constant. Also if a share or a kind of partition is given, since it
            would have no effect.
    """
    names = table.names or tuple(map(str, range(table.num_features)))
    if case.partition != "auto" or case.share != SplitCase.share:
        raise ValueError("columns say who holds what, so that share and partition must not be given beside them")
    if case.parties < 2:
        raise ValueError(f"parties must be at least 2, got {case.parties}")
    if len(case.columns) not in (case.parties - 1, case.parties):
        raise ValueError(
            f"columns must be lists of {case.parties - 1} or {case.parties} parties, as parties is {case.parties}, got "
            f"{len(case.columns)}: the first is the attacker's, and the last party has the labels"
        )
    lists = [[name.strip() for name in text.split(",")] for text in case.columns]
    given = [name for own in lists for name in own]
    for name in given:
        if name not in names:
            raise ValueError(f"columns: {case.data} has no column {name!r}; it has {', '.join(names)}")
        if given.count(name) > 1:
            raise ValueError(f"columns: {name!r} must be given once, got it {given.count(name)} times")
    left = [name for name in names if name not in given]
    if len(lists) < case.parties:
        lists.append(left)
    elif left:
        raise ValueError(
            f"columns: nobody holds {', '.join(left)}: give them to a party, leave them out of the data, or leave out "
            "the last party's list, which then has them"
        )
    number = {name: position for position, name in enumerate(names)}
    parts = [np.flatnonzero(np.isin(kept, [number[name] for name in own])) for own in lists]
    for party, (own, part) in enumerate(zip(lists, parts, strict=True)):
        if not len(part):
            who = f"party {party}, the label holder," if party == case.parties - 1 else f"party {party}"
            why = f": {', '.join(own)} are constant in the shadow records" if own else ", since the others hold all"
            raise ValueError(f"columns: {who} would have no column that says anything{why}")
    return tuple(parts)
