"""VFLRecon: what one party of vertical training learns about the others' labels and features.

    python -m experiments.vflrecon                                  # breast_cancer and digits, embedded
    python -m experiments.vflrecon --data sensorless --seeds 3      # needs JAXLEAK_DATA_DIR
    python -m experiments.vflrecon --data adult --share 0.25 --parties 3 --optimizer sgd

The demo takes one to three minutes on two cores and should print, up to rounding (measured: mean +- spread of seeds 0
to 2, `--seeds 3`; scored on the samples that took part in one epoch):

    |                            | breast_cancer   | digits          |
    | label_accuracy_shared      | 0.998 +- 0.003  | 0.996 +- 0.001  |
    | label_accuracy_own_bottom  | 0.914 +- 0.045  | 0.758 +- 0.024  |
    | label_accuracy_independent | 0.659 +- 0.039  | 0.285 +- 0.066  |
    | label_accuracy_free        | 1.000 +- 0.000  | 0.999 +- 0.001  |
    | label_accuracy_baseline    | 0.963 +- 0.007  | 0.926 +- 0.006  |
    | feature_mse_shared         | 0.0180 +- 0.0031 | 0.0434 +- 0.0014 |
    | feature_mse_baseline       | 0.0048 +- 0.0017 | 0.0291 +- 0.0012 |
    | feature_variance           | 0.0275 +- 0.0018 | 0.0780 +- 0.0040 |

Without a shared start the paper's networks fall below what the attacker's own features say, while clustering the
directions of the cut gradients needs no start at all. Features: below the variance, but a tuned regression on the
attacker's own features is better; recovered labels help it on digits only, aligned gradients add nothing to labels.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro

from experiments._harness import Progress, RunFolder, default_out
from experiments._vfl_problem import ADVERSARY, Case, Problem, rounds_of, task_accuracy, vertical_problem
from jaxleak import _validate, attacks, audit, metrics, threats
from jaxleak._base import Observation

DEMO_DATA = ("breast_cancer", "digits")
THREAT = threats.party_view(ADVERSARY)


@dataclass(frozen=True)
class Args:
    """Options; a list of data sets (default: the demo's) is one case each, repeated for every seed."""

    preset: Literal["demo"] = "demo"
    data: tuple[str, ...] = ()
    """breast_cancer, digits, adult, avazu, cifar10, credit_default, criteo, sensorless, npz:FILE."""
    shadow_init: tuple[Literal["shared", "own_bottom", "independent"], ...] = attacks.SHADOW_INITS
    """How the shadow run starts; the paper does not say which it used."""
    share: float = 0.5
    """The adversary's share of the features."""
    batch_size: int = 16
    shadow_records: int = 1000
    """Complete records that the attacker owns, at most a third of what exists."""
    victim_records: int = 2000
    """Size of the real run."""
    parties: int = 2
    partition: Literal["random", "gaussian", "gibbs"] = "random"
    optimizer: Literal["adam", "sgd", "adadelta"] = "adam"
    scaling: Literal["minmax", "quantile"] = "minmax"
    balanced: bool = False
    """As many samples of every class."""
    fields: tuple[str, ...] = ("gradient", "outputs", "inputs")
    """What a record holds: gradient, outputs, parameters, inputs, differences."""
    features: bool = True
    """Also reconstruct features."""
    seeds: int = 1
    out: Path | None = None
    """Run folder; default runs/vflrecon/<data>."""
    fresh: bool = False
    """Forget an earlier run's log and timing."""

    def case(self, data: str) -> Case:
        """The case of one data set."""
        names = {field.name for field in dataclasses.fields(Case)} & {field.name for field in dataclasses.fields(self)}
        return Case(**{name: getattr(self, name) for name in names - {"data"}}, data=data)


def run_case(
    case: Case,
    seed: int,
    *,
    shadow_init: tuple[attacks.ShadowInit, ...] = attacks.SHADOW_INITS,
    features: bool = True,
) -> dict[str, float]:
    """One cell and seed: the real run once, every attack on the same observations, scores against the truth.

    Returns:
        `label_accuracy_*` and `feature_mse_*` per attack, the baselines', the variance of the victims' features, and
        the accuracy of the trained model. MSE is per feature, on the scale of the encoding.
    """
    problem = vertical_problem(case, seed)
    key = jax.random.key(seed)
    start = problem.victim_protocol.init(jax.random.fold_in(key, 0))
    rounds = rounds_of(problem.victim, case.batch_size, case.victim_epochs)
    state, seen = audit.watch(
        problem.victim_protocol, THREAT, problem.victim, start, key=jax.random.fold_in(key, 1), rounds=rounds
    )
    truth = _Truth(problem, seen)
    scores = {"task_accuracy": task_accuracy(problem.model, state.params, problem.victim)}

    baseline = attacks.fit_label_baseline(
        problem.own(problem.shadow), np.asarray(problem.shadow.y), problem.model.num_classes, seed=seed
    )
    scores["label_accuracy_baseline"] = truth.label_accuracy(baseline.predict(problem.own(problem.victim)))
    free = attacks.vflrecon_free(
        problem.model,
        baseline,
        party=ADVERSARY,
        num_samples=len(problem.victim.y),
        rounds=rounds,
        batch_size=case.batch_size,
    )
    free_answer = _answer(free, seen, problem, key)
    scores["label_accuracy_free"] = truth.label_accuracy(np.asarray(free_answer.y))
    scores["label_confidence_free"] = float(1 - np.mean(free_answer.score))
    if problem.model.num_classes == 2:
        scores |= _li(problem, seen, baseline, truth)
    scores["label_accuracy_fu_free_top"] = _fu(case, seed)

    for number, how in enumerate(shadow_init):
        shadow_key = jax.random.fold_in(key, 10 + number)
        # The shared start is the simulator's gift to the attacker; the other two are what a participant has.
        initial = attacks.shadow_params(
            problem.model,
            shadow_key,
            how,
            party=ADVERSARY,
            initial=start.params if how == "shared" else None,
            own_bottom=start.params["bottom"][ADVERSARY],
        )
        shadow_seen = _shadow_run(case, problem, initial, shadow_key)
        tasks: tuple[Literal["labels", "features"], ...] = ("labels", "features") if features else ("labels",)
        nets = {
            task: attacks.train_vflrecon(
                jax.random.fold_in(shadow_key, 1),
                shadow_seen,
                problem.shadow,
                problem.model,
                party=ADVERSARY,
                task=task,
                fields=case.fields,
                epochs=case.network_epochs,
            )
            for task in tasks
        }
        attack = attacks.vflrecon(problem.model, party=ADVERSARY, num_samples=len(problem.victim.y), **nets)
        answer = _answer(attack, seen, problem, key)
        scores[f"label_accuracy_{how}"] = truth.label_accuracy(np.asarray(answer.y))
        if features:
            scores[f"feature_mse_{how}"] = truth.feature_mse(answer.x)
        if features and how == "independent":
            scores |= _aligned_features(problem, shadow_seen, seen, np.asarray(free_answer.y), truth, seed)
    if features:
        known = attacks.fit_feature_baseline(problem.own(problem.shadow), truth.victims(problem.shadow.x), seed=seed)
        estimate = known.predict(problem.own(problem.victim))
        scores["feature_mse_baseline"] = truth.feature_mse_of(estimate)
        scores["feature_variance"] = float(truth.victims(problem.victim.x)[truth.took_part].var(axis=0).mean())
    return scores


class _Truth:
    """Scores over the samples that took part; nothing here reaches an attack."""

    def __init__(self, problem: Problem, seen: Observation):
        self.problem = problem
        self.took_part = np.unique(np.asarray(seen.index))
        self.y = np.asarray(problem.victim.y)[self.took_part]

    def victims(self, x: jax.Array) -> np.ndarray:
        return np.asarray(attacks.victims_features(self.problem.model, x, ADVERSARY))

    def label_accuracy(self, labels: np.ndarray) -> float:
        return metrics.label_accuracy(self.y, labels[self.took_part])

    def feature_mse(self, x: jax.Array) -> float:
        return self.feature_mse_of(self.victims(x))

    def feature_mse_of(self, estimate: np.ndarray) -> float:
        difference = estimate - self.victims(self.problem.victim.x)
        return float(np.mean(difference[self.took_part] ** 2))


def _answer(attack: Any, seen: Observation, problem: Problem, key: jax.Array) -> Any:
    state, _ = audit.replay(attack, seen, audit.template_of(problem.victim), key=key)
    return attack.reconstruct(state, jax.tree.map(lambda leaf: leaf[-1], seen))


def _shadow_run(case: Case, problem: Problem, initial: Any, key: jax.Array) -> Observation:
    protocol = problem.shadow_protocol
    return audit.watch(
        protocol,
        THREAT,
        problem.shadow,
        protocol.init(key)._replace(params=initial),
        key=jax.random.fold_in(key, 2),
        rounds=rounds_of(problem.shadow, case.batch_size, case.shadow_epochs),
    )[1]


def _li(problem: Problem, seen: Observation, baseline: attacks.LabelBaseline, truth: _Truth) -> dict[str, float]:
    index, x, gradients = attacks.flat_observations(seen)
    share = float(np.clip(np.mean(np.asarray(problem.shadow.y)), 0.01, 0.99))
    # Li et al. know one positive sample; this attacker takes the one it is surest of from its own features.
    anchor = gradients[baseline.log_proba(x)[:, 1].argmax()]
    answers = {"norm": attacks.norm_labels(gradients, share), "direction": attacks.direction_labels(gradients, anchor)}
    labels = np.zeros(len(problem.victim.y), np.int32)
    scores = {}
    for name, answer in answers.items():
        labels[index] = answer
        scores[f"label_accuracy_li_{name}"] = truth.label_accuracy(labels)
    return scores


def _fu(case: Case, seed: int) -> float:
    problem = vertical_problem(case, seed, parameter_free_top=True)
    key = jax.random.key(seed)
    state = problem.victim_protocol.init(key)
    rounds = rounds_of(problem.victim, case.batch_size, 1)
    _, seen = audit.watch(problem.victim_protocol, THREAT, problem.victim, state, key=key, rounds=rounds)
    index, _, gradients = attacks.flat_observations(seen)
    return metrics.label_accuracy(np.asarray(problem.victim.y)[index], attacks.sign_labels(gradients)[0])


def _aligned_features(
    problem: Problem, shadow_seen: Observation, seen: Observation, labels: np.ndarray, truth: _Truth, seed: int
) -> dict[str, float]:
    """With labels known, do cut gradients of another initialisation tell features? Labels alone are the control."""
    # The shadow's first epochs, as many steps as the real run has: later gradients are of a better model.
    early = jax.tree.map(lambda leaf: leaf[: len(seen.round)], shadow_seen)
    index, x, gradients = attacks.flat_observations(early)
    shadow_y, target = np.asarray(problem.shadow.y)[index], truth.victims(problem.shadow.x)[index]
    classes = problem.model.num_classes
    aligned = attacks.fit_aligned_features(x, gradients, shadow_y, target, classes, seed=seed)
    control = attacks.fit_feature_baseline(np.concatenate([x, np.eye(classes)[shadow_y]], axis=1), target, seed=seed)
    index, x, gradients = attacks.flat_observations(seen)
    found = labels[index]
    estimates = {
        "aligned": aligned.predict(np.concatenate([x, attacks.aligned_signals(gradients, found, classes)], axis=1)),
        "free_labels": control.predict(np.concatenate([x, np.eye(classes)[found]], axis=1)),
    }
    scores = {}
    for name, estimate in estimates.items():
        table = np.zeros((len(labels), target.shape[1]))
        table[index] = estimate
        scores[f"feature_mse_{name}"] = truth.feature_mse_of(table)
    return scores


def main(args: Args) -> dict[str, float]:
    """Run the study; returns the metrics: means over data sets and seeds, then each data set's mean and spread."""
    _validate.positive(seeds=args.seeds, batch_size=args.batch_size, shadow_records=args.shadow_records)
    names = args.data or DEMO_DATA
    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(args).items() if k != "fresh"}
    out = args.out or default_out("vflrecon", "-".join(names).replace("/", "_").replace(":", "_"))
    folder = RunFolder(out, "vflrecon", config, fresh=True)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with Progress() as progress:
        for number, name in enumerate(names):
            for seed in range(args.seeds):
                progress.update("cases", number * args.seeds + seed, len(names) * args.seeds, f"{name}, seed {seed}")
                with folder.phase(name):
                    scores = run_case(args.case(name), seed, shadow_init=args.shadow_init, features=args.features)
                runs[name].append(scores)
                folder.log(data=name, seed=seed, **scores)
    results = summarise(runs)
    path = folder.finish(results)
    print_table(runs)
    print(f"stored in {path}")
    return results


