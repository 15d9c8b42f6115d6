"""Reaches a verdict from what checks and attacks found."""

import itertools
from typing import Any

import numpy as np

from jaxleak.audit._checks import Finding
from jaxleak.audit._checks.head import Head, head_of
from jaxleak.audit._checks.labels import Labels, defended_labels, findings_of, labels_of
from jaxleak.audit._checks.tokens import Tokens, are_codes
from jaxleak.audit._similarity import closest, similarity
from jaxleak.audit._verdict.case import Case, misfit_of
from jaxleak.audit._verdict.class_label import labels_without_head, of_one_sample
from jaxleak.audit._verdict.truth import scores
from jaxleak.audit._verdict.verdict import (
    ALONE,
    EXACT_BELOW,
    PEELED,
    PEELED_ALONE,
    Answer,
    Outcome,
    Verdict,
    best_of,
    called,
    decide,
)
from jaxleak.audit._verdict.warnings import (
    beside_the_statement,
    contradicted,
    copied,
    less_noise,
    out_of_range,
    unexplained,
)
from jaxleak.metrics._images import RECOGNISED_ABOVE
from jaxleak.models import Classifier

#: First reason where the truth shows that uncertified images are the client's. The verdict ignores the truth.
_RECOGNISED = (
    "The truth says otherwise: {} of the {} {} that the best attack found are the client's ({} above {:g}). The "
    "verdict is that of an attacker, who has no truth and no certificate for them."
)
#: First reason where the truth contradicts a certificate, and the SSIM up to which it does.
_CONTRADICTED = (
    "The truth contradicts a certificate. Images that are certified and are not the client's: {} of {}. The lowest "
    "{} of one to the nearest true image is {:.2f}. If the truth is right, please report this audit."
)
_WRONG = 0.5
#: The same limit for rows of tables, in 1 minus their largest difference.
_WRONG_ROW = 0.9
#: Similarity above which a row counts as the client's. The means of skewed columns are within 0.1 of many rows.
_RIGHT_ROW = 0.99
#: First reason where the truth differs from the solution of equations, and how far rounding may move a pixel.
_NOT_THE_SOLUTION = (
    "The truth is not the solution of the equations: {} of {} images differ by up to {:.2f} in a pixel (lowest {} "
    "{:.2f}). Either the equations amplify rounding, or the truth is not that of this update."
)
_OFF = 0.1
#: First reason where the true images with the proven labels have another update.
_ANOTHER_UPDATE = (
    "The truth is hardly that of this update, or the loss is not as stated: its images, with the labels that are "
    "proven, have an update that is {:.0%} off."
)
#: Least misfit that counts as another update, and the most images for which all orders of labels are tried.
_FAR, _ORDERS_OF = 0.25, 4
#: Similarity below which the images of two attacks are different images. In the stored audits with a right certificate,
#: the images of peeling and FedLeak are alike to 0.98.
_ONE_IMAGE = 0.8
_TWO_IMAGES = (
    "Peeling and {} end at different images (their similarity is {:.2f}), and both have the update, so that neither is "
    "certified"
)
#: Why no label is claimed where a layer's gradient is explained and the update as a whole is not.
_NOT_AS_STATED = (
    "No label is claimed: no answer has the whole update of the stated client, so that the loss, on which proofs of "
    "labels rest, may not be as stated."
)
#: Why no finding is claimed if the client has a defense.
_NO_FINDINGS = "No finding is claimed: the client defends its update, which may change the signs that tell them."
#: Why no label is claimed where the loss is another one.
_NO_LABELS = "No label is claimed: the loss is stated to be no cross-entropy, and only of that do signs prove labels."


