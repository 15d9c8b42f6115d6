"""The four verdicts, and what decides between them."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.audit._checks import Finding, failed
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._checks.tokens import Tokens, of_this_batch
from jaxleak.metrics._images import has_ssim

#: Name of the finding that the weights could not be checked. It is reported in a sentence, not as a warning.
UNCHECKED = "weights"
Outcome = Literal["leaks", "not shown to leak", "not attacked", "inputs inconsistent"]

#: Exit status of the command for every verdict.
EXIT_STATUS: dict[Outcome, int] = {"leaks": 0, "not shown to leak": 0, "inputs inconsistent": 3, "not attacked": 4}

#: SSIM between two independent starts that is enough for an image to count as read off the gradient. docs/agreement.md
#: says how often images that agree this well are wrong.
AGREE_ABOVE = 0.95
#: The same for starts of peeling, where smoothing blurs both alike: three images that agreed to 0.95 to 0.96 had an
#: SSIM of 0.56 to 0.70 to the truth, while the right images of the stored audits agree to 0.997 and more.
_PEELED_AGREE_ABOVE = 0.99
#: The same in 1 minus the largest difference, for images that are too small for SSIM, such as rows of a table: starts
#: that agreed to 0.951 were both off by 0.14 in some column, and those that agreed to 0.99 by 0.03 at the most.
_ROWS_AGREE_ABOVE = 0.99
#: Cosine distance below which an image cannot be told from the truth by its gradient.
EXACT_BELOW = 1e-5
#: The stated loss is refuted if it leaves at least this many times as much of the update unexplained as a fitted loss.
_BY_FAR = 4 / 3
#: Relative misfit at the cosine distance `MATCHED_BELOW`: behind noise this large, not even true images are matched.
_MOST_NOISE = math.sqrt(1 - (1 - MATCHED_BELOW) ** 2)
#: Noise is not there as stated if images leave less than this share of it unexplained. A search fits a part of it.
_LESS_NOISE = 0.5
#: Largest relative distance between an answer's gradient and the update over the layers below the head. Right images of
#: six networks left up to 0.15, and wrong ones 0.28 and more, where these layers had other rates or weights.
_LOWER_LAYERS_BELOW = 0.25
#: How far the solution of equations may lie outside of [0, 1] by rounding.
OUTSIDE = 0.01
#: Standard deviation over an image's pixels, in its most varied channel, below which agreement tells nothing.
_FLAT_BELOW = 0.02
#: A cosine distance below this is rounding, which may even make it negative.
_ROUNDING = 1e-6
#: Name of the answer that equations of a dense layer's gradient give for one image.
DENSE_INPUTS = "dense_inputs"
#: Name of the same answer where neither the label nor the loss was needed.
ALONE = "inputs_alone"
#: Name of the answer that equations of a dense layer's gradient give for a whole batch.
SPEAR = "spear"
#: Name of the same answer where the rest of the update is not as stated: it needs neither the labels nor the loss.
SPEAR_ALONE = "spear_alone"
#: Name of the answer of peeling where neither the label nor the loss was needed.
PEELED_ALONE = "peeling_alone"
#: Name of the answer of peeling where a label was needed.
PEELED = "peeling"
#: Name of the search that needs neither the labels nor the loss.
ANY_LOSS = "any_loss"
#: Factor by which the misfit of a search without the loss is multiplied when answers are compared.
_FITTED = 2.0
#: Readable names of the attacks of an audit.
_CALLED = {
    "patch_embedding": "the closed form of a patch embedding",
    DENSE_INPUTS: "the inputs of a dense layer",
    SPEAR: "SPEAR, all inputs of a dense layer",
    SPEAR_ALONE: "SPEAR, all inputs of a dense layer, whatever the loss and the labels",
    ALONE: "the inputs of a dense layer, whatever the loss and the label",
    PEELED: "peeling",
    PEELED_ALONE: "peeling, whatever the loss and the label",
    "fedleak": "FedLeak",
    ANY_LOSS: "FedLeak without the loss and the labels",
    "fedleak_informed": "FedLeak by an attacker who knows the defense",
    "row_space": "row spaces",
}
#: What is compared with the update where an answer needs no loss, in words.
_COMPARED = {
    ALONE: "that layer's gradient, as one sample gives it,",
    SPEAR_ALONE: "that layer's gradient, as these samples give it,",
    PEELED_ALONE: "what the answer gives of that layer's inputs and of the gradient below it",
}
_NO_ATTACK_ENDED = "No attack on images came to its end, so that nothing is known of them."
_SIGN = "If the sign of the update is as stated, which nothing in it shows, and"


def called(attack: str) -> str:
    """The readable name of an attack of an audit, such as "FedLeak, 400 iterations" for `fedleak_400`."""
    kind, iterations = _kind_and_iterations(attack)
    name = _CALLED.get(kind, kind)
    return f"{name}, {iterations} iterations" if iterations else name


def _kind_and_iterations(attack: str) -> tuple[str, str]:
    """Split an attack's name: `fedleak_400` into "fedleak" and "400", and `row_space` into "row_space" and ""."""
    name, _, iterations = attack.rpartition("_")
    return (name, iterations) if iterations.isdigit() else (attack, "")


