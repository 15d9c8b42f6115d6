"""What the head's weights predict of its gradient: the equations of one sample, and whole numbers of labels.

Both take the softmax that the head's weights give for features which the gradient itself shows. They therefore need the
weights at which the client began.
"""

import functools
import itertools

import jax
import numpy as np

from jaxleak.audit._checks.finding import (
    ADDED_UP,
    DEFENSE_OTHER,
    LOSS_OTHER,
    REVERSED,
    TURN,
    Finding,
    Mended,
    only_clipped,
)
from jaxleak.audit._checks.head import Head

COUNTS, ONE_SAMPLE = "whole numbers of labels", "one sample's equations"
#: Relative misfit up to which the equations of one sample hold.
_ONE_SAMPLE_BELOW = 2e-3
#: How far the factor in the equations of one sample may be from 1; float32 leaves 2e-6, and products in TF32 5e-4.
_FACTOR_BELOW = 1e-3
#: How far outside of 0 to n the label counts of n samples may be, as a share of n, but at least 1. Right counts were
#: outside by a share of up to 0.025.
_OUTSIDE = 0.125
#: What rounding may leave at most where the equations of one sample still say something.
_TELLS_BELOW = 0.5
_NO_BIAS_GRADIENT = "The head's bias gradient is zero."


def _logits(head: Head) -> np.ndarray | None:
    """The head's outputs (C,) for the features dW db / |db|^2; None if db is missing or zero."""
    db = head.bias_gradient
    if db is None or not (square := db @ db):
        return None
    return np.asarray(head.kernel_gradient @ db / square @ head.kernel + (0.0 if head.bias is None else head.bias))


def _predicted(head: Head) -> np.ndarray | None:
    """The softmax (C,) of the head's outputs for these features."""
    logits = _logits(head)
    return None if logits is None else np.asarray(jax.nn.softmax(logits), np.float64)


def check_one_sample(head: Head, norm: float | None = None) -> Finding:
    """Check one sample: the head's weights must turn its features dW db / |db|^2 into the softmax that db contains."""
    name = ONE_SAMPLE
    fit = _fit_of_one_sample(head)
    if fit is None:
        return Finding(name, "not applicable", _NO_BIAS_GRADIENT)
    misfit, scale = fit
    evidence = (
        f"The features behind one sample's gradient predict the head's bias gradient to {misfit:.1e} (relative), with "
        f"the factor {scale:.4g}"
    )
    rounding = _rounding_of_one_sample(head)
    if rounding > _TELLS_BELOW:
        return Finding(name, "not applicable", f"{evidence}; rounding may change that by {rounding:.1g}.")
    if misfit > _ONE_SAMPLE_BELOW + rounding:
        cause = (
            "weights of another round or model, more than one sample, a loss that is no plain cross-entropy, or noise"
        )
        options = "--weights", "--batch-size", LOSS_OTHER, DEFENSE_OTHER
        return Finding(name, "failed", evidence + ".", cause, options)
    if abs(scale - 1) > _FACTOR_BELOW + rounding:
        cause, of_factor = _factor(scale, norm, of_weights=head.precision.of_weights)
        evidence += ", not 1"
        if head.kernel.shape[1] == 2:  # the bias gradient has one direction then, whatever the weights and the loss are
            cause, of_factor = f"weights of another round or model, or {cause}", ("--weights", *of_factor)
        backwards = _fit_of_one_sample(head, -1)
        # Two classes leave no misfit for either sign. Then the factor alone tells which sign is right.
        if backwards is not None and _fits(backwards, rounding):
            cause, of_factor = f"{REVERSED}; or {cause}", (TURN, *of_factor)
            evidence += f"; with its sign reversed it is {backwards[1]:.4g}"
        return Finding(name, "failed", evidence + ".", cause, of_factor)
    return Finding(name, "passed", evidence + ".")


def _factor(scale: float, norm: float | None, *, of_weights: bool) -> Mended:
    """The causes that make an update a multiple of one sample's gradient, and their options, the likeliest first."""
    likely: list[Mended] = [
        ("another loss, such as focal loss or one with class weights or label smoothing", (LOSS_OTHER,))
    ]
    if 0 < scale < 1:
        likely.insert(0, ("clipping", (only_clipped(norm),)))
    rate = ("a learning rate or a number of steps", ("--learning-rate", "--local-steps"))
    likely.insert(0 if of_weights else len(likely), rate)
    causes, options = zip(*likely, strict=True)
    return (
        f"the update is {scale:.4g} times a gradient: {', '.join(causes[:-1])}, or {causes[-1]}",
        (*itertools.chain(*options), DEFENSE_OTHER),
    )


