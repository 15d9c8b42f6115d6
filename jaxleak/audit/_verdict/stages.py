"""The attacks of an audit in the order of their cost, and which of them apply."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from jaxleak import attacks
from jaxleak._base import Attack, Share
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks._inversion.label_rules import rule_of_one_sample
from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.audit._verdict.case import WITHIN_BOUNDS_BELOW, Case
from jaxleak.audit._verdict.class_label import with_read_label
from jaxleak.audit._verdict.one_sample import equations, not_of_one_sample, whatever_the_loss
from jaxleak.audit._verdict.questions import distance_of_truth
from jaxleak.audit._verdict.search import search
from jaxleak.audit._verdict.verdict import (
    ANY_LOSS,
    EXACT_BELOW,
    Answer,
    best_of,
    called,
)
from jaxleak.audit._verdict.without_loss import as_fitted, as_stated, under_any_loss, why_not
from jaxleak.models import Classifier

#: Iterations of a search: the first is short, and a longer one follows where the budget allows and it is needed.
_FIRST, _LATER = 400, (800, 1500, 3000, 6000, 12000)
_ROW_SPACE = 4250
#: Name of the search by the attacker who knows the defense.
_INFORMED = "fedleak_informed"
#: A search fell short if its answer is further from the update than this many times what the stated noise explains.
_SHORT_ABOVE = 2.0
_JOINT = "The searches look for labels together with the images, since no rule reads them off this update."


def run_stages(case: Case) -> Iterator[Answer | str]:
    """Run the attacks that apply; yields their answers, and sentences on what was not tried and why."""
    if not case.loss_known:
        certain = False
        for found in whatever_the_loss(case):
            certain = certain or (isinstance(found, Answer) and bool(found.shown.all()))
            yield found
        if not certain:
            yield from _any_loss(case)
        return
    case, told = with_read_label(case)
    yield from told
    certain = exact = False
    for found in equations(case):
        if isinstance(found, Answer) and found.shown.all():
            certain, exact = True, found.solved or found.cosine_distance < EXACT_BELOW
        yield found
    if exact:
        return
    if _label_rule(case) == "joint":
        yield _JOINT
    case = case._replace(contradicted=not_of_one_sample(case))
    # Smoothing blurs the answer of peeling. A short search may end at the exact pixels; a long one will not.
    searched: list[Answer] = []
    for found in _gradient_matching(case, _by_their_knowledge(case), briefly=certain):
        if isinstance(found, Answer):
            certain = certain or bool(found.shown.all())
            searched.append(found)
        yield found
    if not certain:
        explained = any(answer.matched for answer in searched)
        for found in _row_space(case):
            explained = explained or (isinstance(found, Answer) and found.matched)
            yield found
        if not explained:
            yield from _unstated_loss(case, searched)
        yield from _short_of_noise(case, searched)
        yield from _short_of_bounds(case, searched)


def _any_loss(case: Case) -> Iterator[Answer | str]:
    """Search for images that have the update under the loss and the labels that fit the last layer best."""
    if case.defense is not None:
        yield f"{called(ANY_LOSS)} was not tried: the client defends its update."
    elif why := why_not(case):
        yield f"{called(ANY_LOSS)} was not tried: {why}."
    else:
        yield from _gradient_matching(case._replace(contradicted=not_of_one_sample(case)), (ANY_LOSS,))


def _unstated_loss(case: Case, answers: list[Answer]) -> Iterator[Answer | str]:
    """Search without the loss if no answer under the stated loss matches the update: loss or labels may differ."""
    tried = any(answer.fitted for answer in answers)
    if not tried and _may_be_another_loss(case) and case.store.left > 0:
        yield from _gradient_matching(case, (ANY_LOSS,))


def _astray(case: Case, answer: Answer) -> bool:
    """Whether all starts of a search agree on images that do not match the update: more time will not change them."""
    return not answer.matched and not answer.fitted and bool(answer.agree.all()) and _may_be_another_loss(case)


def _may_be_another_loss(case: Case) -> bool:
    """Whether the update has no defense and a search without the loss applies to it."""
    return not case.defended and case.defense is None and not why_not(case)


def _label_rule(case: Case) -> str:
    """Name of the best label rule for the model's head; "joint", without a head, searches labels with the images.

    It is "given" if a label was read off the update before, which the search then takes.
    """
    model = case.share.model
    if case.observation.labels is not None:
        return "given"
    if not model.head:
        return "joint"
    head = model.head_of(case.observation.payload, gradient=True)
    if head.bias is not None:
        return "calibrated"
    return rule_of_one_sample(None) if case.samples == 1 else "corrected_counts"


def _has_activations(case: Case) -> bool:
    """Whether the network has non-linearities; without any, the penalty on their outputs has no meaning."""
    model = case.share.model
    x = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    out = jax.eval_shape(lambda v, x: model.apply(v, x, mode=case.share.batch_norm), case.observation.params, x)
    return bool(jax.tree.leaves(out.activations))


def _by_their_knowledge(case: Case) -> tuple[str, ...]:
    """Names of the attackers: the first one knows the loss and the defense as stated, others ignore one of the two."""
    if case.defense is None:
        # To the search without the loss, whatever scales the update or single gradients is a part of the loss.
        return ("fedleak", ANY_LOSS) if case.defended and not why_not(case) else ("fedleak",)
    # A client of Adam uploads no gradient, so that an attacker must undo the step to compare with one.
    return (_INFORMED,) if case.received.undone is not None else (_INFORMED, "fedleak")


def _known(case: Case, name: str, iterations: int) -> tuple[Share, attacks.Settings]:
    """Share and settings of FedLeak with the homotopy: the attacker knows the defense, ignores it, or knows no loss."""
    if name == ANY_LOSS:
        return case.share, _settings(presets.any_loss, iterations, activations=_has_activations(case))
    settings = _settings(presets.fedleak, iterations, labels=_label_rule(case), activations=_has_activations(case))
    if name == "fedleak" or case.defense is None:
        return case.share, settings
    known = adaptive.informed(
        case.defense, case.share.model, case.share, settings, batch_size=case.samples,
        variables=case.observation.params,
    )  # fmt: skip
    return known.share, known.settings


@functools.lru_cache(maxsize=16)  # an optimizer equals only itself, so that new settings never equal old ones
def _settings(
    preset: Callable[[int], attacks.Settings], iterations: int, *, labels: str | None = None, activations: bool = True
) -> attacks.Settings:
    """The preset's settings with the audit's label rule, and no activation penalty if there are no activations."""
    settings = preset(iterations) if activations else preset(iterations).weighing(activation=0.0)
    return settings if labels is None else settings._replace(labels=labels)


@functools.lru_cache(maxsize=8)  # the same object for all audits of equal clients, so that nothing is compiled twice
def _inversion(model: Classifier, share: Share, settings: attacks.Settings, *, batch_size: int) -> Attack:
    """The inversion by an attacker who ignores defenses; one who knows a defense has settings for each update."""
    return attacks.inversion(model, share, settings, batch_size=batch_size)


def _gradient_matching(case: Case, names: tuple[str, ...], *, briefly: bool = False) -> Iterator[Answer | str]:
    """Run a short search for images with the update by every attacker, then longer ones by the best attacker.

    An attacker who knows a defense may ignore it, and finds more that way behind little noise. An attacker who knows no
    loss searches as well, if another loss explains the update far better than the stated one, or if all starts agree on
    images that do not match the update.

    Args:
        case: the audited update.
        names: the attackers.
        briefly: whether to run only the short searches.
    """
    if case.defended and case.defense is None:
        yield "No attack that knows the defense was tried, since none is stated: the update is attacked as it is."

    def one(name: str, iterations: int) -> tuple[Answer | None, float]:
        stored = case.store.answer(f"{name}_{iterations}")
        if stored is not None:
            return stored._replace(contradicted=case.contradicted), stored.seconds / max(stored.iterations, 1)
        share, settings = _known(case, name, iterations)
        inversion: Callable[..., Attack] = attacks.inversion if name == _INFORMED else _inversion
        attack = inversion(case.share.model, share, settings, batch_size=case.samples)
        compared_as = under_any_loss(case) if name == ANY_LOSS else case
        answer, pace = search(compared_as, f"{name}_{iterations}", attack, case.observation)
        if name != ANY_LOSS and answer is not None:
            answer = as_stated(case, answer)
        if name == ANY_LOSS and answer is not None and answer.undetermined is not None:
            answer = as_fitted(compared_as, answer)
        if answer is not None and answer.finished:
            case.store.keep(f"{name}_{iterations}", answer)
        return answer, pace

    short: list[tuple[Answer, str, float]] = []
    attackers = list(names)
    for name in attackers:
        answer, pace = one(name, _FIRST)
        if answer is None:
            yield f"No time was left for {called(name)}."
            break
        yield answer
        short.append((answer, name, pace))
        refuted = not answer.explained and (answer.allowed is None or answer.fitted_remainder is not None)
        if ANY_LOSS not in attackers and (refuted or _astray(case, answer)):
            attackers.append(ANY_LOSS)
        if answer.shown.all() or not answer.finished:
            return
    best = best_of([answer for answer, _, _ in short])
    if best is None:
        return
    expected = None if best.matched else distance_of_truth(case, best)
    if expected is not None and expected >= MATCHED_BELOW:
        yield (
            f"No image can be certified behind this noise: it puts the client's own images at a cosine distance of "
            f"about {expected:.2g} from the update. {_agreeing(best)}"
        )
    if briefly:
        return
    # If the stated loss was refuted, a longer search under it would find the same images.
    fitted = best_of([answer for answer, _, _ in short if answer.fitted]) if not best.explained else None
    name, pace = next((name, pace) for answer, name, pace in short if answer is (fitted or best))
    # A schedule is made for its length: a search that cannot end says less than a shorter one that can.
    fitting = [n for n in _LATER if n * pace < case.store.left]
    if not fitting:
        yield f"A longer search was not tried: {_LATER[0]} iterations take {_LATER[0] * pace:.0f} s more."
        return
    for iterations in dict.fromkeys((fitting[min(2, len(fitting) - 1)], fitting[-1])):
        if iterations * pace > case.store.left:
            yield f"A search of {iterations} iterations was not tried: the time was spent."
            return
        answer, _ = one(name, iterations)
        if answer is None:
            return
        yield answer
        agree = answer.agreement is not None and bool((answer.agreement >= answer.agreement_needed).all())
        if (answer.determined and answer.explained and agree) or not answer.finished:
            return


def _short_of_noise(case: Case, answers: list[Answer]) -> Iterator[str]:
    """A sentence if better images than the answers must exist: the stated noise puts the client's own nearer."""
    best = best_of(answers)
    if best is None or (expected := distance_of_truth(case, best)) is None:
        return
    if best.cosine_distance > _SHORT_ABOVE * expected:
        yield (
            f"The searches fell short: the stated noise puts the client's own images at a cosine distance of about "
            f"{expected:.2g} from the update, and the best answer is at {best.cosine_distance:.2g}. Images that "
            "explain the update better exist, and an attacker with more time may find them."
        )