def judged(
    case: Case,
    findings: list[Finding],
    labels: Labels,
    answers: list[Answer],
    said: list[str],
    *,
    threat: str,
    truth: tuple[np.ndarray, np.ndarray | None] | None,
    known_options: tuple[str, ...] = (),
    tokens: Tokens | None = None,
) -> Verdict:
    """The verdict, which does not use the truth, together with scores against the truth.

    Args:
        case: the audited update.
        findings: what the checks found.
        labels: the labels that the update proves.
        answers: what the attacks found.
        said: why attacks were not tried or ended, in sentences.
        threat: what the attacker is granted, in a sentence.
        truth: the client's images and labels, where they are given.
        known_options: options that the client has stated already, so that no finding advises them.
        tokens: the tokens that the update names, or None.
    """
    answers = _apart(answers)
    best = best_of(answers)
    said = [*said, *_too_little(case, best)]
    if other := contradicted(best, labels):
        findings, labels = findings + other, Labels.none(case.share.model.num_classes)
    tried = [told(answer) for answer in answers]
    shows = best is not None and bool(best.shown.any())
    findings = findings + (
        copied(best, findings)
        if shows
        else unexplained(best, findings, answers, tried=bool(answers), steps=case.share.total_steps)
    )
    if case.loss_known and (other := beside_the_statement(best, answers, defended=case.defended)):
        findings = findings + other
        labels = Labels.none(case.share.model.num_classes)._replace(withheld=_NOT_AS_STATED)
    findings = [finding.without(known_options) for finding in findings + less_noise(answers) + out_of_range(best)]
    if best is not None and best.shown.any() and not are_codes(best.x[best.shown]):
        tokens = None  # the certified inputs are no one-hot codes
    attacked = ended(answers, case.loss_known)
    outcome, reasons = decide(
        findings, labels, best, tried, said, attacked=attacked, stated=conditions(case), tokens=tokens
    )
    numbers, ordered = numbers_of(outcome, labels, best, truth, attacked=attacked)
    numbers |= {} if tokens is None else {"token_count": len(tokens.numbers)}
    if best is not None and not best.shown.any():
        reasons = (*recognised_by_truth(best, numbers), *reasons)
    wrong = contradicted_by_truth(best, numbers, ordered)
    if truth is not None and truth[1] is None:  # with labels, a check has compared the truth before
        wrong = wrong or _of_another_update(case, best, labels, ordered)
    if wrong:
        reasons = (wrong, *reasons)
    notes = case.share.model.notes
    return Verdict(
        outcome,
        reasons,
        tuple(findings),
        tuple(answers),
        best,
        labels.proven,
        threat,
        numbers,
        ordered,
        notes,
        None if tokens is None else tokens.numbers,
    )


def _apart(answers: list[Answer]) -> list[Answer]:
    """The answers, without certificates for peeling and a search that match the update by different images.

    Starts of one search may all stop where the update no longer determines the image, as behind saturated units.
    """
    found = [a for a in answers if len(a.x) == 1 and a.matched and a.finished and not a.solved and not a.fitted]
    for peeled in (a for a in found if a.kind == PEELED):
        for other in (a for a in found if a.kind != PEELED):
            alike = float(similarity(np.clip(peeled.x, 0, 1), np.clip(other.x, 0, 1))[0])
            if alike < _ONE_IMAGE:
                why = _TWO_IMAGES.format(called(other.attack), alike)
                both = (peeled.attack, other.attack)
                answers = [a._replace(contradicted=a.contradicted or why) if a.attack in both else a for a in answers]
    return answers


def recognised_by_truth(best: Answer, numbers: dict[str, Any]) -> tuple[str, ...]:
    """The first reason where no image is certified, but the truth shows that the best attack found some of them.

    Args:
        best: the answer that `best_of` chose.
        numbers: metrics of the answer.
    """
    each, limit, what = numbers.get("ssim_each"), RECOGNISED_ABOVE, "images"
    if each is None:
        each, limit, what = numbers.get("similarity_each", ()), _RIGHT_ROW, "rows"
    count = sum(similarity > limit for similarity in each)
    return (_RECOGNISED.format(count, len(best.x), what, best.measure, limit),) if count else ()


def contradicted_by_truth(best: Answer | None, numbers: dict[str, Any], images: np.ndarray | None) -> str:
    """The first reason where the truth contradicts a certified image; empty if it contradicts none.

    An answer in another unit than the truth, such as normalised images, cannot be compared. An image whose tones the
    update leaves open is compared in the tones of the truth. A second copy of one of the client's images is no
    contradiction; `copied` warns of it. Equations have an exact solution, so that even a similar image is reported: as
    rounding or as a wrong truth.

    Args:
        best: the answer that `best_of` chose, or None.
        numbers: metrics of the answer.
        images: (B, H, W, channels) images of the client in the order of the answer; None where they are not known.
    """
    each, limit = numbers.get("ssim_each"), _WRONG
    if each is None:
        each, limit = numbers.get("similarity_each"), _WRONG_ROW
    if best is None or images is None or each is None or out_of_range(best):
        return ""
    toned = np.zeros(len(best.x), bool) if best.toned is None else best.toned
    counted = best.shown & ~toned
    shown = np.clip(best.x, 0, 1)
    off = np.abs(images - shown).max(axis=(1, 2, 3))[counted]
    name = best.measure.partition(" ")[2]  # without its article
    if best.solved and (off > _OFF).any():
        lowest = min(s for place, s in enumerate(each) if counted[place])
        return _NOT_THE_SOLUTION.format((off > _OFF).sum(), len(best.x), off.max(), name, lowest)
    unlike = [place for place in np.flatnonzero(best.shown) if each[place] <= limit]
    nearest = [closest(images, shown[place], any_tones=bool(toned[place])) for place in unlike]
    wrong = [alike for alike in nearest if alike <= limit]
    return _CONTRADICTED.format(len(wrong), len(best.x), name, min(wrong)) if wrong else ""


