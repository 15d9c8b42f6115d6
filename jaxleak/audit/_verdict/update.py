"""Audits one update: from the arrays and facts that a user has to a verdict."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate, capture
from jaxleak._base import Observation, PyTree
from jaxleak._configuration import fingerprint
from jaxleak._precision import rounding_of_products
from jaxleak.audit._checks import Finding, Precision, check_known_images, checked_update, failed, precision_of
from jaxleak.audit._checks.frozen import check_frozen
from jaxleak.audit._checks.head import outputs
from jaxleak.audit._checks.predicted import ONE_SAMPLE
from jaxleak.audit._checks.statistics import check_statistics
from jaxleak.audit._checks.tokens import tokens_of
from jaxleak.audit._verdict.case import Case, Show
from jaxleak.audit._verdict.judgement import ended, inconsistent, judged, proven_findings, proven_labels
from jaxleak.audit._verdict.own_defense import identity_of, known_defense, with_own_defense
from jaxleak.audit._verdict.stages import run_stages
from jaxleak.audit._verdict.stated import (
    BINARY_LOSS,
    OTHER_DEFENSE,
    is_defended,
    options_stated,
    parts_of_a_sum,
    sent_update,
    stated_client,
    threat_of,
    trained_part,
)
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.store import SpentError, Store, require_none
from jaxleak.audit._verdict.truth import check_truth
from jaxleak.audit._verdict.verdict import (
    Answer,
    Verdict,
)
from jaxleak.capture._update import per_weight
from jaxleak.defenses import Defense
from jaxleak.metrics._images import has_ssim
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

#: Version of the rules that certify answers. Raise it whenever they change, so that no audit continues in a folder with
#: answers of earlier rules.
_RULES = 11
#: What agreement is for images that are too small for SSIM.
_WITHOUT_SSIM = (
    "Images with a side below 3 pixels, such as rows of a table, have no SSIM. Agreement of independent starts is here "
    "1 minus the largest difference of two of their numbers: at 0.99 no column "
    "differs by more than a hundredth of its range."
)
#: Where a search without the loss ends without an explanation of the update.
_MORE_THAN_OUTPUTS = (
    "The search without the loss does not explain the update. More time may help. If the loss reads more than the "
    "network's outputs, such as features or weights, no attack here applies."
)


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
    since: float | None = None,
    own_defense: Defense | None = None,
    counters: Mapping[str, Any] | None = None,
    **facts: Unpack[capture.FactOptions],
) -> Verdict:
    """Attack one update with the attacks that apply, the cheapest first, and say whether it leaks.

    First the update is checked against what the client is said to have computed (`check_update`). Then follow closed
    forms, a search with FedLeak's objective, and row spaces. Where the client states a defense, two attackers search:
    one who knows it (`jaxleak.attacks.adaptive`), and one who ignores it. With `out`, an audit goes on where an earlier
    audit of the same inputs ended.

    Args:
        model: the network.
        variables: the weights at which the client began.
        update: a `capture.Update`, the path of a file that `capture.load` reads, or a tree of arrays.
        minutes: budget > 0 of all sittings together, checks and compiling included. When it is spent, no other attack
            begins, but a program that is being compiled or a chunk that is running is finished first.
        truth: `(images, labels)` of the client: images (B, H, W, channels) or (B, channels, H, W) in [0, 1], labels
            (B,) or None. With labels, the update is first compared with the update of these samples (`check_client`).
            After that the truth serves for scores alone: no attack sees it.
        out: folder for answers and checkpoints; None keeps nothing.
        seed: seed of the searches, an integer in [0, 2^32).
        fresh: start over, whatever an earlier audit left in `out`.
        names: names of the update's arrays if it is a list, as in `capture.fit`; None takes the model's `listed`.
        show: called as `show(phase, done, total, note)` around the checks and after every chunk of an attack.
        since: the time in seconds at which the budget began to run, by `time.monotonic()`; None: with this call.
        own_defense: the client's defense if it is not one of jaxleak's, with the mechanism that its attacker believes;
            `defense` may then give it a name.
        counters: PyTorch's `num_batches_tracked` before the client's steps, by name; other entries are not read.
        facts: what is known of the client, as fields of `capture.Facts`; they override the facts of the file. The batch
            size must be known. The defaults of unknown facts are a mean of cross-entropies, one step, and batch
            statistics. For the losses "other" (any but cross-entropy) and "binary_cross_entropy" (of several outputs),
            only attacks that need neither loss nor labels are tried; for the latter, the audit also claims findings by
            signs. The defense is a key of `jaxleak.defenses.CLIENT_DEFENSES` with its strength, or with its `clip` and
            `noise_multiplier`; "none"; or "other" for a defense that no attacker knows.

    Returns:
        A `Verdict`.

    Raises:
        ValueError: on a model that is no `Classifier`, variables that are not finite, facts out of range or unknown, a
            defense that such a client cannot have or that contradicts its mechanism, a truth of another shape, or a
            folder that is a file, damaged, or of another audit.
        FolderInUseError: if another process writes to the folder.
        FileNotFoundError: if the update is a path and there is no such file.
    """
    _validate.positive(minutes=minutes)
    _validate.seeds(seed=seed)
    if out is not None and Path(out).is_file():
        raise ValueError(f"out must be a folder, and {out} is a file")
    begin, shown = time.monotonic() if since is None else since, show or (lambda *_: None)
    sent = sent_update(update, with_own_defense(own_defense, facts))
    known = sent.facts
    assert known.batch_size is not None
    _validate.made(Classifier, "models.from_torch", model=model)
    _validate.weights(variables)
    variables = jax.tree.map(jnp.asarray, variables)  # NumPy's floats have 64 bits by default
    whole = variables["params"]
    model, variables = trained_part(model, variables, known.frozen)
    share = stated_client(known, model)
    samples = known.batch_size * share.local_steps
    defense, said = known_defense(own_defense, known, share, variables)
    checked = check_truth(truth, samples, model.image_shape, model.num_classes)
    threat = threat_of(known, samples)
    order = model.listed if names is None else names
    payload, mistakes = _read(sent, variables, whole, order)
    if mistakes:
        return _refused(mistakes, model, threat, out, fresh=fresh)
    payload, precision = _of_mean_loss(sent, payload)
    findings = _unusable_weights(payload, known, precision)
    findings = findings or check_statistics(sent, share, variables, order, counters, defended=is_defended(known))
    if failed(findings):
        return _refused(findings, model, threat, out, fresh=fresh)
    # A binary cross-entropy of one logit is the cross-entropy of two classes.
    loss_known = known.loss in (None, "cross_entropy") or (known.loss == BINARY_LOSS and model.one_logit)
    watch = Stopwatch()
    shown("checks", 0, 1, "")
    of_update, head = checked_update(
        share, variables, payload, batch_size=known.batch_size, defended=is_defended(known), defense=defense,
        precision=precision, loss_known=loss_known,
    )  # fmt: skip
    findings += of_update + check_known_images(
        share, variables, payload, checked, defended=is_defended(known), precision=precision, loss_known=loss_known
    )
    known_options = options_stated(known)
    findings = [finding.of_kind(known.kind).without(known_options) for finding in findings]
    if failed(findings):
        return _refused(findings, model, threat, out, fresh=fresh)
    of_checks = watch.spent
    identity = _identity(share, variables, payload, known, seed) | identity_of(own_defense, share, variables)
    store = Store(None if out is None else Path(out), identity, minutes, fresh=fresh, since=begin)
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    case = Case(
        share, seen, samples=samples, store=store, key=jax.random.key(seed), show=shown, defended=is_defended(known),
        defense=defense, loss_known=loss_known, precision=precision,
        loss_shown=any(finding.name == ONE_SAMPLE and finding.status == "passed" for finding in findings),
    )  # fmt: skip
    answers, found = _attacked(case)
    said += found + _rounded_products() + _without_ssim(model.image_shape, answers)
    if store.left <= 0 and not any(answer.finished for answer in answers):
        said.append(_time_of_checks(minutes, store.seconds, **of_checks))
    binary = known.loss == BINARY_LOSS and not loss_known
    labels = proven_findings(case) if binary else proven_labels(case, head)
    tokens = None if case.defended else tokens_of(share, variables, payload, samples, case.key)
    return judged(
        case, findings, labels, answers, said, threat=threat, truth=checked, known_options=known_options, tokens=tokens
    )


def _refused(
    findings: list[Finding], model: Classifier, threat: str, out: str | Path | None, *, fresh: bool
) -> Verdict:
    """The verdict on inconsistent inputs; an error if `out` holds an audit, which is then of other inputs."""
    why = ", ".join(finding.name for finding in findings if finding.status == "failed")
    require_none(None if out is None else Path(out), fresh=fresh, why=why)
    return inconsistent(findings, model, threat)


def _read(sent: capture.Update, variables: PyTree, whole: PyTree, order: Sequence[str]) -> tuple[PyTree, list[Finding]]:
    """The update as a gradient of the trained part, and what is wrong with its names, shapes and untrained layers."""
    try:
        payload = capture.gradient_of(sent, variables["params"], names=order)
        return payload, [] if is_defended(sent.facts) else check_frozen(sent, whole, order)
    except ValueError as error:
        cause = "the update is of another model, or lacks a layer"
        options = "--model", "--update", "--frozen for layers that the client does not train"
        return None, [Finding("names and shapes", "failed", f"{error}.", cause, options)]


def _of_mean_loss(sent: capture.Update, payload: PyTree) -> tuple[PyTree, Precision]:
    """The update in units of a gradient of the mean loss, whatever the client's reduction, and its precision."""
    parts = parts_of_a_sum(sent.facts)
    if parts > 1:
        payload = jax.tree.map(lambda leaf: leaf / parts, payload)
    scale = None if sent.facts.kind == "gradient" else per_weight(sent) / parts
    return payload, precision_of(sent.arrays.values(), payload, per_weight=scale)