def _short_of_bounds(case: Case, answers: list[Answer]) -> Iterator[str]:
    """A sentence on what a certificate lacks where only bounds of the gradient are known."""
    best = best_of(answers)
    if case.received.undone is None or best is None or best.determined or not best.matched:
        return
    told = sum(int(jnp.count_nonzero(leaf)) for leaf in jax.tree.leaves(case.received.told(case.observation)))
    yield (
        f"No image can be certified: through the step of Adam {told} entries of "
        f"the gradient are known up to a quarter, and the best answer has a cosine distance of "
        f"{best.cosine_distance:.2g}. A certificate takes {best.x.size} entries and {WITHIN_BOUNDS_BELOW:g}. "
        f"{_agreeing(best)}"
    )


def _agreeing(answer: Answer) -> str:
    """A sentence on how far the starts of a search agree, if nothing can certify its answer."""
    if answer.agreement is None:
        return "Look at the images."
    return (
        f"The starts of the first search agree to {answer.measure} of {answer.agreement.mean():.2f}. Images that agree "
        "may be right, or what the prior prefers: look at them, and compare with the truth."
    )


def _row_space(case: Case) -> Iterator[Answer | str]:
    """Search with row spaces in networks with batch normalisation, where gradients from afar lead nowhere."""
    model = case.share.model
    if not model.has_batch_norm:
        return
    if case.received.undone is not None:
        yield "Row spaces were not tried: they are those of a gradient, and a step of Adam was sent."
        return
    if case.store.left <= 0:
        yield "Row spaces were not tried: the time was spent."
        return
    if _label_rule(case) == "joint":
        yield "Row spaces were not tried: they say nothing of labels, and no dense layer at the end does."
        return
    settings = _settings(presets.row_space, _ROW_SPACE, labels=_label_rule(case))
    try:
        attack = _inversion(model, case.share, settings, batch_size=case.samples)
    except ValueError as error:
        yield f"Row spaces were not tried: {error}; an audit gives them {_ROW_SPACE}."
        return
    answer = case.store.answer("row_space")
    if answer is None:
        answer, _ = search(case, "row_space", attack, case.observation)
        answer = None if answer is None else as_stated(case, answer)
    if answer is not None:
        if answer.finished:
            case.store.keep("row_space", answer)
        yield answer._replace(contradicted=case.contradicted)