def _of_another_update(case: Case, best: Answer | None, labels: Labels, images: np.ndarray | None) -> str:
    """The first reason where the truth has no labels, and its images with the proven labels have another update.

    Nothing tells which label belongs to which image. All orders are therefore tried, if there are few images.

    Args:
        case: the audited update.
        best: the answer that `best_of` chose, or None.
        labels: the labels that the update proves.
        images: (B, H, W, channels) images of the truth in the order of the answer, or None.
    """
    if best is None or images is None or case.defended or case.share.total_steps > 1:
        return ""
    if not best.matched or not best.explained or len(images) > _ORDERS_OF:
        return ""
    if (best.y < 0).any() or (np.bincount(best.y, minlength=len(labels.proven)) != labels.proven).any():
        return ""
    off = min(misfit_of(case, images, np.array(order)) for order in set(itertools.permutations(best.y.tolist())))
    return _ANOTHER_UPDATE.format(off) if off > max(_FAR, 2 * best.misfit) else ""


def _too_little(case: Case, best: Answer | None) -> list[str]:
    """Why no image can be certified, where the update has fewer numbers than the images have pixels."""
    if best is None or best.determined:
        return []
    held, pixels = case.held, best.x.size
    unknown = 0 if case.loss_known else case.samples * case.share.model.num_classes
    if held.passed < pixels:
        why = f"at most {held.passed} numbers of the update depend on the images, which have {pixels}"
    elif held.entries < pixels + unknown and case.received.undone is None:
        beside = f", beside {unknown} numbers of the loss" if unknown else ""
        why = f"the update has {held.entries} independent entries, and the images have {pixels} pixels{beside}"
    else:
        return []
    return [f"No image can be certified: {why}. Other images have the same update, and starts may agree on one."]


def inconsistent(findings: list[Finding], model: Classifier, threat: str) -> Verdict:
    """The verdict on an update that a check refuses."""
    labels = Labels.none(model.num_classes)
    outcome, reasons = decide(findings, labels, None, [], [])
    numbers, _ = numbers_of(outcome, labels, None, None)
    return Verdict(outcome, reasons, tuple(findings), (), None, labels.proven, threat, numbers, notes=model.notes)


def proven_labels(case: Case, head: Head | None) -> Labels:
    """The labels that the head's gradient, or rows of classes in its place, prove, and the statements they rest on.

    Args:
        case: the audited update.
        head: the head's gradient, or None where labels cannot be read from one.
    """
    nothing = Labels.none(case.share.model.num_classes)
    if not case.loss_known:
        return nothing._replace(withheld=_NO_LABELS)
    if head is None or (head.bias_gradient is None and of_one_sample(case)):
        labels = labels_without_head(case)
    elif case.defended:
        labels = defended_labels(head, case.samples, case.defense)
    else:
        labels = labels_of(head, case.samples, local_steps=case.share.total_steps)
    return labels._replace(stated=("momentum", *labels.stated) if case.share.momentum else labels.stated)


def proven_findings(case: Case) -> Labels:
    """The findings that the head's gradient proves where every output has a binary cross-entropy of its own."""
    seen = case.observation
    head = head_of(case.share.model, seen.payload, seen.params, case.precision, case.share.batch_norm)
    if head is None:
        return Labels.none(case.share.model.num_classes)
    if case.defended:
        return Labels.none(case.share.model.num_classes)._replace(withheld=_NO_FINDINGS)
    labels = findings_of(head, case.samples)
    return labels._replace(stated=("momentum",) if case.share.momentum else ())


def ended(answers: list[Answer], loss_known: bool) -> bool:
    """Whether an attack that may say something of the update has come to its end."""
    # Without the loss, closed forms and peeling do not count, since they are for one sample alone. A search counts if
    # it explains the update, since the loss may read more than the outputs, such as features or weights. A search whose
    # gradients were not finite, as those of tiny updates, has no answer.
    return any(
        answer.finished and np.isfinite(answer.misfit)
        for answer in answers
        if loss_known or (answer.matched and answer.kind not in (ALONE, PEELED_ALONE))
    )


