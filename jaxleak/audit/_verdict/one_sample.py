"""Answers for one sample from equations of its gradient, with or without the label, and from peeling below a layer."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import attacks, objectives
from jaxleak._base import Attack, Batch, Observation
from jaxleak._random_streams import stream_of
from jaxleak._tree import named_leaves
from jaxleak.attacks import presets
from jaxleak.attacks._inversion.label_rules import label_of_one_sample
from jaxleak.attacks._inversion.patch_embedding import patch_embedding
from jaxleak.attacks._inversion.peeling import CUT, Peeled, affine_solution, misfit_of_one_sample, peel
from jaxleak.audit._checks.adam import of_one_size
from jaxleak.audit._invert import invert
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._received import compiled
from jaxleak.audit._rival import UNREAD
from jaxleak.audit._verdict.case import Case, graded, graded_inputs, rounding_of
from jaxleak.audit._verdict.search import search
from jaxleak.audit._verdict.several_samples import LAYER_MISFIT_BELOW, of_several, without_rounding
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.verdict import ALONE, DENSE_INPUTS, PEELED, PEELED_ALONE, Answer
from jaxleak.audit._verdict.without_loss import as_stated, why_not

_PEELED, _PEELED_SHARPNESS, _PEELED_TV = 4000, 400.0, 0.01
#: Difference of two pixels that is more than rounding may leave in a closed form.
_ANOTHER_PIXEL = 0.25
#: A matrix is little more than signs if at least this share of its entries has one size, and how near in size they are.
_SIGNS_ABOVE, _SIGNS_NEAR = 0.5, 0.1


def equations(case: Case) -> Iterator[Answer | str]:
    """Answers from equations, as far as the update still satisfies these, and sentences on what was not tried."""
    if _is_a_batch(case):
        yield from of_several(case)
    elif why := _not_of_one_sample(case):
        yield f"Closed forms of one exact gradient were not tried: {why}."
    elif not case.defended:
        yield from _closed_forms(case)
    elif case.defense is not None:
        yield "Closed forms of one exact gradient were not tried: the client defends its update."
    else:
        found: list[Answer | str] = list(_inputs_alone(case))
        yield from found or ["No closed form applies that needs neither the loss nor the label."]


def _is_a_batch(case: Case) -> bool:
    """Whether the update is one gradient of several samples, which no known defense has changed."""
    return case.samples > 1 and case.share.total_steps == 1 and case.defense is None


def _not_of_one_sample(case: Case) -> str:
    """Why the update is not the gradient of one sample; empty if it is."""
    if case.samples > 1:
        return f"{case.samples} samples are behind it"
    return "the client took several steps" if case.share.total_steps > 1 else ""


def not_of_one_sample(case: Case) -> str:
    """A sentence if the update shows that more than the one stated sample is behind it; else empty.

    The gradient of a dense layer is an outer product for one sample, whatever the loss and the layers above.
    """
    if _not_of_one_sample(case) or case.defended:
        return ""
    peeled = peel(case.share.model, case.observation, batch_norm=case.share.batch_norm, key=case.key)
    if peeled is None or _has_form_of_one_sample(case, peeled):
        return ""
    return f"The gradient of {peeled.layer} has not the form that one sample gives, so that nothing is certified as one"


def _has_form_of_one_sample(case: Case, peeled: Peeled) -> bool:
    """Whether a dense layer's gradient is an outer product, up to what rounding may have changed in it."""
    misfit = misfit_of_one_sample(case.share.model, case.observation.payload, peeled.layer)
    return misfit < LAYER_MISFIT_BELOW + _rounding_of_layer(case, peeled)


def _rounding_of_layer(case: Case, peeled: Peeled) -> float:
    """Sum of the relative rounding errors of a layer's kernel and its bias; infinite where they are not known."""
    if math.isinf(rounding_of(case)):
        return math.inf
    leaves, weights = named_leaves(case.observation.payload), named_leaves(case.observation.params["params"])
    names = (peeled.layer, case.share.model.bias_of(peeled.layer))
    return sum(case.precision.relative(np.asarray(leaves[name]), weights.get(name)) for name in names)


