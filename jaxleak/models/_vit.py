"""Vision transformers (Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021; sizes: Touvron et al. 2021)."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak.models._classifier import Classifier
from jaxleak.models._door import classifier
from jaxleak.models._layers import Init, Style, dense


class Attention(nn.Module):
    """Multi-head self-attention."""

    heads: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, T, d) -> (B, T, d)."""
        batch, tokens, width = x.shape
        size = width // self.heads
        qkv = dense(x, 3 * width, self.style, name="qkv").reshape(batch, tokens, 3, self.heads, size)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / jnp.sqrt(float(size))
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), value)
        return dense(mixed.reshape(batch, tokens, width), width, self.style, name="project")


def _layer_norm(name: str) -> nn.LayerNorm:
    # The fast variance, E[x^2] - E[x]^2, loses digits that a gradient's gradient needs.
    return nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, name=name)


class ViT(nn.Module):
    """Patches as tokens, a class token, pre-norm blocks, and a head on the class token."""

    num_classes: int
    style: Style
    patch_size: int
    width: int
    depth: int
    heads: int
    mlp_ratio: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Images (B, H, W, c) to logits (B, C)."""
        batch, height, width, channels = x.shape
        p = self.patch_size
        rows, columns = height // p, width // p
        x = x.reshape(batch, rows, p, columns, p, channels).transpose(0, 1, 3, 2, 4, 5)
        x = dense(x.reshape(batch, rows * columns, p * p * channels), self.width, self.style, name="embed")
        draw = nn.initializers.truncated_normal(0.02)
        token = self.param("class_token", draw, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, self.width)), x], axis=1)
        x = x + self.param("position", draw, (1, x.shape[1], self.width))
        for i in range(self.depth):
            x = x + Attention(self.heads, self.style, name=f"attention_{i}")(_layer_norm(f"norm_{i}_0")(x))
            z = dense(_layer_norm(f"norm_{i}_1")(x), self.mlp_ratio * self.width, self.style, name=f"mlp_{i}_0")
            x = x + dense(self.style.act(z), self.width, self.style, name=f"mlp_{i}_1")
        # The norm acts on every token by itself, and the head reads the class token alone.
        return dense(_layer_norm("last_norm")(x[:, 0]), self.num_classes, self.style, name="head")


def vit(
    image_shape: tuple[int, ...],
    num_classes: int = 10,
    *,
    patch_size: int | None = None,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
    mlp_ratio: int = 4,
    activation: str = "gelu",
    init: Init = "default",
) -> Classifier:
    """A vision transformer; `vit_tiny` and `vit_small` are this at width 192 with 3 heads, and 384 with 6.

    It has no batch normalisation and no dropout. Position embeddings and class token start from a truncated normal of
    scale 0.02, whatever `init` says.

    Args:
        image_shape: (H, W, c).
        num_classes: C >= 2.
        patch_size: divides H and W; default: 4 up to 32 pixels, 8 up to 64, 16 above.
        width: d of the tokens, a multiple of `heads`.
        depth: number of blocks.
        heads: number of attention heads.
        mlp_ratio: hidden width of a block's perceptron in multiples of `width`.
        activation: one of `jaxleak.models.ACTIVATIONS`.
        init: "default" (PyTorch's), "he", "glorot" or "wide_uniform", see `jaxleak.models.initializers`.

    Raises:
        ValueError: on sizes out of range or that do not divide, or unknown names.
    """
    side = max(image_shape[:2])
    if patch_size is None:
        patch_size = 4 if side <= 32 else 8 if side <= 64 else 16
    _validate.count(patch_size=patch_size, width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio)
    if any(n % patch_size for n in image_shape[:2]):
        raise ValueError(f"patch_size must divide height and width of {tuple(image_shape)}, got {patch_size}")
    if width % heads:
        raise ValueError(f"width must be a multiple of heads = {heads}, got {width}")
    module = ViT(num_classes, Style(activation, init), patch_size, width, depth, heads, mlp_ratio)
    return classifier(module, image_shape=image_shape, num_classes=num_classes, head="head")


vit_tiny: Callable[..., Classifier] = functools.partial(vit, width=192, heads=3)
vit_small: Callable[..., Classifier] = functools.partial(vit, width=384, heads=6)
