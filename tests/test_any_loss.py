"""Inversion without the loss and the labels: the part of a gradient that the images alone determine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, Observation, attacks, audit, models, objectives, protocols
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion.any_loss import AnyLossShare, output_gradients, seen_by_any_loss, why_not_any_loss

CLASSES, SIZE = 5, 3


def _findings(logits, y):
    """A loss with several findings per image, some with larger weights, that no label (B,) can express."""
    findings = jnp.asarray([[1, 0, 1, 0, 0], [0, 1, 1, 0, 1], [1, 1, 0, 0, 0]], jnp.float32)
    return -jnp.sum((1 + findings) * jax.nn.log_sigmoid((2 * findings - 1) * logits))


def _uniform(*shape, seed=1):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def _unexplained(model):
    """A compiled function for the part of an update that no loss on a batch explains; it serves all losses."""
    share = AnyLossShare(model, "train", ridge=1e-6)
    return jax.jit(
        lambda seen, batch: objectives.cosine(seen.payload, share(seen_by_any_loss(model, seen).params, batch))
    )


@pytest.fixture(scope="module", params=["mlp", "convnet, batch statistics"])
def network(request):
    if request.param == "mlp":
        model = models.mlp((4, 4, 1), CLASSES, widths=(6,))
    else:
        model = models.convnet((4, 4, 1), CLASSES, channels=(4,), strides=(1,), batch_norm=True)
    return model, model.init(jax.random.key(0)), _unexplained(model)


def test_the_search_never_calls_the_clients_loss():
    """The loss is also not called for the brightness of an answer behind batch normalisation."""
    model = models.convnet((4, 4, 1), CLASSES, channels=(4,), strides=(1,), batch_norm=True)

    def unknown(logits, y):
        raise AssertionError("an attacker without the loss called it")

    variables = model.init(jax.random.key(0))
    batch = Batch(jnp.asarray(_uniform(SIZE, 1, 4, 4, 1)), jnp.zeros(SIZE, jnp.int32), jnp.arange(SIZE))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    attack = attacks.inversion(model, protocols.ClientShare(model, loss=unknown), presets.any_loss(2), batch_size=SIZE)
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=payload)
    state = jax.jit(attack.init)(jax.random.key(1), audit.template_of(batch))
    assert np.isfinite(jax.jit(attack.reconstruct)(state, seen).x).all()


@pytest.mark.parametrize("loss", [*objectives.LOSSES.values(), _findings])
def test_the_clients_images_explain_its_update_under_every_loss(network, loss):
    model, variables, unexplained = network
    x = _uniform(SIZE, 1, *model.image_shape)
    batch = Batch(x, jnp.array([0, 3, 3], jnp.int32), jnp.arange(SIZE))
    payload = jax.jit(protocols.ClientShare(model, loss=loss))(variables, batch)
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    assert unexplained(seen, batch) < 1e-5
    assert unexplained(seen, batch._replace(x=x[::-1])) < 1e-5  # in any order
    assert unexplained(seen, batch._replace(x=_uniform(*x.shape, seed=2))) > 1e-2


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_by_the_outputs_are_the_least_squares_solution(bias):
    rng = np.random.default_rng(0)
    features, kernel, offset = rng.standard_normal((SIZE, 7)), rng.standard_normal((7, 4)), rng.standard_normal(4)
    seen = {"kernel": kernel, "bias": offset} if bias else {"kernel": kernel}
    left = np.vstack([features.T, np.ones((1, SIZE))]) if bias else features.T
    right = np.vstack([kernel, offset]) if bias else kernel
    ridge = 0.3
    weight = (ridge * np.linalg.norm(left)) ** 2 / SIZE
    expected = np.linalg.solve(left.T @ left + weight * np.eye(SIZE), left.T @ right)
    found = jax.jit(output_gradients)(features, seen, ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_images_with_the_same_features_have_finite_gradients(bias):
    """Black images behind a layer without bias are an example: all their equations are zero."""
    seen = {"kernel": jnp.ones((7, 4)), "bias": jnp.ones(4)} if bias else {"kernel": jnp.ones((7, 4))}
    for features in (jnp.zeros((SIZE, 7)), jnp.ones((SIZE, 7))):
        value, slope = jax.jit(jax.value_and_grad(lambda f: jnp.sum(output_gradients(f, seen, 1e-3) ** 2)))(features)
        assert np.isfinite(value)
        assert np.isfinite(slope).all()


def test_an_answer_has_no_labels_and_the_attack_reads_none(network):
    model, variables, _ = network
    batch = Batch(_uniform(SIZE, 1, *model.image_shape), jnp.array([0, 3, 3], jnp.int32), jnp.arange(SIZE))
    payload = jax.jit(protocols.ClientShare(model, loss=_findings))(variables, batch)
    attack = attacks.inversion(model, protocols.ClientShare(model), presets.any_loss(2), batch_size=SIZE)
    state = jax.jit(attack.init)(jax.random.key(3), batch)
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
    state, _ = jax.jit(attack.step)(jax.random.key(4), state, seen)
    assert jax.jit(attack.reconstruct)(state, seen).y.tolist() == [-1] * SIZE


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ({}, {"local_steps": 2, "learning_rate": 0.1}, "every step of every client has derivatives of its own"),
        ({}, {"local_epochs": 2, "learning_rate": 0.1}, "every step of every client"),
        ({}, {"clients": 2}, "every step of every client"),
        ({"widths": (2,)}, {}, "the last dense layer reads 2 features, too few to tell 4 images apart"),
    ],
)
def test_where_the_last_layer_does_not_tell_it_is_refused(model, options, why):
    model = models.mlp((4, 4, 1), CLASSES, **({"widths": (8,)} | model))
    share = protocols.ClientShare(model, **options)
    with pytest.raises(ValueError, match=f"AnyLoss does not apply: {why}"):
        attacks.inversion(model, share, presets.any_loss(2), batch_size=4)


def test_a_network_without_a_last_layer_is_refused():
    model = models.mlp((4, 4, 1), CLASSES, widths=(8,))
    unknown = model._replace(head="", head_leaves=())
    assert (
        why_not_any_loss(unknown, protocols.ClientShare(unknown), 1)
        == "the network ends in no dense layer that is known"
    )


def test_the_ridge_is_positive():
    model = models.mlp((4, 4, 1), CLASSES, widths=(8,))
    settings = presets.any_loss(2)._replace(compare=client_updates.AnyLoss(objectives.cosine, ridge=0.0))
    with pytest.raises(ValueError, match="ridge must be > 0"):
        attacks.inversion(model, protocols.ClientShare(model), settings, batch_size=1)


def test_one_logit_is_the_second_of_two():
    def apply(variables, x):
        head = variables["params"]["head"]
        return x.reshape(len(x), -1) @ head["kernel"] + head["bias"]

    start = {"params": {"head": {"kernel": jnp.ones((16, 1)) / 16, "bias": jnp.zeros(1)}}}
    model, variables = models.from_function(apply, start, image_shape=(4, 4, 1), num_classes=2)
    assert model.one_logit
    batch = Batch(_uniform(2, 1, 4, 4, 1), jnp.array([0, 1], jnp.int32), jnp.arange(2))
    payload = jax.jit(protocols.ClientShare(model))(variables, batch)
    assert _unexplained(model)(Observation(jnp.zeros((), jnp.int32), variables, payload), batch) < 1e-5
