"""Checks of the last dense layer's gradient, which cross-entropy ties to the labels and to the batch size.

For the mean cross-entropy of n samples with softmax outputs p and features f, the bias has the gradient `db_c = mean
p_c - n_c / n` and the kernel `dW = mean f (p - onehot(y))^T`, as in `jaxleak.attacks._inversion.label_rules`. All of
the following are exact for every network below, and for several local steps with n the samples of all of them.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from jaxleak._base import PyTree
from jaxleak.audit._checks.finding import Finding, failed
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.models import Classifier

#: Relative sum over classes above which a gradient is not that of a softmax; float32 leaves 1e-6.
_SUM_BELOW = 1e-3
#: Singular values below this share of the largest are rounding.
_RANK_ABOVE = 2e-5
#: Relative misfit of the equations of one sample.
_ONE_SAMPLE_BELOW = 2e-3
_SLACK = 1e-3


class Head(NamedTuple):
    """The last dense layer; the bias may be missing."""

    kernel_gradient: np.ndarray  # (F, C)
    bias_gradient: np.ndarray | None  # (C,)
    kernel: np.ndarray  # (F, C)
    bias: np.ndarray | None  # (C,)
    precision: Precision = FULL  # in which the gradient was sent

    def slack(self, samples: int) -> float:
        """What rounding may add to a number of labels among so many samples."""
        assert self.bias_gradient is not None
        largest = float(np.linalg.norm(self.bias_gradient))
        return _SLACK + samples * self.precision.relative(self.bias_gradient) * largest


class Labels(NamedTuple):
    """How many samples of every class there are at least, (C,) integers each."""

    proven: np.ndarray  # by the head's gradient alone, whatever the batch size is said to be
    if_stated: np.ndarray  # if the batch holds as many samples as is said; nowhere less than what is proven
    samples: int  # n, as is said
    counted: bool = True  # False where the scale of the update is in doubt: then each class in the batch counts once

    @staticmethod
    def none(classes: int) -> "Labels":
        """Nothing is known of any of `classes`."""
        return Labels(np.zeros(classes, int), np.zeros(classes, int), 0)


def head_of(model: Classifier, payload: PyTree, variables: PyTree, precision: Precision = FULL) -> Head | None:
    """The gradient and the weights of the model's last dense layer, as float64; None where it is not known."""
    if not model.head:
        return None
    gradient, weights = model.head_of(payload), model.head_of(variables["params"])

    def read(leaf: jax.Array | None) -> np.ndarray | None:
        return None if leaf is None else np.asarray(leaf, np.float64)

    return Head(
        np.asarray(gradient.kernel, np.float64),
        read(gradient.bias),
        np.asarray(weights.kernel, np.float64),
        read(weights.bias),
        precision,
    )


def check_head(head: Head | None, samples: int) -> list[Finding]:
    """Findings on sums over classes, the mean over the batch, the batch size and, for one sample, the weights.

    A later check that takes for granted what an earlier one has refuted is not applicable: it would name the same
    mistake a second time, as if another one had been found.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
    """
    if head is None:
        why = "The network ends in no dense layer that is known and trained, such as one with a convolution at its end."
        return [Finding("equations of the head", "not applicable", why)]
    size, rank = _size_of_the_bias_gradient(head, samples), _rank(head, samples)
    found = [_sums_over_classes(head), size, rank]
    if head.bias_gradient is None:
        return found
    found.append(_unless_refuted(_labels_fit(head, samples), size, rank))
    if samples > 1:
        return [*found, _unless_refuted(_counts(head, samples), size, rank)]
    # The equations of one sample hold at any scale, so that they can say by which factor the size is wrong.
    return [*found, _unless_refuted(_one_sample(head), rank)]


def _unless_refuted(finding: Finding, *granted: Finding) -> Finding:
    refuted = failed(list(granted))
    if not refuted or finding.status in ("passed", "not applicable"):
        return finding
    why = f"This check takes for granted what an earlier one, {refuted[0].name}, has refuted."
    return Finding(finding.name, "not applicable", why)


def labels_of(head: Head, samples: int, *, stated_scale: bool = False) -> Labels:
    """The labels that a bias gradient proves; none without one.

    The mean softmax output is positive, so that `n_c > -n db_c`: a class whose entry is negative is in the batch. How
    often it is grows with n, of which the rank of the kernel's gradient is a lower bound that nobody has to state. It
    also grows with the update's scale. Where that is in doubt, every class that is in the batch counts once. Where
    label counts are not whole numbers and those of the reversed update are nearer to them, nothing is proven.

    Args:
        head: from `head_of`, of a gradient of the mean loss.
        samples: n >= 1 that are stated.
        stated_scale: whether the update's scale follows from a learning rate that is stated, and from plain gradient
            descent. Then it is in doubt unless label counts are found to be whole numbers.
    """
    if head.bias_gradient is None:
        return Labels.none(head.kernel.shape[1])
    at_least, counts = _rank_of(head), _counts(head, samples) if samples > 1 else None
    if counts is not None and counts.status == "suspicious" and _reversed_fits(head, samples):
        return Labels.none(head.kernel.shape[1])
    if counts is not None and (counts.status == "suspicious" or (stated_scale and _many(head, samples))):
        present = (head.bias_gradient < -head.slack(1)).astype(int)
        return Labels(present, present, samples, counted=False)
    stated = max(samples, at_least) if at_least == _highest_rank(head, samples) else at_least
    return Labels(_counted(head, at_least), _counted(head, stated), samples)


