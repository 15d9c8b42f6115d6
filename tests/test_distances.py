import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import _magnitudes
from jaxleak import objectives as o


@pytest.fixture(scope="module")
def trees():
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 4), "b": (5,), "c": (2, 2, 2)}
    make = lambda: {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}  # noqa: E731
    return make(), make()


def _flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


SLOW = {
    "relative_l1": (o.relative_l1, lambda a, b: np.abs(a - b).sum() / np.abs(a).sum()),
    "mean_l1": (o.mean_l1, lambda a, b: np.abs(a - b).mean()),
    "gaussian": (o.gaussian_likelihood(0.3), lambda a, b: ((a - b) ** 2).sum() / (2 * 0.3**2)),
    "laplace": (o.laplace_likelihood(0.3), lambda a, b: np.abs(a - b).sum() / 0.3),
    "weighted": (
        o.weighted([(2.0, o.relative_l1), (0.0, o.squared_l2), (0.5, o.cosine)]),
        lambda a, b: (
            2 * np.abs(a - b).sum() / np.abs(a).sum() + 0.5 * (1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        ),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_distances_equal_slow_references_and_are_zero_at_equality(trees, name):
    distance, slow = SLOW[name]
    a, b = trees
    np.testing.assert_allclose(distance(a, b), slow(_flat(a), _flat(b)), rtol=1e-5)
    np.testing.assert_allclose(distance(a, a), 0.0, atol=1e-6)


EVERY_DISTANCE = (
    *(o.squared_l2, o.layer_norms, o.l1, o.relative_l1, o.mean_l1, o.cosine, o.gaussian_kernel),
    *(o.gaussian_likelihood(0.3), o.laplace_likelihood(0.3), o.layer_weighted(o.layer_norms, (1.0, 1.0, 1.0))),
    o.profile_likelihood(o.gaussian_likelihood(0.3), 0.5),
)


@pytest.mark.parametrize("distance", EVERY_DISTANCE)
def test_what_is_not_a_number_is_at_no_distance(trees, distance):
    """A candidate with an overflown gradient must not be the nearest."""
    a, b = trees
    for tree in ({**b, "b": np.full_like(b["b"], np.nan)}, jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), b)):
        assert np.isnan(distance(a, tree))


def test_likelihoods_are_those_of_scipy_up_to_a_constant(trees):
    from scipy import stats

    a, b = trees
    zero = jax.tree.map(np.zeros_like, a)
    for distance, law in [(o.gaussian_likelihood(0.7), stats.norm), (o.laplace_likelihood(0.7), stats.laplace)]:
        expected = -law.logpdf(_flat(a), _flat(b), 0.7).sum() + law.logpdf(_flat(a), 0.0, 0.7).sum()
        np.testing.assert_allclose(distance(a, b) - distance(a, zero), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("likelihood", "expected", "law"),
    [(o.gaussian_likelihood, 0.5, "norm"), (o.laplace_likelihood, 1.0, "laplace")],
)
def test_a_profile_likelihood_takes_the_scale_that_explains_best_but_no_smaller_one(trees, likelihood, expected, law):
    from scipy import optimize, stats

    a, b = (jax.tree.map(lambda leaf: leaf.astype(np.float32), tree) for tree in trees)
    differences = _flat(a) - _flat(b)
    density = getattr(stats, law)

    def slow(scale):
        return -density.logpdf(differences, 0, scale).sum()

    fitting = float(optimize.minimize_scalar(slow, (0.1, 1)).x)
    for stated in (fitting / 30, 0.9 * fitting, 1.1 * fitting, 30 * fitting):
        distance = o.profile_likelihood(likelihood(stated), expected)
        equal = -density.logpdf(np.zeros_like(differences), 0, stated).sum()
        np.testing.assert_allclose(distance(a, b), slow(max(fitting, stated)) - equal, rtol=1e-4)
        assert distance(a, a) == 0
        assert np.isfinite(_flat(jax.grad(distance, argnums=1)(a, a))).all()
        more_a, more_b = ({**tree, "left out": np.zeros(1000, np.float32)} for tree in (a, b))
        assert distance(more_a, more_b) == distance(a, b)


def test_relative_l1_has_no_scale_and_survives_zeros(trees):
    a, b = trees
    zero = jax.tree.map(np.zeros_like, a)
    times = lambda tree: jax.tree.map(lambda leaf: 1e-4 * leaf, tree)  # noqa: E731
    np.testing.assert_allclose(o.relative_l1(times(a), times(b)), o.relative_l1(a, b), rtol=1e-5)
    assert o.relative_l1(a, zero) == pytest.approx(1.0)
    np.testing.assert_allclose(o.relative_l1(zero, b), np.abs(_flat(b)).sum(), rtol=1e-5)
    for distance in (o.relative_l1, o.mean_l1, o.l1):
        gradient = jax.grad(distance, argnums=1)(zero, zero)
        np.testing.assert_array_equal(_flat(gradient), 0.0)  # jnp.abs would push equal entries apart


def test_a_tree_of_zeros_has_no_direction(trees):
    zero = jax.tree.map(np.zeros_like, trees[0])
    for pair in ((zero, trees[1]), (trees[0], zero), (zero, zero)):
        assert o.cosine(*pair) == 1


@pytest.mark.parametrize("size", [3e3, 1e-4])
def test_directions_of_16_bits_are_told_apart(size):
    one = {"w": jnp.full(4, size, jnp.float16)}
    opposite = jax.tree.map(jnp.negative, one)
    assert o.cosine(one, opposite) == pytest.approx(2, rel=1e-5)
    assert o.cosine(one, one) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("distance", [o.layer_norms, o.l1, o.relative_l1, o.mean_l1, o.gaussian_kernel])
@pytest.mark.parametrize("size", [3e3, 1e-4])
def test_distances_of_16_bits_are_those_of_wider_numbers(distance, size):
    """In 16 bits, squares of 1e-4 underflow, and a sum over forty entries of 3,000 overflows."""
    wide = [{"w": jnp.float32(jnp.float16(size)) * jnp.linspace(1.0, last, 40)} for last in (2.0, 1.5)]
    narrow = [jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree) for tree in wide]
    expected = distance(*(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree) for tree in narrow))
    assert expected > 0
    np.testing.assert_allclose(distance(*narrow), expected, rtol=1e-5)


