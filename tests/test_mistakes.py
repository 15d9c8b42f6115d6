"""Deliberate mistakes: each changes only what it names, and by the stated amount."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, models, protocols
from jaxleak._tree import named_leaves
from jaxleak.audit import mistakes
from jaxleak.audit._verdict.verdict import Answer, Verdict

NAMES = ("share", "variables", "payload", "batch_size")


def _client(model, *, size=4, seed=0, **share):
    """A client with a random update; only the changes that mistakes make to it matter."""
    variables = reference.drawn(model)
    rng = np.random.default_rng(0)
    payload = jax.tree.map(lambda w: jnp.asarray(rng.standard_normal(w.shape), jnp.float32), variables["params"])
    return mistakes.Client(protocols.ClientShare(model, **share), variables, payload, size, jax.random.key(seed))


@pytest.fixture(scope="module")
def client():
    return _client(models.convnet((8, 8, 3), 10, channels=(5, 6), strides=(2, 2), batch_norm=True))


@pytest.fixture(scope="module")
def perceptron():
    return _client(models.mlp((4, 4, 1), 10, widths=(7,)), size=1)


def made(name, client, changed):
    """The changed part of a mistake's claim, after a check that the other parts are unchanged."""
    claim = mistakes.MISTAKES[name](client)
    right = dict(zip(NAMES, (client.share, client.variables, client.payload, client.size), strict=True))
    assert set(claim) == set(NAMES)
    for other in set(NAMES) - {changed}:
        assert claim[other] is right[other], other
    return claim[changed]


def differ(client, payload):
    """The leaves, by name, that differ from the client's."""
    right = named_leaves(client.payload)
    leaves = jax.tree.leaves(payload, is_leaf=lambda leaf: leaf is None)
    return {
        name: leaf
        for (name, own), leaf in zip(right.items(), leaves, strict=True)
        if leaf is None or not np.array_equal(own, leaf)
    }


def close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_no_mistake_is_none(client):
    assert made("none", client, "payload") is client.payload


@pytest.mark.parametrize(
    ("name", "factor"), [("sum, not mean", 4), ("not divided by the rate 0.01", 0.01), ("reversed sign", -1)]
)
def test_an_update_is_scaled(client, name, factor):
    close(made(name, client, "payload"), jax.tree.map(lambda g: factor * g, client.payload))


def test_weights_are_added_or_moved(client):
    params = client.variables["params"]
    decayed = jax.tree.map(lambda g, w: g + 0.0005 * w, client.payload, params)
    close(made("weight decay", client, "payload"), decayed)
    later = made("weights of the next round", client, "variables")
    close(later["params"], jax.tree.map(lambda w, g: w - g / 10, params, client.payload))
    assert later["batch_stats"] is client.variables["batch_stats"]


def test_other_weights_are_near_or_nowhere_near(client):
    params = named_leaves(client.variables["params"])
    near = made("weights that are 1 % off", client, "variables")
    assert near["batch_stats"] is client.variables["batch_stats"]
    for name, moved in named_leaves(near["params"]).items():
        size = float(jnp.sqrt(jnp.mean(params[name] ** 2)))
        off = float(jnp.sqrt(jnp.mean((moved - params[name]) ** 2)))
        assert off == pytest.approx(0.01 * size, rel=4 / params[name].size ** 0.5), name
    # The client's weights are drawn from its key, but the other model's are not.
    other = named_leaves(made("weights of another model", client, "variables")["params"])["head/kernel"]
    assert not np.allclose(other, params["head/kernel"], atol=0.05)


def test_a_sum_over_one_sample_and_a_mode_without_statistics_are_no_mistakes(perceptron):
    for name in ("sum, not mean", "another mode of batch normalisation", "head in channels-first order"):
        assert mistakes.MISTAKES[name](perceptron) is None


@pytest.mark.parametrize(("size", "claimed"), [(1, 4), (2, 1), (4, 1)])
def test_another_batch_size_is_claimed(client, size, claimed):
    assert made("another batch size", client._replace(size=size), "batch_size") == claimed


