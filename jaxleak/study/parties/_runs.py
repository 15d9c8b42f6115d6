"""One case and seed of vertical training: one real run, every attack on the same observations, and all scores."""

import math
import time
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxleak import attacks, audit, metrics
from jaxleak._base import Observation, Protocol, PyTree
from jaxleak._random_streams import stream_of
from jaxleak.attacks import party_records
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._comparisons import comparisons
from jaxleak.study.parties._label_holder import label_holder_scores
from jaxleak.study.parties._own_features import TASKS, Task, own_features
from jaxleak.study.parties._problem import (
    ADVERSARY,
    THREAT,
    SplitProblem,
    predict,
    rounds_of,
    shadow_rounds,
    split_problem,
    train,
)
from jaxleak.study.parties._random_streams import ShadowStream, Stream
from jaxleak.study.parties._truth import Truth, aligned_scores, regression_scores


class Runs(NamedTuple):
    """Which parts of a case are run and scored."""

    shadow_init: tuple[party_records.ShadowInit, ...] = party_records.SHADOW_INITS
    features: bool = True  # whether features are reconstructed as well
    # Whether the task is trained for `task_epochs`, with and without the defense, and tested.
    task: bool = False
    regressions: bool = False  # whether features are regressed on cut gradients as well, without networks
    comparisons: bool = False  # whether the label attacks of Li et al. and Fu et al. run as well
    timed: bool = False  # whether the real run is repeated, once it is compiled, to measure the time of a step
    label_holder: bool = False  # whether the label holder's attack on the features runs as well


