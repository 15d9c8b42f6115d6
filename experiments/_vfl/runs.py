"""One case and seed of the VFLRecon study: the real run once, every attack on the same observations, all scores."""

import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments._vfl.problem import (
    ADVERSARY,
    Case,
    Problem,
    accuracy,
    rounds_of,
    shadow_rounds,
    train,
    vertical_problem,
)
from experiments._vfl.truth import Truth, aligned_scores, regression_score
from jaxleak import attacks, audit, metrics, threats
from jaxleak._base import Batch, Observation, PartyRecord, Protocol, PyTree
from jaxleak.attacks import party_records

THREAT = threats.party_view(ADVERSARY)
Task = Literal["labels", "features"]
_BOTH: tuple[Task, ...] = ("labels", "features")


class Runs(NamedTuple):
    """What is scored of a case."""

    shadow_init: tuple[party_records.ShadowInit, ...] = party_records.SHADOW_INITS
    features: bool = True  # also reconstruct features
    task: bool = False  # also train for `task_epochs`, defended and undefended, and test on records nobody trained on
    regressions: bool = False  # also regress features on cut gradients, without networks
    comparisons: bool = False  # also the label attacks of Li et al. and Fu et al.


def run_case(case: Case, seed: int, runs: Runs | None = None) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Run and score.

    Returns:
        Scores: `label_accuracy_<attack>` and `feature_mse_<attack>` for the shadow's starts (`shared`, `own_bottom`,
        `independent`, against a defense also `..._adaptive`, where the shadow run has the same defense), `free`,
        `baseline` (tuned) and `baseline_network` (the paper's: R on the attacker's own features alone);
        `feature_variance`; `task_accuracy` and its change against no defense. MSE is per feature, on the scale of the
        encoding. And arrays for figures: `right_<attack>` (rounds, batch), which labels of every step are right, and
        where features are reconstructed, of the samples that took part the adversary's `own` (n, d), the `victims`'
        (n, d'), the `estimate` by the first of the starts, and that by the tuned `baseline`.
    """
    runs = runs or Runs()
    problem = vertical_problem(case, seed)
    key = jax.random.key(seed)
    start = problem.victim_protocol.init(jax.random.fold_in(key, 0))
    rounds = rounds_of(problem.victim, case.batch_size, case.victim_epochs)
    watch = partial(
        audit.watch,
        problem.victim_protocol,
        THREAT,
        problem.victim,
        start,
        key=jax.random.fold_in(key, 1),
        rounds=rounds,
    )
    begin = time.perf_counter()
    _, seen = watch()
    if case.cipher != "ckks":  # whose steps take so long that compiling them does not matter
        begin = time.perf_counter()
        jax.block_until_ready(watch())
    scores = {"seconds_per_step": (time.perf_counter() - begin) / rounds}
    # From here on the attacks get the set-up without the truth, which scores alone keep.
    problem, truth = problem.without_truth(), Truth(problem, seen)
    known = _attacker_only(case.attacker_only(), seed, runs.features)
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
    scores["label_accuracy_free"] = truth.label_accuracy(np.asarray(free_answer.y))
    arrays = known.arrays(truth) | {"right_free": truth.right(np.asarray(free_answer.y))}
    scores["label_confidence_free"] = float(1 - np.mean(np.asarray(free_answer.score)[truth.took_part]))
    if runs.comparisons:
        scores |= _comparisons(case, seed, problem, seen, known.labels, truth)

    found, drawn = _with_shadow_runs(case, seed, runs, problem, start.params, seen, np.asarray(free_answer.y), truth)
    scores |= found
    arrays |= drawn
    if runs.task:
        scores |= task_scores(case, seed)
    return scores, arrays


def _with_shadow_runs(
    case: Case,
    seed: int,
    runs: Runs,
    problem: Problem,
    start: PyTree,
    seen: Observation,
    free_labels: np.ndarray,
    truth: Truth,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """VFLRecon from every start of the shadow run, against a defense also with the shadow run defended."""
    key = jax.random.key(seed)
    scores: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    shadows = {"": problem.shadow_protocol}
    if case.defense != "none":
        shadows["_adaptive"] = problem.adaptive_protocol
    for number, how in enumerate(runs.shadow_init):
        shadow_key = jax.random.fold_in(key, 10 + number)
        for suffix, protocol in shadows.items():
            shadows_seen = [
                _shadow_run(
                    case, problem, protocol, how, start, jax.random.fold_in(shadow_key, 100 + n) if n else shadow_key
                )
                for n in range(case.shadow_runs)
            ]
            shadow_seen = shadows_seen[0]
            answer, chosen = _vflrecon(
                case, problem, shadows_seen, seen, shadow_key, _BOTH if runs.features else _BOTH[:1]
            )
            for task, fields in chosen.items():
                for field in party_records.FIELDS if case.select == "validation" else ():
                    scores[f"chose_{field}_{task}_{how}{suffix}"] = float(field in fields)
            scores[f"label_accuracy_{how}{suffix}"] = truth.label_accuracy(np.asarray(answer.y))
            arrays[f"right_{how}{suffix}"] = truth.right(np.asarray(answer.y))
            if runs.features:
                scores[f"feature_mse_{how}{suffix}"] = truth.feature_mse(answer.x)
                arrays.setdefault("estimate", truth.victims(answer.x)[truth.took_part])
            if runs.features and runs.regressions and how == "shared" and not suffix:
                known = _attacker_only(case.attacker_only(), seed, features=True).features
                regressed = regression_score(problem, known, shadow_seen, seen, truth, seed)
                scores["feature_mse_regression_shared"] = regressed
            if runs.features and runs.regressions and how == "independent" and not suffix:
                scores |= aligned_scores(problem, shadow_seen, seen, free_labels, truth, seed)
    return scores, arrays


def task_scores(case: Case, seed: int) -> dict[str, float]:
    """What training is worth: accuracy on the shadow records, which the victims never train on, after `task_epochs`."""
    scores = {"task_accuracy": _task_accuracy(case, seed)}
    if case.defense != "none":
        scores["task_accuracy_undefended"] = _task_accuracy(case.undefended(), seed)
        scores["task_accuracy_change"] = scores["task_accuracy"] - scores["task_accuracy_undefended"]
    return scores


@lru_cache(maxsize=64)
def _task_accuracy(case: Case, seed: int) -> float:
    problem = vertical_problem(case, seed)
    rounds = rounds_of(problem.victim, case.batch_size, case.task_epochs)
    params = train(problem.victim_protocol, problem.victim, jax.random.key(seed), rounds)
    return accuracy(problem.model, params, problem.shadow)


class _AttackerOnly(NamedTuple):
    """What the attacker's own features say: tuned models, and the paper's networks."""

    labels: party_records.LabelBaseline
    features: party_records.FeatureBaseline | None
    networks: dict[Task, party_records.ReconstructionNet]

    def scores(self, truth: Truth) -> dict[str, float]:
        own = truth.problem.own(truth.problem.victim)
        record = _inputs_only(jnp.asarray(own))
        scores = {
            "label_accuracy_baseline": truth.label_accuracy(self.labels.predict(own)),
            "label_accuracy_baseline_network": truth.label_accuracy(
                np.asarray(self.networks["labels"](record)).argmax(axis=1)
            ),
        }
        if self.features is not None:
            victims = truth.victims(truth.problem.victim.x)[truth.took_part]
            scores |= {
                "feature_mse_baseline": truth.feature_mse_of(self.features.predict(own)),
                "feature_mse_baseline_network": truth.feature_mse_of(np.asarray(self.networks["features"](record))),
                "feature_variance": float(victims.var(axis=0).mean()),
            }
        return scores

    def arrays(self, truth: Truth) -> dict[str, np.ndarray]:
        """What a figure shows beside the attack: own and victims' features, and what a tuned regression says."""
        if self.features is None:
            return {}
        own = truth.problem.own(truth.problem.victim)
        return {
            "own": own[truth.took_part],
            "victims": truth.victims(truth.problem.victim.x)[truth.took_part],
            "baseline": self.features.predict(own)[truth.took_part],
        }


# No defense, cipher or optimiser changes what the attacker's own features say: one fit serves a whole table.
@lru_cache(maxsize=32)
def _attacker_only(case: Case, seed: int, features: bool) -> _AttackerOnly:
    problem = vertical_problem(case, seed)
    own, y = problem.own(problem.shadow), np.asarray(problem.shadow.y)
    labels = party_records.fit_label_baseline(own, y, problem.model.num_classes, seed=seed)
    known = None
    if features:
        target = np.asarray(party_records.victims_features(problem.model, problem.shadow.x, ADVERSARY))
        known = party_records.fit_feature_baseline(own, target, seed=seed)
    size = len(own) // case.batch_size * case.batch_size
    index = jnp.arange(size, dtype=jnp.int32).reshape(-1, case.batch_size)
    records = Observation(jnp.arange(len(index)), index=index, party=_inputs_only(jnp.asarray(own)[index]))
    networks = {
        task: attacks.train_vflrecon(
            jax.random.fold_in(jax.random.key(seed), 30),
            records,
            problem.shadow,
            problem.model,
            party=ADVERSARY,
            task=task,
            fields=("inputs",),
            epochs=3 * case.network_epochs,
        )
        for task in (_BOTH if features else _BOTH[:1])
    }
    return _AttackerOnly(labels, known, networks)


def _inputs_only(x: jax.Array) -> PartyRecord:
    return PartyRecord(x, None, None, None, None, None, None)  # type: ignore[arg-type]


def _answer(attack: Any, seen: Observation, problem: Problem, key: jax.Array) -> Any:
    state, _ = audit.replay(attack, seen, audit.template_of(problem.victim), key=key)
    return attack.reconstruct(state, jax.tree.map(lambda leaf: leaf[-1], seen))


def _shadow_run(
    case: Case, problem: Problem, protocol: Protocol, how: party_records.ShadowInit, start: PyTree, key: jax.Array
) -> Observation:
    # The shared start is the simulator's gift to the attacker; the other two are what a participant has.
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
        key=jax.random.fold_in(key, 2),
        rounds=shadow_rounds(case, problem),
    )[1]


