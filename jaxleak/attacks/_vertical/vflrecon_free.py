"""An initialisation-free label attack on split vertical learning: no shadow model, no shadow run.

VFLRecon learns the meaning of gradients from the shadow run, which transfers to the real run only if both start from
the same parameters. The directions of cut gradients group samples by class from any start. Only naming the groups needs
shadow records. A baseline that is hardly better than chance is enough for that, because a whole group votes.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # subpackages load when they are first used

from jaxleak import _validate
from jaxleak._base import Attack, Batch, Observation, Reconstruction
from jaxleak.attacks._observed import Reads, require
from jaxleak.attacks._vertical.baselines import FeatureBaseline, LabelBaseline, fit_feature_baseline
from jaxleak.attacks._vertical.direction_clusters import DirectionLabels, label_directions
from jaxleak.attacks._vertical.vflrecon import NUMBERS, assemble_victims, check_samples, of_another, refuse_stranger
from jaxleak.models import BottomTopModel


class FreeLabels(NamedTuple):
    """Labels of all samples, and what the attacker knows about their quality.

    A label of -1 means that the sample was in no recorded step, so that there is nothing to read its label from. It is
    not a wrong answer: leave such samples out of a score, which then says how much the record leaks
    (`labels >= 0` are those that were answered).
    """

    labels: np.ndarray  # (N,) int32, -1 for a sample that was in no recorded step
    confidence: np.ndarray  # (N,) in [0, 1], of the label among the clusters' names; not the chance that it is right
    log_probability: np.ndarray  # (N, C), rows of samples that never took part are zero
    windows: list[DirectionLabels]  # per window, with its objective and its classes' separation


def default_window(num_classes: int) -> int:
    """Observations per window: long enough for every class to have members, short enough for directions to stay."""
    return max(1000, 100 * num_classes)


def free_labels(
    gradients: np.ndarray,
    index: np.ndarray,
    log_prior: np.ndarray,
    *,
    num_samples: int,
    window: int | None = None,
    restarts: int = 5,
    seed: int = 0,
) -> FreeLabels:
    """Infer labels from cut gradients, which are given in the order of their arrival.

    Directions drift while the top model learns, so they are clustered in windows (`label_directions`). The clustering
    of each window also starts from the classes of the previous one. For a sample that was seen several times, the
    posteriors are added up, but the prior is counted only once.

    `FreeLabels.confidence` is the posterior of the label under the mixture of clusters, as if every cluster had its
    right name and directions were as the mixture supposes. It does not estimate how many labels are right. It is also
    near one if two classes have exchanged their names, which can happen with few labelled records, or if gradients of
    many entries are pure noise. Only a comparison with known labels reveals this.

    If a defense changes directions randomly in every step, a window over many steps contains no clusters. An attacker
    should then try several window sizes, down to the batch size, which is a window of one step.

    Args:
        gradients: (n, e) gradients at the attacker's bottom output, one row per sample and sighting, finite.
        index: (n,) which sample, integers in [0, N): its number among the samples that are attacked.
        log_prior: (n, C) log-probabilities of the X_adv-only baseline for the same rows, finite; they need not be
            normalised, but probabilities in their place are refused.
        num_samples: N.
        window: rows per window, >= 2 C; None is `default_window`; a remainder joins the last one.
        restarts: starts of k-means in each window, >= 1.
        seed: random seed of k-means.

    Raises:
        ValueError: if shapes do not fit, values are not finite, or an argument is out of its range.
    """
    if np.ndim(log_prior) != 2:
        raise ValueError(f"log_prior must have shape (n, C), got {np.shape(log_prior)}")
    rows, classes = log_prior.shape
    if not rows:
        raise ValueError("no step was recorded, and labels are told by steps")
    if gradients.ndim != 2 or len(gradients) != rows or index.shape != (rows,):
        raise ValueError(f"rows must agree, got {gradients.shape}, {index.shape} and {log_prior.shape}")
    if not (np.isfinite(gradients).all() and np.isfinite(log_prior).all()):
        raise ValueError("gradients and log_prior must be finite")
    _validate.count(num_samples=num_samples)
    _check_clustering(classes, window, restarts, seed)
    if not np.issubdtype(index.dtype, np.integer) or index.min(initial=0) < 0 or index.max(initial=0) >= num_samples:
        raise ValueError(
            f"index must hold integers in [0, num_samples) = [0, {num_samples}), got {index.dtype} from {index.min()} "
            f"to {index.max()}: {NUMBERS}"
        )
    if (log_prior >= 0).all() and np.allclose(log_prior.sum(axis=1), 1, atol=_validate.SUM_ROUNDING):
        raise ValueError("log_prior must hold logarithms of probabilities, got probabilities: rows that sum to one")
    window = default_window(classes) if window is None else window
    borders = [*range(0, max(rows - window, 0) + 1, window), rows]
    normal = log_prior - scipy.special.logsumexp(log_prior, axis=1, keepdims=True)
    windows: list[DirectionLabels] = []
    evidence = np.zeros((num_samples, classes))
    prior = np.zeros((num_samples, classes))
    seen = np.zeros(num_samples, bool)
    for begin, end in itertools.pairwise(borders):
        result = label_directions(
            gradients[begin:end],
            log_prior[begin:end],
            previous_means=windows[-1].means if windows else None,
            restarts=restarts,
            seed=seed,
        )
        windows.append(result)
        # A class that one window holds for absent may be present in another: very unlikely, not impossible.
        # A prior that holds it for less likely than that is not raised to it, which would count as evidence.
        posterior = np.maximum(result.log_probability, np.minimum(np.log(1e-9), normal[begin:end]))
        np.add.at(evidence, index[begin:end], posterior - normal[begin:end])
        prior[index[begin:end]] = normal[begin:end]
        seen[index[begin:end]] = True
    log_probability = np.where(seen[:, None], evidence + prior, 0.0)
    log_probability[seen] -= scipy.special.logsumexp(log_probability[seen], axis=1, keepdims=True)
    labels = np.where(seen, log_probability.argmax(axis=1), -1).astype(np.int32)
    confidence = np.where(seen, np.exp(log_probability.max(axis=1)), 0.0)
    return FreeLabels(labels, confidence, log_probability, windows)


class FreeState(NamedTuple):
    """What came in, in order. Memory O(rounds B (d_party + e))."""

    gradients: jax.Array  # (rounds, B, e)
    own: jax.Array  # (rounds, B, d_party)
    ids: jax.Array  # (rounds, B) int32, samples
    rounds_seen: jax.Array  # () int32; rounds beyond the last are not kept
    guess: jax.Array  # (N,) int32, a random label: the answer for a sample that never took part
    another: jax.Array  # () bool, whether a record was of another party


def vflrecon_free(
    model: BottomTopModel,
    baseline: LabelBaseline,
    *,
    party: int,
    num_samples: int,
    rounds: int,
    batch_size: int,
    window: int | None = None,
    restarts: int = 5,
    seed: int = 0,
) -> Attack:
    """The label attack as an `Attack`: rounds are stored, `reconstruct` clusters them on the host (`free_labels`).

    Args:
        model: the model of the real run; only its shapes are used.
        baseline: from `fit_label_baseline` on the attacker's shadow records.
        party: the attacker.
        num_samples: N.
        rounds: how many rounds to watch.
        batch_size: B.
        window: see `free_labels`.
        restarts: see `free_labels`.
        seed: see `free_labels`.

    Returns:
        An `Attack`; its score is one minus `FreeLabels.confidence`, 1 for a sample that never took part. Victims'
        features are answered with zeros.

    Raises:
        ValueError: on sizes, a party, a window, restarts or a seed out of range; in `init`, if N is not the template's;
            when an observation is first seen, if its batch has another size; and in `reconstruct`, if the records were
            another party's.
    """
    _validate.count(num_samples=num_samples, rounds=rounds, batch_size=batch_size)
    _validate.index_below(model.parties, party=party)
    _check_clustering(model.num_classes, window, restarts, seed)
    width = model.widths[party]
    reads = Reads("vflrecon_free", index=True, party=True)

    def init(key: jax.Array, template: Batch) -> FreeState:
        check_samples(template, num_samples)
        return FreeState(
            jnp.zeros((rounds, batch_size, model.embedding)),
            jnp.zeros((rounds, batch_size, width)),
            jnp.zeros((rounds, batch_size), jnp.int32),
            jnp.zeros((), jnp.int32),
            jax.random.randint(key, (num_samples,), 0, model.num_classes),
            jnp.zeros((), bool),
        )

    def step(key: jax.Array, state: FreeState, observation: Observation) -> tuple[FreeState, dict[str, jax.Array]]:
        del key
        granted = require(observation, reads)
        index, seen = granted.index, granted.party
        _validate.batch_as_planned(index, batch_size)
        t = state.rounds_seen
        state = FreeState(
            state.gradients.at[t].set(seen.output_gradient, mode="drop"),
            state.own.at[t].set(seen.x, mode="drop"),
            state.ids.at[t].set(index, mode="drop"),
            t + 1,
            state.guess,
            state.another | of_another(seen, party),
        )
        return state, {"gradient_norm": jnp.linalg.norm(seen.output_gradient)}

    def reconstruct(state: FreeState, observation: Observation) -> Reconstruction:
        del observation
        refuse_stranger(reads.who, state.another, party)
        kept = min(int(state.rounds_seen), rounds)
        gradients = np.asarray(state.gradients)[:kept].reshape(-1, model.embedding)
        own, index = np.asarray(state.own)[:kept].reshape(-1, width), np.asarray(state.ids)[:kept].ravel()
        found = free_labels(
            gradients,
            index,
            baseline.log_proba(own),
            num_samples=num_samples,
            window=window,
            restarts=restarts,
            seed=seed,
        )
        table = jnp.zeros((num_samples, width)).at[index].set(own)
        x = assemble_victims(model, table, jnp.zeros((num_samples, sum(model.widths) - width)), party)
        y = jnp.where(found.labels < 0, state.guess, found.labels)
        return Reconstruction(x, y, jnp.asarray(1 - found.confidence, jnp.float32), jnp.asarray(found.labels >= 0))

    return Attack(init, step, reconstruct)


def _check_clustering(classes: int, window: int | None, restarts: int, seed: int) -> None:
    """Raise `ValueError` on a window, restarts or a seed of `free_labels` out of range."""
    _validate.count(restarts=restarts)
    _validate.seeds(seed=seed)
    if window is not None:
        _validate.count_in_range(2 * classes, 10**9, window=window)


def aligned_signals(gradients: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The information in cut gradients beyond the label, in coordinates that are independent of the initialisation.

    A direction is expressed by its inner products with the mean directions of the classes, standardised within each
    class of the run. A length is expressed by its rank among all rows of its class. Two runs from different parameters
    agree in these coordinates as far as their networks learned the same.

    Args:
        gradients: (n, e) of one run.
        labels: (n,) in [0, C): true ones of a shadow run, recovered ones of the real run.
        num_classes: C.

    Returns:
        (n, 2 C + 1) without a unit: one-hot labels, C standardised coordinates, rank of the length in (-0.5, 0.5).

    Raises:
        ValueError: unless labels are (n,) integers in [0, C): rows that `FreeLabels` marks by -1 are left out first.
    """
    if np.shape(labels) != (len(gradients),):
        raise ValueError(f"labels must have shape ({len(gradients)},), one for each gradient, got {np.shape(labels)}")
    _validate.labels_in_range(labels, num_classes)
    norms = np.linalg.norm(gradients, axis=1)
    unit = gradients / np.where(norms > 0, norms, 1.0)[:, None]
    onehot = np.eye(num_classes)[labels]
    means = onehot.T @ unit
    means /= np.maximum(np.linalg.norm(means, axis=1), 1e-12)[:, None]
    coordinates, rank = unit @ means.T, np.zeros((len(labels), 1))
    for c in np.unique(labels):
        own = labels == c
        block = coordinates[own]
        coordinates[own] = (block - block.mean(axis=0)) / np.maximum(block.std(axis=0), 1e-9)
        rank[own, 0] = (scipy.stats.rankdata(norms[own]) - 0.5) / own.sum() - 0.5
    return np.concatenate([onehot, coordinates, rank], axis=1)


