"""Scores of a vertical run against the truth, and regressions of features on cut gradients."""

import jax
import numpy as np

from jaxleak import metrics
from jaxleak._base import Observation
from jaxleak.attacks import party_records
from jaxleak.study.parties._problem import ADVERSARY, SplitProblem


class Truth:
    """Scores over the samples that took part in the run; nothing here reaches an attack."""

    def __init__(self, problem: SplitProblem, index: np.ndarray):
        """Keep the truth; `index` (rounds, batch) has the numbers of the samples that took part."""
        self.problem = problem
        self.index = index
        self.took_part = np.unique(self.index)
        self.y = np.asarray(problem.victim.y)[self.took_part]

    def victims(self, x: jax.Array) -> np.ndarray:
        """The features (N, sum of the victims' d_p) of all parties but the adversary, side by side."""
        return np.asarray(party_records.victims_features(self.problem.model, x, ADVERSARY))

    def label_accuracy(self, labels: np.ndarray) -> float:
        """Share of `labels` (N,) that are the true ones."""
        return metrics.label_accuracy(self.y, labels[self.took_part])

    def right(self, labels: np.ndarray) -> np.ndarray:
        """Which of `labels` (N,) are the true ones: booleans (rounds, batch), by step and by place in the batch."""
        return np.asarray(labels == np.asarray(self.problem.victim.y))[self.index]

    def feature_mse(self, x: jax.Array) -> float:
        """Mean squared error, in the victims' features, of padded samples (N, P, max d_p)."""
        return self.feature_mse_of(self.victims(x))

    def feature_mse_of(self, estimate: np.ndarray) -> float:
        """Mean squared error of an estimate (N, sum of the victims' d_p) of the victims' features."""
        return metrics.feature_mse(self.victims(self.problem.victim.x), estimate, self.took_part)


def regression_score(
    problem: SplitProblem,
    baseline: party_records.FeatureBaseline | None,
    shadow_seen: Observation,
    seen: Observation,
    truth: Truth,
    seed: int,
) -> float:
    """Error of a tuned regression of the victims' features on cut gradients, in place of the paper's network.

    The regression reads the attacker's own features, and the direction and length of the cut gradient. It is fitted on
    the shadow run's first epoch, in which every record occurs once, so that cross-validation holds whole records out.
    The baseline is kept if its cross-validated error is lower. The regression is useful only if the shadow run starts
    from the real run's parameters.

    Returns:
        The mean squared error per feature, on the scale of the encoding.
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
    """Whether cut gradients of another initialisation tell features once labels are known.

    The control is a regression on the attacker's own features and the labels, without gradients.

    Args:
        problem: set-up without the truth.
        shadow_seen: the attacker's observations of its shadow run.
        seen: the attacker's observations of the real run.
        labels: (N,) labels that the initialisation-free attack recovered.
        truth: scores answers against the true features.
        seed: random seed of the regressions.

    Returns:
        `feature_mse_aligned` and `feature_mse_free_labels`, mean squared errors per feature.
    """
    # The shadow run is cut to as many steps as the real run has, because later gradients belong to a better model.
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
    """Pearson correlations between drawn features (VFLRecon, Fig. 6): one pair, and the error over all pairs.

    Args:
        arrays: the true features `victims` and their reconstruction `estimate`, (n, d) each.
        seed: random seed of the drawn features.
        shown: number of features that are drawn, or all if there are fewer.

    Returns:
        `correlation_original` and `correlation_reconstructed` of the third and the fourth drawn feature, and
        `correlation_error`, the mean absolute difference over all pairs. A feature whose answer is constant counts as
        uncorrelated. The dict is empty for d < 4, and if no features were reconstructed.
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
