"""Findings that warn of an odd answer of an audit, since mistaken inputs may look like a safe client."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.audit._checks import Finding
from jaxleak.audit._checks.equations import NOISE, RANK
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER, Mended, Status
from jaxleak.audit._checks.known_without_loss import KNOWN_IMAGES
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._checks.symmetry import SYMMETRIES
from jaxleak.audit._similarity import similarity
from jaxleak.audit._verdict.verdict import (
    AGREE_ABOVE,
    ALONE,
    DENSE_INPUTS,
    OUTSIDE,
    SPEAR,
    SPEAR_ALONE,
    UNCHECKED,
    Answer,
    listed,
)

#: Name of the finding on whether any answer explains the update.
EXPLAINED = "gradient explained"
_ANOTHER = (
    "another loss or scale, such as class weights, label smoothing or another learning rate, or images with values "
    "outside [0, 1]"
)
_LOWER_LAYERS = (
    "layers with a learning rate or a scale of their own, weights of another round below the head, stale running "
    "statistics, or a second loss or a penalty on features"
)
_UNSEEN = (
    "weights of another round, another batch size, mode, layout or loss, images that were normalised in another way, "
    "momentum, dropout, or a defense"
)
_OF_STEPS = (
    "; or, of several local steps, another learning rate or number of steps, a rate that changes between them, or "
    "samples that are shuffled anew in every epoch"
)


def unexplained(
    best: Answer | None,
    findings: Sequence[Finding] = (),
    answers: Sequence[Answer] = (),
    *,
    tried: bool = True,
    steps: int = 1,
) -> list[Finding]:
    """Findings that warn where no image was certified, since mistaken inputs would look the same.

    Args:
        best: the answer that `best_of` chose, or None.
        findings: what the checks before the attacks found.
        answers: what all attacks found; each answer may refute what is stated.
        tried: whether any attack came to an answer in the time given; if none did, this does not point to a mistake.
        steps: how many local steps the client took, of all epochs.
    """
    if not tried:
        return [Finding(EXPLAINED, "not applicable", "No attack came to an answer in the time given.")]
    changing = _OF_STEPS if steps > 1 else ""
    refuted = None if best is None or best.remainder is not None else _refuted(answers)
    if best is not None and best.matched and not best.explained:
        refuted = best
    if refuted is not None:
        which = "the best answer" if refuted is best else "another answer that has the update"
        evidence = f"Images near {which} leave {refuted.remainder:.1%} of the update unexplained"
        if not refuted.explains_lower_layers:
            evidence += f", and {refuted.below_head:.0%} of the layers below the head."
            cause = _LOWER_LAYERS
            options: tuple[str, ...] = ("--weights", DEFENSE_OTHER, "--truth of a known batch")
        elif refuted.allowed is not None:
            evidence += f". Where no other loss explains more of it, a certificate takes at most {refuted.allowed:.1%}."
            cause = (
                "another learning rate, momentum, number of steps or loss, or a search that kinks keep from its end"
                f"{changing}"
            )
            options = ("--learning-rate", "--momentum", "--local-steps", LOSS_OTHER, "--minutes")
        else:
            evidence += f" by the stated loss, and {refuted.fitted_remainder:.1%} by a loss that is fitted to it."
            cause = f"{_ANOTHER}, or labels that the search took wrong"
            options = (LOSS_OTHER, DEFENSE_OTHER, "--truth of a known batch")
        return [Finding(EXPLAINED, "suspicious", evidence, cause, options)]
    unseen, seen = _UNSEEN + changing, {finding.name: finding.status for finding in findings}
    if best is None or not best.matched:
        evidence = "No attack came to an answer, so that nothing explains the update."
        if best is not None:
            evidence = (
                f"The best attack's answer has a gradient at a cosine distance of {best.cosine_distance:.2g} from the "
                f"update; below {MATCHED_BELOW} it would explain the update."
            )
        return [Finding(EXPLAINED, "suspicious", evidence, *_of_no_match(best, seen, unseen))]
    if seen.get(SYMMETRIES) == "not applicable":
        evidence = "No check can tell mistaken inputs, since an update of this client can point anywhere"
        return [Finding(UNCHECKED, "not applicable", f"{evidence}: {unseen}.")]
    return []


def _of_no_match(best: Answer | None, seen: Mapping[str, Status], unseen: str) -> Mended:
    """Cause and options where no answer matches the update, from the checks' statuses and from how the search ended."""
    failed = "a search that failed"
    if best is not None and not best.finished:
        failed = "a search that the budget cut short"
    if seen.get(KNOWN_IMAGES) == "passed":
        cause = f"{failed}. The inputs are as stated: by them, the client's own images have this update"
        return cause, ("--minutes",)
    cause = f"{failed}, or inputs that are mistaken in a way that the checks cannot see: {unseen}"
    known = ("--truth of a known batch", "--mean", "--std")
    return cause, (*known, "--minutes", LOSS_OTHER, DEFENSE_OTHER)


def _refuted(answers: Sequence[Answer]) -> Answer | None:
    """An answer that matches the update, but shows that the stated client does not explain it; else None."""
    return next((answer for answer in answers if answer.matched and not answer.explained), None)


