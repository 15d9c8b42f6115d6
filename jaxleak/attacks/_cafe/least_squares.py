"""CAFE's Steps I and II, which are linear least-squares problems when parameters are frozen.

With S the T x N incidence matrix of batches and samples (S[t, n] = 1 when sample n is in batch t):

* Step I: the bias gradients are S V, so V solves min ||S V - G||. The normal matrix is C = S^T S, which counts how
  often two samples met in a batch.
* Step II: the kernel gradient of batch t is sum_n h_n v_n^T over the batch. Once these gradients are projected onto
  the known v_n and summed over rounds, the normal matrix of H is the Schur product C * (V V^T), one N x N matrix per
  party.

CAFE (NeurIPS 2021) proves both positive definite for K < N (Theorems 1 and 2, Eq. 26); Theorem 2's condition N < d2 is
sufficient, not necessary: C * (V V^T) is positive definite as soon as C is and no v_n is zero. Pooling rounds makes the
matrix well conditioned: a single batch b needs rank(V_b) = K and has the condition number cond(V_b)^2, while several
overlapping batches have neither problem.

Rows of V are scaled to unit length first (Jacobi preconditioning), so that samples with small gradients count alike.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # scipy's subpackages load when they are first used
from jax.sharding import Mesh

from jaxleak import _mesh

#: Largest N for which "auto" factorises N x N matrices. Beyond it they need more memory than the data, and time grows
#: as N^3.
DIRECT_LIMIT = 20_000

#: Largest N for which the whole spectrum is computed, which reveals any rank. For a larger N, Step II takes a
#: factorisation, which needs full rank.
SPECTRAL_LIMIT = 1200

#: Rows of V with a norm below this share of a typical one carry only rounding noise of the float32 observations.
DEAD_ROW = 1e-5

#: State of conjugate gradients: solution, residual, the residual's squared norm, direction, number of iterations.
_Iterate: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


class LinearSolution(NamedTuple):
    """Solution of a least-squares step."""

    table: np.ndarray  # (N, P, F) float32
    rank: int  # effective rank of the normal matrix, the smallest over parties; at most N
    condition: float  # ratio of the normal matrix's largest to its smallest kept eigenvalue, the largest over parties


def incidence_matrix(batches: jax.Array, num_samples: int) -> jax.Array:
    """The dense matrix S (T, N) of batches (T, K): 1 where a sample is in a batch, 0 elsewhere."""
    rounds = jnp.arange(batches.shape[0])[:, None]
    return jnp.zeros((batches.shape[0], num_samples)).at[rounds, batches].set(1.0)


def incidence_solver(batches: jax.Array, num_samples: int) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """S (T, N), and a function from right-hand sides (T, F) to minimum-norm least-squares solutions (N, F)."""
    incidence = incidence_matrix(batches, num_samples)
    u, s, wt = jnp.linalg.svd(incidence, full_matrices=False)
    inverse = jnp.where(s > 1e-4 * s[0], 1 / s, 0.0)
    return incidence, lambda g: wt.T @ (inverse[:, None] * (u.T @ g))


def incidence_product(batches: jax.Array, table: jax.Array) -> jax.Array:
    """S X: for every batch (T, K) the sum of its rows of the table (N, ...) -> (T, ...)."""
    return jax.lax.map(lambda index: table[index].sum(axis=0), batches)


def incidence_transpose_product(batches: jax.Array, rows: jax.Array, num_samples: int) -> jax.Array:
    """S^T Y: for every sample the sum over its batches of Y (T, ...) -> (N, ...)."""

    def add(table: jax.Array, batch_and_row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, row = batch_and_row
        return table.at[index].add(row[None]), None

    return jax.lax.scan(add, jnp.zeros((num_samples, *rows.shape[1:]), rows.dtype), (batches, rows))[0]


def solve_output_gradients(
    batches: jax.Array, bias_gradients: jax.Array, num_samples: int, *, direct: bool
) -> jax.Array:
    """Step I: V (N, P, d2) from T batches (T, K) and their bias gradients (T, P, d2). Pure, jit-able.

    If `direct` is true and N is at most `SPECTRAL_LIMIT`, the solver is a singular value decomposition of S. Otherwise
    it is conjugate gradients, with gathers and scatters in place of S and memory O(N d2). Both give the minimum-norm
    solution if S has a null space (horizontal rounds with fixed shares per worker). One step of iterative refinement
    follows both.
    """
    rounds = batches.shape[0]
    if direct and num_samples <= SPECTRAL_LIMIT:
        incidence, solve = incidence_solver(batches, num_samples)
        flat = bias_gradients.reshape(rounds, -1)
        v = solve(flat)
        v = v + solve(flat - incidence @ v)
        return v.reshape(num_samples, *bias_gradients.shape[1:])

    def normal_product(v: jax.Array) -> jax.Array:
        return incidence_transpose_product(batches, incidence_product(batches, v), num_samples)

    def solve_free(g: jax.Array) -> jax.Array:
        return _conjugate_gradients(normal_product, incidence_transpose_product(batches, g, num_samples))

    v = solve_free(bias_gradients)
    return v + solve_free(bias_gradients - incidence_product(batches, v))


def output_gradient_conditioning(batches: np.ndarray, num_samples: int, *, direct: bool) -> tuple[int, float]:
    """Effective rank of S and condition number of S^T S."""
    incidence = _incidence(batches, num_samples)
    if direct and num_samples <= SPECTRAL_LIMIT:
        return _spectrum(np.linalg.eigvalsh((incidence.T @ incidence).toarray()))
    return _extremal_spectrum(lambda x: incidence.T @ (incidence @ x), num_samples)


def live_rows(v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Norms (N, P) of the rows of V and which of them stand above rounding noise.

    A row is exactly zero when the ReLUs behind the first dense layer pass nothing back for that slice. The slice's
    features then take part in no gradient, and no attack on the dense layers can see them. The median norm counts as
    typical. If most rows are zero, the median is rounding itself, and the root mean square takes its place.
    """
    norms = jnp.linalg.norm(v, axis=-1)
    median, spread = jnp.median(norms), jnp.sqrt(jnp.mean(norms**2))
    return norms, norms > DEAD_ROW * jnp.where(median > DEAD_ROW * spread, median, spread)


