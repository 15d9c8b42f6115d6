"""Checks of the last dense layer's gradient, which cross-entropy ties to the labels and to the batch size.

All of them are exact for every network, and for several local steps with n the samples of all of them, but for the
whole numbers of labels, which takes the softmax of the mean features for the mean softmax, and the weights at which the
client began for those of every step. Several steps, epochs and momentum therefore leave fewer of them.
"""

import functools

import jax
import numpy as np
import scipy  # subpackages load when they are first used

from jaxleak.audit._checks.defended import DEVIATIONS, certain
from jaxleak.audit._checks.finding import Finding, Status, failed
from jaxleak.audit._checks.head import RANK_ABOVE, SLACK, Head, columns_of, counted, highest_rank, rank_of
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import GaussianNoise, LaplaceNoise

#: Relative sum over classes above which a gradient is not that of a softmax; float32 leaves 1e-6.
_SUM_BELOW = 1e-3
#: Relative misfit of the equations of one sample.
_ONE_SAMPLE_BELOW = 2e-3
#: Distance of the factor in the equations of one sample from 1; float32 leaves 2e-6, and products in TF32 5e-4.
_FACTOR_BELOW = 1e-3
_LABELS, _COUNTS, _ONE_SAMPLE = "labels in the batch", "whole numbers of labels", "one sample's equations"
#: How far outside of 0 to n the label counts of n samples may be, over n, and 1 in any case; right ones were 0.025.
_OUTSIDE = 0.125
_NO_BIAS_GRADIENT = "The head's bias gradient is zero."
_ONE_LOGIT = "The network has one logit, whose gradient sums to zero over its two classes"
_REVERSED = "the sign of the update is reversed"
#: How often noise as large as is stated is taken for smaller noise.
_RARELY = 1e-6
#: The options that reverse the sign of a gradient.
_TURN = "--kind difference --learning-rate 1"
_WEAKER = "a defense that moves entries by more than is stated"


def check_head(
    head: Head | None, samples: int, *, steps: int = 1, epochs: int = 1, uneven: bool = False
) -> list[Finding]:
    """Findings on sums over classes, the mean over the batch, the batch size and, for one sample, the weights.

    A later check that takes for granted what an earlier one has refuted is not applicable: it would name the same
    mistake a second time, as if another one had been found.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
        steps: how many steps of all epochs there were, >= 1, after each of which the weights are others.
        epochs: how often each of the samples was visited, >= 1.
        uneven: whether the steps have different weights in the update, as with momentum.
    """
    if head is None:
        why = (
            "The network ends in no dense layer that is known and trained: in a convolution, for example, or something "
            "follows that layer, such as a scale of the logits."
        )
        return [Finding("equations of the head", "not applicable", why)]
    sums, size = _sums_over_classes(head), _size_of_the_bias_gradient(head, samples)
    rank = _rank(head, samples, epochs)
    sign = [_unless_refuted(finding, sums, size, rank) for finding in _sign(head, samples)]
    found = [sums, size, rank, *sign]
    if head.bias_gradient is None:
        return found
    if uneven:
        found.append(Finding(_LABELS, "not applicable", "Momentum weighs the steps, and with them labels, unevenly."))
    else:
        found.append(_unless_refuted(_labels_fit(head, samples), sums, size, rank, *sign))
    if steps > 1:
        why = "The client took several steps, and only the weights of the first one are known."
        return [*found, Finding(_COUNTS if samples > 1 else _ONE_SAMPLE, "not applicable", why)]
    if samples > 1:
        return [*found, _unless_refuted(check_counts(head, samples), sums, size, rank, *sign)]
    # The equations of one sample hold at any scale, so that they can say by which factor the size is wrong.
    return [*found, _unless_refuted(_one_sample(head), sums, rank, *sign)]


def check_defended_head(head: Head | None, samples: int, defense: Defense | None, *, uneven: bool) -> list[Finding]:
    """Whether stated noise explains the sums over classes, and whether the update proves more labels than there are.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
        defense: as it is stated, or None for one that is not known.
        uneven: as in `check_head`.
    """
    if head is None or defense is None:
        return []
    sums = _sums_behind_noise(head, samples, defense)
    left = None if head.bias_gradient is None or uneven else certain(head, defense)
    if left is None:
        return sums
    found = _unless_refuted(_labels_fit(left, samples), *sums)
    if found.status == "failed":
        found = found._replace(cause=f"{found.cause}; or {_WEAKER}", option=f"{found.option}, --strength")
    return [*sums, found]


