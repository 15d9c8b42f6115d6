"""The shape of a horizontal-FL model: whole images in, logits out, and everything an attack may want to look at.

Every kink of a network (ReLU, ReLU6, max-pool) goes through `jaxleak.models._activations`, so that an attacker can run
its own copy of the model with the kinks smoothed (`sharpness`), while the victim runs the exact one. The layers below
are those that all networks share; they sow what the contract promises.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple
from typing import Protocol as TypingProtocol

import flax.linen as nn
import jax
import jax.extend as jex
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import BatchNormMode, PyTree
from jaxleak.models._activations import ACTIVATIONS, Sharpness, activation, in_units_of
from jaxleak.models._conv import FORMS, Form, Padding, conv2d, patches

BATCH_NORM_MODES: tuple[BatchNormMode, ...] = ("train", "eval")


class Outputs(NamedTuple):
    """One forward pass."""

    logits: jax.Array  # (B, C)
    features: jax.Array  # (B, F), the inputs of the last dense layer
    activations: tuple[
        jax.Array, ...
    ]  # outputs of every non-linearity, each (B, ...), in the order of the forward pass
    # Mean and (biased) variance of this batch at every batch normalisation; a tree like batch_stats; {} without any.
    statistics: PyTree
    batch_stats: PyTree  # running statistics after this batch ("train"), or as given ("eval", or if None was given)


class HeadLayer(NamedTuple):
    """The last dense layer's part of the parameters, or of a tree like them, such as a gradient."""

    kernel: jax.Array  # (F, C)
    bias: jax.Array | None  # (C,), or None where the layer has none or the tree does not hold it


def _channels_last(name: str, leaf: jax.Array) -> jax.Array:
    """(k, channels) of a kernel (..., channels)."""
    del name
    return leaf.reshape(-1, leaf.shape[-1])


def _beside(kernel: str) -> str:
    """The bias that stands beside a kernel."""
    return f"{kernel.removesuffix('kernel')}bias"


