"""Scores of a vertical run against the truth, and regressions of features on cut gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import metrics
from jaxleak._base import Observation
from jaxleak.attacks import party_records
from jaxleak.metrics._features import varying
from jaxleak.study.parties._problem import ADVERSARY, SplitProblem


class Truth:
    """Scores over the samples that took part in the run; nothing here reaches an attack.

    Numbers that are missing in the table count in no score of features unless the case says `missing="zero"`.
    """

    def __init__(self, problem: SplitProblem, index: np.ndarray, party: int = ADVERSARY):
        """Keep the truth; `index` (rounds, batch) has the numbers of the samples that took part, `party` attacks."""
        self.problem = problem
        self.index = index
        self.party = party
        self.took_part = np.unique(self.index)
        self.y = np.asarray(problem.victim.y)[self.took_part]

    def victims(self, x: jax.Array) -> np.ndarray:
        """The features (N, sum of the victims' d_p) of all parties but the attacker, side by side."""
        return np.asarray(party_records.victims_features(self.problem.model, x, self.party))

    @functools.cached_property
    def known(self) -> np.ndarray:
        """Which of the victims' features (N, sum of their d_p) count in scores."""
        return ~self.victims(jnp.asarray(self.problem.missing))

    def label_scores(self, attack: str, labels: np.ndarray) -> dict[str, float]:
        """Share of an attack's `labels` (N,) that are the true ones, and the mean of that share over the classes."""
        found = labels[self.took_part]
        return {
            f"label_accuracy_{attack}": metrics.label_accuracy(self.y, found),
            f"label_balanced_{attack}": self.balanced(labels),
        }

    def balanced(self, labels: np.ndarray) -> float:
        """The mean over the classes of the share of an attack's `labels` (N,) that are the true ones."""
        return metrics.balanced_label_accuracy(self.y, labels[self.took_part])

    def right(self, labels: np.ndarray) -> np.ndarray:
        """Which of `labels` (N,) are the true ones: booleans (rounds, batch), by step and by place in the batch."""
        return np.asarray(labels == np.asarray(self.problem.victim.y))[self.index]

    @property
    def feature_variance(self) -> float:
        """The error of the features' means as an answer."""
        return metrics.feature_variance(self.victims(self.problem.victim.x), self.took_part, entries=self.known)

    def feature_mse(self, x: jax.Array) -> float:
        """Mean squared error, in the victims' features, of padded samples (N, P, max d_p)."""
        return self.feature_mse_of(self.victims(x))

    def feature_mse_of(self, estimate: np.ndarray) -> float:
        """Mean squared error of an estimate (N, sum of the victims' d_p) of the victims' features."""
        truth = self.victims(self.problem.victim.x)
        return metrics.feature_mse(truth, estimate, self.took_part, entries=self.known)

    def by_column(self, estimate: np.ndarray) -> np.ndarray:
        """The share of the variance of every column of the victims that an estimate (N, sum of their d_p) explains.

        A column of categories has all of its features together. It is NaN for a column without any variance.
        """
        truth, known = self.victims(self.problem.victim.x), self.known
        others = [spans for party, spans in enumerate(self.problem.spans) if party != self.party]
        shares = []
        for features in np.split(np.arange(truth.shape[1]), np.cumsum(np.concatenate(others))[:-1]):
            both, entries = (truth[:, features], estimate[:, features]), known[:, features]
            varies = varying(truth[self.took_part][:, features], known[self.took_part][:, features]).any()
            shares.append(metrics.feature_r2(*both, self.took_part, entries=entries) if varies else np.nan)
        return np.array(shares)

    def gain(self, error: float, without: float) -> float:
        """By which share of the variance an `error` is less than the one `without` what is to be judged."""
        return (without - error) / max(self.feature_variance, 1e-12)


def regression_scores(
    problem: SplitProblem,
    known: party_records.FeatureBaseline,
    shadow_seen: Observation,
    seen: Observation,
    truth: Truth,
    seed: int,
) -> tuple[dict[str, float], np.ndarray]:
    """Error of a tuned regression of the victims' features on cut gradients, in place of the paper's network.

    Args:
        problem: set-up without the truth.
        known: the regression on the attacker's own features alone.
        shadow_seen: the attacker's observations of a shadow run that starts from the real run's parameters.
        seen: the attacker's observations of the real run.
        truth: scores answers against the true features.
        seed: random seed of the regression.

    Returns:
        `feature_mse_regression_shared`, a mean squared error per feature on the scale of the encoding, and
        `feature_gain_regression_shared`, by how much less of the variance is left than by own features alone; and the
        share of every column's variance that it explains.
    """
    features = truth.victims(problem.shadow.x)
    found = party_records.fit_gradient_regression(shadow_seen, features, known, seed=seed)
    own = problem.own(problem.victim)
    answer = found.predict(seen, own)
    error, without = (truth.feature_mse_of(table) for table in (answer, known.predict(own)))
    scores = {"feature_mse_regression_shared": error, "feature_gain_regression_shared": truth.gain(error, without)}
    return scores, truth.by_column(answer)


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
    aligned = party_records.fit_aligned_features(x, gradients, shadow_y, target, classes, index=index, seed=seed)
    # A sample that two epochs visit has two rows, which the control could remember as well.
    control = party_records.fit_feature_baseline(
        np.concatenate([x, np.eye(classes)[shadow_y]], axis=1), target, groups=index, seed=seed
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
        arrays: the true features `victims` and their reconstruction `estimate`, (n, d) each, and where values are
            missing which are `known`; only samples whose drawn features are all known count.
        seed: random seed of the drawn features.
        shown: number of features that are drawn, or all if there are fewer.

    Returns:
        `correlation_original` and `correlation_reconstructed` of the third and the fourth drawn feature, and
        `correlation_error`, the mean absolute difference over all pairs. A feature whose answer is constant counts as
        uncorrelated. The dict is empty for d < 4, for fewer than two samples that count, and if no features were
        reconstructed.
    """
    if "estimate" not in arrays or (width := arrays["victims"].shape[1]) < 4:
        return {}
    chosen = np.sort(np.random.default_rng(seed).permutation(width)[:shown])
    rows = arrays.get("known", np.ones((1, width), bool))[:, chosen].all(axis=1)
    rows = np.broadcast_to(rows, len(arrays["victims"]))
    if rows.sum() < 2:
        return {}
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [np.nan_to_num(np.corrcoef(arrays[name][rows][:, chosen].T)) for name in ("victims", "estimate")]
    pairs = np.triu_indices(len(chosen), 1)
    return {
        "correlation_original": float(found[0][2, 3]),
        "correlation_reconstructed": float(found[1][2, 3]),
        "correlation_error": float(np.abs(found[0] - found[1])[pairs].mean()),
    }
