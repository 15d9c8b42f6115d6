"""Baselines that predict from the attacker's own features alone, without any gradient."""

from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import attacks
from jaxleak._base import Observation, PartyRecord
from jaxleak._random_streams import stream_of
from jaxleak.attacks import party_records
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import ADVERSARY, records_of, rounds_of, shadow_rounds, split_problem
from jaxleak.study.parties._random_streams import Stream
from jaxleak.study.parties._truth import Truth

Task = Literal["labels", "features"]
TASKS: tuple[Task, ...] = ("labels", "features")


class OwnFeatures(NamedTuple):
    """Predictors from the attacker's own features alone: tuned models, and the paper's networks."""

    labels: party_records.LabelBaseline
    features: party_records.FeatureBaseline | None
    networks: dict[Task, party_records.ReconstructionNet]

    def scores(self, truth: Truth) -> dict[str, float]:
        """Label accuracies and, if features are predicted, mean squared errors beside the features' variance."""
        own = truth.problem.own(truth.problem.victim)
        record = _inputs_only(jnp.asarray(own))
        scores = {
            **truth.label_scores("most_frequent", np.full(len(own), np.bincount(truth.problem.shadow.y).argmax())),
            **truth.label_scores("baseline", self.labels.predict(own)),
            "label_balanced_baseline_even": truth.balanced(self.labels.predict(own, balanced=True)),
            **truth.label_scores("baseline_network", np.asarray(self.networks["labels"](record)).argmax(axis=1)),
        }
        if self.features is not None:
            scores |= {
                "feature_mse_baseline": truth.feature_mse_of(self.features.predict(own)),
                "feature_mse_baseline_network": truth.feature_mse_of(np.asarray(self.networks["features"](record))),
                "feature_variance": truth.feature_variance,
            }
        return scores

    def arrays(self, truth: Truth) -> dict[str, np.ndarray]:
        """Return arrays for figures: own features, victims' features, and the answer of the tuned regression."""
        if self.features is None:
            return {}
        own, known = truth.problem.own(truth.problem.victim), truth.known[truth.took_part]
        answer = self.features.predict(own)
        return {
            **({} if known.all() else {"known": known}),
            "own": own[truth.took_part],
            "victims": truth.victims(truth.problem.victim.x)[truth.took_part],
            "baseline": answer[truth.took_part],
            "columns_baseline": truth.by_column(answer),
        }


def own_features(case: SplitCase, seed: int, features: bool) -> OwnFeatures:
    """Fit the predictors on the shadow records of a case that `SplitCase.attacker_only` gave.

    The networks pass over the shadow records as often as the attack's own network does in runs of the default batch
    size, with the same scales. They are trained in batches of the default size, whatever the run's batch size is, so
    that runs of several sizes are compared with one baseline. Only if a run has fewer records than a default batch are
    they trained in batches of the run's size.
    """
    enough = min(records_of(case)) >= SplitCase.batch_size
    return _fitted(replace(case, batch_size=SplitCase.batch_size) if enough else case, seed, features)


# These predictors do not depend on the defense, cipher or optimiser, so one fit serves a whole table.
@lru_cache(maxsize=32)
def _fitted(case: SplitCase, seed: int, features: bool) -> OwnFeatures:
    problem = split_problem(case, seed)
    own, y = problem.own(problem.shadow), np.asarray(problem.shadow.y)
    labels = party_records.fit_label_baseline(own, y, problem.model.num_classes, seed=seed)
    known = None
    if features:
        target = np.asarray(party_records.victims_features(problem.model, problem.shadow.x, ADVERSARY))
        known = party_records.fit_feature_baseline(own, target, seed=seed)
    size = len(own) // case.batch_size * case.batch_size
    index = jnp.arange(size, dtype=jnp.int32).reshape(-1, case.batch_size)
    records = Observation(jnp.arange(len(index)), index=index, party=_inputs_only(jnp.asarray(own)[index]))
    passes = case.shadow_runs * shadow_rounds(case, problem) // rounds_of(problem.shadow, case.batch_size, 1)
    networks = {
        task: attacks.train_vflrecon(
            stream_of(jax.random.key(seed), Stream.FEATURE_NETWORKS),
            records,
            problem.shadow,
            problem.model,
            party=ADVERSARY,
            task=task,
            fields=("inputs",),
            epochs=passes * case.network_epochs,
            scales=case.scales,
        )
        for task in (TASKS if features else TASKS[:1])
    }
    return OwnFeatures(labels, known, networks)


def _inputs_only(x: jax.Array) -> PartyRecord:
    return PartyRecord(x, None, None, None, None, None, None)  # type: ignore[arg-type]
