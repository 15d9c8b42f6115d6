"""Compute products in float32 on accelerators, where JAX by default rounds their factors."""

import jax

#: Settings that keep factors in float32 or better; if none is set, `settle_products` sets the first.
_UNROUNDED = (
    *("float32", "highest", "F32_F32_F32", "F64_F64_F64"),
    *("BF16_BF16_F32_X6", "BF16_BF16_F32_X9", "TF32_TF32_F32_X3"),
    None,
)


def settle_products() -> None:
    """Have JAX multiply matrices in float32 on an accelerator, unless the user's own choice is set.

    By JAX's default the factors of products are rounded to TF32 on NVIDIA's GPUs (10 bits of fraction) and to bfloat16
    on TPUs (7 bits). Closed forms, checks and certificates need more digits: with TF32 an audit missed leaks that it
    finds in float32. The choice is JAX's own setting `jax_default_matmul_precision`, and stays for the process. On CPUs
    products are in float32 anyway, and there the setting would make XLA's convolutions many times slower.
    """
    if _setting() is None and jax.default_backend() != "cpu":
        jax.config.update("jax_default_matmul_precision", "float32")


def rounding_of_products() -> str:
    """The user's own setting of JAX, if it rounds the factors of products on this device; "" otherwise."""
    chosen = _setting()
    return "" if jax.default_backend() == "cpu" or chosen in _UNROUNDED else str(chosen)


def _setting() -> str | None:
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined, no-any-return]
