"""A regression of the parties' features on what the label holder's top model receives."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxleak import _validate
from jaxleak._base import Observation
from jaxleak.attacks._observed import Reads, require
from jaxleak.attacks._vertical.baselines import FeatureBaseline, fit_feature_baseline, gain_of, is_gain
from jaxleak.attacks._vertical.gradient_regression import rows_for
from jaxleak.attacks._vertical.second_run import check_order, records_of_both

#: Singular values of dL/dz below this share of the largest are rounding of float32.
_RANK = 1e-5
#: Step in which solved embeddings are read, as a share of the largest.
_STEP = 1e-3


class EmbeddingRegression(NamedTuple):
    """Two regressions: one on all that the label holder receives, and one on its labels and own features alone."""

    seen: FeatureBaseline  # reads labels, own features, and what was received
    alone: FeatureBaseline  # reads labels and own features
    gain: float  # error of `alone` minus that of `seen`, on the held-out shadow records
    gain_error: float  # standard error of `gain` over these records
    num_classes: int
    mean: np.ndarray  # (d_victims,) of the shadow records' features
    reads_output: bool  # whether `seen` also reads the first layer's output, since the equations left embeddings open

    @property
    def gains(self) -> bool:
        """Whether what is received reveals features beyond labels and own features: a gain above twice its error.

        It is measured on the attacker's own records, and no truth is needed. It does not notice if a real run takes
        another path than shadow runs, has another defense, or is longer. The answer may then be worse than `alone`.
        """
        return is_gain(self.gain, self.gain_error)

    def predict(self, observations: Observation, num_samples: int) -> np.ndarray:
        """The parties' features of all samples of a real run.

        Args:
            observations: what the label holder saw of the real run, (T, B, ...). A sample is read at its first visit.
            num_samples: N, the number of samples of the real run, > the largest sample id.

        Returns:
            (N, d_victims), predicted from what was received if that `gains`, and by `alone` otherwise. Samples that no
            step visited get the shadow records' means.

        Raises:
            ValueError: if the threat withholds what was received, the labels or the sample ids, or N is too small.
        """
        if not self.gains:
            return self.predict_alone(observations, num_samples)
        index, known, received = _first_of(*_rows(observations, self.num_classes, self.reads_output))
        return self._answers(self.seen, index, np.concatenate([known, received], axis=1), num_samples)

    def predict_alone(self, observations: Observation, num_samples: int) -> np.ndarray:
        """The same by labels and own features alone, which leak nothing: what is beyond this is the leak."""
        index, known = _first_of(*_known(observations, self.num_classes))
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
    """Learn from a shadow run to predict the parties' features from what the label holder receives (ours).

    The label holder owns complete records, trains bottoms and a top on them, and regresses the parties' features on
    what arrives. This is the parties' embeddings. If a cipher hides them, it is the embeddings that `solved_embeddings`
    finds, and if those are not fully determined, also the output of its first layer. A second regression uses only the
    labels and the label holder's own features. Both are the best of the mean, ridge regressions and trees, by
    cross-validation on first visits, fitted on all visits.

    A shadow run follows one path of the parameters, and the real run follows another. A second shadow run in another
    order (`again`) reveals what was merely memorised from the first one: held-out records are judged by what arrives in
    the second.

    Shadow runs must start from the parameters of the real run, be as long as what is read of it, and have its defense,
    if there is one. In a real run the label holder has neither the parties' initial parameters nor their bottoms,
    unless all parties draw them from one seed or it distributed them: this measures what leaks where it does.

    Args:
        shadow: what the label holder saw of its shadow run by `threats.label_holder_view`, (T, B, ...).
        features: (n, d_victims) the parties' features of the shadow records, in the order of their numbers, as
            `victims_features(model, shadow.x, party)` gives those of all parties but the label holder's own; `party` is
            None if it has none.
        num_classes: C.
        again: what the label holder saw of a second shadow run of the same records from the same parameters, in another
            order. None judges within the one run.
        seed: random seed of folds and trees.

    Raises:
        ValueError: if the threat withholds what was received, the labels or the sample ids, there are too few records,
            `features` lacks a record, or `again` is the same run or one of other records.
    """
    _validate.count(num_classes=num_classes)
    given = [run for run in (shadow, again) if run is not None]
    reads_output = not all(map(_determined, given))
    runs = [_rows(run, num_classes, reads_output) for run in given]
    for run in runs:
        rows_for(run[0], features=features)
    index, known, received = _first_of(*runs[0])
    judged = received
    if again is not None:
        check_order(shadow, again)
        others, known_again, received_again = _first_of(*runs[1])
        here, there = records_of_both(index, known, others, known_again, "labels or own features")
        index, known, received, judged = index[here], known[here], received[here], received_again[there]
    target = np.asarray(features)
    everything = [np.concatenate(parts) for parts in zip(*runs, strict=True)]
    visited, first = np.unique(everything[0], return_index=True)
    rows, rows_again, all_rows = (
        np.concatenate(parts, axis=1) for parts in ((known, received), (known, judged), everything[1:])
    )
    seen = fit_feature_baseline(
        rows, target[index], again=rows_again, more=(all_rows, target[everything[0]]), seed=seed
    )  # fmt: skip
    alone = fit_feature_baseline(
        known, target[index], more=(everything[1][first], target[visited]), seed=seed
    )  # fmt: skip
    return EmbeddingRegression(seen, alone, *gain_of(seen, alone), num_classes, target.mean(axis=0), reads_output)


def solved_embeddings(observations: Observation) -> list[np.ndarray]:
    """Solve for every party's embeddings although a cipher hides them from the label holder (ours).

    The label holder's first layer z = sum over parties of alpha_p W_p + bias is trained by the gradients dL/dW_p =
    alpha_p^T delta. The label holder gets these gradients in the clear, and computes delta = dL/dz itself. If delta (B,
    d) has full rank, which requires B <= d, alpha_p = (dL/dW_p pinv(delta))^T is exact up to rounding. Otherwise it is
    the solution of smallest norm.

    Args:
        observations: what the label holder saw by `threats.label_holder_view`, (T, B, ...), of a layer
            concat(embeddings) @ kernel + bias.

    Returns:
        An array (T, B, e) for each party, in the unit of the embeddings.

    Raises:
        ValueError: if the threat withholds what was received, or the layer has no kernel of that form.
    """
    holder = require(observations, Reads("solving for embeddings", label_holder=True)).label_holder
    parties = len(holder.received)
    kernel = holder.params_gradient.get("kernel") if isinstance(holder.params_gradient, Mapping) else None
    if kernel is None or kernel.shape[-2] % parties:
        raise ValueError(
            "solving for embeddings needs a first layer with a kernel that has as many rows for every party, such as "
            "that of protocols.encrypted_first"
        )
    delta = np.asarray(holder.first_gradient, np.float64)
    # (T, P e, d) times (T, d, B): dL/dW_p of all parties, one below the other.
    solved = np.asarray(kernel, np.float64) @ np.linalg.pinv(delta, rcond=_RANK)
    return np.split(np.swapaxes(solved, -1, -2), parties, axis=-1)


def _determined(run: Observation) -> bool:
    """Whether the label holder has all embeddings, or the equations for them have full rank in every step."""
    holder = require(run, Reads("an embedding regression", label_holder=True)).label_holder
    if all(b is not None for b in holder.received):
        return True
    delta = np.asarray(holder.first_gradient, np.float64)
    return bool((np.linalg.matrix_rank(delta, rtol=_RANK) == delta.shape[-2]).all())


def _known(observations: Observation, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample ids (T B,), and what the label holder has of these samples anyway: labels, own features (T B, C + d)."""
    seen = require(observations, Reads("an embedding regression", index=True, labels=True, label_holder=True))
    labels = np.asarray(seen.labels).ravel()
    _validate.labels_in_range(labels, num_classes)
    known = [np.eye(num_classes)[labels]]
    if observations.party is not None:
        known.append(_flat(observations.party.x))
    return np.asarray(seen.index).ravel(), np.concatenate(known, axis=1)


def _rows(observations: Observation, num_classes: int, reads_output: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two arrays of `_known`, and what the label holder received of these samples (T B, r)."""
    index, known = _known(observations, num_classes)
    holder = require(observations, Reads("an embedding regression", label_holder=True)).label_holder
    received = [np.asarray(b) for b in holder.received if b is not None]
    if len(received) < len(holder.received):
        for solved in solved_embeddings(observations):
            # Else the rounding of a column that is zero would be scaled to that of the others.
            step = _STEP * np.abs(solved).max(initial=1e-12)
            received.append(np.round(solved / step) * step)
        if reads_output:
            received.append(np.asarray(holder.first))
    return index, known, np.concatenate([_flat(part) for part in received], axis=1)


def _first_of(index: np.ndarray, *rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Every sample once, in the order of the ids, with its rows of the first visit."""
    samples, first = np.unique(index, return_index=True)
    return samples, *(part[first] for part in rows)


def _flat(steps: ArrayLike) -> np.ndarray:
    """(T, B, d) as (T B, d)."""
    rows = np.asarray(steps)
    return rows.reshape(-1, rows.shape[-1])