def shows_sign(head: Head) -> bool:
    """Whether the equations of one sample hold for the gradient, but not for the gradient with its sign reversed."""
    here, backwards = (_fit_of_one_sample(head, sign) for sign in (1, -1))
    rounding = _rounding_of_one_sample(head)
    return here is not None and _fits(here, rounding) and (backwards is None or not _fits(backwards, rounding))


def _fits(fit: tuple[float, float], rounding: float) -> bool:
    misfit, scale = fit
    return misfit <= _ONE_SAMPLE_BELOW + rounding and abs(scale - 1) <= _FACTOR_BELOW + rounding


def _rounding_of_one_sample(head: Head) -> float:
    """What rounding may leave: the equations divide by rounded numbers, and the head's weights multiply the error.

    A client that sends 16 bits may compute its logits in them. An error of a logit is a relative one of its softmax.
    """
    logits = _logits(head)
    largest = 0.0 if logits is None else float(np.abs(logits).max())
    return 10 * head.rounding + head.of_softmax + head.precision.unit * largest


def _fit_of_one_sample(head: Head, sign: int = 1) -> tuple[float, float] | None:
    """How far `sign` times the bias gradient is from a multiple of its prediction, relative to it, and the factor."""
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
    """Check that n_c = n (mean p_c - db_c) are nearly whole numbers, with the p of mean features for the mean p."""
    name = COUNTS
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
        return Finding(name, "suspicious", evidence + ".", REVERSED, (TURN,))
    smaller = {s: error(db * s) for s in (1 / samples, samples)}
    best = min(smaller, key=lambda s: smaller[s])
    if smaller[best] < 0.15:
        cause = "the loss is a sum over the batch" if best < 1 else "the update was divided by the batch size twice"
        return Finding(name, "suspicious", f"{evidence}; scaled by {best:.3g} they would be.", cause, ("--reduction",))
    cause = (
        f"momentum, a wrong learning rate, number of steps or batch size, other weights, another loss, {ADDED_UP}, or "
        "clipping"
    )
    options = "--learning-rate", "--local-steps", "--batch-size", "--weights", LOSS_OTHER, only_clipped()
    if backwards < here:
        cause = f"a reversed sign, {cause}"
    return Finding(name, "suspicious", evidence + ".", cause, options)


def _range_of_counts(counts: np.ndarray, samples: int) -> Finding:
    """Check that counts of many samples, which need not be whole, lie in 0 to n up to the mean features' error."""
    evidence = (
        f"{samples} samples are too many for the mean features to give whole numbers. The label counts that they give "
        f"with the bias gradient are {counts.min():.2f} to {counts.max():.2f}"
    )
    margin = max(1.0, _OUTSIDE * samples)
    if -margin <= counts.min() and counts.max() <= samples + margin:
        return Finding(COUNTS, "not applicable", evidence + ".")
    evidence += f", far outside of 0 to {samples}."
    cause = (
        f"the loss is a sum over the batch, {ADDED_UP}, a wrong learning rate, number of steps or batch size, a "
        "reversed sign, momentum, or other weights"
    )
    rate = "--learning-rate", "--local-steps", "--batch-size", "--weights"
    options = "--reduction sum (of images)", LOSS_OTHER, *rate
    return Finding(COUNTS, "suspicious", evidence, cause, options)


def _counts_error(p: np.ndarray, samples: int, gradient: np.ndarray) -> float:
    """The largest distance of a bias gradient's label counts from whole numbers >= 0, given mean outputs p (C,)."""
    counts = samples * (p - gradient)
    return float(np.abs(counts - np.maximum(np.round(counts), 0)).max())


def reversed_fits(head: Head, samples: int) -> bool:
    """Whether the counts of the reversed gradient are nearer to whole numbers than those of the gradient."""
    db, p = head.bias_gradient, _predicted(head)
    return db is not None and p is not None and _counts_error(p, samples, -db) < _counts_error(p, samples, db)


def many(head: Head, samples: int) -> bool:
    """Whether there are so many samples that the softmax of their mean features tells nothing of their labels."""
    return samples >= 2 * head.kernel.shape[1]
