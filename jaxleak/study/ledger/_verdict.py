"""The rule by which a measurement is said to meet the printed number or to miss it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxleak import _validate
from jaxleak.study.ledger._entry import Status

Better = Literal["higher", "lower", "equal"]

#: How far a number may be from one that is neither better when higher nor when lower, as a share of the printed one.
TOLERANCE = 0.05

#: The largest spread over the seeds, as a share of the printed number, that leaves a number one that can be repeated.
STEADY = 0.25

#: The factor by which a number of the same order of magnitude may be larger or smaller.
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
    """Which way the printed numbers of a paper are better for the attacker; higher, where nothing here says otherwise.

    A table or a cell that is named here is named as a whole, and a part is looked for within the id of a cell.
    """

    lower: tuple[str, ...] = ()  # tables and cells whose numbers are errors, distances, or claimed to be low
    lower_units: tuple[str, ...] = ()  # units of such numbers
    equal: tuple[str, ...] = ()  # tables of numbers that differ to nobody's gain
    equal_parts: tuple[str, ...] = ()  # parts of a cell's id, with a "/" at its end, that say the same: "/baseline/"

    def of(self, cell: str, unit: str) -> Better:
        """Whether a number of a cell is better for the attacker when it is higher, when it is lower, or neither.

        Args:
            cell: id of the cell, TABLE/REST.
            unit: the unit of its number.
        """
        table = cell.partition("/")[0]
        if table in self.equal or any(part in f"{cell}/" for part in self.equal_parts):
            return "equal"
        return "lower" if unit in self.lower_units or table in self.lower or cell in self.lower else "higher"


def judge(paper: float, values: list[float], how: Better, relation: str = "") -> tuple[Status, str]:
    """The status of a measurement, and a sentence that says how it came about.

    Args:
        paper: the printed number, in the unit of the cell.
        values: ours in the same unit, one per seed.
        how: see `Directions`.
        relation: how the paper puts a number that is "equal": "below", "at most", "above" and "at least" are bounds, an
            "order of magnitude" has a factor of the root of ten, and any other is the number itself.

    Raises:
        ValueError: without values, or on an unknown `how`.
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
        value: the mean over the seeds, in the same unit.
        spread: their standard deviation.
        how: see `Directions`; no number lies beyond one that is neither better when higher nor when lower.
    """
    gain = {"higher": value - paper, "lower": paper - value, "equal": 0.0}[how]
    return gain > max(spread, TOLERANCE * abs(paper))


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation of the values themselves, not of their mean; NaN where a value is not finite."""
    numbers = np.asarray(values, float)
    return float(numbers.mean()), float(numbers.std()) if np.isfinite(numbers).all() else math.nan


def agrees(stored: float, again: float, spread: float) -> bool:
    """Whether a run made again agrees with the stored number of its seed.

    Numbers of one seed may differ by rounding that an attack amplifies, hence by the spread over the seeds or by
    `TOLERANCE` of the stored number, whichever is more; two runs without a number agree.

    Args:
        stored: the number of a seed in the ledger, in the unit of its cell.
        again: what the same seed gives now, in the same unit.
        spread: standard deviation over the stored seeds.
    """
    if math.isnan(stored) or math.isnan(again):
        return math.isnan(stored) and math.isnan(again)
    return abs(stored - again) <= max(spread, TOLERANCE * abs(stored))


def printed_cells(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The printed cells of a paper by their id, in print order.

    Args:
        tables: by id, each with its cells in the list `cell`; a cell has its own `id`, its `value` and its `unit`.
    """
    return {cell["id"]: cell for table in tables.values() for cell in table["cell"]}
