"""Tests of an answer before an audit certifies images: brightness, weight in the batch, and pixels that are read."""

from collections.abc import Callable
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import answer_of, case_of, perceptron

from jaxleak import Batch, Observation, audit, models, protocols
from jaxleak.audit._checks.contents import _weights
from jaxleak.audit._checks.head import _reads_positive
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._checks.precision import Precision
from jaxleak.audit._descent import explains_as_well
from jaxleak.audit._verdict import questions, without_loss
from jaxleak.audit._verdict.case import graded
from jaxleak.audit._verdict.copies import toned_images, turned_images
from jaxleak.audit._verdict.judgement import told
from jaxleak.audit._verdict.one_sample import _inputs_alone, not_of_one_sample
from jaxleak.audit._verdict.questions import (
    comparing,
    drawn_out,
    of_open_pixels,
    one_by_one,
    without_weight,
)
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, ALONE, decide

SHAPE = (8, 8, 1)
#: Mask that selects both images of an answer.
ALL = np.ones(2, bool)


def case_at(net, x, y, change=lambda variables: variables):
    """The audit case of a client with images x (N, 8, 8, 1) and labels y, and the answer with exactly these images."""
    model = net if isinstance(net, models.Classifier) else models.classifier(net, image_shape=SHAPE)
    share, variables = protocols.ClientShare(model), change(reference.drawn(model))
    payload = jax.jit(share)(variables, Batch(jnp.asarray(x)[:, None], jnp.asarray(y), jnp.arange(len(y))))
    case = case_of(share, Observation(jnp.zeros((), jnp.int32), variables, payload))._replace(samples=len(y))
    return case, answer_of()._replace(x=x, y=np.asarray(y), misfit=1e-4)


def share_of(case, x):
    """The update for images x in place of the client's own, as one vector."""
    seen, y = case.observation, jnp.arange(len(x))
    return reference.flat(case.share(seen.params, Batch(jnp.asarray(x)[:, None], y, y)))


def images(count):
    return np.asarray(reference.uniform(count, *SHAPE, seed=1))


def test_batch_statistics_leave_the_brightness_of_the_batch_open():
    small = {"channels": (4,), "strides": (2,)}
    for batch_norm in (True, False):
        case, answer = case_at(models.convnet(SHAPE, 3, batch_norm=batch_norm, **small), images(2), [0, 1])
        assert toned_images(case, answer, ALL).tolist() == [batch_norm] * 2


def test_statistics_of_each_image_leave_the_brightness_of_each_open():
    class Normalised(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3), use_bias=False)(x)
            x = nn.GroupNorm(num_groups=1)(x).reshape(len(x), -1)
            return nn.Dense(3)(nn.relu(x))

    case, answer = case_at(Normalised(), images(2), [0, 1])
    assert one_by_one(comparing(case, answer), answer, 0.5 * answer.x, np.ones(2, bool)).tolist() == [True, True]
    assert toned_images(case, answer, ALL).tolist() == [True, True]
    # With batch statistics, the brightness of a single image of the batch is determined.
    case, answer = case_at(models.convnet(SHAPE, 3, batch_norm=True, channels=(4,), strides=(2,)), images(2), [0, 1])
    assert one_by_one(comparing(case, answer), answer, 0.5 * answer.x, np.ones(2, bool)).tolist() == [False, False]


class _Seen(nn.Module):
    """A small network on transformed images; with several transformations in `by`, the mean of its outputs."""

    by: tuple = ()

    @nn.compact
    def __call__(self, x):
        first, second = nn.Dense(64), nn.Dense(4)
        return sum(second(nn.tanh(first(seen(x).reshape(len(x), -1)))) for seen in self.by) / len(self.by)


def _own(x):
    return x


@pytest.mark.parametrize(
    ("seen", "room"),
    [
        (lambda x: x - x.mean((1, 2), keepdims=True), 0.4),
        (lambda x: (x - x.mean((1, 2), keepdims=True)) / (x.std((1, 2), keepdims=True) + 1e-9), 0.0),
        (_own, 0.4),
    ],
    ids=["mean", "mean and deviation", "nothing"],
)
def test_a_mean_that_is_taken_off_leaves_the_tones_open(seen, room):
    x = room / 2 + (1 - room) * images(2)
    case, answer = case_at(_Seen((seen,)), x.astype(np.float32), [0, 1])
    assert toned_images(case, answer, ALL).tolist() == [seen is not _own] * 2