def fit_aligned_features(
    x: np.ndarray,
    gradients: np.ndarray,
    labels: np.ndarray,
    victims: np.ndarray,
    num_classes: int,
    *,
    index: np.ndarray,
    seed: int = 0,
) -> FeatureBaseline:
    """Regress the victims' features on own features and `aligned_signals`, on an independent shadow run.

    The regression is chosen by cross-validation that holds out whole samples with all their sightings: own features and
    what is to be learned are alike in all of them, so that a sample would be remembered and not predicted.

    Args:
        x: (n, d) own features in any unit, one row per sample and sighting.
        gradients: (n, e) the shadow run's cut gradients for the same rows.
        labels: (n,) the shadow records' labels, integers in [0, C).
        victims: (n, d_victim) what to learn.
        num_classes: C.
        index: (n,) which sample every row is of, integers, >= 3 different ones; `flat_observations` gives them.
        seed: random seed of the regression.

    Returns:
        A predictor of rows `[x, aligned_signals(...)]`.

    Raises:
        ValueError: if shapes do not fit, values are not finite, labels are out of their range, or there are too few
            samples.
    """
    signals = aligned_signals(gradients, labels, num_classes)
    if np.shape(index) != (len(gradients),):
        raise ValueError(f"index must have shape ({len(gradients)},), one for each gradient, got {np.shape(index)}")
    return fit_feature_baseline(np.concatenate([x, signals], axis=1), victims, groups=index, seed=seed)