def test_layer_weights_as_sequence_tree_and_function(trees):
    a, b = trees
    weights = [0.5, 0.0, 3.0]
    slow = sum(w * np.abs(a[k] - b[k]).sum() for w, k in zip(weights, "abc", strict=True))
    as_tree = dict(zip("abc", weights, strict=True))
    for form in (weights, np.asarray(weights), jnp.asarray(weights), as_tree, lambda i: weights[i]):
        np.testing.assert_allclose(o.layer_weighted(o.l1, form)(a, b), slow, rtol=1e-5)
    squared = sum(w**2 * ((a[k] - b[k]) ** 2).sum() for w, k in zip(weights, "abc", strict=True))
    np.testing.assert_allclose(jax.jit(o.layer_weighted(o.squared_l2, weights))(a, b), squared, rtol=1e-5)


def test_bad_distance_arguments(trees):
    a, b = trees
    for factory in (o.gaussian_likelihood, o.laplace_likelihood):
        with pytest.raises(ValueError, match="scale must be > 0"):
            factory(0.0)
    with pytest.raises(ValueError, match="expected must be > 0"):
        o.profile_likelihood(o.gaussian_likelihood(1.0), 0.0)
    with pytest.raises(ValueError, match="at least one"):
        o.weighted([(0.0, o.l1)])
    with pytest.raises(ValueError, match="weight must be >= 0"):
        o.weighted([(-1.0, o.l1)])
    with pytest.raises(ValueError, match="one weight per leaf, 3, got 2"):
        o.layer_weighted(o.l1, [1.0, 2.0])(a, b)
    with pytest.raises(ValueError, match="weight must be >= 0"):
        o.layer_weighted(o.l1, [1.0, -2.0, 1.0])
    with pytest.raises(ValueError, match="finite and >= 0"):
        o.layer_weighted(o.l1, lambda i: -1.0)(a, b)


def _sorted_mask(x, percent, bottom=False):
    """A reference mask of all entries at or beyond the last selected magnitude, so that ties are included."""
    magnitude = np.sort(np.abs(x).ravel())
    k = max(1, int(np.ceil(round(x.size * percent / 100, 9))))
    return np.abs(x) <= magnitude[k - 1] if bottom else np.abs(x) >= magnitude[-k]


@pytest.mark.parametrize("percent", [0.01, 7.0, 30.0, 50.0, 99.9, 100.0])
@pytest.mark.parametrize("bottom", [False, True])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_top_share_equals_sorting(trees, percent, bottom, per_tensor):
    a, b = trees
    mask = o.top_share(percent, per_tensor=per_tensor, bottom=bottom)(a, b)
    if per_tensor:
        expected = {k: _sorted_mask(b[k], percent, bottom) for k in b}
    else:
        flat = _sorted_mask(np.concatenate([b[k].ravel() for k in "abc"]), percent, bottom)
        cuts = np.split(flat, [12, 17])
        expected = {k: cut.reshape(b[k].shape) for k, cut in zip("abc", cuts, strict=True)}
    for k in b:
        assert mask[k].dtype == jnp.float32
        np.testing.assert_array_equal(mask[k], expected[k])


