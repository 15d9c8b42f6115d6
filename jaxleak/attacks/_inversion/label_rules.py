"""Rules that infer the labels of a batch from the gradient of the last dense layer.

For the mean cross-entropy of B samples with features f_b and softmax outputs p_b, column c of the kernel's gradient is
`dW_c = mean_b f_b (p_bc - [y_b = c])`, and the bias' gradient `db_c = mean_b p_bc - n_c / B` with n_c the number of
samples of class c. Therefore n_c / B = mean_b p_bc - db_c: given the bias' gradient, only the mean softmax output is
unknown. Rules that read the kernel alone need features >= 0, as after a ReLU, and can only see n_c times the unknown
scale of the features.

Every rule answers with sorted labels: a gradient, being a sum over the batch, has no order. All are pure and may be
jitted with a static batch size.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._tree import concrete
from jaxleak.models._classifier import HeadLayer

# Constants of the rule `calibrated`: the number of fixed-point rounds, and the weight of its softmax estimate when it
# is averaged with the uniform distribution.
_ROUNDS = 5
_TRUST = 0.5


class HeadGradient(NamedTuple):
    """What is known about the last dense layer. Fields that a rule does not read may be None."""

    kernel_gradient: jax.Array  # (F, C), of the mean cross-entropy
    bias_gradient: jax.Array | None = None  # (C,)
    kernel: jax.Array | None = None  # (F, C), the layer's parameters, which a server knows
    bias: jax.Array | None = None  # (C,)
    key: jax.Array | None = None  # for rules that draw


#: `(head, batch_size) -> labels`, (B,) int32 in [0, C), ascending.
LabelRule = Callable[[HeadGradient, int], jax.Array]


def single_label(head: HeadGradient, batch_size: int) -> jax.Array:
    """The rule of iDLG for one sample: the class whose column sum is lowest, the only negative one for features >= 0.

    It is exact with one sample (Zhao et al., *iDLG: Improved deep leakage from gradients*, 2020).

    Raises:
        ValueError: if the batch size is not 1.
    """
    if batch_size != 1:
        raise ValueError(_of_one_sample("single_label", batch_size))
    return _smallest(head.kernel_gradient.sum(axis=0), 1)


def longest_column(head: HeadGradient, batch_size: int) -> jax.Array:
    """The label of one sample without a bias, whatever sign its features have: the class with the longest column.

    The columns are `f (p_c - [y = c])` and sum to zero, so the label's column is as long as all others together. With
    two classes both columns are equally long, so the rule falls back on `single_label`, which needs features >= 0.
    Ours.

    Raises:
        ValueError: if the batch size is not 1.
    """
    if batch_size != 1:
        raise ValueError(_of_one_sample("longest_column", batch_size))
    if head.kernel_gradient.shape[1] == 2:
        return single_label(head, batch_size)
    return _smallest(-jnp.linalg.norm(head.kernel_gradient, axis=0), 1)


def yin(head: HeadGradient, batch_size: int) -> jax.Array:
    """The B classes whose smallest entry over the features is lowest (Yin et al., *See through gradients*, 2021).

    The rule returns distinct labels only: it misses repeated labels, and returns classes that are not in the batch
    instead.

    Raises:
        ValueError: if there are more samples than classes.
    """
    _check_distinct("yin", head, batch_size)
    return _smallest(head.kernel_gradient.min(axis=0), batch_size)


def sum_rule(head: HeadGradient, batch_size: int) -> jax.Array:
    """The B classes with the smallest column sums (FedLeak, section 5, label inference, up to C samples).

    Like `yin`, the rule returns distinct labels only.

    Raises:
        ValueError: if there are more samples than classes.
    """
    _check_distinct("sum_rule", head, batch_size)
    return _smallest(head.kernel_gradient.sum(axis=0), batch_size)


def counting_rule(head: HeadGradient, batch_size: int) -> jax.Array:
    """FedLeak's rule for more samples than classes (section 5, label inference).

    `c_j = floor(B sum_i (dW_ij - m) / sum_ij (dW_ij - m))`. The paper's max W is read as m = max dW, and "the class
    with the lowest gradient strength", which gets all remaining samples, as the one with the smallest column sum.

    Raises:
        ValueError: if there are no more samples than classes.
    """
    classes = head.kernel_gradient.shape[1]
    if batch_size <= classes:
        raise ValueError(f"counting_rule needs more samples than classes, got {batch_size} samples, {classes} classes")
    counts = jnp.floor(batch_size * _shares_below(head.kernel_gradient.max(), head)).astype(jnp.int32)
    lowest = jnp.argmin(head.kernel_gradient.sum(axis=0))
    return _listed(counts.at[lowest].add(batch_size - counts.sum()), batch_size)


def fedleak(head: HeadGradient, batch_size: int) -> jax.Array:
    """FedLeak's label inference as a whole: `sum_rule` up to as many samples as classes, `counting_rule` beyond."""
    rule = sum_rule if batch_size <= head.kernel_gradient.shape[1] else counting_rule
    return rule(head, batch_size)


