"""A second shadow run of the same records in another order, by which a regression on the first one is judged."""

import numpy as np

from jaxleak._base import Observation


def check_order(shadow: Observation, again: Observation) -> None:
    """Raise `ValueError` if two shadow runs, (T, B, ...) and (T', B', ...), visit the same samples in every step."""
    first, second = np.asarray(shadow.index), np.asarray(again.index)
    steps = min(len(first), len(second))
    # The second run's gradients would be those that were learned, and learning by heart would look like a gain.
    if np.array_equal(first[:steps], second[:steps]):
        raise ValueError(
            "again must be a shadow run in another order than shadow, and has the same samples in each step"
        )


def records_of_both(
    index: np.ndarray, known: np.ndarray, index_again: np.ndarray, known_again: np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the records that two shadow runs visit, in the order of the records' numbers.

    Args:
        index: (n,) numbers of the records of the first run, each once.
        known: (n, d) what the attacker knows of these records without a run.
        index_again: (m,) numbers of the records of the second run.
        known_again: (m, d) what the attacker knows of the records of the second run.
        what: what `known` is, for the message.

    Returns:
        Rows of the first run, and of the second one, (r,) each; r = 0 if the runs have no record in common.

    Raises:
        ValueError: if a number stands for different records in the two runs.
    """
    _, here, there = np.intersect1d(index, index_again, return_indices=True)
    if known.shape[1:] != known_again.shape[1:] or not np.allclose(known[here], known_again[there], atol=1e-4):
        raise ValueError(f"again must be a run of the records of shadow: {what} of a sample differ")
    return here, there
