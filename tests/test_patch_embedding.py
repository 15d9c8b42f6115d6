"""The closed form behind a vision transformer's gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks._inversion import patch_embedding
from jaxleak.models._vit import Style, ViT
from jaxleak.threats import SERVER_WITHOUT_INDICES, view

CLASSES = 3


@pytest.fixture(scope="module")
def problem():
    return reference.client_problem(1, reference.transformer())


@pytest.fixture(scope="module")
def observation(problem):
    return view(SERVER_WITHOUT_INDICES, reference.first_transcript(problem))


@functools.cache
def solver(model):
    """The attack on a network as one compiled function of the observation."""
    attack = attacks.patch_embedding(model)

    @jax.jit
    def solve(observation):
        state, info = attack.step(jax.random.key(1), attack.init(jax.random.key(0), None), observation)
        return attack.reconstruct(state, observation), info

    return solve


def solve(model, observation):
    return solver(model)(observation)


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
    with pytest.raises(ValueError, match="reads parts of the payload, but the threat does not grant embed/kernel"):
        solve(problem.model, observation._replace(payload={**narrow, "embed": {}}))


@pytest.mark.slow
def test_what_is_not_one_images_gradient_is_not_answered(problem, observation):
    two = reference.client_problem(2, problem.model)
    found, _ = solve(problem.model, view(SERVER_WITHOUT_INDICES, reference.first_transcript(two)))
    assert not found.answered
    assert not found.gradient_matched
    noisy = jax.tree.map(lambda g: g + 0.1 * reference.normal(*g.shape), observation.payload)
    assert not solve(problem.model, observation._replace(payload=noisy))[0].gradient_matched


@pytest.mark.slow
def test_more_tokens_than_the_width_are_not_answered():
    model = models.vit((4, 4, 1), 3, patch_size=1, width=8, depth=1, heads=2)
    variables = jax.jit(model.init)(jax.random.key(0))
    batch = Batch(jnp.linspace(0, 1, 16).reshape(1, 1, 4, 4, 1), jnp.zeros(1, jnp.int32), jnp.arange(1))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    found, _ = solve(model, Observation(jnp.zeros((), jnp.int32), variables, payload))
    assert found.score < 1e-4  # sixteen unknowns and eight equations per pixel of a patch: many solutions
    assert found.gradient_matched
    assert not found.answered


def smooth_image(side):
    rows, columns = np.mgrid[:side, :side] / side
    return jnp.asarray(0.5 + 0.3 * np.sin(3 * rows + 1) * np.cos(2 * columns), jnp.float32)[None, ..., None]


def foreign(width, side):
    """A transformer of one block in another layout: width first, tokens last, and a position embedding to match.

    The head has no bias and reads normalised features with a sum of zero.
    """
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    params = {
        "stem": draw(width, 1, 2, 2), "where": draw(1, width, (side // 2) ** 2 + 1), "summary": draw(1, width, 1),
        "query": draw(width, width) / 5, "key": draw(width, width) / 5, "value": draw(width, width),
        "out.weight": draw(CLASSES, width),
    }  # fmt: skip

    def normalised(z):
        z = z - z.mean(1, keepdims=True)
        return z * jax.lax.rsqrt((z**2).mean(1, keepdims=True) + 1e-5)

    def network(variables, x):
        p = variables["params"]
        z = jax.lax.conv_general_dilated(
            x.transpose(0, 3, 1, 2), p["stem"], (2, 2), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        z = z.reshape(*z.shape[:2], -1)
        z = jnp.concatenate([z, jnp.broadcast_to(p["summary"], (len(x), width, 1))], axis=2) + p["where"]
        n = normalised(z)
        q, k, v = (jnp.einsum("ij,bjt->bit", p[name], n) for name in ("query", "key", "value"))
        z = z + jnp.einsum("bit,bst->bis", v, jax.nn.softmax(jnp.einsum("bit,bis->bts", k, q).swapaxes(1, 2)))
        return normalised(z)[:, :, -1] @ p["out.weight"].T

    return models.from_function(network, {"params": params}, image_shape=(side, side, 1), num_classes=CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "side", "answered", "error"),
    [
        (24, 8, True, 1e-3),
        pytest.param(16, 8, False, 0.05, marks=pytest.mark.slow),
        pytest.param(25, 10, True, 0.05, marks=pytest.mark.slow),
    ],
)
def test_transformers_of_others_are_solved_wherever_their_positions_stand(width, side, answered, error):
    """With as many patches as numbers in a token, normalisation leaves one direction open; smoothness decides it."""
    model, variables = foreign(width, side)
    batch = Batch(smooth_image(side)[:, None], jnp.array([2]), jnp.arange(1))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    found, info = solve(model, Observation(jnp.zeros((), jnp.int32), variables, payload))
    assert info["distance"] < 1e-5
    assert found.y == 2
    assert (bool(found.answered[0]), bool(found.gradient_matched[0])) == (answered, True)
    assert float(jnp.abs(found.x - batch.x).max()) < error


def test_bad_input():
    with pytest.raises(ValueError, match="batch_size must be 1"):
        attacks.patch_embedding(reference.transformer(), batch_size=2)
    with pytest.raises(ValueError, match="this model has none"):
        attacks.patch_embedding(models.mlp((4, 4, 1), 3))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_those_of_the_patches_whichever_axis_is_the_width(axis):
    rows = np.arange(6 * 5, dtype=np.float32).reshape(2, 3, 5)
    leaf = jnp.asarray(np.moveaxis(rows, -1, axis))
    found = patch_embedding._rows(leaf, patch_embedding.Position("where", axis, first=2), tokens=3)
    np.testing.assert_array_equal(found, rows.reshape(6, 5)[2:5])


def test_the_likeliest_place_of_the_positions_comes_first():
    """The position embedding has a row before those of the patches, so the `tokens` rows may start at either one."""
    layer = patch_embedding._patch_layer(reference.transformer())
    assert (layer.tokens, layer.entries) == (4, 4)
    assert [(where.name, where.first) for where in layer.positions if where.name == "position"] == [
        ("position", 1),
        ("position", 0),
    ]


@pytest.fixture(scope="module")
def of_one_logit():
    """A transformer with one logit, its weights, and the share of its client."""
    module = ViT(1, Style("gelu", "default"), 2, 8, 1, 2, 2)
    model = models.classifier(module, image_shape=(4, 4, 1))
    return model, model.init(jax.random.key(0)), jax.jit(protocols.ClientShare(model))


@pytest.mark.slow
@pytest.mark.parametrize("label", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_label_of_one_logit_is_exact(label, of_one_logit):
    model, variables, share = of_one_logit
    x = np.random.default_rng(1).random((1, 1, 4, 4, 1)).astype(np.float32)
    payload = share(variables, Batch(x, jnp.array([label]), jnp.zeros(1)))
    found, _ = solve(model, Observation(jnp.zeros((), jnp.int32), variables, payload))
    assert (found.answered.all(), found.y) == (True, label)
    np.testing.assert_allclose(found.x, x, atol=1e-3)