def corrected_counts(head: HeadGradient, batch_size: int) -> jax.Array:
    """`counting_rule` with its remainder and its zero point corrected, for any batch size; the best without a bias.

    The samples that the floor leaves over go to the largest fractions. The zero point is corrected because, measured
    from the largest entry, classes that are absent from the batch would get a share too. If uniform labels would leave
    half a class or more absent, C (1 - 1/C)^B >= 1/2, shares are measured from the largest column sum instead, which
    then belongs to an absent class.
    """
    return _listed(_nearest_counts(_counts_by_kernel(head, batch_size), batch_size), batch_size)


def bias_rule(head: HeadGradient, batch_size: int) -> jax.Array:
    """Counts nearest to `B (1/C - db_c)`: the identity of this module with the mean softmax taken as uniform.

    The rule is not in the FedLeak paper. It works for features of any sign, and is rarely wrong while the network is
    untrained.

    Raises:
        ValueError: without the bias' gradient.
    """
    counts = _counts_by_bias(_bias_gradient("bias_rule", head), batch_size)
    return _listed(_nearest_counts(counts, batch_size), batch_size)


def averaged_counts(head: HeadGradient, batch_size: int) -> jax.Array:
    """Counts nearest to the mean of what `bias_rule` and `corrected_counts` count; the latter alone without a bias.

    The rule is for uploads whose entries a defense has pruned or rounded: the bias has few entries, while the kernel
    has many small ones. It assumes features >= 0. Ours.
    """
    counts = _counts_by_kernel(head, batch_size)
    if head.bias_gradient is not None:
        counts = (counts + _counts_by_bias(head.bias_gradient, batch_size)) / 2
    return _listed(_nearest_counts(counts, batch_size), batch_size)


def calibrated(head: HeadGradient, batch_size: int) -> jax.Array:
    """Counts nearest to `B (p_c - db_c)` with the mean softmax p estimated from the same gradient.

    The mean feature f is the least-squares fit of dW_c = f db_c. With counts n, the mean feature of class c is (p_c f -
    dW_c) B / n_c, as in iLRG (Ma et al., *Instance-wise batch label restoration*, ICLR 2023). The layer maps these
    features to outputs, and their mean, weighted by n, is the next p; iLRG solves one linear system instead. If
    features vary within a class, this p is too sharp, so it is averaged with the uniform distribution.

    Features >= 0 are assumed.

    Raises:
        ValueError: without the bias' gradient or the layer's parameters.
    """
    gradient = _bias_gradient("calibrated", head)
    if head.kernel is None or head.bias is None:
        raise ValueError("calibrated needs the kernel and the bias of the last dense layer")
    kernel, bias, slope = head.kernel, head.bias, head.kernel_gradient

    def outputs(features: jax.Array) -> jax.Array:
        return _TRUST * jax.nn.softmax(features @ kernel + bias) + (1 - _TRUST) / gradient.size

    def counts(p: jax.Array) -> jax.Array:
        # p - db sums to one, unless noise moved the gradient.
        return batch_size * _normalised(jnp.maximum(p - gradient, 0.0), p)

    square = gradient @ gradient
    mean = slope @ gradient / jnp.where(square > 0, square, 1.0)

    def refine(_: int, p: jax.Array) -> jax.Array:
        n = counts(p)
        present = n > 0.5
        own = (p[:, None] * mean - slope.T) * batch_size / jnp.maximum(n, 0.5)[:, None]
        features = jnp.maximum(jnp.where(present[:, None], own, mean), 0.0)
        # In a batch of one, all counts may be 1/2 or less although they sum to B; every class then keeps its weight.
        weight = jnp.where(present.any(), jnp.where(present, n, 0.0), n)
        return weight @ outputs(features) / weight.sum()

    p = jax.lax.fori_loop(0, _ROUNDS, refine, outputs(mean))
    return _listed(_nearest_counts(batch_size * (p - gradient), batch_size), batch_size)