def _unusable_weights(payload: PyTree, known: capture.Facts, precision: Precision) -> list[Finding]:
    """A finding if weights after training show nothing of the training, else none."""
    if known.kind == "weights" and not any(np.any(leaf) for leaf in jax.tree.leaves(payload)):
        evidence = "The weights after training are those before it in every entry."
        cause = (
            "one file was given for both, --weights was saved after the steps (a state dict changes with its network), "
            "or nothing was trained"
        )
        return [Finding("zeros", "failed", evidence, cause, ("--weights", "--update"))]
    if known.kind == "weights" and precision.unit and known.defense != OTHER_DEFENSE:
        evidence = f"The weights after training are numbers of {precision.name}, too coarse for what one step changes."
        cause = "weights were rounded to 16 bits before they were sent or saved"
        return [Finding("precision", "failed", evidence, cause, ("--kind difference", "--defense other"))]
    return []


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
    if any(answer.fitted for answer in answers) and not case.loss_known and not ended(answers, case.loss_known):
        said.append(_MORE_THAN_OUTPUTS)
    case.store.note()
    return answers, said


def _rounded_products() -> list[str]:
    """A sentence for a user whose JAX rounds products on this device, else nothing."""
    if not (setting := rounding_of_products()):
        return []
    return [
        f"JAX's setting jax_default_matmul_precision is {setting!r}, so that the attacks' own products are "
        "rounded and may miss a leak; 'float32' rounds none."
    ]


