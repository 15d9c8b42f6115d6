"""A regression of the other parties' features on the cut gradients that a party received."""

from typing import NamedTuple

import numpy as np

from jaxleak._base import Observation
from jaxleak.attacks._vertical.baselines import FeatureBaseline, fit_feature_baseline
from jaxleak.attacks._vertical.vflrecon import flat_observations


class GradientRegression(NamedTuple):
    """A regression on cut gradients beside one on the attacker's own features alone."""

    seen: FeatureBaseline  # reads own features, and the directions and lengths of cut gradients
    own: FeatureBaseline  # reads own features alone

    @property
    def gains(self) -> bool:
        """Whether gradients tell features, by cross-validation on the attacker's own records: no truth is needed."""
        return self.seen.mse < self.own.mse

    def predict(self, observations: Observation, own: np.ndarray) -> np.ndarray:
        """The victims' features of all samples of a real run.

        Args:
            observations: what the party saw of the real run, (T, B, ...). A sample is read at its first visit, which is
                nearest to the parameters of the shadow run's first epoch.
            own: (N, d) the party's own features of all samples of the real run.

        Returns:
            (N, d_victim). Samples that no step visited are predicted from `own` alone, and all are if nothing is
            gained.

        Raises:
            ValueError: if the threat withholds the sample ids or the party's record.
        """
        estimate = self.own.predict(own)
        if self.gains:
            index, rows = _directions(observations)
            samples, first = np.unique(index, return_index=True)
            estimate[samples] = self.seen.predict(rows[first])
        return estimate


def fit_gradient_regression(
    shadow: Observation, features: np.ndarray, own: FeatureBaseline, *, seed: int = 0
) -> GradientRegression:
    """Learn from a shadow run what cut gradients tell of the other parties' features (ours).

    It takes the place of VFLRecon's network, and often finds more. The regression reads the party's own features, and
    the direction and the logarithm of the length of the cut gradient. Its strength is chosen by cross-validation on the
    first visits in the shadow run's first epoch, so that whole records are held out.

    The shadow run must start from the parameters of the real run (`shadow_params`, "shared"). From another start the
    gradients have other directions, which cross-validation on the shadow run does not show.

    Args:
        shadow: what the party saw of its shadow run, (T, B, ...).
        features: (n, d_victim) the victims' features of the shadow records, `victims_features(model, shadow.x, party)`.
        own: `fit_feature_baseline` of the party's own features of these records.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if the threat withholds the sample ids or the party's record, or there are too few records.
    """
    index, rows = _directions(shadow)
    size = len(index) // len(shadow.round)
    # A record that was drawn again would be learned in one fold and tested in another.
    first = np.sort(np.unique(index[: len(features) // size * size], return_index=True)[1])
    return GradientRegression(fit_feature_baseline(rows[first], features[index[first]], seed=seed), own)


def _directions(seen: Observation) -> tuple[np.ndarray, np.ndarray]:
    """Sample ids (T B,), and own features beside the cut gradient's direction and log length (T B, d + e + 1)."""
    index, x, gradients = flat_observations(seen)
    norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
    return index, np.concatenate([x, gradients / norms, np.log(norms)], axis=1)
