"""Checks of the last dense layer's gradient, which cross-entropy ties to the labels and to the batch size.

All checks but one are exact for every network. They hold for several local steps as well, with n the number of samples
of all steps. The exception is the check of whole numbers of labels: it takes the softmax of the mean features for the
mean softmax, and the weights at which the client began for the weights of every step. Fewer checks therefore apply
after several steps or epochs, or with momentum.
"""

import numpy as np
import scipy  # subpackages load when they are first used

from jaxleak.audit._checks.defended import DEVIATIONS, certain
from jaxleak.audit._checks.finding import (
    ADDED_UP,
    DEFENSE_OTHER,
    LOSS_OTHER,
    REVERSED,
    TURN,
    Finding,
    Status,
    failed,
)
from jaxleak.audit._checks.head import RANK_ABOVE, SLACK, Head, columns_of, counted, highest_rank, rank_of
from jaxleak.audit._checks.predicted import COUNTS, ONE_SAMPLE, check_counts, check_one_sample
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import GaussianNoise, LaplaceNoise, ProportionalNoise

#: Relative sum over classes above which a gradient is not that of a softmax; float32 leaves 1e-6.
_SUM_BELOW = 1e-3
_LABELS = "labels in the batch"
_OF_HEAD = "equations of the head"
RANK = "batch size by rank"
NOISE = "stated noise"
_ONE_LOGIT = "The network has one logit, whose gradient sums to zero over its two classes"
#: Probability with which noise that is as large as stated is taken for smaller noise.
_RARELY = 1e-6
_WEAKER = "a defense that moves entries by more than is stated"


def check_head(
    head: Head | None,
    samples: int,
    *,
    steps: int = 1,
    epochs: int = 1,
    uneven: bool = False,
    norm: float | None = None,
) -> list[Finding]:
    """Findings on sums over classes, the mean over the batch, the batch size and, for one sample, the weights.

    A check is not applicable if it takes for granted what an earlier check has refuted. It would name the same mistake
    a second time, as if there were another one.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
        steps: number of steps of all epochs, >= 1; every step changes the weights.
        epochs: how often the client visited each sample, >= 1.
        uneven: whether the update weighs the steps differently, as with momentum.
        norm: Euclidean norm of the whole update, where it is known.
    """
    if head is None:
        why = (
            "The network ends in no dense layer that is known and trained: in a convolution, for example, or something "
            "follows that layer, such as a scale of the logits."
        )
        return [Finding(_OF_HEAD, "not applicable", why)]
    if not head.kernel_gradient.any():
        why = "The gradient of the last dense layer's kernel is zero, as that of a layer which is not trained."
        return [Finding(_OF_HEAD, "not applicable", why)]
    if head.bias_gradient is not None and not head.bias_gradient.any():
        head = head._replace(bias_gradient=None)
    sums, size = _sums_over_classes(head, samples * epochs), _size_of_the_bias_gradient(head, samples)
    rank = _rank(head, samples, epochs, steps)
    sign = [_unless_refuted(finding, sums, size, rank) for finding in _sign(head, samples)]
    found = [sums, size, rank, *sign]
    if head.bias_gradient is None:
        return found
    found.append(_unless_refuted(_labels_fit(head, samples, uneven=uneven), sums, size, rank, *sign))
    if steps > 1:
        why = "The client took several steps, and only the weights of the first one are known."
        return [*found, Finding(COUNTS if samples > 1 else ONE_SAMPLE, "not applicable", why)]
    if samples > 1:
        return [*found, _unless_refuted(check_counts(head, samples), sums, size, rank, *sign)]
    # The equations of one sample hold at any scale, so that they can name the factor by which the size is wrong.
    return [*found, _unless_refuted(check_one_sample(head, norm), sums, rank, *sign)]


def check_defended_head(head: Head | None, samples: int, defense: Defense | None, *, uneven: bool) -> list[Finding]:
    """Whether stated noise explains the sums over classes, and whether the update proves more labels than there are.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
        defense: as it is stated; None if it is not known.
        uneven: as in `check_head`.
    """
    if head is None or defense is None:
        return []
    sums = _sums_behind_noise(head, samples, defense)
    left = None if head.bias_gradient is None else certain(head, defense)
    if left is None:
        return sums
    found = _unless_refuted(_labels_fit(left, samples, uneven=uneven), *sums)
    if found.status == "failed":
        found = found._replace(cause=f"{found.cause}; or {_WEAKER}", options=(*found.options, "--strength"))
    return [*sums, found]


