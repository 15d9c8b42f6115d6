"""Distances between two gradient trees: what the server received, and what a fake batch would have sent.

Every function is `(observed, simulated) -> ()` with two trees of the same structure and shapes, is differentiable in
`simulated`, and is zero when the trees are equal. Leaves of other shapes raise a `ValueError`.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import PyTree

Distance = Callable[[PyTree, PyTree], jax.Array]

# Below this, a tensor's variance is rounding: a kernel that narrow is flat everywhere and has no gradient.
_VARIANCE_FLOOR = 1e-20


def absolute(x: jax.Array) -> jax.Array:
    """|x| with derivative 0 at 0, as in PyTorch and TensorFlow; that of `jnp.abs` is 1 and parts what is equal."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a - b` of arrays of one shape, in float32 at the least: squares of 16 bits vanish, and their sums overflow.

    Raises:
        ValueError: on other shapes, which would be broadcast without a word.
    """
    _same_shape(a, b)
    return _tree.wide(a) - _tree.wide(b)


def _same_shape(a: jax.Array, b: jax.Array) -> None:
    if jnp.shape(a) != jnp.shape(b):
        raise ValueError(f"observed and simulated must have the same shapes, got {jnp.shape(a)} and {jnp.shape(b)}")


def squared_l2(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum of squared differences over all leaves (DLG; CAFE, NeurIPS 2021, equation 9, first term): () in [0, inf)."""
    return _tree.squared_norm(jax.tree.map(difference, observed, simulated))