def _without_ssim(image_shape: tuple[int, int, int], answers: list[Answer]) -> list[str]:
    """A sentence on what agreement means, if the compared starts have images that are too small for SSIM."""
    compared = any(answer.counted_agreement is not None for answer in answers)
    return [_WITHOUT_SSIM] if compared and not has_ssim(image_shape) else []


def _time_of_checks(minutes: float, spent: float, *, seconds: float, compiling: float) -> str:
    """Why there was no time for an attack: what the checks took of it, and how many minutes would be enough.

    Args:
        minutes: budget of all sittings.
        spent: seconds of the budget that all sittings have spent.
        seconds: how long the checks took.
        compiling: how much of that was the compiling of programs.
    """
    # A search compiles for about as long as the checks do, and then has to run.
    enough = max(math.ceil(3 * spent / 60), math.floor(minutes) + 1)
    return (
        f"No attack has ended, since the budget of --minutes {minutes:g} ({60 * minutes:.0f} s) is spent: the audit "
        f"has run for {spent:.0f} s in all. The checks took {seconds:.0f} s, and {compiling:.0f} s of that were the "
        f"compiling of programs. Extend the budget to --minutes {enough}, which would leave "
        f"{60 * enough - spent:.0f} s for an attack."
    )


def _identity(
    share: ClientShare, variables: PyTree, payload: PyTree, known: capture.Facts, seed: int
) -> dict[str, Any]:
    """What identifies the inputs of an audit; the logits of a fixed image tell networks with equal weights apart."""
    ramp = np.linspace(0, 1, math.prod(share.model.image_shape), dtype=np.float32)
    logits, _ = outputs(share.model, share.batch_norm, variables, ramp.reshape(1, *share.model.image_shape))
    found = {"weights": fingerprint(variables), "update": fingerprint(payload)}
    return {
        **found,
        "network": np.round(np.asarray(logits[0], float), 3).tolist(),
        "client": json.dumps(known.as_taken()),
        "seed": seed,
        "rules": _RULES,
    }
