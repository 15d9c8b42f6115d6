"""Measurements of statements about several cells, such as their smallest number, made from those of the cells."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxleak.study.cells import Results, joined
from jaxleak.study.ledger._entry import Variant
from jaxleak.study.ledger._measurement import Measurement

Combine = Callable[[Sequence[float]], float]

#: Variants and names of the measurements that test a statement about several cells by the number of one of them.
_ALONE = (("printed", ""), ("stand-in", ""), ("stand-in", "reduced"))


def claims(tables: Sequence[Measurement], cell: str, about: Sequence[str], combine: Combine) -> list[Measurement]:
    """Make the measurements of a statement about other cells, in every variant that all of those cells have.

    In addition, each of those cells as printed gives a reduced measurement, and each one on other data a measurement on
    other data. They can refute the statement and cannot meet it. If one number refutes the statement, it is missed
    before the costly cells have run.

    Args:
        tables: measurements, among them those of the cells that the statement is about.
        cell: the statement, a printed cell with a bound.
        about: the cells that the statement is about.
        combine: `min` or `max`, whichever of the cells' numbers the bound applies to.
    """
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in tables:
        if measurement.cell in about:
            groups.setdefault((measurement.variant, measurement.name), []).append(measurement)
    made = []
    for (variant, name), members in groups.items():
        if {m.cell for m in members} == set(about):
            jobs = tuple(job for m in members for job in m.jobs)
            notes = "; ".join(dict.fromkeys(m.differs for m in members if m.differs))
            specs = tuple(dict.fromkeys(spec for m in members for spec in m.data))
            read = _combined(members, combine)
            made.append(replace(members[0], cell=cell, differs=notes, jobs=jobs, read=read, data=specs))
        if len(about) > 1 and (variant, name) in _ALONE:
            made += [_alone(m, cell) for m in members]
    return made


def _alone(member: Measurement, cell: str) -> Measurement:
    """Make the measurement that tests a statement about several cells by the number of one of them."""
    notes = joined(f"of {member.cell} alone, which can refute the statement", member.differs)
    name = "-".join(("alone", *member.cell.split("/")[1:], *filter(None, [member.name])))
    variant: Variant = "reduced" if member.variant == "printed" else member.variant
    return replace(member, cell=cell, variant=variant, name=name, differs=notes, partial=True)


def _combined(members: Sequence[Measurement], combine: Combine) -> Callable[[Results], float]:
    def read(results: Results) -> float:
        left, values = list(results), []
        for member in members:
            own, left = left[: len(member.jobs)], left[len(member.jobs) :]
            values.append(member.read(own))
        # If one run has no number (NaN), the statement has none either; `min` and `max` could ignore the NaN.
        return math.nan if any(map(math.isnan, values)) else combine(values)

    return read
