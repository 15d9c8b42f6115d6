"""Whether another loss explains an update better, and how much of it a certified answer may leave unexplained."""

import math

from jaxleak._base import total_steps
from jaxleak.attacks._inversion.any_loss import any_loss_share, seen_by_any_loss, why_not_any_loss
from jaxleak.audit._verdict.case import Case, rounding_of
from jaxleak.audit._verdict.questions import rival_of
from jaxleak.audit._verdict.verdict import Answer, called
from jaxleak.defenses.mechanisms import Clipped, Recomputed

#: Relative misfit that a descent without a prior may leave of the update without a further test. Class weights and
#: smoothed labels that nobody stated leave more, and starts then agree on images that make up for them. But kinks and
#: batch statistics may leave as much of a correct update.
_EXPLAINED_BELOW = 0.02
#: The same limit for several samples of two classes, whatever other losses leave. One number per sample then has to
#: make up for another loss or scale: blends leave 0.5 to 1.3 %, under a fitted loss too, and right images 0.14 %.
_OF_TWO_CLASSES_BELOW = 0.003
#: The most that a descent may leave, whatever other losses leave. Right images of networks with batch statistics left
#: up to 0.039 of their updates. Wrong ones left 0.056 and more: under smoothed labels by the search without the loss,
#: in another layout, and behind error feedback. One image that a search without the loss found was wrong at 0.048
#: (`experiments.mistakes`, seed 0).
_CERTIFIED_BELOW = 0.05
#: Range of pixel values that is tried in case the client has not kept its pixels in [0, 1] as stated.
_BEYOND = (-2.0, 3.0)
#: Distance to 0 or 1 below which a search may have been stopped by that bound.
_AT_BOUNDS = 0.005


def why_not(case: Case) -> str:
    """Why no search without the loss applies to the case; empty if one does."""
    return why_not_any_loss(case.share.model, case.share, case.samples)


def _no_loss_is_fitted(case: Case) -> bool:
    """Whether no other loss can be fitted to an update.

    This is the case where no search without the loss applies. It is also the case where a defense withholds the last
    layer's gradient, from which other losses are read, or changes the samples one by one by means of the loss.
    """
    if why_not(case):
        return True
    mechanism = None if case.defense is None else case.defense.mechanism
    if mechanism is None:
        return False
    by_samples = isinstance(mechanism.simulation, Clipped) and mechanism.simulation.examples
    return mechanism.zeroes_head or by_samples or isinstance(mechanism.simulation, Recomputed)


def under_any_loss(case: Case) -> Case:
    """The case in which an answer explains the update if some loss and some labels make it do so."""
    model = case.share.model
    return case._replace(
        share=any_loss_share(model, case.share.batch_norm),  # type: ignore[arg-type]
        observation=seen_by_any_loss(model, case.observation),
        unknowns=case.samples * model.num_classes,
    )


def as_stated(case: Case, answer: Answer) -> Answer:
    """The answer of a search, with fields that say whether the stated loss explains the update as well as any loss.

    If the client used another loss, starts may agree on images that make up for it. Images near the answer then leave
    more of the update unexplained under the stated loss than under a loss that is fitted to it. If instead kinks or
    batch statistics keep a descent from its end, both losses leave about as much. Where no loss can be fitted, as after
    several steps or behind a frozen head, only little may remain. Behind a defense, what its noise leaves may remain as
    well, unless the answer shows that this noise is not there. Where much remains and pixels end at 0 or 1, values
    beyond are tried, too. More than 5 % may never remain, and not more than 2 % where a defense leaves entries out:
    fewer entries then contradict a wrong image, and entries left out of earlier rounds may have been added.
    """
    remainder = answer.remainder
    if remainder is None or case.received.undone is not None:  # no noise is known of a gradient between bounds
        return answer
    unknowable = rounding_of(case) + (0.0 if answer.lacks_noise else answer.noise)
    if math.isinf(unknowable):  # nothing is known of the rounding, so that no other loss is compared either
        return _at_most(answer, _CERTIFIED_BELOW)
    of_two = _of_two_classes(case)
    allowed = (_OF_TWO_CLASSES_BELOW if of_two else _EXPLAINED_BELOW) + unknowable
    if remainder > allowed and ((answer.x < _AT_BOUNDS) | (answer.x > 1 - _AT_BOUNDS)).any():
        answer = answer._replace(beyond=rival_of(case, answer, bounds=_BEYOND).answer_misfit)
    if total_steps(case.share) > 1:  # a wrong learning rate or momentum leaves more, and no loss is fitted to it
        return answer._replace(allowed=allowed)
    if remainder <= allowed:
        return answer
    if not case.loss_shown:
        if _no_loss_is_fitted(case):
            return answer._replace(allowed=allowed)
        case.show(f"other losses with the same update as {called(answer.attack)}", 0, 1, "")
        answer = answer._replace(fitted_remainder=rival_of(under_any_loss(case), answer).answer_misfit)
    most = allowed if of_two or case.received.in_part else _CERTIFIED_BELOW + unknowable
    return _at_most(answer, most) if of_two or answer.explained else answer


def _of_two_classes(case: Case) -> bool:
    return case.samples > 1 and case.share.model.num_classes <= 2


def _at_most(answer: Answer, most: float) -> Answer:
    """The answer, with `most` as the limit on its remainder if more than that remains."""
    return answer._replace(allowed=most) if answer.remainder is not None and answer.remainder > most else answer


def as_fitted(case: Case, answer: Answer) -> Answer:
    """The answer of a search without the loss, with a limit on its remainder, as no other loss explains more.

    Args:
        case: from `under_any_loss`.
        answer: what a search found there.
    """
    most = _OF_TWO_CLASSES_BELOW if _of_two_classes(case) else _CERTIFIED_BELOW
    return _at_most(answer, most + rounding_of(case))