def _sums_behind_noise(head: Head, samples: int, defense: Defense) -> list[Finding]:
    """Clipping leaves the sums over classes at zero, so that they show how much noise there is."""
    noise = None if defense.mechanism is None or defense.mechanism.zeroes else defense.mechanism.noise
    if not isinstance(noise, GaussianNoise | LaplaceNoise):
        return []
    if head.one_logit:
        return [Finding("stated noise", "not applicable", f"{_ONE_LOGIT}, and so does its noise.")]
    features, classes = head.kernel_gradient.shape
    sums = float(np.linalg.norm(head.kernel_gradient.sum(axis=1)))
    # A sum of C entries has sqrt(C) deviations; the mean of a batch has no more noise than its sum.
    smallest, largest = (deviation * np.sqrt(classes) for deviation in _deviations(noise, samples))
    # The square of a sum of C Laplace variables varies more than that of a Gaussian one, by its excess kurtosis 3 / C.
    freedom = features / (1 + 1.5 / classes) if isinstance(noise, LaplaceNoise) else features
    rounding = max(_SUM_BELOW, head.rounding * np.sqrt(classes) + head.of_softmax)
    rounding *= float(np.linalg.norm(head.kernel_gradient))
    most = largest * (np.sqrt(features) + DEVIATIONS) + rounding
    least = max(0.0, smallest * np.sqrt(scipy.stats.chi2.ppf(_RARELY, freedom) * features / freedom) - rounding)
    allows = f"allows {most:.2g}" if not least else f"gives {least:.2g} to {most:.2g}"
    evidence = f"The sums over classes of the head's gradient have the norm {sums:.2g}; the stated noise {allows}."
    if least <= sums <= most:
        return [Finding("stated noise", "passed", evidence)]
    unit = "or its strength is not in units of the gradient of the mean loss"
    if sums > most:
        cause = f"there is more noise than is stated, {unit}"
        return [Finding("stated noise", "failed", evidence, cause, "--strength, or --defense other")]
    cause = (
        "there is less noise than is stated, none in this layer, its sum was divided by another number than the batch "
        f"size, {unit}"
    )
    option = "--strength, --noise-multiplier, --batch-size, --defense"
    if isinstance(noise, GaussianNoise) and noise.decay < 1:
        cause = f"the update is of a later round, in which less noise is left than in the first one; or {cause}"
        return [Finding("stated noise", "suspicious", evidence, cause, option)]
    return [Finding("stated noise", "failed", evidence, cause, option)]


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


def _sums_over_classes(head: Head) -> Finding:
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
    cause = (
        "noise, pruning or another defense, weight decay, a loss that is no cross-entropy, mixed precision, or a "
        "transposed head"
    )
    return Finding(name, "failed", evidence + ".", cause, "--loss other, or --defense other")


def _sign(head: Head, samples: int) -> list[Finding]:
    """Whether as many classes are absent, by the signs of the kernel's gradient, as must be.

    Nothing where features may be negative, since the signs then say nothing.
    """
    name, classes = "sign of absent classes", head.kernel.shape[1]
    if not head.positive:
        return []
    (positive, negative), absent = columns_of(head), classes - samples
    evidence = (
        f"The features are not negative, so that the head's gradient is not negative for any class that is not in the "
        f"batch; it is so for {positive} of {classes} classes, and nowhere positive for {negative}"
    )
    if positive < absent:
        other = "a loss that is no plain cross-entropy, such as one with label smoothing, or momentum"
        cause, option = (
            (_REVERSED, _TURN) if negative >= absent else (other, "--batch-size, --loss other, or --defense other")
        )
        return [Finding(name, "failed", f"{evidence}. At least {absent} are not in the batch.", cause, option)]
    status: Status = "suspicious" if negative > positive else "passed"
    cause, option = (_REVERSED, _TURN) if negative > positive else ("", "")
    return [Finding(name, status, evidence + ".", cause, option)]


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
        cause = "the loss is a sum over the batch, momentum, or a learning rate or number of steps that is too small"
        return Finding(name, "failed", evidence, cause, "--reduction sum, --learning-rate, --local-steps")
    cause = (
        "a difference of weights was not divided by the learning rate and the number of steps, or the loss is scaled"
    )
    return Finding(name, "failed", evidence, cause, "--learning-rate, --local-steps, --reduction")