class Answer(NamedTuple):
    """What one attack found."""

    attack: str  # such as "row_space"; a search of several lengths adds its planned iterations: "fedleak_400"
    x: np.ndarray  # (B, H, W, channels) in [0, 1], or in the inputs' own unit where equations gave other values
    y: np.ndarray  # (B,) int32; -1 where no label was found
    misfit: float  # |g' - g| / |g| of the whole update g, where g' is simulated from the answer on the exact model
    cosine_distance: float  # between g' and g
    agreement: np.ndarray | None = None  # (B,) SSIM between two independent starts; None for a closed form
    solved: bool = False  # whether equations gave the images, without a search
    seconds: float = 0.0
    compiling: float = 0.0  # part of `seconds` in which programs were compiled, or read from a cache
    iterations: int = 0
    finished: bool = True  # False where the budget ended it
    # False where too little of the update is known to certify images: it has fewer entries than the images have
    # numbers, or only bounds of the gradient are known and the answer is too far from them.
    determined: bool = True
    undetermined: np.ndarray | None = None  # (B,) bool, whether another image explains the update too; None: not tested
    remainder: float | None = None  # least misfit of images near the answer, found without a prior; None: not tested
    fitted_remainder: float | None = None  # the remainder under a loss that is fitted to the update; None: not tested
    noise: float = 0.0  # the misfit that the stated noise alone would leave at the client's own images
    allowed: float | None = None  # largest remainder of a certificate if no other loss explains more; None: no limit
    below_head: float = 0.0  # |g' - g| / |g| over the layers below the head, near the answer; 0 where it was not tested
    beyond: float | None = None  # the remainder where pixels may lie outside [0, 1]; None: not tested
    contradicted: str = ""  # what in the update contradicts the client's statement; then nothing is certified
    toned: np.ndarray | None = None  # (B,) bool, whether other tones explain the update as well; None: not tested

    @property
    def kind(self) -> str:
        """The kind of attack, without its number of iterations."""
        return _kind_and_iterations(self.attack)[0]

    @property
    def fitted(self) -> bool:
        """Whether numbers of an unknown loss were fitted to the update, so that a small misfit says less."""
        return self.kind == ANY_LOSS

    @property
    def matched(self) -> bool:
        """Whether the answer's gradient matches the update; if not, nothing else about the answer counts."""
        return self.cosine_distance < MATCHED_BELOW

    @property
    def lacks_noise(self) -> bool:
        """Whether the answer is nearer to the update than the stated noise lets the client's own images be.

        The noise is then not there as stated, or the search has fitted it. It cannot explain what remains.
        """
        if self.remainder is None or not self.noise or not self.matched:
            return False
        return self.noise >= _MOST_NOISE or self.remainder < _LESS_NOISE * self.noise

    @property
    def explained(self) -> bool:
        """Whether the stated client explains the layers below the head, and the whole update as well as any loss does.

        After several steps, and where no other loss can be fitted, only little of the update may remain unexplained.
        """
        if self.remainder is None:
            return True
        if not self.explains_lower_layers:
            return False
        if self.allowed is not None:
            return self.remainder <= self.allowed
        return self.fitted_remainder is None or self.remainder < _BY_FAR * self.fitted_remainder

    @property
    def explained_better_beyond(self) -> bool:
        """Whether images with values outside [0, 1] explain the update far better."""
        return self.beyond is not None and self.remainder is not None and self.remainder >= _BY_FAR * self.beyond

    @property
    def explains_lower_layers(self) -> bool:
        """Whether the answer explains the layers below the head by themselves, however much the head outweighs them."""
        return self.below_head <= _LOWER_LAYERS_BELOW

    @property
    def counted_agreement(self) -> np.ndarray | None:
        """(B,) the agreement; None without a match, as agreement on images with another gradient tells nothing."""
        return self.agreement if self.matched else None

    @property
    def shown(self) -> np.ndarray:
        """(B,) bool: images that have a certificate which needs no truth."""
        if self.contradicted or not self.matched or not self.determined or not self.explained:
            return np.zeros(len(self.x), bool)
        if self.solved:
            return np.ones(len(self.x), bool)
        return self.agree if self.undetermined is None else self.agree & ~self.undetermined

    @property
    def measure(self) -> str:
        """The unit of the agreement, in words."""
        return "an SSIM" if has_ssim(self.x.shape[1:]) else "a similarity (1 minus the largest difference)"

    @property
    def agreement_needed(self) -> float:
        """The agreement between starts that a certificate requires: an SSIM, or for rows a `similarity`."""
        if not has_ssim(self.x.shape[1:]):
            return _ROWS_AGREE_ABOVE
        return _PEELED_AGREE_ABOVE if self.kind in (PEELED, PEELED_ALONE) else AGREE_ABOVE

    @property
    def agree(self) -> np.ndarray:
        """(B,) bool: images on which two independent starts agree, even if only because they share a prior.

        No image counts if the budget cut the search short: starts are smoothed alike, and may part before the end.
        """
        if self.agreement is None or not self.finished:
            return np.zeros(len(self.x), bool)
        # Where the update says nothing of the pixels, all starts end at the flat image that the prior prefers.
        # A row of a table has one pixel, whose channels are its columns.
        single = self.x.shape[1:3] == (1, 1)
        flat = (self.x.std(axis=-1).max(axis=(1, 2)) if single else self.x.std(axis=(1, 2)).max(axis=-1)) < _FLAT_BELOW
        return np.asarray((self.agreement >= self.agreement_needed) & ~flat)


