"""Distances between two gradient trees: the one that the server received, and the one of a fake batch.

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

# A tensor's variance below this is rounding error. A kernel that narrow is flat everywhere and has no gradient.
_VARIANCE_FLOOR = 1e-20


def absolute(x: jax.Array) -> jax.Array:
    """|x| with derivative 0 at 0, as in PyTorch and TensorFlow; `jnp.abs` has 1, which drives equal values apart."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a - b` for arrays of one shape, at least in float32: 16-bit squares underflow, and their sums overflow.

    Raises:
        ValueError: if the shapes differ, since they would be broadcast silently.
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

    The gradient of a norm does not shrink with the difference. A leaf that agrees exactly has gradient 0.
    """
    norms = jax.tree.map(lambda a, b: _tree.root(jnp.sum(difference(a, b) ** 2)), observed, simulated)
    return sum(jax.tree.leaves(norms), jnp.zeros(()))


def l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Sum of absolute differences over all leaves: () in [0, inf). Entries that agree exactly have gradient 0."""
    differences = jax.tree.map(lambda a, b: jnp.sum(absolute(difference(a, b))), observed, simulated)
    return sum(jax.tree.leaves(differences), jnp.zeros(()))


def relative_l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """`sum |g' - g| / sum |g|` over all entries of the trees: FedLeak's L1 term (section 4.2) in units of the data.

    FedLeak prints a sum over the selected entries but reasons about their mean; the two differ by a factor of millions.
    Division by the observed mass makes the term independent of scale: it is 1 for a simulated gradient of zeros,
    whatever the model or the selected share. If both trees are masked, both sums run over the selection.

    Returns:
        () in [0, inf); the plain sum where the observed tree is zero.
    """
    mass = sum((jnp.sum(jnp.abs(_tree.wide(leaf))) for leaf in jax.tree.leaves(observed)), jnp.zeros(()))
    return l1(observed, simulated) / jnp.where(mass > 0, mass, 1.0)


def mean_l1(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Mean absolute difference over all entries of all leaves (FedLeak, Theorem 2): () in [0, inf).

    Entries that a mask set to zero count too: if R percent are selected, the result is R / 100 of their mean.
    """
    return l1(observed, simulated) / sum(leaf.size for leaf in jax.tree.leaves(observed))


def cosine(observed: PyTree, simulated: PyTree) -> jax.Array:
    """One minus the cosine of the angle between the whole trees (Geiping et al. 2020, equation 4): () in [0, 2].

    A tree of zeros has no direction: its distance to anything is 1.
    """
    jax.tree.map(_same_shape, observed, simulated)
    scale = _tree.norm(observed) * _tree.norm(simulated)
    zero = scale == 0  # not `scale > 0`, which would treat NaN like a tree of zeros
    # JAX differentiates both branches of a `where`, so the divisor must be safe in the branch that is not taken.
    similarity = _tree.dot(observed, simulated) / jnp.where(zero, 1.0, scale)
    return 1.0 - jnp.where(zero, 0.0, similarity)


def gaussian_kernel(observed: PyTree, simulated: PyTree, *, variance: float | None = None) -> jax.Array:
    """SAPAG's distance (Wang et al. 2020): sum over tensors of `1 - exp(-||g - g'||^2 / sigma^2)`.

    sigma^2 is the variance of the observed tensor's entries. This scale adapts to every layer and phase of training,
    and the published CAFE code uses it for this baseline too. A constant tensor gets a small floor as its variance. In
    a vertical model one leaf holds all parties' copies of a layer, and counts as one tensor.

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

    This is the data term of the Bayes-optimal attack on a defense that adds noise of known strength (Balunovic et al.,
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

    As in `gaussian_likelihood`, the constant is left out; here it is P log(2 scale).

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
    """The likelihood under noise of the stated size or larger: the size that explains the candidate best.

    Far from the truth, differences are much larger than the noise. The plain likelihood then outweighs any prior until
    the search is nearly over, and the prior comes too late to lead it to another image. This distance instead assumes
    noise as large as the current differences, until these have come down to the stated noise. From there on it is the
    plain likelihood, so the likeliest image stays the same.

    Let `D` be the negative log-likelihood and `L` its expectation under the noise (`expected` times the number of
    entries of the observed tree that are not zero). The distance is `D` where `D <= L`, and `L (1 + log(D / L))`
    elsewhere: the minimum over the scale, up to a constant. Value and slope are continuous.

    Args:
        likelihood: `gaussian_likelihood(scale)`, `laplace_likelihood(scale)`, or another one whose value is
            proportional to a power of the scale.
        expected: mean contribution > 0 of an entry to the likelihood under the noise itself: 0.5 for Gaussian noise, 1
            for Laplace noise.

    Returns:
        Distance in [0, inf).

    Raises:
        ValueError: if `expected` is not > 0.
    """
    _validate.positive(expected=expected)

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        value = likelihood(observed, simulated)
        # Noise never leaves an entry exactly zero, so such an entry was masked out and contributes no noise.
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
    """`distance` between two trees after leaf number i of both was multiplied by weight i.

    The effect of a weight w depends on the distance. `l1` and `mean_l1` weigh the leaf's term by w; `squared_l2` and
    the Gaussian likelihood weigh it by w^2 (pass square roots). `cosine` measures the angle between the scaled trees,
    and `relative_l1` divides by the scaled observed mass. `gaussian_kernel` with its own variances does not change,
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