def _rank(head: Head, samples: int, epochs: int) -> Finding:
    """Every visit of a sample adds one to the rank at most; visits of one sample at nearby weights may add nothing."""
    name = "batch size by rank"
    rank, most = rank_of(head), highest_rank(head, samples)
    evidence = f"The head's gradient has rank {rank}, so that at least {_of_samples(-(-rank // epochs))} behind it"
    if rank > samples * epochs:
        cause = (
            f"the batch is larger than {samples}, the client took more epochs, or the update is noisy or was computed "
            "in mixed precision"
        )
        evidence = f"{evidence}, but the stated number is {samples}."
        option = "--batch-size, --local-steps, --local-epochs, or --defense other"
        return Finding(name, "failed", evidence, cause, option)
    if rank < most and head.rounding < RANK_ABOVE:
        evidence += f"; {samples} different samples would give {most}."
        held = "1 sample" if rank == 1 else f"{rank} samples"
        cause = f"the batch holds {held}, or some of its samples are equal or fitted already"
        return Finding(name, "suspicious", evidence, cause, f"--batch-size {rank}")
    most = highest_rank(head, samples * epochs)
    return Finding(name, "passed", f"{evidence}; {samples} can give {most} at most.")


def _of_samples(count: int) -> str:
    return "1 sample is" if count == 1 else f"{count} samples are"


def _labels_fit(head: Head, samples: int) -> Finding:
    name = _LABELS
    least = int(counted(head, samples).sum())
    evidence = f"The head's bias gradient proves at least {least} labels for a batch of {samples}."
    if least <= samples:
        return Finding(name, "passed", evidence)
    if int(counted(head, samples, sign=-1).sum()) <= samples:
        return Finding(name, "failed", evidence, _REVERSED, _TURN)
    cause = "the batch is larger, the loss is a sum, or the update was not divided by the learning rate and the steps"
    return Finding(name, "failed", evidence, cause, "--batch-size, --reduction, --learning-rate, --local-steps")


def _predicted(head: Head) -> np.ndarray | None:
    """The softmax (C,) that the head gives the features dW db / |db|^2, or None if db is missing or zero."""
    db = head.bias_gradient
    if db is None or not (square := db @ db):
        return None
    bias = 0.0 if head.bias is None else head.bias
    return np.asarray(jax.nn.softmax(head.kernel_gradient @ db / square @ head.kernel + bias), np.float64)


def _one_sample(head: Head) -> Finding:
    """The features of one sample are dW db / |db|^2; the head's weights turn them into the softmax that db contains."""
    name = _ONE_SAMPLE
    fit = _fit_of_one_sample(head)
    if fit is None:
        return Finding(name, "not applicable", _NO_BIAS_GRADIENT)
    misfit, scale = fit
    evidence = (
        f"The features behind one sample's gradient predict the head's bias gradient to {misfit:.1e} (relative), with "
        f"the factor {scale:.4g}"
    )
    rounding = _rounding_of_one_sample(head)
    if misfit > _ONE_SAMPLE_BELOW + rounding:
        cause = (
            "weights of another round or model, more than one sample, a loss that is no plain cross-entropy, or noise"
        )
        option = "--weights, --batch-size, --loss other, or --defense other"
        return Finding(name, "failed", evidence + ".", cause, option)
    if abs(scale - 1) > _FACTOR_BELOW + rounding:
        cause = f"the update is {scale:.4g} times a gradient: a learning rate, a number of steps, or clipping"
        option, evidence = "--learning-rate, --local-steps, --defense", f"{evidence}, not 1"
        if head.kernel.shape[1] == 2:  # the bias gradient has one direction then, whatever the weights and the loss are
            cause = (
                "weights of another round or model, a loss that is no plain cross-entropy, such as one with class "
                f"weights or label smoothing, or {cause}"
            )
            option = f"--weights, --loss other, {option}"
        backwards = _fit_of_one_sample(head, -1)
        # Two classes leave no misfit in either sign, and then the factor alone tells which one is right.
        if backwards is not None and _fits(backwards, rounding):
            cause, option = f"{_REVERSED}; or {cause}", f"{_TURN}, or {option}"
            evidence += f"; with its sign reversed it is {backwards[1]:.4g}"
        return Finding(name, "failed", evidence + ".", cause, option)
    return Finding(name, "passed", evidence + ".")


def shows_sign(head: Head) -> bool:
    """Whether the equations of one sample hold, and do not hold with the sign of the gradient reversed."""
    here, backwards = (_fit_of_one_sample(head, sign) for sign in (1, -1))
    rounding = _rounding_of_one_sample(head)
    return here is not None and _fits(here, rounding) and (backwards is None or not _fits(backwards, rounding))


