import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import objectives
from jaxleak.objectives import Quantities


@pytest.fixture(scope="module")
def trees():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (5,), (2, 2, 2)]
    make = lambda: {str(i): rng.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}  # noqa: E731
    return make(), make()


@pytest.fixture(scope="module")
def tiles():
    return np.random.default_rng(1).random((3, 2, 4, 5, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        (
            "layer_norms",
            lambda a, b: sum(reference.squared_distance([p], [q]) ** 0.5 for p, q in zip(a, b, strict=True)),
        ),
        ("squared_l2", reference.squared_distance),
        ("l1", lambda a, b: sum(np.abs(p - q).sum() for p, q in zip(a, b, strict=True))),
        ("cosine", reference.cosine_distance),
        ("gaussian_kernel", reference.sapag_kernel),
    ],
)
def test_distances_equal_slow_references_and_are_zero_at_equality(trees, name, slow):
    distance = getattr(objectives, name)
    a, b = trees
    np.testing.assert_allclose(distance(a, b), slow(list(a.values()), list(b.values())), rtol=1e-5)
    np.testing.assert_allclose(distance(a, a), 0.0, atol=1e-6)


def test_gaussian_kernel_with_a_given_variance(trees):
    a, b = ({"w": tree["0"]} for tree in trees)
    expected = 1 - np.exp(-reference.squared_distance([a["w"]], [b["w"]]) / 50)
    np.testing.assert_allclose(objectives.gaussian_kernel(a, b, variance=50.0), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["squared_l2", "layer_norms", "l1", "cosine", "gaussian_kernel"])
def test_distances_and_gradients_are_finite_at_zero_trees(trees, name):
    zero = jax.tree.map(np.zeros_like, trees[0])
    for observed, simulated in [(zero, zero), (zero, trees[1]), (trees[0], zero)]:
        value, grads = jax.value_and_grad(getattr(objectives, name), argnums=1)(observed, simulated)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_total_variation_sums_tiles_and_equals_slow_reference(tiles):
    slow = [[reference.total_variation(tile) for tile in sample] for sample in tiles]
    np.testing.assert_allclose(objectives.total_variation(tiles), np.sum(slow, axis=1), rtol=1e-5)
    np.testing.assert_allclose(objectives.total_variation(tiles[:, 0]), np.array(slow)[:, 0], rtol=1e-5)
    with pytest.raises(ValueError, match="total_variation needs images"):
        objectives.total_variation(np.zeros((3, 7)))


def test_truncated_tv_is_off_below_xi_per_tile_and_its_indicator_has_no_gradient(tiles):
    mean = float(objectives.total_variation(tiles).mean())
    per_tile = mean / 2
    value, grad = jax.value_and_grad(objectives.truncated_tv)(tiles, 0.99 * per_tile)
    np.testing.assert_allclose(value, mean, rtol=1e-6)
    np.testing.assert_array_equal(grad, jax.grad(lambda x: objectives.total_variation(x).mean())(tiles))
    value, grad = jax.value_and_grad(objectives.truncated_tv)(tiles, 1.01 * per_tile)
    assert value == 0
    assert not np.any(grad)
    assert objectives.truncated_tv(np.zeros_like(tiles), 0.0) == 0


def test_regularizers_equal_their_formulas():
    rng = np.random.default_rng(2)
    h, other = rng.random((2, 3, 2, 4)).astype(np.float32)
    np.testing.assert_allclose(objectives.feature_distance(h, other), ((h - other) ** 2).sum(), rtol=1e-6)
    statistics = {"mean_0": (h[0],), "var_0": (h[1],)}
    others = {"mean_0": (other[0],), "var_0": (other[1],)}
    expected = ((h[:2] - other[:2]) ** 2).sum()
    np.testing.assert_allclose(objectives.activation_statistics_distance(statistics, others), expected, rtol=1e-6)
    group = rng.random((3, 2, 5)).astype(np.float32)
    slow = sum(((candidate - group.mean(axis=0)) ** 2).sum() for candidate in group)
    np.testing.assert_allclose(objectives.group_consistency(group), slow, rtol=1e-5)
    np.testing.assert_allclose(objectives.group_consistency(group[:1]), 0, atol=1e-12)
    norms = sum(np.linalg.norm(candidate - group.mean(axis=0)) for candidate in group)
    np.testing.assert_allclose(objectives.group_distance(group), norms, rtol=1e-5)
    assert np.isfinite(jax.grad(objectives.group_distance)(np.broadcast_to(group[:1], group.shape).copy())).all()