def numbers_of(
    outcome: Outcome,
    labels: Labels,
    best: Answer | None,
    truth: tuple[np.ndarray, np.ndarray | None] | None,
    *,
    attacked: bool = False,
) -> tuple[dict[str, Any], np.ndarray | None]:
    """The metrics, and the true images in the order of the best answer, where there are any."""
    numbers: dict[str, Any] = {
        "verdict": outcome,
        "label_count": int(labels.proven.sum()),
        "images_certified": 0 if best is None else int(best.shown.sum()),
        "attacked": attacked,
    }
    if best is None:
        return numbers, None
    numbers["gradient_misfit"] = best.misfit
    if best.counted_agreement is not None:
        numbers["agreement"] = float(np.mean(best.counted_agreement))
    if best.undetermined is not None:
        numbers["undetermined"] = float(np.mean(best.undetermined))
    if best.remainder is not None:
        numbers |= {"remainder": best.remainder, "below_head": best.below_head}
    if truth is None:
        return numbers, None
    scored, ordered = scores(truth, best)
    return numbers | scored, ordered


def conditions(case: Case) -> str:
    """The conditions under which images that a search found are the client's, as a clause.

    If the batch is larger than stated, an image may be a blend of several images of one class.
    Soft targets mix the gradients of several samples. Images that are blended in the same way then explain the update
    with hard labels, up to what nonlinear layers leave.
    """
    stated = "the loss and the batch size are"
    if case.share.total_steps > 1:
        stated = "the loss, the batch size, the learning rate and the momentum are"
    elif case.precision.of_weights:
        stated = "the loss, the batch size and the learning rate are"
    stated += " as stated"
    if case.samples > 1:
        stated += ", with labels that are neither mixed nor soft"
    if not case.defended:
        stated += ", and the update is neither clipped nor scaled"
    return stated


def _iterations_of(answer: Answer) -> str:
    """How many iterations of a search that the budget ended were done, and how many were left out, in words."""
    planned = answer.attack.removeprefix(f"{answer.kind}_")
    if not planned.isdigit():  # only the name of a search of several lengths says how long it is
        return f"{answer.iterations} iterations"
    left_out = int(planned) - answer.iterations
    return f"{answer.iterations} of {planned} iterations ({left_out} left out; a longer --minutes adds them)"


def told(answer: Answer) -> str:
    """A sentence on one attack: how long it ran and how near its answer came to the update."""
    counted = answer.counted_agreement
    agreement = ""
    if counted is not None:
        agreement = f", independent starts agree to {answer.measure} of {counted.mean():.3f}"
        if answer.finished and (counted < answer.agreement_needed).any():
            agreement += f" (a certificate takes {answer.agreement_needed:g} for each image)"
            if answer.cosine_distance < EXACT_BELOW:
                agreement += ", and one of them has the update to within rounding: look at its images"
    if answer.remainder is not None and not answer.explained:
        agreement += f". Images near the answer leave {answer.remainder:.1%} of the update unexplained, and "
        if not answer.explains_lower_layers:
            agreement += f"{answer.below_head:.0%} of the layers below the head"
        elif answer.allowed is not None:
            agreement += f"a certificate takes at most {answer.allowed:.1%}"
        else:
            agreement += f"{answer.fitted_remainder:.1%} under another loss, so that the starts may agree on what makes"
            agreement += " up for it"
    if answer.undetermined is not None and answer.undetermined.any():
        agreement += (
            f". For {answer.undetermined.sum()} of {len(answer.x)} images another one explains the update as well, so "
            "that the starts may agree on what the prior prefers"
        )
    if counted is not None and not answer.finished:
        agreement += ", which certifies nothing before the search has ended"
    agreement += f". {answer.contradicted}" if answer.contradicted else ""
    compiling = f", {answer.compiling:.0f} of them compiling" if answer.compiling >= 0.5 else ""
    ended = "" if answer.finished else f", cut short by the budget after {_iterations_of(answer)}"
    ended += "" if np.isfinite(answer.misfit) else ", without a finite answer"
    return (
        f"Tried {called(answer.attack)} ({answer.seconds:.0f} s{compiling}{ended}): the gradient's cosine "
        f"distance is {max(answer.cosine_distance, 0.0):.2g}{agreement}."
    )
