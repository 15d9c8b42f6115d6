"""The image behind one gradient of a vision transformer, in closed form.

A learned position embedding is added to every token, so its gradient is that of the tokens, d_t. The patches p_t enter
by one linear layer, whose kernel has the gradient sum_t p_t d_t^T. Both gradients are in the update. If there are no
more tokens than the width, the second one is a system of linear equations for the patches. J. Lu et al., *APRIL:
Finding the Achilles' Heel on Privacy for Vision Transformers*, CVPR 2022, show that position embeddings give the
gradient of the tokens away; they solve for the input of the first attention instead. If the equations leave some
directions open, the smoothest image among the solutions is taken.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Attack, Batch, Observation, Reconstruction
from jaxleak._tree import named_leaves
from jaxleak.attacks._inversion.label_rules import label_of_one_sample
from jaxleak.attacks._inversion.rows import sizes_of_rows
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import Classifier

#: Relative misfit of the linear system above which the update is not the gradient of one image.
CONSISTENT_BELOW = 1e-4
#: Distance of a pixel from [0, 1] above which an answer is no image. Rounding may cause a smaller one where a token's
#: gradient is nearly zero.
OUTSIDE_BELOW = 0.1
#: Share of the directions that the equations must fix for an answer; smoothness decides the others.
FIXED_ABOVE = 0.95
#: Largest number of rows of a position embedding besides those of patches: class, distillation and register tokens.
_OTHER_TOKENS = 16
#: Steps of conjugate gradients towards the smoothest image among the solutions.
_SMOOTHING_STEPS = 200


class Position(NamedTuple):
    """A leaf that may be the position embedding, and which of its rows would be the patches'."""

    name: str
    axis: int  # axis of the width
    first: int  # row of the first patch


class PatchLayer(NamedTuple):
    """The linear layer that reads non-overlapping patches, and the leaves that may hold its tokens' gradients."""

    kernel: str
    tokens: int  # T
    entries: int  # numbers in a patch
    positions: tuple[Position, ...]  # the likeliest first


class PatchEmbeddingState(NamedTuple):
    """The latest observation's solution."""

    x: jax.Array  # (H, W, c)
    misfit: jax.Array  # () relative
    fixed: jax.Array  # () share of the directions that the equations fix: 1 if the tokens' gradients are independent
    outside: jax.Array  # () how far pixels lie outside of [0, 1]


def patch_embedding(model: Classifier, *, batch_size: int = 1) -> Attack:
    """Solve for the patches of one image (FedSGD, a single sample); no iterations, no labels.

    The attack needs the gradients of the position embedding, of the patch embedding's kernel and of the head, nothing
    else. The position embedding is not found by its name: it is the leaf that solves the equations. The attack says
    that it has no answer (`answered`) in three cases: if the equations disagree (`gradient_matched`), as after several
    local steps or with noise; if the solution is no image in [0, 1]; or if the equations leave more than a twentieth of
    the directions open, as with many more tokens than the width. Open directions are filled by the smoothest image. The
    label is that of the rule "bias_rule", or of "longest_column" if the head has no bias. Both are exact here, the
    latter from three classes on.

    Args:
        model: any network that reads non-overlapping patches by one linear layer and adds a learned position embedding
            to this layer's outputs, such as `models.vit` or a transformer of another framework.
        batch_size: 1; gradients of several images add up in the position embedding.

    Returns:
        An `Attack`. Its info holds `distance`, the relative misfit of the linear system, which is also the score.

    Raises:
        ValueError: if the model has no learned position embedding behind patches, the batch is not a single image, or,
            when an observation is first seen, if the threat withholds a leaf that is read.
    """
    if batch_size != 1:
        raise ValueError(
            f"batch_size must be 1, got {batch_size}: gradients of images add up in the position embedding"
        )
    layer = _patch_layer(model)
    image_of = _image_of(model, layer)
    reads = Reads(
        "patch_embedding", leaves=(layer.kernel, *(where.name for where in layer.positions), *model.head_names)
    )

    def init(key: jax.Array, template: Batch) -> PatchEmbeddingState:
        del key, template
        unknown = jnp.full((), jnp.inf, jnp.float32)
        return PatchEmbeddingState(jnp.zeros(model.image_shape), unknown, jnp.zeros(()), unknown)

    def step(
        key: jax.Array, state: PatchEmbeddingState, observation: Observation
    ) -> tuple[PatchEmbeddingState, dict[str, jax.Array]]:
        del key, state
        leaves = named_leaves(require(observation, reads).payload)
        kernel_gradient = model.matrix(layer.kernel, leaves[layer.kernel])
        solutions = [
            _solve(_rows(leaves[where.name], where, layer.tokens), kernel_gradient, image_of)
            for where in layer.positions
        ]
        found = jax.tree.map(lambda *parts: jnp.stack(parts), *solutions)
        # If several leaves solve the equations, prefer what lies in [0, 1], and then the first of `layer.positions`.
        best = jnp.argmin(jnp.where(found.misfit < CONSISTENT_BELOW, found.outside, jnp.inf))
        best = jnp.where(found.misfit.min() < CONSISTENT_BELOW, best, jnp.argmin(found.misfit))
        state = jax.tree.map(lambda part: part[best], found)
        return state, {"distance": state.misfit}

    def reconstruct(state: PatchEmbeddingState, observation: Observation) -> Reconstruction:
        y = label_of_one_sample(model.head_of(observation.payload, gradient=True))
        matched = state.misfit < CONSISTENT_BELOW
        answered = matched & (state.fixed >= FIXED_ABOVE) & (state.outside < OUTSIDE_BELOW)
        return Reconstruction(state.x[None, None], y, state.misfit[None], answered[None], matched[None])

    return Attack(init, step, reconstruct)


