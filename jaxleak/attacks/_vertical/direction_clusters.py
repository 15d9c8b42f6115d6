"""Labels from the directions of cut gradients: clusters form the groups, and a weak baseline names them.

For softmax with cross-entropy the gradient at the top's output is p - onehot(y), so a sample's cut gradient is the
top's Jacobian times a vector that points away from its class. Samples of one class share a direction, whatever the
parameters are; only the class of each direction has to be learned elsewhere. Clusters and their number are chosen by
the attacker's own objectives. The two cosines below are constants. The first of them was set after directions of known
classes had been seen, on the tables that docs/vflrecon.md reports. The code runs in NumPy on the host.
"""

import warnings
from typing import NamedTuple

import numpy as np
import scipy  # subpackages load when they are first used

#: Clusters whose mean directions lie closer than this may be parts of one class. Measured on six tables and CIFAR-10:
#: halves of one class 0.54 to 0.9, different classes at most 0.63 (-0.99 with two classes).
MERGE_COSINE = 0.3

#: Clusters whose cosine is above this are one class, even if their votes name two classes.
SAME_COSINE = 0.95

_EM_STEPS = 60
_EM_TOLERANCE = 1e-6
_RIDGE = 1e-4
_LARGEST_DEGREE = 3  # largest degree of the polynomials along which classes drift within a window


class DirectionLabels(NamedTuple):
    """Labels of one window of observations."""

    log_probability: np.ndarray  # (n, C), the attacker's posterior; -inf for a class that is taken to be absent
    means: np.ndarray  # (C, e), mean direction per class, zero for an absent class
    objective: float  # mean log-likelihood per observation, less the penalty of a Bayesian information criterion
    separation: float  # smallest distance of two present classes' means, in standard deviations within a class


def label_directions(
    gradients: np.ndarray,
    log_prior: np.ndarray,
    *,
    previous_means: np.ndarray | None,
    restarts: int,
    seed: int,
) -> DirectionLabels:
    """Cluster directions and name the clusters.

    The posterior is calibrated for well separated classes, and up to 0.2 too sure under heavy noise. A poor `log_prior`
    can give a whole cluster a wrong name, which the posterior does not show.

    1. Spherical k-means with C clusters (k-means on unit vectors), and average linkage of 3 C micro-clusters down to C,
       which also isolates a class too rare for k-means to give it a centre.
    2. A Hungarian assignment names clusters by the sum of their members' `log_prior`. Two clusters with close means
       are merged if a single name explains their members better, or if their directions cannot be told apart. A class
       may therefore be absent.
    3. Expectation-maximisation of a mixture with one Gaussian per present class and a common covariance (which weighs
       the directions in which classes differ), with `log_prior` as every observation's own mixing weights. It starts
       from each clustering, from `log_prior` itself, and from the previous window's means. Each result goes through
       the merge test of step 2 again until it passes. The result with the best objective is the answer.

    Args:
        gradients: (n, e) in the order of arrival, finite; zero rows are answered by `log_prior` alone.
        log_prior: (n, C), log-probabilities of a baseline that has not seen the gradients.
        previous_means: (C, e), means of the previous window, for drift; None for the first window.
        restarts: starts of k-means, >= 1; the one with the least inertia counts.
        seed: random seed of k-means.
    """
    classes = log_prior.shape[1]
    norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
    live = norms > 0
    log_probability = log_prior - scipy.special.logsumexp(log_prior, axis=1, keepdims=True)
    means = np.zeros((classes, gradients.shape[1]))
    if live.sum() < 2 * classes:
        return DirectionLabels(log_probability, means, -np.inf, 0.0)
    unit, prior = gradients[live] / norms[live, None], log_probability[live]
    # Classes differ in C - 1 dimensions and the mean takes one more; drift may take as many dimensions again.
    basis = np.linalg.svd(unit, full_matrices=False)[2][: 2 * classes]
    projected = unit @ basis.T

    starts = [(np.exp(prior), np.arange(classes))]
    for clusters in _clusterings(unit, classes, restarts, seed):
        names = _name_clusters(unit, clusters, prior)
        starts.append((np.eye(classes)[names[clusters]], np.unique(names)))
    if previous_means is not None and (known := np.flatnonzero(np.linalg.norm(previous_means, axis=1) > 0)).size:
        nearest = known[np.argmax(unit @ previous_means[known].T, axis=1)]
        starts.append((np.eye(classes)[nearest], np.unique(nearest)))

    best = max((_fit_and_merge(unit, projected, prior, *start) for start in starts), key=lambda fit: fit[1])
    present = np.flatnonzero(np.isfinite(best[0]).any(axis=0))
    for degree in range(1, _LARGEST_DEGREE + 1):
        moving = _fit(projected, prior, np.exp(best[0]), present, degree)
        best = max(best, moving, key=lambda fit: fit[1])
    if len(present) > 1:
        alone = np.zeros((len(unit), 1))
        silent = max(
            _fit(projected, alone, alone + 1, np.array([0]), degree)[1] for degree in range(_LARGEST_DEGREE + 1)
        )
        if silent > best[1]:
            best = prior, silent, 0.0
    log_probability[live], objective, separation = best
    weights = np.exp(log_probability[live])
    means = weights.T @ unit / np.maximum(weights.sum(axis=0), 1e-12)[:, None]
    means[weights.sum(axis=0) < 0.5] = 0.0
    return DirectionLabels(log_probability, means, objective, separation)


