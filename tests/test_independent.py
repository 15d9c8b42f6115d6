"""The count of an update's numbers that can depend on the images, against the rank of its Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.flatten_util import ravel_pytree
from small_updates import case_of

from jaxleak import Batch, Observation, audit, models, protocols
from jaxleak.audit._independent import _places, independent_numbers
from jaxleak.audit._verdict import one_sample, stages

SIDE, CLASSES, WIDTH = 6, 5, 9
PIXELS = SIDE * SIDE


def adapter(images=1):
    """A client that trains a head and a bottleneck after a frozen layer of few smooth features."""
    keys = iter(jax.random.split(jax.random.key(0), 5))
    frozen = jax.random.normal(next(keys), (PIXELS, WIDTH)) / SIDE
    params = {
        "down": jax.random.normal(next(keys), (WIDTH, 4)),
        "up": jax.random.normal(next(keys), (4, WIDTH)),
        "head": {"kernel": jax.random.normal(next(keys), (WIDTH, CLASSES)), "bias": jnp.zeros(CLASSES)},
    }

    def network(variables, x):
        p, features = variables["params"], jnp.tanh(x.reshape(len(x), -1) @ frozen)
        features = features + jnp.tanh(features @ p["down"]) @ p["up"]
        return features @ p["head"]["kernel"] + p["head"]["bias"]

    model, variables = models.from_function(
        network, {"params": params}, image_shape=(SIDE, SIDE, 1), num_classes=CLASSES
    )
    x = jax.random.uniform(next(keys), (images, SIDE, SIDE, 1))
    return model, variables, x


def update_of(share, variables, x):
    batch = Batch(x[:, None], jnp.arange(len(x)), jnp.arange(len(x)))
    return jax.jit(share)(variables, batch)


def rank_of_the_jacobian(share, variables, x):
    """The number of independent directions of the images that change the update, in float64."""

    def flat(x):
        return ravel_pytree(update_of(share, variables, x.reshape(-1, SIDE, SIDE, 1)))[0]

    jacobian = np.asarray(jax.jacfwd(flat)(x.ravel()), np.float64)
    values = np.linalg.svd(jacobian, compute_uv=False)
    return int((values > 1e-6 * values[0]).sum())


@pytest.mark.parametrize("images", [1, 2])
def test_what_lies_behind_a_frozen_layer_tells_no_more_than_its_width(images):
    model, variables, x = adapter(images)
    share = protocols.ClientShare(model)
    held = independent_numbers(share, update_of(share, variables, x), images)
    assert held.passed == images * WIDTH
    assert held.entries > images * WIDTH
    assert rank_of_the_jacobian(share, variables, x) == images * WIDTH


@pytest.mark.slow
def test_an_image_behind_a_narrow_frozen_layer_is_not_certified(monkeypatch):
    """Two starts of peeling agree, since the prior prefers one image among all with the same features."""
    model, variables, x = adapter()
    gradient = update_of(protocols.ClientShare(model), variables, x)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    case = case_of(protocols.ClientShare(model), seen)
    assert case.held.passed < PIXELS
    monkeypatch.setattr(one_sample, "_PEELED", 40)
    monkeypatch.setattr(stages, "_FIRST", 20)
    monkeypatch.setattr(stages, "_LATER", (10**9,))
    verdict = audit.update(model, variables, gradient, batch_size=1)
    assert verdict.answers
    assert not any(answer.shown.any() for answer in verdict.answers)
    said = f"No image can be certified: at most {WIDTH} numbers of the update depend on the images, which have {PIXELS}"
    assert any(reason.startswith(said) for reason in verdict.reasons)


def test_what_is_trained_below_the_narrowest_place_tells_of_the_image_too():
    """Here a bias on the pixels is also trained: its entries count, and no narrow place lies below it."""
    model, variables, x = adapter()
    shift = jnp.zeros((SIDE, SIDE, 1))

    def shifted(variables, x):
        inner = {"params": variables["params"]["network"]}
        return model.apply(inner, jnp.tanh(x + variables["params"]["shift"]), mode="train").logits

    wider, start = models.from_function(
        shifted,
        {"params": {"shift": shift, "network": variables["params"]}},
        image_shape=(SIDE, SIDE, 1),
        num_classes=CLASSES,
    )
    share = protocols.ClientShare(wider)
    held = independent_numbers(share, update_of(share, start, x), 1)
    assert held.passed == PIXELS  # the narrowest place with nothing trained below is the image itself
    steps = protocols.ClientShare(wider, local_steps=2, learning_rate=0.1)
    assert independent_numbers(steps, update_of(share, start, x), 2).passed == 2 * PIXELS
    places = {below: width for width, below in _places(wider, "train", 1).widths}
    assert places[frozenset()] == PIXELS
    assert places[frozenset({"shift"})] == WIDTH


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_a_network_that_trains_all_of_itself_passes_the_whole_image(name):
    options = {"mlp": {"widths": (12, 4)}, "convnet": {"channels": (4,), "strides": (2,)}}[name]
    model = models.build(name, (SIDE, SIDE, 1), CLASSES, **options)
    variables = reference.drawn(model)
    x = reference.uniform(1, SIDE, SIDE, 1, seed=1).at[0, :2].set(0.0)  # zero pixels are known to be zero
    share = protocols.ClientShare(model)
    held = independent_numbers(share, update_of(share, variables, x), 1)
    assert held.passed >= PIXELS
    assert held.entries >= PIXELS


def padded(x):
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


def repeated(x):
    return jnp.repeat(x, 3, axis=-1)


@pytest.mark.parametrize("before", [padded, pytest.param(repeated, marks=pytest.mark.slow)])
def test_black_pixels_are_known_to_be_black_however_the_image_is_read(before):
    """A row of zeros in the first dense layer reveals a black pixel, also behind padding or repetition of the image."""
    size = before(jnp.zeros((1, SIDE, SIDE, 1))).size
    params = {
        "layer": {"kernel": reference.normal(size, 8) / SIDE, "bias": jnp.zeros(8)},
        "head": {"kernel": reference.normal(8, CLASSES, seed=1), "bias": jnp.zeros(CLASSES)},
    }

    def network(variables, x):
        p = variables["params"]
        read = jnp.tanh(before(x).reshape(len(x), -1) @ p["layer"]["kernel"] + p["layer"]["bias"])
        return read @ p["head"]["kernel"] + p["head"]["bias"]

    model, variables = models.from_function(
        network, {"params": params}, image_shape=(SIDE, SIDE, 1), num_classes=CLASSES
    )
    x = reference.uniform(1, SIDE, SIDE, 1, seed=2).at[0, :3].set(0.0)
    gradient = update_of(protocols.ClientShare(model), variables, x)
    held = independent_numbers(protocols.ClientShare(model), gradient, 1)
    assert held.entries >= PIXELS
    assert held.passed >= PIXELS
    left_out = independent_numbers(protocols.ClientShare(model), gradient, 1, zeros_tell=False)
    assert left_out.entries < held.entries  # if entries may be left out, zeros prove nothing
    verdict = audit.update(model, variables, gradient, batch_size=1, minutes=0.5, truth=(x, None))
    assert verdict.best.shown.all()
    assert verdict.metrics["psnr"] > 60


def test_weights_that_are_used_transposed_as_well_are_counted_by_their_entries():
    params = {"w": reference.normal(PIXELS, WIDTH) / SIDE, "v": jnp.ones((PIXELS, CLASSES)) / 9}

    def network(variables, x):
        p = variables["params"]
        return jnp.tanh(jnp.tanh(x.reshape(len(x), -1) @ p["w"]) @ p["w"].T) @ p["v"]

    model, variables = models.from_function(
        network, {"params": params}, image_shape=(SIDE, SIDE, 1), num_classes=CLASSES
    )
    x = reference.uniform(1, SIDE, SIDE, 1, seed=2)
    share = protocols.ClientShare(model)
    held = independent_numbers(share, update_of(share, variables, x), 1)
    assert held.entries >= PIXELS * WIDTH
    assert min(held) >= rank_of_the_jacobian(share, variables, x)
