"""The label of one sample where the update has no bias gradient of a plain last dense layer, or why none is read."""

import jax.numpy as jnp

from jaxleak.attacks._inversion.class_rows import ClassLeaf, class_leaves, class_rows
from jaxleak.audit._checks.head import head_of
from jaxleak.audit._checks.labels import Labels, label_of_rows
from jaxleak.audit._verdict.case import Case

#: Why no label is claimed where no last dense layer shows labels.
_NO_HEAD = "No label is claimed: the update has no gradient of the last dense layer, from which labels are read."
_NOT_ALONE = (
    "No label is claimed: something follows the last dense layer or is added to it, so that labels are not read from "
    "its gradient."
)
_IN_PART = (
    "No label is claimed: in the place of the last dense layer the update has the gradient of {}. From that the label "
    "of one sample is read, among three classes or more, where the client took one step and has no defense."
)


def with_read_label(case: Case) -> tuple[Case, list[str]]:
    """The case, with the label that the update shows without a plain head among what attacks see, and a sentence on it.

    The label is the attacker's own: nothing but the update and the weights is read.
    """
    seen, model = case.observation, case.share.model
    if not of_one_sample(case):
        return case, []
    if model.head and head_of(model, seen.payload, seen.params, mode=case.share.batch_norm) is not None:
        return case, []
    leaves = _leaves(case)
    labels = _labels(case, leaves) if leaves else None
    if labels is None or not labels.proven.any():
        return case, []
    label = int(labels.proven.argmax())
    told = f"Attacks take class {label} for the label, as the gradient of {_called(leaves)} shows it."
    return case._replace(observation=seen._replace(labels=jnp.full(1, label, jnp.int32))), [told]


def labels_without_head(case: Case) -> Labels:
    """The label of one sample that rows of classes prove, or why no label is claimed.

    Args:
        case: an audited update that has no gradient of a plain last dense layer's bias.
    """
    leaves = _leaves(case)
    if leaves and of_one_sample(case):
        return _labels(case, leaves)
    model = case.share.model
    why = _IN_PART.format(_called(leaves)) if leaves else _NOT_ALONE if model.head else _NO_HEAD
    return Labels.none(model.num_classes)._replace(withheld=why)


def of_one_sample(case: Case) -> bool:
    """Whether the update is one sample's exact gradient, with more than two classes, so that rows tell the label."""
    single = case.samples == 1 and case.share.total_steps == 1
    return single and not case.defended and case.share.model.num_classes > 2


def _leaves(case: Case) -> tuple[ClassLeaf, ...]:
    seen = case.observation
    return class_leaves(case.share.model, seen.params, seen.payload, case.share.batch_norm)


def _called(leaves: tuple[ClassLeaf, ...]) -> str:
    return " and ".join(leaf.name for leaf in leaves)


def _labels(case: Case, leaves: tuple[ClassLeaf, ...]) -> Labels:
    gradient = class_rows(leaves, case.observation.payload)
    weights = class_rows(leaves, case.observation.params["params"])
    return label_of_rows(_called(leaves), gradient, weights, case.precision)