def _vflrecon(
    case: Case,
    problem: Problem,
    shadows: list[Observation],
    seen: Observation,
    key: jax.Array,
    tasks: tuple[Task, ...],
) -> tuple[Any, dict[Task, tuple[str, ...]]]:
    """The answer, and the fields of the records by task."""
    fields: dict[Task, tuple[str, ...]] = {}
    nets = {}
    joined = party_records.join_runs(shadows)
    for task in tasks:
        options: dict[str, Any] = {"party": ADVERSARY, "task": task, "epochs": case.network_epochs}
        fields[task] = case.fields
        if case.select == "validation":
            fields[task] = party_records.select_fields(
                jax.random.fold_in(key, 3), shadows, problem.shadow, problem.model, **options
            ).fields
        nets[task] = attacks.train_vflrecon(
            jax.random.fold_in(key, 1), joined, problem.shadow, problem.model, fields=fields[task], **options
        )
    attack = attacks.vflrecon(problem.model, party=ADVERSARY, num_samples=len(problem.victim.y), **nets)
    return _answer(attack, seen, problem, key), fields


def _comparisons(
    case: Case, seed: int, problem: Problem, seen: Observation, baseline: party_records.LabelBaseline, truth: Truth
) -> dict[str, float]:
    scores = {
        "label_accuracy_fu_free_top": _fu(case, seed),
        "label_accuracy_fu_completion": _fu_completion(case, seed),
    }
    if problem.model.num_classes != 2:
        return scores
    index, x, gradients = party_records.flat_observations(seen)
    share = float(np.clip(np.mean(np.asarray(problem.shadow.y)), 0.01, 0.99))
    # Li et al. know one positive sample; this attacker takes the one it is surest of from its own features.
    anchor = gradients[baseline.log_proba(x)[:, 1].argmax()]
    answers = {
        "norm": party_records.norm_labels(gradients, share),
        "direction": party_records.direction_labels(gradients, anchor),
    }
    labels = np.zeros(len(problem.victim.y), np.int32)
    for name, answer in answers.items():
        labels[index] = answer
        scores[f"label_accuracy_li_{name}"] = truth.label_accuracy(labels)
    return scores


