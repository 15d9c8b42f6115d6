"""The image behind one gradient of a vision transformer, in closed form.

A learned position embedding is added to every token, so its gradient is that of the tokens, d_t. The patches p_t enter
by one linear layer, whose kernel has the gradient sum_t p_t d_t^T. Both are in the update, and with no more tokens than
the width the second is a system of linear equations for the patches. That position embeddings give the gradient of the
tokens away is from J. Lu et al., *APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers*, CVPR 2022, who
solve for the input of the first attention instead.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxleak._base import Attack, Batch, Observation, Reconstruction
from jaxleak.attacks._inversion.label_rules import infer_labels
from jaxleak.attacks._observed import require_leaf
from jaxleak.models import Classifier
from jaxleak.models._normalized import pixels_of

#: Relative misfit of the linear system above which the update is not the gradient of one image.
CONSISTENT_BELOW = 1e-4


_leaf = functools.partial(require_leaf, why="patch_embedding")


class PatchEmbeddingState(NamedTuple):
    """The latest observation's solution."""

    patches: jax.Array  # (T, p p c)
    misfit: jax.Array  # () relative
    determined: jax.Array  # () bool, whether the tokens' gradients are linearly independent


def patch_embedding(model: Classifier, *, batch_size: int = 1) -> Attack:
    """Solve for the patches of one image (FedSGD, a single sample); no iterations, no labels, no prior.

    Needs the gradients of the position embedding, of the patch embedding's kernel and of the head, nothing else. The
    attack says that it has no answer (`answered`) when there are more tokens than the width, or when the equations
    disagree (`gradient_matched`), as those of several local steps or of noisy updates do. The label is that of the rule
    "bias_rule", which is exact here.

    Args:
        model: from `models.vit`.
        batch_size: 1; gradients of several images add up in the position embedding.

    Returns:
        An `Attack`. Its info holds `distance`, the relative misfit of the linear system, which is also the score.

    Raises:
        ValueError: if the model has no learned position embedding, the batch is not a single image, or, when an
            observation is first seen, if the threat withholds a leaf that is read.
    """
    if batch_size != 1:
        raise ValueError(
            f"batch_size must be 1, got {batch_size}: gradients of images add up in the position embedding"
        )
    params = jax.eval_shape(model.init, jax.random.key(0))["params"]
    if "position" not in params or "embed" not in params:
        raise ValueError("patch_embedding reads the gradient of a learned position embedding; this model has none")
    tokens, entries = params["position"].shape[1] - 1, params["embed"]["kernel"].shape[0]

    def init(key: jax.Array, template: Batch) -> PatchEmbeddingState:
        del key, template
        return PatchEmbeddingState(
            jnp.zeros((tokens, entries)), jnp.full((), jnp.inf, jnp.float32), jnp.zeros((), bool)
        )

    def step(
        key: jax.Array, state: PatchEmbeddingState, observation: Observation
    ) -> tuple[PatchEmbeddingState, dict[str, jax.Array]]:
        del key, state
        token_gradients = _leaf(observation, "position")[0, 1:]  # the first token is the class token
        kernel_gradient = _leaf(observation, "embed", "kernel")
        patches, determined = _solve(token_gradients, kernel_gradient)
        misfit = jnp.linalg.norm(patches.T @ token_gradients - kernel_gradient) / jnp.linalg.norm(kernel_gradient)
        return PatchEmbeddingState(patches, misfit, determined), {"distance": misfit}

    def reconstruct(state: PatchEmbeddingState, observation: Observation) -> Reconstruction:
        height, width, channels = model.image_shape
        side = int((entries // channels) ** 0.5)
        grid = state.patches.reshape(height // side, width // side, side, side, channels)
        x = pixels_of(model, grid.transpose(0, 2, 1, 3, 4).reshape(1, 1, height, width, channels))
        head = model.head_of(observation.payload)
        y = infer_labels("bias_rule", head.kernel, head.bias, 1)
        matched = state.misfit < CONSISTENT_BELOW
        return Reconstruction(x, y, state.misfit[None], (state.determined & matched)[None], matched[None])

    return Attack(init, step, reconstruct)


def _solve(token_gradients: jax.Array, kernel_gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The patches P (T, m) with D^T P = G^T for D (T, d) and G (m, d), and whether they are the only ones."""
    sizes = jnp.linalg.norm(token_gradients, axis=1, keepdims=True) + jnp.finfo(jnp.float32).tiny
    left, values, right = jnp.linalg.svd(token_gradients / sizes, full_matrices=False)
    kept = values > max(token_gradients.shape) * jnp.finfo(jnp.float32).eps * values[0]
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)

    def least_squares(g: jax.Array) -> jax.Array:
        return left @ (inverse[:, None] * (right @ g.T)) / sizes

    patches = least_squares(kernel_gradient)
    # Once more for what rounding left.
    patches += least_squares(kernel_gradient - patches.T @ token_gradients)
    return patches, (len(token_gradients) <= token_gradients.shape[1]) & kept.all()
