"""The labels that a head's gradient proves, and what the proof rests on."""

from typing import NamedTuple

import numpy as np

from jaxleak.attacks._inversion.label_rules import label_of_one_sample
from jaxleak.audit._checks.defended import certain
from jaxleak.audit._checks.head import Head, columns_of, counted, highest_rank, rank_of
from jaxleak.audit._checks.precision import Precision
from jaxleak.audit._checks.predicted import check_counts, many, reversed_fits, shows_sign
from jaxleak.defenses import Defense
from jaxleak.models._classifier import HeadLayer

#: Share of the largest singular value above which another one counts as a sample. Samples of small weight in the loss
#: have smaller singular values. If these counted, they would multiply the counts of the class with the large weight.
_WEIGHTY = 0.1
#: Label smoothing up to which an absent class is never taken for one in the batch: smoothing moves the entry of the
#: class in the bias gradient by this number over the number of classes.
_SMOOTHING = 0.1
#: The same where the counts of labels are not whole numbers, as when labels are smoothed more than usual.
_SMOOTHING_OF_DOUBTED = 0.5
#: Share of the largest entry of a bias gradient below which the sign of another entry may be rounding.
_OF_FINDINGS = 1e-4
#: Relative misfit up to which rows of classes have the form that one sample gives: of rank one, with a sum of zero.
_ONE_SAMPLE_BELOW = 1e-3
#: Share of the largest row below which the direction of another row may be rounding.
_OF_ROWS = 1e-5
_NO_SCALE = "nothing confirms the scale of the update"
_VISITS = "a sample may have been in several local steps"
_DEFENDED = "the client's defense breaks the equations that count them"
_UNBOUNDED = "the defense that is stated may have changed entries by any amount"
_UNKNOWN = "No label is claimed: {}, and negative entries of the update need not be those of the batch's gradient."
_HIDDEN = (
    "No label is claimed: no entry of the head's bias gradient is so far below zero that neither the defense that is "
    "stated nor label smoothing could explain it."
)
_OTHER_SIGN = "No label is claimed: the head's gradient looks like one of the other sign."
_TOO_SMALL = (
    "No label is claimed: no entry of the head's bias gradient is so far below zero that label smoothing could not "
    "explain it. A learning rate that is stated too large makes all entries small."
)
_NO_ROWS = "No label is claimed: the gradient of {} is zero."
_NOT_READ = "No label is claimed: the gradient of {} does not have the form that one sample gives."
_NOT_OPPOSITE = "No label is claimed: in the gradient of {} the rows of the classes do not show which is the label's."


class Labels(NamedTuple):
    """How many samples of every class there are at least, (C,) integers each."""

    proven: np.ndarray  # by the head's gradient alone, whatever the batch size is said to be
    if_stated: np.ndarray  # if the batch is as stated and labels are not smoothed; nowhere less than what is proven
    samples: int  # n, as is stated
    uncounted: str = ""  # why counts are not claimed: then each class in the batch counts once
    signed: bool = False  # whether the gradient itself shows that its sign is the stated one
    stated: tuple[str, ...] = ()  # what the proof takes from statements of the client, such as "momentum"
    withheld: str = ""  # why no label is claimed, in a sentence
    findings: bool = False  # whether every output is a finding of its own; a sample has none, one or several
    proof: str = "the head's gradient"  # the part of the update that proves the labels

    @staticmethod
    def none(classes: int) -> "Labels":
        """Labels of so many `classes`, of which none is proven."""
        return Labels(np.zeros(classes, int), np.zeros(classes, int), 0)


def labels_of(head: Head, samples: int, *, local_steps: int = 1) -> Labels:
    """The labels that a bias gradient proves; none without one.

    The mean softmax output is positive, so that `n_c > -n db_c`: a class with a negative entry is in the batch. With
    label smoothing, this is certain if the entry is less than `-0.1 / C`, or `-0.5 / C` where the counts are not whole
    numbers, which smoothing may explain. The proven count of a class grows with n, for which the rank of the kernel's
    gradient is a lower bound that nobody has to state. It also grows with the update's scale. Every class in the batch
    counts only once where nothing confirms the scale, or where a sample may be in several local steps. The same holds
    for several samples and one logit, as the second class may have a weight in the loss.

    Nothing is proven where the gradient looks like one of the other sign: by the signs of its columns, or else by label
    counts. The equations of one sample show the sign if they hold for it and fail for the other one. Label counts after
    several steps say nothing of scale or sign, since later steps have other weights and softmax outputs. The proof
    does not need these outputs: the gradients of all steps have positive weights in the update.

    Args:
        head: from `head_of`, of a gradient of the mean loss.
        samples: n >= 1 that are stated, of all local steps.
        local_steps: stated number of steps of all epochs, >= 1.
    """
    if head.bias_gradient is None:
        return Labels.none(head.kernel.shape[1])
    positive, negative, _ = columns_of(head) if head.positive else (0, 0, 0)
    doubted = samples > 1 and local_steps == 1 and check_counts(head, samples).status == "suspicious"
    if negative > positive or (negative == positive and doubted and reversed_fits(head, samples)):
        return Labels.none(head.kernel.shape[1])._replace(withheld=_OTHER_SIGN)
    signed = positive > negative or (samples == 1 and local_steps == 1 and shows_sign(head))
    sure, seen = _present(head, _SMOOTHING_OF_DOUBTED if doubted else _SMOOTHING)
    withheld = "" if sure.any() else _TOO_SMALL
    # A weight of class 1 (PyTorch's pos_weight) is usual with one logit, and multiplies counts without other traces.
    unconfirmed = samples > 1 and (head.one_logit or doubted or many(head, samples))
    if unconfirmed or local_steps > 1:
        why = _NO_SCALE if unconfirmed else _VISITS
        return Labels(sure, seen, samples, why, signed, withheld=withheld)
    at_least = rank_of(head)
    stated = max(samples, at_least) if at_least == highest_rank(head, samples) else at_least
    proven = np.where(sure > 0, counted(head, rank_of(head, _WEIGHTY)), 0)
    return Labels(proven, counted(head, stated), samples, "", signed, withheld=withheld)


