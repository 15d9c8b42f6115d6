"""The attacks of an audit in the order of their cost, and which of them apply."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import attacks, objectives
from jaxleak._base import Attack, Batch, Observation, Share
from jaxleak._tree import named_leaves
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks._inversion.any_loss import why_not_any_loss
from jaxleak.attacks._inversion.patch_embedding import patch_embedding
from jaxleak.attacks._inversion.peeling import CUT, Peeled, affine_solution, misfit_of_one_sample, peel
from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.audit._checks.adam import of_one_size
from jaxleak.audit._invert import invert
from jaxleak.audit._verdict.search import (
    WITHIN_BOUNDS_BELOW,
    Case,
    distance_of_truth,
    graded,
    graded_inputs,
    search,
)
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.verdict import (
    AGREE_ABOVE,
    ALONE,
    ANY_LOSS,
    OUTSIDE,
    PEELED,
    PEELED_ALONE,
    Answer,
    best_of,
    called,
)
from jaxleak.audit._verdict.without_loss import dimmer_images, under_any_loss

#: Iterations of a search: the first is short, and a longer one follows where the budget allows and it is needed.
_FIRST, _LATER = 400, (1500, 3000, 6000, 12000)
_PEELED, _PEELED_SHARPNESS, _PEELED_TV = 4000, 400.0, 0.01
_ROW_SPACE = 4250
#: Relative misfit up to which a layer's gradient has the form that one sample gives.
_ONE_SAMPLE_BELOW = 1e-3
#: Share of a matrix's entries of one size from which on little more than their signs was sent, and how near in size.
_SIGNS_ABOVE, _SIGNS_NEAR = 0.5, 0.1
#: Cosine distance below which an image that is shown cannot be told from the truth by its gradient.
_EXACT_BELOW = 1e-5
#: How many times the distance that the stated noise explains an answer may have, before the search fell short.
_SHORT_ABOVE = 2.0


def run_stages(case: Case) -> Iterator[Answer | str]:
    """Answers, and sentences on what was not tried and why."""
    if not case.loss_known:
        certain = False
        for found in _without_loss(case):
            certain = certain or (isinstance(found, Answer) and bool(found.shown.all()))
            yield found
        if not certain:
            yield from _any_loss(case)
        return
    certain = exact = False
    for found in _equations(case):
        if isinstance(found, Answer) and found.shown.all():
            certain, exact = True, found.solved or found.cosine_distance < _EXACT_BELOW
        yield found
    if exact:
        return
    # What peeling finds is blurred by its smoothing. A short search may end at the very pixels, a long one will not.
    searched: list[Answer] = []
    for found in _gradient_matching(case, _by_their_knowledge(case), briefly=certain):
        if isinstance(found, Answer):
            certain = certain or bool(found.shown.all())
            searched.append(found)
        yield found
    if not certain:
        yield from _row_space(case)
        yield from _short_of_noise(case, searched)
        yield from _short_of_bounds(case, searched)


def _equations(case: Case) -> Iterator[Answer | str]:
    """What equations give, as far as the update keeps them."""
    if why := _not_of_one_sample(case):
        yield f"Closed forms of one exact gradient were not tried: {why}."
    elif not case.defended:
        yield from _closed_forms(case)
    elif case.defense is not None:
        yield "Closed forms of one exact gradient were not tried: the client defends its update."
    else:
        found: list[Answer | str] = list(_inputs_alone(case))
        yield from found or ["No closed form applies that needs neither the loss nor the label."]


def _not_of_one_sample(case: Case) -> str:
    """Why the update is not the gradient of one sample; nothing if it is."""
    if case.samples > 1:
        return f"{case.samples} samples are behind it"
    return "the client took several steps" if case.share.total_steps > 1 else ""


def _closed_forms(case: Case) -> Iterator[Answer | str]:
    model, seen, watch = case.share.model, case.observation, Stopwatch()
    if not model.head:
        yield "Closed forms of one exact gradient were not tried: they read the label off a dense layer at the end."
        yield from _inputs_alone(case)
        return
    try:
        attack = patch_embedding(model)
    except ValueError:
        pass  # no vision transformer of this kind
    else:
        found, _, _ = invert(attack, seen, case.template, key=case.key, iterations=1)
        if found.gradient_matched is not None and found.gradient_matched.all():  # the equations of one image hold
            image, label, solved = np.asarray(found.x[:, 0]), np.asarray(found.y), bool(found.answered.all())
            yield graded(case, "patch_embedding", image, label, solved=solved, **watch.spent)
        if found.answered.all():
            return
    peeled = peel(model, seen, batch_norm=case.share.batch_norm, key=case.key)
    if peeled is None:
        yield "Dense layers were not peeled off: none has a bias and lets the image pass through it alone."
        return
    y = np.asarray(jnp.argmin(_head_bias_gradient(case)), np.int32)[None]
    x = affine_solution(peeled)
    if x is not None:
        yield graded_inputs(case, "dense_inputs", _without_rounding(x), y, solved=True, **watch.spent)
        return
    stored = case.store.answer(PEELED)
    answer = stored or search(case, PEELED, _peeling(peeled), _with_labels(peeled, y), y=y)[0]
    if answer is None:
        yield "Peeling was not tried: the time was spent."
        return
    if answer.finished:
        case.store.keep(PEELED, answer)
    yield answer


def _without_loss(case: Case) -> Iterator[Answer | str]:
    """What needs neither the loss nor the label: the first dense layer's inputs, and peeling below it."""
    yield "The loss is not stated to be the cross-entropy of classes. What is tried needs neither loss nor labels."
    if why := _not_of_one_sample(case) or ("" if case.defense is None else "the client defends its update"):
        yield f"Closed forms of one exact gradient were not tried: {why}."
        return
    peeled = _of_one_sample(case)
    if peeled is None:
        yield (
            "Dense layers were not peeled off: none has a bias, lets the image pass through it alone, and has a "
            "gradient of the form that one sample gives."
        )
        return
    solved = _affine(case, peeled)
    if solved is not None:
        yield solved
        return
    if peeled.layer in case.share.model.head_names and not _why_not_any_loss(case):
        yield "Peeling was not tried: below the last dense layer it would know less than the search without the loss."
        return
    # Scores, rivals and agreement are those of what the layer and those below it give, in which no label takes part.
    below = case._replace(share=peeled.share, observation=peeled.observation)  # type: ignore[arg-type]
    given = _with_labels(peeled, np.zeros(1, np.int32))
    answer = case.store.answer(PEELED_ALONE)
    if answer is None:
        answer = search(below, PEELED_ALONE, _peeling(peeled), given, y=np.full(1, -1, np.int32))[0]
        if answer is None:
            yield "Peeling was not tried: the time was spent."
            return
        answer = answer._replace(cosine_distance=_furthest_part(peeled, answer.x))
    if answer.finished:
        case.store.keep(PEELED_ALONE, answer)
    yield answer


