"""Models that CAFE attacks, split into three parts: an extractor, the first dense layer, and the rest.

CAFE reads the gradient at this split: for the first dense layer it is `sum_n h_n v_n^T`, with h_n the input of that
layer and v_n the loss gradient at its output. Party p owns slice p of every sample, its own extractor and its own first
dense layer, so those parameters have a leading party axis. A model of horizontal federated learning is the case of one
party.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak._precision import settle_products

GLOROT_PER_PARTY = nn.initializers.glorot_uniform(in_axis=-2, out_axis=-1, batch_axis=(0,))


class SplitModel(NamedTuple):
    """A classifier split at its first dense layer.

    Parameters are `{"extractor": ..., "first": {"kernel": (P, d1, d2), "bias": (P, d2)}, "rest": ...}`.
    """

    parties: int  # P
    slice_shape: tuple[int, ...]  # shape of one party's slice of one sample
    num_classes: int  # C
    feature_size: int  # d1, inputs of the first dense layer
    width: int  # d2, its outputs
    init: Callable[[jax.Array], PyTree]  # key -> params
    features: Callable[[PyTree, jax.Array], jax.Array]  # (params, x (B, P, *slice)) -> H (B, P, d1)
    rest: Callable[[PyTree, jax.Array], jax.Array]  # (params, U (B, P, d2)) -> logits (B, C)
    # (one party's extractor params, (B, *slice), temperature (B,) | None) -> (B, d1)
    party_features: Callable[[PyTree, jax.Array, jax.Array | None], jax.Array]
    statistics: Callable[[PyTree, jax.Array], PyTree]  # (params, x) -> mean and variance of every extractor layer
    features_are_data: bool = False  # h is the flattened slice: there is nothing to invert

    def pre_activations(self, params: PyTree, h: jax.Array) -> jax.Array:
        """U (B, P, d2): the first dense layer applied to h (B, P, d1)."""
        return jnp.einsum("bpd,pde->bpe", h, params["first"]["kernel"]) + params["first"]["bias"]

    def head(self, params: PyTree, h: jax.Array) -> jax.Array:
        """Logits (B, C) from the inputs h (B, P, d1) of the first dense layer."""
        return self.rest(params, self.pre_activations(params, h))

    def apply(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Logits (B, C) from samples x (B, P, *slice)."""
        return self.head(params, self.features(params, x))


def split_model(
    extractor: nn.Module,
    rest: nn.Module,
    *,
    parties: int,
    slice_shape: tuple[int, ...],
    num_classes: int,
    width: int,
    features_are_data: bool = False,
    kernel_init: Callable[..., jax.Array] = GLOROT_PER_PARTY,
) -> SplitModel:
    """Assemble a `SplitModel` from two Linen modules.

    Args:
        extractor: is called as `(x, temperature=None)` and maps one party's slices x (B, *slice) to features (B, d1);
            each party gets its own parameters. An attack gives a temperature (B,) to smooth the extractor's derivative;
            an extractor without kinks ignores it. It may `sow` means and variances of its activations into the
            collection "statistics".
        rest: maps U (B, P, d2) to logits (B, num_classes).
        parties: P >= 1.
        slice_shape: shape of one slice.
        num_classes: C >= 2.
        width: d2 >= 1.
        features_are_data: whether the extractor only flattens its slices.
        kernel_init: initialiser of the (P, d1, d2) kernel of the first dense layer.

    Raises:
        ValueError: on sizes that are not whole or out of range, on parts that are no Linen modules, or if the extractor
            takes no temperature.
    """
    _validate.made(nn.Module, "a class of flax.linen", extractor=extractor, rest=rest)
    _require_temperature(extractor)
    _validate.count(parties=parties, width=width, **{f"slice_shape[{i}]": n for i, n in enumerate(slice_shape)})
    _validate.count_in_range(2, 10**6, num_classes=num_classes)
    settle_products()
    one_slice = jax.ShapeDtypeStruct((1, *slice_shape), jnp.float32)
    feature_size = jax.eval_shape(lambda x: extractor.init_with_output(jax.random.key(0), x)[0], one_slice).shape[-1]

    def init_extractor(key: jax.Array) -> PyTree:
        # A module without weights (a flattening extractor) has no "params" collection at all.
        return extractor.init(key, jnp.zeros(one_slice.shape)).get("params", {})

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, 3)
        return {
            "extractor": jax.vmap(init_extractor)(jax.random.split(keys[0], parties)),
            "first": {
                "kernel": kernel_init(keys[1], (parties, feature_size, width), jnp.float32),
                "bias": jnp.zeros((parties, width)),
            },
            "rest": rest.init(keys[2], jnp.zeros((1, parties, width))).get("params", {}),
        }

    def party_features(extractor_params: PyTree, x: jax.Array, temperature: jax.Array | None = None) -> jax.Array:
        features: Any = extractor.apply({"params": extractor_params}, x, temperature)
        return features

    def party_statistics(extractor_params: PyTree, x: jax.Array) -> PyTree:
        _, sown = extractor.apply({"params": extractor_params}, x, mutable=["statistics"])
        return sown

    def features(params: PyTree, x: jax.Array) -> jax.Array:
        return jax.vmap(party_features, in_axes=(0, 1), out_axes=1)(params["extractor"], x)

    def logits(params: PyTree, u: jax.Array) -> jax.Array:
        out: Any = rest.apply({"params": params["rest"]}, u)
        return out

    def statistics(params: PyTree, x: jax.Array) -> PyTree:
        return jax.vmap(party_statistics, in_axes=(0, 1))(params["extractor"], x)

    return SplitModel(
        parties,
        slice_shape,
        num_classes,
        feature_size,
        width,
        init,
        features,
        logits,
        party_features,
        statistics,
        features_are_data,
    )


def _require_temperature(extractor: nn.Module) -> None:
    try:
        inspect.signature(extractor.__call__).bind("x", "temperature")
    except TypeError as error:
        raise ValueError(
            f"extractor must be called as (x, temperature=None), and {type(extractor).__name__} takes no temperature: "
            "add the argument, and ignore it if there are no kinks to smooth"
        ) from error


def frozen_features(model: SplitModel) -> SplitModel:
    """The part of a model behind its extractor: samples are features H (N, P, d1), parameters only "first" and "rest".

    While parameters stay frozen, the features of a sample never change. Simulated parties may then compute them once
    and start every round from them. The gradients of the dense layers are the same numbers; those of the extractor are
    not computed. An attack that reads only dense-layer gradients sees no difference.
    """

    def init(key: jax.Array) -> PyTree:
        params = model.init(key)
        return {"extractor": {}, "first": params["first"], "rest": params["rest"]}

    return model._replace(
        slice_shape=(model.feature_size,),
        init=init,
        features=lambda params, x: x,
        party_features=_identity_features,
        statistics=lambda params, x: {},
        features_are_data=True,
    )


def _identity_features(extractor_params: PyTree, x: jax.Array, temperature: jax.Array | None = None) -> jax.Array:
    del extractor_params, temperature
    return x