def run_case(case: SplitCase, seed: int, runs: Runs | None = None) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Run a case once and score every attack on it.

    Args:
        case: case of the run.
        seed: random seed >= 0 of the records, the division of features, both runs and the attacks.
        runs: parts of the case that run; None runs all starts of the shadow run and reconstructs features.

    Returns:
        The scores, and arrays for figures.

        The scores are `label_accuracy_<attack>` in [0, 1], its mean over classes `label_balanced_<attack>`,
        `feature_mse_<attack>`, `feature_variance`, and those of `task_scores`. The attacks are `most_frequent` (always
        the attacker's most frequent class), the starts of the shadow run (`shared`, `own_bottom`, `independent`),
        `free`, `baseline` (tuned models of the attacker's own features), `baseline_even` (the same, with classes taken
        for equally frequent; only its mean over classes is scored) and `baseline_network` (the paper's network R on the
        same features). Against a defense every start has a second score, `..._adaptive`, for a shadow run with the same
        defense. Errors are mean squared errors per feature on the scale of the encoding. Further scores are
        `label_confidence_free` in [0, 1], `chose_<field>_<task>_<start>` (0 or 1) where fields are selected by
        validation, `seconds_per_step` of a timed run, and what `runs` asks for beyond that.

        The array `right_<attack>` (rounds, batch) says which labels of every step are right. If features are
        reconstructed, four arrays hold the n samples that took part: the adversary's features `own` (n, d), the
        victims' features `victims` (n, d'), their reconstruction `estimate` (n, d') from the first start, and the
        answer `baseline` (n, d') of the tuned regression. The arrays `columns_<attack>` have a number for each column
        that the attacker does not hold: the share of its variance that the attack explains. The label holder's attack
        adds the arrays of `label_holder_scores`.

    Raises:
        ValueError: if sizes do not fit or an option is out of range, before anything is trained.
        FileNotFoundError: if the data are missing.
        ImportError: if an optional library is missing.
    """
    runs = runs or Runs()
    problem = split_problem(case, seed)
    key = jax.random.key(seed)
    start = problem.victim_protocol.init(stream_of(key, Stream.PARAMETERS))
    rounds = rounds_of(problem.victim, case.batch_size, case.victim_epochs)
    watch = partial(
        audit.watch,
        problem.victim_protocol,
        THREAT,
        problem.victim,
        start,
        key=stream_of(key, Stream.ROUNDS),
        rounds=rounds,
    )
    begin = time.perf_counter()
    _, seen = watch()
    scores: dict[str, float] = {}
    of_label_holder: dict[str, np.ndarray] = {}
    if runs.timed:
        # Steps with a real cipher take so long that the time of compiling them does not matter.
        if case.cipher != "ckks":
            begin = time.perf_counter()
            jax.block_until_ready(watch())
        scores["seconds_per_step"] = (time.perf_counter() - begin) / rounds
    if runs.label_holder:
        found, of_label_holder = label_holder_scores(case, problem, start, seed)
        scores |= found
    # From here on the attacks get the set-up without the truth. Only the scores keep the truth.
    problem, truth = problem.without_truth(), Truth(problem, np.asarray(seen.index))
    known = own_features(case.attacker_only(), seed, runs.features)
    scores |= known.scores(truth)

    free = attacks.vflrecon_free(
        problem.model,
        known.labels,
        party=ADVERSARY,
        num_samples=len(problem.victim.y),
        rounds=rounds,
        batch_size=case.batch_size,
        seed=seed,
    )
    free_answer = _answer(free, seen, problem, key)
    scores |= truth.label_scores("free", np.asarray(free_answer.y))
    arrays = of_label_holder | known.arrays(truth) | {"right_free": truth.right(np.asarray(free_answer.y))}
    scores["label_confidence_free"] = float(1 - np.mean(np.asarray(free_answer.score)[truth.took_part]))
    if runs.comparisons:
        scores |= comparisons(case, seed, problem, seen, known.labels, truth)

    found, drawn = _with_shadow_runs(case, seed, runs, problem, start.params, seen, np.asarray(free_answer.y), truth)
    scores |= found
    arrays |= drawn
    if runs.task:
        scores |= task_scores(case, seed)
    return scores, arrays


def _with_shadow_runs(
    case: SplitCase,
    seed: int,
    runs: Runs,
    problem: SplitProblem,
    start: PyTree,
    seen: Observation,
    free_labels: np.ndarray,
    truth: Truth,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Run VFLRecon from every start of the shadow run, and against a defense also with a defended shadow run."""
    key = jax.random.key(seed)
    scores: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    shadows = {"": problem.shadow_protocol}
    if case.defense != "none":
        shadows["_adaptive"] = problem.adaptive_protocol
    for number, how in enumerate(runs.shadow_init):
        shadow_key = stream_of(key, Stream.SHADOWS, number)
        for suffix, protocol in shadows.items():
            shadows_seen = [
                _shadow_run(
                    case,
                    problem,
                    protocol,
                    how,
                    start,
                    stream_of(shadow_key, ShadowStream.FURTHER_RUNS, n) if n else shadow_key,
                )
                for n in range(case.shadow_runs)
            ]
            shadow_seen = shadows_seen[0]
            answer, chosen = _vflrecon(
                case, problem, shadows_seen, seen, shadow_key, TASKS if runs.features else TASKS[:1]
            )
            for task, fields in chosen.items():
                for field in party_records.FIELDS if case.select == "validation" else ():
                    scores[f"chose_{field}_{task}_{how}{suffix}"] = float(field in fields)
            scores |= truth.label_scores(f"{how}{suffix}", np.asarray(answer.y))
            arrays[f"right_{how}{suffix}"] = truth.right(np.asarray(answer.y))
            if runs.features:
                scores[f"feature_mse_{how}{suffix}"] = truth.feature_mse(answer.x)
                estimate = truth.victims(answer.x)
                arrays.setdefault("estimate", estimate[truth.took_part])
                arrays[f"columns_{how}{suffix}"] = truth.by_column(estimate)
            if runs.features and runs.regressions and how == "shared":
                known = own_features(case.attacker_only(), seed, features=True).features
                assert known is not None
                scored, of_columns = regression_scores(problem, known, shadow_seen, seen, truth, seed)
                scores |= {f"{name}{suffix}": score for name, score in scored.items()}
                arrays[f"columns_regression{suffix}"] = of_columns
            if runs.features and runs.regressions and how == "independent":
                scored = aligned_scores(problem, shadow_seen, seen, free_labels, truth, seed)
                if suffix:  # the control without gradients is the same with and without a defended shadow run
                    scored.pop("feature_mse_free_labels", None)
                scores |= {f"{name}{suffix}": score for name, score in scored.items()}
    return scores, arrays


def task_scores(case: SplitCase, seed: int) -> dict[str, float]:
    """Measure the task's accuracy in [0, 1] after `task_epochs` epochs, on the shadow records (not trained on).

    The dict also has the mean of the accuracy over classes, and the accuracy of always answering the most frequent
    class. With a defense, it also has the undefended accuracies, and the changes that the defense makes.
    """
    task = _task(case, seed)
    scores = {
        "task_accuracy": task.accuracy,
        "task_balanced_accuracy": task.balanced,
        "task_accuracy_most_frequent": task.most_frequent,
    }
    if case.defense != "none":
        undefended = _task(case.undefended(), seed)
        scores["task_accuracy_undefended"] = undefended.accuracy
        scores["task_balanced_accuracy_undefended"] = undefended.balanced
        scores["task_accuracy_change"] = task.accuracy - undefended.accuracy
        scores["task_balanced_accuracy_change"] = task.balanced - undefended.balanced
    return scores


class _Task(NamedTuple):
    accuracy: float
    balanced: float  # mean over classes; both are NaN where the training diverged
    most_frequent: float  # accuracy of always answering the most frequent class of the training records


@lru_cache(maxsize=64)
def _task(case: SplitCase, seed: int) -> _Task:
    problem = split_problem(case, seed)
    rounds = rounds_of(problem.victim, case.batch_size, case.task_epochs)
    params = train(problem.victim_protocol, problem.victim, jax.random.key(seed), rounds)
    truth, found = problem.shadow.y, predict(problem.model, params, problem.shadow.x)
    constant = np.bincount(problem.victim.y).argmax()
    most_frequent = metrics.label_accuracy(truth, np.full(len(truth), constant))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        # A network with non-finite weights always answers the first class, which may be a frequent one.
        return _Task(math.nan, math.nan, most_frequent)
    return _Task(metrics.label_accuracy(truth, found), metrics.balanced_label_accuracy(truth, found), most_frequent)


def _answer(attack: Any, seen: Observation, problem: SplitProblem, key: jax.Array) -> Any:
    state, _ = audit.replay(attack, seen, audit.template_of(problem.victim), key=key)
    return attack.reconstruct(state, jax.tree.map(lambda leaf: leaf[-1], seen))


def _shadow_run(
    case: SplitCase,
    problem: SplitProblem,
    protocol: Protocol,
    how: party_records.ShadowInit,
    start: PyTree,
    key: jax.Array,
) -> Observation:
    # Only the simulator can give the shared start; a participant has what the other two starts need.
    initial = party_records.shadow_params(
        problem.model,
        key,
        how,
        party=ADVERSARY,
        initial=start if how == "shared" else None,
        own_bottom=start["bottom"][ADVERSARY],
    )
    return audit.watch(
        protocol,
        THREAT,
        problem.shadow,
        protocol.init(key)._replace(params=initial),
        key=stream_of(key, ShadowStream.ROUNDS),
        rounds=shadow_rounds(case, problem),
    )[1]


def _vflrecon(
    case: SplitCase,
    problem: SplitProblem,
    shadows: list[Observation],
    seen: Observation,
    key: jax.Array,
    tasks: tuple[Task, ...],
) -> tuple[Any, dict[Task, tuple[str, ...]]]:
    """The attack's answer, and the fields of the records that every task reads."""
    fields: dict[Task, tuple[str, ...]] = {}
    nets = {}
    joined = party_records.join_runs(shadows)
    for task in tasks:
        options: dict[str, Any] = {
            "party": ADVERSARY, "task": task, "epochs": case.network_epochs, "scales": case.scales
        }  # fmt: skip
        fields[task] = case.fields
        if case.select == "validation":
            fields[task] = party_records.select_fields(
                stream_of(key, ShadowStream.FIELDS), shadows, problem.shadow, problem.model, **options
            ).fields
        nets[task] = attacks.train_vflrecon(
            stream_of(key, ShadowStream.NETWORKS), joined, problem.shadow, problem.model, fields=fields[task], **options
        )
    attack = attacks.vflrecon(problem.model, party=ADVERSARY, num_samples=len(problem.victim.y), **nets)
    return _answer(attack, seen, problem, key), fields
