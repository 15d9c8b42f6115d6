"""Conservation laws of a gradient: directions in the weights that change no output, which no gradient may have.

Scaling a ReLU unit's inputs up and its outputs down changes nothing, nor does scaling a convolution whose outputs a
batch statistic normalises. Along such a direction the gradient of every loss and every batch is zero (Kunin et al.,
*Neural mechanics*, ICLR 2021). The directions of a network are found here from its own derivatives, so that this works
for any network. An update breaks the laws if it was computed at other weights or in the other mode, or is stored in
another layout.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Batch, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._checks.tokens import codes_of
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode
from jaxleak.protocols import ClientShare

#: Directions change nothing if their singular values of the outputs' derivatives are below this share of the largest.
_NULL_BELOW = 1e-4
#: A law is broken above this multiple of the violations of simulated clients, which are rounding alone.
_TIMES_SIMULATED = 10.0
_LEAST_TOLERANCE = 3e-6
#: A law tells something only if weights of another draw break it by this multiple of its tolerance.
_TELLING = 3.0
_SIMULATED = 3
#: Share of the norm below which a leaf's gradient is rounding.
VANISHING_BELOW = 1e-5
_PAIR = 2
_MORE_ROWS = 8
_SMALLEST_AXIS = 4
#: With more directions than this, layers are scaled as a whole only.
_MOST_DIRECTIONS = 200


class Laws(NamedTuple):
    """The laws of one client, as computed from simulated images."""

    share: ClientShare
    directions: tuple[tuple[str, int], ...]  # leaf and axis; axis -1 scales the leaf as a whole
    combinations: np.ndarray  # (K, laws), unit columns
    tolerances: np.ndarray  # (laws,)
    sizes: dict[str, tuple[float, float]]  # per leaf, least and largest share of the gradient's norm in simulations
    diverged: bool = False  # whether the steps of simulated clients overflow, so that no law can be tested


class Broken(NamedTuple):
    """How far an update breaks the laws."""

    laws: int  # how many there are
    worst: float  # largest violation over tolerance
    violations: np.ndarray  # (laws,) over the tolerances


def find_laws(
    share: ClientShare,
    variables: PyTree,
    batch_size: int,
    key: jax.Array,
    precision: Precision = FULL,
    *,
    one_hot: bool = False,
) -> Laws:
    """The directions that leave the outputs of simulated images as they are.

    Args:
        share: what the client computes.
        variables: the weights at which the update was computed, as is claimed.
        batch_size: B of each local step.
        key: random key of the simulated images and labels.
        precision: format in which the simulated clients send their updates.
        one_hot: whether the simulated images are one-hot codes. The normalisation of their small embeddings depends on
            the scale, because its epsilon counts.
    """
    directions = _directions(variables["params"])
    image_key, other_key, *keys = jax.random.split(key, 2 + _SIMULATED)
    slopes = np.asarray(_slopes(share.model, share.batch_norm, directions, one_hot, variables, image_key), np.float64)
    slopes = slopes / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-30)
    _, values, right = np.linalg.svd(slopes)
    combinations = right[values <= _NULL_BELOW * values[0]].T
    samples = batch_size * share.local_steps * share.clients
    gradients = _clients(share, variables, samples, keys, precision, one_hot=one_hot)
    others = _simulated(share, _other_weights(variables, other_key), samples, keys[0], one_hot)
    violations = np.stack([_violations(directions, combinations, variables, g) for g in gradients])
    tolerances = _LEAST_TOLERANCE + _TIMES_SIMULATED * violations.max(axis=0)
    telling = _violations(directions, combinations, variables, others) > _TELLING * tolerances
    sizes = _sizes(gradients)
    if diverged := not _finite(sizes):
        sizes = _sizes_of_first_step(share, variables, batch_size, key)
    return Laws(share, directions, combinations[:, telling], tolerances[telling], sizes, diverged)


def find_sizes(
    share: ClientShare, variables: PyTree, batch_size: int, key: jax.Array, precision: Precision = FULL
) -> dict[str, tuple[float, float]]:
    """The `Laws.sizes` of a client, without its laws; the arguments are those of `find_laws`.

    On simulated images, several local steps may diverge that converge on real ones. The sizes are then those of the
    first step.
    """
    samples, keys = batch_size * share.local_steps * share.clients, jax.random.split(key, _SIMULATED)
    sizes = _sizes(_clients(share, variables, samples, keys, precision))
    return sizes if _finite(sizes) else _sizes_of_first_step(share, variables, batch_size, key)


def _sizes_of_first_step(
    share: ClientShare, variables: PyTree, batch_size: int, key: jax.Array
) -> dict[str, tuple[float, float]]:
    keys = jax.random.split(key, _SIMULATED)
    return _sizes(_clients(share.in_one_step(), variables, batch_size * share.clients, keys, FULL))


def against(laws: Laws, variables: PyTree, payload: PyTree) -> Broken:
    """How far a payload breaks the laws at these variables."""
    ratios = _violations(laws.directions, laws.combinations, variables, payload) / laws.tolerances
    if not len(ratios):
        return Broken(0, 0.0, ratios)
    return Broken(len(ratios), float(ratios.max()), ratios)


def vanishing(sizes: dict[str, tuple[float, float]]) -> list[str]:
    """Leaves whose gradient is zero in theory, such as a bias in front of batch statistics; `sizes` as in `Laws`."""
    return [name for name, (_, largest) in sizes.items() if largest < VANISHING_BELOW]


def shares_of_norm(payload: PyTree) -> dict[str, float]:
    """The norm of every leaf over the norm of the whole payload."""
    norms = {name: float(np.linalg.norm(np.asarray(leaf, np.float64))) for name, leaf in named_leaves(payload).items()}
    total = np.sqrt(sum(value**2 for value in norms.values()))
    return {name: value / max(total, 1e-300) for name, value in norms.items()}


def _directions(params: PyTree) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for name, leaf in named_leaves(params).items():
        axes = [a for a, size in enumerate(leaf.shape) if size >= _SMALLEST_AXIS] if leaf.ndim < 4 else _outer(leaf)
        found += [(name, -1), *((name, axis) for axis in axes)]
    whole = [direction for direction in found if direction[1] < 0]
    return tuple(found if len(found) <= _MOST_DIRECTIONS else whole)


def _outer(leaf: Any) -> list[int]:
    # The channel axes of a convolution's kernel, wherever the layout has them; the window is two short axes.
    return [a for a, size in enumerate(leaf.shape) if size >= 2 * _SMALLEST_AXIS]


def _weight(axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """Factors along an axis, equal for all leaves of that size, so that units that belong together scale together."""
    if axis < 0:
        return np.ones((1,) * len(shape), np.float32)
    size = shape[axis]
    numbers = np.random.default_rng(size).choice([-1.0, 1.0], size) * np.random.default_rng(size + 1).uniform(
        0.5, 1.5, size
    )
    return numbers.reshape([size if a == axis else 1 for a in range(len(shape))]).astype(np.float32)


@jitted_for_few(0, 1, 2, 3)
def _slopes(
    model: Classifier,
    mode: BatchNormMode,
    directions: tuple[tuple[str, int], ...],
    one_hot: bool,
    variables: PyTree,
    key: jax.Array,
) -> jax.Array:
    """(M, K): slopes along K unit directions of M random combinations of outputs, each for its own pair of images.

    There are more rows than directions, and each row takes one backward pass. The factors of a random combination sum
    to zero over classes, as the gradient of a softmax does.
    """
    names = [name for name, _ in directions]

    def row(key: jax.Array) -> jax.Array:
        image_key, output_key = jax.random.split(key)
        x = _images(image_key, _PAIR, model.image_shape, one_hot)
        weight = jax.random.normal(output_key, (_PAIR, model.num_classes))
        weight -= weight.mean(axis=-1, keepdims=True)

        def combination(params: PyTree) -> jax.Array:
            return jnp.vdot(weight, model.apply({**variables, "params": params}, x, mode=mode).logits)

        gradients, weights = named_leaves(jax.grad(combination)(variables["params"])), named_leaves(variables["params"])
        products = {name: weights[name] * gradients[name] for name in dict.fromkeys(names)}
        along = []
        for name, axis in directions:
            scale = _weight(axis, weights[name].shape)
            size = jnp.linalg.norm((weights[name] * scale).ravel())
            along.append(jnp.sum(products[name] * scale) / jnp.maximum(size, 1e-30))
        return jnp.stack(along)

    return jax.lax.map(row, jax.random.split(key, len(directions) + _MORE_ROWS))


def slopes_along(laws: Laws, variables: PyTree, payload: PyTree) -> np.ndarray:
    """(laws,): the component of the payload along each law, linear in the payload, over the law's tolerance."""
    return _along(laws.directions, laws.combinations, variables, payload)[0] / laws.tolerances


