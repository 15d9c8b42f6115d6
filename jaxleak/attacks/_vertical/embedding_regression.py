"""A regression of the parties' features on what reached the label holder's top model."""

from typing import NamedTuple

import numpy as np

from jaxleak import _validate
from jaxleak._base import Observation
from jaxleak.attacks._observed import Reads, require
from jaxleak.attacks._vertical.baselines import FeatureBaseline, fit_feature_baseline
from jaxleak.attacks._vertical.vflrecon import NUMBERS


class EmbeddingRegression(NamedTuple):
    """A regression on what the label holder receives, beside one on its labels and own features alone."""

    seen: FeatureBaseline  # reads labels, own features, and what was received
    alone: FeatureBaseline  # reads labels and own features
    gain: float  # by how much less `seen` is off than `alone`, held out, on the shadow records
    gain_error: float  # standard error of `gain` over these records
    num_classes: int
    mean: np.ndarray  # (d_victims,) of the shadow records' features

    @property
    def gains(self) -> bool:
        """Whether what is received tells features beyond labels and own features: a gain above twice its error.

        It is measured on the attacker's own records, and no truth is needed. Without a second shadow run (`again` of
        `fit_embedding_regression`) it is often wrong.
        """
        return self.gain > 2 * self.gain_error

    def predict(self, observations: Observation, num_samples: int) -> np.ndarray:
        """The parties' features of all samples of a real run.

        Args:
            observations: what the label holder saw of the real run, (T, B, ...). A sample is read at its first visit,
                which is nearest to the parameters of the shadow run's first epoch.
            num_samples: N, the number of samples of the real run, > the largest sample id.

        Returns:
            (N, d_victims), by what was received if that `gains`, and else by `alone`. Samples that no step visited have
            the shadow records' means.

        Raises:
            ValueError: if the threat withholds what was received, the labels or the sample ids, or N is too small.
        """
        if not self.gains:
            return self.predict_alone(observations, num_samples)
        index, known, received = _first_visits(observations, self.num_classes)
        return self._answers(self.seen, index, np.concatenate([known, received], axis=1), num_samples)

    def predict_alone(self, observations: Observation, num_samples: int) -> np.ndarray:
        """The same by labels and own features alone, which leak nothing: what is beyond this is the leak."""
        index, known, _ = _first_visits(observations, self.num_classes)
        return self._answers(self.alone, index, known, num_samples)

    def _answers(self, by: FeatureBaseline, index: np.ndarray, rows: np.ndarray, num_samples: int) -> np.ndarray:
        _validate.count(num_samples=num_samples)
        if num_samples <= index.max():
            raise ValueError(f"num_samples must be above the largest sample id, {index.max()}, got {num_samples}")
        answers = np.tile(self.mean, (num_samples, 1))
        answers[index] = by.predict(rows)
        return answers


def fit_embedding_regression(
    shadow: Observation,
    features: np.ndarray,
    num_classes: int,
    *,
    again: Observation | None = None,
    seed: int = 0,
) -> EmbeddingRegression:
    """Learn from a shadow run what the label holder's top model receives of the parties' features (ours).

    The label holder owns complete records, trains bottoms and a top on them, and regresses the parties' features on
    what arrives: their embeddings, or, where a cipher hides those, what its first layer gives, which is the embeddings'
    sum by the layer's weights. It also has its own features and the labels, from which alone a second regression
    answers. Both are the best of the mean, ridge regressions and trees, by cross-validation on the shadow run.

    One shadow run is one path of the parameters, and the real run takes another. A second shadow run in another order
    (`again`) shows what was learned by heart of the first one: held-out records are judged by what arrives there.

    Shadow runs must start from the parameters of the real run and have its defense, if there is one. In a real run the
    label holder has neither the parties' initial parameters nor their bottoms, unless all parties draw them from one
    seed or it distributed them: this measures what leaks where it does.

    Args:
        shadow: what the label holder saw of its shadow run by `threats.label_holder_view`, (T, B, ...). Each record is
            read at its first visit.
        features: (n, d_victims) the parties' features of the shadow records, in the order of their numbers, as
            `victims_features(model, shadow.x, party)` gives those of all parties but the label holder's own.
        num_classes: C.
        again: what the label holder saw of a second shadow run of the same records from the same parameters, in another
            order. None judges within the one run.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if the threat withholds what was received, the labels or the sample ids, there are too few records,
            or `features` lacks a record.
    """
    _validate.count(num_classes=num_classes)
    index, known, received = _first_visits(shadow, num_classes)
    if len(features) <= index.max():
        raise ValueError(
            f"features must have a row for every sample of the run, got {len(features)} and a sample {index.max()}: "
            f"{NUMBERS}"
        )
    judged = received
    if again is not None:
        others, _, received_again = _first_visits(again, num_classes)
        index, here, there = np.intersect1d(index, others, return_indices=True)
        known, received, judged = known[here], received[here], received_again[there]
    rows, rows_again = (np.concatenate([known, part], axis=1) for part in (received, judged))
    target = np.asarray(features)[index]
    seen = fit_feature_baseline(rows, target, again=rows_again, seed=seed)
    alone = fit_feature_baseline(known, target, seed=seed)
    gained = alone.errors - seen.errors
    gain, error = float(gained.mean()), float(gained.std(ddof=1) / len(gained) ** 0.5)
    return EmbeddingRegression(seen, alone, gain, error, num_classes, np.asarray(features).mean(axis=0))


def _first_visits(observations: Observation, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples (n,), what the label holder has of them anyway (n, C + d), and what it received of them (n, r)."""
    seen = require(
        observations, Reads("an embedding regression", index=True, labels=True, label_holder=True)
    )  # fmt: skip
    labels = np.asarray(seen.labels).ravel()
    _validate.labels_in_range(labels, num_classes)
    known = [np.eye(num_classes)[labels]]
    if observations.party is not None:
        known.append(_flat(observations.party.x))
    holder = seen.label_holder
    received = [_flat(b) for b in holder.received if b is not None]
    if len(received) < len(holder.received):
        received.append(_flat(holder.first))
    samples, first = np.unique(np.asarray(seen.index).ravel(), return_index=True)
    return samples, np.concatenate(known, axis=1)[first], np.concatenate(received, axis=1)[first]


def _flat(steps: object) -> np.ndarray:
    """(T, B, d) as (T B, d)."""
    rows = np.asarray(steps)
    return rows.reshape(-1, rows.shape[-1])
