"""The paper's theorems and error bounds, by enumerating all C(N, K) batches in NumPy (float64)."""

from itertools import combinations

import numpy as np
import pytest

SIZES = [(4, 2), (5, 3), (6, 2), (6, 5), (7, 4)]


def all_batches(n, k):
    """The paper's set S of all batches as a 0-1 matrix (C(N, K), N)."""
    return np.array([[float(i in batch) for i in range(n)] for batch in combinations(range(n), k)])


def output_objectives(s, v, truth):
    """The objective F1(V; s) of every batch."""
    return ((s @ (v - truth)) ** 2).sum(axis=1)


def feature_objectives(s, h, v, true_h, true_v):
    """The objective F2(H; s) of every batch, with V from Step I."""
    members = np.einsum("nd,ne->nde", h, v) - np.einsum("nd,ne->nde", true_h, true_v)
    return (np.einsum("tn,nde->tde", s, members) ** 2).sum(axis=(1, 2))


def hessian(function, size):
    """The Hessian by differences with steps of one, exact for quadratic functions."""
    unit, f0 = np.eye(size), function(np.zeros(size))
    single = [function(e) for e in unit]
    return np.array(
        [[function(unit[i] + unit[j]) - single[i] - single[j] + f0 for j in range(size)] for i in range(size)]
    )


def block(n, k):
    """The N x N block of F1's Hessian, Eq. (25)."""
    off = 2 * k * (k - 1) / (n * (n - 1))
    return np.full((n, n), off) + (2 * k / n - off) * np.eye(n)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_theorem_1_the_hessian_of_f1_has_the_eigenvalues_of_eq_26(n, k):
    width, s = 2, all_batches(n, k)
    truth = np.random.default_rng(0).standard_normal((n, width))
    full = hessian(lambda v: output_objectives(s, v.reshape(n, width), truth).mean(), n * width)
    np.testing.assert_allclose(full, np.kron(block(n, k), np.eye(width)), atol=1e-9)
    factor = 2 * k * (k - 1) / (n * (n - 1))
    by_paper = [(n - 1) / (k - 1) - 1] * (n - 1) + [(n - 1) / (k - 1) + n - 1]
    np.testing.assert_allclose(np.linalg.eigvalsh(full)[::width] / factor, by_paper, atol=1e-9)


def test_theorem_1_single_samples_and_whole_sets():
    np.testing.assert_allclose(2 * all_batches(5, 1).T @ all_batches(5, 1) / 5, np.eye(5) * 2 / 5)
    everything = all_batches(5, 5)
    np.testing.assert_allclose(2 * everything.T @ everything, 2 * np.ones((5, 5)))
    assert np.linalg.matrix_rank(block(5, 5)) == 1


@pytest.mark.parametrize(("n", "k", "width"), [(4, 2, 6), (6, 3, 2), (6, 5, 1)])
def test_theorem_2_the_hessian_of_f2_is_a_schur_product_and_needs_no_wide_layer(n, k, width):
    depth, s, rng = 2, all_batches(n, k), np.random.default_rng(0)
    v, truth = rng.standard_normal((n, width)), rng.standard_normal((n, depth))
    full = hessian(lambda h: feature_objectives(s, h.reshape(n, depth), v, truth, v).mean(), n * depth)
    schur = block(n, k) * (v @ v.T)
    np.testing.assert_allclose(full, np.kron(schur, np.eye(depth)), atol=1e-9)
    # Beyond the theorem: N > d2 suffices if no row of V is zero. (Oppenheim: C >= its smallest eigenvalue.)
    assert np.linalg.eigvalsh(full).min() >= np.linalg.eigvalsh(block(n, k)).min() * (v**2).sum(axis=1).min() - 1e-9
    v[1] = 0
    assert abs(np.linalg.eigvalsh(block(n, k) * (v @ v.T)).min()) < 1e-12


def printed(n, k):
    return n / k


def corrected(n, k):
    return n * (n - 1) / (k * (n - k))


def test_bound_38_fails_as_printed_because_the_cross_terms_were_dropped():
    # Errors cancel within a batch: of three samples, two cancel and one remains.
    n, k = 4, 3
    error = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    values = output_objectives(all_batches(n, k), error, np.zeros_like(error))
    phi, epsilon = values.max(), (error**2).sum()
    assert epsilon > 2.9 * printed(n, k) * phi
    # Eq. (37) states that these are equal.
    assert values.mean() != pytest.approx(k / n * epsilon)
    assert epsilon == pytest.approx(corrected(n, k) * phi)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_corrected_bound_38_holds_and_is_attained(n, k):
    s, rng = all_batches(n, k), np.random.default_rng(0)
    for centred in (False, True):
        for _ in range(20):
            error = rng.standard_normal((n, 3))
            error -= error.mean(axis=0) if centred else 0
            values, epsilon = output_objectives(s, error, 0), (error**2).sum()
            assert epsilon <= corrected(n, k) * values.mean() * (1 + 1e-9)
            assert epsilon <= corrected(n, k) * values.max()
            if centred:
                assert epsilon == pytest.approx(corrected(n, k) * values.mean())


def bound_43(factor, h, v, true_h, true_v, phi_1, phi_2):
    gradient = ((true_h.T @ true_v) ** 2).sum()
    inverse, true_inverse = ((np.linalg.pinv(a) ** 2).sum() for a in (v, true_v))
    return 2 * factor * (gradient * inverse * true_inverse * phi_1 + inverse * phi_2)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_corrected_bound_43_holds(n, k):
    # Proof, row by row: (h - h*) v^T = M_n - h* (v - v*)^T with sum ||M_n||^2 <= factor phi_2 as for (38), and
    # 1 / ||v_n||^2 <= ||V^-1||^2, ||h*_n||^2 <= ||grad||^2 ||V*^-1||^2.
    s, rng = all_batches(n, k), np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(5):
            true_h, true_v = rng.standard_normal((n, 3)), rng.standard_normal((n, n + 2))
            error_v, error_h = rng.standard_normal(true_v.shape), rng.standard_normal(true_h.shape)
            v, h = true_v + size * (error_v - error_v.mean(axis=0)), true_h + size * (error_h - error_h.mean(axis=0))
            phi_1, phi_2 = output_objectives(s, v, true_v).max(), feature_objectives(s, h, v, true_h, true_v).max()
            epsilon = ((h - true_h) ** 2).sum()
            assert epsilon <= bound_43(corrected(n, k), h, v, true_h, true_v, phi_1, phi_2)


def test_step_2_drops_the_same_cross_terms():
    # One direction for all rows of V (no inverse exists, so ||v||^-2 stands in for its norm), exact V, errors in H
    # that cancel: the sum that Eq. (41) keeps is zero, and the printed factor is too small.
    n, k = 6, 5
    s, rng = all_batches(n, k), np.random.default_rng(0)
    v = np.tile(rng.standard_normal(3), (n, 1))
    true_h, error = rng.standard_normal((n, 2)), rng.standard_normal((n, 2))
    h = true_h + error - error.mean(axis=0)
    mean, epsilon = feature_objectives(s, h, v, true_h, v).mean(), ((h - true_h) ** 2).sum()
    delta = h.T @ v - true_h.T @ v
    assert (delta**2).sum() < 1e-20
    assert mean > 0.1
    assert epsilon == pytest.approx(corrected(n, k) * mean / (v[0] ** 2).sum())
    assert epsilon > 2 * printed(n, k) * mean / (v[0] ** 2).sum()