def _clusterings(unit: np.ndarray, classes: int, restarts: int, seed: int) -> list[np.ndarray]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # If there are fewer distinct directions than clusters, some clusters are empty; they are dropped below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        plain = KMeans(classes, n_init=restarts, random_state=seed).fit(unit).labels_
        micro = KMeans(min(3 * classes, len(unit)), n_init=1, random_state=seed).fit(unit)
    centres = micro.cluster_centers_ / np.maximum(np.linalg.norm(micro.cluster_centers_, axis=1), 1e-12)[:, None]
    joined = scipy.cluster.hierarchy.fcluster(scipy.cluster.hierarchy.linkage(centres, "average"), classes, "maxclust")
    return [np.unique(found, return_inverse=True)[1] for found in (plain, joined[micro.labels_])]


def _name_clusters(unit: np.ndarray, clusters: np.ndarray, log_prior: np.ndarray) -> np.ndarray:
    """A class for every cluster (0 ... k-1, none empty); close ones are merged while one name explains both better."""
    count = clusters.max() + 1
    votes = np.zeros((count, log_prior.shape[1]))
    np.add.at(votes, clusters, log_prior)
    sums = np.zeros((count, unit.shape[1]))
    np.add.at(sums, clusters, unit)
    groups = [[cluster] for cluster in range(count)]

    names = scipy.optimize.linear_sum_assignment(-votes)[1]
    while True:
        directions = sums / np.maximum(np.linalg.norm(sums, axis=1), 1e-12)[:, None]
        cosines = np.triu(directions @ directions.T, 1)
        best = None
        for i, j in np.argwhere(cosines > MERGE_COSINE):
            # The other clusters keep their names here, so this gain is a lower bound; it is quick with 100 classes.
            joint = votes[i] + votes[j]
            free = np.ones(len(joint), bool)
            free[np.delete(names, [i, j])] = False
            gain = joint[free].max() - votes[i, names[i]] - votes[j, names[j]]
            if cosines[i, j] > SAME_COSINE:
                gain = np.inf
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, i, j
        if best is None:
            break
        _, i, j = best
        groups[i] = groups[i] + groups.pop(j)
        votes[i] += votes[j]
        sums[i] += sums[j]
        votes, sums = np.delete(votes, j, axis=0), np.delete(sums, j, axis=0)
        names = scipy.optimize.linear_sum_assignment(-votes)[1]
    result = np.zeros(count, np.int64)
    for group, name in zip(groups, names, strict=True):
        result[group] = name
    return result


def _fit_and_merge(
    unit: np.ndarray, points: np.ndarray, log_prior: np.ndarray, start: np.ndarray, present: np.ndarray
) -> tuple[np.ndarray, float, float]:
    while True:
        fit = _fit(points, log_prior, start, present)
        hard = fit[0].argmax(axis=1)
        clusters = np.unique(hard, return_inverse=True)[1]
        names = _name_clusters(unit, clusters, log_prior)
        kept = np.unique(names)
        if len(kept) == len(present):
            return fit
        start, present = np.eye(log_prior.shape[1])[names[clusters]], kept


def _fit(
    points: np.ndarray, log_prior: np.ndarray, start: np.ndarray, present: np.ndarray, degree: int = 0
) -> tuple[np.ndarray, float, float]:
    """EM of the mixture over `present` classes: log posterior (n, C), penalised objective, separation.

    The mean of a class is a polynomial of `degree` in the order of the rows.
    """
    n, rank = points.shape
    prior, responsibility = log_prior[:, present], start[:, present]
    time = np.polynomial.legendre.legvander(np.linspace(-1, 1, n), degree)
    scatter = points.T @ points
    ridge = _RIDGE * np.trace(scatter) / n / rank * np.eye(rank)
    small = 1e-9 * np.eye(degree + 1)
    previous, value = -np.inf, -np.inf
    for _ in range(_EM_STEPS):
        weighted = [time * member[:, None] for member in responsibility.T]
        means = [np.linalg.solve(w.T @ time + small, w.T @ points) for w in weighted]
        explained = sum(mean.T @ (w.T @ points) for mean, w in zip(means, weighted, strict=True))
        cholesky = np.linalg.cholesky((scatter - explained) / n + ridge)
        whitening = np.linalg.inv(cholesky).T
        white, centres = points @ whitening, [mean @ whitening for mean in means]
        distances = np.stack([((white - time @ centre) ** 2).sum(axis=1) for centre in centres], axis=1)
        scores = prior - 0.5 * distances
        evidence = scipy.special.logsumexp(scores, axis=1, keepdims=True)
        posterior = scores - evidence
        value = float(evidence.mean() - np.log(np.diag(cholesky)).sum())
        responsibility = np.exp(posterior)
        if value - previous < _EM_TOLERANCE:
            break
        previous = value
    objective = value - len(present) * (degree + 1) * rank * np.log(n) / (2 * n)
    full = np.full(log_prior.shape, -np.inf)
    full[:, present] = posterior
    middle = np.stack([centre[0] for centre in centres])  # the other polynomials average to zero
    gaps = np.sqrt(((middle[:, None] - middle[None]) ** 2).sum(axis=-1))[np.triu_indices(len(present), 1)]
    return full, objective, float(gaps.min()) if gaps.size else np.inf
