"""Answers from equations for the gradient of several samples."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxleak._base import Attack
from jaxleak._jitted import jitted_for_few
from jaxleak.attacks._inversion.spear import (
    MISFIT_BELOW,
    SOLVED_BELOW,
    SpearState,
    dense_layer_on_images,
    images_without_loss,
    spear,
)
from jaxleak.audit._invert import InversionRun, invert
from jaxleak.audit._verdict.case import Case, graded_inputs, rounding_of
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.verdict import OUTSIDE, SPEAR, SPEAR_ALONE, Answer, called

#: Relative misfit up to which a layer's gradient counts as having the form that the stated number of samples gives.
LAYER_MISFIT_BELOW = 1e-3
#: Share of the remaining time after which the equations are given up.
_SHARE = 0.3


_images_without_loss = jitted_for_few(0, 1, 2)(images_without_loss)


class _EndedError(Exception):
    """The equations are solved, or their time is spent."""


def of_several(case: Case) -> Iterator[Answer | str]:
    """All samples of a batch from the gradient of the first dense layer, if it reads images and ReLUs follow it."""
    model, watch = case.share.model, Stopwatch()
    if not model.has_kinks:
        yield f"Closed forms were not tried: {case.samples} samples are behind the update, and the network has no ReLU."
        return
    try:
        attack = spear(model, case.share, batch_size=case.samples)
    except ValueError as error:
        yield f"Closed forms were not tried: {case.samples} samples are behind the update, and {error}."
        return
    for name in (SPEAR, SPEAR_ALONE):
        if (stored := case.store.answer(name)) is not None:
            yield stored
            return
    if case.store.left <= 0:
        yield f"{called(SPEAR)} was not tried: the time was spent."
        return
    begin, allowed, total = time.monotonic(), _SHARE * case.store.left, attack.iterations
    case.show(f"compiling {called(SPEAR)}", 0, 1, "")
    last: list[tuple[InversionRun, dict[str, np.ndarray]]] = []

    def callback(done: int, run: InversionRun, infos: dict[str, np.ndarray]) -> None:
        last[:] = [(run, infos)]
        case.show(called(SPEAR), done, total or 1, f"{infos['found'][-1]:.0f} of {case.samples} columns")
        if infos["distance"][-1] < SOLVED_BELOW or time.monotonic() - begin > allowed:
            raise _EndedError

    with contextlib.suppress(_EndedError):
        invert(attack, case.observation, case.template, key=case.key, chunk=1, callbacks=(callback,))
    run, infos = last[0]
    answer = _answer(case, attack, run) if infos["distance"][-1] < SOLVED_BELOW else None
    if answer is None:
        yield _unsolved(case, run.attack, watch.spent["seconds"])
        return
    spent: dict[str, Any] = watch.spent
    answer = answer._replace(**spent)
    case.store.keep(answer.attack, answer)
    yield answer


def _answer(case: Case, attack: Attack, run: InversionRun) -> Answer | None:
    """The solution by the whole update, or by the layer's gradient alone under another loss; None if neither fits."""
    if case.loss_known:
        found: Any = jax.jit(attack.reconstruct)(run.attack, case.observation)
        images, labels = without_rounding(np.asarray(found.x[:, 0])), np.asarray(found.y)
        by_all = graded_inputs(case, SPEAR, images, labels, solved=True)
        if found.answered.all():
            return by_all
    model, mode = case.share.model, case.share.batch_norm
    alone = _images_without_loss(model, mode, dense_layer_on_images(model, mode), run.attack, case.observation)
    rounding = rounding_of(case)
    if not alone.certain.all() or alone.misfit > LAYER_MISFIT_BELOW + rounding:
        return None
    if case.loss_known and by_all.misfit < MISFIT_BELOW + rounding:
        return by_all
    # The gradient less its part of this form is orthogonal to this part: a misfit m is a cosine distance of m^2 / 2.
    misfit, no_labels = float(alone.misfit), np.full(case.samples, -1)
    found = Answer(SPEAR_ALONE, without_rounding(np.asarray(alone.x)), no_labels, misfit, misfit**2 / 2, solved=True)
    # A client that defends its update may have changed the bias's gradient, which tells the brightness.
    return found._replace(toned=np.asarray(alone.dimmer)) if case.defended else found


def _unsolved(case: Case, state: SpearState, seconds: float) -> str:
    """What kept the equations from a solution, as far as that is known."""
    tried = f"Tried {called(SPEAR)} ({seconds:.0f} s): it found no solution"
    rank = int(state.factors.rank)
    if rank == case.samples and state.wrong < SOLVED_BELOW:
        return f"{tried} that has the update as its gradient and that no other samples have."
    if rank == case.samples:
        return f"{tried} in this time and within its draws, which says nothing of whether there is one."
    return (
        f"{tried}, since the layer's gradient has the rank {rank}. The batch holds samples that turn on none of its "
        f"outputs or are copies of others, or fewer than the {case.samples} samples that are stated."
    )


def without_rounding(images: np.ndarray) -> np.ndarray:
    """Images (B, H, W, channels), clipped to [0, 1] if only rounding took them out of it, else in their own unit."""
    inside = images.min() >= -OUTSIDE and images.max() <= 1 + OUTSIDE
    return np.clip(images, 0, 1) if inside else images
