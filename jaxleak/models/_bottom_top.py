"""Bottom and top models of split vertical learning: one bottom per party, one top at the label holder.

The top model is cut once more, behind its first dense layer, because encrypted aggregation replaces that layer: an
interactive layer has to imitate `first` alone, and `rest` runs in the clear.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._precision import settle_products

HE_UNIFORM = nn.initializers.he_uniform()


class Dense(nn.Module):
    """Dense layers with ReLU behind each; the last one stays linear if `linear_last`."""

    widths: tuple[int, ...]
    linear_last: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (B, d) to (B, widths[-1])."""
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, kernel_init=HE_UNIFORM)(x)
            if not (self.linear_last and i == len(self.widths) - 1):
                x = nn.relu(x)
        return x


class BottomTopModel(NamedTuple):
    """A vertical classifier: `rest(first(bottom_0(x_0), ..., bottom_P-1(x_P-1)))`.

    Parameters are `{"bottom": (one tree per party), "top": {"first": ..., "rest": ...}}` where "first" is
    `{"kernel": (P e, d), "bias": (d,)}`; a parameter-free top has `{"first": {}, "rest": {}}`.
    """

    widths: tuple[int, ...]  # d_p, features of each party
    num_classes: int  # C
    embedding: int  # e, width of every bottom's output
    init: Callable[[jax.Array], PyTree]  # key -> params
    bottom: Callable[[PyTree, jax.Array], jax.Array]  # (one party's params, x_p (B, d_p)) -> b_p (B, e)
    first: Callable[[PyTree, tuple[jax.Array, ...]], jax.Array]  # (params["top"]["first"], (b_0, ...)) -> z (B, d)
    rest: Callable[[PyTree, jax.Array], jax.Array]  # (params["top"]["rest"], z) -> logits (B, C)
    probabilities: bool = False  # whether `rest` ends in a softmax, so that (B, C) probabilities stand for logits

    @property
    def parties(self) -> int:
        """P, the number of parties."""
        return len(self.widths)

    @property
    def slice_shape(self) -> tuple[int]:
        """Shape of one party's slice in a batch, where slices are zero-padded to the widest party's features."""
        return (max(self.widths),)

    def slices(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Each party's own features (B, d_p) out of padded samples (B, P, max d_p).

        Raises:
            ValueError: if `x` has another number of parties or of columns.
        """
        wanted = (self.parties, *self.slice_shape)
        if tuple(x.shape[1:]) != wanted:
            sizes = ", ".join(map(str, wanted))
            raise ValueError(f"x must have shape (B, {sizes}), columns padded to the widest party, got {x.shape}")
        return tuple(x[:, p, :width] for p, width in enumerate(self.widths))

    def check_padding(self, x: jax.Array) -> None:
        """Refuse samples whose padding holds data, which the model would never read.

        Args:
            x: (N, P, max d_p). Under `jax.jit` it has no values, and only its shape is checked.

        Raises:
            ValueError: if `x` has another shape, or a party has finite values other than zero beyond its width: the
                widths are probably in another order than the parties' columns.
        """
        self.slices(x)
        if isinstance(x, jax.core.Tracer):
            return
        values = np.asarray(x)  # converted first, since a transformation around would trace an indexing
        there = (np.isfinite(values) & (values != 0)).any(axis=0)
        for party, width in enumerate(self.widths):
            used = np.flatnonzero(there[party])
            if used.size and used[-1] >= width:
                raise ValueError(
                    f"party {party} has {used[-1] + 1} columns in x, but widths {self.widths} give it {width}: widths "
                    "must be in the parties' order, [len(own) for own in columns] of data.party_slices(x, columns)"
                )

    def top(self, params: PyTree, embeddings: tuple[jax.Array, ...]) -> jax.Array:
        """Logits (B, C) from all bottoms' outputs (B, e); `params` are those of the top."""
        return self.rest(params["rest"], self.first(params["first"], embeddings))

    def apply(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Logits (B, C) from padded samples (B, P, max d_p)."""
        slices = zip(params["bottom"], self.slices(x), strict=True)
        return self.top(params["top"], tuple(self.bottom(own, x_p) for own, x_p in slices))


def bottom_top(
    widths: Sequence[int],
    num_classes: int,
    *,
    bottom: Sequence[int] = (50, 50),
    top: Sequence[int] | None = (100, 100),
    probabilities: bool = False,
) -> BottomTopModel:
    """Dense bottom and top models as in VFLRecon (section V-A): bottoms 50-50, top 100-100, ReLU, He-uniform.

    The paper names hidden layers only. Here a bottom's output is its last hidden layer after the ReLU, so e = 50. The
    top concatenates these outputs and applies its hidden layers and a linear layer to C logits. Biases start at zero.

    Args:
        widths: d_p >= 1, number of features of every party, in the order of the slices; P = len(widths) >= 1. For
            slices that `data.party_slices(x, columns)` made, this is `[len(own) for own in columns]`.
        num_classes: C >= 2.
        bottom: widths of every bottom's layers.
        top: widths of the top's hidden layers; None is the parameter-free top of Fu et al. (USENIX Security 2022):
            bottoms get one more linear layer to C outputs, and the logits are their sum.
        probabilities: whether the top ends in a softmax, so that a defense at its output meets probabilities. The paper
            does not say which of the two its output is. Train such a model with `objectives.negative_log_likelihood`.

    Raises:
        ValueError: on sizes that are not whole or out of range; a party without features is named.
    """
    if not widths:
        raise ValueError("widths must name at least one party")
    for party, width in enumerate(widths):
        if width < 1:
            raise ValueError(f"party {party} has no features: widths must be >= 1, got {tuple(widths)}")
    _validate.count(**{f"widths[{i}]": width for i, width in enumerate(widths)})
    _validate.count_in_range(2, 10**6, num_classes=num_classes)
    if not bottom or (top is not None and not top):
        raise ValueError("bottom and top need at least one layer each; top=None is the top without parameters")
    _validate.count(**{f"bottom[{i}]": n for i, n in enumerate(bottom)})
    _validate.count(**{f"top[{i}]": n for i, n in enumerate(top or ())})
    settle_products()
    layers = tuple(bottom) if top is not None else (*bottom, num_classes)
    bottom_net = Dense(layers, linear_last=top is None)
    rest_net = None if top is None else Dense((*top[1:], num_classes), linear_last=True)
    embedding = layers[-1]

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(widths) + 2)
        bottoms = tuple(
            bottom_net.init(k, jnp.zeros((1, width)))["params"] for k, width in zip(keys[2:], widths, strict=True)
        )
        if rest_net is None or top is None:
            return {"bottom": bottoms, "top": {"first": {}, "rest": {}}}
        kernel = HE_UNIFORM(keys[0], (len(widths) * embedding, top[0]), jnp.float32)
        return {
            "bottom": bottoms,
            "top": {
                "first": {"kernel": kernel, "bias": jnp.zeros(top[0])},
                "rest": rest_net.init(keys[1], jnp.zeros((1, top[0])))["params"],
            },
        }

    def first(params: PyTree, embeddings: tuple[jax.Array, ...]) -> jax.Array:
        if top is None:
            return sum(embeddings[1:], start=embeddings[0])
        return jnp.concatenate(embeddings, axis=1) @ params["kernel"] + params["bias"]

    def rest(params: PyTree, z: jax.Array) -> jax.Array:
        logits = z if rest_net is None else _apply(rest_net, params, nn.relu(z))
        return jax.nn.softmax(logits) if probabilities else logits

    return BottomTopModel(
        widths=tuple(int(width) for width in widths),
        num_classes=num_classes,
        embedding=embedding,
        init=init,
        bottom=lambda params, x: _apply(bottom_net, params, x),
        first=first,
        rest=rest,
        probabilities=probabilities,
    )


def _apply(net: nn.Module, params: PyTree, x: jax.Array) -> Any:
    return net.apply({"params": params}, x)