def _any_loss(case: Case) -> Iterator[Answer | str]:
    """The search for images whose gradient the update is under whatever loss and labels fit the last layer best."""
    if case.defense is not None:
        yield f"{called(ANY_LOSS)} was not tried: the client defends its update."
    elif why := _why_not_any_loss(case):
        yield f"{called(ANY_LOSS)} was not tried: {why}."
    else:
        yield from _gradient_matching(case, (ANY_LOSS,))


def _why_not_any_loss(case: Case) -> str:
    return why_not_any_loss(case.share.model, case.share, case.samples)


def _furthest_part(peeled: Peeled, x: np.ndarray) -> float:
    """The larger of two cosine distances: of the layer's inputs, and of the gradient below, which is the shorter one.

    In the distance of both together the inputs outweigh the gradient, and alone they do not determine an image.
    """
    seen = peeled.observation
    own = jax.jit(peeled.share)(seen.params, Batch(jnp.asarray(x)[:, None], jnp.zeros(1, jnp.int32), jnp.arange(1)))
    parts: list[tuple[str, ...]] = [(CUT,), tuple(name for name in own if name != CUT)]
    return max(
        float(objectives.cosine({name: seen.payload[name] for name in part}, {name: own[name] for name in part}))
        for part in parts
        if part
    )


def _inputs_alone(case: Case) -> Iterator[Answer]:
    """The image from the first dense layer's gradient alone, which has the same form for every loss and label.

    A client with a loss of its own, or that changed the gradients of other layers, hides nothing by that.
    """
    peeled = _of_one_sample(case)
    solved = None if peeled is None else _affine(case, peeled)
    if solved is not None:
        yield solved


def _of_one_sample(case: Case) -> Peeled | None:
    """The network below the first dense layer with a bias, if its gradient has the form that one sample gives."""
    model, seen = case.share.model, case.observation
    peeled = peel(model, seen, batch_norm=case.share.batch_norm, key=case.key)
    if peeled is None or not bool(jnp.any(named_leaves(seen.payload)[model.bias_of(peeled.layer)])):
        return None
    matrix = model.matrix(peeled.layer, named_leaves(seen.payload)[peeled.layer])
    # Signs of one sample's gradient have that form as well, and all images that are nowhere black the same signs. So
    # has a step of Adam, whose entries differ a little.
    if matrix.shape[1] > 1 and of_one_size(np.asarray(matrix), near=_SIGNS_NEAR, at_least=1) >= _SIGNS_ABOVE:
        return None
    return peeled if misfit_of_one_sample(model, seen.payload, peeled.layer) < _ONE_SAMPLE_BELOW else None