class Classifier(NamedTuple):
    """A classifier of images as pure functions.

    Variables are `{"params": tree, "batch_stats": tree}`. Without batch normalisation `batch_stats` is {}; it may be
    None or {} ("not granted"), with which "train" mode computes the same and hands it back. Parameters have the names
    and layouts of whoever made the network; leaves are named by their path, "block_0/conv/kernel". `head_of` reads the
    last dense layer of any of them as a kernel (F, C) and a bias (C,).
    """

    image_shape: tuple[int, int, int]  # (H, W, channels)
    num_classes: int  # C
    init: Callable[[jax.Array], PyTree]  # key -> variables
    # (variables, x (B, H, W, channels), *, mode="train", sharpness=None) -> Outputs
    apply: "ApplyFn"
    head: str  # path of the last dense layer; "" where there is none
    has_batch_norm: bool
    # As `apply`, but what linear layers read, in the order of the forward pass: by the name of the kernel, rows (n, k)
    # such that the gradient of the kernel, as (k, channels) by `matrix`, is rows^T times another matrix (n, channels).
    # One row per output pixel and image; layers of several groups are left out.
    rows: Callable[..., dict[str, jax.Array]]
    # Per channel, what `apply` takes off its images and divides them by first; () where it reads them as they are.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    # (name, leaf) -> (k, channels): the kernel of a linear layer, or its gradient, in the order of its rows.
    matrix: Callable[[str, jax.Array], jax.Array] = _channels_last
    # Name of a linear layer's kernel -> that of its bias, "" where it has none.
    bias_of: Callable[[str], str] = _beside
    # Names of the head's kernel and, if it has one, bias; () stands for "kernel" and "bias" below `head`.
    head_leaves: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what of the network an attack has to take as it is, in words
    # Names of all that the owner's framework lists of the network, in its order: for PyTorch that of the state dict,
    # with running statistics and counters; () stands for the order of JAX's trees.
    order: tuple[str, ...] = ()
    # Modes in which normalisation takes the batch's own statistics; None stands for "train", if there is any.
    by_batch: tuple[BatchNormMode, ...] | None = None

    def mixes_images(self, mode: BatchNormMode) -> bool:
        """Whether batch normalisation takes the batch's own statistics in this mode, so that images change each other.

        Layers without running statistics do so in both modes (PyTorch's `track_running_stats=False`).
        """
        return mode in self.by_batch if self.by_batch is not None else self.has_batch_norm and mode == "train"

    @property
    def has_running_statistics(self) -> bool:
        """Whether normalisation keeps statistics in "batch_stats", without which both modes are the same."""
        return bool(jax.tree.leaves(jax.eval_shape(self.init, jax.random.key(0)).get("batch_stats")))

    @property
    def listed(self) -> tuple[str, ...]:
        """Names of the arrays of a list of this network, in order, as in `jaxleak.capture.fit`."""
        return self.order or tuple(_tree.named_leaves(jax.eval_shape(self.init, jax.random.key(0))["params"]))

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the leaves of the head: of its kernel and, if it has one, of its bias.

        Raises:
            ValueError: if the network ends in no dense layer.
        """
        if not self.head:
            raise ValueError("the model has no last dense layer that is known; name its kernel by the argument head")
        return self.head_leaves or (f"{self.head}/kernel", f"{self.head}/bias")

    def head_of(self, tree: PyTree) -> HeadLayer:
        """The head's kernel (F, C) and bias (C,) out of the parameters, or out of a tree like them.

        Raises:
            ValueError: if the tree has no such kernel.
        """
        kernel, *bias = self.head_names
        leaves = _tree.named_leaves(tree)
        if kernel not in leaves:
            raise ValueError(f"the model's head is {self.head!r}, but these parameters do not hold {kernel}")
        return HeadLayer(self.matrix(kernel, leaves[kernel]), leaves.get(bias[0]) if bias else None)

    def with_head(self, tree: PyTree, head: HeadLayer) -> PyTree:
        """The tree with another head, written in the layout of its owner; a bias that is None stays."""
        kernel, *bias = self.head_names
        leaf = _tree.named_leaves(tree)[kernel]
        # The matrix is a rearrangement of the leaf, whose inverse is its transpose.
        (found,) = jax.linear_transpose(lambda leaf: self.matrix(kernel, leaf), leaf)(head.kernel)
        known = {} if head.bias is None else dict.fromkeys(bias, head.bias)
        return _tree.replaced(tree, {kernel: found, **known})

    @property
    def has_kinks(self) -> bool:
        """Whether `sharpness` changes what the network computes, which is traced once: ReLUs, max-pools.

        A network of smooth functions has none, nor has one whose kinks do not look at the sharpness.
        """
        variables = jax.eval_shape(self.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)

        def logits(variables: PyTree, x: jax.Array, sharpness: jax.Array) -> jax.Array:
            return self.apply(variables, x, mode="eval", sharpness=sharpness).logits

        jaxpr = jax.make_jaxpr(logits)(variables, x, jax.ShapeDtypeStruct((), jnp.float32)).jaxpr
        live = {v for v in jaxpr.outvars if not isinstance(v, jex.core.Literal)}
        for equation in reversed(jaxpr.eqns):
            if live.intersection(equation.outvars):
                live.update(v for v in equation.invars if not isinstance(v, jex.core.Literal))
        return jaxpr.invars[-1] in live


class ApplyFn(TypingProtocol):
    """`apply(variables, x, *, mode, sharpness) -> Outputs`.

    mode: batch statistics ("train") or running statistics ("eval") in normalisation layers.
    sharpness: None runs the network as it is; a scalar beta > 0 replaces every kink by its smooth approximation of
        that sharpness (softplus(beta z / s) s / beta for ReLU, with s the standard deviation of the layer's z), which
        becomes exact as beta grows.
    """

    def __call__(
        self, variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
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

    # Compiled, so that the forward pass that only finds the shapes is never run.
    @jax.jit
    def init(key: jax.Array) -> PyTree:
        variables = module.init(key, jnp.zeros((1, *image_shape)), "train", None)
        return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}

    shapes = jax.eval_shape(init, jax.random.key(0))
    if head not in shapes["params"]:
        raise ValueError(f"head must be one of {', '.join(sorted(shapes['params']))}, got {head!r}")
    has_batch_norm = bool(shapes["batch_stats"])

    def run(variables: PyTree, x: jax.Array, mode: BatchNormMode, sharpness: Sharpness, *collections: str) -> Any:
        _validate.one_of(BATCH_NORM_MODES, mode=mode)
        if x.ndim != 4 or x.shape[1:] != tuple(image_shape):
            raise ValueError(f"x must be (B, {', '.join(map(str, image_shape))}), got {x.shape}")
        given = variables.get("batch_stats")
        if mode == "eval" and has_batch_norm and not given:
            raise ValueError('mode="eval" reads running statistics, but batch_stats were not granted')
        known = {"params": variables["params"], **({"batch_stats": given} if given else {})}
        return module.apply(known, x, mode, sharpness, mutable=["batch_stats", *collections])

    def apply(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
    ) -> Outputs:
        (logits, features), sown = run(variables, x, mode, sharpness, "activations", "statistics")
        given = variables.get("batch_stats")
        return Outputs(
            logits,
            features,
            tuple(_in_call_order(sown.get("activations", {}))),
            sown.get("statistics", {}),
            sown["batch_stats"] if mode == "train" and given else given,
        )

    def rows(
        variables: PyTree, x: jax.Array, *, mode: BatchNormMode = "train", sharpness: Sharpness = None
    ) -> dict[str, jax.Array]:
        _, sown = run(variables, x, mode, sharpness, "rows")
        return dict(_by_path(sown.get("rows", {})))

    height, width, channels = image_shape
    return Classifier((height, width, channels), num_classes, init, apply, head, has_batch_norm, rows)


def _in_call_order(sown: Any) -> Iterator[jax.Array]:
    """Leaves as Flax inserted them; `jax.tree.leaves` would sort names, putting layer 10 before layer 2."""
    if isinstance(sown, dict):
        for child in sown.values():
            yield from _in_call_order(child)
    else:
        yield from jax.tree.leaves(sown)


def _by_path(sown: Any, *above: str) -> Iterator[tuple[str, jax.Array]]:
    """In call order; what a layer sowed stands under the name of its kernel."""
    for name, child in sown.items():
        if isinstance(child, dict):
            yield from _by_path(child, *above, name)
        else:
            yield "/".join((*above, "kernel")), child


Init = Literal["default", "he", "glorot", "wide_uniform"]
INITS: tuple[Init, ...] = ("default", "he", "glorot", "wide_uniform")

Initializer = Callable[..., jax.Array]


def _uniform(limit: float) -> Initializer:
    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return draw


def initializers(name: Init, fan_in: int) -> tuple[Initializer, Initializer]:
    """Initialisers of a kernel and of its bias.

    Args:
        name: "default", uniform within 1 / sqrt(fan_in), both kernel and bias, which is what PyTorch does when nothing
            is said (its kaiming_uniform with a = sqrt(5)); "he", normal with variance 2 / fan_in; "glorot", uniform;
            biases of both are zero; "wide_uniform", uniform within 1/2, both, as in the code of Deep Leakage from
            Gradients.
        fan_in: inputs of one output.

    Raises:
        ValueError: on an unknown name.
    """
    _validate.one_of(INITS, init=name)
    if name == "he":
        return nn.initializers.he_normal(), nn.initializers.zeros
    if name == "glorot":
        return nn.initializers.glorot_uniform(), nn.initializers.zeros
    both = _uniform(0.5 if name == "wide_uniform" else 1 / math.sqrt(fan_in))
    return both, both


@dataclasses.dataclass(frozen=True)
class Style:
    """What all layers of a network have in common.

    Attributes:
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: how all kernels and biases are drawn, see `initializers`.
        form: how convolutions are written, see `jaxleak.models.conv2d`.

    Raises:
        ValueError: on an unknown name.
    """

    activation: str = "relu"
    init: Init = "default"
    form: Form = "auto"

    def __post_init__(self) -> None:
        """Refuse unknown names while the network is being described, not when it first runs."""
        _validate.one_of(ACTIVATIONS, activation=self.activation)
        _validate.one_of(INITS, init=self.init)
        _validate.one_of(FORMS, form=self.form)


class Conv(nn.Module):
    """Convolution as PyTorch pads it, `window // 2` zeros on every side unless said otherwise."""

    channels: int
    window: int
    style: Style
    stride: int = 1
    padding: Padding | None = None
    groups: int = 1
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, H, W, C_in) -> (B, H', W', channels)."""
        shape = (self.window, self.window, x.shape[-1] // self.groups, self.channels)
        kernel_init, bias_init = initializers(self.style.init, math.prod(shape[:3]))
        kernel = self.param("kernel", kernel_init, shape)
        padding = self.window // 2 if self.padding is None else self.padding
        if self.groups == 1 and self.is_mutable_collection("rows") and not self.is_initializing():
            read = patches(x, shape[:2], self.stride, padding)
            self.sow("rows", "read", read.reshape(-1, read.shape[-1]), reduce_fn=_latest, init_fn=_nothing)
        z = conv2d(x, kernel, stride=self.stride, padding=padding, groups=self.groups, form=self.style.form)
        return z + self.param("bias", bias_init, (self.channels,)) if self.bias else z


class Dense(nn.Module):
    """A dense layer with the bias that belongs to the kernel's initialiser."""

    width: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., d) -> (..., width)."""
        kernel_init, bias_init = initializers(self.style.init, x.shape[-1])
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.width))
        if self.is_mutable_collection("rows") and not self.is_initializing():
            self.sow("rows", "read", x.reshape(-1, x.shape[-1]), reduce_fn=_latest, init_fn=_nothing)
        return x @ kernel + self.param("bias", bias_init, (self.width,))


class Activation(nn.Module):
    """A non-linearity that shows its output."""

    style: Style

    @nn.compact
    def __call__(self, z: jax.Array, sharpness: Sharpness) -> jax.Array:
        """Elementwise."""
        out = activation(self.style.activation, z, in_units_of(z, sharpness))
        self.sow("activations", "out", out, reduce_fn=_latest, init_fn=_nothing)
        return out


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last, with PyTorch's constants.

    As there, a batch is normalised by its biased variance, while the running variance takes in the unbiased one.
    """

    momentum: float = 0.1  # weight of the new batch
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, mode: BatchNormMode) -> jax.Array:
        """The shape of x."""
        channels = x.shape[-1]
        axes = tuple(range(x.ndim - 1))
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        mean = x.mean(axis=axes)
        # Not x.var, whose derivatives write out constants of the size of x.
        var = ((x - mean) ** 2).mean(axis=axes)
        self.sow("statistics", "mean", mean, reduce_fn=_latest, init_fn=_nothing)
        self.sow("statistics", "var", var, reduce_fn=_latest, init_fn=_nothing)
        if mode == "eval":
            mean, var = running_mean.value, running_var.value
        elif not self.is_initializing():
            count = x.size // channels
            unbiased = var * (count / max(count - 1, 1))
            running_mean.value += self.momentum * (mean - running_mean.value)
            running_var.value += self.momentum * (unbiased - running_var.value)
        return (x - mean) * (jax.lax.rsqrt(var + self.epsilon) * scale) + bias


def _latest(old: Any, new: jax.Array) -> jax.Array:
    # Plain arrays instead of Flax's tuples, so that "statistics" has the structure of "batch_stats".
    del old
    return new


def _nothing() -> None:
    return None
