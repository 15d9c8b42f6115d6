"""The label of one sample with an adapted or frozen last layer, and the reasons if no label can be read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import case_of

from jaxleak import Observation, audit, models, protocols
from jaxleak.attacks._inversion.class_rows import ClassLeaf, class_leaves, class_rows
from jaxleak.attacks._inversion.label_rules import label_of_one_sample
from jaxleak.audit._checks.labels import label_of_rows
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._verdict import stages
from jaxleak.audit._verdict.class_label import labels_without_head, with_read_label
from jaxleak.models._classifier import HeadLayer

CLASSES, WIDTH, RANK = 5, 5, 3  # as many features as classes: both axes of a kernel may be the classes


def _drawn(seed, *shape):
    return reference.normal(*shape, seed=seed) / 2


def _features(p, x):
    return jnp.tanh(x.reshape(len(x), -1) @ p["first"])


FIRST, FROZEN = {"first": _drawn(0, 36, WIDTH)}, _drawn(1, WIDTH, CLASSES)

#: Networks with a frozen last layer: their trained parameters, and the logits of features f.
HEADS = {
    "lora": ({"a": _drawn(2, RANK, WIDTH), "b": _drawn(3, CLASSES, RANK)}, lambda p, f: f @ p["a"].T @ p["b"].T),
    "lora merged": (
        {"a": _drawn(2, WIDTH, RANK), "b": _drawn(3, RANK, CLASSES)},
        lambda p, f: f @ (2.0 * p["a"] @ p["b"]),
    ),
    "lora of rank 1": ({"a": _drawn(2, WIDTH), "b": _drawn(3, CLASSES)}, lambda p, f: (f @ p["a"])[:, None] * p["b"]),
    "bias": ({"b": jnp.zeros(CLASSES)}, lambda p, f: p["b"] / 3),
    "bias of either sign": ({"b": jnp.zeros((1, CLASSES))}, lambda p, f: -2 * p["b"]),
    "both": (
        {"b": jnp.zeros(CLASSES), "square": _drawn(4, WIDTH, CLASSES)},
        lambda p, f: f @ p["square"] + p["b"],
    ),
}
#: Names of the leaves with a row for every class, each with the axis of the classes.
LEAVES = {
    "lora": [("b", 0)],
    "lora merged": [("b", 1)],
    "lora of rank 1": [("b", 0)],
    "bias": [("b", 0)],
    "bias of either sign": [("b", 1)],
    "both": [("b", 0), ("square", 1)],
}


@functools.cache
def _network(head, after="nothing"):
    own, logits = HEADS[head]

    def apply(variables, x):
        p = variables["params"]
        f = _features(p, x)
        return AFTER[after](f @ FROZEN + logits(p, f))

    return models.from_function(apply, {"params": FIRST | own}, image_shape=(6, 6, 1), num_classes=CLASSES)


#: Functions after the logits; some leave the rows unchanged.
AFTER = {
    "nothing": lambda z: z,
    "temperature": lambda z: z / 2,
    "log-softmax": jax.nn.log_softmax,
    "softcap": lambda z: 5 * jnp.tanh(z / 5),
}


def _sent(model, variables, labels, seed=7, smoothing=0.0):
    x = reference.uniform(len(labels), *model.image_shape, seed=seed)
    y = (1 - smoothing) * jax.nn.one_hot(jnp.array(labels), model.num_classes) + smoothing / model.num_classes

    def loss(params):
        logits = model.apply({**variables, "params": params}, x, mode="train").logits
        return -(y * jax.nn.log_softmax(logits)).sum(axis=1).mean()

    return jax.jit(jax.grad(loss))(variables["params"])


def _case(model, variables, gradient, samples=1, **fields):
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    return case_of(protocols.ClientShare(model), seen)._replace(samples=samples, **fields)


def _rows(head, labels, **options):
    """The rows and the proven label for a batch of these labels that is claimed to be one sample."""
    model, variables = _network(head)
    gradient = _sent(model, variables, labels, **options)
    leaves = class_leaves(model, variables, gradient, "train")
    rows, weights = (class_rows(leaves, tree) for tree in (gradient, variables["params"]))
    return rows, label_of_rows("b", rows, weights, FULL)


@pytest.mark.parametrize("head", HEADS)
def test_leaves_with_a_row_for_every_class_are_found_without_their_names(head):
    model, variables = _network(head)
    found = class_leaves(model, variables, variables["params"], "train")
    assert [(leaf.name, leaf.axis) for leaf in found] == LEAVES[head]
    slopes = {"bias": 1 / 3, "bias of either sign": -2.0, "both": 1.0}
    np.testing.assert_allclose(found[0].slope, slopes.get(head, 0.0), rtol=1e-5)


@pytest.mark.parametrize("after", AFTER)
def test_a_leaf_counts_where_what_follows_keeps_one_row_for_every_class(after):
    model, variables = _network("lora", after)
    found = class_leaves(model, variables, variables["params"], "train")
    assert found == (() if after == "softcap" else (ClassLeaf("b", 0),))


def test_a_scale_of_every_logit_or_of_the_features_is_no_row_of_a_class():
    params = {"of_logits": jnp.ones(CLASSES), "of_features": jnp.ones(WIDTH)} | FIRST

    def apply(variables, x):
        p = variables["params"]
        return (_features(p, x) * p["of_features"]) @ FROZEN * p["of_logits"]

    model, variables = models.from_function(apply, {"params": params}, image_shape=(6, 6, 1), num_classes=CLASSES)
    assert class_leaves(model, variables, params, "train") == ()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("label", range(CLASSES))
def test_the_label_of_one_sample_is_read_and_proven(head, label):
    rows, labels = _rows(head, [label], seed=label)
    assert label_of_one_sample(rows).tolist() == [label]
    assert labels.proven.tolist() == np.eye(CLASSES, dtype=int)[label].tolist()
    assert labels.signed
    assert labels.withheld == ""
    if rows.bias is not None:
        assert float(rows.bias.sum()) == pytest.approx(0, abs=1e-6)
        assert -1 < float(rows.bias[label]) < 0


@pytest.mark.parametrize("head", ["lora", "lora merged", "both"])
def test_a_batch_that_is_no_single_sample_proves_nothing(head):
    labels = _rows(head, [0, 3])[1]
    assert not labels.proven.any()
    assert labels.withheld.endswith("does not have the form that one sample gives.")


def test_a_bias_proves_no_absent_class_whatever_the_batch_is():
    """Two labels have entries below zero, and the rest may be a single class."""
    gradient = HeadLayer(jnp.zeros((0, 3)), jnp.array([-0.4, -0.3, 0.7]))
    labels = label_of_rows("b", gradient, gradient, FULL)
    assert not labels.proven.any()
    assert "do not show which is the label's" in labels.withheld


def _layer(delta, z=(1.0, -2.0), bias=False):
    delta = jnp.asarray(delta)
    return HeadLayer(jnp.outer(jnp.array(z), delta), delta if bias else None)


@pytest.mark.parametrize(
    ("layer", "proven"),
    [
        (_layer([0.5, -0.8, 0.3]), 1),
        (_layer([-0.5, 0.8, -0.3]), 1),  # an update of the opposite sign, or z of the opposite sign
        (_layer([0.5, -0.8, 0.3], bias=True), 1),
        (_layer([-0.5, 0.8, -0.3], bias=True), None),  # with a bias the update has the opposite sign
        (_layer([0.8, -0.8, 0.0]), None),  # ambiguous between two classes
        (_layer([0.8, -0.8, 1e-7]), None),
        (_layer([0.8, -0.8, 0.0], bias=True), 1),
        (_layer([0.5, -0.8, 0.4]), None),  # another loss
        (_layer([0.5, -0.8, 0.5, -0.2]), None),
        (_layer([0.0, 0.0, 0.0]), None),
    ],
)
def test_a_label_is_proven_by_the_signs_of_the_rows(layer, proven):
    labels = label_of_rows("b", layer, layer, FULL)
    assert labels.proven.nonzero()[0].tolist() == ([] if proven is None else [proven])
    assert bool(labels.withheld) == (proven is None)
    assert labels.signed == (proven is not None and 0 not in np.asarray(layer.kernel))


def test_rounding_proves_no_label():
    """Rows with a sign that rounding may have changed count for neither side."""
    layer = _layer([0.7, -0.72, 0.01, 0.01])
    assert label_of_rows("b", layer, layer, FULL).proven.tolist() == [0, 1, 0, 0]
    assert not label_of_rows("b", layer, layer, Precision("bfloat16", 2.0**-6)).proven.any()
    assert not label_of_rows("b", layer, layer, Precision(scale=1e6, of_weights=True)).proven.any()


def test_searches_are_given_the_label_that_the_update_shows_and_no_other():
    model, variables = _network("lora")
    case = _case(model, variables, _sent(model, variables, [2]))
    given, told = with_read_label(case)
    assert given.observation.labels.tolist() == [2]
    assert told == ["Attacks take class 2 for the label, as the gradient of b shows it."]
    assert stages._label_rule(given) == "given"
    assert with_read_label(case._replace(defended=True))[0].observation.labels is None
    two = _case(model, variables, _sent(model, variables, [2, 2]), samples=2)
    assert with_read_label(two)[0].observation.labels is None
    claimed = _case(model, variables, _sent(model, variables, [2, 0]))  # claimed to be one sample
    assert with_read_label(claimed)[0].observation.labels is None


def test_a_plain_head_is_left_to_its_rule():
    model = models.mlp((6, 6, 1), CLASSES, widths=(8,))
    variables = reference.drawn(model)
    case = _case(model, variables, _sent(model, variables, [2]))
    assert with_read_label(case) == (case, [])


@pytest.mark.slow
def test_a_verdict_names_the_label_of_an_adapted_head_and_what_shows_it():
    model, variables = _network("lora")
    verdict = audit.update(model, variables, _sent(model, variables, [2]), batch_size=1, minutes=1e-4)
    assert verdict.headline == "leaks labels"
    assert verdict.labels.tolist() == [0, 0, 1, 0, 0]
    assert verdict.reasons[0] == (
        "If the loss is the plain cross-entropy of this batch alone, with equal weights of all samples and classes, "
        "without momentum and weight decay, and the batch of one sample and the labels without smoothing are as "
        "stated, the gradient of b, in which the row of one class is opposite to all others, proves 1 label: 1 of "
        "class 2."
    )


@pytest.mark.parametrize(("defended", "samples"), [(False, 1), (True, 1), (False, 2)])
def test_a_frozen_head_has_a_sentence_of_its_own(defended, samples):
    model = models.mlp((6, 6, 1), CLASSES, widths=(8,))
    whole = reference.drawn(model)
    model, variables = models.freeze(model, whole, model.head_leaves)
    case = _case(model, variables, _sent(model, variables, [2] * samples), samples=samples, defended=defended)
    labels = labels_without_head(case)
    assert not labels.proven.any()
    assert labels.withheld == (
        "No label is claimed: the update has no gradient of the last dense layer, from which labels are read."
    )
    assert stages._label_rule(case) == "joint"


def test_what_is_not_read_of_an_adapted_head_is_said():
    model, variables = _network("bias")
    two = _case(model, variables, _sent(model, variables, [2, 3]), samples=2)
    assert "has the gradient of b. From that the label of one sample is read" in labels_without_head(two).withheld
    model, variables = _network("both", "softcap")
    capped = _case(model, variables, _sent(model, variables, [2]))
    assert model.head
    assert "something follows the last dense layer" in labels_without_head(capped).withheld


@pytest.mark.slow
def test_an_image_behind_a_frozen_head_whose_bias_alone_is_trained_is_found():
    """The label follows from the bias, and the image from the first layer, which reads it."""
    model = models.mlp((6, 6, 1), CLASSES, widths=(64,))
    whole = reference.drawn(model)
    model, variables = models.freeze(model, whole, model.head_leaves[:1])
    verdict = audit.update(model, variables, _sent(model, variables, [4]), batch_size=1, minutes=1)
    assert verdict.headline == "leaks images and labels"
    assert verdict.best.attack == "dense_inputs"
    assert verdict.best.y.tolist() == [4]