def _counted(head: Head, samples: int, sign: int = 1) -> np.ndarray:
    """(C,) how many samples of every class there must be among so many, at least."""
    assert head.bias_gradient is not None
    return np.ceil(np.maximum(-sign * samples * head.bias_gradient - head.slack(samples), 0)).astype(int)


def _rank_of(head: Head) -> int:
    """A lower bound on the rank of the kernel's gradient, to which every sample adds one at most."""
    values = np.linalg.svd(head.kernel_gradient, compute_uv=False)
    # Rounding moves no singular value by more than the norm of its errors (Weyl's inequality).
    rounding = head.precision.relative(head.kernel_gradient) * np.linalg.norm(head.kernel_gradient)
    return int((values > max(_RANK_ABOVE * values[0], rounding)).sum())


def _highest_rank(head: Head, samples: int) -> int:
    """The rank that so many different samples give."""
    features, classes = head.kernel_gradient.shape
    return min(samples, classes - 1, features)


def _sums_over_classes(head: Head) -> Finding:
    name = "sums over classes"
    rows = np.linalg.norm(head.kernel_gradient.sum(axis=1)) / np.linalg.norm(head.kernel_gradient)
    sums = {"kernel": rows}
    if head.bias_gradient is not None:
        sums["bias"] = abs(head.bias_gradient.sum()) / np.linalg.norm(head.bias_gradient)
    evidence = "The head's gradient must sum to zero over classes; relative to its norm the sums are " + ", ".join(
        f"{value:.1e} ({part})" for part, value in sums.items()
    )
    parts = [part for part in (head.kernel_gradient, head.bias_gradient) if part is not None]
    rounding = max(head.precision.relative(part) for part in parts) * np.sqrt(head.kernel.shape[1])
    if max(sums.values()) < max(_SUM_BELOW, rounding):
        return Finding(name, "passed", evidence + ".")
    cause = "noise, pruning or another defense, weight decay, a loss that is no cross-entropy, or a transposed head"
    return Finding(name, "failed", evidence + ".", cause, "--defense, --loss")


def _size_of_the_bias_gradient(head: Head, samples: int) -> Finding:
    name = "mean over the batch"
    if head.bias_gradient is None:
        return Finding(name, "not applicable", "The head has no bias.")
    size = float(np.abs(head.bias_gradient).sum())
    evidence = f"The L1 norm of the head's bias gradient is {size:.4g}, and at most 2 for a mean of cross-entropies."
    if size <= 2 * (1 + head.precision.unit) + _SLACK:
        return Finding(name, "passed", evidence)
    if samples > 1 and size <= 2 * samples:
        cause = "the loss is a sum over the batch, momentum, or a learning rate or number of steps that is too small"
        return Finding(name, "failed", evidence, cause, "--reduction sum, --learning-rate, --local-steps")
    cause = (
        "a difference of weights was not divided by the learning rate and the number of steps, or the loss is scaled"
    )
    return Finding(name, "failed", evidence, cause, "--learning-rate, --local-steps, --reduction")


def _rank(head: Head, samples: int) -> Finding:
    name = "batch size by rank"
    rank, most = _rank_of(head), _highest_rank(head, samples)
    evidence = f"The head's gradient has rank {rank}, so that at least {_of_samples(rank)} behind it"
    if rank > samples:
        cause = f"the batch is larger than {samples}, or the update is noisy"
        return Finding(
            name,
            "failed",
            f"{evidence}, but the stated batch size is {samples}.",
            cause,
            f"--batch-size {rank} or more",
        )
    if rank < most and not head.precision.unit:
        evidence += f"; {samples} different samples would give {most}."
        held = "1 sample" if rank == 1 else f"{rank} samples"
        cause = f"the batch holds {held}, or some of its samples are equal or fitted already"
        return Finding(name, "suspicious", evidence, cause, f"--batch-size {rank}")
    return Finding(name, "passed", f"{evidence}; {samples} can give {most} at most.")


def _of_samples(count: int) -> str:
    return "1 sample is" if count == 1 else f"{count} samples are"


