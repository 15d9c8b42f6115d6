"""Checks of the last dense layer's gradient, which cross-entropy ties to the labels and to the batch size.

For the mean cross-entropy of n samples with softmax outputs p and features f, the bias has the gradient `db_c = mean
p_c - n_c / n` and the kernel `dW = mean f (p - onehot(y))^T`, as in `jaxleak.attacks._inversion.label_rules`. All of
the following are exact for every network below, and for several local steps with n the samples of all of them.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import PyTree
from jaxleak.audit._checks.finding import Finding, Status, failed
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode

#: Relative sum over classes above which a gradient is not that of a softmax; float32 leaves 1e-6.
_SUM_BELOW = 1e-3
#: Singular values below this share of the largest are rounding.
_RANK_ABOVE = 2e-5
#: Relative misfit of the equations of one sample.
_ONE_SAMPLE_BELOW = 2e-3
_SLACK = 1e-3
#: What float32 may leave of a softmax output that is subtracted from 1.
_SOFTMAX = 4 * 6e-8
#: Relative error from which on the logits are not those of the last dense layer; float32 leaves 1e-6.
_OTHER_LOGITS = 1e-4
#: Images that are simulated to learn what the head reads and what follows it.
_IMAGES = 16
#: Entries below this share of the largest are rounding.
_ENTRY = 1e-6
_REVERSED = "the sign of the update is reversed"
#: The options that reverse the sign of a gradient.
_TURN = "--kind difference --learning-rate 1"


class Head(NamedTuple):
    """The last dense layer; the bias may be missing."""

    kernel_gradient: np.ndarray  # (F, C)
    bias_gradient: np.ndarray | None  # (C,)
    kernel: np.ndarray  # (F, C)
    bias: np.ndarray | None  # (C,)
    precision: Precision = FULL  # in which the gradient was sent
    positive: bool = False  # whether the features are at least zero, as behind a ReLU

    def slack(self, samples: int) -> float:
        """What rounding may add to a number of labels among so many samples."""
        return _SLACK + samples * self.bias_rounding

    @property
    def bias_rounding(self) -> float:
        """What rounding may add to an entry of the bias gradient."""
        assert self.bias_gradient is not None
        size = float(np.linalg.norm(self.bias_gradient))
        return self.precision.relative(self.bias_gradient, self.bias) * size

    @property
    def rounding(self) -> float:
        """The larger of the relative roundings of the kernel's gradient and of the bias's."""
        parts = ((self.kernel_gradient, self.kernel), (self.bias_gradient, self.bias))
        return max(self.precision.relative(part, weights) for part, weights in parts if part is not None)

    @property
    def of_softmax(self) -> float:
        """What the rounding of softmax outputs leaves, relative to the bias gradient: much where samples are fitted."""
        if self.bias_gradient is None:
            return 0.0
        size = max(float(np.linalg.norm(self.bias_gradient)), 1e-300)
        return _SOFTMAX * float(np.sqrt(self.kernel.shape[1])) / size


def head_of(
    model: Classifier, payload: PyTree, variables: PyTree, precision: Precision = FULL, mode: BatchNormMode = "train"
) -> Head | None:
    """The gradient and the weights of the model's last dense layer, as float64.

    None where it is not known, or where something follows it: a scale of the logits, for example, or a gate.
    """
    if not model.head:
        return None
    gradient, weights = model.head_of(payload), model.head_of(variables["params"])
    positive = _reads_positive(model, variables, mode)
    if positive is None:
        return None

    def read(leaf: jax.Array | None) -> np.ndarray | None:
        return None if leaf is None else np.asarray(leaf, np.float64)

    return Head(
        np.asarray(gradient.kernel, np.float64),
        read(gradient.bias),
        np.asarray(weights.kernel, np.float64),
        read(weights.bias),
        precision,
        positive,
    )


def _reads_positive(model: Classifier, variables: PyTree, mode: BatchNormMode) -> bool | None:
    """Whether no feature of simulated images is negative; None if the logits are not those of the last dense layer.

    A constant that is added to all logits of an image changes no softmax, and is allowed.
    """
    weights = model.head_of(variables["params"])
    bright = jnp.linspace(0.1, 1.0, _IMAGES)[:, None, None, None]
    images = bright * jax.random.uniform(jax.random.key(0), (_IMAGES, *model.image_shape))
    found = jax.jit(lambda v, x: model.apply(v, x, mode=mode)[:2])(variables, images)
    logits, features = (np.asarray(array, np.float64) for array in found)
    bias = 0.0 if weights.bias is None else np.asarray(weights.bias, np.float64)
    expected = features @ np.asarray(weights.kernel, np.float64) + bias
    centred = [array - array.mean(axis=1, keepdims=True) for array in (logits, expected)]
    allowed = max(_OTHER_LOGITS, 10 * float(jnp.finfo(found[0].dtype).eps))
    if np.abs(centred[0] - centred[1]).max() > allowed * max(np.abs(centred[0]).max(), 1e-30):
        return None
    return bool(features.min() >= 0)


def check_head(head: Head | None, samples: int) -> list[Finding]:
    """Findings on sums over classes, the mean over the batch, the batch size and, for one sample, the weights.

    A later check that takes for granted what an earlier one has refuted is not applicable: it would name the same
    mistake a second time, as if another one had been found.

    Args:
        head: from `head_of`, of a gradient of the mean loss over `samples`.
        samples: n >= 1, of all local steps and clients.
    """
    if head is None:
        why = (
            "The network ends in no dense layer that is known and trained: in a convolution, for example, or something "
            "follows that layer, such as a scale of the logits."
        )
        return [Finding("equations of the head", "not applicable", why)]
    size, rank = _size_of_the_bias_gradient(head, samples), _rank(head, samples)
    sign = [_unless_refuted(finding, size, rank) for finding in _sign(head, samples)]
    found = [_sums_over_classes(head), size, rank, *sign]
    if head.bias_gradient is None:
        return found
    found.append(_unless_refuted(_labels_fit(head, samples), size, rank, *sign))
    if samples > 1:
        return [*found, _unless_refuted(check_counts(head, samples), size, rank, *sign)]
    # The equations of one sample hold at any scale, so that they can say by which factor the size is wrong.
    return [*found, _unless_refuted(_one_sample(head), rank, *sign)]


def _unless_refuted(finding: Finding, *granted: Finding) -> Finding:
    refuted = failed(list(granted))
    if not refuted or finding.status in ("passed", "not applicable"):
        return finding
    why = f"This check takes for granted what an earlier one, {refuted[0].name}, has refuted."
    return Finding(finding.name, "not applicable", why)


def counted(head: Head, samples: int, sign: int = 1) -> np.ndarray:
    """(C,) how many samples of every class there must be among so many, at least."""
    assert head.bias_gradient is not None
    return np.ceil(np.maximum(-sign * samples * head.bias_gradient - head.slack(samples), 0)).astype(int)


def rank_of(head: Head, above: float = _RANK_ABOVE) -> int:
    """A lower bound on the rank of the kernel's gradient, to which every sample adds one at most.

    Args:
        head: from `head_of`.
        above: share of the largest singular value above which another one counts.
    """
    values = np.linalg.svd(head.kernel_gradient, compute_uv=False)
    # Rounding moves no singular value by more than the norm of its errors (Weyl's inequality).
    rounding = head.precision.relative(head.kernel_gradient, head.kernel) * np.linalg.norm(head.kernel_gradient)
    return int((values > max(above * values[0], rounding)).sum())


def highest_rank(head: Head, samples: int) -> int:
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
    rounding = head.rounding * np.sqrt(head.kernel.shape[1]) + head.of_softmax
    if max(sums.values()) < max(_SUM_BELOW, rounding):
        return Finding(name, "passed", evidence + ".")
    cause = (
        "noise, pruning or another defense, weight decay, a loss that is no cross-entropy, mixed precision, or a "
        "transposed head"
    )
    return Finding(name, "failed", evidence + ".", cause, "--defense other")


def columns_of(head: Head) -> tuple[int, int]:
    """How many classes have a column of the kernel's gradient without a negative entry, and without a positive one.

    Of features f >= 0, a class that is not in the batch has the column mean(f p_c) >= 0. With the sign of the update
    reversed the column is <= 0.
    """
    gradient = head.kernel_gradient
    rows = np.abs(gradient).max(axis=1)
    gradient = gradient[rows > _ENTRY * rows.max()]
    allowed = _ENTRY * np.abs(gradient).max()
    allowed += head.precision.relative(head.kernel_gradient, head.kernel) * np.linalg.norm(head.kernel_gradient)
    return int((gradient >= -allowed).all(axis=0).sum()), int((gradient <= allowed).all(axis=0).sum())


def _sign(head: Head, samples: int) -> list[Finding]:
    """Whether as many classes are absent, by the signs of the kernel's gradient, as must be; nothing if none must."""
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
        cause, option = (_REVERSED, _TURN) if negative >= absent else (other, "--batch-size, or --defense other")
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
    if size <= 2 * (1 + head.precision.unit) + _SLACK + allowed:
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
    rank, most = rank_of(head), highest_rank(head, samples)
    evidence = f"The head's gradient has rank {rank}, so that at least {_of_samples(rank)} behind it"
    if rank > samples:
        cause = f"the batch is larger than {samples}, or the update is noisy or was computed in mixed precision"
        evidence = f"{evidence}, but the stated number is {samples}."
        return Finding(name, "failed", evidence, cause, "--batch-size, --local-steps, or --defense other")
    if rank < most and head.rounding < _RANK_ABOVE:
        evidence += f"; {samples} different samples would give {most}."
        held = "1 sample" if rank == 1 else f"{rank} samples"
        cause = f"the batch holds {held}, or some of its samples are equal or fitted already"
        return Finding(name, "suspicious", evidence, cause, f"--batch-size {rank}")
    return Finding(name, "passed", f"{evidence}; {samples} can give {most} at most.")