def copied(best: Answer | None, findings: Sequence[Finding] = ()) -> list[Finding]:
    """A warning where certified images are copies of each other: a gradient cannot tell them from a smaller batch.

    Args:
        best: the answer that `best_of` chose, or None.
        findings: what the checks found, including the finding on the rank of the head's gradient.
    """
    places = [] if best is None else np.flatnonzero(best.shown).tolist()
    pairs = list(itertools.combinations(places, 2))
    if best is None or best.kind in (SPEAR, SPEAR_ALONE) or not pairs:  # SPEAR has no solution for copies
        return []
    x, (first, second) = np.clip(best.x, 0, 1), np.transpose(pairs)
    alike = [pair for pair, same in zip(pairs, similarity(x[first], x[second]) >= AGREE_ABOVE, strict=True) if same]
    if not alike:
        return []
    copies = len({j for _, j in alike})
    evidence = (
        f"{copies} of {len(places)} certified images {'is a copy' if copies == 1 else 'are copies'} of another one."
    )
    if any(finding.name == RANK and finding.status == "passed" for finding in findings):
        cause = "images of the client that are alike, or one that the search found twice in the place of another"
        return [Finding("different images", "suspicious", evidence, cause, ("--minutes",))]
    cause = "the batch holds fewer samples than is stated, whose gradient copies explain as well, or equal samples"
    return [Finding("different images", "suspicious", evidence, cause, (f"--batch-size {len(best.x) - copies}",))]


def out_of_range(best: Answer | None) -> list[Finding]:
    """A warning where inputs are outside of [0, 1]: equations gave them, or they explain the update far better.

    Args:
        best: the answer that `best_of` chose, or None.
    """
    if best is not None and best.explained_better_beyond:
        evidence = (
            f"Images near the best answer leave {best.remainder:.1%} of the update unexplained, and {best.beyond:.1%} "
            "where their values may be outside of [0, 1]."
        )
        cause = "images that were made brighter or normalised before the network, or another loss or scale"
        return [Finding("input range", "suspicious", evidence, cause, ("--mean and --std", LOSS_OTHER))]
    if best is None or (best.x.min() >= -OUTSIDE and best.x.max() <= 1 + OUTSIDE):
        return []
    evidence = f"The inputs that the equations give are {best.x.min():.3g} to {best.x.max():.3g}, and not in [0, 1]."
    cause = "the images were normalised, scaled to 0 to 255, or thinned by dropout before the network"
    return [Finding("input range", "suspicious", evidence, cause, ("--mean and --std",))]


def less_noise(answers: Sequence[Answer]) -> list[Finding]:
    """A warning where an answer is nearer to the update than the stated noise lets the client's own images be.

    Args:
        answers: what all attacks found.
    """
    near = next((answer for answer in answers if answer.lacks_noise), None)
    if near is None:
        return []
    evidence = (
        f"Images near an answer leave {near.remainder:.1%} of the update unexplained, and the stated noise alone would "
        f"leave {near.noise:.0%} of it at the client's own images."
    )
    cause = "less noise than is stated, or none"
    return [Finding(NOISE, "suspicious", evidence, cause, ("--strength", "--noise-multiplier", "--defense"))]


def contradicted(best: Answer | None, labels: Labels) -> list[Finding]:
    """A warning where the answer that explains the gradient lacks labels that the head proves: the loss may differ.

    Args:
        best: the answer that `best_of` chose, or None.
        labels: what the head's gradient proves.
    """
    if best is None or not best.matched or not labels.proven.any() or (best.y < 0).any():
        return []
    found = np.bincount(best.y, minlength=len(labels.proven))
    if (labels.proven <= found).all():
        return []
    evidence = (
        f"The answer that explains the gradient has {listed(found)}; {labels.proof} would prove "
        f"{listed(labels.proven)}."
    )
    cause = "a loss that is no plain cross-entropy, such as one with label smoothing or class weights"
    return [Finding("labels of the answer", "suspicious", evidence, cause, (LOSS_OTHER, DEFENSE_OTHER))]


def beside_the_statement(best: Answer | None, answers: Sequence[Answer], *, defended: bool = False) -> list[Finding]:
    """A warning where an answer has the gradient of one layer, or the update under another loss, but not as stated.

    Args:
        best: the answer that `best_of` chose, or None.
        answers: what all attacks found.
        defended: whether the client has changed its update, so that one layer alone may be as stated.
    """
    refuted = any(not answer.explained for answer in answers)
    if not defended:  # unknown parts of a defense may keep the stated loss from explaining the update
        refuted |= not any(answer.matched and not answer.fitted for answer in answers)
    if best is not None and best.fitted and best.matched and refuted:
        evidence = "The answer has the update under a loss that is fitted to it, and not under the stated one."
        cause = f"{_ANOTHER}, or labels that the searches took wrong"
        return [Finding(EXPLAINED, "suspicious", evidence, cause, (LOSS_OTHER, "--mean", "--std"))]
    if defended or best is None or best.kind not in (ALONE, SPEAR_ALONE):
        return []
    # Where no label can be read, the update as a whole was not compared.
    if best.kind == ALONE and not any(answer.kind == DENSE_INPUTS and not answer.matched for answer in answers):
        return []
    evidence = "The answer has the gradient of one layer, and whatever the labels not that of the whole update."
    cause = (
        "another loss, dropout (of pixels as well, which the answer then lacks), or layers above that one with other "
        "weights or in another mode"
    )
    return [Finding(EXPLAINED, "suspicious", evidence, cause, (LOSS_OTHER, DEFENSE_OTHER, "--weights"))]