def summarise(runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Metrics of all runs: `name` is the mean over data sets, `name_<data>` and `name_<data>_std` are each one's."""
    results: dict[str, float] = {}
    for metric in _metric_names(runs):
        means = {}
        for name, scores in runs.items():
            if metric in scores[0]:
                values = [score[metric] for score in scores]
                means[name] = float(np.mean(values))
                results[f"{metric}_{name}"] = means[name]
                results[f"{metric}_{name}_std"] = float(np.std(values))
        results[metric] = float(np.mean(list(means.values())))
    return results


def print_table(runs: dict[str, list[dict[str, float]]]) -> None:
    """One row per metric, one column per data set, mean and spread over seeds."""
    rows = _metric_names(runs)
    width = max(map(len, rows))
    print(f"{'':{width}}  " + "  ".join(f"{name:>17}" for name in runs))
    for metric in rows:
        cells = []
        for scores in runs.values():
            values = [score[metric] for score in scores if metric in score]
            cells.append(f"{np.mean(values):.4f} +- {np.std(values):.4f}" if values else "-")
        print(f"{metric:{width}}  " + "  ".join(f"{cell:>17}" for cell in cells))


def _metric_names(runs: dict[str, list[dict[str, float]]]) -> list[str]:
    return sorted({metric for scores in runs.values() for score in scores for metric in score})


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