class Verdict(NamedTuple):
    """The answer of an audit.

    Attributes:
        verdict: "leaks", "not shown to leak", "not attacked" (the budget ended every attack, none of them had a
            finite answer, or none applies without the loss) or "inputs inconsistent".
        reasons: sentences.
        findings: what the checks found.
        answers: what the attacks found, in the order in which they ran.
        best: the answer that explains the gradient best, or None; the truth does not take part in the choice.
        labels: (C,) how many samples of every class are proven to be in the batch.
        threat: what the attacker is granted, in a sentence.
        metrics: verdict, label_count, images_certified, and attacked (whether an attack on images came to its end);
            token_count where tokens are named; gradient_misfit; agreement where the gradient is matched. Where starts
            agree: undetermined (the share of images in whose place another one explains the update as well), remainder
            (the misfit that a descent without a prior leaves near the answer) and below_head (the same for the layers
            below the head alone). With truth: the scores of `jaxleak.metrics.image_scores`.
        truth: (B, H, W, channels) the true images in the order of the best answer; None where they were not given.
        notes: parts of the network that the attacks had to take as they are, in words.
        tokens: indices of the tokens in the batch, if the inputs are one-hot codes and the update names them, or None.
    """

    verdict: Outcome
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    answers: tuple[Answer, ...]
    best: Answer | None
    labels: np.ndarray
    threat: str
    metrics: dict[str, Any]
    truth: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    tokens: np.ndarray | None = None

    @property
    def leaked(self) -> tuple[str, ...]:
        """What leaks: some of "images", "labels" and "tokens"."""
        images = self.best is not None and bool(self.best.shown.any())
        found = (("images", images), ("labels", bool(self.labels.any())), ("tokens", self.tokens is not None))
        return tuple(name for name, leaks in found if leaks and self.verdict == "leaks")

    @property
    def headline(self) -> str:
        """The verdict and what leaks, such as "leaks images and labels"; a leak of tokens names its condition."""
        *first, last = self.leaked or ("",)
        last += " (if its inputs are one-hot codes)" if last == "tokens" else ""
        return f"{self.verdict} {', '.join(first)}{' and ' if first else ''}{last}".strip()


