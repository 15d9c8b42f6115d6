"""The label holder's attack in a vertical run: it infers the other parties' features from what they send."""

from functools import partial

import jax
import numpy as np

from jaxleak import audit, threats
from jaxleak._base import ProtocolState
from jaxleak._random_streams import stream_of
from jaxleak.attacks import party_records
from jaxleak.study.parties._case import SplitCase
from jaxleak.study.parties._problem import SplitProblem, rounds_of
from jaxleak.study.parties._random_streams import Stream
from jaxleak.study.parties._truth import Truth


def label_holder_scores(
    case: SplitCase, problem: SplitProblem, start: ProtocolState, seed: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Errors of the label holder's regression of all other parties' features, on the real run of `run_case`.

    The label holder is the last party. It knows all initial parameters, and trains on the shadow records for as many
    steps as it sees of the real run, twice. Under a cipher it solves for the embeddings.

    Args:
        case: case of the run.
        problem: set-up; the real run's records are watched and scored, and the attack sees what `label_holder_view`
            grants of them.
        start: the real run's state before the first step.
        seed: random seed >= 0 of the runs and the regressions.

    Returns:
        Mean squared errors per feature on the scale of the encoding: `feature_mse_label_holder`, against a defense also
        `feature_mse_label_holder_adaptive`, whose shadow run has the defense, and `feature_mse_label_holder_alone` from
        labels and own features alone. `feature_variance_label_holder` is the variance of the other parties' features.
        `feature_gain_label_holder`, also with `..._adaptive`, is the share of this variance by which the error is lower
        than that from labels and own features alone. The arrays `columns_label_holder`, also with `..._adaptive`, and
        `columns_label_holder_alone` have the explained share of every column's variance (`Truth.by_column`). For
        pictures there are, of the samples that took part, `label_holder_own` (n, d), `label_holder_victims` (n, d') and
        `label_holder_estimate` (n, d'), its answer with an undefended shadow run; and `label_holder_known` (n, d') bool
        where a number of the victims is missing.
    """
    model, key = problem.model, jax.random.key(seed)
    party = model.parties - 1
    threat = threats.label_holder_view(party)
    rounds = rounds_of(problem.victim, case.batch_size, case.victim_epochs)
    _, seen = audit.watch(
        problem.victim_protocol, threat, problem.victim, start, key=stream_of(key, Stream.ROUNDS), rounds=rounds
    )
    truth = Truth(problem, np.asarray(seen.index), party)
    known, count = truth.victims(problem.shadow.x), len(problem.victim.y)
    scores = {"feature_variance_label_holder": truth.feature_variance}
    arrays: dict[str, np.ndarray] = {}
    shadows = {"": problem.shadow_protocol}
    if case.defense != "none":
        shadows["_adaptive"] = problem.adaptive_protocol
    for suffix, protocol in shadows.items():
        watch = partial(
            audit.watch,
            protocol,
            threat,
            problem.shadow,
            protocol.init(key)._replace(params=start.params),
            rounds=max(rounds, rounds_of(problem.shadow, case.batch_size, 1)),
        )
        shadow_seen, again = (watch(key=stream_of(key, Stream.LABEL_HOLDER_SHADOWS, number))[1] for number in range(2))
        found = party_records.fit_embedding_regression(shadow_seen, known, model.num_classes, again=again, seed=seed)
        answers = found.predict(seen, count), found.predict_alone(seen, count)
        error, alone = (truth.feature_mse_of(answer) for answer in answers)
        scores[f"feature_mse_label_holder{suffix}"] = error
        scores[f"feature_gain_label_holder{suffix}"] = truth.gain(error, alone)
        scores.setdefault("feature_mse_label_holder_alone", alone)
        arrays[f"columns_label_holder{suffix}"] = truth.by_column(answers[0])
        arrays.setdefault("columns_label_holder_alone", truth.by_column(answers[1]))
        arrays.setdefault("label_holder_estimate", answers[0][truth.took_part])
    return scores, arrays | _pictured(problem, truth)


def _pictured(problem: SplitProblem, truth: Truth) -> dict[str, np.ndarray]:
    """What a picture shows beside the answer: the label holder's own features, and the true ones of the others."""
    own = np.asarray(problem.victim.x)[truth.took_part, truth.party, : problem.model.widths[truth.party]]
    known = truth.known[truth.took_part]
    return {
        "label_holder_own": own,
        "label_holder_victims": truth.victims(problem.victim.x)[truth.took_part],
        **({} if known.all() else {"label_holder_known": known}),
    }
