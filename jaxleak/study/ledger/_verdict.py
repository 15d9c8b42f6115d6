"""The rule by which a measurement is said to meet the printed number or to miss it."""

import math
from typing import Any, Literal

import numpy as np

from experiments._ledger.entry import Status
from jaxleak import _validate

Better = Literal["higher", "lower", "equal"]

#: How far a number may be from one that is neither better when higher nor when lower, as a share of the printed one.
TOLERANCE = 0.05

RULE = (
    "A cell of an attack is met if the mean over the seeds and their standard deviation together reach the printed "
    "number: the mean plus the deviation where more is better for the attacker (PSNR, accuracy of labels), the mean "
    "minus the deviation where less is (errors, distances, iterations). Any other number (training losses, the "
    "accuracy of the task, correlations, and what leaks through a defense) is met if it differs from the printed one "
    f"by at most one deviation or {TOLERANCE:.0%} of the printed number, whichever is more. One seed has no deviation. "
    "A run without a number, because it diverged or never reached a threshold, misses."
)

#: Units of numbers that are better for the attacker when they are lower.
_COUNTS = ("iterations", "iterations/image", "epoch")
#: Tables and cells of which the same holds, or whose numbers are claimed to be low.
_LOWER = (
    "text-claims/others-below", "table10-lpips", "table11-gd", "text-fig1-distance", "text-fig1-element",
    "table4-participants-feature", "table4-partition-feature", "table4-optimizer-feature", "text-abstract-feature",
    "text-fig5", "text-fig7-feature", "text-fig8", "table5-feature", "table6-feature", "text-defender-intro-feature",
)  # fmt: skip
#: Tables that neither rule fits: nobody gains by a number that differs from the printed one.
_EQUAL = (
    "table8-loss", "table8-accuracy", "table11", "text-pearson", "text-overdetermination", "text-fig4-accuracy",
    "text-combined-defence", "text-fig6", "text-fig7-drop", "table5-utility", "table6-utility", "text-defender-gain",
    "text-defence-utility", "text-shadow-share", "text-capacity-gain", "text-fig1-psnr",
)  # fmt: skip
#: Parts of a cell's name that say that a defense is on.
_DEFENDED = ("/fake/", "/noise0.", "/dp-", "/marvell", "/vfldefender", "/quantization", "/full-privacy", "/after")


def better(cell: str, unit: str) -> Better:
    """Whether a number of a cell is better for the attacker when it is higher, when it is lower, or neither."""
    table = cell.partition("/")[0]
    if table in _EQUAL or any(part in cell for part in _DEFENDED):
        return "equal"
    return "lower" if unit in _COUNTS or table in _LOWER or cell in _LOWER else "higher"


def verdict(paper: float, values: list[float], how: Better) -> tuple[Status, str]:
    """The status of a measurement, and a sentence that says how it came about.

    Args:
        paper: the printed number.
        values: ours, one per seed.
        how: see `better`.

    Raises:
        ValueError: without values, or on an unknown `how`.
    """
    _validate.positive(values=len(values))
    _validate.one_of(("higher", "lower", "equal"), how=how)
    mean, spread = statistics(values)
    if not math.isfinite(mean):
        return "missed", "there is no number: the run diverged or never reached the threshold"
    if how == "higher":
        met, text = mean + spread >= paper, f"{mean:.4g} + {spread:.2g} against at least {paper:g}"
    elif how == "lower":
        met, text = mean - spread <= paper, f"{mean:.4g} - {spread:.2g} against at most {paper:g}"
    else:
        allowed = max(spread, TOLERANCE * abs(paper))
        met, text = abs(mean - paper) <= allowed, f"{mean:.4g} against {paper:g} within {allowed:.2g}"
    return ("met" if met else "missed"), text


def statistics(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation (of the values themselves, not of their mean)."""
    numbers = np.asarray(values, float)
    return float(numbers.mean()), float(numbers.std()) if np.isfinite(numbers).all() else math.nan


def agrees(stored: float, again: float, spread: float) -> bool:
    """Whether a run made again agrees with the stored number of its seed.

    Numbers of one seed may differ by rounding that an attack amplifies, hence by the spread over the seeds or by
    `TOLERANCE` of the stored number, whichever is more; two runs without a number agree.
    """
    if math.isnan(stored) or math.isnan(again):
        return math.isnan(stored) and math.isnan(again)
    return abs(stored - again) <= max(spread, TOLERANCE * abs(stored))


def printed_cells(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The printed cells of a paper by their id, in print order."""
    return {cell["id"]: cell for table in tables.values() for cell in table["cell"]}
