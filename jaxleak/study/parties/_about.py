"""Sentences for a report that describe a case of vertical training."""

import numpy as np

from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import about_records, split_problem, whole_table
from jaxleak.study.parties._split_defense import kind_of_split_defense

#: A hashed column with fewer categories than this spreads them over less than a fifth of the hash's range.
_FEW = 20
#: Largest number of left-out columns that are listed by name.
_NAMED = 8


def about_run(case: SplitCase, seed: int) -> str:
    """Describe a case: the numbers of records, how the table was read, how long the runs are, and the defense.

    Args:
        case: case of the run.
        seed: random seed of the drawn records; a column that is constant in the shadow records is left out.

    Raises:
        FileNotFoundError, ValueError: as in `split_problem`.
    """
    problem, table = split_problem(case, seed), whole_table(case.data)
    said = [about_records(case)]
    if constant := sorted({*range(table.num_features)} - {int(column) for own in problem.columns for column in own}):
        named = [table.names[column] for column in constant[:_NAMED]] if table.names else []
        which = f" ({', '.join(named)}{', ...' if len(constant) > _NAMED else ''})" if named else ""
        said.append(
            f"{len(constant)} of its columns {'is' if len(constant) == 1 else 'are'} constant or empty in the shadow "
            f"records and left out{which}."
        )
    few = sum(len(np.unique(column)) < _FEW for column in table.categorical.T) if case.categories == "hashed" else 0
    if few:
        said.append(
            f"Of its categorical columns {few} {'has' if few == 1 else 'have'} fewer than {_FEW} categories, which are "
            "hardly apart where each is hashed into one number, so that they count little in errors of features; "
            "--categories one_hot gives each frequent category a column."
        )
    said.append(f"The attackers see {_epochs(case.victim_epochs)} of the real run.")
    if case.defense != "none":
        defense = kind_of_split_defense(case.defense)
        said.append(
            f"Its defense is {case.defense} of strength {case.strength or defense.default:g} ({defense.unit}). The "
            f"task's accuracies are those after {_epochs(case.task_epochs)}"
            + (
                ", in which more leaks than the attackers see here; --victim-epochs shows them more."
                if case.task_epochs > case.victim_epochs
                else "."
            )
        )
    return " ".join(said)


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' if count > 1 else ''}"