@pytest.mark.parametrize(("mode", "other"), [("train", "eval"), ("eval", "train")])
def test_the_client_is_the_same_in_another_mode(client, mode, other):
    options = {"local_steps": 2, "learning_rate": 0.3, "clients": 3}
    own = client._replace(share=protocols.ClientShare(client.share.model, batch_norm=mode, **options))
    share = made("another mode of batch normalisation", own, "share")
    assert share.batch_norm == other
    assert {name: getattr(share, name) for name in options} == options
    assert share.model is client.share.model
    again = mistakes.MISTAKES["another mode of batch normalisation"](own)["share"]
    assert again == share  # equal shares compile only once
    assert hash(again) == hash(share)
    if other == "eval":
        unknown = own._replace(variables={"params": own.variables["params"]})
        assert mistakes.MISTAKES["another mode of batch normalisation"](unknown) is None


def test_equal_neighbouring_axes_are_swapped_in_one_leaf(client):
    hit = set()
    for seed in range(12):
        changed = differ(client, made("two axes swapped", client._replace(key=jax.random.key(seed)), "payload"))
        ((name, leaf),) = changed.items()
        np.testing.assert_array_equal(leaf, named_leaves(client.payload)[name].swapaxes(0, 1))
        hit.add(name)
    assert hit == {"conv_0/kernel", "conv_1/kernel"}
    for shape, axes in (((5, 4, 4), (1, 2)), ((2, 2, 3, 3), (0, 1)), ((1, 1, 3, 4), None), ((4, 3, 4), None)):
        leaf = jnp.asarray(np.random.default_rng(0).standard_normal(shape))
        claim = mistakes.MISTAKES["two axes swapped"](client._replace(payload={"a": leaf}))
        assert (claim is None) == (axes is None)
        assert axes is None or np.array_equal(claim["payload"]["a"], leaf.swapaxes(*axes))


def test_the_heads_rows_count_channels_first(client):
    ((name, leaf),) = differ(client, made("head in channels-first order", client, "payload")).items()
    assert name == "head/kernel"
    right = client.payload["head"]["kernel"]
    for row, column, channel in np.ndindex(2, 2, 6):
        np.testing.assert_array_equal(leaf[channel * 4 + row * 2 + column], right[(row * 2 + column) * 6 + channel])
    small = _client(models.convnet((4, 4, 3), 10, channels=(5, 6), strides=(2, 2)))
    assert mistakes.MISTAKES["head in channels-first order"](small) is None  # a single position has one order


def test_mistakes_of_a_network_with_names_of_its_own_are_made_in_its_own_layout(client):
    """The head is PyTorch's: its parameters are a flat dictionary, and its kernel is transposed."""
    own = _client(models.convnet((8, 8, 3), 10, channels=(5, 6), strides=(2, 2)))

    class Transposed:
        head, head_names = "fc", ("fc.weight",)
        has_running_statistics = False

        def matrix(self, name, leaf):
            assert name == "fc.weight"
            return leaf.T

    right = np.asarray(own.payload["head"]["kernel"])
    conv = np.zeros((6, 5, 3, 3), np.float32)
    flat = own._replace(share=SimpleNamespace(model=Transposed()), payload={"conv": conv, "fc.weight": right.T})
    leaf = mistakes.MISTAKES["head in channels-first order"](flat)["payload"]["fc.weight"]
    usual = mistakes.MISTAKES["head in channels-first order"](own)["payload"]["head"]["kernel"]
    np.testing.assert_array_equal(np.asarray(leaf).T, usual)
    assert np.isnan(mistakes.MISTAKES["not finite"](flat)["payload"]["conv"][0, 0, 0, 0])
    flat.share.model.head = ""
    assert mistakes.MISTAKES["head in channels-first order"](flat) is None


def test_one_leaf_is_missing_and_every_leaf_holds_one_value_that_is_not_finite(client):
    hit = set()
    for seed in range(12):
        payload = made("a leaf is missing", client._replace(key=jax.random.key(seed)), "payload")
        ((name, leaf),) = differ(client, payload).items()
        assert leaf is None
        hit.add(name)
    assert len(hit) > 3
    for leaf, own in zip(
        jax.tree.leaves(made("not finite", client, "payload")), jax.tree.leaves(client.payload), strict=True
    ):
        assert np.isnan(leaf.ravel()[0])
        np.testing.assert_array_equal(leaf.ravel()[1:], own.ravel()[1:])