def test_f3_is_the_weighted_sum_of_its_terms(trees, tiles):
    a, b = trees
    h, other = np.ones((3, 2, 4)), np.zeros((3, 2, 4))
    f3 = objectives.cafe_objective(alpha=2.0, beta=3.0, gamma=5.0, xi=0.0)
    loss, terms = f3.value(Quantities(gradient=a, features=h), Quantities(x=tiles, gradient=b, features=other))
    expected = {
        "gradient": objectives.squared_l2(a, b),
        "tv": objectives.total_variation(tiles).mean(),
        "features": 24.0,
        "statistics": 0.0,
    }
    assert tuple(terms) == objectives.TERMS
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-6)
    np.testing.assert_allclose(loss, 2 * expected["gradient"] + 3 * expected["tv"] + 5 * 24, rtol=1e-6)


@pytest.mark.parametrize(("weight", "quantity"), [("alpha", "gradient"), ("beta", "images"), ("gamma", "features")])
def test_a_term_of_weight_zero_is_not_needed(weight, quantity):
    assert objectives.cafe_objective().needs == {"gradient", "images", "features"}
    assert objectives.cafe_objective(**{weight: 0.0}).needs == {"gradient", "images", "features"} - {quantity}
    loss, terms = objectives.cafe_objective(alpha=1, beta=0, gamma=0).value(
        Quantities(gradient=[jnp.ones(2)]), Quantities(gradient=[jnp.zeros(2)])
    )
    assert loss == terms["gradient"] == 2


def test_objectives_refuse_weights_out_of_range():
    for name in ("alpha", "beta", "gamma", "xi"):
        with pytest.raises(ValueError, match=f"{name} must be >= 0, got -1"):
            objectives.cafe_objective(**{name: -1.0})
    with pytest.raises(ValueError, match="at least one positive weight"):
        objectives.matching_objective(consistency=1.0)