def solve_features(
    batches: np.ndarray, v: np.ndarray, projected: np.ndarray, *, direct: bool, mesh: Mesh | None = None
) -> LinearSolution:
    """Step II: H from `projected` = sum over rounds and members of v_n G_t^T, (N, P, d1).

    If `direct` is true, the N x N matrices are decomposed in float64 on the host. Up to N = `SPECTRAL_LIMIT` this is an
    eigendecomposition, which reveals their rank, and a Cholesky factorisation above. Otherwise conjugate gradients with
    one refinement run in float32, with memory O(N d1 + T K^2). Rows without gradient come back as zero.

    Args:
        batches: (T, K) batches of Step II.
        v: (N, P, d2), the solution of Step I.
        projected: (N, P, d1), accumulated during the rounds.
        direct: whether to decompose N x N matrices.
        mesh: devices that share the columns of H, each with the whole of V; used if `direct` is false.

    Raises:
        ValueError: if a Cholesky factorisation meets a matrix without full rank.
    """
    norms, live = (np.asarray(a) for a in live_rows(jnp.asarray(v)))
    scale = np.where(live, norms, 1.0)[..., None]
    unit = np.where(live[..., None], v / scale, 0.0).astype(np.float32)
    rhs = np.where(live[..., None], projected / scale, 0.0).astype(np.float32)
    if direct:
        solution, rank, condition = _direct_features(batches, unit, rhs, live)
    else:
        if mesh is None:
            arrays = jnp.asarray(batches), jnp.asarray(unit), jnp.asarray(rhs)
        else:
            whole, columns = _mesh.replicated(mesh), _mesh.divided(mesh, rhs.ndim, axis=-1)
            arrays = _mesh.place(batches, whole), _mesh.place(unit, whole), _mesh.place(rhs, columns)
        solution = _mesh.gather(_matrix_free_features(*arrays))
        rank, condition = _feature_spectrum(batches, unit, live)
    return LinearSolution((solution / scale).astype(np.float32), rank, condition)


def _direct_features(
    batches: np.ndarray, unit: np.ndarray, rhs: np.ndarray, live: np.ndarray
) -> tuple[np.ndarray, int, float]:
    incidence = _incidence(batches, unit.shape[0])
    counts = (incidence.T @ incidence).toarray()
    solution, ranks, conditions = np.zeros(rhs.shape, np.float32), [], []
    for party in range(unit.shape[1]):
        rows = live[:, party]
        if not rows.any():  # no equation is left that could be badly conditioned
            ranks.append(len(rows))
            conditions.append(1.0)
            continue
        w = unit[rows, party].astype(np.float64)
        normal = w @ w.T
        normal *= counts if rows.all() else counts[np.ix_(rows, rows)]
        solve = _spectral_solve if len(unit) <= SPECTRAL_LIMIT else _cholesky_solve
        solution[rows, party], rank, condition = solve(normal, rhs[rows, party].astype(np.float64))
        ranks.append(rank + int((~rows).sum()))
        conditions.append(condition)
    return solution, min(ranks), max(conditions)


def _spectral_solve(normal: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, int, float]:
    eigenvalues, q = np.linalg.eigh(normal)
    rank, condition = _spectrum(eigenvalues)
    q = q[:, len(eigenvalues) - rank :]
    return q @ ((q.T @ rhs) / eigenvalues[len(eigenvalues) - rank :, None]), rank, condition


def _cholesky_solve(normal: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, int, float]:
    norm = np.abs(normal).sum(axis=0).max()
    try:
        factor = scipy.linalg.cholesky(normal, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"Step II is rank deficient at N = {len(normal)}, which the factorisation for more than {SPECTRAL_LIMIT} "
            "samples cannot resolve; watch more feature_rounds, or use solver='matrix_free'"
        ) from error
    reciprocal, _ = scipy.linalg.lapack.dpocon(factor, norm, uplo="L")
    solution = scipy.linalg.cho_solve((factor, True), rhs, overwrite_b=True, check_finite=False)
    return solution, len(normal), float(1 / reciprocal)