def test_top_share_on_ties_extremes_and_the_observed_gradient():
    awkward = np.array([0, -0.0, 1e-42, -3e-42, 1e-30, -2, 2, 2, np.inf, 1], np.float32)
    for percent in range(10, 101, 10):
        np.testing.assert_array_equal(o.top_share(percent)(None, awkward), _sorted_mask(awkward, percent))
    assert o.top_share(20.0)(None, awkward).sum() == 4  # all three 2s tie for the second place
    integers = np.array([3, 1, 2, 2, 0, 0], np.float32)
    assert o.top_share(50.0, by="observed")(integers, None).tolist() == [1, 0, 1, 1, 0, 0]
    assert o.top_share(90.0)(None, integers).sum() == 6  # zeros tie
    assert o.top_share(50.0, bottom=True)(None, integers).tolist() == [0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_selection_jits_vmaps_and_scans_in_any_float(dtype):
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 30)), dtype)
    one = o.top_share(20.0)
    expected = np.stack([_sorted_mask(np.asarray(row, np.float32), 20.0) for row in x])
    mask = jax.jit(jax.vmap(one))(x, x)
    assert mask.dtype == dtype
    np.testing.assert_array_equal(mask, expected)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, one(row, row)), 0, x)
    np.testing.assert_array_equal(scanned, expected)


def test_magnitude_threshold_is_the_last_selected_magnitude(trees):
    leaves = list(trees[0].values())
    magnitude = np.sort(np.abs(_flat(trees[0])).astype(np.float32))[::-1]
    for percent, k in [(0.1, 1), (4.0, 1), (8.0, 2), (50.0, 13), (100.0, 25)]:
        assert _magnitudes.magnitude_threshold(leaves, percent) == magnitude[k - 1]
        assert jax.jit(_magnitudes.magnitude_threshold, static_argnums=1)(leaves, percent) == magnitude[k - 1]
    assert _magnitudes.magnitude_threshold([jnp.array([-3, 1, 2])], 50.0) == 2.0


def test_no_gradient_flows_through_or_around_the_selection(trees):
    a, b = trees
    distance = o.partial_distance(o.squared_l2, o.top_share(40.0))
    mask = o.top_share(40.0)(a, b)
    gradient = jax.jit(jax.grad(lambda s: distance(a, s)))(b)
    for k in b:
        np.testing.assert_allclose(gradient[k], 2 * mask[k] * (b[k] - a[k]), rtol=1e-5)
    np.testing.assert_allclose(distance(a, b), sum((mask[k] * (a[k] - b[k]) ** 2).sum() for k in b), rtol=1e-5)


def test_fixed_share(trees):
    a, b = trees
    mask = {"a": np.ones((3, 4), np.float32), "b": np.zeros(5, np.float32), "c": np.zeros((2, 2, 2), np.float32)}
    selection = o.fixed_share(mask)
    np.testing.assert_allclose(o.partial_distance(o.l1, selection)(a, b), np.abs(a["a"] - b["a"]).sum(), rtol=1e-5)
    np.testing.assert_array_equal(_flat(o.apply_mask(selection(a, b), b))[:12], b["a"].ravel())


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.1, float("nan")])
def test_shares_out_of_range(percent):
    with pytest.raises(ValueError, match="percent must be"):
        o.top_share(percent)
    with pytest.raises(ValueError, match="percent must be"):
        _magnitudes.magnitude_threshold([jnp.ones(3)], percent)


def test_other_bad_selections():
    with pytest.raises(ValueError, match="by must be one of simulated, observed"):
        o.top_share(50.0, by="both")
    with pytest.raises(ValueError, match="at least one entry"):
        _magnitudes.magnitude_threshold([], 50.0)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(2).random((2, 4, 5, 3)).astype(np.float32)


def test_mean_total_variation_equals_loops(images):
    vertical = [abs(images[b, i + 1, j, c] - images[b, i, j, c]) for b, i, j, c in np.ndindex(2, 3, 5, 3)]
    horizontal = [abs(images[b, i, j + 1, c] - images[b, i, j, c]) for b, i, j, c in np.ndindex(2, 4, 4, 3)]
    np.testing.assert_allclose(o.mean_total_variation(images), np.mean(vertical) + np.mean(horizontal), rtol=1e-5)
    np.testing.assert_allclose(o.summed_total_variation(images), np.sum(vertical) + np.sum(horizontal), rtol=1e-5)
    np.testing.assert_array_equal(jax.grad(o.summed_total_variation)(jnp.ones((1, 3, 3, 1))), 0.0)
    lengths = [
        np.hypot(
            images[b, i + 1, j, c] - images[b, i, j, c],
            images[b, i, j + 1, c] - images[b, i, j, c],
        )
        for b, i, j, c in np.ndindex(2, 3, 4, 3)
    ]
    np.testing.assert_allclose(o.mean_total_variation(images, "isotropic"), np.mean(lengths), rtol=1e-5)
    for kind in ("anisotropic", "isotropic"):
        twice = np.concatenate([images, images])
        np.testing.assert_allclose(o.mean_total_variation(twice, kind), o.mean_total_variation(images, kind), rtol=1e-5)
        np.testing.assert_array_equal(jax.grad(o.mean_total_variation)(jnp.ones((1, 3, 3, 1)), kind), 0.0)


