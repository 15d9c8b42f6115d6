"""Clusters of directions against slow references: the mixture, the names of clusters, and the choice among starts."""

import itertools

import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxleak.attacks._vertical import direction_clusters


def _labelled(gradients, log_prior, previous_means=None):
    return direction_clusters.label_directions(gradients, log_prior, previous_means=previous_means, restarts=5, seed=0)


def _mixture(points, log_prior, start, present, degree, steps=60):
    """A reference: expectation-maximisation with SciPy's densities and a least-squares fit of every class's curve."""
    n, rank = points.shape
    time = np.stack([scipy.special.eval_legendre(k, np.linspace(-1, 1, n)) for k in range(degree + 1)], axis=1)
    members, ridge = start[:, present], 1e-4 * np.mean(points**2) * np.eye(rank)
    before = -np.inf
    for _ in range(steps):
        roots = [np.sqrt(member)[:, None] for member in members.T]
        curves = [np.linalg.lstsq(root * time, root * points, rcond=None)[0] for root in roots]
        misfits = [points - time @ curve for curve in curves]
        covariance = sum((m * w[:, None]).T @ m for m, w in zip(misfits, members.T, strict=True)) / n + ridge
        normal = scipy.stats.multivariate_normal(np.zeros(rank), covariance)
        scores = np.stack([normal.logpdf(misfit) for misfit in misfits], axis=1) + log_prior[:, present]
        evidence = scipy.special.logsumexp(scores, axis=1, keepdims=True)
        members, value = np.exp(scores - evidence), evidence.mean() + rank / 2 * np.log(2 * np.pi)
        if value - before < 1e-6:
            break
        before = value
    middles = [curve[0] for curve in curves]  # the mean over time
    gaps = [np.sqrt((a - b) @ np.linalg.solve(covariance, a - b)) for a, b in itertools.combinations(middles, 2)]
    return members, value - len(present) * (degree + 1) * rank * np.log(n) / 2 / n, min(gaps, default=np.inf)


@pytest.mark.parametrize(("present", "degree"), [((0, 1, 2), 0), ((0, 2), 0), ((0, 1, 2), 2), ((1,), 1)])
def test_the_mixture_is_that_of_a_slow_reference(present, degree):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    points = 1.5 * rng.standard_normal((3, 4))[y] + rng.standard_normal((60, 4)) * [0.5, 1.0, 2.0, 0.7]
    log_prior = np.log(rng.dirichlet(np.ones(3), size=60))
    start, present = rng.dirichlet(np.ones(len(present)), size=60), np.array(present)
    whole = np.zeros((60, 3))
    whole[:, present] = start
    found, objective, separation = direction_clusters._fit(points, log_prior, whole, present, degree)
    expected, value, gap = _mixture(points, log_prior, whole, present, degree)
    np.testing.assert_allclose(np.exp(found[:, present]), expected, atol=1e-6)
    assert np.isneginf(np.delete(found, present, axis=1)).all()
    assert objective == pytest.approx(value, abs=1e-7)
    assert separation == pytest.approx(gap, rel=1e-6)


def _named(unit, clusters, log_prior):
    """A reference that names clusters by trying all assignments, and merges them by trying all pairs."""
    groups = [[k] for k in range(clusters.max() + 1)]

    def votes(group):
        return log_prior[np.isin(clusters, group)].sum(axis=0)

    def assignment():
        every = itertools.permutations(range(log_prior.shape[1]), len(groups))
        return max(every, key=lambda names: sum(votes(g)[name] for g, name in zip(groups, names, strict=True)))

    merges = {"explains": 0, "same": 0}
    while True:
        names, best = assignment(), (0.0, None)
        for i, j in itertools.combinations(range(len(groups)), 2):
            a, b = (unit[np.isin(clusters, groups[k])].sum(axis=0) for k in (i, j))
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            taken = {name for k, name in enumerate(names) if k not in (i, j)}
            free = [c for c in range(log_prior.shape[1]) if c not in taken]
            apart = votes(groups[i])[names[i]] + votes(groups[j])[names[j]]
            gain = np.inf if cosine > 0.95 else max(votes(groups[i] + groups[j])[free]) - apart
            if cosine > 0.3 and gain > best[0]:
                best = gain, (i, j)
        if best[1] is None:
            return [next(name for g, name in zip(groups, names, strict=True) if k in g)
                    for k in range(clusters.max() + 1)], merges  # fmt: skip
        merges["same" if best[0] == np.inf else "explains"] += 1
        i, j = best[1]
        groups[i] += groups.pop(j)


def test_clusters_are_named_and_merged_as_by_trying_everything():
    rng, counts = np.random.default_rng(0), {"explains": 0, "same": 0, "none": 0}
    for case in range(60):
        clusters = np.concatenate([np.arange(4), rng.integers(4, size=8)])
        directions = rng.standard_normal((4, 3))
        if case % 3 == 0:
            directions[1] = directions[0] + 0.1 * rng.standard_normal(3)
        unit = directions[clusters] + 0.1 * rng.standard_normal((12, 3))
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        log_prior = np.log(rng.dirichlet(np.full(5, 2.0), size=12))
        expected, merges = _named(unit, clusters, log_prior)
        assert direction_clusters._name_clusters(unit, clusters, log_prior).tolist() == expected
        for name, count in merges.items():
            counts[name] += count
        counts["none"] += not any(merges.values())
    assert min(counts.values()) > 5  # every outcome occurs