def _sums_behind_noise(head: Head, samples: int, defense: Defense) -> list[Finding]:
    """Clipping leaves the sums over classes at zero, so that they show how much noise there is."""
    noise = None if defense.mechanism is None or defense.mechanism.zeroes else defense.mechanism.noise
    if not isinstance(noise, GaussianNoise | LaplaceNoise | ProportionalNoise):
        return []
    if head.one_logit:
        return [Finding(NOISE, "not applicable", f"{_ONE_LOGIT}, and so does its noise.")]
    sums = float(np.linalg.norm(head.kernel_gradient.sum(axis=1)))
    rounding = max(_SUM_BELOW, head.rounding * np.sqrt(head.kernel_gradient.shape[1]) + head.of_softmax)
    rounding *= float(np.linalg.norm(head.kernel_gradient))
    least, most = _norms_of_sums(noise, head.kernel_gradient, samples)
    least, most = max(0.0, least - rounding), most + rounding
    allows = f"allows {most:.2g}" if not least else f"gives {least:.2g} to {most:.2g}"
    evidence = f"The sums over classes of the head's gradient have the norm {sums:.2g}; the stated noise {allows}."
    if least <= sums <= most:
        return [Finding(NOISE, "passed", evidence)]
    unit = "or its strength is not in units of the gradient of the mean loss"
    if sums > most:
        cause = f"there is more noise than is stated, {unit}"
        return [Finding(NOISE, "failed", evidence, cause, ("--strength", "--defense other"))]
    cause = (
        "there is less noise than is stated, none in this layer, its sum was divided by another number than the batch "
        f"size, {unit}"
    )
    options = "--strength", "--noise-multiplier", "--batch-size", "--defense"
    if isinstance(noise, GaussianNoise) and noise.decay < 1:
        cause = f"the update is of a later round, in which less noise is left than in the first one; or {cause}"
        return [Finding(NOISE, "suspicious", evidence, cause, options)]
    return [Finding(NOISE, "failed", evidence, cause, options)]


def _norms_of_sums(
    noise: GaussianNoise | LaplaceNoise | ProportionalNoise, gradient: np.ndarray, samples: int
) -> tuple[float, float]:
    """The bounds that the norm of the sums over classes of a noisy head's gradient (F, C) hardly ever leaves."""
    features, classes = gradient.shape
    if isinstance(noise, ProportionalNoise):
        # On average, an entry's square arrives 1 + s^2 times as large, and s^2 times the original square is noise.
        squares = np.square(gradient).sum(axis=1)
        freedom = squares.sum() ** 2 / np.square(squares).sum() / 2  # since one entry may be most of a sum
        smallest = noise.deviation * np.sqrt(squares.sum() / (1 + noise.deviation**2))
        largest = 2 * smallest  # the noise may have made the largest entries smaller
    else:
        # A sum of C entries has sqrt(C) times the deviation; the mean of a batch has no more noise than its sum.
        smallest, largest = (deviation * np.sqrt(classes * features) for deviation in _deviations(noise, samples))
        # The square of a sum of C Laplace variables varies more than a Gaussian one's, by its excess kurtosis 3/C.
        freedom = features / (1 + 1.5 / classes) if isinstance(noise, LaplaceNoise) else features
    least = smallest * np.sqrt(scipy.stats.chi2.ppf(_RARELY, freedom) / freedom)
    return float(least), float(largest * (1 + DEVIATIONS / np.sqrt(freedom)))


def _deviations(noise: GaussianNoise | LaplaceNoise, samples: int) -> tuple[float, float]:
    """The least and the largest standard deviation that an entry's noise may have, in the first round."""
    if isinstance(noise, LaplaceNoise):
        return (np.sqrt(2) * noise.scale,) * 2
    return noise.deviation / (samples if noise.of_sum else 1), noise.deviation


def _unless_refuted(finding: Finding, *granted: Finding) -> Finding:
    refuted = failed(list(granted))
    if not refuted or finding.status in ("passed", "not applicable"):
        return finding
    why = f"This check takes for granted what an earlier one, {refuted[0].name}, has refuted."
    return Finding(finding.name, "not applicable", why)


def _sums_over_classes(head: Head, visits: int = 1) -> Finding:
    """Check the sums over classes; a rank above the number of visits shows that the gradient was changed later."""
    name = "sums over classes"
    if head.one_logit:
        return Finding(name, "not applicable", f"{_ONE_LOGIT}, whatever the loss.")
    rows = np.linalg.norm(head.kernel_gradient.sum(axis=1)) / np.linalg.norm(head.kernel_gradient)
    sums = {"kernel": rows}
    if head.bias_gradient is not None:
        sums["bias"] = abs(head.bias_gradient.sum()) / np.linalg.norm(head.bias_gradient)
    evidence = "The head's gradient must sum to zero over classes; relative to its norm the sums are " + ", ".join(
        f"{value:.1e} ({part})" for part, value in sums.items()
    )
    rounding = head.rounding * np.sqrt(head.kernel.shape[1]) + head.of_softmax
    if max(sums.values()) < max(_SUM_BELOW, rounding):
        return Finding(name, "passed", evidence + ".")
    loss, changed = "a loss that is no cross-entropy", "noise, pruning or another defense, weight decay"
    causes, options = (loss, changed), (LOSS_OTHER, DEFENSE_OTHER)
    if rank_of(head) > visits:
        causes, options = causes[::-1], options[::-1]
    cause = f"{', '.join(causes)}, mixed precision, or a transposed head"
    return Finding(name, "failed", evidence + ".", cause, options)