@pytest.mark.slow
def test_total_variations_of_the_smallest_images_and_of_tiles():
    x = jnp.array([[0.0, 0.4], [0.3, 0.9]]).reshape(1, 2, 2, 1)
    np.testing.assert_allclose(o.mean_total_variation(x), (0.3 + 0.5) / 2 + (0.4 + 0.6) / 2, rtol=1e-6)
    np.testing.assert_allclose(o.mean_total_variation(x, "isotropic"), 0.5, rtol=1e-6)
    np.testing.assert_allclose(o.summed_total_variation(x), 1.8, rtol=1e-6)
    deviation = np.sqrt(np.var([0.0, 0.4, 0.3, 0.9]) + 1e-6)
    np.testing.assert_allclose(o.relative_total_variation(x), 0.9 / deviation, rtol=1e-6)
    tiles = jnp.stack([x, x], 1)
    assert o.mean_total_variation(tiles) == o.mean_total_variation(x)
    np.testing.assert_allclose(o.summed_total_variation(tiles), 3.6, rtol=1e-6)
    for narrow in (x[:, :1], x[:, :, :1]):
        assert o.summed_total_variation(narrow) > 0
        assert o.total_variation(narrow) > 0
    for function in (o.total_variation, o.mean_total_variation, o.summed_total_variation):
        for wrong in (x[0], x[None, None]):
            with pytest.raises(ValueError, match="needs images"):
                function(wrong)


@pytest.mark.parametrize("kind", ["anisotropic", "isotropic"])
def test_an_axis_of_one_pixel_has_no_variation(kind):
    x = jnp.array([0.0, 0.5, 0.4])
    for signal in (x.reshape(1, 3, 1, 1), x.reshape(1, 1, 3, 1)):
        np.testing.assert_allclose(o.mean_total_variation(signal, kind), (0.5 + 0.1) / 2, rtol=1e-6)
    row, variation = x.reshape(1, 1, 1, 3), lambda x: o.mean_total_variation(x, kind)
    assert variation(row) == 0
    np.testing.assert_array_equal(jax.grad(variation)(row), 0.0)


def test_activation_penalty_means_and_sums(images):
    layers = (images - 0.5, -images[:, 0, 0])
    means = [np.abs(layer).mean() for layer in layers]
    np.testing.assert_allclose(o.activation_penalty(layers), np.mean(means), rtol=1e-5)
    np.testing.assert_allclose(o.activation_penalty(layers, "sum"), sum(np.abs(x).sum() for x in layers), rtol=1e-5)


def test_l2_prior_and_batch_norm_distance(images):
    np.testing.assert_allclose(o.l2_prior(images), np.mean([np.linalg.norm(image) for image in images]), rtol=1e-5)
    np.testing.assert_array_equal(jax.grad(o.l2_prior)(jnp.zeros((2, 3, 3, 1))), 0.0)
    rng = np.random.default_rng(3)
    a, b = ({"bn": {"mean": rng.random(4), "var": rng.random(4)}, "bn2": {"mean": rng.random(2)}} for _ in range(2))
    slow = sum(np.linalg.norm(p - q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    np.testing.assert_allclose(o.batch_norm_distance(a, b), slow, rtol=1e-5)
    same = jax.tree.map(jnp.asarray, a)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(jax.grad(o.batch_norm_distance)(same, same)))


def test_bad_regularizer_arguments(images):
    with pytest.raises(ValueError, match="kind must be one of"):
        o.mean_total_variation(images, "huber")
    with pytest.raises(ValueError, match="needs images"):
        o.mean_total_variation(images[0])
    with pytest.raises(ValueError, match=r"needs images .*got shape \(4, 5, 3\)"):
        o.summed_total_variation(images[0])
    with pytest.raises(ValueError, match="reduction must be one of"):
        o.activation_penalty((images,), "max")
    with pytest.raises(ValueError, match="at least one non-linearity"):
        o.activation_penalty(())
