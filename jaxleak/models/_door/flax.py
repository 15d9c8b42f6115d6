"""Flax modules, of Linen and of NNX, as classifiers."""

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak._base import PyTree
from jaxleak._precision import settle_products
from jaxleak.models._classifier import BatchNormMode, Classifier
from jaxleak.models._conv import Form
from jaxleak.models._door.function import assemble, check_sizes, wrapped
from jaxleak.models._door.network import Computed, Function, Layout, same_structure
from jaxleak.models._door.refused import RefusedError, without_tokens

if TYPE_CHECKING:
    from flax import nnx

#: Names that Linen modules give to the argument that tells training from evaluation, with its value in training.
_TRAINING: dict[str, bool] = {
    "train": True,
    "training": True,
    "is_training": True,
    "is_train": True,
    "deterministic": False,
    "use_running_average": False,
    "inference": False,
    "is_eval": False,
}


def from_flax(
    module: "nn.Module | nnx.Module",
    variables: PyTree = None,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    train_arguments: Mapping[str, Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    layout: Layout = "NHWC",
    head: str | None = None,
) -> tuple[Classifier, PyTree]:
    """A `Classifier` of a Flax module, which is left as it is; see `jaxleak.models.from_function`.

    Args:
        module: a module of Linen, called as `module.apply(variables, x, train=...)`; or one of NNX, called as
            `module(x)`, whose mode `nnx.Module.train` and `eval` set.
        variables: the collections of a Linen module ("params", "batch_stats" and others), from its `init` or from
            training. A module of NNX holds its own variables.
        image_shape: (H, W, channels).
        num_classes: C >= 2; by default as many as there are logits, or 2 for one logit.
        train_arguments: keywords of the call in training. By default `train=True`, `training=True`,
            `is_training=True`, `deterministic=False` or `use_running_average=False`, whichever the module of Linen
            takes; none for NNX.
        eval_arguments: keywords of the call in evaluation; by default the opposite.
        layout: axes of the images that the module reads, "NHWC" or "NCHW".
        head: name of the last dense layer; by default the last one with C outputs.

    Returns:
        The classifier, and its variables. Parameters are nested dictionaries with the module's own names, as in
        "Dense_0/kernel"; for NNX, `nnx.to_pure_dict` gives them this form, and their gradient as well.

    Raises:
        ValueError: on arguments out of range; if a layer draws random numbers in training, such as dropout; if the
            module gives no logits (B, C).
        TypeError: if `module` is not a Flax module.
    """
    if isinstance(module, nn.Module):
        functions, known = _of_linen(module, variables, train_arguments, eval_arguments)
    else:
        from jaxleak.models._door.nnx import of_nnx  # this import takes half a second, and few callers need it

        functions, known = of_nnx(module, train_arguments or {}, eval_arguments or {})
    return assemble(functions, known, image_shape=image_shape, num_classes=num_classes, layout=layout, head=head)


def classifier(
    module: nn.Module,
    *,
    image_shape: tuple[int, ...],
    num_classes: int | None = None,
    head: str | None = None,
    form: Form = "auto",
) -> Classifier:
    """A `Classifier` of a Linen module without weights, such as the built-in networks; its `init` draws them.

    Args:
        module: a module that gives logits (B, C). It is called as `module.apply(variables, x, train=...)` with x (B, H,
            W, channels) in [0, 1]. The argument `train` may have another name or be missing, see `from_flax`.
        image_shape: (H, W, channels).
        num_classes: C >= 2; by default as many as there are logits, or 2 for one logit.
        head: name of the last dense layer; by default the last one with C outputs.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Returns:
        The classifier, whose `init` draws variables by the module's own initialisers, for any key. An equal module and
        equal arguments give the same object as before, so that programs that were compiled for it are used again.

    Raises:
        ValueError: on arguments out of range; if a layer draws random numbers in training, such as dropout; if the
            module gives no logits (B, C), or has no such head.
    """
    size = check_sizes(image_shape, num_classes)
    settle_products()
    # The trace depends on these two settings of JAX.
    settings = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    try:
        hash(module)
    except TypeError:  # the module has a list or an array, for example
        return _classifier.__wrapped__(module, size, num_classes, head, form, settings)
    return _classifier(module, size, num_classes, head, form, settings)


@functools.lru_cache(maxsize=16)  # tracing a deep network takes seconds, and programs are compiled for each object
def _classifier(
    module: nn.Module,
    image_shape: tuple[int, int, int],
    num_classes: int | None,
    head: str | None,
    form: Form,
    settings: tuple[bool, str | None],
) -> Classifier:
    """Do what `classifier` does, under these settings of JAX."""
    del settings  # they are in the cache's key alone

    # `init` is compiled, so that its forward pass, which only finds the shapes, is never run.
    @jax.jit
    def init(key: jax.Array) -> PyTree:
        variables = drawn(module, image_shape, key=key)
        return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}

    shapes = jax.eval_shape(init, jax.random.key(0))
    functions, _ = _of_linen(module, shapes, None, None)
    return wrapped(functions, shapes, init, image_shape=image_shape, num_classes=num_classes, head=head, form=form)


