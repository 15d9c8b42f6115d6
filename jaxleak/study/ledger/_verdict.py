"""The rule that decides whether a measurement meets the printed number or misses it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxleak import _validate
from jaxleak.study.ledger._entry import Status

Better = Literal["higher", "lower", "equal"]

#: Largest deviation from a printed number for which neither higher nor lower is better, as a share of that number.
TOLERANCE = 0.05

#: Largest spread over the seeds, as a share of the printed number, with which a number still counts as repeatable.
STEADY = 0.25

#: Largest factor between two numbers of the same order of magnitude.
ORDER = math.sqrt(10)

RULE = (
    "| the number is | it is met if |\n"
    "|---|---|\n"
    "| the score of an attack, where more is better (PSNR, labels) | the mean and the deviation together reach the "
    "printed number |\n"
    "| the error of an attack, where less is better (errors, distances, iterations) | the mean minus the deviation "
    "reaches the printed number |\n"
    "| any other one: losses, the accuracy of the task, correlations, what leaks through a defense, and attacks that a "
    f"paper compares its own with or shows to fail | the mean is within {TOLERANCE:.0%} of the printed number, and the "
    f"deviation is at most {STEADY:.0%} of it |\n"
    "| a bound | the bound is kept |\n"
    f"| an order of magnitude | the mean is within a factor of {ORDER:.1f} |\n"
    "\n"
    f"In the first two rows a deviation counts up to {TOLERANCE:.0%} of the printed number. One seed has no deviation. "
    "A run without a number, because it diverged or never reached a threshold, misses. A baseline of a paper that "
    "leaks more than printed is in the third row, and misses therefore.\n"
    "\n"
    "A number that is met lies *beyond* the printed one if it is better for the attacker by more than one deviation "
    f"and more than {TOLERANCE:.0%} of the printed number. Such an attack leaks more than the paper says, and does not "
    "repeat its number."
)


@dataclass(frozen=True)
class Directions:
    """Whether higher or lower printed numbers of a paper are better for the attacker; the default is higher.

    `lower` has full names of tables or ids of cells, `equal` full names of tables, and `equal_parts` parts of ids.
    """

    lower: tuple[str, ...] = ()  # tables and cells whose numbers are errors, distances, or claimed to be low
    lower_units: tuple[str, ...] = ()  # units in which lower numbers are better
    equal: tuple[str, ...] = ()  # tables of numbers for which neither higher nor lower is better
    equal_parts: tuple[str, ...] = ()  # the same for cells whose id, followed by "/", has such a part: "/baseline/"

    def of(self, cell: str, unit: str) -> Better:
        """Say whether a higher or a lower number of a cell is better for the attacker, or neither ("equal").

        Args:
            cell: id of the cell, TABLE/REST.
            unit: the unit of its number.
        """
        table = cell.partition("/")[0]
        if table in self.equal or any(part in f"{cell}/" for part in self.equal_parts):
            return "equal"
        return "lower" if unit in self.lower_units or table in self.lower or cell in self.lower else "higher"


def judge(paper: float, values: list[float], how: Better, relation: str = "") -> tuple[Status, str]:
    """Judge a measurement by the rule: return its status and a sentence with the reason.

    Args:
        paper: the printed number, in the unit of the cell.
        values: our numbers in the same unit, one per seed.
        how: which direction is better for the attacker, see `Directions`.
        relation: for "equal" numbers, how the paper states the number: "below", "at most", "above" and "at least" make
            it a bound, "order of magnitude" allows a factor of the root of ten, and any other text means the number
            itself.

    Raises:
        ValueError: if there are no values, or if `how` is unknown.
    """
    _validate.positive(values=len(values))
    _validate.one_of(("higher", "lower", "equal"), how=how)
    mean, spread = mean_and_spread(values)
    if not math.isfinite(mean):
        return "missed", "there is no number: the run diverged or never reached the threshold"
    ours = f"{mean:.4g}" if len(values) == 1 else f"{mean:.4g} with a spread of {spread:.2g}"
    excused = min(spread, TOLERANCE * abs(paper))
    if how == "higher":
        met, text = mean + excused >= paper, f"{ours} against at least {paper:g}"
    elif how == "lower":
        met, text = mean - excused <= paper, f"{ours} against at most {paper:g}"
    elif relation.startswith(("below", "at most")):
        met, text = mean <= paper, f"{ours} against {relation} {paper:g}"
    elif relation.startswith(("above", "at least")):
        met, text = mean >= paper, f"{ours} against {relation} {paper:g}"
    elif relation == "order of magnitude":
        met, text = paper / ORDER < mean < ORDER * paper, f"{ours} against the order of magnitude of {paper:g}"
    else:
        allowed = TOLERANCE * abs(paper)
        steady = spread <= STEADY * abs(paper)
        met, text = abs(mean - paper) <= allowed and steady, f"{ours} against {paper:g} within {allowed:.2g}"
        text += "" if steady else f"; the spread is more than {STEADY:.0%}"
    return ("met" if met else "missed"), text


def beyond(paper: float, value: float, spread: float, how: Better) -> bool:
    """Whether a number is better for the attacker than the printed one by more than its spread and `TOLERANCE`.

    Args:
        paper: the printed number, in the unit of the cell.
        value: mean over the seeds, in the same unit.
        spread: standard deviation over the seeds, in the same unit.
        how: which direction is better for the attacker, see `Directions`; with "equal" the answer is no.
    """
    gain = {"higher": value - paper, "lower": paper - value, "equal": 0.0}[how]
    return gain > max(spread, TOLERANCE * abs(paper))


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Compute the mean and the standard deviation of the values (not of their mean); NaN if a value is not finite."""
    numbers = np.asarray(values, float)
    return float(numbers.mean()), float(numbers.std()) if np.isfinite(numbers).all() else math.nan


def agrees(stored: float, again: float, spread: float) -> bool:
    """Whether the number of a repeated run agrees with the stored number of the same seed.

    Two numbers of one seed may differ, because an attack amplifies rounding. They agree if they differ by at most the
    spread over the seeds or `TOLERANCE` of the stored number, whichever is larger. Two runs without a number (NaN)
    agree.

    Args:
        stored: number of a seed in the ledger, in the unit of the cell.
        again: number that the same seed gives now, in the same unit.
        spread: standard deviation over the stored seeds.
    """
    if math.isnan(stored) or math.isnan(again):
        return math.isnan(stored) and math.isnan(again)
    return abs(stored - again) <= max(spread, TOLERANCE * abs(stored))


def printed_cells(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Collect the printed cells of a paper by their id, in print order.

    Args:
        tables: the paper's tables by id, each with a list `cell` of its cells; a cell has `id`, `value` and `unit`.
    """
    return {cell["id"]: cell for table in tables.values() for cell in table["cell"]}
