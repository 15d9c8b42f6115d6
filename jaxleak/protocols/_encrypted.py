"""The encrypted variant of split vertical training: the top's first layer on ciphertexts (VFLRecon, section II-B).

The variant protects two things: the label holder never sees an embedding, and a party never sees the layer's weights.
Other leaks remain. The label holder gets the gradient dL/dW_A = alpha_A^T delta in the clear, and knows delta. If delta
has full rank, which requires a batch of at most d samples, the label holder can solve for the embeddings alpha_A,
exactly up to rounding (`attacks.party_records.solved_embeddings`). Every party still gets dL/db_p in the clear, because
it could not train its bottom model without it. Label attacks read only that gradient, which encryption does not change,
so encryption does not stop them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.models import BottomTopModel
from jaxleak.protocols._ckks import SecretOwner, tenseal
from jaxleak.protocols._split_training import InteractiveLayer

CIPHERS = ("ckks", "plain")
_DOMAIN = 2**31 - 1  # keeps this layer's random numbers apart from the defenses', which get the same key

#: (alpha (B, e), weights (e, d), blind (e, d), mask (B, d), gradient_mask (e, d)) -> alpha @ weights (B, d).
_Product = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class EncryptedFirst:
    """The first layer on ciphertexts, and the parties whose embeddings the label holder sees nevertheless."""

    layer: InteractiveLayer
    shown: tuple[int, ...]

    def __call__(self, key: jax.Array, params: PyTree, embeddings: tuple[jax.Array, ...]) -> jax.Array:
        """The output (B, d) of the layer."""
        return self.layer(key, params, embeddings)

    def check(self, model: BottomTopModel) -> None:
        """Raise `ValueError` unless this computes the model's own first layer; otherwise another model would train."""
        shapes = jax.eval_shape(model.init, jax.random.key(0))["top"]["first"]
        names = sorted(shapes) if isinstance(shapes, Mapping) else []
        if names != ["bias", "kernel"]:
            raise ValueError(
                "an encrypted first layer computes concat(embeddings) @ kernel + bias, so that params['top']['first'] "
                f"must be a dictionary of 'kernel' and 'bias', and has {', '.join(names) or 'no such names'}"
            )
        kernel, bias = (getattr(shapes[name], "shape", None) for name in ("kernel", "bias"))
        rows = model.parties * model.embedding
        if kernel is None or len(kernel) != 2 or kernel[0] != rows or bias != kernel[1:]:
            raise ValueError(
                f"an encrypted first layer needs a kernel of shape ({rows}, d), {model.embedding} rows for each of "
                f"{model.parties} parties, and a bias of shape (d,), got {kernel} and {bias}"
            )
        if any(active >= model.parties for active in self.shown):
            raise ValueError(f"active must be in [0, {model.parties - 1}], got {self.shown[0]}")
        rng = np.random.default_rng(0)
        with jax.ensure_compile_time_eval():
            params = {name: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
            embeddings = tuple(
                jnp.asarray(rng.standard_normal((2, model.embedding)) / rows**0.5, jnp.float32)
                for _ in range(model.parties)
            )
            own = np.asarray(model.first(params, embeddings), np.float32)
            linear = np.asarray(jnp.concatenate(embeddings, axis=1) @ params["kernel"] + params["bias"])
        # Layers may compute in half precision; sums are of order one.
        if own.shape != linear.shape or not np.allclose(own, linear, rtol=0, atol=0.05):
            raise ValueError(
                "an encrypted first layer computes concat(embeddings) @ kernel + bias, and the first layer of this "
                "model computes something else: put what is not linear into rest"
            )


def encrypted_first(
    *,
    active: int | None = None,
    cipher: Literal["ckks", "plain"] = "ckks",
    blind: float = 1.0,
    mask: float = 10.0,
) -> EncryptedFirst:
    """A layer for `split_training(interactive=...)`: additively homomorphic, or the same algebra without ciphertexts.

    With A a party, B the label holder, W_A A's rows of the layer's kernel:

    1. A sends [alpha_A], its encrypted embeddings.
    2. B draws a mask eps_B and sends [alpha_A] (W_A - eps_acc) + eps_B.
    3. A decrypts, adds alpha_A eps_acc, and sends the sum back.
    4. B removes eps_B, adds its own part and the bias: z = sum over parties of alpha W + bias.

    The paper calls eps_acc "a hyper-parameter ranging from 0 to 1" and adds alpha_A eps_acc to alpha_A W_A. However, a
    scalar does not have z's shape, and a term that is never removed would change the model. In the scheme that the
    paper cites (Zhang and Zhu, arXiv:2007.06849), eps_acc is A's accumulated noise on B's weights: a matrix of W_A's
    shape that B's copy of the weights lacks. The implementation follows that scheme, with entries from (0, blind). B's
    copy is W_A - eps_acc, step 3 adds the missing part, and z is that of the plain layer. B never holds the true W_A of
    a party. Here eps_acc is drawn afresh every step instead of accumulated, which changes no result.

    The paper leaves the backward pass open. The implementation takes it from the scheme, on ciphertexts as well. A gets
    dL/dalpha_A = delta (W_A - eps_acc)^T + delta [eps_acc]^T, which it decrypts: the gradient that it may see. B gets
    dL/dW_A = alpha_A^T delta, computed on [alpha_A^T], masked, decrypted by A and unmasked.

    This simulates what is computed and what each side sees; it is not a hardened implementation. Masks of bounded size
    hide real numbers only up to their size, and decrypted CKKS results that are passed on leak information about the
    key.

    Measured with B = 16, e = 50, d = 100 against float64: z is off by 2e-10 and gradients by 7e-11, far below float32.
    "plain" computes in float32, where the default mask costs 1e-6. After four steps of Adam a party's gradients are
    those of the unencrypted run up to 2e-7 (largest entry 0.03). A step takes 0.95 seconds per encrypting party on one
    core (0.25 forward, 0.7 backward) and moves about 45 MB. Entries of products must stay below 500.

    Args:
        active: the label holder's own party, whose embeddings need no cipher; None if it has no features.
        cipher: "ckks" runs on the host through `jax.pure_callback` and works under jit and scan; "plain" is the same
            algebra in JAX.
        blind: largest entry of eps_acc, > 0 (paper: 1).
        mask: largest absolute entry of eps_B (uniform), > 0.

    Returns:
        An `InteractiveLayer`. Every encrypting party has its own key pair, drawn when the layer is first traced.
        `split_training` raises `ValueError` if `active` does not exist or the model's first layer is not
        concat(embeddings) @ kernel + bias. A step fails if a product leaves the cipher's range.

    Raises:
        ImportError: if cipher="ckks" and TenSEAL is missing; the message names the package.
        ValueError: on values out of range.
    """
    _validate.one_of(CIPHERS, cipher=cipher)
    _validate.positive(blind=blind, mask=mask)
    if active is not None:
        _validate.count_or_zero(active=active)
    if cipher == "ckks":
        tenseal()  # a missing library shows now, not in the first step of training
    owners: dict[int, SecretOwner] = {}

    def product_of(party: int) -> _Product:
        if cipher == "plain":
            return _plain_product
        if party not in owners:
            owners[party] = SecretOwner()
        return _encrypted_product(owners[party])

    def layer(key: jax.Array, params: PyTree, embeddings: tuple[jax.Array, ...]) -> jax.Array:
        if active is not None:
            _validate.index_below(len(embeddings), active=active)
        kernels = jnp.split(params["kernel"], len(embeddings))
        z = params["bias"]
        for party, (alpha, weights) in enumerate(zip(embeddings, kernels, strict=True)):
            if party == active:
                z = z + alpha @ weights
                continue
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _DOMAIN), party), 3)
            z = z + product_of(party)(
                alpha,
                weights,
                jax.random.uniform(keys[0], weights.shape, maxval=blind),
                jax.random.uniform(keys[1], (len(alpha), weights.shape[1]), minval=-mask, maxval=mask),
                jax.random.uniform(keys[2], weights.shape, minval=-mask, maxval=mask),
            )
        return z

    return EncryptedFirst(layer, () if active is None else (active,))