def layer_norms(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum over leaves of the L2 norm of their difference (GradInversion, Yin et al. 2021, equation 2): () in [0, inf).

    A norm keeps its pull however small the difference becomes; a leaf that agrees exactly has gradient 0.
    """
    norms = jax.tree.map(lambda a, b: _tree.root(jnp.sum(difference(a, b) ** 2)), observed, simulated)
    return sum(jax.tree.leaves(norms), jnp.zeros(()))


def l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum of absolute differences over all leaves: () in [0, inf). Entries that agree exactly have gradient 0."""
    differences = jax.tree.map(lambda a, b: jnp.sum(absolute(difference(a, b))), observed, simulated)
    return sum(jax.tree.leaves(differences), jnp.zeros(()))


def relative_l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """`sum |g' - g| / sum |g|` over all entries of the trees: FedLeak's L1 term (section 4.2) in units of the data.

    FedLeak prints the sum of the selected entries and reasons about their mean, a factor of millions apart. Divided by
    the observed mass the term has no scale left: 1 for a simulated gradient of zeros, whatever the model or the share
    that is selected. Give it masked trees and both sums run over the selection.

    Returns:
        () in [0, inf); the plain sum where the observed tree is zero.
    """
    mass = sum((jnp.sum(jnp.abs(_tree.wide(leaf))) for leaf in jax.tree.leaves(observed)), jnp.zeros(()))
    return l1(observed, simulated) / jnp.where(mass > 0, mass, 1.0)


def mean_l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Mean absolute difference over all entries of all leaves (FedLeak, Theorem 2): () in [0, inf).

    Entries that a mask zeroed count too: on R percent of the entries this is R / 100 of the mean over them.
    """
    return l1(observed, simulated) / sum(leaf.size for leaf in jax.tree.leaves(observed))


def cosine(observed: PyTree, simulated: PyTree) -> jax.Array:
    """One minus the cosine of the angle between the whole trees (Geiping et al. 2020, equation 4): () in [0, 2].

    A tree of zeros has no direction: its distance to anything is 1.
    """
    jax.tree.map(_same_shape, observed, simulated)
    scale = _tree.norm(observed) * _tree.norm(simulated)
    zero = scale == 0  # and not `scale > 0`, which takes what is not a number for a tree of zeros
    # Both branches of a where are differentiated: the divisor must be safe in the branch that is not taken.
    similarity = _tree.dot(observed, simulated) / jnp.where(zero, 1.0, scale)
    return 1.0 - jnp.where(zero, 0.0, similarity)


def gaussian_kernel(observed: PyTree, simulated: PyTree, *, variance: float | None = None) -> jax.Array:
    """SAPAG's distance (Wang et al. 2020): sum over tensors of `1 - exp(-||g - g'||^2 / sigma^2)`.

    sigma^2 is the variance of the observed tensor's entries, a scale that adapts to every layer and phase of training
    and that the published CAFE code uses for this baseline too; a constant tensor falls back to a small floor. A leaf
    of a vertical model holds all parties' copies of a layer and counts as one tensor.

    Args:
        observed: the gradient that was received.
        simulated: the gradient of the fake batch.
        variance: one sigma^2 > 0 for all tensors; None takes each observed tensor's own.

    Returns:
        () in [0, number of tensors].

    Raises:
        ValueError: if `variance` is not > 0.
    """
    if variance is not None:
        _validate.positive(variance=variance)

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        sigma2 = jnp.maximum(jnp.var(_tree.wide(a)), _VARIANCE_FLOOR) if variance is None else variance
        return 1.0 - jnp.exp(-jnp.sum(difference(a, b) ** 2) / sigma2)

    return sum(jax.tree.leaves(jax.tree.map(one, observed, simulated)), jnp.zeros(()))


def gaussian_likelihood(scale: float) -> Distance:
    """Negative log-likelihood of the observed gradient under Gaussian noise: `||g - g'||^2 / (2 scale^2)`.

    The data term of the Bayes-optimal attack on a defense that adds noise of known strength (Balunovic et al.,
    *Bayesian framework for gradient leakage*, ICLR 2022). The constant P log(scale sqrt(2 pi)) is left out, so equal
    trees are at distance zero.

    Args:
        scale: standard deviation of the noise in every entry, > 0.

    Returns:
        Distance in [0, inf).

    Raises:
        ValueError: if `scale` is not > 0.
    """
    _validate.positive(scale=scale)
    return lambda observed, simulated: squared_l2(observed, simulated) / (2.0 * scale**2)


def laplace_likelihood(scale: float) -> Distance:
    """Negative log-likelihood of the observed gradient under Laplace noise: `||g - g'||_1 / scale`.

    As `gaussian_likelihood`, without the constant P log(2 scale).

    Args:
        scale: scale b of the density exp(-|z| / b) / (2 b) in every entry, > 0; the variance is 2 b^2.

    Returns:
        Distance in [0, inf).

    Raises:
        ValueError: if `scale` is not > 0.
    """
    _validate.positive(scale=scale)
    return lambda observed, simulated: l1(observed, simulated) / scale


def profile_likelihood(likelihood: Distance, expected: float) -> Distance:
    """The likelihood of noise that is at least as large as stated, at the size that explains a candidate best.

    Far from the truth, differences are much larger than the noise. Its likelihood then weighs so much that a prior
    beside it says nothing until the search is nearly over, at an image that the prior would never have led to. This
    one takes the noise for as large as the differences are, until they have come down to what is stated. From there
    on it is the likelihood itself, so that the likeliest image stays the same.

    With `D` the negative log-likelihood and `L` its expectation under the noise (`expected` times the entries of the
    observed tree that are not zero), it is `D` where `D <= L`, and `L (1 + log(D / L))` elsewhere: the minimum over the
    scale, up to a constant. Value and slope are continuous.

    Args:
        likelihood: `gaussian_likelihood(scale)`, `laplace_likelihood(scale)`, or another one whose value goes with a
            power of the scale.
        expected: what an entry adds to it in the mean under the noise itself, > 0: 0.5 for Gaussian noise, 1 for
            Laplace noise.

    Returns:
        Distance in [0, inf).

    Raises:
        ValueError: if `expected` is not > 0.
    """
    _validate.positive(expected=expected)

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        value = likelihood(observed, simulated)
        # An entry that is exactly zero behind noise was left out of the comparison, so no noise is expected of it.
        arrived = sum(jnp.count_nonzero(leaf) for leaf in jax.tree.leaves(observed))
        limit = expected * jnp.maximum(arrived, 1)
        # Both branches of a where are differentiated: the logarithm must be finite in the branch that is not taken.
        return jnp.where(value <= limit, value, limit * (1.0 + jnp.log(jnp.maximum(value, limit) / limit)))

    return distance


def weighted(pairs: Sequence[tuple[float, Distance]]) -> Distance:
    """The weighted sum of several distances, e.g. `weighted([(1.0, relative_l1), (1.0, cosine)])` for FedLeak.

    Args:
        pairs: (weight >= 0, distance); at least one weight > 0. Terms of weight 0 are not computed.

    Raises:
        ValueError: if a weight is negative or not finite, or none is positive.
    """
    for weight, _ in pairs:
        _validate.non_negative(weight=weight)
    used = [(weight, distance) for weight, distance in pairs if weight]
    if not used:
        raise ValueError("weighted needs at least one distance with a weight > 0")

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        return sum((weight * term(observed, simulated) for weight, term in used), jnp.zeros(()))

    return distance


def layer_weighted(distance: Distance, weights: PyTree | Callable[[int], float]) -> Distance:
    """`distance` between trees whose leaf number i was multiplied by weight i in both of them.

    So the weight enters as the distance is homogeneous: `l1` and `mean_l1` weigh the leaf's term by w, `squared_l2`
    and the Gaussian likelihood by w^2 (pass square roots), `cosine` measures the angle after the stretch, and
    `relative_l1` divides by the observed mass after it. `gaussian_kernel` with its own variances does not change
    except that a weight of 0 drops the tensor.

    Args:
        distance: any distance.
        weights: one number >= 0 per leaf, in the order of `jax.tree.leaves`: a flat sequence, or a tree of the
            gradient's structure; or a function of the leaf's number, counted from 0. The Bayes attack lets weights
            fall or rise with depth.

    Raises:
        ValueError: if a weight is negative or not finite; at the first call, if their number is not that of the
            leaves.
    """
    if isinstance(weights, np.ndarray | jax.Array):
        weights = np.asarray(weights).tolist()
    if not callable(weights):
        for weight in jax.tree.leaves(weights):
            _validate.non_negative(weight=float(weight))

    def factors_of(count: int) -> list[float]:
        values = [float(weights(i)) for i in range(count)] if callable(weights) else jax.tree.leaves(weights)
        if len(values) != count:
            raise ValueError(f"layer_weighted needs one weight per leaf, {count}, got {len(values)}")
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"layer weights must be finite and >= 0, got {values}")
        return values

    def measured(observed: PyTree, simulated: PyTree) -> jax.Array:
        leaves, structure = jax.tree.flatten(observed)
        factors = jax.tree.unflatten(structure, factors_of(len(leaves)))
        stretched = [jax.tree.map(jnp.multiply, tree, factors) for tree in (observed, simulated)]
        return distance(*stretched)

    return measured