@jax.jit
def _matrix_free_features(batches: jax.Array, unit: jax.Array, rhs: jax.Array) -> jax.Array:
    grams = jax.lax.map(lambda w: jax.lax.map(lambda index: w[index] @ w[index].T, batches), unit.transpose(1, 0, 2))

    def one_party(grams_and_rhs: tuple[jax.Array, jax.Array]) -> jax.Array:
        grams, rhs = grams_and_rhs

        def normal_product(h: jax.Array) -> jax.Array:
            def add(total: jax.Array, batch_and_gram: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
                index, gram = batch_and_gram
                return total.at[index].add(gram @ h[index]), None

            return jax.lax.scan(add, jnp.zeros_like(h), (batches, grams))[0]

        h = _conjugate_gradients(normal_product, rhs)
        return h + _conjugate_gradients(normal_product, rhs - normal_product(h), tolerance=1e-2)

    # Party by party: each product is then a plain matrix product on contiguous rows.
    return jax.lax.map(one_party, (grams, rhs.transpose(1, 0, 2))).transpose(1, 0, 2)


def _feature_spectrum(batches: np.ndarray, unit: np.ndarray, live: np.ndarray) -> tuple[int, float]:
    ranks, conditions = [], []
    for party in range(unit.shape[1]):
        grams = np.stack([w @ w.T for w in (unit[index, party] for index in batches)])
        dead, typical = ~live[:, party], batches.size / len(live)

        def product(
            x: np.ndarray, grams: np.ndarray = grams, dead: np.ndarray = dead, typical: float = typical
        ) -> np.ndarray:
            parts = np.einsum("tkl,tl->tk", grams, x[batches], optimize=True)
            # Dead rows get the mean eigenvalue, which lies inside the spectrum of the live rows.
            return np.bincount(batches.ravel(), weights=parts.ravel(), minlength=len(x)) + typical * dead * x

        rank, condition = _extremal_spectrum(product, unit.shape[0])
        ranks.append(rank)
        conditions.append(condition)
    return min(ranks), max(conditions)


def _incidence(batches: np.ndarray, num_samples: int) -> "scipy.sparse.csr_matrix":
    rounds, batch_size = batches.shape
    return scipy.sparse.csr_matrix(
        (np.ones(rounds * batch_size), (np.repeat(np.arange(rounds), batch_size), np.asarray(batches).ravel())),
        shape=(rounds, num_samples),
    )


def _extremal_spectrum(product: Callable[[np.ndarray], np.ndarray], size: int) -> tuple[int, float]:
    """Rank (size, or size - 1 for "less than size") and condition number of a positive semidefinite operator.

    The Lanczos iteration finds the two ends of the spectrum only; condition numbers above 10^4 count as infinite.
    """
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=lambda x: product(x.ravel()), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    largest = scipy.sparse.linalg.eigsh(operator, k=1, v0=start, tol=1e-3, return_eigenvectors=False)[0]
    # ARPACK multiplies its start vector by the operator, which removes an exact null space; a shift keeps it in view.
    shift = 1e-2 * largest
    shifted = scipy.sparse.linalg.LinearOperator(
        (size, size), matvec=lambda x: product(x.ravel()) + shift * x.ravel(), dtype=np.float64
    )
    try:
        found = scipy.sparse.linalg.eigsh(
            shifted, k=1, which="SA", v0=start, tol=1e-3, maxiter=40, return_eigenvectors=False
        )
    except scipy.sparse.linalg.ArpackNoConvergence as unfinished:
        found = unfinished.eigenvalues
    smallest = found[0] - shift if len(found) else np.nan
    if smallest < 1e-4 * largest:
        return size - 1, float("inf")
    return size, float(largest / smallest)


def _spectrum(eigenvalues: np.ndarray) -> tuple[int, float]:
    kept = eigenvalues[eigenvalues > 1e-7 * eigenvalues[-1]]
    return len(kept), float(kept[-1] / kept[0])


def _conjugate_gradients(
    product: Callable[[jax.Array], jax.Array], rhs: jax.Array, tolerance: float = 1e-6
) -> jax.Array:
    # All columns share one Krylov space: the operator is the same N x N matrix for each of them. (lineax.CG scales its
    # breakdown test by the number of unknowns and returns NaN for the millions here; jax.scipy's flattens its vectors
    # for inner products, which would gather tables that are divided among devices. The steps are those of jax.scipy.)
    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.tensordot(a, b, axes=a.ndim, precision=jax.lax.Precision.HIGHEST)

    size = dot(rhs, rhs)

    def unfinished(carry: _Iterate) -> jax.Array:
        _, _, square, _, iteration = carry
        return (square > tolerance**2 * size) & (iteration < 400)

    def body(carry: _Iterate) -> _Iterate:
        x, residual, square, direction, iteration = carry
        image = product(direction)
        length = square / dot(direction, image)
        residual = residual - length * image
        now = dot(residual, residual)
        return x + length * direction, residual, now, residual + now / square * direction, iteration + 1

    start = (jnp.zeros_like(rhs), rhs, size, rhs, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, body, start)[0]