def _affine(case: Case, peeled: Peeled) -> Answer | None:
    """The image whose inputs of the layer these are, where nothing but an affine map comes before it."""
    watch = Stopwatch()
    x = affine_solution(peeled)
    if x is None:
        return None
    misfit = misfit_of_one_sample(case.share.model, case.observation.payload, peeled.layer)
    # The cosine between a matrix and its part of that form, whose rest is orthogonal to it.
    distance = 1 - math.sqrt(max(0.0, 1 - misfit**2))
    spent: dict[str, Any] = watch.spent
    return Answer(ALONE, _without_rounding(x), np.full(1, -1), misfit, distance, solved=True, **spent)


def _without_rounding(x: jax.Array) -> np.ndarray:
    """An image (1, H, W, channels) in [0, 1] where equations left it by no more than rounding, else in its own unit."""
    image = np.asarray(x)[None]
    return np.clip(image, 0, 1) if image.min() >= -OUTSIDE and image.max() <= 1 + OUTSIDE else image


def _head_bias_gradient(case: Case) -> jax.Array:
    """The entry of the label is the only negative one; without a bias the column sums of the kernel say the same."""
    head = case.share.model.head_of(case.observation.payload, gradient=True)
    return head.kernel.sum(axis=0) if head.bias is None else head.bias


def _with_labels(peeled: Peeled, y: np.ndarray) -> Observation:
    return peeled.observation._replace(labels=jnp.asarray(y))


def _peeling(peeled: Peeled) -> Attack:
    settings = (
        presets.fedleak(_PEELED)
        ._replace(
            labels="given",  # the product with dL/dh has no label in it
            smoothing=attacks.client_updates.smoothing(1.0, _PEELED_SHARPNESS) if peeled.model.has_kinks else None,
        )
        .weighing(activation=0.0, tv=_PEELED_TV)
    )
    return attacks.inversion(peeled.model, peeled.share, settings, batch_size=1)


def _label_rule(case: Case) -> str:
    """The best rule that the model's head allows; without a head labels are found with the images."""
    model = case.share.model
    if not model.head:
        return "joint"
    head = model.head_of(case.observation.payload, gradient=True)
    return "calibrated" if head.bias is not None else "corrected_counts"


def _has_activations(case: Case) -> bool:
    """Whether the network has a non-linearity; the penalty on their outputs has no meaning elsewhere."""
    model = case.share.model
    x = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    out = jax.eval_shape(lambda v, x: model.apply(v, x, mode=case.share.batch_norm), case.observation.params, x)
    return bool(jax.tree.leaves(out.activations))


def _by_their_knowledge(case: Case) -> tuple[str, ...]:
    """The attackers: who knows the loss and the defense, as far as they are stated, and who ignores one of them."""
    if case.defense is None:
        # Whatever scales the update, or the gradients of single samples, is to the last one a part of the loss.
        return ("fedleak", ANY_LOSS) if case.defended and not _why_not_any_loss(case) else ("fedleak",)
    # What a client of Adam uploads is no gradient, to whoever does not undo the step.
    return ("fedleak_informed",) if case.received.undone is not None else ("fedleak_informed", "fedleak")


def _known(case: Case, name: str, iterations: int) -> tuple[Share, attacks.Settings]:
    """FedLeak with the homotopy, by an attacker who knows the defense, who ignores it, or who knows no loss."""
    model, preset = case.share.model, presets.any_loss if name == ANY_LOSS else presets.fedleak
    settings = preset(iterations)
    if not _has_activations(case):
        settings = settings.weighing(activation=0.0)
    if name == ANY_LOSS:
        return case.share, settings
    settings = settings._replace(labels=_label_rule(case))
    if name == "fedleak" or case.defense is None:
        return case.share, settings
    known = adaptive.informed(
        case.defense, model, case.share, settings, batch_size=case.samples, variables=case.observation.params
    )
    return known.share, known.settings


