"""All images of a batch from the gradient of a first layer that is dense and followed by ReLUs.

Let H (B, k) be the layer's inputs and D (B, m) the loss gradients at its outputs. The layer's kernel has the gradient
H^T D, of rank B. Any two factors of it are H and D up to an invertible matrix Q (B, B). ReLUs that are off make about
half of the entries of D zero, and only the right columns of Q do that. The bias's gradient, the sum of D's rows, gives
the columns their lengths. This is SPEAR (Dimitrov, Baader, Müller and Vechev, *SPEAR: Exact Gradient Inversion of
Batches in Federated Learning*, NeurIPS 2024). SPEAR draws B - 1 outputs. If all of them are off for one image, the
vector orthogonal to their rows is that image's column, so the number of draws doubles with every image. Here (ours)
each such vector is the start of a descent to a vector that is orthogonal to as many rows as possible. The descent is
least squares with weights that grow where a row is nearly orthogonal. One draw in ten to a hundred then finds a column.

Labels are read off D, which is exact: an image's row is compared with the gradient that each label would give it.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak._base import Attack, Batch, BatchNormMode, Observation, PyTree, Reconstruction, Share, total_steps
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks._inversion.affine import LARGEST, by_pixel, images_of
from jaxleak.attacks._inversion.orthogonal_columns import (
    DEPENDENT,
    Factors,
    drawn_columns,
    factors_of,
    off_by,
    solution,
)
from jaxleak.attacks._inversion.rows import sizes_of_all_rows
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import Classifier

#: Largest batch that is tried.
LARGEST_BATCH = 64
#: Number of draws per iteration, and default number of iterations of `spear`.
_DRAWS, SPEAR_ITERATIONS = 512, 64
#: Sine of the angle below which an output's row counts as orthogonal to a column that all such rows determined.
_ZERO = 1e-4
#: Share of the outputs of all images below which the columns count as right. It is the share of outputs that are on
#: where D is zero, or off where D is not: an output that is zero up to rounding may be either.
SOLVED_BELOW = 0.01
#: Share of a single image's outputs that may disagree with D in this way if no loss confirms the solution, and the
#: smallest number of outputs for this test.
_WRONG_OF_A_SAMPLE, _OUTPUTS = 0.05, 24
#: Relative misfit of the whole update below which the attack answers.
MISFIT_BELOW = 1e-4
#: Relative misfit on random images below which the layer's inputs are an affine map of the image.
_AFFINE_BELOW = 1e-4


class DenseLayer(NamedTuple):
    """A dense layer that reads an affine map of the image."""

    kernel: str  # name of the kernel
    one_by_one: bool  # whether each of its inputs depends on one pixel


class SpearState(NamedTuple):
    """The best columns so far: at most B independent ones with as many zeros as possible."""

    columns: jax.Array  # (B, B) unit vectors as rows, zeros for those that are not found
    zeros: jax.Array  # (B,) int32, number of outputs that are off according to each column; -1 if it is not found
    wrong: jax.Array  # () share of outputs whose ReLU contradicts the columns
    factors: Factors  # computed from the first observation


def spear(
    model: Classifier,
    share: Share,
    *,
    batch_size: int,
    draws: int = SPEAR_ITERATIONS * _DRAWS,
    reweighted: int = 15,
) -> Attack:
    """Solve for all images and labels of a batch (FedSGD) behind a first layer that is dense and followed by ReLUs.

    The answer is exact up to rounding, or there is none (`answered`). The layer needs at least as many inputs as there
    are images, and several times as many outputs. Every image must turn on some outputs, in a pattern of its own. The
    update must have no noise.

    Args:
        model: a network whose first dense layer has a bias and reads an affine map of the image, such as `models.mlp`
            on an image or on the row of a table. Layers behind it may be any.
        share: what the client ran, a `protocols.ClientShare` of one step on one batch.
        batch_size: B, in [2, 64].
        draws: largest number of subsets of outputs that are drawn, > 0.
        reweighted: steps of the descent from each draw, >= 0; 0 gives SPEAR as printed, which needs about
            `2^(B - 1) (log(B) + 3)` draws.

    Returns:
        An `Attack`. Its info holds `distance`, the share of outputs whose ReLU contradicts the solution, and `found`,
        the number of independent columns. The score is the relative misfit of the whole update. `gradient_matched`
        says whether this misfit is rounding alone. `answered` says whether, in addition, no other images give the layer
        the same inputs. Without a solution all images are grey and all labels -1.

    Raises:
        ValueError: on a batch size or a number of draws out of range, a client of several steps or clients, a network
            whose normalisation mixes images or that has no such layer; or, when an observation is first seen, if the
            threat withholds a leaf that is read.
    """
    _validate.count_in_range(2, LARGEST_BATCH, batch_size=batch_size)
    if total_steps(share) * share.clients > 1:
        raise ValueError("spear needs the gradient of one batch: the client must take one step, and be a single one")
    if model.mixes_images(share.batch_norm):
        raise ValueError("spear needs every image's own ReLUs, and batch normalisation mixes the images of a batch")
    _validate.count(draws=draws)
    _validate.count_or_zero(reweighted=reweighted)
    dense = dense_layer_on_images(model, share.batch_norm)
    layer = dense.kernel
    inputs, outputs = sizes_of_all_rows(model, 1, share.batch_norm)[layer][1], _outputs(model, layer)
    if min(inputs, outputs) < batch_size:
        raise ValueError(
            f"batch_size must be at most the {inputs} inputs and {outputs} outputs of {layer}, got {batch_size}"
        )
    reads = Reads("spear", params=True, leaves=None)

    def init(key: jax.Array, template: Batch) -> SpearState:
        del key, template
        size = (outputs, batch_size)
        empty = Factors(
            jnp.zeros(size), jnp.zeros((batch_size, inputs)), jnp.zeros(outputs),
            jnp.zeros(outputs, bool), jnp.full((), -1, jnp.int32),
        )  # fmt: skip
        none = jnp.full(batch_size, -1, jnp.int32)
        return SpearState(jnp.zeros((batch_size, batch_size)), none, jnp.ones(()), empty)

    def step(key: jax.Array, state: SpearState, observation: Observation) -> tuple[SpearState, dict[str, jax.Array]]:
        seen = require(observation, reads)
        variables = seen.params
        factors = jax.lax.cond(
            state.factors.rank < 0,
            lambda: factors_of(model, seen.payload, layer, batch_size),
            lambda: state.factors,
        )
        state = state._replace(factors=factors)

        def disagreement(columns: jax.Array) -> jax.Array:
            h, d = _polished(model, variables, layer, factors, columns)
            return _wrong_by_sample(model, variables, layer, factors, h, d).mean()

        def drawn(state: SpearState) -> SpearState:
            found = _best_columns(factors, state, *drawn_columns(factors, key, reweighted, draws=_DRAWS))
            full = (found.zeros >= 0).all() & (factors.rank == batch_size)
            wrong = jax.lax.cond(full, disagreement, lambda columns: jnp.ones(()), found.columns)
            return found._replace(wrong=wrong)

        state = jax.lax.cond(state.wrong < SOLVED_BELOW, lambda s: s, drawn, state)
        return state, {"distance": state.wrong, "found": (state.zeros >= 0).sum().astype(jnp.float32)}

    def reconstruct(state: SpearState, observation: Observation) -> Reconstruction:
        seen = require(observation, reads)
        variables, payload = seen.params, seen.payload
        x, _, d, unique = _images(model, share.batch_norm, variables, dense, state)
        # Wrong columns have an arbitrary solution, which may be huge; a grey image claims nothing.
        solved = state.wrong < SOLVED_BELOW
        x = jnp.where(solved & jnp.isfinite(x), x, 0.5)
        y = jnp.where(solved, _labels(model, share, variables, layer, x, d), -1)
        own = share(variables, Batch(x[:, None], y, jnp.arange(batch_size)))
        misfit = norm(jax.tree.map(jnp.subtract, payload, own)) / norm(payload)
        matched = misfit < MISFIT_BELOW
        score, answered, matched = (jnp.full(batch_size, one) for one in (misfit, matched & solved & unique, matched))
        return Reconstruction(x[:, None], y, score, answered, matched)

    return Attack(init, step, reconstruct, math.ceil(draws / _DRAWS))


class ImagesWithoutLoss(NamedTuple):
    """The images of a solution, and the evidence for them that needs neither a loss nor labels."""

    x: jax.Array  # (B, H, W, channels)
    certain: jax.Array  # (B,) bool, whether the ReLUs admit no other image in its place
    dimmer: jax.Array  # (B,) bool, whether the image would turn on the same outputs if half as bright
    misfit: jax.Array  # () relative misfit of the layer's gradient, the larger of the kernel's and the bias's


def images_without_loss(
    model: Classifier, mode: BatchNormMode, dense: DenseLayer, state: SpearState, observation: Observation
) -> ImagesWithoutLoss:
    """The images of a solution, judged without a loss or labels.

    An image is certain if three conditions hold. Its ReLUs are on and off as its column says, with at most 5 % of
    exceptions among at least 24 outputs. The outputs that are off determine the column; they do not if another sample
    turns on no outputs but those that this one turns on. No other images give the layer the same inputs.

    Args:
        model: the network, which `spear` takes.
        mode: which statistics normalise, those of the batch or the running ones.
        dense: the layer, from `dense_layer_on_images`.
        state: what `spear` has found, with as many columns as samples.
        observation: the parameters and the payload that it saw.
    """
    layer, variables, factors = dense.kernel, observation.params, state.factors
    x, solved, d, unique = _images(model, mode, variables, dense, state)
    inputs = jax.vmap(functools.partial(_inputs, model, variables, layer=layer, mode=mode))
    h, gradients = inputs(x), named_leaves(observation.payload)
    gradient, bias = model.matrix(layer, gradients[layer]), gradients[model.bias_of(layer)].reshape(-1)
    parts = ((h.T @ d, gradient), (d.sum(axis=0), bias))
    misfit = jnp.stack([jnp.linalg.norm(own - seen) / jnp.linalg.norm(seen) for own, seen in parts]).max()
    off = _off_of(model, variables, layer, factors, h)
    singular = jnp.linalg.svd(factors.directions * off[:, :, None], compute_uv=False)
    certain = (_wrong_by_sample(model, variables, layer, factors, solved, d) <= _WRONG_OF_A_SAMPLE) & unique
    certain &= (singular[:, -2] > DEPENDENT) & (factors.live.sum() >= _OUTPUTS) & jnp.isfinite(x).all(axis=(1, 2, 3))
    changed = off != _off_of(model, variables, layer, factors, inputs(x / 2))
    dimmer = jnp.mean(changed, axis=1, where=factors.live) <= _WRONG_OF_A_SAMPLE
    return ImagesWithoutLoss(x, certain, dimmer, misfit)


def _images(
    model: Classifier, mode: BatchNormMode, variables: PyTree, dense: DenseLayer, state: SpearState
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Images (B, H, W, C), inputs (B, k) and loss gradients (B, m) of the layer, and whether no other images fit."""
    h, d = _polished(model, variables, dense.kernel, state.factors, state.columns)
    inputs = functools.partial(_inputs, model, variables, layer=dense.kernel, mode=mode)
    x, unique = images_of(inputs, model.image_shape, h, one_by_one=dense.one_by_one)
    return x, h, d, unique