def _violations(
    directions: tuple[tuple[str, int], ...], combinations: np.ndarray, variables: PyTree, payload: PyTree
) -> np.ndarray:
    """(laws,): size of the payload's component along each law, over the norm of the leaves that the law combines."""
    along, total = _along(directions, combinations, variables, payload)
    return np.abs(along) / np.maximum(total, 1e-30)


def _along(
    directions: tuple[tuple[str, int], ...], combinations: np.ndarray, variables: PyTree, payload: PyTree
) -> tuple[np.ndarray, np.ndarray]:
    """(laws,) each: the component of the payload along each law, and the norm of the leaves that the law combines."""
    weights, gradients = named_leaves(variables["params"]), named_leaves(payload)
    along, norms = np.zeros(len(directions)), np.zeros(len(directions))
    for k, (name, axis) in enumerate(directions):
        direction = np.asarray(weights[name], np.float64) * np.asarray(_weight(axis, weights[name].shape), np.float64)
        gradient, size = np.asarray(gradients[name], np.float64), np.linalg.norm(direction)
        along[k] = np.vdot(direction, gradient) / size if size else 0.0
        norms[k] = np.linalg.norm(gradient)
    return combinations.T @ along, np.sqrt((combinations**2).T @ norms**2)


def _clients(
    share: ClientShare, variables: PyTree, samples: int, keys: Any, precision: Precision, *, one_hot: bool = False
) -> list[PyTree]:
    """What simulated clients send, one for each key."""
    sent = [_simulated(share, variables, samples, key, one_hot) for key in keys]
    return [precision.rounded(payload, variables["params"]) for payload in sent]