def best_of(answers: list[Answer]) -> Answer | None:
    """The answer with the most certified images, then the least misfit; the truth takes no part in the choice.

    The misfit of a search without the loss counts twice, since this search has fitted some numbers to the update.
    Where the stated loss was refuted, such a search is chosen for its certificates alone: it matches the update, but
    may have found the images in another brightness.
    """
    finite = [answer for answer in answers if np.isfinite(answer.misfit)]
    refuted = any(not answer.explained for answer in finite)

    def counted(answer: Answer) -> float:
        return answer.misfit * (_FITTED if answer.fitted else 1.0)

    def rank(answer: Answer) -> tuple[int, bool, float]:
        return -int(answer.shown.sum()), refuted and answer.fitted, counted(answer)

    return min(finite, key=rank) if finite else None


def decide(
    findings: list[Finding],
    labels: Labels,
    best: Answer | None,
    tried: list[str],
    not_tried: list[str],
    *,
    attacked: bool = True,
    stated: str = "the loss is as stated",
    tokens: Tokens | None = None,
) -> tuple[Outcome, tuple[str, ...]]:
    """The verdict and its reasons.

    Args:
        findings: what the checks found.
        labels: the labels that the update proves.
        best: the answer that `best_of` chose, or None.
        tried: what was tried and how far it got, in sentences.
        not_tried: what was not tried and why, in sentences.
        attacked: whether any attack came to its end.
        stated: the condition under which images that a search found are the client's, as a clause.
        tokens: the tokens that the update names, or None.
    """
    warnings = [f"Warning: {finding}" for finding in findings if finding.status == "suspicious"]
    wrong = failed(findings)
    if wrong:  # other suspicious findings may be the cause
        return "inputs inconsistent", (*map(str, wrong), *warnings)
    reasons = []
    if labels.proven.any():
        reasons.append(_proven(labels))
        if labels.if_stated.sum() > labels.proven.sum():
            reasons.append(
                f"If the batch also holds {labels.samples} samples, as is stated, and its labels are not smoothed, at "
                f"least {labels.if_stated.sum()} labels follow: {listed(labels.if_stated)}."
            )
    if tokens is not None:
        reasons.append(str(tokens))
    if best is not None and best.shown.any():
        count, total = int(best.shown.sum()), len(best.x)
        are = "is" if count == 1 else "are"
        which = "The image is certified" if total == 1 else f"{count} of {total} images {are} certified"
        it, them = ("it", "the same image") if count == 1 else ("them", "the same images")
        found = f"equations have {it} as their solution" if best.solved else f"independent starts end at {them}"
        alone = "" if best.undetermined is None else ", no other image was found with this update"
        distance = max(best.cosine_distance, 0.0)
        near = f"below {_ROUNDING:.0e}" if distance < _ROUNDING else f"of {distance:.1e}"
        whose = _COMPARED.get(best.kind, "the answer's gradient")
        if best.toned is not None and (best.toned & best.shown).any():
            count = (best.toned & best.shown).sum()
            alone += f" apart from copies of {count} in other tones, whose brightness, contrast or colour is not known,"
            alone += " in the whole image or in parts"
        # A search may make up for another loss by other images; equations and a search without the loss cannot.
        granted = "" if best.solved or best.kind in (ANY_LOSS, PEELED_ALONE) else f", if {stated}"
        # Samples of one class may have proportional gradients in a layer. Their sum is then the gradient of a blend.
        if not granted and total == 1:
            granted = ", if the update is one sample's, as stated"
        elif best.kind == ANY_LOSS:
            granted = ", if the batch size is as stated"
        if best.kind in (ALONE, SPEAR_ALONE):  # the inputs are a quotient of their gradients
            granted += f"{', and' if granted else ', if'} the layer's weights and biases have one learning rate and "
            granted += "were not clipped apart"
        reasons.append(
            f"{which}: {found} ({called(best.attack)}){alone}, and {whose} has a cosine distance {near} "
            f"from the update{granted}."
        )
    elif reasons:
        none = "No image is certified. Images that are shown may be right all the same."
        reasons += [none if attacked else _NO_ATTACK_ENDED, *tried, *not_tried]
    withheld = [labels.withheld] if labels.withheld else []
    withheld += [finding.evidence for finding in findings if finding.name == UNCHECKED]
    if reasons:
        return "leaks", (reasons[0], *warnings, *reasons[1:], *withheld)
    if not attacked:  # readers ask first why nothing was attacked
        return "not attacked", (*tried, *not_tried, *warnings, *withheld)
    return "not shown to leak", (*warnings, *tried, *not_tried, *withheld)


