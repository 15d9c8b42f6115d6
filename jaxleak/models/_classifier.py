"""The interface of a horizontal-FL model: whole images in, logits out, and everything that an attack may read.

An attacker can run its own copy of the model with every kink (ReLU, ReLU6, max-pool) smoothed by a `sharpness`, while
the victim runs the exact one.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple
from typing import Protocol as TypingProtocol

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree
from jaxleak._base import BatchNormMode, PyTree
from jaxleak.models._activations import Sharpness

BATCH_NORM_MODES: tuple[BatchNormMode, ...] = ("train", "eval")


class Outputs(NamedTuple):
    """What `Classifier.apply` returns for one batch."""

    logits: jax.Array  # (B, C)
    features: jax.Array  # (B, F), the inputs of the last dense layer
    activations: tuple[
        jax.Array, ...
    ]  # outputs of every non-linearity, each (B, ...), in the order of the forward pass
    # Mean and (biased) variance of this batch at every batch normalisation; a tree like batch_stats; {} without any.
    statistics: PyTree
    batch_stats: PyTree  # running statistics after this batch ("train"), or as given ("eval", or if None was given)


def digest_of(array: Any) -> str:
    """SHA-256 of an array's shape and of its entries as float32."""
    array = np.ascontiguousarray(array, np.float32)
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


class HeadLayer(NamedTuple):
    """The last dense layer's part of the parameters, or of a tree like them, such as a gradient."""

    kernel: jax.Array  # (F, C)
    bias: jax.Array | None  # (C,), or None where the layer has none or the tree does not hold it


