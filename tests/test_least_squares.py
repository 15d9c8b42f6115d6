import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak.attacks._cafe.least_squares import (
    DEAD_ROW,
    live_rows,
    output_gradient_conditioning,
    solve_features,
    solve_output_gradients,
)
from jaxleak.attacks._cafe.worker_gauge import AGREEMENT, fix_worker_gauge

BOTH = pytest.mark.parametrize("direct", [True, False], ids=["direct", "matrix_free"])
N, K, P, D1, D2 = 12, 4, 2, 5, 8


def _batches(rounds, n=N, k=K, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(n)[:k] for _ in range(rounds)]).astype(np.int32)


def _tables(n=N, d2=D2, seed=1):
    rng = np.random.default_rng(seed)
    sizes = 10 ** rng.uniform(-2, 0, (n, P, 1))  # gradients of samples differ by orders of magnitude
    return rng.standard_normal((n, P, D1)), sizes * rng.standard_normal((n, P, d2))


def _kernels(batches, h, v):
    return np.einsum("tkpd,tkpe->tpde", h[batches], v[batches])


def _projected(batches, v, kernels):
    """The sums that the attack accumulates: for every sample, v_n times the kernel gradients of its batches."""
    out = np.zeros((len(v), P, kernels.shape[2]))
    for batch, kernel in zip(batches, kernels, strict=True):
        for n in batch:
            out[n] += np.einsum("pe,pde->pd", v[n], kernel)
    return out.astype(np.float32)


solve_v = jax.jit(solve_output_gradients, static_argnums=2, static_argnames="direct")


@BOTH
def test_step_1_is_least_squares(direct):
    # With noise, the least-squares solution differs from the truth.
    batches, (_, v) = _batches(40), _tables()
    gradients = v[batches].sum(axis=1) + 0.05 * np.random.default_rng(2).standard_normal((40, P, D2))
    slow = reference.solve_step_1(batches, gradients, N)
    assert np.abs(slow - v).max() > 1e-2
    fast = solve_v(batches, jnp.asarray(gradients, jnp.float32), N, direct=direct)
    np.testing.assert_allclose(fast, slow, atol=2e-6)
    assert output_gradient_conditioning(batches, N, direct=direct)[0] == N


def test_one_batch_again_and_again_gives_every_sample_an_equal_share():
    size = 7  # at this size, rounding leaves the second singular value above zero
    batches = np.repeat(_batches(1, k=size), 3, axis=0)
    gradients = np.random.default_rng(3).standard_normal((3, P, D2))
    found = np.asarray(solve_v(batches, jnp.asarray(gradients, jnp.float32), N, direct=True))
    expected = np.zeros((N, P, D2))
    expected[batches[0]] = gradients.mean(axis=0) / size
    np.testing.assert_allclose(found, expected, atol=1e-6)


@BOTH
def test_the_condition_number_of_step_1_is_numpys(direct):
    batches = _batches(40)
    incidence = np.zeros((40, N))
    incidence[np.arange(40)[:, None], batches] = 1
    _, condition = output_gradient_conditioning(batches, N, direct=direct)
    assert condition == pytest.approx(np.linalg.cond(incidence.T @ incidence), rel=1e-2)


@BOTH
def test_step_1_reports_samples_that_always_meet(direct):
    batches = np.array([b for b in _batches(300) if (0 in b) == (1 in b)])
    assert len(batches) > 2 * N
    rank, _ = output_gradient_conditioning(batches, N, direct=direct)
    assert rank == N - 1
    # Of the first two samples only the sum is known, and each gets half of it; the others get their own.
    _, v = _tables()
    fast = solve_v(batches, jnp.asarray(v[batches].sum(axis=1), jnp.float32), N, direct=direct)
    np.testing.assert_allclose(fast[2:], v[2:], atol=1e-5)
    np.testing.assert_allclose(fast[:2], np.broadcast_to(v[:2].mean(axis=0), (2, P, D2)), atol=1e-5)


@BOTH
def test_step_2_is_stacked_least_squares(direct):
    batches, (h, v) = _batches(12), _tables()
    kernels = _kernels(batches, h, v) + 1e-3 * np.random.default_rng(2).standard_normal((12, P, D1, D2))
    slow, rank = reference.solve_step_2(batches, v, kernels)
    assert np.abs(slow - h).max() > 1e-3
    fast = solve_features(batches, v.astype(np.float32), _projected(batches, v, kernels), direct=direct)
    np.testing.assert_allclose(fast.table, slow, atol=2e-4 * np.abs(slow).max())
    assert fast.rank == rank == N
    assert 1 < fast.condition < 1e4