def _fits(fit: tuple[float, float], rounding: float) -> bool:
    misfit, scale = fit
    return misfit <= _ONE_SAMPLE_BELOW + rounding and abs(scale - 1) <= _FACTOR_BELOW + rounding


def _rounding_of_one_sample(head: Head) -> float:
    """What rounding leaves: the equations divide by what was rounded, and the head's weights multiply the error."""
    return 10 * head.rounding + head.of_softmax


def _fit_of_one_sample(head: Head, sign: int = 1) -> tuple[float, float] | None:
    """The relative misfit of the bias gradient, or of its reverse, and the factor to what its features predict."""
    p = _predicted(head)
    if head.bias_gradient is None or p is None:
        return None
    db = sign * head.bias_gradient
    expected = p - np.eye(len(db))[int(np.argmin(db))]
    if not (square := float(expected @ expected)):
        return None
    scale = float(db @ expected) / square
    return float(np.linalg.norm(db - scale * expected) / np.linalg.norm(db)), scale


def check_counts(head: Head, samples: int) -> Finding:
    """n_c = n (mean p_c - db_c), with p of the mean features in the place of the mean p: nearly whole numbers."""
    name = _COUNTS
    db, p = head.bias_gradient, _predicted(head)
    if db is None or p is None:
        return Finding(name, "not applicable", _NO_BIAS_GRADIENT)

    if many(head, samples):
        return _range_of_counts(samples * (p - db), samples)
    error = functools.partial(_counts_error, p, samples)
    here, backwards = error(db), error(-db)
    evidence = f"The bias gradient and the mean features give label counts that are {here:.2f} from whole numbers"
    if here < 0.35:
        return Finding(name, "passed", evidence + ".")
    if backwards < 0.15:
        evidence += f"; with its sign reversed they are {backwards:.2f} from whole numbers"
        return Finding(name, "suspicious", evidence + ".", _REVERSED, _TURN)
    smaller = {s: error(db * s) for s in (1 / samples, samples)}
    best = min(smaller, key=lambda s: smaller[s])
    if smaller[best] < 0.15:
        cause = "the loss is a sum over the batch" if best < 1 else "the update was divided by the batch size twice"
        return Finding(name, "suspicious", f"{evidence}; scaled by {best:.3g} they would be.", cause, "--reduction")
    cause = "momentum, a wrong learning rate, number of steps or batch size, other weights, or clipping"
    if backwards < here:
        cause = f"a reversed sign, {cause}"
    return Finding(name, "suspicious", evidence + ".", cause, "--learning-rate, --local-steps, --batch-size, --weights")


def _range_of_counts(counts: np.ndarray, samples: int) -> Finding:
    """Counts of many samples are no whole numbers, and lie between 0 and n but for what the mean features leave."""
    evidence = (
        f"{samples} samples are too many for the mean features to give whole numbers. The label counts that they give "
        f"with the bias gradient are {counts.min():.2f} to {counts.max():.2f}"
    )
    margin = max(1.0, _OUTSIDE * samples)
    if -margin <= counts.min() and counts.max() <= samples + margin:
        return Finding(_COUNTS, "not applicable", evidence + ".")
    evidence += f", far outside of 0 to {samples}."
    cause = (
        "the loss is a sum over the batch, a wrong learning rate, number of steps or batch size, a reversed sign, "
        "momentum, or other weights"
    )
    option = "--reduction sum, --learning-rate, --local-steps, --batch-size, --weights"
    return Finding(_COUNTS, "suspicious", evidence, cause, option)


def _counts_error(p: np.ndarray, samples: int, gradient: np.ndarray) -> float:
    """How far the label counts of a bias gradient are from whole numbers >= 0, at most, with mean outputs p (C,)."""
    counts = samples * (p - gradient)
    return float(np.abs(counts - np.maximum(np.round(counts), 0)).max())


def reversed_fits(head: Head, samples: int) -> bool:
    """Whether the counts of the reversed gradient are nearer to whole numbers than those of the gradient."""
    db, p = head.bias_gradient, _predicted(head)
    return db is not None and p is not None and _counts_error(p, samples, -db) < _counts_error(p, samples, db)


def many(head: Head, samples: int) -> bool:
    """Whether there are so many samples that the softmax of their mean features tells nothing of their labels."""
    return samples >= 2 * head.kernel.shape[1]