#: Objectives with their default weights: of the gradient, the total variation, the features, the statistics, and the
#: group consistency.
WEIGHTS = {
    "cafe_objective": (1e-2, 1e-4, 1e-3, 0.0, 0.0),
    "dlg_objective": (1.0, 0.0, 0.0, 0.0, 0.0),
    "cosine_tv_objective": (1.0, 1e-4, 0.0, 0.0, 0.0),
    "sapag_objective": (1.0, 0.0, 0.0, 0.0, 0.0),
    "bn_objective": (1e-2, 0.0, 0.0, 1e-3, 0.0),
    "gc_objective": (1e-2, 0.0, 0.0, 0.0, 1e-3),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_an_objective_has_the_weights_of_its_paper(trees, tiles, name):
    a, b = trees
    rng = np.random.default_rng(3)
    (h, other), (s, t) = rng.random((2, 3, 2, 4)), rng.random((2, 5))
    *weights, consistency = WEIGHTS[name]
    distance = {"cosine_tv_objective": objectives.cosine, "sapag_objective": objectives.gaussian_kernel}
    x = 1000 * tiles
    terms = np.array(
        [
            distance.get(name, objectives.squared_l2)(a, b),
            objectives.total_variation(x).mean(),
            ((h - other) ** 2).sum(),
            ((s - t) ** 2).sum(),
        ]
    )
    objective = getattr(objectives, name)()
    loss, found = objective.value(
        Quantities(gradient=a, features=h, statistics=[s]),
        Quantities(x=x, gradient=b, features=other, statistics=[t]),
    )
    np.testing.assert_allclose(loss, terms @ weights, rtol=1e-5)
    used = np.array(weights) > 0
    np.testing.assert_allclose([found[term] for term in objectives.TERMS], terms * used, rtol=1e-5)
    assert objective.needs == {
        n for n, u in zip(("gradient", "images", "features", "statistics"), used, strict=True) if u
    }
    assert objective.consistency == consistency


def test_a_matching_objective_weighs_every_term_and_has_none_by_itself(trees):
    a, b = trees
    s, t = np.ones(3), np.zeros(3)
    real, fake = Quantities(gradient=a, statistics=[s]), Quantities(gradient=b, statistics=[t])
    both = objectives.matching_objective(alpha=0.5, statistics=7.0)
    loss, _ = both.value(real, fake)
    np.testing.assert_allclose(loss, 0.5 * objectives.squared_l2(a, b) + 21, rtol=1e-6)
    only = objectives.matching_objective(statistics=1.0)
    assert (only.needs, only.consistency) == ({"statistics"}, 0)
    assert only.value(real, fake)[0] == 3
    for weight in ("alpha", "beta", "gamma", "statistics"):
        objectives.matching_objective(**{weight: 1e-9})
    for weight in ("statistics", "consistency"):
        with pytest.raises(ValueError, match=f"{weight} must be >= 0"):
            objectives.matching_objective(alpha=1.0, **{weight: -1e-9})


@pytest.mark.parametrize("shape", [(2, 3, 4, 4, 1), (2, 4, 4, 1)])
def test_truncation_is_by_tile_and_counts_its_own_bound(shape):
    """Every tile has one bright row, with two edges of four pixels."""
    x = np.zeros(shape)
    x[..., 1, :, :] = 0.5
    tiles = shape[1] if len(shape) == 5 else 1
    assert objectives.total_variation(x).tolist() == [4.0 * tiles] * 2
    for xi, expected in ((3.9, 4.0 * tiles), (4.0, 4.0 * tiles), (4.1, 0.0)):
        assert objectives.truncated_tv(x, xi) == expected
    for scale, counts in ((22.5, True), (22.4, False)):
        _, terms = objectives.cafe_objective().value(
            Quantities(gradient=[np.ones(1)], features=np.ones(1)),
            Quantities(x=scale * x, gradient=[np.ones(1)], features=np.ones(1)),
        )
        assert bool(terms["tv"]) == counts


def test_the_likelihood_of_probabilities_is_the_cross_entropy_of_their_logits():
    logits, y = jnp.array([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]]), jnp.array([2, 1])
    of_probabilities = lambda logits: objectives.negative_log_likelihood(jax.nn.softmax(logits), y)  # noqa: E731
    value, gradient = jax.value_and_grad(of_probabilities)(logits)
    expected, wanted = jax.value_and_grad(objectives.cross_entropy)(logits, y)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, wanted, atol=1e-6)
    noisy = jnp.array([[1.2, -0.1, -0.1], [0.5, 0.25, 0.25]])  # noise takes the first ones out of their range
    value, gradient = jax.value_and_grad(objectives.negative_log_likelihood)(noisy, jnp.array([1, 1]))
    np.testing.assert_allclose(value, -(np.log(1e-6) + np.log(0.25)) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0, 0, 0], [0, -2, 0]], atol=1e-6)


def test_losses_over_classes_refuse_one_logit():
    for loss in (objectives.cross_entropy, objectives.focal_loss):
        with pytest.raises(ValueError, match=f"{loss.__name__} of one logit is zero"):
            loss(jnp.ones((3, 1)), jnp.array([1, 0, 1]))


def test_one_logit_is_that_of_class_one():
    logits, y = jnp.array([[2.0], [-1.0], [0.5]]), jnp.array([1, 0, 1])
    slow = np.mean([np.log1p(np.exp(-z if label else z)) for (z,), label in zip(logits, y, strict=True)])
    assert float(objectives.binary_cross_entropy(logits, y)) == pytest.approx(slow, rel=1e-5)
    slow = np.mean([(z - label) ** 2 for (z,), label in zip(logits, y, strict=True)])
    assert float(objectives.squared_error(logits, y)) == pytest.approx(slow, rel=1e-5)


def test_cross_entropies_of_hard_and_soft_labels_equal_loops():
    rng = np.random.default_rng(4)
    logits, y = rng.normal(size=(4, 3)), np.array([2, 0, 1, 2])
    soft = rng.dirichlet(np.ones(3), 4)

    def slow(logits, weights):
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return -np.mean([sum(w * np.log(p)) for w, p in zip(weights, probabilities, strict=True)])

    hard = np.eye(3)[y]
    np.testing.assert_array_equal(objectives.soft_labels(jnp.asarray(y), 3), hard)
    twice = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for labels, weights in ((y, hard), (soft, soft)):
        labels = jnp.asarray(labels)
        np.testing.assert_allclose(
            objectives.cross_entropy(jnp.asarray(logits), labels), slow(logits, weights), rtol=1e-5
        )
        np.testing.assert_allclose(
            objectives.double_softmax_cross_entropy(jnp.asarray(logits), labels), slow(twice, weights), rtol=1e-5
        )