def _closed_forms(case: Case) -> Iterator[Answer | str]:
    model, seen, watch = case.share.model, case.observation, Stopwatch()
    if not model.head and seen.labels is None:
        yield "Closed forms of one exact gradient were not tried: they read the label off a dense layer at the end."
        yield from _inputs_alone(case)
        return
    try:
        attack = patch_embedding(model)
    except ValueError:
        pass  # no vision transformer of this kind
    else:
        patches, _, _ = invert(attack, seen, case.template, key=case.key, iterations=1)
        if patches.gradient_matched is not None and patches.gradient_matched.all():  # the equations of one image hold
            image, solved = np.asarray(patches.x[:, 0]), bool(patches.answered.all()) and _reads_images(case, attack)
            yield graded(case, "patch_embedding", image, _label(case), solved=solved, **watch.spent)
            if solved:
                return
            if patches.answered.all():
                yield (
                    "The closed form of a patch embedding proves nothing here: of random images that this network is "
                    "given, it finds others."
                )
    peeled = peel(model, seen, batch_norm=case.share.batch_norm, key=case.key)
    if peeled is None:
        yield "Dense layers were not peeled off: none has a bias and lets the image pass through it alone."
        return
    if not _has_form_of_one_sample(case, peeled):
        yield "Dense layers were not peeled off: the gradient has not the form there that one sample gives."
        return
    y, x = _label(case), affine_solution(peeled)
    if x is not None:
        found = graded_inputs(case, DENSE_INPUTS, without_rounding(np.asarray(x)[None]), y, solved=True, **watch.spent)
        yield found
        if not found.matched:  # the layers above did not compute what is stated, such as with dropout
            yield from _inputs_alone(case)
        return
    answer = case.store.answer(PEELED)
    if answer is None:
        answer = search(case, PEELED, _peeling(peeled), _with_labels(peeled, y), y=y)[0]
        if answer is None:
            yield "Peeling was not tried: the time was spent."
            return
        answer = as_stated(case, answer)
    if answer.finished:
        case.store.keep(PEELED, answer)
    yield answer


def _reads_images(case: Case, attack: Attack) -> bool:
    """Whether a closed form recovers a random image from the update of that image.

    The equations also hold for a network that first covers or scales parts of the image, as by a mask. They then give
    the masked image.
    """
    x = jax.random.uniform(stream_of(case.key, Stream.WEIGHT), (1, 1, *case.share.model.image_shape))
    batch = Batch(x, jnp.asarray(_label(case)), jnp.arange(1))
    seen = case.observation._replace(payload=compiled(case.share)(case.observation.params, batch))
    found, _, _ = invert(attack, seen, case.template, key=case.key, iterations=1)
    return bool(jnp.mean(jnp.abs(found.x - x) > _ANOTHER_PIXEL) <= UNREAD)


def _label(case: Case) -> np.ndarray:
    """(1,) the label that was read off the update before, or else the label that the head's gradient shows."""
    if case.observation.labels is not None:
        return np.asarray(case.observation.labels)
    return np.asarray(label_of_one_sample(case.share.model.head_of(case.observation.payload, gradient=True)))


