"""Any number of steps in chunks, with checkpoints and callbacks between them."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from jaxleak.checkpoint import Checkpoints

Executor = Literal["scan", "step", "eager"]
EXECUTORS: tuple[Executor, ...] = ("scan", "step", "eager")
State = TypeVar("State")


def in_chunks(
    run_chunk: Callable[[State, int], tuple[State, dict[str, Any]]],
    state: State,
    done: int,
    total: int,
    chunk: int,
    callbacks: Iterable[Callable[[int, State, dict[str, np.ndarray]], None]],
    checkpoints: Checkpoints | None,
    history: dict[str, np.ndarray] | None = None,
) -> tuple[State, dict[str, np.ndarray]]:
    """Run `run_chunk(state, length)` from step `done` to `total`; a chunk's length may not change any result.

    Callbacks come before the checkpoint. If a checkpoint is never finished, what callbacks logged of its chunk can be
    dropped when the run resumes; after the checkpoint, a lost line would be lost for good. A callback may stop the run
    by raising; the chunk's checkpoint is then still written.

    The `history` holds the stacked infos of the steps before `done`, as far as they are known. With one, every
    checkpoint carries the infos of all steps until then. Without one, checkpoints carry no infos, which suits long runs
    of small steps.

    Returns:
        The final state, and the stacked infos: those of the history, followed by those of the steps that this call ran
        (empty if there are none).
    """
    known = history or {}
    while done < total:
        length = min(chunk, total - done)
        state, infos = run_chunk(state, length)
        infos = jax.tree.map(np.asarray, infos)
        done += length
        known = jax.tree.map(lambda *leaves: np.concatenate(leaves), known, infos) if known else infos
        try:
            for callback in callbacks:
                callback(done, state, infos)
        finally:
            if checkpoints is not None:
                checkpoints.save(done, state, None if history is None else known)
    return state, known


def one_by_one(
    step: Callable[[State], tuple[State, dict[str, Any]]], state: State, length: int
) -> tuple[State, dict[str, np.ndarray]]:
    """Call `length` steps from Python, and stack their infos as a scan would."""
    infos = []
    for _ in range(length):
        state, info = step(state)
        infos.append(info)
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *infos)
