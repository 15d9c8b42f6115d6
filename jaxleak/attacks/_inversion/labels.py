"""The source of an inversion's labels: granted, inferred by a rule, optimised jointly, or none at all."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Observation, PyTree, loss_of
from jaxleak.attacks._inversion.label_rules import LABEL_RULES, infer_labels
from jaxleak.attacks._inversion.loss_probe import scale_for_rules
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.objectives import soft_labels

#: Sources of labels. "none" is for attacks that read no labels; their answers hold -1 in place of labels.
LABEL_STRATEGIES = ("given", "joint", "none", *LABEL_RULES)


class LabelSource(NamedTuple):
    """A strategy for labels on one model.

    start: `key -> ` the label logits (B, C) that are optimised, or () where labels are not.
    fixed: `(observation, label_key) -> (B, C)` soft labels that are not optimised; None where they are.
    hard: `(logits or (), soft labels) -> (B,)`, the answer.
    reads_labels: whether the threat must grant the labels.
    """

    start: Callable[[jax.Array], PyTree]
    fixed: Callable[[Observation, jax.Array], jax.Array | None]
    hard: Callable[[PyTree, jax.Array], jax.Array]
    reads_labels: bool = False

    def soft(self, logits: PyTree, fixed: jax.Array | None) -> jax.Array:
        """The candidate's soft labels (B, C)."""
        return jax.nn.softmax(logits) if fixed is None else fixed


def label_source(strategy: str, setup: Setup) -> LabelSource:
    """The source of a strategy, a member of `LABEL_STRATEGIES`.

    Raises:
        ValueError: on an unknown strategy, or a rule that cannot serve this model, batch size or client's loss.
    """
    _validate.one_of(LABEL_STRATEGIES, labels=strategy)
    size, classes = setup.batch_size, setup.model.num_classes
    if strategy == "joint":
        return LabelSource(
            lambda key: jax.random.normal(key, (size, classes)),
            lambda *_: None,
            lambda logits, _: _likeliest(logits),
        )
    if strategy == "given":

        def granted(observation: Observation, _: jax.Array) -> jax.Array:
            assert observation.labels is not None  # the engine has required them
            found = soft_labels(observation.labels, classes)
            # A class that does not exist becomes a row of zeros. A compiled program cannot raise, so such a row becomes
            # NaN, which ends the search visibly. With several labels per image, a row of zeros is valid: it means no
            # finding.
            exists = found.any(axis=-1, keepdims=True) | (observation.labels.ndim > 1)
            return jnp.where(exists, found, jnp.nan)

        return LabelSource(_nothing, granted, _of_soft, reads_labels=True)
    if strategy == "none":
        unknown = jnp.full(size, -1, jnp.int32)
        return LabelSource(_nothing, lambda *_: jnp.full((size, classes), 1 / classes), lambda *_: unknown)
    scale = _scale(strategy, setup)
    _try(strategy, setup)

    def inferred(observation: Observation, label_key: jax.Array) -> jax.Array:
        found = inferred_labels(strategy, setup, observation, label_key, scale)
        if setup.parts > 1:
            # Rules return labels sorted by class. Without a shuffle, each local step or client would get samples of few
            # classes.
            order = jax.random.fold_in(jax.random.wrap_key_data(label_key), setup.parts)
            found = jax.random.permutation(order, found)
        return soft_labels(found, classes)

    return LabelSource(_nothing, inferred, _of_soft)


def inferred_labels(
    rule: str, setup: Setup, observation: Observation, label_key: jax.Array, scale: float = 1.0
) -> jax.Array:
    """The labels (B,) that a rule infers from the head's gradient, `scale` times that of the mean cross-entropy."""
    model = setup.model
    gradient = model.head_of(observation.payload, gradient=True)
    weights = model.head_of(observation.params["params"], gradient=False)
    if scale != 1:
        gradient = jax.tree.map(lambda leaf: leaf / scale, gradient)
    return infer_labels(
        rule,
        gradient.kernel,
        gradient.bias,
        setup.batch_size,
        kernel=weights.kernel,
        bias=weights.bias,
        key=jax.random.wrap_key_data(label_key) if rule == "random" else None,
    )


def _scale(rule: str, setup: Setup) -> float:
    """The factor from the mean cross-entropy's gradient to that of the client's loss; 1 if no loss is stated.

    Raises:
        ValueError: if the rule cannot serve the loss.
    """
    loss = loss_of(setup.share)
    if loss is None or rule == "random":  # the rule "random" reads no gradient
        return 1.0
    try:
        return scale_for_rules(loss, setup.model.num_classes, setup.of_a_step)
    except ValueError as error:
        raise ValueError(
            f'labels={rule!r} cannot be inferred under this loss: {error}; labels can be "given" where the threat '
            'grants them, "joint" where each is a distribution over the classes, or "none" for attacks that read none, '
            "such as any_loss"
        ) from error


def _try(rule: str, setup: Setup) -> None:
    # Raise the rule's own error before anything is compiled, if the rule cannot serve this batch size.
    variables = jax.eval_shape(setup.model.init, jax.random.key(0))
    seen = Observation(jnp.zeros((), jnp.int32), variables, variables["params"])
    jax.eval_shape(lambda seen: inferred_labels(rule, setup, seen, jax.random.key_data(jax.random.key(0))), seen)


def _nothing(key: jax.Array) -> tuple[()]:
    del key
    return ()


def _of_soft(logits: PyTree, soft: jax.Array) -> jax.Array:
    del logits
    return _likeliest(soft)


def _likeliest(y: jax.Array) -> jax.Array:
    return jnp.argmax(y, axis=-1).astype(jnp.int32)