@functools.lru_cache(maxsize=16)  # an audit calls this again if there is no solution
def dense_layer_on_images(model: Classifier, mode: BatchNormMode) -> DenseLayer:
    """The first layer, if it is dense and reads an affine map of the image that depends on no parameter.

    Raises:
        ValueError: if the first layer is no such layer, has no bias, or reads a map that is too large to invert.
    """
    sizes = sizes_of_all_rows(model, 1, mode)
    layer = next(iter(sizes), "")
    if not layer or sizes[layer][0] != 1 or not model.bias_of(layer):
        raise ValueError("spear reads the gradient of a first layer that is dense and has a bias; this model has none")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(0)

    def drawn() -> PyTree:
        return jax.tree.map(lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32), shapes)

    # Pixels and their sums are far from values at which rounding to pixels or clipping would show.
    first, second = (rng.uniform(0.1, 0.4, model.image_shape).astype(np.float32) for _ in range(2))
    inputs = jax.jit(functools.partial(_inputs, model, layer=layer, mode=mode))
    variables = drawn()
    of_first, of_second, of_both, of_none = (
        inputs(variables, x) for x in (first, second, first + second, np.zeros_like(first))
    )
    size = np.linalg.norm(of_both) * _AFFINE_BELOW
    affine = np.linalg.norm(of_first + of_second - of_both - of_none) <= size
    others = {**variables, "params": drawn()["params"]}
    if not affine or np.linalg.norm(inputs(others, first) - of_first) > size:
        raise ValueError(f"spear reads the gradient of a dense layer that reads the image itself; {layer} does not")
    one_by_one = by_pixel(functools.partial(inputs, variables), model.image_shape)
    if not one_by_one and math.prod(model.image_shape) > LARGEST:
        raise ValueError(
            f"spear inverts what {layer} reads, which mixes pixels: the image must have at most {LARGEST} numbers, got "
            f"{math.prod(model.image_shape)}"
        )
    return DenseLayer(layer, one_by_one)