def _plain_product(
    alpha: jax.Array, weights: jax.Array, blind: jax.Array, mask: jax.Array, gradient_mask: jax.Array
) -> jax.Array:
    # Derivatives of the product: delta (W - eps)^T + delta eps^T and alpha^T delta; the mask of the second one cancels.
    del gradient_mask
    masked = alpha @ (weights - blind) + mask
    return masked + alpha @ blind - mask


def _encrypted_product(owner: SecretOwner) -> _Product:
    def forward_on_host(*arrays: jax.Array) -> np.ndarray:
        alpha, weights, blind, mask = (np.asarray(array, np.float64) for array in arrays)
        decrypted = owner.product(alpha, weights - blind, mask)
        return np.asarray(decrypted + alpha @ blind - mask, np.float32)

    def backward_on_host(*arrays: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        alpha, weights, blind, gradient_mask, delta = (np.asarray(array, np.float64) for array in arrays)
        # [eps_acc] delta^T + (W - eps_acc) delta^T, which A may see.
        to_owner = owner.product(blind, delta.T, (weights - blind) @ delta.T).T
        to_label_holder = owner.product(alpha.T, delta, gradient_mask) - gradient_mask
        return np.asarray(to_owner, np.float32), np.asarray(to_label_holder, np.float32)

    @jax.custom_vjp
    def product(
        alpha: jax.Array, weights: jax.Array, blind: jax.Array, mask: jax.Array, gradient_mask: jax.Array
    ) -> jax.Array:
        del gradient_mask
        shape = jax.ShapeDtypeStruct(mask.shape, jnp.float32)
        return jax.pure_callback(forward_on_host, shape, alpha, weights, blind, mask, vmap_method="sequential")

    def forward(
        alpha: jax.Array, weights: jax.Array, blind: jax.Array, mask: jax.Array, gradient_mask: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return product(alpha, weights, blind, mask, gradient_mask), (alpha, weights, blind, gradient_mask)

    def backward(saved: tuple[jax.Array, ...], delta: jax.Array) -> tuple[jax.Array | None, ...]:
        alpha, weights = saved[:2]
        shapes = tuple(jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (alpha, weights))
        gradients = jax.pure_callback(backward_on_host, shapes, *saved, delta, vmap_method="sequential")
        return (*gradients, None, None, None)

    product.defvjp(forward, backward)
    return product
