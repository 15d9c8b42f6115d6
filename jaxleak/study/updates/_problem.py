"""One gradient inversion from end to end: data, a client, what the threat lets the attacker see, attack, and scores."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import audit, metrics, models, objectives, protocols, threats
from jaxleak._base import Batch, Observation, PyTree, Reconstruction, Share
from jaxleak._tree import where_seen as where_seen
from jaxleak.attacks import client_updates
from jaxleak.attacks._inversion.any_loss import any_loss_share, seen_by_any_loss
from jaxleak.attacks._inversion.gradient_term import to_explain
from jaxleak.attacks.adaptive._adam import undone_by
from jaxleak.audit import InversionRun
from jaxleak.checkpoint import Checkpoints
from jaxleak.metrics._images import RECOGNISED_ABOVE as RECOGNISED_ABOVE
from jaxleak.metrics._images import has_ssim
from jaxleak.metrics._scores import warn_of_clipped
from jaxleak.study.updates._attacker import resolved
from jaxleak.study.updates._building import attack_of, known_defense
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import Victim, victim
from jaxleak.study.updates._public_data import generator_for


class Outcome(NamedTuple):
    """The result of an attack for one seed, scored against the truth."""

    truth: np.ndarray  # (B, H, W, C)
    estimate: np.ndarray  # (B, H, W, C), matched one to one with `truth`
    scores: dict[str, float]
    curve: np.ndarray  # (iterations,) data distance of the first restart along the run
    second: audit.Agreement | None = None  # second best start, in the order of `truth`; None for a single start
    labels: np.ndarray | None = None  # (B,) int, true labels
    labels_found: np.ndarray | None = None  # (B,) int, labels of the matched images; -1 if the attack seeks none
    answered: np.ndarray | None = None  # (B,) bool, False where the attack knows that it has no answer

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a file keeps, so that a user can apply another metric later; in the order of `truth`.

        `truth` and `estimate` (B, H, W, channels) in [0, 1] are the images as they were scored. `curve` has shape
        (iterations,), `psnr_each` (B,) is in dB, and `ssim_each` (B,) is in [-1, 1] and exists for images with sides of
        3 pixels or more. `labels`, `labels_found` and `answered` (B,) exist if they are known. With two or more starts
        there are also `other` (B, H, W, channels), the second best answer, and `agreement` (B,), the SSIM between the
        two best answers. If the gradient is matched, `undetermined` (B,) says whether another image explains the update
        as well.
        """
        found = {"truth": self.truth, "estimate": self.estimate, "curve": self.curve}
        found["psnr_each"] = metrics.psnr(self.truth, self.estimate)
        if has_ssim(self.truth.shape[1:]):
            found["ssim_each"] = metrics.ssim(self.truth, self.estimate)
        of_each = {"labels": self.labels, "labels_found": self.labels_found, "answered": self.answered}
        found |= {name: values for name, values in of_each.items() if values is not None}
        if self.second is not None:
            found |= {"other": self.second.other, **compared(self.second)}
        return {name: np.asarray(values) for name, values in found.items()}


def observe(case: Case, seed: int, side: Victim) -> tuple[Observation, Batch]:
    """Run one round, and return the part of it that the attacker sees and the attack reads, and the private batch.

    Args:
        case: the case under attack.
        seed: random seed of the round.
        side: the client's side, from `victim`.
    """
    key = jax.random.key(seed)
    state = jax.jit(side.protocol.init)(audit.init_key(key))
    state = state._replace(round=jnp.asarray(case.attacked_round, state.round.dtype))
    _, transcript = jax.jit(side.protocol.round)(jax.random.fold_in(key, 1), state, side.private)
    of_case = resolved(case)
    threat = of_case.threat._replace(payload=of_case.leaves(side.model))
    return threats.view(threat, transcript), transcript.private


class Answer(NamedTuple):
    """The result of an attack on one observation, before it is compared with the truth."""

    found: Reconstruction
    curve: np.ndarray  # (iterations,) data distance of the first restart along the run
    seconds: float
    second: audit.Agreement | None = None  # second best start, in the answer's order; None for a single start


