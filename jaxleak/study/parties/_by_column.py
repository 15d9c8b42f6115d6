"""How much of every single column an attacker reads: a mean over all columns hides that one of them is open."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import ADVERSARY, split_problem, whole_table
from jaxleak.study.reports import Section

#: The attacks of a party and of the label holder, by the names of their arrays; the last one has no gradients.
_OF_PARTY = ("shared", "own_bottom", "independent", "regression", "baseline")
_OF_LABEL_HOLDER = ("label_holder", "label_holder_alone")
#: What a table calls them.
_HEADER = {
    "shared": "VFLRecon, shared start",
    "own_bottom": "VFLRecon, own bottom model shared",
    "independent": "VFLRecon, independent start",
    "regression": "regression on cut gradients",
    "baseline": "own features alone",
    "label_holder": "label holder",
    "label_holder_alone": "label holder, own features alone",
}
_READING = (
    "The share of a column's variance that an attack explains: 1 if every value is right. 'none' stands for 0 and for "
    "every number below it, where the answer is no better than the column's mean. Values are from the first seed. "
    "Behind a defense it is the larger one of the attack that knows the defense and the one that does not. All "
    "features of a column of categories count together. 'own' marks a column that the attacker itself holds, and '-' "
    "one without variance."
)
_HASHED = (
    " '(hashed)' marks a column of categories that is hashed into one number: the share is of that number, and a near "
    "number may be a category of another meaning."
)


def column_section(name: str, case: SplitCase, arrays: Mapping[str, np.ndarray], *, seed: int) -> tuple[Section, ...]:
    """A table with a row for each column; none where columns have no names, or no features were reconstructed.

    Args:
        name: what the report calls the data.
        case: the case that was run.
        arrays: arrays of one seed, from `run_case`.
        seed: the seed of the arrays.
    """
    names = whole_table(case.data).names
    attacks = [attack for attack in (*_OF_PARTY, *_OF_LABEL_HOLDER) if f"columns_{attack}" in arrays]
    if not names or not attacks:
        return ()
    columns = split_problem(case, seed).columns
    hashed = names[whole_table(case.data).numeric.shape[1] :] if case.categories == "hashed" else ()
    found: dict[str, list[str]] = {names[column]: [] for own in columns for column in own}
    for attack in attacks:
        attacker = ADVERSARY if attack in _OF_PARTY else len(columns) - 1
        theirs = [names[column] for party, own in enumerate(columns) if party != attacker for column in own]
        plain = arrays[f"columns_{attack}"]
        shares = np.fmax(plain, arrays.get(f"columns_{attack}_adaptive", plain))
        said = dict(zip(theirs, map(_share, shares), strict=True))
        for column, row in found.items():
            row.append(said.get(column, "own"))
    rows: list[Sequence[str]] = [
        [f"{column} (hashed)" if column in hashed else column, *row] for column, row in found.items()
    ]
    header = ("column", *(_HEADER[attack] for attack in attacks))
    reading = _READING + (_HASHED if any(column in hashed for column in found) else "")
    return (Section(f"Every column of {name}", (reading,), header, rows),)


def _share(share: float) -> str:
    """Write a share; how far an answer is below a column's mean says nothing, and may be a number in the hundreds."""
    if np.isnan(share):
        return "-"
    return f"{share:.3f}" if share > 0 else "none"