def _best_columns(factors: Factors, state: SpearState, columns: jax.Array, zeros: jax.Array) -> SpearState:
    """The independent columns with most zeros among old and new ones; a greedy choice is optimal for vector spaces."""
    size = factors.left.shape[1]
    columns, zeros = jnp.concatenate([state.columns, columns]), jnp.concatenate([state.zeros, zeros])
    order = jnp.argsort(-zeros)
    columns, zeros = columns[order], zeros[order]

    class Chosen(NamedTuple):
        next: jax.Array
        taken: jax.Array
        columns: jax.Array
        zeros: jax.Array
        orthonormal: jax.Array

    def more(chosen: Chosen) -> jax.Array:
        at = jnp.minimum(chosen.next, len(zeros) - 1)
        return (chosen.taken < size) & (chosen.next < len(zeros)) & (zeros[at] >= 0)

    def one(chosen: Chosen) -> Chosen:
        column = columns[chosen.next]
        rest = column - chosen.orthonormal.T @ (chosen.orthonormal @ column)
        length = jnp.linalg.norm(rest)
        new = length > DEPENDENT
        at = jnp.where(new, chosen.taken, size)  # out of range, where nothing is written
        return Chosen(
            chosen.next + 1,
            chosen.taken + new,
            chosen.columns.at[at].set(column, mode="drop"),
            chosen.zeros.at[at].set(zeros[chosen.next], mode="drop"),
            chosen.orthonormal.at[at].set(rest / jnp.where(new, length, 1.0), mode="drop"),
        )

    none = jnp.zeros((size, size))
    start = Chosen(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), none, jnp.full(size, -1, jnp.int32), none)
    found = jax.lax.while_loop(more, one, start)
    return state._replace(columns=found.columns, zeros=found.zeros)