def _labels_fit(head: Head, samples: int) -> Finding:
    name = "labels in the batch"
    least = int(_counted(head, samples).sum())
    evidence = f"The head's bias gradient proves at least {least} labels for a batch of {samples}."
    if least <= samples:
        return Finding(name, "passed", evidence)
    if int(_counted(head, samples, sign=-1).sum()) <= samples:
        return Finding(name, "failed", evidence, "the sign of the update is reversed", "--kind difference")
    cause = "the batch is larger, the loss is a sum, or the update was not divided by the learning rate and the steps"
    return Finding(name, "failed", evidence, cause, "--batch-size, --reduction, --learning-rate, --local-steps")


def _predicted(head: Head, db: np.ndarray) -> np.ndarray | None:
    """The softmax (C,) that the head gives the features dW db / |db|^2, or None if db is zero."""
    square = db @ db
    if not square:
        return None
    bias = 0.0 if head.bias is None else head.bias
    return np.asarray(jax.nn.softmax(head.kernel_gradient @ db / square @ head.kernel + bias), np.float64)


def _one_sample(head: Head) -> Finding:
    """The features of one sample are dW db / |db|^2; the head's weights turn them into the softmax that db contains."""
    name = "one sample's equations"
    db = head.bias_gradient
    assert db is not None
    p = _predicted(head, db)
    if p is None:
        return Finding(name, "not applicable", "The head's bias gradient is zero.")
    label = int(np.argmin(db))
    expected = p - np.eye(len(db))[label]
    scale = float(db @ expected / (expected @ expected))
    misfit = float(np.linalg.norm(db - scale * expected) / np.sqrt(db @ db))
    evidence = (
        f"The features behind one sample's gradient predict the head's bias gradient to {misfit:.1e} (relative), with "
        f"the factor {scale:.4g}"
    )
    # The equations divide by what was rounded, and the head's weights multiply the error.
    rounding = 10 * head.precision.relative(head.kernel_gradient)
    if misfit > _ONE_SAMPLE_BELOW + rounding:
        cause = (
            "weights of another round or model, more than one sample, a loss that is no plain cross-entropy, or noise"
        )
        return Finding(name, "failed", evidence + ".", cause, "--weights, --batch-size, --loss, --defense")
    if abs(scale - 1) > 0.01 + rounding:
        cause = f"the update is {scale:.4g} times a gradient: a learning rate, a number of steps, or clipping"
        return Finding(name, "failed", evidence + ", not 1.", cause, "--learning-rate, --local-steps, --defense")
    return Finding(name, "passed", evidence + ".")


def _counts(head: Head, samples: int) -> Finding:
    """n_c = n (mean p_c - db_c), with p of the mean features in the place of the mean p: nearly whole numbers."""
    name = "whole numbers of labels"
    db = head.bias_gradient
    assert db is not None
    p = _predicted(head, db)
    if p is None:
        return Finding(name, "not applicable", "The head's bias gradient is zero.")

    error = functools.partial(_counts_error, p, samples)
    here, backwards = error(db), error(-db)
    evidence = f"The bias gradient and the mean features give label counts that are {here:.2f} from whole numbers"
    if here < 0.35 or _many(head, samples):
        return Finding(name, "passed", evidence + ".")
    if backwards < 0.15:
        evidence += f"; with its sign reversed they are {backwards:.2f} from whole numbers"
        return Finding(name, "failed", evidence + ".", "the sign of the update is reversed", "--kind difference")
    smaller = {s: error(db * s) for s in (1 / samples, samples)}
    best = min(smaller, key=lambda s: smaller[s])
    if smaller[best] < 0.15:
        cause = "the loss is a sum over the batch" if best < 1 else "the update was divided by the batch size twice"
        return Finding(name, "suspicious", f"{evidence}; scaled by {best:.3g} they would be.", cause, "--reduction")
    cause = "momentum, a wrong learning rate, number of steps or batch size, other weights, or clipping"
    if backwards < here:
        cause = f"a reversed sign, {cause}"
    return Finding(name, "suspicious", evidence + ".", cause, "--learning-rate, --local-steps, --batch-size, --weights")


def _counts_error(p: np.ndarray, samples: int, gradient: np.ndarray) -> float:
    """How far the label counts of a bias gradient are from whole numbers >= 0, at most, with mean outputs p (C,)."""
    counts = samples * (p - gradient)
    return float(np.abs(counts - np.maximum(np.round(counts), 0)).max())


def _reversed_fits(head: Head, samples: int) -> bool:
    """Whether the counts of the reversed gradient are nearer to whole numbers than those of the gradient."""
    db = head.bias_gradient
    p = None if db is None else _predicted(head, db)
    return db is not None and p is not None and _counts_error(p, samples, -db) < _counts_error(p, samples, db)


def _many(head: Head, samples: int) -> bool:
    """Whether there are so many samples that the softmax of their mean features tells nothing of their labels."""
    return samples >= 2 * head.kernel.shape[1]