def drawn(
    module: nn.Module, image_shape: tuple[int, int, int], layout: Layout = "NHWC", key: jax.Array | None = None
) -> PyTree:
    """Variables of a Linen module for images (H, W, channels), as its initialisers draw them; the key is 0 if None."""
    height, width, channels = image_shape
    x = jnp.zeros((1, height, width, channels) if layout == "NHWC" else (1, channels, height, width))
    name = _training_argument(module)
    arguments: dict[str, Any] = {name: not _TRAINING[name]} if name else {}
    with without_tokens():
        return module.init(jax.random.key(0) if key is None else key, x, **arguments)


def _training_argument(module: nn.Module) -> str | None:
    taken = inspect.signature(type(module).__call__).parameters
    return next((name for name in _TRAINING if name in taken), None)


def _of_linen(
    module: nn.Module, variables: PyTree, train: Mapping[str, Any] | None, evaluate: Mapping[str, Any] | None
) -> tuple[dict[BatchNormMode, Function], PyTree]:
    if variables is None:
        raise ValueError(
            "variables of a Linen module must be given, as its init or its training gives them; models.classifier "
            "takes a module whose weights are still to be drawn"
        )
    if not isinstance(variables, Mapping) or "params" not in variables:
        names = ", ".join(map(str, variables)) if isinstance(variables, Mapping) else type(variables).__name__
        raise ValueError(f'variables of a Linen module must be {{"params": tree, ...}}, as its init gives, got {names}')
    name = _training_argument(module)
    train = ({name: _TRAINING[name]} if name else {}) if train is None else train
    evaluate = ({name: not _TRAINING[name]} if name else {}) if evaluate is None else evaluate
    others = {key: value for key, value in variables.items() if key not in ("params", "batch_stats")}
    stats = variables.get("batch_stats", {})

    def called(arguments: Mapping[str, Any], mutable: bool) -> Function:
        def function(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
            known = {**others, "params": params, **({"batch_stats": batch_stats} if stats else {})}
            try:
                if not stats:
                    return Computed(cast(jax.Array, module.apply(known, x, **arguments)))
                kept = ["statistics", *(["batch_stats"] if mutable else [])]
                logits, sown = module.apply(known, x, **arguments, mutable=kept)
                own = sown.get("statistics")
                statistics = own if same_structure(own, stats) else None
                return Computed(cast(jax.Array, logits), sown["batch_stats"] if mutable else None, statistics)
            except flax.errors.InvalidRngError as error:
                raise RefusedError(
                    "the module draws random numbers in training, which no attacker knows: set its dropout rate to 0, "
                    f"if the client trained without ({error})"
                ) from error

        return function

    functions: dict[BatchNormMode, Function] = {"train": called(train, True), "eval": called(evaluate, False)}
    return functions, {"params": variables["params"], "batch_stats": stats}