def test_noise_is_as_large_as_the_update_and_a_tenth_of_it_survives_pruning(client):
    scales = {name: 10.0**n for n, name in enumerate(named_leaves(client.payload))}
    leaves = [scales[name] * leaf for name, leaf in named_leaves(client.payload).items()]
    scaled = client._replace(payload=jax.tree.unflatten(jax.tree.structure(client.payload), leaves))
    size = np.sqrt(sum(np.sum(np.square(leaf, dtype=float)) for leaf in leaves) / sum(leaf.size for leaf in leaves))
    for noisy, own in zip(jax.tree.leaves(made("noise, not stated", scaled, "payload")), leaves, strict=True):
        off = np.sqrt(np.mean(np.square(np.asarray(noisy, float) - np.asarray(own, float))))
        assert off == pytest.approx(size, rel=4 / own.size**0.5)
    for pruned, own in zip(jax.tree.leaves(made("pruned, not stated", scaled, "payload")), leaves, strict=True):
        kept = np.abs(own) >= np.quantile(np.abs(own), 0.9) * (1 - 1e-6)
        np.testing.assert_array_equal(pruned, np.where(kept, own, 0))
        assert 0.05 < kept.mean() < 0.35


def _trained(model, size):
    """A client with images and with the true update of these images."""
    rng = np.random.default_rng(1)
    x, y = jnp.asarray(rng.uniform(size=(size, 4, 4, 1)), jnp.float32), jnp.asarray(rng.integers(0, 10, size))
    share, variables, batch = (
        protocols.ClientShare(model),
        reference.drawn(model),
        Batch(x[:, None], y, jnp.arange(size)),
    )
    return mistakes.Client(share, variables, share(variables, batch), size, jax.random.key(0), batch)


def _rows_of_the_head(client, payload):
    """The kernel gradient (features, C) of a head without hidden layers, and its input images in rows."""
    return np.asarray(payload["head"]["kernel"]), np.asarray(client.batch.x).reshape(client.size, -1)


def test_losses_that_nobody_states_change_the_derivatives_by_the_logits():
    client = _trained(models.mlp((4, 4, 1), 10, widths=()), 3)
    y = np.asarray(client.batch.y)
    kernel, x = _rows_of_the_head(client, client.payload)
    plain = np.linalg.pinv(x.T) @ kernel  # (B, C)
    smoothed, _ = _rows_of_the_head(client, made("smoothed labels, not stated", client, "payload"))
    for b in range(3):
        expected = plain[b] + (np.eye(10)[y[b]] - (0.9 * np.eye(10)[y[b]] + 0.01)) / 3
        np.testing.assert_allclose((np.linalg.pinv(x.T) @ smoothed)[b], expected, atol=1e-5)
    weighted, _ = _rows_of_the_head(client, made("class weights, not stated", client, "payload"))
    factors = np.linalg.pinv(x.T) @ weighted / plain  # (B, C), w_y / sum(w_y) times B
    np.testing.assert_allclose(factors, factors[:, :1] * np.ones(10), rtol=1e-3)
    assert np.sum(factors[:, 0]) == pytest.approx(3, rel=1e-3)
    assert factors.max() > 1.05 * factors.min()


def test_losses_need_the_samples_and_weights_need_several(client):
    for name in ("class weights, not stated", "smoothed labels, not stated"):
        assert mistakes.MISTAKES[name](client) is None
    alone = _trained(models.mlp((4, 4, 1), 10, widths=()), 1)
    assert mistakes.MISTAKES["class weights, not stated"](alone) is None
    assert mistakes.MISTAKES["smoothed labels, not stated"](alone) is not None


def test_claims_are_compared_with_what_the_client_had():
    rng = np.random.default_rng(2)
    images = rng.uniform(size=(3, 8, 8, 1)).astype(np.float32)
    batch = Batch(jnp.asarray(images)[:, None], jnp.asarray([1, 1, 2]), jnp.arange(3))
    other = rng.uniform(size=(8, 8, 1)).astype(np.float32)
    answer = Answer("row_space", np.stack([images[2], other, other]), np.array([1, 1, 2]), 0.0, 0.0, solved=True)
    labels = np.array([0, 2, 2, 1])

    def judged(outcome, **changed):
        verdict = Verdict(outcome, (), (), (), answer._replace(**changed), labels, "", {})
        return mistakes.false_claims(verdict, batch)

    assert judged("leaks") == (2, 2)  # a second one of class 2, and the one of class 3
    assert judged("leaks", cosine_distance=1.0) == (0, 2)  # nothing is certified
    assert judged("not shown to leak") == (0, 2)
    assert judged("leaks", x=answer.x[[0, 0, 0]]) == (0, 2)
