"""Ambiguities of a search without the loss: mixtures of images, and their brightness."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_updates import answer_of, case_of, fresh_head

from jaxleak import Batch, Observation, audit, defenses, models, protocols
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks._inversion.any_loss import any_loss_share
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._verdict import stages, without_loss
from jaxleak.audit._verdict.copies import toned_images
from jaxleak.audit._verdict.questions import left_by_noise
from jaxleak.audit._verdict.verdict import ANY_LOSS, decide
from jaxleak.audit._verdict.warnings import less_noise
from jaxleak.audit._verdict.without_loss import as_fitted, as_stated, under_any_loss

OUTPUTS, SIDE = 6, 8


def network(biases):
    """Two dense layers with a ReLU between them, both with or both without a bias."""
    start = {"a": reference.normal(SIDE * SIDE, 20) / SIDE}
    start["b"] = reference.normal(20, OUTPUTS, seed=1) / 5
    if biases:
        start |= {"a0": jnp.full(20, 0.1), "b0": jnp.zeros(OUTPUTS)}

    def apply(variables, x):
        p = variables["params"]
        h = jax.nn.relu(x.reshape(len(x), -1) @ p["a"] + p.get("a0", 0.0))
        return h @ p["b"] + p.get("b0", 0.0)

    return models.from_function(apply, {"params": start}, image_shape=(SIDE, SIDE, 1), num_classes=OUTPUTS)


def linear():
    start = {"w": reference.normal(SIDE * SIDE, OUTPUTS) / SIDE, "c": jnp.zeros(OUTPUTS)}

    def apply(variables, x):
        return x.reshape(len(x), -1) @ variables["params"]["w"] + variables["params"]["c"]

    return models.from_function(apply, {"params": start}, image_shape=(SIDE, SIDE, 1), num_classes=OUTPUTS)


def sent(model, variables, images):
    x = reference.uniform(images, *model.image_shape, seed=2)
    y = jax.random.bernoulli(jax.random.key(3), 0.5, (images, OUTPUTS)).astype(jnp.float32)

    def loss(params):
        logits = model.apply({**variables, "params": params}, x, mode="train").logits
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    return np.asarray(x), jax.grad(loss)(variables["params"])


def case_without_loss(model, variables, images):
    x, gradient = sent(model, variables, images)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    return x, case_of(protocols.ClientShare(model), seen)._replace(samples=images, loss_known=False)


def test_a_layer_tells_no_more_than_its_rank():
    """A matrix r x c of rank n has n (r + c - n) free numbers; c counts only active units."""
    model, variables = network(biases=True)
    _, case = case_without_loss(model, variables, 2)
    gradient = named_leaves(case.observation.payload)
    alive = int(np.any(np.asarray(gradient["b"]) != 0, axis=1).sum())
    sizes = ((SIDE * SIDE + 1, int(np.any(np.asarray(gradient["a"]) != 0, axis=0).sum())), (alive + 1, OUTPUTS))
    assert case.held.entries == sum(2 * (r + c - 2) for r, c in sizes)
    assert under_any_loss(case).held == case.held
    assert under_any_loss(case).unknowns == 2 * OUTPUTS


def test_mixtures_behind_a_linear_network_are_not_certified(monkeypatch):
    """Mixtures have the same gradient as the images under another loss, and two starts may agree on them."""
    monkeypatch.setattr(stages, "_LATER", (10**9,))  # one search is enough
    model, variables = linear()
    _, gradient = sent(model, variables, 2)
    verdict = audit.update(model, variables, gradient, batch_size=2, loss="other", minutes=1.0)
    assert verdict.answers
    assert not any(answer.determined or answer.shown.any() for answer in verdict.answers)


@pytest.mark.slow
def test_an_image_of_which_a_blend_explains_the_update_as_well_is_not_certified():
    """The starts agree, and noise finds no rival, but the convolutions below the head are nearly linear."""
    model, variables = fresh_head()
    corners = np.random.default_rng(1).random((3, 2, 2, 3))
    x = jnp.asarray(corners.repeat(4, axis=1).repeat(4, axis=2), jnp.float32)
    targets = 0.4 * jax.nn.one_hot(jnp.array([9, 0, 8]), 10)
    targets += 0.6 * targets.mean(axis=0) / 0.4

    def loss(params):
        logits = model.apply({**variables, "params": params}, x, mode="train").logits
        return optax.softmax_cross_entropy(logits, targets).mean()

    sent = jax.grad(loss)(variables["params"])
    verdict = audit.update(model, variables, sent, batch_size=3, loss="other", minutes=3)
    answer = next(found for found in verdict.answers if found.fitted)
    assert (answer.agreement > 0.99).all()
    assert answer.undetermined.any()
    assert not (answer.shown & answer.undetermined).any()


@pytest.mark.parametrize("biases", [True, False])
def test_the_brightness_is_open_in_a_network_without_biases(biases):
    model, variables = network(biases)
    x, case = case_without_loss(model, variables, 2)
    fitted = under_any_loss(case)
    answer = answer_of()._replace(x=x, y=np.full(2, -1), misfit=1e-4)
    assert toned_images(fitted, answer, np.ones(2, bool)).tolist() == [not biases] * 2


def test_images_whose_brightness_is_open_are_certified_but_for_it():
    shown = answer_of(agreement=np.ones(2))._replace(undetermined=np.zeros(2, bool), toned=np.array([True, False]))
    outcome, reasons = decide([], Labels.none(OUTPUTS), shown, [], [])
    assert outcome == "leaks"
    tones = (
        "apart from copies of 1 in other tones, whose brightness, contrast or colour is not known, in the whole image"
    )
    tones += " or in parts"
    assert f"update {tones}, and" in reasons[0]
    _, reasons = decide([], Labels.none(OUTPUTS), shown._replace(toned=np.zeros(2, bool)), [], [])
    assert "tones" not in reasons[0]


def test_one_program_serves_all_searches_without_the_loss():
    model, variables = network(biases=True)
    _, case = case_without_loss(model, variables, 2)
    assert under_any_loss(case).share is under_any_loss(case).share
    assert any_loss_share(model, "train") is not any_loss_share(model, "eval")


@pytest.mark.parametrize(
    ("remainder", "fitted", "shown", "explained"),
    [
        (0.015, 0.001, False, True),
        (0.04, 0.039, False, True),
        (0.04, 0.02, False, False),
        (0.04, 0.02, True, True),
        (0.045, 0.044, False, True),
        (0.06, 0.055, False, False),
        (0.06, 0.0, True, False),
    ],
)
def test_another_loss_shows_by_how_much_more_it_explains(monkeypatch, remainder, fitted, shown, explained):
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model), seen)._replace(samples=2, loss_shown=shown, show=lambda *_: None)
    monkeypatch.setattr(without_loss, "rival_of", lambda *_: SimpleNamespace(answer_misfit=fitted))
    near = answer_of(agreement=np.ones(2))._replace(x=x, y=np.zeros(2, np.int32), remainder=remainder)
    found = as_stated(case, near)
    assert found.explained == explained
    assert found.shown.all() == explained
    # The same holds for an unknown defense and for a known one.
    assert as_stated(case._replace(defended=True), near).explained == explained
    known = case._replace(defense=defenses.client_defense("quantization", 8))
    assert as_stated(known, near).explained == explained


@pytest.mark.parametrize(
    ("remainder", "fitted", "samples", "explained"),
    [(0.01, 0.001, 2, False), (0.01, 0.009, 2, False), (0.0029, 0.0, 2, True), (0.01, 0.001, 1, True)],
)
def test_of_two_classes_blends_leave_little_under_another_loss(monkeypatch, remainder, fitted, samples, explained):
    model = models.mlp((4, 4, 1), 2, widths=(6,), activation="tanh")
    variables = jax.jit(model.init)(jax.random.key(0))
    seen = Observation(jnp.zeros((), jnp.int32), variables, variables["params"])
    case = case_of(protocols.ClientShare(model), seen)._replace(samples=samples, show=lambda *_: None)
    monkeypatch.setattr(without_loss, "rival_of", lambda *_: SimpleNamespace(answer_misfit=fitted))
    monkeypatch.setattr(without_loss, "_no_loss_is_fitted", lambda case: False)
    near = answer_of(agreement=np.ones(2))._replace(x=np.full((2, 4, 4, 1), 0.5), remainder=remainder)
    assert as_stated(case, near).explained == explained
    unfitted = near._replace(attack="any_loss_400")
    assert as_fitted(case, unfitted).explained == (explained or samples == 1)


@pytest.mark.parametrize(
    ("remainder", "fitted", "noise", "lacks", "explained"),
    [
        (0.06, 0.055, 0.0, False, False),
        (0.06, 0.055, 0.05, False, True),
        (0.06, 0.03, 0.05, False, True),  # with so much noise, a fitted loss may leave less
        (0.08, 0.05, 0.05, False, False),
        (0.06, 0.055, 0.13, True, False),  # less than half of the remainder that the noise would leave
        (0.13, 0.12, 0.142, True, False),  # the client's own images would be too far away for a certificate
        (0.13, 0.12, 0.14, False, True),
    ],
)
def test_noise_explains_what_remains_where_it_may_be_there(monkeypatch, remainder, fitted, noise, lacks, explained):
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model), seen)._replace(samples=2, show=lambda *_: None)
    monkeypatch.setattr(without_loss, "rival_of", lambda *_: SimpleNamespace(answer_misfit=fitted))
    near = answer_of(agreement=np.ones(2))._replace(x=x, y=np.zeros(2, np.int32), remainder=remainder, noise=noise)
    assert near.lacks_noise == lacks
    assert not near._replace(cosine_distance=0.02).lacks_noise
    assert as_stated(case, near).explained == explained
    steps = case._replace(share=protocols.ClientShare(model, local_steps=2, learning_rate=0.1))
    assert as_stated(steps, near).explained == (remainder <= 0.02 + noise and not lacks)
    warned = less_noise([answer_of(), near])
    assert bool(warned) == lacks
    assert all(f"leave {remainder:.1%} of the update unexplained" in finding.evidence for finding in warned)


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("soteria", {"strength": 0.1}),  # acts on features
        ("dp_sgd", {"clip": 10.0, "noise_multiplier": 0.0}),  # acts on every sample
        ("sparsification", {"strength": 10.0}),  # leaves entries out
        ("withhold_top", {"strength": 50.0}),  # leaves out the layer from which other losses are read
    ],
)
def test_much_may_remain_behind_no_defense(monkeypatch, name, stated):
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model), seen)._replace(samples=2, show=lambda *_: None)
    case = case._replace(defense=defenses.client_defense(name, **stated), defended=True)
    monkeypatch.setattr(without_loss, "rival_of", lambda *_: SimpleNamespace(answer_misfit=0.045))
    near = answer_of(agreement=np.ones(2))._replace(x=x, y=np.zeros(2, np.int32))
    assert as_stated(case, near._replace(remainder=0.015)).explained
    assert not as_stated(case, near._replace(remainder=0.05)).explained


def test_little_may_remain_under_a_loss_that_is_fitted():
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = under_any_loss(case_of(protocols.ClientShare(model), seen)._replace(samples=2))
    found = answer_of(f"{ANY_LOSS}_400", agreement=np.ones(2))._replace(x=x)
    for remainder, explained in ((None, True), (0.045, True), (0.06, False)):
        assert as_fitted(case, found._replace(remainder=remainder)).explained == explained


def test_what_the_noise_of_a_defense_leaves_is_known_wherever_it_acts():
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model), seen)._replace(samples=2)
    own = answer_of()._replace(x=x, y=np.zeros(2, np.int32))

    def left(name, **stated):
        noise = left_by_noise(case._replace(defense=defenses.client_defense(name, **stated)), own)
        return None if noise is None else noise.of(noise.off)

    sizes = [leaf.size for leaf in jax.tree.leaves(gradient)]
    share = protocols.ClientShare(model)
    length = norm(share(variables, Batch(jnp.asarray(x)[:, None], jnp.zeros(2, jnp.int32), jnp.arange(2))))
    noise = 10.0 * 0.01 * np.sqrt(sum(sizes)) / 2  # on the sum over two samples
    np.testing.assert_allclose(
        left("dp_sgd", clip=10.0, noise_multiplier=0.01), noise / np.hypot(noise, length), rtol=0.1
    )
    assert left("dp_sgd", clip=10.0, noise_multiplier=0.0) < 1e-6
    assert left("soteria", strength=0.1) < 1e-6
    assert left("guardian", strength=0.5) > 0.01
    assert left("cancelling_noise", strength=1.0) is None  # only several clients together can draw it
    assert left("adam_step", strength=1e-2) is None  # only bounds of it are known


@pytest.mark.parametrize(("remainder", "value", "asked"), [(0.04, 1.0, True), (0.015, 1.0, False), (0.04, 0.9, False)])
def test_values_beyond_the_range_are_asked_for_where_pixels_end_at_it_and_much_remains(
    monkeypatch, remainder, value, asked
):
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 1)
    case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), variables, gradient))
    bounds = []
    monkeypatch.setattr(
        without_loss,
        "rival_of",
        lambda *_, **given: bounds.append(given["bounds"]) or SimpleNamespace(answer_misfit=0.01),
    )
    x = x.copy()
    x[0, 0, 0] = value
    near = answer_of(agreement=np.ones(1))._replace(x=x, y=np.zeros(1, np.int32), remainder=remainder)
    found = as_stated(case._replace(loss_shown=True), near)
    assert (found.beyond == 0.01, bool(bounds)) == (asked, asked)
    assert found.explained  # the image is nearly right; likelier brighter images only cause a warning
    assert all(low < 0 and high > 1 for low, high in bounds)


def test_where_no_loss_can_be_fitted_little_may_remain():
    """An example is a frozen head, whose gradient is not sent."""
    model, variables = network(biases=True)
    x, gradient = sent(model, variables, 2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model._replace(head=None)), seen)._replace(samples=2)
    for remainder, explained in ((0.015, True), (0.04, False)):
        found = as_stated(case, answer_of(agreement=np.ones(2))._replace(x=x, remainder=remainder))
        assert (found.explained, found.fitted_remainder) == (explained, None)


@pytest.mark.parametrize("bias", [True, False])
def test_one_samples_loss_is_shown_where_the_head_has_a_bias_gradient(monkeypatch, bias):
    model, variables = network(biases=bias)
    batch = Batch(reference.uniform(1, 1, *model.image_shape), jnp.zeros(1, jnp.int32), jnp.arange(1))
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    cases = []
    monkeypatch.setattr(
        sys.modules["jaxleak.audit._verdict.update"], "run_stages", lambda case: cases.append(case) or []
    )
    audit.update(model, variables, gradient, batch_size=1)
    assert cases[0].loss_shown == bias