def _fu_completion(case: Case, seed: int) -> float:
    """Fu et al.'s passive attack, which completes the party's own bottom model after training.

    The party fits a classifier of its bottom's outputs on the labelled shadow records, as many as every other attacker
    has; the paper's semi-supervised use of unlabelled records is left out.
    """
    problem = vertical_problem(replace(case.undefended(), cipher="none"), seed)
    rounds = rounds_of(problem.victim, case.batch_size, case.task_epochs)
    bottom = train(problem.victim_protocol, problem.victim, jax.random.key(seed), rounds)["bottom"][ADVERSARY]

    def outputs(batch: Batch) -> np.ndarray:
        return np.asarray(problem.model.bottom(bottom, jnp.asarray(problem.own(batch))))

    y, classes = np.asarray(problem.shadow.y), problem.model.num_classes
    head = party_records.fit_label_baseline(outputs(problem.shadow), y, classes, seed=seed)
    return metrics.label_accuracy(np.asarray(problem.victim.y), head.predict(outputs(problem.victim)))


def _fu(case: Case, seed: int) -> float:
    problem = vertical_problem(replace(case.undefended(), free_top=True, cipher="none"), seed)
    key = jax.random.key(seed)
    state = problem.victim_protocol.init(key)
    rounds = rounds_of(problem.victim, case.batch_size, 1)
    _, seen = audit.watch(problem.victim_protocol, THREAT, problem.victim, state, key=key, rounds=rounds)
    index, _, gradients = party_records.flat_observations(seen)
    return metrics.label_accuracy(np.asarray(problem.victim.y)[index], party_records.sign_labels(gradients)[0])