def attack(
    case: Case,
    seed: int,
    *,
    variables: PyTree = None,
    callbacks: tuple[Callable[[int, InversionRun, dict[str, np.ndarray]], None], ...] = (),
    checkpoints: Checkpoints | None = None,
    devices: Sequence[jax.Device] = (),
) -> Outcome:
    """Run a case with one seed, and score the attack's answer.

    Args:
        case: the case, which says what is attacked and with which attack.
        seed: random seed in [0, 2^32) of the data, the weights, the batch and the starts.
        variables: weights to attack, in place of the weights that the case names or draws.
        callbacks: see `audit.invert`.
        checkpoints: see `audit.invert`.
        devices: devices that share the restarts, or the images of a single trial.

    Raises:
        ValueError: if parts of the case do not go together, or if the data do not suffice for it.
    """
    side = victim(case, seed, variables)
    observation, truth = observe(case, seed, side)
    template = template_of_images(case, side.private)
    # The attacker draws an initial model's weights just as the client does, so that one compiled program serves all
    # seeds.
    initial = variables is None and case.weights is None and not case.attacked_round and not case.own_model
    answer = answer_to(
        case, seed, observation, side.model, template, initial=initial, callbacks=callbacks, checkpoints=checkpoints,
        devices=devices,
    )  # fmt: skip
    if answer.second is not None:
        second = asked_for_rivals(case, answer.second, observation, side.share, answer.found, seed)
        answer = answer._replace(second=second)
    return judged(case, observation, answer, side.share, truth)


def template_of_images(case: Case, private: Batch) -> Batch:
    """Make the shapes of the attacked batch, which may have fewer samples than the clients own (`private`)."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((case.images, *leaf.shape[1:]), leaf.dtype), private)


def asked_for_rivals(
    case: Case,
    second: audit.Agreement,
    observation: Observation,
    share: protocols.ClientShare,
    found: Reconstruction,
    seed: int,
) -> audit.Agreement:
    """Add to the agreement of two starts which images are undetermined: another image explains the update as well.

    Rival images are searched for only if the answer has a gradient and this gradient is matched; otherwise the
    agreement is returned unchanged.

    Args:
        case: the case under attack.
        second: the comparison of the two best starts.
        observation: the attacker's observation.
        share: function that computes what the client uploads for a batch.
        found: the attack's answer.
        seed: random seed of the attack.
    """
    explaining = _explaining(case, share, observation)
    if explaining is None or own_opinion(found)["gradient_matched"] < 1:
        return second
    x, y = np.asarray(found.x[:, 0]), np.asarray(found.y)
    undone = undone_by(known_defense(case))
    rival = audit.rival(*explaining, x, y, key=jax.random.key(seed), undone=undone)
    alike = audit.indistinct(*explaining, x, y, rival.answer_misfit, undone=undone)
    return second._replace(undetermined=rival.undetermined | alike)


def answer_to(
    case: Case,
    seed: int,
    observation: Observation,
    model: models.Classifier,
    template: Batch,
    *,
    initial: bool,
    callbacks: tuple[Callable[[int, InversionRun, dict[str, np.ndarray]], None], ...] = (),
    checkpoints: Checkpoints | None = None,
    devices: Sequence[jax.Device] = (),
) -> Answer:
    """Attack one observation of `initial` or other weights; `template` has only the shapes of the private data."""
    shape = tuple(model.image_shape)
    generator = generator_for(case, seed, shape)
    engine = attack_of(case, shape, model.num_classes, generator, None if initial else observation.params)
    begin = time.perf_counter()
    found, run, infos = audit.invert(
        engine,
        observation,
        template,
        key=jax.random.key(seed),
        iterations=resolved(case).iterations,
        restarts=case.restarts,
        microbatch=case.microbatch,
        callbacks=callbacks,
        checkpoints=checkpoints,
        devices=devices,
    )
    jax.block_until_ready(found.x)
    seconds = time.perf_counter() - begin
    second = None
    if case.restarts > 1:
        second = audit.agreement(audit.all_starts(engine, run, observation, restarts=case.restarts))
    return Answer(found, first_distances(infos), seconds, second)


def first_distances(infos: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the distances >= 0 (iterations,) of the first start; an attack of a closed form has none.

    Args:
        infos: the measurements along the run that `audit.invert` returns.
    """
    distance = np.asarray(infos.get("distance", np.zeros(0)))
    # The distance has one column per restart.
    return distance[:, 0] if distance.ndim == 2 else distance


