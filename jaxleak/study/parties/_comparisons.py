"""The label attacks of Li et al. and of Fu et al., run on the same case as VFLRecon."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import audit
from jaxleak._base import Batch, Observation
from jaxleak.attacks import party_records
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import ADVERSARY, THREAT, SplitProblem, rounds_of, split_problem, train
from jaxleak.study.parties._truth import Truth

#: Least distance of the positive share from one half at which the share decides which class is the positive one.
_DECIDES = 0.1


def comparisons(
    case: SplitCase,
    seed: int,
    problem: SplitProblem,
    seen: Observation,
    baseline: party_records.LabelBaseline,
    truth: Truth,
) -> dict[str, float]:
    """Label accuracies of the attacks of Fu et al. and, for two classes, of the attacks of Li et al. on the real run.

    The attacks of Fu et al. need undefended runs of their own, so a case with a defense has no scores of them.

    Args:
        case: case of the run.
        seed: random seed of the attacks of Fu et al. and of the runs that they need.
        problem: set-up without the truth.
        seen: the attacker's observations of the real run.
        baseline: label classifier on the attacker's own features.
        truth: scores answers against the true labels.

    Returns:
        Accuracies and balanced accuracies in [0, 1], by the names of the scores.
    """
    scores = {} if case.defense != "none" else fu_free_top(case, seed) | fu_completion(case, seed)
    if problem.model.num_classes != 2:
        return scores
    index, x, gradients = party_records.flat_observations(seen)
    share = float(np.clip(np.mean(np.asarray(problem.shadow.y)), 0.01, 0.99))
    # Li et al. know one positive sample; this attacker takes the sample that its own features mark as surest positive.
    anchor = gradients[baseline.log_proba(x)[:, 1].argmax()]
    # Every sample is scored, so that an attack must answer for each. Rows whose norms tie where the cut falls get the
    # commoner label, and a row of zeros, which has no direction, counts as not of the anchor's class.
    norm, commoner = party_records.norm_labels(gradients, share), int(share > 0.5)
    answers = {
        "norm": np.where(norm < 0, commoner, norm),
        "direction": _named(np.maximum(party_records.direction_labels(gradients, anchor), 0), share),
    }
    for name, answer in answers.items():
        scores |= truth.label_scores(f"li_{name}", _by_sample(index, answer, len(problem.victim.y)))
    return scores


def _named(labels: np.ndarray, share: float) -> np.ndarray:
    """Exchange both classes in the labels (n,) if their shares then fit the shares in the shadow records better.

    The exchange is needed if the surest sample is a negative one; the paper's attacker has a true positive sample. A
    share near one half decides nothing.
    """
    exchanged = 1 - labels
    fits = abs(exchanged.mean() - share) < abs(labels.mean() - share)
    return exchanged if fits and abs(share - 0.5) > _DECIDES else labels


def fu_free_top(case: SplitCase, seed: int) -> dict[str, float]:
    """Score the labels of Fu et al.'s direct attack on one undefended epoch with a top model without parameters."""
    problem = split_problem(replace(case.undefended(), free_top=True, cipher="none"), seed)
    key = jax.random.key(seed)
    state = problem.victim_protocol.init(key)
    rounds = rounds_of(problem.victim, case.batch_size, 1)
    _, seen = audit.watch(problem.victim_protocol, THREAT, problem.victim, state, key=key, rounds=rounds)
    problem, truth = problem.without_truth(), Truth(problem, np.asarray(seen.index))
    index, _, gradients = party_records.flat_observations(seen)
    answer = party_records.sign_labels(gradients)[0]
    return truth.label_scores("fu_free_top", _by_sample(index, answer, len(problem.victim.y)))


def fu_completion(case: SplitCase, seed: int) -> dict[str, float]:
    """Score the labels of Fu et al.'s passive attack, which completes the party's bottom model, trained undefended.

    The party fits a classifier to the outputs of its bottom model on the labelled shadow records. It has as many of
    them as every other attacker; the paper's semi-supervised use of unlabelled records is left out.
    """
    problem = split_problem(replace(case.undefended(), cipher="none"), seed)
    rounds = rounds_of(problem.victim, case.batch_size, case.task_epochs)
    bottom = train(problem.victim_protocol, problem.victim, jax.random.key(seed), rounds)["bottom"][ADVERSARY]
    # The model trains for many epochs, so every sample takes part.
    problem, truth = problem.without_truth(), Truth(problem, np.arange(len(problem.victim.y))[None])

    def outputs(batch: Batch) -> np.ndarray:
        return np.asarray(problem.model.bottom(bottom, jnp.asarray(problem.own(batch))))

    y, classes = np.asarray(problem.shadow.y), problem.model.num_classes
    head = party_records.fit_label_baseline(outputs(problem.shadow), y, classes, seed=seed)
    return truth.label_scores("fu_completion", head.predict(outputs(problem.victim)))


def _by_sample(index: np.ndarray, answer: np.ndarray, num_samples: int) -> np.ndarray:
    """Spread answers for the samples `index` to labels (N,) of all samples; the others get label 0 and no score."""
    labels = np.zeros(num_samples, np.int32)
    labels[index] = answer
    return labels