def _off_of(model: Classifier, variables: PyTree, layer: str, factors: Factors, h: jax.Array) -> jax.Array:
    """(B, m) bool, live outputs that are off for these inputs (B, k)."""
    weights = named_leaves(variables["params"])
    outputs = h @ model.matrix(layer, weights[layer]) + weights[model.bias_of(layer)].reshape(-1)
    return (outputs <= 0) & factors.live


def _wrong_by_sample(
    model: Classifier, variables: PyTree, layer: str, factors: Factors, h: jax.Array, d: jax.Array
) -> jax.Array:
    """(B,) the share of an image's live outputs that are off where the gradient is not zero, or on where it is."""
    largest = jnp.linalg.norm(factors.left, axis=1) * jnp.linalg.norm(d @ factors.left, axis=1, keepdims=True)
    zero = (jnp.abs(d) < _ZERO * largest) & factors.live
    return jnp.mean(zero != _off_of(model, variables, layer, factors, h), axis=1, where=factors.live)


def _polished(
    model: Classifier, variables: PyTree, layer: str, factors: Factors, columns: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The solution from the outputs that are off in a first solution, without those near zero by chance."""
    h, _ = solution(factors, off_by(factors, columns))
    return solution(factors, _off_of(model, variables, layer, factors, h))


def _unit(d: jax.Array) -> jax.Array:
    """Vectors (..., m) scaled to length 1; a zero vector stays as it is."""
    return d / jnp.maximum(jnp.linalg.norm(d, axis=-1, keepdims=True), jnp.finfo(d.dtype).tiny)


def _inputs(model: Classifier, variables: PyTree, x: jax.Array, *, layer: str, mode: BatchNormMode) -> jax.Array:
    return model.rows(variables, x[None], mode=mode)[layer][0]


def _outputs(model: Classifier, layer: str) -> int:
    leaves = named_leaves(jax.eval_shape(model.init, jax.random.key(0))["params"])
    return int(np.prod(leaves[model.bias_of(layer)].shape))


def _labels(model: Classifier, share: Share, variables: PyTree, layer: str, x: jax.Array, d: jax.Array) -> jax.Array:
    """The labels (B,) whose gradients at the layer's outputs have the directions nearest to the update's, d (B, m).

    Lengths are not compared, since they depend on whether the client's loss is a mean over the batch or a sum.
    """
    bias = model.bias_of(layer)
    directions = _unit(d)

    def misfits(label: jax.Array) -> jax.Array:
        def one(x: jax.Array, d: jax.Array) -> jax.Array:
            own = share(variables, Batch(x[None, None], label[None], jnp.zeros(1, jnp.int32)))
            return jnp.linalg.norm(_unit(named_leaves(own)[bias].reshape(-1)) - d)

        return jax.vmap(one)(x, directions)

    found: Any = jax.lax.map(misfits, jnp.arange(model.num_classes))
    return jnp.argmin(found, axis=0).astype(jnp.int32)