def judged(case: Case, observation: Observation, answer: Answer, share: protocols.ClientShare, truth: Batch) -> Outcome:
    """Score the answer against the truth, which the attack has not seen."""
    found, second = answer.found, answer.second
    images, estimate = np.asarray(truth.x[:, 0]), np.asarray(found.x[:, 0])
    estimate = _within(case, estimate)
    scores, order = metrics.image_scores(images, estimate, true_labels=truth.y, labels=np.asarray(found.y))
    scores |= {"score": float(found.score[0]), **own_opinion(found), "seconds": answer.seconds}
    if second is not None:
        scores |= {field: float(np.mean(values)) for field, values in compared(second).items()}
        undetermined = None if second.undetermined is None else second.undetermined[order]
        second = audit.Agreement(second.value[order], second.other[order], undetermined)
    if (explaining := _explaining(case, share, observation)) is not None:
        simulate, seen = explaining
        compiled = jax.jit(simulate)

        def both(x: jax.Array) -> tuple[PyTree, PyTree]:
            """Return the observed update and the update that these images would have sent."""
            sent = where_seen(observation.payload, compiled(seen.params, Batch(x, found.y, jnp.arange(case.images))))
            return to_explain(undone_by(known_defense(case)), observation, sent), sent

        of_answer, of_nothing = both(found.x), both(jax.random.uniform(jax.random.key(0), found.x.shape))
        scores |= {
            "cosine_distance": float(objectives.cosine(*of_answer)),
            "cosine_distance_random": float(objectives.cosine(*of_nothing)),
            "l2_distance": float(jnp.sqrt(objectives.squared_l2(*of_answer))),
        }
    labels, answered = np.asarray(truth.y), np.asarray(found.answered)[order]
    estimate, labels_found = np.clip(estimate[order], 0, 1), np.asarray(found.y)[order]
    return Outcome(images, estimate, scores, answer.curve, second, labels, labels_found, answered)


def _within(case: Case, estimate: np.ndarray) -> np.ndarray:
    """Clip the estimate to [0, 1], with a warning, if the attack does not keep its pixels in this range."""
    if not resolved(case).free_pixels:
        return estimate
    warn_of_clipped(estimate, f", since {case.attack} does not keep its pixels in [0, 1]")
    return np.clip(estimate, 0, 1)


def _without_labels(case: Case) -> bool:
    """Whether the attack needs no labels, so that its answer has none."""
    settings = resolved(case).iterative
    return settings is not None and settings.labels == "none"


def _explaining(case: Case, share: protocols.ClientShare, observation: Observation) -> tuple[Share, Observation] | None:
    """Return the function that simulates the answer's update, and its observation; None if no gradient is defined."""
    if not _without_labels(case):
        return share, observation
    compare = resolved(case).settings.compare
    if not isinstance(compare, client_updates.AnyLoss):
        return None
    return any_loss_share(share.model, share.batch_norm, compare.ridge), seen_by_any_loss(share.model, observation)


def compared(second: audit.Agreement) -> dict[str, np.ndarray]:
    """Return for every image (N,) the `agreement` of two starts and, if rivals were sought, `undetermined`.

    Args:
        second: the comparison of the two best starts.
    """
    found = {"agreement": second.value}
    return found if second.undetermined is None else found | {"undetermined": second.undetermined}


def own_opinion(found: Reconstruction) -> dict[str, float]:
    """Return measures that need no truth: the share of images with an answer, and with a matched gradient."""
    assert found.gradient_matched is not None  # every attack on one client's update compares gradients
    return {
        "answered": float(np.mean(found.answered)),
        "gradient_matched": float(np.mean(found.gradient_matched)),
    }


def captions(outcomes: Sequence[Outcome]) -> list[str]:
    """Write one caption per image of `outcomes`: the attack's own judgement of the reconstruction, without truth."""
    texts = []
    for outcome in outcomes:
        text = "gradient matched" if outcome.scores["gradient_matched"] else "gradient not matched"
        own = [text if outcome.scores["answered"] else "not answered"] * len(outcome.truth)
        if outcome.second is not None:
            own = [f"{text}\nagreement {value:.2f}" for value in outcome.second.value]
            if outcome.second.undetermined is not None:
                open_ones = zip(own, outcome.second.undetermined, strict=True)
                own = [f"{text}, undetermined" if undetermined else text for text, undetermined in open_ones]
        texts += own
    return texts