def _sizes(gradients: list[PyTree]) -> dict[str, tuple[float, float]]:
    shares = [shares_of_norm(gradient) for gradient in gradients]
    return {name: (min(s[name] for s in shares), max(s[name] for s in shares)) for name in shares[0]}


def _finite(sizes: dict[str, tuple[float, float]]) -> bool:
    return bool(np.isfinite(list(sizes.values())).all())


@jitted_for_few(0, 2, 4)
def _simulated(share: ClientShare, variables: PyTree, samples: int, key: jax.Array, one_hot: bool) -> PyTree:
    image_key, label_key = jax.random.split(key)
    x = _images(image_key, samples, share.model.image_shape, one_hot)
    y = jax.random.randint(label_key, (samples,), 0, share.model.num_classes, jnp.int32)
    return share(variables, Batch(x[:, None], y, jnp.arange(samples)))


def _images(key: jax.Array, count: int, shape: tuple[int, ...], one_hot: bool = False) -> jax.Array:
    """Images of noise on a coarse pattern, so that convolutions see both; or one-hot codes along the longer side.

    An image is of medium brightness, dark with bright spots, bright with dark spots, or noise alone, at random. Units
    that are always on or always off for images of one kind alone would seem to be laws, which other images break.
    """
    if one_hot:
        long = int(shape[1] >= shape[0])
        return codes_of(key, count, shape, long, jnp.arange(shape[long]))[1]
    coarse_key, fine_key, kind_key = jax.random.split(key, 3)
    coarse = jax.random.uniform(coarse_key, (count, *(max(1, side // 4) for side in shape[:2]), shape[2]))
    coarse = jax.image.resize(coarse, (count, *shape), "linear")
    noise = jax.random.uniform(fine_key, (count, *shape))
    dark = 0.8 * jnp.clip(3 * coarse - 2, 0, 1) + 0.2 * noise
    kind = jax.random.randint(kind_key, (count, 1, 1, 1), 0, 4)
    return jnp.select([kind == 0, kind == 1, kind == 2], [0.7 * coarse + 0.3 * noise, dark, 1 - dark], noise)


def _other_weights(variables: PyTree, key: jax.Array) -> PyTree:
    """The weights in another order, each leaf times 0.7 to 1.4: those of a network that never was this one.

    NumPy draws the order, since compiling a shuffle for every shape of a network takes longer than all else here.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

    def mixed(leaf: Any) -> np.ndarray:
        order = rng.permutation(np.ravel(leaf)).reshape(np.shape(leaf))
        return (order * rng.uniform(0.7, 1.4)).astype(order.dtype)

    return {**variables, "params": jax.tree.map(mixed, variables["params"])}