@pytest.mark.parametrize(
    "turn", [lambda x: x[:, :, ::-1], lambda x: x[:, ::-1], lambda x: 1 - x, lambda x: x.swapaxes(1, 2)]
)
def test_an_image_whose_mirror_image_has_the_same_update_is_not_determined(turn):
    case, answer = case_at(_Seen((_own, turn)), images(2), [0, 1])
    assert turned_images(case, answer, ALL).tolist() == [True, True]
    case, answer = case_at(_Seen((_own,)), images(2), [0, 1])
    assert turned_images(case, answer, ALL).tolist() == [False, False]
    # A symmetric image equals its mirror image.
    x = images(2)
    case, answer = case_at(_Seen((_own, lambda x: x[:, :, ::-1])), (x + x[:, :, ::-1]) / 2, [0, 1])
    assert turned_images(case, answer, ALL).tolist() == [False, False]


def test_two_images_that_are_stated_as_one_are_no_outer_product():
    for count, labels in ((1, [1]), (2, [1, 1]), (2, [0, 1])):
        case, answer = case_at(_Seen((_own,)), images(count), labels)
        why = not_of_one_sample(case._replace(samples=1, defended=False))
        assert bool(why) == (count == 2)
        assert not not_of_one_sample(case._replace(samples=2, defended=False))
        one = graded(case._replace(contradicted=why), "fedleak_400", answer.x, answer.y)
        assert one.contradicted == why
        found = answer._replace(agreement=np.ones(count), x=images(count), contradicted=why)
        assert found.shown.all() == (count == 1)
        assert ("has not the form that one sample gives" in told(found)) == (count == 2)


@pytest.mark.parametrize("rate", [1e-2, 1e-4])
def test_rounding_of_weights_and_a_black_image_are_no_second_sample(rate):
    net = models.mlp(SHAPE, 10, widths=(64, 64, 64, 64), activation="sigmoid")
    case, _ = case_at(net, images(1), [3])
    weights, gradient = case.observation.params["params"], case.observation.payload
    after = jax.tree.map(lambda w, g: w - jnp.float32(rate) * g, weights, gradient)
    sent = jax.tree.map(lambda w, a: (w - a) / jnp.float32(rate), weights, after)
    case = case._replace(samples=1, defended=False)
    read = case._replace(observation=case.observation._replace(payload=sent))
    assert not_of_one_sample(read)  # read as an exact gradient, it is not one sample's
    assert not not_of_one_sample(read._replace(precision=Precision(of_weights=True, scale=1 / rate)))
    black, _ = case_at(net, 0 * images(1), [3])
    assert not not_of_one_sample(black._replace(samples=1, defended=False))


def test_a_head_that_has_nearly_all_of_the_update_does_not_hide_the_layers_below():
    """After sigmoids, the head's gradient hardly depends on the images and is much larger than the first layer's."""
    case, answer = case_at(models.mlp(SHAPE, 10, widths=(64, 32), activation="sigmoid"), 0.3 * images(2), [0, 1])
    half = share_of(case, 0.5 * answer.x)
    sent = reference.flat(case.observation.payload)
    assert np.linalg.norm(half - sent) < 0.01 * np.linalg.norm(sent)
    assert not toned_images(case, answer, ALL).any()
    assert not without_weight(case, answer).any()


def test_an_image_that_weighs_nothing_in_its_batch_is_not_determined():
    def sure(variables):  # predicts class 0 for every image
        params = variables["params"]
        return {**variables, "params": params | {"head": params["head"] | {"bias": jnp.array([12.0, 0.0, 0.0])}}}

    net = models.mlp(SHAPE, 3, widths=(8,))
    case, answer = case_at(net, images(2), [1, 0], sure)
    assert without_weight(case, answer).tolist() == [False, True]
    case, answer = case_at(net, images(2), [1, 0])
    assert without_weight(case, answer).tolist() == [False, False]


def test_what_a_mask_hides_is_not_determined():
    class Masked(nn.Module):
        @nn.compact
        def __call__(self, x):
            seen = jnp.arange(SHAPE[1]) < SHAPE[1] - self.hidden
            return nn.Dense(4)(nn.tanh(nn.Dense(64)((x * seen[:, None]).reshape(len(x), -1))))

        hidden: int = 2

    for hidden in (2, 0):
        case, answer = case_at(Masked(hidden=hidden), images(2), [0, 1])
        found = audit.rival(case.share, case.observation, answer.x, answer.y, key=jax.random.key(0), iterations=30)
        assert found.undetermined.all() == bool(hidden)
        np.testing.assert_allclose(found.unread, hidden / SHAPE[1], atol=0.1)


