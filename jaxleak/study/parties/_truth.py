"""Scores of a vertical run against the truth, and what regressions make of cut gradients."""

import jax
import numpy as np

from jaxleak import metrics
from jaxleak._base import Observation
from jaxleak.attacks import party_records
from jaxleak.study.parties._problem import ADVERSARY, SplitProblem


class Truth:
    """Scores over the samples that took part; nothing here reaches an attack."""

    def __init__(self, problem: SplitProblem, index: np.ndarray):
        """Keep what is scored against; `index` (rounds, batch) has the samples that took part."""
        self.problem = problem
        self.index = index
        self.took_part = np.unique(self.index)
        self.y = np.asarray(problem.victim.y)[self.took_part]

    def victims(self, x: jax.Array) -> np.ndarray:
        """All other parties' features side by side."""
        return np.asarray(party_records.victims_features(self.problem.model, x, ADVERSARY))

    def label_accuracy(self, labels: np.ndarray) -> float:
        """Share of `labels` (N,) that are the true ones."""
        return metrics.label_accuracy(self.y, labels[self.took_part])

    def right(self, labels: np.ndarray) -> np.ndarray:
        """Which of `labels` (N,) are the true ones, by step and place in its batch (rounds, batch)."""
        return np.asarray(labels == np.asarray(self.problem.victim.y))[self.index]

    def feature_mse(self, x: jax.Array) -> float:
        """Mean squared error of padded samples (N, P, max d_p) in the features that the victims hold."""
        return self.feature_mse_of(self.victims(x))

    def feature_mse_of(self, estimate: np.ndarray) -> float:
        """Mean squared error of an estimate (N, sum of the victims' d_p) of the victims' features."""
        difference = estimate - self.victims(self.problem.victim.x)
        return float(np.mean(difference[self.took_part] ** 2))


def regression_score(
    problem: SplitProblem,
    baseline: party_records.FeatureBaseline | None,
    shadow_seen: Observation,
    seen: Observation,
    truth: Truth,
    seed: int,
) -> float:
    """What cut gradients add to a tuned regression of the victims' features, instead of the paper's network.

    The regression sees own features, direction and length of the cut gradient. It is fitted on the shadow run's first
    epoch, where every record stands once, so that cross-validation holds whole records out; the baseline stays where it
    has the better cross-validated error. Only of use if the shadow run starts where the real one did.

    Returns:
        The mean squared error.
    """
    assert baseline is not None
    epoch = len(problem.shadow.y) // seen.index.shape[1]  # type: ignore[union-attr]
    index, rows = _directions(jax.tree.map(lambda leaf: leaf[:epoch], shadow_seen))
    fitted = party_records.fit_feature_baseline(rows, truth.victims(problem.shadow.x)[index], seed=seed)
    index, rows = _directions(seen)
    estimate = baseline.predict(problem.own(problem.victim))
    if fitted.mse < baseline.mse:
        estimate[index] = fitted.predict(rows)
    return truth.feature_mse_of(estimate)


def _directions(seen: Observation) -> tuple[np.ndarray, np.ndarray]:
    index, x, gradients = party_records.flat_observations(seen)
    norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
    return index, np.concatenate([x, gradients / norms, np.log(norms)], axis=1)


def aligned_scores(
    problem: SplitProblem, shadow_seen: Observation, seen: Observation, labels: np.ndarray, truth: Truth, seed: int
) -> dict[str, float]:
    """With labels known, do cut gradients of another initialisation tell features? Labels alone are the control.

    Args:
        problem: the set-up.
        shadow_seen: the attacker's observations of its shadow run.
        seen: of the real run.
        labels: (N,) as the initialisation-free attack recovered them.
        truth: scores.
        seed: of the regressions.

    Returns:
        `feature_mse_aligned` and `feature_mse_free_labels`.
    """
    # The shadow's first epochs, as many steps as the real run has: later gradients are of a better model.
    early = jax.tree.map(lambda leaf: leaf[: len(seen.round)], shadow_seen)
    index, x, gradients = party_records.flat_observations(early)
    shadow_y, target = np.asarray(problem.shadow.y)[index], truth.victims(problem.shadow.x)[index]
    classes = problem.model.num_classes
    aligned = party_records.fit_aligned_features(x, gradients, shadow_y, target, classes, seed=seed)
    control = party_records.fit_feature_baseline(
        np.concatenate([x, np.eye(classes)[shadow_y]], axis=1), target, seed=seed
    )
    index, x, gradients = party_records.flat_observations(seen)
    found = labels[index]
    estimates = {
        "aligned": aligned.predict(
            np.concatenate([x, party_records.aligned_signals(gradients, found, classes)], axis=1)
        ),
        "free_labels": control.predict(np.concatenate([x, np.eye(classes)[found]], axis=1)),
    }
    scores = {}
    for name, estimate in estimates.items():
        table = np.zeros((len(labels), target.shape[1]))
        table[index] = estimate
        scores[f"feature_mse_{name}"] = truth.feature_mse_of(table)
    return scores


def correlations(arrays: dict[str, np.ndarray], seed: int, shown: int = 10) -> dict[str, float]:
    """Pearson correlations of ten drawn features (VFLRecon, figure 6): the third with the fourth, and all pairs' error.

    Args:
        arrays: `victims` and `estimate`, (n, d) with d >= 4.
        seed: draws the features.
        shown: how many at most.

    Returns:
        `correlation_original` and `correlation_reconstructed` of the pair, and `correlation_error`, the mean absolute
        difference over all pairs; a feature that was answered by a constant counts as uncorrelated. Empty for d < 4,
        and where no features were reconstructed.
    """
    if "estimate" not in arrays or (width := arrays["victims"].shape[1]) < 4:
        return {}
    chosen = np.sort(np.random.default_rng(seed).permutation(width)[:shown])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [np.nan_to_num(np.corrcoef(arrays[name][:, chosen].T)) for name in ("victims", "estimate")]
    pairs = np.triu_indices(len(chosen), 1)
    return {
        "correlation_original": float(found[0][2, 3]),
        "correlation_reconstructed": float(found[1][2, 3]),
        "correlation_error": float(np.abs(found[0] - found[1])[pairs].mean()),
    }