def _of_samples(count: int) -> str:
    return "1 sample is" if count == 1 else f"{count} samples are"


def _labels_fit(head: Head, samples: int) -> Finding:
    name = "labels in the batch"
    least = int(counted(head, samples).sum())
    evidence = f"The head's bias gradient proves at least {least} labels for a batch of {samples}."
    if least <= samples:
        return Finding(name, "passed", evidence)
    if int(counted(head, samples, sign=-1).sum()) <= samples:
        return Finding(name, "failed", evidence, _REVERSED, _TURN)
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
    rounding = 10 * head.rounding + head.of_softmax
    if misfit > _ONE_SAMPLE_BELOW + rounding:
        cause = (
            "weights of another round or model, more than one sample, a loss that is no plain cross-entropy, or noise"
        )
        return Finding(name, "failed", evidence + ".", cause, "--weights, --batch-size, or --defense other")
    if abs(scale - 1) > 0.01 + rounding:
        cause = f"the update is {scale:.4g} times a gradient: a learning rate, a number of steps, or clipping"
        return Finding(name, "failed", evidence + ", not 1.", cause, "--learning-rate, --local-steps, --defense")
    return Finding(name, "passed", evidence + ".")


def check_counts(head: Head, samples: int) -> Finding:
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
    if here < 0.35 or many(head, samples):
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


def _counts_error(p: np.ndarray, samples: int, gradient: np.ndarray) -> float:
    """How far the label counts of a bias gradient are from whole numbers >= 0, at most, with mean outputs p (C,)."""
    counts = samples * (p - gradient)
    return float(np.abs(counts - np.maximum(np.round(counts), 0)).max())


def reversed_fits(head: Head, samples: int) -> bool:
    """Whether the counts of the reversed gradient are nearer to whole numbers than those of the gradient."""
    db = head.bias_gradient
    p = None if db is None else _predicted(head, db)
    return db is not None and p is not None and _counts_error(p, samples, -db) < _counts_error(p, samples, db)


def many(head: Head, samples: int) -> bool:
    """Whether there are so many samples that the softmax of their mean features tells nothing of their labels."""
    return samples >= 2 * head.kernel.shape[1]
