"""From somebody's update to a verdict."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate, capture
from jaxleak._base import Observation, PyTree
from jaxleak.audit._checks import Finding, check_update, failed
from jaxleak.audit._checks.head import head_of, proven_labels
from jaxleak.audit._verdict.search import Case, Show
from jaxleak.audit._verdict.stages import run_stages
from jaxleak.audit._verdict.store import SpentError, Store
from jaxleak.audit._verdict.truth import check_truth, scores
from jaxleak.audit._verdict.verdict import Answer, Verdict, best_of, called, decide, unexplained
from jaxleak.checkpoint import fingerprint
from jaxleak.defenses import CLIENT_DEFENSES, Defense, client_defense
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

#: What a client states whose defense no attacker here knows.
OTHER_DEFENSE = "other"


def update(
    model: Classifier,
    variables: PyTree,
    update: Any,
    *,
    minutes: float = 10.0,
    truth: tuple[Any, Any] | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    names: Sequence[str] | None = None,
    show: Show | None = None,
    **facts: Any,
) -> Verdict:
    """Attack one update with what applies, in the order of cost, and say whether it leaks.

    First the update is checked against what the client is said to have computed (`check_update`). Then follow closed
    forms, a search with FedLeak's objective, and row spaces; where the client states a defense, the search is that of
    an attacker who knows it (`jaxleak.attacks.adaptive`). An audit with `out` goes on where an earlier one of the same
    inputs ended.

    Args:
        model: the network.
        variables: the weights at which the client began.
        update: a `capture.Update`, the path of a file that `capture.load` reads, or a tree of arrays.
        minutes: budget > 0 of all sittings; the chunk that is running when it is spent is finished.
        truth: `(images, labels)` of the client, for scores alone: images (B, H, W, channels) or (B, channels, H, W) in
            [0, 1], labels (B,) or None. No attack sees them.
        out: folder for what was found.
        seed: seed of the searches, an integer in [0, 2^32).
        fresh: start over, whatever an earlier audit left in `out`.
        names: names for the entries of a list, as in `capture.fit`.
        show: called as `show(attack, done, total, note)` after every chunk.
        facts: what is known of the client, the fields of `capture.Facts`; they go before those of the file. The batch
            size must be known. Unknown ones are taken as a mean of cross-entropies, one step, batch statistics. The
            defense is a key of `jaxleak.defenses.CLIENT_DEFENSES` with its strength, "none", or "other" for one that
            no attacker knows.

    Returns:
        A `Verdict`.

    Raises:
        ValueError: on facts out of range or unknown, a defense that such a client cannot have, a truth of another
            shape, or a folder that is damaged or of another audit.
        FolderInUseError: if another process writes to the folder.
        FileNotFoundError: if the update is a path and there is no such file.
    """
    _validate.positive(minutes=minutes)
    _validate.seeds(seed=seed)
    sent, known = _sent(update, facts)
    if known.batch_size is None:
        raise ValueError("batch_size must be given: the update does not say how many samples are behind it")
    if known.loss not in (None, "cross_entropy"):
        raise ValueError(f"loss must be cross_entropy, got {known.loss!r}")
    share = ClientShare(
        model, local_steps=known.local_steps or 1, learning_rate=known.learning_rate or 1e-4,
        batch_norm=known.batch_norm or "train",  # type: ignore[arg-type]
    )  # fmt: skip
    samples = known.batch_size * share.local_steps
    defended = known.defense not in (None, "none")
    defense = _defense(known, share) if defended else None
    checked = check_truth(truth, samples, model.image_shape, model.num_classes)
    threat = _threat(known, samples)
    try:
        payload = capture.gradient_of(sent, variables["params"], names=names)
    except ValueError as error:
        cause = "the update is of another model, lacks a layer, or its learning rate is not known"
        return _inconsistent(
            [Finding("names and shapes", "failed", f"{error}.", cause, "--model, --update")], model, threat
        )
    if known.reduction == "sum":
        payload = jax.tree.map(lambda leaf: leaf / known.batch_size, payload)
    findings = check_update(share, variables, payload, batch_size=known.batch_size, defended=defended)
    if failed(findings):
        return _inconsistent(findings, model, threat)
    store = Store(
        None if out is None else Path(out), _identity(share, variables, payload, known, seed), minutes, fresh=fresh
    )
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    case = Case(share, seen, samples, store, jax.random.key(seed), show or (lambda *_: None), defended, defense)
    answers, said = _attacked(case)
    labels = np.zeros(model.num_classes, int)
    head = head_of(model, payload, variables)
    if head.bias_gradient is not None and not defended:
        labels = proven_labels(head.bias_gradient, samples)
    best = best_of(answers)
    tried = [_told(answer) for answer in answers]
    findings = findings + (unexplained(best, findings) if best is None or not best.shown.any() else [])
    outcome, reasons = decide(findings, labels, best, tried, said)
    numbers: dict[str, Any] = {"verdict": outcome, "label_count": int(labels.sum())}
    ordered = None
    if best is not None:
        numbers["gradient_misfit"] = best.misfit
        if best.agreement is not None:
            numbers["agreement"] = float(np.mean(best.agreement))
        if checked is not None:
            scored, ordered = scores(checked, best)
            numbers |= scored
    return Verdict(outcome, reasons, tuple(findings), tuple(answers), best, labels, threat, numbers, ordered)


def _sent(update: Any, facts: dict[str, Any]) -> tuple[capture.Update, capture.Facts]:
    if isinstance(update, str | Path):
        update = capture.load(update)
    if not isinstance(update, capture.Update):
        arrays = capture.named_arrays(update)
        update = capture.Update(arrays, capture.Facts())
    unknown = sorted(facts.keys() - {field.name for field in dataclasses.fields(capture.Facts)})
    if unknown:
        raise ValueError(f"{unknown[0]} is not a fact about a client; see capture.Facts")
    known = dataclasses.replace(update.facts, **{name: fact for name, fact in facts.items() if fact is not None})
    if known.strength is not None and known.defense in (None, "none"):
        raise ValueError(f"strength must be given with the defense that it is of, got {known.strength:g} alone")
    return update._replace(facts=known), known


def _defense(known: capture.Facts, share: ClientShare) -> Defense | None:
    """The defense that the client states, or None where it says only that it has one."""
    if known.defense == OTHER_DEFENSE:
        return None
    kinds = ", ".join(CLIENT_DEFENSES)
    if known.defense not in CLIENT_DEFENSES:
        raise ValueError(
            f"defense must be one that an attacker can know ({kinds}), none, or {OTHER_DEFENSE} for any other; "
            f"got {known.defense!r}"
        )
    if known.strength is None:
        raise ValueError(f"strength of {known.defense} must be given: its {CLIENT_DEFENSES[known.defense].unit}")
    mixes = share.model.has_batch_norm and share.batch_norm == "train"
    return client_defense(known.defense, known.strength, local_steps=share.local_steps, mixes_examples=mixes)


def _attacked(case: Case) -> tuple[list[Answer], list[str]]:
    answers: list[Answer] = []
    said: list[str] = []
    try:
        for found in run_stages(case):
            if not isinstance(found, Answer):
                said.append(found)
                continue
            answers.append(found)
            if case.store.left <= 0:
                raise SpentError
    except SpentError:
        said.append("The time was spent; a longer --minutes goes on from here.")
    case.store.note()
    return answers, said


def _inconsistent(findings: list[Finding], model: Classifier, threat: str) -> Verdict:
    labels = np.zeros(model.num_classes, int)
    outcome, reasons = decide(findings, labels, None, [], [])
    return Verdict(outcome, reasons, tuple(findings), (), None, labels, threat, {"verdict": outcome, "label_count": 0})


def _told(answer: Answer) -> str:
    agreement = (
        "" if answer.agreement is None else f", independent starts agree to an SSIM of {answer.agreement.mean():.2f}"
    )
    ended = "" if answer.finished else f", ended by the budget after {answer.iterations} iterations"
    return (
        f"Tried {called(answer.attack)} ({answer.seconds:.0f} s{ended}): the gradient's cosine "
        f"distance is {answer.cosine_distance:.2g}{agreement}."
    )


def _threat(known: capture.Facts, samples: int) -> str:
    defended = "" if known.defense in (None, "none") else f", the defense ({known.defense}) and its strength"
    return (
        f"The attacker knows the network and its weights, one update of {samples} "
        f"sample{'s' if samples > 1 else ''}, and how the client computed it{defended}; it knows no image and no label."
    )


def _identity(
    share: ClientShare, variables: PyTree, payload: PyTree, known: capture.Facts, seed: int
) -> dict[str, Any]:
    """What an audit is of; another network may have the same weights, and shows in what it computes of an image."""
    ramp = jnp.linspace(0, 1, int(np.prod(share.model.image_shape))).reshape(1, *share.model.image_shape)
    logits = jax.jit(lambda v: share.model.apply(v, ramp, mode=share.batch_norm).logits)(variables)[0]
    found = {"weights": fingerprint(variables), "update": fingerprint(payload)}
    return {
        **found,
        "network": np.round(np.asarray(logits, float), 3).tolist(),
        "client": known.as_text(),
        "seed": seed,
    }