def whatever_the_loss(case: Case) -> Iterator[Answer | str]:
    """Try what needs neither the loss nor the label: the first dense layer's inputs, and peeling below that layer."""
    yield "The loss is not stated to be the cross-entropy of classes. What is tried needs neither loss nor labels."
    if _is_a_batch(case):
        yield from of_several(case)
        return
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
    model = case.share.model
    if model.head and peeled.layer in model.head_names and not why_not(case):
        yield "Peeling was not tried: below the last dense layer it would know less than the search without the loss."
        return
    # Scores, rivals and agreement use the gradients of this layer and those below it alone, which need no label.
    # These equations hold under every loss, so that no other loss is fitted to them.
    below = case._replace(share=peeled.share, observation=peeled.observation, loss_shown=True)  # type: ignore[arg-type]
    given = _with_labels(peeled, np.zeros(1, np.int32))
    answer = case.store.answer(PEELED_ALONE)
    if answer is None:
        answer = search(below, PEELED_ALONE, _peeling(peeled), given, y=np.full(1, -1, np.int32))[0]
        if answer is None:
            yield "Peeling was not tried: the time was spent."
            return
        # The distance of each part alone allows it a scale of its own; the joint distance allows both only one.
        furthest = max(answer.cosine_distance, _furthest_part(peeled, answer.x))
        answer = as_stated(below, answer)._replace(cosine_distance=furthest)
    if answer.finished:
        case.store.keep(PEELED_ALONE, answer)
    yield answer


def _furthest_part(peeled: Peeled, x: np.ndarray) -> float:
    """The larger of two cosine distances: that of the layer's inputs, and that of the gradient below the layer.

    The gradient has the smaller norm. In a joint distance the inputs would outweigh it, and the inputs alone do not
    determine an image.
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

    A client hides nothing from it by a loss of its own, or by changing the gradients of other layers.
    """
    peeled = _of_one_sample(case)
    solved = None if peeled is None else _affine(case, peeled)
    if solved is not None:
        yield solved


def _of_one_sample(case: Case) -> Peeled | None:
    """The network below the first dense layer with a bias, if that layer's gradient has the form of one sample's."""
    model, seen = case.share.model, case.observation
    peeled = peel(model, seen, batch_norm=case.share.batch_norm, key=case.key)
    if peeled is None:
        return None
    matrix = model.matrix(peeled.layer, named_leaves(seen.payload)[peeled.layer])
    # The signs of one sample's gradient have that form as well, and are equal for all images without a black pixel. A
    # step of Adam has that form, too, with entries that differ a little in size.
    if matrix.shape[1] > 1 and of_one_size(np.asarray(matrix), near=_SIGNS_NEAR, at_least=1) >= _SIGNS_ABOVE:
        return None
    return peeled if misfit_of_one_sample(model, seen.payload, peeled.layer) < LAYER_MISFIT_BELOW else None


def _affine(case: Case, peeled: Peeled) -> Answer | None:
    """The image that gives the layer these inputs, if nothing but an affine map comes before the layer; else None."""
    watch = Stopwatch()
    x = affine_solution(peeled)
    if x is None:
        return None
    misfit = misfit_of_one_sample(case.share.model, case.observation.payload, peeled.layer)
    # The cosine distance between a matrix and its part of that form; the rest of the matrix is orthogonal to this part.
    distance = 1 - math.sqrt(max(0.0, 1 - misfit**2))
    spent: dict[str, Any] = watch.spent
    found = Answer(ALONE, without_rounding(np.asarray(x)[None]), np.full(1, -1), misfit, distance, solved=True, **spent)
    # A client that scales the gradients of kernel and bias differently scales these inputs.
    return found._replace(toned=np.ones(1, bool)) if case.defended else found


def _with_labels(peeled: Peeled, y: np.ndarray) -> Observation:
    return peeled.observation._replace(labels=jnp.asarray(y))


def _peeling(peeled: Peeled) -> Attack:
    settings = (
        presets.fedleak(_PEELED)
        ._replace(
            labels="given",  # no label enters the product with dL/dh
            smoothing=attacks.client_updates.smoothing(1.0, _PEELED_SHARPNESS) if peeled.model.has_kinks else None,
        )
        .weighing(activation=0.0, tv=_PEELED_TV)
    )
    return attacks.inversion(peeled.model, peeled.share, settings, batch_size=1)
