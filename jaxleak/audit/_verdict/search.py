"""Attacks that search, within a budget: independent starts of one inversion, their answer and how far they agree."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Attack, Observation
from jaxleak.audit._agreement import agreement
from jaxleak.audit._invert import InversionRun, all_starts, invert
from jaxleak.audit._restarts import best_restart
from jaxleak.audit._verdict.case import Case, graded, misfits
from jaxleak.audit._verdict.copies import toned_images, turned_images
from jaxleak.audit._verdict.open_part import of_open_part
from jaxleak.audit._verdict.questions import (
    drawn_out,
    indistinct_of,
    left_below_head,
    left_by_noise,
    of_blends,
    of_open_pixels,
    rival_of,
    without_weight,
)
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.store import SpentError
from jaxleak.audit._verdict.verdict import Answer, called

STARTS = 2
#: Iterations between two looks at the clock: the largest number that takes less than this share of what the budget has
#: left.
_CHUNKS, _SHARE_OF_LEFT = (50, 10, 2), 0.25
#: The most that one iteration of one start costs, in gradients of the client: the attack differentiates these again.
_GRADIENTS_PER_ITERATION = 4


def _chunk(case: Case) -> int:
    """How many iterations a search may do before it looks at the clock; no result depends on it."""
    empty = jnp.zeros((case.samples, *case.share.model.image_shape)), jnp.zeros(case.samples, jnp.int32)
    once = functools.partial(misfits, case.received, case.observation, *empty)
    jax.block_until_ready(once())  # compiles
    begin = time.monotonic()
    jax.block_until_ready(once())
    iteration = STARTS * _GRADIENTS_PER_ITERATION * (time.monotonic() - begin)
    return next((n for n in _CHUNKS if n * iteration < _SHARE_OF_LEFT * case.store.left), _CHUNKS[-1])


def search(
    case: Case, name: str, attack: Attack, observation: Observation, *, y: np.ndarray | None = None
) -> tuple[Answer | None, float]:
    """Run independent starts of an attack until they are done or the budget is spent.

    Args:
        case: the audited update.
        name: what checkpoints and progress call the attack.
        attack: the attack, which has a schedule.
        observation: what the attack sees.
        y: labels (B,) of the answer where the attack infers none.

    Returns:
        The answer of the start that is best by the attack's own score, or None if the budget was spent before the
        search had begun; and how many seconds one iteration of all starts takes.
    """
    total = attack.iterations
    assert total is not None
    chunk = _chunk(case)
    if case.store.left <= 0:
        return None, 0.0
    case.show(f"compiling {called(name)}", 0, 1, "")
    watch = Stopwatch()
    last: list[tuple[int, InversionRun]] = []
    pace: list[float] = []
    marks = [time.monotonic()]

    def callback(done: int, run: InversionRun, infos: dict[str, np.ndarray]) -> None:
        last[:] = [(done, run)]
        pace.append((time.monotonic() - marks[-1]) / len(infos["distance"]))
        marks.append(time.monotonic())
        case.store.note()
        case.show(called(name), done, total, f"distance {float(np.min(infos['distance'][-1])):.3g}")
        if case.store.left <= 0 and done < total:
            raise SpentError

    finished = True
    try:
        _, run, _ = invert(
            attack, observation, case.template, key=case.key, iterations=total, chunk=min(chunk, total),
            restarts=STARTS, callbacks=(callback,), checkpoints=case.store.checkpoints(name),
        )  # fmt: skip
        last[:] = [(total, run)]
    except SpentError:
        finished = False
    if not last:
        return None, 0.0
    done, run = last[0]
    starts = all_starts(attack, run, observation, restarts=STARTS)
    best = best_restart(starts)
    answer = graded(
        case, name, np.asarray(best.x[:, 0]), np.asarray(best.y) if y is None else y,
        agreement=agreement(starts).value, iterations=done, finished=finished,
    )  # fmt: skip
    if answer.shown.any():
        case.show(f"other images with the same update as {called(name)}", 0, 1, "")
        other = rival_of(case, answer)
        undetermined = other.undetermined
        undetermined = undetermined | drawn_out(case, answer, other, answer.shown & ~undetermined)
        if case.unknowns and len(answer.x) > 1:
            undetermined = undetermined | of_blends(case, answer, other)
        undetermined = undetermined | indistinct_of(case, answer, other.answer_misfit, answer.shown & ~undetermined)
        undetermined = undetermined | without_weight(case, answer)
        undetermined = undetermined | of_open_part(case, answer, answer.shown & ~undetermined)
        undetermined = undetermined | of_open_pixels(case, answer, answer.shown & ~undetermined)
        undetermined = undetermined | turned_images(case, answer, answer.shown & ~undetermined)
        toned = toned_images(case, answer, answer.shown & ~undetermined)
        noise = left_by_noise(case, answer)
        answer = answer._replace(
            undetermined=undetermined, remainder=other.answer_misfit, toned=toned,
            noise=0.0 if noise is None else noise.of(noise.off),
        )  # fmt: skip
        answer = answer._replace(below_head=left_below_head(case, other, None if answer.lacks_noise else noise))
    spent: dict[str, Any] = watch.spent
    return answer._replace(**spent), float(np.median(pace[1:] or pace)) if pace else 0.0