def _proven(labels: Labels) -> str:
    count = int(labels.proven.sum())
    if labels.findings:
        which = ", ".join(str(c) for c, present in enumerate(labels.proven) if present)
        without = of_this_batch(momentum="momentum" in labels.stated)
        return (
            f"{_SIGN} if every output has a binary cross-entropy whose targets are not smoothed, and if {without}, the "
            f"head's gradient proves that the batch holds samples with {'finding' if count == 1 else 'findings'} "
            f"{which}. How many of each is not claimed, since {labels.uncounted}."
        )
    granted = _granted(labels.stated)
    granted = granted if labels.signed else f"{_SIGN} {granted[0].lower()}{granted[1:]}"
    if not labels.uncounted:
        which = f"{count} {'label' if count == 1 else 'labels'}: {listed(labels.proven)}"
        return f"{granted} {labels.proof} proves {which}."
    which = ", ".join(str(c) for c, present in enumerate(labels.proven) if present)
    return (
        f"{granted} the head's gradient proves that the batch holds samples of {'class' if count == 1 else 'classes'} "
        f"{which}. How many of each is not claimed, since {labels.uncounted}."
    )


def _granted(stated: tuple[str, ...]) -> str:
    """The conditions of a proof of labels, given what the client has `stated` about itself."""
    without = "weight decay" if "momentum" in stated else "momentum and weight decay"
    as_stated = (
        f", and the {' and the '.join(stated)} {'is' if len(stated) == 1 else 'are'} as stated" if stated else ""
    )
    if "momentum" in stated:
        as_stated += " and begins at zero" if len(stated) == 1 else ", with a momentum that begins at zero"
    loss = "the plain cross-entropy of this batch alone, with equal weights of all samples and classes"
    return f"If the loss is {loss}, without {without}{as_stated},"


def listed(labels: np.ndarray) -> str:
    """Counts (C,) of labels in words: "2 of class 0, 1 of class 7"."""
    return ", ".join(f"{count} of class {c}" for c, count in enumerate(labels) if count)