def _sign(head: Head, samples: int) -> list[Finding]:
    """Whether the signs of the kernel's gradient show as many absent classes as there must be.

    There is no finding where features may be negative, since the signs then say nothing.
    """
    name, classes = "sign of absent classes", head.kernel.shape[1]
    if not head.positive:
        return []
    (positive, negative, neither), absent = columns_of(head), classes - samples
    evidence = (
        f"The features are not negative, so that the head's gradient is not negative for any class that is not in the "
        f"batch; it is so for {positive} of {classes} classes, and nowhere positive for {negative}"
    )
    if positive < absent:
        other = "a loss that is no plain cross-entropy, such as one with label smoothing, or momentum"
        evidence = f"{evidence}. At least {absent} are not in the batch."
        if negative >= absent:
            return [Finding(name, "failed", evidence, REVERSED, (TURN,))]
        return [Finding(name, "failed", evidence, other, (LOSS_OTHER, "--batch-size", DEFENSE_OTHER))]
    turned = negative - neither > positive  # a column within rounding may have either sign
    status: Status = "suspicious" if turned else "passed"
    cause, options = (REVERSED, (TURN,)) if turned else ("", ())
    return [Finding(name, status, evidence + ".", cause, options)]


def _size_of_the_bias_gradient(head: Head, samples: int) -> Finding:
    name = "mean over the batch"
    if head.bias_gradient is None:
        return Finding(name, "not applicable", "The head has no bias.")
    size = float(np.abs(head.bias_gradient).sum())
    evidence = f"The L1 norm of the head's bias gradient is {size:.4g}, and at most 2 for a mean of cross-entropies."
    allowed = np.sqrt(head.kernel.shape[1]) * head.bias_rounding  # the L1 norm is at most this times the L2 norm
    if size <= 2 * (1 + head.precision.unit) + SLACK + allowed:
        return Finding(name, "passed", evidence)
    if samples > 1 and size <= 2 * samples:
        cause = (
            f"the loss is a sum over the batch, {ADDED_UP}, momentum, or a learning rate or number of steps that is "
            "too small"
        )
        options = "--reduction sum (of images)", LOSS_OTHER, "--learning-rate", "--local-steps"
        return Finding(name, "failed", evidence, cause, options)
    cause = (
        "a difference of weights was not divided by the learning rate and the number of steps, or another loss, or one "
        "that is scaled"
    )
    options = "--learning-rate", "--local-steps", "--reduction", LOSS_OTHER
    return Finding(name, "failed", evidence, cause, options)


def _rank(head: Head, samples: int, epochs: int, steps: int) -> Finding:
    """Check the rank: a visit of a sample adds one at most; more visits at nearby weights may add none."""
    name = RANK
    rank, most = rank_of(head), highest_rank(head, samples)
    evidence = f"The head's gradient has rank {rank}, so that at least {_of_samples(-(-rank // epochs))} behind it"
    if rank > samples * epochs:
        cause = (
            f"the batch is larger than {samples}, the client took more epochs, or the update is noisy or was computed "
            "in mixed precision"
        )
        evidence = f"{evidence}, but the stated number is {samples}."
        options = "--batch-size", "--local-steps", "--local-epochs", "--defense other"
        return Finding(name, "failed", evidence, cause, options)
    if rank < most and head.rounding < RANK_ABOVE:
        evidence += f"; {samples} different samples would give {most}."
        held = "1 sample" if rank == 1 else f"{rank} samples"
        cause = f"the batch holds {held}, or some samples are equal, fitted already, or of one class and one output"
        several = "--batch-size", "--local-steps", "--local-epochs"
        return Finding(name, "suspicious", evidence, cause, several[: 1 if steps == 1 else None])
    most = highest_rank(head, samples * epochs)
    return Finding(name, "passed", f"{evidence}; {samples} can give {most} at most.")


def _of_samples(count: int) -> str:
    return "1 sample is" if count == 1 else f"{count} samples are"


def _labels_fit(head: Head, samples: int, *, uneven: bool = False) -> Finding:
    """Whether the batch has room for the proven labels; steps of uneven weights prove each class only once."""
    name = _LABELS
    least, turned = (counted(head, samples, sign=sign) for sign in (1, -1))
    if uneven:
        least, turned = least > 0, turned > 0
    evidence = f"The head's bias gradient takes at least {least.sum()} labels in a batch of {samples}."
    if least.sum() <= samples:
        return Finding(name, "passed", evidence)
    if turned.sum() <= samples:
        return Finding(name, "failed", evidence, REVERSED, (TURN,))
    if uneven:
        cause = "the batch is larger, or the momentum began with gradients of an earlier round, and not at zero"
        return Finding(name, "failed", evidence, cause, ("--batch-size", DEFENSE_OTHER))
    cause = (
        f"the batch is larger, the loss is a sum, {ADDED_UP}, or the update was not divided by the learning rate and "
        "the steps"
    )
    options = "--batch-size", "--reduction", "--learning-rate", "--local-steps", LOSS_OTHER
    return Finding(name, "failed", evidence, cause, options)