class Classifier(NamedTuple):
    """A classifier of images as pure functions.

    Variables are `{"params": tree, "batch_stats": tree}`. Without batch normalisation `batch_stats` is {}. An attacker
    who is not granted the running statistics passes None or {} for them: "train" mode then computes the same and hands
    this value back. Parameters keep the names and layouts of the framework that made the network, and a leaf is named
    by its path, such as "block_0/conv/kernel". `head_of` reads the last dense layer of any network as a kernel (F, C)
    and a bias (C,).
    """

    image_shape: tuple[int, int, int]  # (H, W, channels)
    num_classes: int  # C
    init: Callable[[jax.Array], PyTree]  # key -> variables
    # (variables, x (B, H, W, channels), *, mode="train", sharpness=None) -> Outputs
    apply: "ApplyFn"
    head: str  # path of the last dense layer; "" where there is none
    has_batch_norm: bool
    # Takes what `apply` takes and returns what linear layers read, in the order of the forward pass: rows (n, k) by the
    # name of the kernel. The gradient of that kernel, as (k, channels) by `matrix`, is rows^T times another matrix (n,
    # channels). There is one row per output pixel and image; layers of several groups are left out.
    rows: Callable[..., dict[str, jax.Array]]
    # (name, leaf) -> (k, channels): the kernel of a linear layer, or its gradient, in the order of its rows.
    matrix: Callable[[str, jax.Array], jax.Array]
    # Name of a linear layer's kernel -> name of its bias, or "" for a layer without one.
    bias_of: Callable[[str], str]
    # Per channel, the mean that `apply` first subtracts from its images and the standard deviation by which it divides
    # them; () for a network that reads images as they are.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    # Names of the head's kernel and, if it has one, bias; () where the network ends in no dense layer.
    head_leaves: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # in words: parts of the network that an attack takes as they are
    # Names of all arrays that the owner's framework lists for the network, in its order. For PyTorch this is the state
    # dict, with running statistics and counters; () stands for the order of JAX's trees.
    order: tuple[str, ...] = ()
    # Modes in which normalisation takes the batch's own statistics; None stands for "train" if the network has batch
    # normalisation, and for no mode otherwise.
    by_batch: tuple[BatchNormMode, ...] | None = None
    # Whether the owner's network has one logit z. `apply` then returns the logits (0, z) of two classes, whose
    # cross-entropy is the binary cross-entropy of z. The parameters stay as they are, with one column in the head.
    one_logit: bool = False
    # (name, `digest_of`) of every array that the owner's framework lists and that is neither a parameter nor a running
    # statistic, such as PyTorch's other buffers. `apply` uses the values that they had in the module, whatever the
    # variables hold.
    constants: tuple[tuple[str, str], ...] = ()

    # Names of the parameters that the owner's framework says are not trained, such as PyTorch's `requires_grad=False`.
    # They are parameters here all the same; `jaxleak.models.freeze` makes constants of them.
    untrained: tuple[str, ...] = ()
    # Names of PyTorch's submodules that are in evaluation mode while `mode="train"` trains the others.
    eval_layers: tuple[str, ...] = ()

    def mixes_images(self, mode: BatchNormMode) -> bool:
        """Whether normalisation uses the batch's own statistics in this mode, so that images affect each other.

        Layers without running statistics do so in both modes (PyTorch's `track_running_stats=False`).
        """
        return mode in self.by_batch if self.by_batch is not None else self.has_batch_norm and mode == "train"

    @property
    def has_running_statistics(self) -> bool:
        """Whether normalisation keeps running statistics in "batch_stats"; without them both modes are the same."""
        return bool(jax.tree.leaves(jax.eval_shape(self.init, jax.random.key(0)).get("batch_stats")))

    @property
    def listed(self) -> tuple[str, ...]:
        """Names for the entries of a plain list of this network's arrays, in order, for `jaxleak.capture.fit`."""
        return self.order or tuple(_tree.named_leaves(jax.eval_shape(self.init, jax.random.key(0))["params"]))

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the head's leaves: the kernel and, if the head has one, the bias.

        Raises:
            ValueError: if the network ends in no dense layer.
        """
        if not self.head:
            why = f" ({'; '.join(self.notes)})" if self.notes else ""
            raise ValueError(
                f"the model has no last dense layer that is known{why}; "
                "if it has one, name its kernel by the argument head"
            )
        return self.head_leaves

    def head_of(self, tree: PyTree, *, gradient: bool | None = None) -> HeadLayer:
        """Read the head's kernel (F, C) and bias (C,) from the parameters, or from a tree like them.

        A head with one logit is read as a head of two classes that computes (0, z). A column w of the parameters
        becomes the columns (0, w). A column g of a gradient becomes (-g, g), which is the gradient with respect to
        these two columns.

        Args:
            tree: the parameters, a gradient or an update.
            gradient: whether the tree is a gradient or an update; None is enough for a head with one column for each
                class, which is read alike in both.

        Raises:
            ValueError: if the network ends in no dense layer; if the tree does not hold the head's kernel; or if
                `gradient` is None and the network has one logit.
        """
        kernel, *bias = self.head_names
        leaves = _tree.named_leaves(tree)
        if kernel not in leaves:
            raise ValueError(f"the model's head is {self.head!r}, but these parameters do not hold {kernel}")
        found = HeadLayer(self.matrix(kernel, leaves[kernel]), leaves.get(bias[0]) if bias else None)
        if not self.one_logit:
            return found
        of_gradient = _said(gradient)

        def beside(column: jax.Array) -> jax.Array:
            return jnp.concatenate([-column if of_gradient else jnp.zeros_like(column), column], axis=-1)

        # The bias of one logit may be a number without axes.
        return HeadLayer(beside(found.kernel), None if found.bias is None else beside(found.bias.reshape(1)))

    def with_head(self, tree: PyTree, head: HeadLayer, *, gradient: bool | None = None) -> PyTree:
        """Replace the head in a tree, in the layout of the network's owner; if the new bias is None, the old one stays.

        Args:
            tree: the parameters, a gradient or an update.
            head: the head as `head_of` reads it. For a network with one logit its two columns become one: their
                difference for parameters, so that z stays what both columns give, and half of the difference for a
                gradient.
            gradient: as in `head_of`.

        Raises:
            ValueError: as `head_of`.
        """
        kernel, *bias = self.head_names
        leaves = _tree.named_leaves(tree)
        leaf = leaves[kernel]
        if self.one_logit:
            share = 0.5 if _said(gradient) else 1.0
            column = share * (head.kernel[:, 1:] - head.kernel[:, :1])
            own = None if head.bias is None or not bias else share * (head.bias[1] - head.bias[0])
            head = HeadLayer(column, None if own is None else own.reshape(leaves[bias[0]].shape))
        # `matrix` only rearranges the entries of a leaf, so its transpose is its inverse.
        (found,) = jax.linear_transpose(lambda leaf: self.matrix(kernel, leaf), leaf)(head.kernel)
        known = {} if head.bias is None else dict.fromkeys(bias, head.bias)
        return _tree.replaced(tree, {kernel: found, **known})

    @property
    def has_kinks(self) -> bool:
        """Whether `sharpness` changes what the network computes, as it does for ReLUs and max-pools.

        The network is traced once to find out. The answer is false for a network of smooth functions, and for one whose
        kinks do not read the sharpness.
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


def _said(gradient: bool | None) -> bool:
    """Return `gradient`, but refuse None: parameters and gradients have one structure, so nothing else could tell."""
    if gradient is None:
        raise ValueError(
            "the network has one logit, so that the head of its parameters is read in another way than that of a "
            "gradient: say gradient=False or gradient=True"
        )
    return gradient


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