class _Pixelwise(nn.Module):
    """A network that first applies a function to every pixel."""

    by: Callable = nn.relu

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.tanh(nn.Dense(64)(self.by(x).reshape(len(x), -1))))


def test_a_dead_pixel_is_not_read_though_the_kinks_are_smoothed_on_the_way():
    x = np.where(images(2) < 0.5, 0.05, 0.95).astype(np.float32)  # noise lifts no dark pixel above the kink
    case, answer = case_at(models.classifier(_Pixelwise(lambda x: nn.relu(x - 0.65)), image_shape=SHAPE), x, [0, 1])
    found = audit.rival(case.share, case.observation, answer.x, answer.y, key=jax.random.key(0), iterations=1)
    np.testing.assert_allclose(found.unread, (x < 0.5).mean(axis=(1, 2, 3)), atol=0.05)
    assert found.undetermined.all()


@pytest.mark.parametrize(("sign", "flip"), [(1, 0.0), (-1, 1.0)])
def test_pixels_behind_a_saturated_layer_may_have_other_values(sign, flip):
    # tanh(12 (x - 1)) is -1 for all but the brightest pixels, and tanh(12 x) is 1 for all but the darkest.
    x = np.abs(flip - images(2) ** 2)
    saturated = _Pixelwise(lambda x: jnp.tanh(12 * (x - (sign > 0))))
    for net, found in ((saturated, True), (_Pixelwise(nn.tanh), False)):
        case, answer = case_at(net, x, [0, 1])
        assert without_weight(case, answer).tolist() == [False, False]
        assert of_open_pixels(case, answer, ALL).tolist() == [found, found]
        assert of_open_pixels(case, answer, ~ALL).tolist() == [False, False]


def _without_means(x, side):
    """Remove the mean of every square of `side` pixels from images, but keep the mean of the whole image."""
    squares = x.reshape(len(x), 8 // side, side, 8 // side, side, 1)
    off = (squares - squares.mean(axis=(2, 4), keepdims=True)).reshape(x.shape)
    return off + (x.mean(axis=(1, 2, 3), keepdims=True) if side < 8 else 0)


@pytest.mark.parametrize(("side", "found"), [(4, True), (8, False), (1, False)])
def test_a_few_open_directions_are_drawn_out(side, found):
    """Means of patches are few open directions among the pixels; the mean of a whole image only changes the tone."""
    of_side = (lambda x: _without_means(x, side)) if side > 1 else (lambda x: x)
    case, answer = case_at(_Pixelwise(of_side), 0.4 + 0.2 * images(2), [0, 1])
    other = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key)
    assert not other.undetermined.any()
    assert drawn_out(case, answer, other, ALL).tolist() == [found, found]


def test_what_a_search_has_not_yet_brought_back_is_not_open():
    """The update determines four rows of thirty numbers, although three hundred steps do not restore all of them."""
    net = nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(64), nn.tanh, nn.Dense(2)])
    model = models.classifier(net, image_shape=(1, 1, 30))
    for seed in range(3):
        x = np.asarray(reference.uniform(4, 1, 1, 30, seed=seed))
        case, answer = case_at(model, x, [0, 1, 0, 1])
        other = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key)
        assert not drawn_out(case, answer, other, np.ones(4, bool)).any()


def test_noise_on_the_update_opens_no_image():
    x = np.asarray(reference.uniform(4, *SHAPE, seed=1))
    case, answer = case_at(_Pixelwise(nn.tanh), x, [0, 1, 2, 3])
    seen = case.observation

    def noisy(leaf):
        return leaf + 0.03 * jnp.std(leaf) * jax.random.normal(jax.random.key(leaf.size), leaf.shape)

    case = case._replace(observation=seen._replace(payload=jax.tree.map(noisy, seen.payload)))
    other = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key)
    assert not other.undetermined.any()
    assert not drawn_out(case, answer, other, np.ones(4, bool)).any()


