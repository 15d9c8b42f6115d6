"""Make a `Classifier` of any function of variables and images."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._precision import settle_products
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BatchNormMode, Classifier, Outputs
from jaxleak.models._conv import FORMS, Form
from jaxleak.models._door.codes import reads_codes
from jaxleak.models._door.network import (
    FEW,
    Computed,
    Function,
    Layout,
    Network,
    ends_in_probabilities,
    layer_of,
)
from jaxleak.models._door.plan import Plan
from jaxleak.models._door.refused import RefusedError

#: Message for a network that is refused because it looks up some of its inputs.
_CODES = (
    "the network reads some of its inputs as whole numbers (codes of an embedding), which a search over real numbers "
    "in [0, 1] cannot find: audit it without them, or with one-hot columns as inputs, by which the network multiplies "
    "the embedding's matrix. The rows of an embedding's gradient that are not zero name the codes of the batch all the "
    "same"
)

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")


def from_function(
    apply: Callable[[PyTree, jax.Array], jax.Array],
    variables: PyTree,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    train_apply: Callable[[PyTree, jax.Array], Any] | None = None,
    layout: Layout = "NHWC",
    head: str | None = None,
) -> tuple[Classifier, PyTree]:
    """A `Classifier` of any JAX function, which is left as it is.

    The function is traced, and its jaxpr is interpreted. Kinks are smoothed when an attack asks for a sharpness.
    Convolutions are computed in the library's fast form. The outputs of non-linearities and the inputs of linear layers
    are recorded. `Classifier.notes` lists what stays as it is; `jaxleak.models.describe` prints all that was found.

    Args:
        apply: (variables, x) -> logits (B, C), x (B, H, W, channels) or (B, channels, H, W) in [0, 1]. This is what the
            network computes with its running statistics, if it has any. One logit z, (B, 1) or (B,), is read as the two
            logits (0, z) of the classes 0 and 1, whose cross-entropy is the binary cross-entropy of z.
        variables: `{"params": tree}`, and running statistics of batch normalisation as "batch_stats", if there are any.
        image_shape: (H, W, channels), whatever the layout.
        num_classes: C >= 2; by default as many as there are logits, or 2 for one logit.
        train_apply: (variables, x) -> logits, or (logits, batch_stats after this batch): what the network computes in
            training, where that differs. Without it, mode "train" of a network with running statistics is refused.
        layout: axes of the images that `apply` reads: "NHWC" or "NCHW". All other images are always (B, H, W,
            channels).
        head: name of the last dense layer or of its kernel, as in "classifier" or "classifier/kernel"; by default the
            last one with C outputs is taken, or with 1 for one logit.

    Returns:
        The classifier, and its variables as `{"params", "batch_stats"}`, which its `init` also gives, whatever the key.
        Parameters keep their names, shapes and layouts, and so does the gradient that is to be attacked.

    Raises:
        ValueError: on arguments out of range; if the function gives no logits (B, C), or has no such head; if its one
            output is a probability, behind a sigmoid.
    """
    if not isinstance(variables, Mapping) or "params" not in variables or set(variables) - {"params", "batch_stats"}:
        names = ", ".join(map(str, variables)) if isinstance(variables, Mapping) else type(variables).__name__
        raise ValueError(f'variables must be {{"params": tree}}, with "batch_stats" if there are any, got {names}')
    stats = variables.get("batch_stats") or {}

    def known(params: PyTree, batch_stats: PyTree) -> PyTree:
        return {"params": params, **({"batch_stats": batch_stats} if stats else {})}

    functions: dict[BatchNormMode, Function] = {
        "eval": lambda params, batch_stats, x: Computed(apply(known(params, batch_stats), x))
    }
    if train_apply is not None:

        def train(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
            found = train_apply(known(params, batch_stats), x)
            return Computed(*found) if isinstance(found, tuple) else Computed(found)

        functions["train"] = train
    elif not stats:
        functions["train"] = functions["eval"]
    return assemble(
        functions,
        {"params": variables["params"], "batch_stats": stats},
        image_shape=image_shape,
        num_classes=num_classes,
        layout=layout,
        head=head,
    )


def assemble(
    functions: dict[BatchNormMode, Function],
    variables: PyTree,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int | None,
    layout: Layout,
    head: str | None,
    notes: tuple[str, ...] = (),
) -> tuple[Classifier, PyTree]:
    """Do what `from_function` does, with one function for each mode. `notes` are added to those found here."""
    variables = jax.tree.map(jnp.asarray, variables)
    model = wrapped(
        functions,
        variables,
        lambda key: variables,
        image_shape=image_shape,
        num_classes=num_classes,
        layout=layout,
        head=head,
    )
    return model._replace(notes=(*model.notes, *notes)), variables


def check_sizes(image_shape: tuple[int, ...], num_classes: int | None) -> tuple[int, int, int]:
    """Return (H, W, channels); raise `ValueError` on a size out of range."""
    if len(image_shape) != 3:
        raise ValueError(f"image_shape must be (height, width, channels), got {tuple(image_shape)}")
    height, width, channels = image_shape
    _validate.count(height=height, width=width, channels=channels)
    if num_classes == 1:
        raise RefusedError(
            f"num_classes must be in [2, {10**6}], got 1: a network with one logit z has the two classes 0 and 1, "
            "and its logit is read as the two logits (0, z). A regression with one output is stated as --classes 2 "
            "--loss other"
        )
    if num_classes is not None:
        _validate.in_range(2, 10**6, num_classes=num_classes)
    return height, width, channels


def wrapped(
    functions: dict[BatchNormMode, Function],
    variables: PyTree,
    init: Callable[[jax.Array], PyTree],
    *,
    image_shape: tuple[int, ...],
    num_classes: int | None,
    layout: Layout = "NHWC",
    head: str | None,
    form: Form = "auto",
) -> Classifier:
    """The classifier of one function for each mode; its variables have these shapes, and `init` draws them."""
    _validate.one_of(LAYOUTS, layout=layout)
    _validate.one_of(FORMS, form=form)
    size = check_sizes(image_shape, num_classes)
    settle_products()
    network = Network(functions, variables, size, layout, form)
    classes = network.check_logits(num_classes)
    if any(reads_codes(network.traced(mode, FEW, network.shapes)[0]) for mode in functions):
        raise RefusedError(_CODES)
    mode: BatchNormMode = "train" if "train" in functions else "eval"
    plan = network.plan(mode, FEW, variables)
    probabilities = ends_in_probabilities(plan.program)
    last = None if probabilities and head is None else network.choose_head(plan, FEW, head)
    network.head_name = last.kernel if last else None
    network.find_weights(variables)
    notes = notes_on(plan)
    if network.one_logit:
        notes = (*notes, "its one logit z is read as the two logits (0, z) of the classes 0 and 1")
    if probabilities:
        notes = (
            *notes,
            "it ends in a softmax or in sigmoids, whose outputs the loss reads as logits, so that label rules and "
            "defenses of features do not work: take them off the end",
        )
    elif last is None:
        notes = (*notes, "the last dense layer was not found: label rules and defenses of features do not work")

    def apply(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
    ) -> Outputs:
        return network(variables, x, mode, sharpness)[0]

    def rows(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
    ) -> dict[str, jax.Array]:
        return network(variables, x, mode, sharpness, rows=True)[1]

    return Classifier(
        size,
        classes,
        init,
        apply,
        layer_of(last.kernel) if last else "",
        bool(variables["batch_stats"]),
        rows,
        matrix=plan.matrix,
        bias_of=plan.bias_of,
        head_leaves=(() if last is None else (last.kernel,) if last.bias is None else (last.kernel, last.bias)),
        notes=notes,
        one_logit=network.one_logit,
    )


def notes_on(plan: Plan) -> tuple[str, ...]:
    """The parts of a network that stay as they are, in words."""
    notes = []
    if plan.exact:
        notes.append(f"kinks that are not smoothed: {_counted(plan.exact)}")
    if plan.slow:
        notes.append(f"convolutions that stay in XLA's form: {_counted(plan.slow)}")
    return tuple(notes)


def _counted(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