@pytest.mark.parametrize(("cosine", "merged"), [(0.28, False), (0.32, True)])
def test_only_close_clusters_are_merged_by_their_votes(cosine, merged):
    unit = np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])
    log_prior = np.log([[0.9, 0.1], [0.8, 0.2]])
    found = direction_clusters._name_clusters(unit, np.array([0, 1]), log_prior)
    assert found.tolist() == ([0, 0] if merged else [0, 1])


@pytest.mark.parametrize(("cosine", "merged"), [(0.93, False), (0.97, True)])
def test_clusters_of_one_direction_are_one_class_whatever_they_vote(cosine, merged):
    unit = np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])
    log_prior = np.log([[0.9, 0.1], [0.2, 0.8]])
    found = direction_clusters._name_clusters(unit, np.array([0, 1]), log_prior)
    assert found.tolist() == ([0, 0] if merged else [0, 1])


@pytest.mark.parametrize(("live", "clustered"), [(5, False), (6, True)])
def test_fewer_directions_than_two_per_class_leave_the_baseline_alone(live, clustered):
    rng = np.random.default_rng(0)
    gradients = np.eye(4)[[0, 1, 2] * 3] + 0.01 * rng.standard_normal((9, 4))
    gradients[live:] = 0
    log_prior = np.log(np.full((9, 3), 0.2) + 0.4 * np.eye(3)[[0, 1, 2] * 3])
    found = _labelled(gradients, log_prior + 1)  # log-probabilities need not be normalised
    np.testing.assert_allclose(found.log_probability[live:], log_prior[live:])
    if clustered:
        assert np.isfinite(found.objective)
        assert found.log_probability[:live].max(axis=1).min() > np.log(0.999)
        assert found.separation > 10
    else:
        np.testing.assert_allclose(found.log_probability, log_prior)
        assert (found.objective, found.separation) == (-np.inf, 0)
        assert not found.means.any()


def test_the_classes_of_the_window_before_name_those_of_this_one():
    """The baseline is uninformative, and the difference between the classes is small beside their common spread."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=120)
    across = 0.3 * (2 * y - 1) + 0.02 * rng.standard_normal(120)
    angle = rng.uniform(0, 2 * np.pi, 120)
    rest = np.sqrt(1 - across**2)
    directions = np.stack([across, rest * np.cos(angle), rest * np.sin(angle)], axis=1)
    for names in ([0, 1], [1, 0]):
        means = np.zeros((2, 3))
        means[names] = [[-0.3, 0, 0], [0.3, 0, 0]]
        found = _labelled(directions, np.log(np.full((120, 2), 0.5)), means)
        np.testing.assert_array_equal(found.log_probability.argmax(axis=1), np.array(names)[y])


@pytest.mark.parametrize(("power", "size", "degree"), [(0, 0.3, 0), (1, 0.06, 1), (1, 0.3, 2), (3, 0.3, 3)])
def test_classes_move_along_polynomials_of_degree_three_at_most(power, size, degree):
    rng = np.random.default_rng(0)
    n, time = 240, np.linspace(-1, 1, 240)
    y = rng.integers(2, size=n)
    angle = np.pi * y + size * scipy.special.eval_legendre(power, time) + 0.03 * rng.standard_normal(n)
    rest = rng.standard_normal((n, 4)) * [0.04, 0.03, 0.02, 0.01]
    gradients = np.column_stack([np.cos(angle), np.sin(angle), rest])
    log_prior = np.log(np.full((n, 2), 0.4) + 0.2 * np.eye(2)[y])
    found = _labelled(gradients, log_prior)
    np.testing.assert_array_equal(found.log_probability.argmax(axis=1), y)
    unit = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    projected = unit @ np.linalg.eigh(unit.T @ unit)[1][:, -4:]  # twice as many dimensions as classes
    values = [_mixture(projected, log_prior, np.eye(2)[y], np.arange(2), d)[1] for d in range(7)]
    assert found.objective == pytest.approx(values[degree], abs=1e-5)
    assert values[degree] == max(values[:4])
    assert (max(values) > values[degree] + 0.01) == (degree == 3)  # a higher degree would fit better


@pytest.mark.parametrize("power", [0, 3])
def test_what_moves_all_alike_says_nothing_about_two_classes(power):
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    gradients = rng.standard_normal((300, 5))
    if power:
        gradients[:, 0] += 4 * scipy.special.eval_legendre(power, np.linspace(-1, 1, 300))
    log_prior = np.log(np.full((300, 2), 0.3) + 0.4 * np.eye(2)[y])
    found = _labelled(gradients, log_prior)
    np.testing.assert_allclose(found.log_probability, log_prior)
    assert found.separation == 0
    # If the baseline is certain of one class, that class is the answer.
    certain = np.log(np.tile([1 - 1e-9, 1e-9], (300, 1)))
    assert (_labelled(gradients, certain).log_probability.argmax(axis=1) == 0).all()
