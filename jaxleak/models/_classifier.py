"""The shape of a horizontal-FL model: whole images in, logits out, and everything an attack may want to look at.

Every kink of a network (ReLU, ReLU6, max-pool) goes through `jaxleak.models._activations`, so that an attacker can run
its own copy of the model with the kinks smoothed (`sharpness`), while the victim runs the exact one.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple
from typing import Protocol as TypingProtocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree

BatchNormMode = Literal["train", "eval"]
BATCH_NORM_MODES: tuple[BatchNormMode, ...] = ("train", "eval")


class Outputs(NamedTuple):
    """One forward pass."""

    logits: jax.Array  # (B, C)
    features: jax.Array  # (B, F), the inputs of the last dense layer
    activations: tuple[jax.Array, ...]  # outputs of every non-linearity, each (B, ...), in a fixed order
    statistics: PyTree  # mean and variance of this batch at every normalisation layer; {} without any
    batch_stats: PyTree  # running statistics after this batch ("train"), or as given ("eval"); {} without any


class Classifier(NamedTuple):
    """A classifier of images as pure functions.

    Variables are `{"params": tree, "batch_stats": tree}`. Without batch normalisation `batch_stats` is {}; it may be
    None ("not granted"), which "train" mode never reads. The last dense layer is `params[head]`, with "kernel" (F, C)
    and "bias" (C,).
    """

    image_shape: tuple[int, int, int]  # (H, W, channels)
    num_classes: int  # C
    init: Callable[[jax.Array], PyTree]  # key -> variables
    # (variables, x (B, H, W, channels), *, mode="train", sharpness=None) -> Outputs
    apply: "ApplyFn"
    head: str
    has_batch_norm: bool


class ApplyFn(TypingProtocol):
    """`apply(variables, x, *, mode, sharpness) -> Outputs`.

    mode: batch statistics ("train") or running statistics ("eval") in normalisation layers.
    sharpness: None runs the network as it is; a scalar beta > 0 replaces every kink by its smooth approximation of
        that sharpness (softplus(beta z) / beta for ReLU), which becomes exact as beta grows.
    """

    def __call__(
        self, variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: jax.Array | None = None
    ) -> Outputs: ...


def classifier(module: nn.Module, *, image_shape: tuple[int, ...], num_classes: int, head: str = "head") -> Classifier:
    """Assemble a `Classifier` from a Linen module.

    Args:
        module: called as `module(x, mode, sharpness) -> (logits, features)`. It sows the outputs of its
            non-linearities into the collection "activations" and per-layer means and variances into "statistics";
            its normalisation layers keep running statistics in "batch_stats".
        image_shape: (H, W, channels).
        num_classes: C >= 2.
        head: name of the last dense layer in the parameters.

    Raises:
        ValueError: on sizes out of range.
    """
    if len(image_shape) != 3:
        raise ValueError(f"image_shape must be (height, width, channels), got {tuple(image_shape)}")
    _validate.positive(height=image_shape[0], width=image_shape[1], channels=image_shape[2])
    _validate.in_range(2, 10**6, num_classes=num_classes)
    one = jnp.zeros((1, *image_shape))

    def init(key: jax.Array) -> PyTree:
        variables = module.init(key, one, "train", None)
        return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}

    def apply(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: jax.Array | None = None
    ) -> Outputs:
        given = variables.get("batch_stats")
        if mode == "eval" and given is None:
            raise ValueError('mode="eval" reads running statistics, but batch_stats were not granted')
        known = {"params": variables["params"], **({"batch_stats": given} if given else {})}
        collections = ["activations", "statistics", "batch_stats"]
        out: Any = module.apply(known, x, mode, sharpness, mutable=collections)
        (logits, features), sown = out
        return Outputs(
            logits,
            features,
            tuple(jax.tree.leaves(sown.get("activations", {}))),
            sown.get("statistics", {}),
            sown.get("batch_stats", {}) if mode == "train" else given,
        )

    shapes = jax.eval_shape(init, jax.random.key(0))
    if head not in shapes["params"]:
        raise ValueError(f"head must be one of {sorted(shapes['params'])}, got {head!r}")
    return Classifier(tuple(image_shape), num_classes, init, apply, head, bool(shapes["batch_stats"]))