def _rows(leaf: jax.Array, where: Position, tokens: int) -> jax.Array:
    rows = jnp.moveaxis(leaf, where.axis, -1).reshape(-1, leaf.shape[where.axis])
    return rows[where.first : where.first + tokens]


def _patch_layer(model: Classifier) -> PatchLayer:
    """The layer whose rows hold as many numbers as the image, and the leaves that have a row for each of its tokens."""
    leaves = named_leaves(jax.eval_shape(model.init, jax.random.key(0))["params"])
    sizes = sizes_of_rows(model, 1)
    for kernel, (tokens, entries) in sizes.items():
        if tokens == 1 or tokens * entries != math.prod(model.image_shape):
            continue
        width = leaves[kernel].size // entries
        positions = [
            Position(name, axis, first)
            for name, leaf in leaves.items()
            if name not in sizes and leaf.ndim > 1
            for axis in range(leaf.ndim)
            if leaf.shape[axis] == width and tokens <= leaf.size // width <= tokens + _OTHER_TOKENS
            for first in range(leaf.size // width - tokens, -1, -1)  # other tokens mostly come first
        ]
        if positions:
            return PatchLayer(kernel, tokens, entries, tuple(positions))
    raise ValueError("patch_embedding reads the gradient of a learned position embedding; this model has none")


def _image_of(model: Classifier, layer: PatchLayer) -> Callable[[jax.Array], jax.Array]:
    """A function from patches (T, p p c), as the layer reads them, to the image (H, W, c)."""
    # What the first linear layer reads depends on no parameter.
    variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _shapes(model))
    grey = jnp.zeros(model.image_shape)
    reads = jax.jit(lambda x: model.rows(variables, x[None], mode="eval")[layer.kernel])
    offset, forward = jax.linearize(reads, grey)  # one program; else every layer in front is run by itself
    (sizes,) = jax.linear_transpose(forward, grey)(forward(jnp.ones_like(grey)))

    @jax.jit
    def image_of(patches: jax.Array) -> jax.Array:
        (back,) = jax.linear_transpose(forward, grey)(patches - offset)
        return back / sizes

    x = jax.random.uniform(jax.random.key(0), model.image_shape)
    if not jnp.allclose(image_of(reads(x)), x, atol=1e-4):
        raise ValueError(f"patch_embedding: {layer.kernel} does not read patches that make up the image")
    return image_of


def _shapes(model: Classifier) -> Any:
    return jax.eval_shape(model.init, jax.random.key(0))


def _solve(
    token_gradients: jax.Array, kernel_gradient: jax.Array, image_of: Callable[[jax.Array], jax.Array]
) -> PatchEmbeddingState:
    """The image of the patches P (T, m) with D^T P = G^T for D (T, d) and G (m, d), and how much of it this fixes."""
    sizes = jnp.linalg.norm(token_gradients, axis=1, keepdims=True) + jnp.finfo(jnp.float32).tiny
    tokens, width = token_gradients.shape
    left, values, right = jnp.linalg.svd(token_gradients / sizes)
    values = jnp.pad(values, (0, tokens - len(values)))  # more tokens than the width leave directions open
    kept = values > max(tokens, width) * jnp.finfo(jnp.float32).eps * values[0]
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[: min(tokens, width)]

    def least_squares(g: jax.Array) -> jax.Array:
        seen = inverse[:, None] * (right[: len(inverse)] @ g.T)
        return left[:, : len(inverse)] @ seen / sizes

    patches = least_squares(kernel_gradient)
    # A second solve for the remainder that rounding left.
    patches += least_squares(kernel_gradient - patches.T @ token_gradients)

    def along(change: jax.Array) -> jax.Array:
        # Changes in directions that the equations fix are multiplied by zero; conjugate gradients move only the others.
        return left @ jnp.where(kept[:, None], 0, change) / sizes

    def roughness(change: jax.Array) -> jax.Array:
        x = image_of(patches + along(change))
        return 0.5 * (jnp.sum(jnp.diff(x, axis=0) ** 2) + jnp.sum(jnp.diff(x, axis=1) ** 2))

    def smoothest() -> jax.Array:
        slope = jax.grad(roughness)
        start = slope(jnp.zeros_like(patches))
        change, _ = jax.scipy.sparse.linalg.cg(lambda v: slope(v) - start, -start, maxiter=_SMOOTHING_STEPS)
        return patches + along(change)

    patches = jax.lax.cond(kept.all(), lambda: patches, smoothest)
    misfit = jnp.linalg.norm(patches.T @ token_gradients - kernel_gradient) / jnp.linalg.norm(kernel_gradient)
    x = image_of(patches)
    outside = jnp.maximum(jnp.maximum(-x, x - 1).max(), 0)
    return PatchEmbeddingState(x, misfit, kept.mean(), outside)
