"""Changes of all images together that the update does not tell: an image that batch normalisation takes off."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.flatten_util import ravel_pytree
from small_updates import answer_of, case_of

from jaxleak import Batch, Observation, audit, models, protocols
from jaxleak.audit._open_part import open_part
from jaxleak.audit._verdict import open_part as open_part_question
from jaxleak.audit._verdict.open_part import of_open_part

SHAPE, COUNT = (4, 4, 1), 3
ALL = np.ones(COUNT, bool)


class _Perceptron(nn.Module):
    """A dense layer, its normalisation if there is one, and a head."""

    normalised: bool
    by: object = nn.tanh

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(24)(x.reshape(len(x), -1))
        x = nn.BatchNorm(use_running_average=not train)(x) if self.normalised else x
        return nn.Dense(4)(self.by(x))


def _case(net, samples=COUNT):
    """An audit of a client at its own images, and these as the answer."""
    model = models.classifier(net, image_shape=SHAPE)
    share, variables = protocols.ClientShare(model), reference.drawn(model)
    x, y = np.asarray(reference.uniform(samples, *SHAPE, seed=1)), np.arange(samples)
    payload = jax.jit(share)(variables, Batch(jnp.asarray(x)[:, None], jnp.asarray(y), jnp.asarray(y)))
    case = case_of(share, Observation(jnp.zeros((), jnp.int32), variables, payload))._replace(samples=samples)
    return case, answer_of()._replace(x=x, y=y)


def _left(case, answer, change, iterations=100):
    y = jnp.asarray(answer.y, jnp.int32)
    return open_part(case.received, case.observation, jnp.asarray(answer.x), y, jnp.asarray(change), iterations)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_part_is_the_projection_on_the_kernel_of_the_jacobian(normalised):
    case, answer = _case(_Perceptron(normalised))
    seen, places = case.observation, jnp.arange(COUNT)

    def update(x):
        return ravel_pytree(case.share(seen.params, Batch(x[:, None], jnp.asarray(answer.y), places)))[0]

    jacobian = np.asarray(jax.jacobian(update)(jnp.asarray(answer.x)), np.float64).reshape(-1, answer.x.size)
    change = np.asarray(reference.uniform(*answer.x.shape, seed=2)) - 0.5
    told = np.linalg.pinv(jacobian, rcond=1e-5) @ (jacobian @ change.ravel())
    expected = change - told.reshape(change.shape)
    np.testing.assert_allclose(_left(case, answer, change, 400), expected, atol=0.01)
    share = np.sum(expected**2) / np.sum(change**2)
    assert share > 0.1 if normalised else share < 0.01


def test_a_change_that_nothing_tells_stays_as_it_is():
    case, answer = _case(_Perceptron(normalised=True))
    common = np.broadcast_to(np.asarray(reference.uniform(1, *SHAPE, seed=2)), answer.x.shape)
    np.testing.assert_allclose(_left(case, answer, common), common, atol=1e-3)


def test_an_image_that_may_be_added_to_the_whole_batch_leaves_all_of_its_images_open():
    case, answer = _case(_Perceptron(normalised=True))
    assert of_open_part(case, answer, ALL).tolist() == [True] * COUNT
    assert of_open_part(case, answer, np.arange(COUNT) == 1).tolist() == [False, True, False]
    assert not of_open_part(case, answer, ~ALL).any()
    # The search that moves every image by itself does not see it.
    found = audit.rival(case.share, case.observation, answer.x, answer.y, key=case.key)
    assert not found.undetermined.any()


class _Patches(nn.Module):
    """A convolution that reads every patch once, its normalisation, and a head."""

    patch: tuple[int, int] = (2, 2)

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(12, self.patch, strides=self.patch, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(4)(nn.tanh(x).reshape(len(x), -1))


@pytest.mark.parametrize("net", [_Perceptron(normalised=True), _Patches()])
def test_what_all_images_or_patches_share_is_tried_before_any_reduction(monkeypatch, net):
    """In a large network the reduction does not end; the noise that it would reduce is then no use."""
    monkeypatch.setattr(open_part_question, "open_part", None)
    case, answer = _case(net)
    assert of_open_part(case, answer, ALL).all()


def test_what_patches_share_that_are_no_squares_is_left_by_the_reduction(monkeypatch):
    case, answer = _case(_Patches((1, 4)))
    assert of_open_part(case, answer, ALL).all()
    monkeypatch.setattr(open_part_question, "_ITERATIONS", 1)  # a reduction that does not end leaves changes that tell
    assert not of_open_part(case, answer, ALL).any()


@pytest.mark.parametrize("samples", [1, COUNT])
def test_images_that_the_update_tells_stay_determined(samples):
    case, answer = _case(_Perceptron(normalised=False), samples)
    assert not of_open_part(case, answer, np.ones(samples, bool)).any()


def test_another_brightness_alone_is_no_other_image():
    class Centred(_Perceptron):
        def __call__(self, x, train=True):
            return super().__call__(x - x.mean(axis=(1, 2, 3), keepdims=True), train)

    case, answer = _case(Centred(normalised=False))
    left = np.asarray(_left(case, answer, np.full(answer.x.shape, 0.2, np.float32)))
    np.testing.assert_allclose(left, 0.2, atol=1e-3)
    assert not of_open_part(case, answer, ALL).any()


def test_a_client_with_a_kink_at_the_answer_is_asked_within_the_bounds():
    """A number at 1 beyond a cut at 0.5 is not read, wherever the noise would take it."""
    net = _Perceptron(normalised=False, by=nn.gelu)
    cut = models.classifier(nn.Sequential([lambda x: jnp.minimum(x, 0.5), net]), image_shape=SHAPE)
    share, variables = protocols.ClientShare(cut), reference.drawn(cut)
    x, y = np.where(np.arange(16).reshape(1, *SHAPE) < 2, 1.0, 0.25).astype(np.float32), np.zeros(1, np.int32)
    payload = jax.jit(share)(variables, Batch(jnp.asarray(x)[:, None], jnp.asarray(y), jnp.asarray(y)))
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    for seed in range(8):
        found = audit.rival(share, seen, x, y, key=jax.random.key(seed), iterations=1)
        assert found.unread[0] >= 1 / 16
        assert found.undetermined.all()