def test_directions_that_the_first_search_hides_are_drawn_out():
    """The open direction is one half of the image against the other, which white noise hardly has and mostly loses."""
    half = jnp.where(jnp.arange(8)[:, None, None] < 4, 1.0, -1.0)
    level = _Pixelwise(lambda x: x - half * jnp.mean(half * x, axis=(1, 2, 3), keepdims=True))
    case, answer = case_at(level, 0.3 + 0.4 * images(2), [0, 1])
    other = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key)
    assert (other.similarity > AGREE_ABOVE).all()
    assert drawn_out(case, answer, other, ALL).all()
    assert drawn_out(case, answer, other, np.array([True, False])).tolist() == [True, False]
    assert not drawn_out(case, answer, other, ~ALL).any()


def test_a_number_counts_as_read_where_one_noisy_copy_reads_it():
    x = np.full((1, *SHAPE), 0.5, np.float32)
    case, answer = case_at(_Pixelwise(lambda x: nn.relu(x - 0.6)), x, [0])
    found = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key, iterations=1)
    # A pixel of 0.5 exceeds 0.6 in 31 % of noisy copies, so with a probability of 33 % in none of three.
    assert found.unread[0] == pytest.approx(0.33, abs=0.15)


def test_images_of_two_classes_may_be_one_where_the_loss_is_not_known(monkeypatch):
    asked = []
    monkeypatch.setattr(questions, "indistinct", lambda *_, pairs, **__: asked.append(pairs))
    received, answer = SimpleNamespace(share=None, in_part=False, undone=None), answer_of()._replace(y=np.arange(2))
    for unknowns, certified in ((0, ALL), (6, ALL), (6, ~ALL)):  # images without a certificate are not tested
        case = SimpleNamespace(received=received, observation=None, unknowns=unknowns)
        questions.indistinct_of(case, answer, 0.1, certified)
    assert asked == [(), ((0, 1),), ()]


def test_a_descent_that_broke_down_has_excluded_nothing():
    assert explains_as_well(float("nan"), 0.1)
    assert explains_as_well(0.1, float("nan"))
    assert explains_as_well(0.01, 0.0)
    assert not explains_as_well(0.011, 0.005)


def test_of_rounding_that_is_not_known_no_more_than_five_percent_are_forgiven(monkeypatch):
    monkeypatch.setattr(without_loss, "rounding_of", lambda _: float("inf"))
    case = SimpleNamespace(received=SimpleNamespace(undone=None, in_part=False))
    found = answer_of(agreement=np.ones(2))._replace(undetermined=np.zeros(2, bool), remainder=0.04)
    assert without_loss.as_stated(case, found).explained
    assert not without_loss.as_stated(case, found._replace(remainder=0.06)).explained


@pytest.mark.parametrize("defended", [True, False])
def test_inputs_of_a_layer_have_no_scale_where_the_client_may_have_changed_its_update(defended):
    """If kernel and bias gradients were clipped separately, the computed inputs have an unknown scale."""
    model = perceptron()
    x = np.asarray(reference.uniform(1, 4, 4, 1, seed=1))
    case, _ = case_at(model, x, [2])
    (answer,) = _inputs_alone(case._replace(defended=defended))
    assert (answer.toned is not None and answer.toned.all()) == defended
    _, (reason,) = decide([], Labels.none(10), answer, [], [])
    assert answer.attack == ALONE
    assert ("apart from copies of 1 in other tones" in reason) == defended
    condition = (
        "if the update is one sample's, as stated, and the layer's weights and biases have one learning rate and were "
        "not clipped apart."
    )
    assert reason.endswith(f"from the update, {condition}")


def test_few_entries_that_point_where_the_weights_do_are_suspicious_only():
    rng = np.random.default_rng(0)
    for size, status in ((2, "suspicious"), (99, "suspicious"), (100, "failed")):
        weights = {"a": rng.normal(size=size)}
        assert _weights({"a": -3 * weights["a"]}, weights).status == status


def test_few_features_are_positive_only_if_they_are_so_at_black_and_white_images():
    """Each of two units is negative if one half of the image is white and the other half is black."""

    class Halves(nn.Module):
        @nn.compact
        def __call__(self, x):
            left, right = x[:, :, :4].mean(axis=(1, 2, 3)), x[:, :, 4:].mean(axis=(1, 2, 3))
            features = jnp.stack([left - right + 0.15, right - left + 0.15], axis=1)
            return nn.Dense(3)(nn.relu(features) if self.cut else features)

        cut: bool = False

    for cut in (True, False):
        model = models.classifier(Halves(cut=cut), image_shape=SHAPE)
        assert _reads_positive(model, reference.drawn(model), "train") is cut