def test_step_2_reports_its_rank():
    # Two rounds of four samples in three dimensions cannot determine twelve.
    h, v = _tables(d2=3)
    batches = np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.int32)
    _, rank = reference.solve_step_2(batches, v, _kernels(batches, h, v))
    fast = solve_features(batches, v.astype(np.float32), _projected(batches, v, _kernels(batches, h, v)), direct=True)
    assert fast.rank == rank == 6
    # The matrix-free solver can report rank N - 1 if no round has one of the samples.
    batches = np.array([b for b in _batches(60) if 5 not in b])
    for direct in (True, False):
        projected = _projected(batches, v, _kernels(batches, h, v))
        assert solve_features(batches, v.astype(np.float32), projected, direct=direct).rank == N - 1


@BOTH
@pytest.mark.parametrize(("k", "d2"), [(7, 8), (8, 8), (10, 8)])
def test_overlapping_batches_solve_step_2_even_where_one_batch_is_singular(direct, k, d2):
    batches, (h, v) = _batches(60, n=14, k=k), _tables(n=14, d2=d2)
    fast = solve_features(batches, v.astype(np.float32), _projected(batches, v, _kernels(batches, h, v)), direct=direct)
    assert fast.rank == 14
    np.testing.assert_allclose(fast.table, h, atol=1e-4)


@BOTH
def test_slices_without_gradient_are_flagged_and_stay_zero(direct):
    batches, (h, v) = _batches(30), _tables()
    v[3, 0] = 0
    v[7] = 0
    observed = np.asarray(solve_v(batches, jnp.asarray(v[batches].sum(axis=1), jnp.float32), N, direct=direct))
    assert np.abs(observed[7]).max() < 1e-6  # rounding noise, and not always zero
    norms, live = live_rows(jnp.asarray(observed))
    expected = np.ones((N, P), bool)
    expected[3, 0] = expected[7] = False
    np.testing.assert_array_equal(live, expected)
    assert norms.shape == (N, P)
    fast = solve_features(batches, observed, _projected(batches, observed, _kernels(batches, h, v)), direct=direct)
    assert (fast.table[~expected] == 0).all()
    np.testing.assert_allclose(fast.table[expected], h[expected], atol=1e-3)


def test_live_is_relative_to_the_median():
    v = jnp.ones((5, 1, 4)).at[2].multiply(0.5 * DEAD_ROW)
    for scale in (1e-6, 1.0, 1e6):
        np.testing.assert_array_equal(live_rows(scale * v)[1][:, 0], [True, True, False, True, True])


@pytest.mark.parametrize("dead", [5, 9, 18])
def test_rows_are_dead_though_most_are(dead):
    """Of 20 rows, those without gradient contain only rounding errors."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal((20, 1, 4)) * 10.0 ** rng.uniform(-2, 0, (20, 1, 1))
    v[:dead] = 1e-8 * rng.standard_normal((dead, 1, 4))
    for scale in (1e-6, 1.0, 1e6):
        found = live_rows(jnp.asarray(scale * v, jnp.float32))[1][:, 0]
        np.testing.assert_array_equal(found, np.arange(20) >= dead)


def test_without_any_gradient_no_row_is_live():
    assert not live_rows(jnp.zeros((4, 2, 3)))[1].any()


@BOTH
def test_a_party_without_gradient_stays_zero_beside_the_others(direct):
    batches, (h, v) = _batches(30), _tables()
    v[:, 1] = 0
    fast = solve_features(batches, v.astype(np.float32), _projected(batches, v, _kernels(batches, h, v)), direct=direct)
    others = np.arange(P) != 1
    np.testing.assert_allclose(fast.table[:, others], h[:, others], atol=1e-3)
    assert (fast.table[:, 1] == 0).all()
    assert fast.rank == N
    assert 1 < fast.condition < 1e4


@pytest.fixture(scope="module")
def workers():
    """V, batches and uploads of M = 3 workers with 8 samples each and 2 per round; V is zero where a ReLU is off."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal((24, P, D2)) * (rng.random((24, P, D2)) < 0.25)
    batches = np.stack([np.concatenate([8 * m + rng.permutation(8)[:2] for m in range(3)]) for _ in range(90)]).astype(
        np.int32
    )
    return v, batches, jnp.asarray(v[batches].sum(axis=1), jnp.float32)


