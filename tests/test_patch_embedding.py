"""The closed form behind a vision transformer's gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.threats import SERVER_WITHOUT_INDICES, view


@pytest.fixture(scope="module")
def problem():
    return reference.client_problem(1, reference.transformer())


@pytest.fixture(scope="module")
def observation(problem):
    return view(SERVER_WITHOUT_INDICES, reference.first_transcript(problem))


def solve(model, observation):
    attack = attacks.patch_embedding(model)
    state, info = attack.step(jax.random.key(1), attack.init(jax.random.key(0), None), observation)
    return attack.reconstruct(state, observation), info


def test_the_image_and_its_label_are_exact(problem, observation):
    found, info = solve(problem.model, observation)
    np.testing.assert_allclose(found.x, problem.private.x, atol=1e-4)
    assert found.y == problem.private.y
    assert found.answered
    assert found.gradient_matched
    assert found.score[0] == info["distance"] < 1e-5


def test_answers_are_pixels_where_the_network_reads_normalised_ones():
    model = models.normalized(reference.transformer(), mean=(0.4,), std=(0.25,))
    problem = reference.client_problem(1, model)
    found, _ = solve(model, view(SERVER_WITHOUT_INDICES, reference.first_transcript(problem)))
    np.testing.assert_allclose(found.x, problem.private.x, atol=1e-4)


def test_against_a_plain_least_squares(problem, observation):
    tokens = np.asarray(observation.payload["position"], np.float64)[0, 1:]
    kernel = np.asarray(observation.payload["embed"]["kernel"], np.float64)
    patches = np.linalg.lstsq(tokens.T, kernel.T, rcond=None)[0]
    found, _ = solve(problem.model, observation)
    for t in range(4):
        row, column = 2 * (t // 2), 2 * (t % 2)
        patch = found.x[0, 0, row : row + 2, column : column + 2]
        np.testing.assert_allclose(np.ravel(patch), patches[t], atol=1e-4)


def test_only_three_leaves_are_read(problem, observation):
    payload = observation.payload
    narrow = {"position": payload["position"], "embed": {"kernel": payload["embed"]["kernel"]}, "head": payload["head"]}
    assert set(narrow) < set(payload)
    found, _ = solve(problem.model, observation._replace(payload=narrow))
    np.testing.assert_allclose(found.x, problem.private.x, atol=1e-4)
    with pytest.raises(ValueError, match="embed/kernel, which the threat does not grant"):
        solve(problem.model, observation._replace(payload={**narrow, "embed": {}}))


def test_what_is_not_one_images_gradient_is_not_answered(problem, observation):
    two = reference.client_problem(2, problem.model)
    found, _ = solve(problem.model, view(SERVER_WITHOUT_INDICES, reference.first_transcript(two)))
    assert not found.answered
    assert not found.gradient_matched
    noisy = jax.tree.map(lambda g: g + 0.1 * jax.random.normal(jax.random.key(0), g.shape), observation.payload)
    assert not solve(problem.model, observation._replace(payload=noisy))[0].gradient_matched


def test_more_tokens_than_the_width_are_not_answered():
    model = models.vit((4, 4, 1), 3, patch_size=1, width=8, depth=1, heads=2)
    variables = jax.jit(model.init)(jax.random.key(0))
    batch = Batch(jnp.linspace(0, 1, 16).reshape(1, 1, 4, 4, 1), jnp.zeros(1, jnp.int32), jnp.arange(1))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    found, _ = solve(model, Observation(jnp.zeros((), jnp.int32), variables, payload))
    assert found.score < 1e-4  # sixteen unknowns a pixel, eight equations: solved, but by many images
    assert found.gradient_matched
    assert not found.answered


def test_bad_input():
    with pytest.raises(ValueError, match="batch_size must be 1"):
        attacks.patch_embedding(reference.transformer(), batch_size=2)
    with pytest.raises(ValueError, match="this model has none"):
        attacks.patch_embedding(models.mlp((4, 4, 1), 3))