def label_of_rows(called: str, gradient: HeadLayer, weights: HeadLayer, precision: Precision) -> Labels:
    """The label of one sample that leaves with a row for every class prove, if no last dense layer can be read.

    The gradient of these leaves is `z delta^T` with an unknown z (`jaxleak.attacks._inversion.class_rows`), and in
    `delta = softmax(logits) - onehot(y)` only the entry of the label is negative. Nothing is proven unless the gradient
    has rank one, the entries of delta sum to zero, and exactly one entry has its sign. For a bias, z is known, and the
    update itself shows the sign. The stated sign has to be trusted only if no more than two entries exceed rounding.

    Args:
        called: the names of the leaves, in words.
        gradient: rows of the leaves' gradient for one sample and one step, from `class_rows`.
        weights: rows of the leaves' weights, from `class_rows`.
        precision: the format of the update.
    """
    kernel = np.asarray(gradient.kernel, np.float64)
    bias = None if gradient.bias is None else np.asarray(gradient.bias, np.float64)
    nothing = Labels.none(kernel.shape[1])
    rows = kernel if bias is None else np.vstack([kernel, bias])
    if not rows.any():
        return nothing._replace(withheld=_NO_ROWS.format(called))
    before = [np.asarray(part, np.float64).ravel() for part in weights if part is not None]
    error = precision.error(rows, np.concatenate(before))
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    delta = values[0] * directions[0]
    largest = float(np.abs(delta).max())
    of_rank_one = np.linalg.norm(values[1:]) <= _ONE_SAMPLE_BELOW * values[0] + error
    # No vector of C numbers has a sum of more than the root of C times its norm.
    if not of_rank_one or abs(delta.sum()) > _ONE_SAMPLE_BELOW * largest + np.sqrt(delta.size) * error:
        return nothing._replace(withheld=_NOT_READ.format(called))
    label = int(label_of_one_sample(gradient)[0])
    delta = delta * -np.sign(delta[label]) if bias is None else delta * np.sign(delta @ bias)
    sure = _OF_ROWS * largest + error
    negative, positive = np.flatnonzero(delta < -sure), int((delta > sure).sum())
    if negative.tolist() != [label] or positive < (2 if bias is None else 1):
        return nothing._replace(withheld=_NOT_OPPOSITE.format(called))
    proven = np.eye(kernel.shape[1], dtype=int)[label]
    proof = f"the gradient of {called}, in which the row of one class is opposite to all others,"
    stated = ("batch of one sample", "labels without smoothing")
    return Labels(proven, proven, 1, signed=positive > 1, stated=stated, proof=proof)


def findings_of(head: Head, samples: int) -> Labels:
    """The findings that the bias gradient proves to be in the batch, where every output has a binary cross-entropy.

    The entry of output c is a mean of w (sigmoid(z_c) - t_c). The weights w > 0 come from PyTorch's `pos_weight` and
    the reduction, for example. Only a sample with t_c = 1 makes the entry negative. The number of samples with a
    finding is not claimed, since their weights are not known.

    Args:
        head: from `head_of`, of a gradient of any positive scale, after any number of steps.
        samples: n >= 1 that are stated, of all local steps.
    """
    if head.bias_gradient is None:
        return Labels.none(head.kernel.shape[1])
    lowest = head.bias_rounding + _OF_FINDINGS * float(np.abs(head.bias_gradient).max())
    present = (head.bias_gradient < -lowest).astype(int)
    return Labels(present, present, samples, "samples may weigh differently in the loss", findings=True)


def defended_labels(head: Head, samples: int, defense: Defense | None) -> Labels:
    """The labels that the bias gradient of a defended update proves: one of each class, if any.

    A defense that leaves entries out, rounds them, scales them down or adds noise of a known size keeps the sign of an
    entry that is far enough from zero (`certain`). Nothing else that `labels_of` uses survives such a defense.

    Args:
        head: from `head_of`.
        samples: n >= 1 that are stated, of all local steps.
        defense: as it is stated; None if it is not known.
    """
    nothing = Labels.none(head.kernel.shape[1])
    if head.bias_gradient is None:
        return nothing
    left = certain(head, defense)
    if left is None:
        why = "the client's defense is not known" if defense is None else _UNBOUNDED
        return nothing._replace(withheld=_UNKNOWN.format(why))
    sure, seen = _present(left, _SMOOTHING)
    withheld = "" if sure.any() else _HIDDEN
    return Labels(sure, seen, samples, _DEFENDED, stated=("defense",), withheld=withheld)


def _present(head: Head, smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """(C,) each, 1 for classes in the batch: those certain even with smoothed labels, and without smoothing."""
    assert head.bias_gradient is not None
    lowest = -head.slack(1)
    sure = head.bias_gradient < lowest - smoothing / head.kernel.shape[1]
    return sure.astype(int), (head.bias_gradient < lowest).astype(int)