def test_fixed_shares_hide_one_shift_per_worker(workers):
    v, batches, gradients = workers
    incidence = np.zeros((90, 24))
    incidence[np.arange(90)[:, None], batches] = 1
    assert np.linalg.matrix_rank(incidence) == 24 - 3 + 1
    for direct in (True, False):
        assert output_gradient_conditioning(batches, 24, direct=direct)[0] < 24
    assert output_gradient_conditioning(batches, 24, direct=True)[0] == 22
    least_squares = np.asarray(solve_v(batches, gradients, 24, direct=True))
    assert np.abs(least_squares - v).max() > 1e-2
    np.testing.assert_allclose(least_squares[batches].sum(axis=1), gradients, atol=1e-5)  # it fits nevertheless
    shifts = (least_squares - v).reshape(3, 8, P, D2)
    np.testing.assert_allclose(shifts, shifts[:, :1].repeat(8, axis=1), atol=1e-5)  # errors are constant per worker
    fixed, resolved = fix_worker_gauge(jnp.asarray(least_squares), 3)
    assert resolved.all()
    np.testing.assert_allclose(fixed, v, atol=1e-5)


def test_units_that_are_never_off_stay_unresolved(workers):
    v, batches, _ = workers
    v = np.where((np.arange(D2) == 2) & (np.arange(24) < 8)[:, None, None], 1 + np.arange(24.0)[:, None, None] / 8, v)
    gradients = jnp.asarray(v[batches].sum(axis=1), jnp.float32)
    fixed, resolved = fix_worker_gauge(solve_v(batches, gradients, 24, direct=True), 3)
    expected = np.ones((P, D2), bool)
    expected[:, 2] = False
    np.testing.assert_array_equal(resolved, expected)
    assert (np.asarray(fixed)[..., 2] == 0).all()
    others = np.arange(D2) != 2
    np.testing.assert_allclose(np.asarray(fixed)[..., others], v[..., others], atol=1e-3)


def _shifted(*columns):
    """V of two workers with these values per unit, each in its own order, without and with the workers' shifts."""
    rng = np.random.default_rng(0)
    v = np.stack([[rng.permutation(column) for column in columns] for _ in range(2)]).transpose(0, 2, 1)
    shifts = np.array([[0.5, -1.25], [-0.5, 2.0]])[:, None, : len(columns)]
    rows = len(columns[0]) * 2
    return v.reshape(rows, 1, -1), jnp.asarray((v + shifts).reshape(rows, 1, -1), jnp.float32)


@pytest.mark.parametrize(
    ("size", "zeros", "resolved"), [(8, 2, False), (8, 3, True), (39, 3, True), (40, 3, False), (40, 4, True)]
)
def test_a_tenth_of_a_workers_samples_and_three_at_least_tell_the_zero(size, zeros, resolved):
    others = np.linspace(1, 3, size)
    column = np.where(np.arange(size) < zeros, 0.0, others)
    half = np.where(np.arange(size) < size // 2, 0.0, -others)
    v, observed = _shifted(column, half)
    fixed, found = fix_worker_gauge(observed, 2)
    assert found.tolist() == [[resolved, True]]
    expected = v * [resolved, True]
    np.testing.assert_allclose(fixed, expected, atol=1e-6)


@pytest.mark.parametrize(("spread", "resolved"), [(0.9, True), (1.2, False)])
def test_samples_that_tell_the_zero_agree_up_to_rounding(spread, resolved):
    """The middle of a cluster of values is the zero; the allowed width is relative to the largest entry."""
    width = 4.0 * spread * AGREEMENT
    v, _ = _shifted([-width / 2, 0.3 * width, width / 2, 1.0, -2.0, 2.5, -3.0, 3.5])
    v[:, 0, 0] = np.where(v[:, 0, 0] == 3.5, 4.0, v[:, 0, 0])
    fixed, found = fix_worker_gauge(jnp.asarray(v + 1e-3 * np.repeat([1, -1], 8)[:, None, None], jnp.float32), 2)
    assert found.tolist() == [[resolved]]
    np.testing.assert_allclose(fixed, v * resolved, atol=1e-6)
