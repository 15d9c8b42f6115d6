"""Two images of a class that an update does not distinguish from one image twice, which must be nearly equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, audit, models, protocols
from jaxleak.audit._descent import LOOKS, descend
from jaxleak.audit._indistinct import nearest_pairs
from jaxleak.audit._received import Received

SHAPE = (6, 6, 1)
NEVER = 1e9  # an answer's misfit that every other image beats


@pytest.fixture(scope="module")
def client():
    """The share of a client with a small MLP, and the weights."""
    model = models.mlp(SHAPE, 3, widths=(16,))
    return protocols.ClientShare(model), reference.drawn(model)


def observed(client, x, y):
    """The client's share, and the observation of an update of images x (N, 6, 6, 1) with labels y."""
    share, variables = client
    payload = jax.jit(share)(variables, Batch(jnp.asarray(x)[:, None], jnp.asarray(y), jnp.arange(len(y))))
    return share, Observation(jnp.zeros((), jnp.int32), variables, payload)


def images(count):
    return np.array(reference.uniform(count, *SHAPE, seed=1))


def test_images_of_low_contrast_and_a_class_are_not_told_from_one_twice(client):
    x, y = images(3), np.array([0, 0, 1])
    x[1] = x[0] + 0.02 * (images(5)[4] - 0.5)
    seen = observed(client, x, y)
    np.testing.assert_array_equal(audit.indistinct(*seen, x, y, 0.0), [True, True, False])
    # Images of different classes are not tested for being one image twice.
    np.testing.assert_array_equal(audit.indistinct(*seen, x, np.array([0, 2, 1]), NEVER, iterations=2), [False] * 3)


def test_images_that_differ_are_told_apart(client):
    x, y = images(3), np.array([0, 0, 1])
    seen = observed(client, x, y)
    np.testing.assert_array_equal(audit.indistinct(*seen, x, y, 0.0), [False] * 3)
    np.testing.assert_array_equal(audit.indistinct(*seen, x, y, NEVER, iterations=2), [True, True, False])


def test_every_image_has_the_nearest_one_of_its_class_beside_it():
    x = np.array([0.0, 0.9, 0.1, 0.5, 0.52, 0.3], np.float32)[:, None, None, None] * np.ones(SHAPE, np.float32)
    # Nearest first; 0.3 has no other of its class, and 0.9 none nearer than 0.5.
    assert nearest_pairs(x, np.array([0, 1, 0, 1, 1, 2])) == ((3, 4), (0, 2), (1, 4))
    assert nearest_pairs(x[:2], np.array([0, 1])) == ()


def test_one_image_stands_in_both_places_all_the_way(client):
    x, y = images(2), np.array([0, 0])
    share, seen = observed(client, x, y)
    places, bounds = jnp.array([0, 0]), jnp.array((0.0, 1.0))
    end = descend(Received(share), seen, x, places, jnp.asarray(y), bounds, 5, jnp.broadcast_to(x, (LOOKS, *x.shape)))
    np.testing.assert_array_equal(end.x[0], end.x[1])
    assert np.abs(np.asarray(end.x[0]) - x[0]).max() > 0.01
    assert float(end.after.misfit) < float(end.before.misfit)
    # The misfit compares the update with that of the one image twice.
    sent, twice = reference.flat(seen.payload), reference.flat(observed(client, end.x, y)[1].payload)
    assert float(end.after.misfit) == pytest.approx(np.linalg.norm(twice - sent) / np.linalg.norm(sent), rel=1e-3)


def test_no_more_than_eight_pairs_are_tried(client):
    x, y = images(18), np.repeat(np.arange(9), 2) % 3
    x[1::2] = x[::2]
    seen = observed(client, x, y)
    pairs = tuple((2 * i, 2 * i + 1) for i in range(9))
    found = audit.indistinct(*seen, x, y, NEVER, pairs=pairs, iterations=1)
    np.testing.assert_array_equal(found, [True] * 16 + [False] * 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.zeros(1, int)}, r"x must have shape \(N, H, W, C\) and y \(N,\), got \(2, 6, 6, 1\) and \(1,\)"),
        ({"pairs": ((0, 2),)}, r"pairs must name two places each, from 0 to 1, got \(0, 2\)"),
        ({"pairs": ((1, 1),)}, r"pairs must name two places each, from 0 to 1, got \(1, 1\)"),
        ({"iterations": 0}, "iterations must be"),
        ({"answer_misfit": -0.1}, "answer_misfit must be"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(client, changed, message):
    x = images(2)
    given = {"x": x, "y": np.array([0, 0]), "answer_misfit": 0.0} | changed
    with pytest.raises(ValueError, match=message):
        audit.indistinct(*observed(client, x, np.array([0, 0])), **given)