def random(head: HeadGradient, batch_size: int) -> jax.Array:
    """Uniform labels that ignore the gradient: the floor that every rule has to beat.

    Raises:
        ValueError: without a key.
    """
    if head.key is None:
        raise ValueError("random labels need a key")
    return jnp.sort(jax.random.randint(head.key, (batch_size,), 0, head.kernel_gradient.shape[1], jnp.int32))


LABEL_RULES: Mapping[str, LabelRule] = {
    "single_label": single_label,
    "longest_column": longest_column,
    "yin": yin,
    "sum_rule": sum_rule,
    "counting_rule": counting_rule,
    "fedleak": fedleak,
    "corrected_counts": corrected_counts,
    "bias_rule": bias_rule,
    "averaged_counts": averaged_counts,
    "calibrated": calibrated,
    "random": random,
}


def infer_labels(
    rule: str,
    kernel_gradient: jax.Array,
    bias_gradient: jax.Array | None,
    batch_size: int,
    *,
    kernel: jax.Array | None = None,
    bias: jax.Array | None = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Labels of a batch from the gradient of the mean cross-entropy at the last dense layer.

    Under another loss the labels are wrong without any warning. If the loss is a sum over the batch, divide the
    gradients by B first.

    Args:
        rule: one of `LABEL_RULES`.
        kernel_gradient: (F, C).
        bias_gradient: (C,), or None where the layer has no bias; read by "bias_rule", "averaged_counts" and
            "calibrated".
        batch_size: B >= 1, static. For several local steps, the samples of all of them.
        kernel: (F, C), the layer's kernel; read by "calibrated".
        bias: (C,), the layer's bias; read by "calibrated".
        key: PRNG key; read by "random".

    Returns:
        (B,) int32 in [0, C), ascending.

    Raises:
        ValueError: if the rule is unknown, a batch size is outside its range, something that it reads is missing, or
            the shapes do not fit, or values are not finite.
    """
    _validate.one_of(LABEL_RULES, rule=rule)
    _validate.count(batch_size=batch_size)
    if kernel_gradient.ndim != 2:
        raise ValueError(f"kernel_gradient must have shape (F, C), got {kernel_gradient.shape}")
    features, classes = kernel_gradient.shape
    shapes = {"bias_gradient": (bias_gradient, (classes,)), "bias": (bias, (classes,))}
    for name, (array, shape) in {**shapes, "kernel": (kernel, (features, classes))}.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} must have shape {shape} to fit kernel_gradient, got {array.shape}")
    given = {"kernel_gradient": kernel_gradient, "bias_gradient": bias_gradient, "kernel": kernel, "bias": bias}
    _validate.finite_arrays(**{name: np.asarray(array) for name, array in concrete(given).items() if array is not None})
    return LABEL_RULES[rule](HeadGradient(kernel_gradient, bias_gradient, kernel, bias, key), batch_size)


def rule_of_one_sample(bias_gradient: jax.Array | None) -> str:
    """The name of the rule that is exact for one sample; it depends on whether the head has a bias."""
    return "longest_column" if bias_gradient is None else "bias_rule"


def label_of_one_sample(gradient: HeadLayer) -> jax.Array:
    """The label (1,) behind one sample's gradient of a dense layer, by the rule that is exact for one sample.

    Args:
        gradient: kernel and bias gradient of the last dense layer, or of the rows of classes that replace it.
    """
    return infer_labels(rule_of_one_sample(gradient.bias), gradient.kernel, gradient.bias, 1)


def _of_one_sample(rule: str, batch_size: int) -> str:
    return (
        f"{rule} infers the label of one sample, got batch_size {batch_size}: for more, take the rule calibrated "
        "(--labels calibrated), or corrected_counts if the last dense layer has no bias, or have the labels granted "
        "(--labels given)"
    )


def _check_distinct(rule: str, head: HeadGradient, batch_size: int) -> None:
    classes = head.kernel_gradient.shape[1]
    if batch_size > classes:
        raise ValueError(f"{rule} gives distinct labels only: batch_size {batch_size} is more than {classes} classes")


def _bias_gradient(rule: str, head: HeadGradient) -> jax.Array:
    if head.bias_gradient is None:
        raise ValueError(
            f"{rule} needs the gradient of the bias; longest_column does without for one sample, and corrected_counts "
            "for any number whose features are >= 0, as behind a ReLU: it is wrong behind LoRA or layer normalisation"
        )
    return head.bias_gradient


def _smallest(values: jax.Array, count: int) -> jax.Array:
    """The positions of the `count` smallest values, ascending."""
    return jnp.sort(jnp.argsort(values)[:count]).astype(jnp.int32)


def _counts_by_bias(gradient: jax.Array, batch_size: int) -> jax.Array:
    """(C,) the numbers that `bias_rule` rounds: exact counts if the mean softmax output is uniform."""
    return batch_size * (1 / gradient.size - gradient)


def _counts_by_kernel(head: HeadGradient, batch_size: int) -> jax.Array:
    """(C,) the numbers >= 0 that `corrected_counts` rounds."""
    features, classes = head.kernel_gradient.shape
    absent = classes * (1 - 1 / classes) ** batch_size
    zero = head.kernel_gradient.sum(axis=0).max() / features if absent >= 0.5 else head.kernel_gradient.max()
    return batch_size * _shares_below(zero, head)


def _shares_below(zero: jax.Array, head: HeadGradient) -> jax.Array:
    """The share (C,) of each column in the gradient's total mass below `zero`; the shares sum to one."""
    depth = jnp.sum(zero - head.kernel_gradient, axis=0)
    return _normalised(depth, 1 / depth.size)


def _normalised(x: jax.Array, otherwise: jax.Array | float) -> jax.Array:
    """`x` divided by its sum, or `otherwise` if the sum is not positive."""
    total = x.sum()
    return jnp.where(total > 0, x / jnp.where(total > 0, total, 1.0), otherwise)


def _nearest_counts(wanted: jax.Array, total: int) -> jax.Array:
    """Integers >= 0 that sum to `total` and have the least squared distance to `wanted` (C,).

    Each unit goes to the entry with the largest deficit, which solves this convex problem exactly. For non-negative
    numbers whose sum is `total`, this is the method of largest remainders; it also works for negative numbers.
    """

    def give(_: int, counts: jax.Array) -> jax.Array:
        return counts.at[jnp.argmax(wanted - counts)].add(1)

    return jax.lax.fori_loop(0, total, give, jnp.zeros(wanted.shape, jnp.int32))


def _listed(counts: jax.Array, total: int) -> jax.Array:
    """Counts (C,) that sum to `total` as sorted labels."""
    return jnp.repeat(jnp.arange(counts.size, dtype=jnp.int32), counts, total_repeat_length=total)