def _gradient_matching(case: Case, names: tuple[str, ...], *, briefly: bool = False) -> Iterator[Answer | str]:
    """A short search for images with the update's gradient by every attacker, then longer ones by the best of them.

    Who knows a defense may ignore it, and finds more that way behind little noise.

    Args:
        case: the audited update.
        names: the attackers.
        briefly: whether the short searches are all.
    """
    if case.defended and case.defense is None:
        yield "No attack that knows the defense was tried, since none is stated: the update is attacked as it is."

    def one(name: str, iterations: int) -> tuple[Answer | None, float]:
        stored = case.store.answer(f"{name}_{iterations}")
        if stored is not None:
            return stored, stored.seconds / max(stored.iterations, 1)
        share, settings = _known(case, name, iterations)
        attack = attacks.inversion(case.share.model, share, settings, batch_size=case.samples)
        compared_as = under_any_loss(case) if name == ANY_LOSS else case
        answer, pace = search(compared_as, f"{name}_{iterations}", attack, case.observation)
        if name == ANY_LOSS and answer is not None and answer.undetermined is not None:
            answer = answer._replace(dimmer=dimmer_images(compared_as, answer))
        if answer is not None and answer.finished:
            case.store.keep(f"{name}_{iterations}", answer)
        return answer, pace

    short: list[tuple[Answer, str, float]] = []
    for name in names:
        answer, pace = one(name, _FIRST)
        if answer is None:
            yield f"{called(name)} was not tried: the time was spent."
            break
        yield answer
        short.append((answer, name, pace))
        if answer.shown.all() or not answer.finished:
            return
    best = best_of([answer for answer, _, _ in short])
    if best is None:
        return
    if (expected := distance_of_truth(case, best)) is not None and expected >= MATCHED_BELOW:
        yield (
            f"No image can be certified behind this noise: it puts the client's own images at a cosine distance of "
            f"about {expected:.2g} from the update. {_agreeing(best)}"
        )
    if briefly:
        return
    name, pace = next((name, pace) for answer, name, pace in short if answer is best)
    # A schedule is made for its length: a search that cannot end says less than a shorter one that can.
    fitting = [n for n in _LATER if n * pace < case.store.left]
    if not fitting:
        yield f"A longer search was not tried: {_LATER[0]} iterations take {_LATER[0] * pace:.0f} s more."
        return
    for iterations in dict.fromkeys((fitting[min(1, len(fitting) - 1)], fitting[-1])):
        if iterations * pace > case.store.left:
            yield f"A search of {iterations} iterations was not tried: the time was spent."
            return
        answer, _ = one(name, iterations)
        if answer is None:
            return
        yield answer
        agreed = answer.determined and answer.agreement is not None and (answer.agreement >= AGREE_ABOVE).all()
        if agreed or not answer.finished:
            return


def _short_of_noise(case: Case, answers: list[Answer]) -> Iterator[str]:
    """Whether better images than the answers must exist, because the stated noise explains the client's own better."""
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
    """What a certificate lacks where a gradient is known between bounds alone."""
    best = best_of(answers)
    if case.received.undone is None or best is None or best.determined or not best.matched:
        return
    yield (
        f"No image can be certified: through the step of Adam {case.received.equations(case.observation)} entries of "
        f"the gradient are known up to a quarter, and the best answer has a cosine distance of "
        f"{best.cosine_distance:.2g}. A certificate takes {best.x.size} entries and {WITHIN_BOUNDS_BELOW:g}. "
        f"{_agreeing(best)}"
    )


def _agreeing(answer: Answer) -> str:
    """How far the starts of a search agree, whose answer nothing can certify."""
    if answer.agreement is None:
        return "Look at the images."
    return (
        f"The starts of the first search agree to an SSIM of {answer.agreement.mean():.2f}. Images that agree may be "
        "right, or what the prior prefers: look at them, and compare with the truth."
    )


def _row_space(case: Case) -> Iterator[Answer | str]:
    """For networks with normalisation, whose gradients lead nowhere from afar."""
    model = case.share.model
    if not model.has_batch_norm:
        return
    if case.received.undone is not None:
        yield "Row spaces were not tried: they are those of a gradient, and a step of Adam was sent."
        return
    if case.store.left <= 0:
        yield "Row spaces were not tried: the time was spent."
        return
    if not model.head:
        yield "Row spaces were not tried: they say nothing of labels, and no dense layer at the end does."
        return
    settings = presets.row_space(_ROW_SPACE)._replace(labels=_label_rule(case))
    try:
        attack = attacks.inversion(model, case.share, settings, batch_size=case.samples)
    except ValueError as error:
        yield f"Row spaces were not tried: {error}; an audit gives them {_ROW_SPACE}."
        return
    answer = case.store.answer("row_space") or search(case, "row_space", attack, case.observation)[0]
    if answer is not None:
        if answer.finished:
            case.store.keep("row_space", answer)
        yield answer
