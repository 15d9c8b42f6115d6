"""FedAvg against a simple loop, and the dependence of its results on keys, clients and defenses."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.flatten_util import ravel_pytree

from jaxleak import data, defenses, models, protocols
from jaxleak._base import Batch
from jaxleak.objectives import cross_entropy
from jaxleak.protocols._federated_averaging import _positions

N, SHAPE, CLASSES = 12, (6, 5, 2), 3


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    x = rng.random((N, 1, *SHAPE), dtype=np.float32)
    return Batch(x, rng.integers(0, CLASSES, N).astype(np.int32), np.arange(N))


@functools.cache
def _mlp():
    return models.mlp(SHAPE, CLASSES, widths=(4,))


class _Normalised(nn.Module):
    """The smallest network with batch normalisation."""

    @nn.compact
    def __call__(self, x, train):
        features = models.BatchNorm()(nn.Dense(4)(x.reshape(len(x), -1)), train)
        return nn.Dense(CLASSES, name="head")(features)


@functools.cache
def _normalised():
    return models.classifier(_Normalised(), image_shape=SHAPE, num_classes=CLASSES)


def _slow(model, variables, parts, samples, *, steps, rate, rounds, shares):
    """A slow reference in which every client uses all its data in every step, so that no random draw matters."""

    @jax.jit
    def gradient(mine, x, y):
        def loss(weights):
            out = model.apply({**mine, "params": weights}, x, mode="train")
            return cross_entropy(out.logits, y), out.batch_stats

        return jax.grad(loss, has_aux=True)(mine["params"])

    for _ in range(rounds):
        ends = []
        for part in parts:
            mine = variables
            for _ in range(steps):
                slope, stats = gradient(mine, samples.x[part, 0], samples.y[part])
                weights = jax.tree.map(lambda w, g: np.asarray(w) - rate * np.asarray(g), mine["params"], slope)
                mine = {"params": weights, "batch_stats": stats}
            ends.append(mine)
        variables = jax.tree.map(lambda *all_: sum(s * np.asarray(a) for s, a in zip(shares, all_, strict=True)), *ends)
    return variables


@pytest.mark.parametrize("build", [_mlp, _normalised])
def test_agrees_with_a_slow_loop(build, samples):
    model = build()
    parts = [np.arange(0, 4), np.arange(4, 8), np.arange(8, 12)]
    settings = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.1}
    federation = protocols.federated_averaging(model, parts, **settings)
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, samples, 2)
    slow = _slow(model, start.variables, parts, samples, steps=2, rate=0.1, rounds=2, shares=[1 / 3] * 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), end.variables, slow)
    assert int(end.round) == 2


def test_samples_weigh_clients_by_what_they_hold(samples):
    model, parts = _mlp(), [np.arange(0, 2), np.arange(2, 12)]
    # Ten draws cover the larger client once and the smaller five times, so a step has the client's mean loss.
    federation = protocols.federated_averaging(model, parts, batch_size=10, learning_rate=0.5, weighting="samples")
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, samples, 1)
    slow = _slow(model, start.variables, parts, samples, steps=1, rate=0.5, rounds=1, shares=[2 / 12, 10 / 12])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), end.variables, slow)


def test_rounds_depend_on_key_and_number_only(samples):
    parts = data.partition_clients("iid", 0, samples.x, samples.y, 4)
    federation = protocols.federated_averaging(_mlp(), parts, batch_size=2, learning_rate=0.1, clients_per_round=2)
    start, key = federation.init(jax.random.key(0)), jax.random.key(1)
    whole = federation.run(key, start, samples, 5)
    halves = federation.run(key, federation.run(key, start, samples, 2), samples, 3)
    other = federation.run(jax.random.key(2), start, samples, 5)
    jax.tree.map(np.testing.assert_array_equal, whole, halves)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True))


def test_a_client_draws_its_own_samples_once_before_any_twice():
    positions = jax.jit(lambda key: _positions(key, jnp.asarray([7, 3, 9, 0, 0]), jnp.int32(3), 5))
    drawn = np.asarray(positions(jax.random.key(0)))
    assert sorted(drawn[:3]) == [3, 7, 9]
    for seed in range(8):
        assert 0 not in np.asarray(positions(jax.random.key(seed)))
    np.testing.assert_array_equal(drawn[3:], drawn[:2])


def test_training_learns(samples):
    parts = data.partition_clients("label_skew", 0, samples.x, samples.y, 3, classes_per_client=2)
    logistic = models.mlp(SHAPE, CLASSES, widths=())
    federation = protocols.federated_averaging(logistic, parts, batch_size=4, learning_rate=0.5)
    state = federation.init(jax.random.key(0))
    trained = federation.run(jax.random.key(1), state, samples, 400)
    x = samples.x[:, 0]
    assert federation.evaluate(trained.variables, x, samples.y) > federation.evaluate(state.variables, x, samples.y)
    assert federation.evaluate(trained.variables, x, samples.y) >= 0.9
    assert federation.evaluate(trained.variables, jnp.full_like(x, jnp.nan), jnp.zeros_like(samples.y)) == 0


DEFENSES = {
    "payload": lambda: defenses.gaussian_noise(0.1),
    "per_example_gradient": lambda: defenses.adaptive_dp_sgd(1.0, 0.1, decay=0.9),
    "client_payloads": lambda: defenses.cancelling_noise(0.1, 2),
    "representation": lambda: defenses.soteria(0.5),
}


TWO = [np.arange(0, 6), np.arange(6, 12)]
SETTINGS = {"batch_size": 3, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def undefended(samples):
    federation = protocols.federated_averaging(_mlp(), TWO, **SETTINGS)
    start = federation.init(jax.random.key(0))
    return start, federation.run(jax.random.key(1), start, samples, 2)


@pytest.mark.parametrize("place", DEFENSES)
def test_defenses_act_at_their_place(place, samples, undefended):
    defense = DEFENSES[place]()
    assert defense.place == place
    start, plain = undefended
    federation = protocols.federated_averaging(_mlp(), TWO, defense=defense, **SETTINGS)
    runs = [plain, *(federation.run(jax.random.key(1), start, samples, 2) for _ in range(2))]
    ends = [run.variables["params"] for run in runs]
    pairs = list(zip(*map(jax.tree.leaves, ends), strict=True))
    assert all(np.array_equal(b, c) for _, b, c in pairs)
    if place == "client_payloads":  # the clients' noise cancels in the average
        assert all(np.allclose(a, b, atol=1e-4) for a, b, _ in pairs)
    else:
        assert any(not np.allclose(a, b, atol=1e-4) for a, b, _ in pairs)


@pytest.mark.parametrize("place", ["per_example_gradient", "client_payloads"])
def test_a_defense_with_memory_is_refused_where_no_client_keeps_it(samples, place):
    federation = protocols.federated_averaging(_mlp(), TWO, batch_size=6, defense=reference.growing(place))
    with pytest.raises(ValueError, match=f"no state of it is kept here, at {place}"):
        federation.run(jax.random.key(1), federation.init(jax.random.key(0)), samples, 1)


def test_clients_keep_what_error_feedback_left_out(samples):
    """The result equals that of a loop with whole batches (so that no draw matters) and all clients in every round."""
    model, rate, percent = _mlp(), 0.1, 30
    federation = protocols.federated_averaging(
        model, TWO, batch_size=6, learning_rate=rate, defense=defenses.sparsify(percent, error_feedback=True)
    )
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, samples, 3)
    batches = [Batch(samples.x[part], samples.y[part], samples.index[part]) for part in TWO]
    flat, rebuild = ravel_pytree(start.variables["params"])
    share = protocols.ClientShare(model)
    flat_share = jax.jit(lambda flat, b: ravel_pytree(share({**start.variables, "params": rebuild(flat)}, b))[0])
    left = [np.zeros(len(flat)) for _ in TWO]
    for _ in range(3):
        sent = []
        for client, batch in enumerate(batches):
            full = np.asarray(flat_share(np.float32(flat), batch)) + left[client]
            kept = np.abs(full) >= np.sort(np.abs(full))[-int(np.ceil(len(full) * percent / 100))]
            sent.append(np.where(kept, full, 0.0))
            left[client] = full - sent[-1]
        flat = np.asarray(flat) - rate * np.mean(sent, axis=0)
    np.testing.assert_allclose(reference.flat(end.variables["params"]), flat, atol=1e-5)
    for client, rest in enumerate(left):
        carried = reference.flat(jax.tree.map(lambda leaf, c=client: np.asarray(leaf)[c], end.clients))
        np.testing.assert_allclose(carried, rest, atol=1e-5)


def test_a_client_that_is_drawn_keeps_its_own_rest():
    """Every client has one image with its own single pixel, so its residual can concern only this pixel."""
    federation = protocols.federated_averaging(
        _mlp(), [np.array([client]) for client in range(3)], batch_size=1, clients_per_round=1, learning_rate=0.1,
        defense=defenses.sparsify(1.0, error_feedback=True),
    )  # fmt: skip
    x = np.eye(np.prod(SHAPE), dtype=np.float32)[:3].reshape(3, 1, *SHAPE)
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, Batch(x, np.arange(3, dtype=np.int32), np.arange(3)), 6)
    rest = np.asarray(end.clients["dense_0"]["kernel"]).any(axis=2)
    clients, pixels = np.nonzero(rest)
    np.testing.assert_array_equal(clients, pixels)
    assert len(clients) >= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defense": defenses.feature_dropout(0.5), "local_steps": 2}, "needs one local step in all, got 2"),
        ({"batch_size": 0}, "batch_size must be > 0"),
        ({"local_steps": 0}, "local_steps must be > 0"),
        ({"clients_per_round": 3}, "clients_per_round must be in"),
        ({"weighting": "votes"}, "weighting must be one of uniform, samples"),
        ({"parts": [np.arange(2), np.arange(0)]}, "client 1 has none"),
        ({"parts": [np.arange(2), np.array([3, -1])]}, r"whole and >= 0, but parts\[1\] has others"),
        ({"parts": [np.array([0.5, 1.0])]}, r"whole and >= 0, but parts\[0\] has others"),
        ({"defense": defenses.marvell(num_classes=2)}, "place must be one of payload"),
        ({"defense": defenses.adam_step(1e-3)}, "must be that of the clients' adam_step, 0.001, got 0.0001"),
        ({"parts": []}, "the number of parts must be > 0"),
        ({"defense": defenses.dp_sgd(1.0, 0.0), "batch_size": 3}, "the smallest has 2 samples, batch_size is 3"),
        ({"defense": defenses.marvell(num_classes=9)._replace(place="payload")}, r"that of the model, \d, got 9"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    settings = {"parts": [np.arange(2), np.arange(2, 4)], "batch_size": 2} | options
    with pytest.raises(ValueError, match=message):
        protocols.federated_averaging(_mlp(), settings.pop("parts"), **settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda b: b._replace(x=b.x[:, 0]), "add the axis of parties"),
        (lambda b: b._replace(y=b.y + CLASSES), rf"labels must be in \[0, {CLASSES}\)"),
        (lambda b: b._replace(y=b.y[1:]), r"labels must have shape \(12,\)"),
        (lambda b: b._replace(y=b.y.astype(jnp.float32)), "labels must be integers"),
    ],
)
def test_data_that_would_train_nothing_are_refused(samples, changed, message):
    federation = protocols.federated_averaging(_mlp(), [np.arange(2)], batch_size=2)
    start = federation.init(jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        federation.run(jax.random.key(1), start, changed(samples), 1)
    with pytest.raises(ValueError, match=r"rounds must be a whole number, got 2\.5"):
        federation.run(jax.random.key(1), start, samples, 2.5)


def test_noise_that_cancels_needs_clients_that_weigh_alike():
    """Unequal weights would leave a part of the noise in the average."""
    noise = defenses.cancelling_noise(0.1, 2)
    for parts, weighting in (([2, 3], "uniform"), ([2, 2], "samples"), ([1, 1], "uniform")):
        own = [np.arange(size) for size in parts]
        protocols.federated_averaging(_mlp(), own, batch_size=2, weighting=weighting, defense=noise)
    with pytest.raises(ValueError, match="needs weighting='uniform', got 'samples'"):
        protocols.federated_averaging(
            _mlp(), [np.arange(2), np.arange(3)], batch_size=2, weighting="samples", defense=noise
        )


def test_examples_are_defended_in_every_local_step(samples):
    """Two steps use the same sample; its gradient is clipped in both and hardly changes direction in between."""
    federation = protocols.federated_averaging(
        _mlp(), [np.arange(1)], batch_size=1, local_steps=2, learning_rate=0.5, defense=defenses.dp_sgd(1e-3, 0.0)
    )
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, samples, 1)
    before, after = (reference.flat(state.variables["params"]) for state in (start, end))
    assert np.linalg.norm(after - before) == pytest.approx(2 * 0.5 * 1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("clients", "steps", "rounds", "deviation"), [(1, 2, 1, 2**0.5), (1, 1, 2, 2**0.5), (2, 1, 1, 0.5**0.5)]
)
def test_noise_is_drawn_anew_in_every_step_and_round_and_by_every_client(samples, clients, steps, rounds, deviation):
    """Noise of deviation 1 is added to gradients clipped to almost zero; repeated noise would not average out."""
    federation = protocols.federated_averaging(
        _mlp(), [np.arange(1)] * clients, batch_size=1, local_steps=steps, learning_rate=1.0,
        defense=defenses.dp_sgd(1e-6, 1e6),
    )  # fmt: skip
    start = federation.init(jax.random.key(0))
    end = federation.run(jax.random.key(1), start, samples, rounds)
    before, after = (reference.flat(state.variables["params"]) for state in (start, end))
    assert np.std(after - before) == pytest.approx(deviation, rel=0.2)


def test_per_example_gradients_need_a_network_that_does_not_mix_examples():
    with pytest.raises(ValueError, match="take batch_norm='eval'"):
        protocols.federated_averaging(_normalised(), [np.arange(2)], batch_size=2, defense=defenses.dp_sgd())


def test_divergence_and_foreign_parts_are_named(samples):
    federation = protocols.federated_averaging(_mlp(), [np.arange(12)], batch_size=12, learning_rate=1e30)
    state = federation.init(jax.random.key(0))
    with pytest.raises(FloatingPointError, match="rounds 0 to 3"):
        federation.run(jax.random.key(1), state, samples, 3)
    beyond = protocols.federated_averaging(_mlp(), [np.arange(13)], batch_size=2)
    with pytest.raises(ValueError, match="sample 12, but there are 12"):
        beyond.run(jax.random.key(1), beyond.init(jax.random.key(0)), samples, 1)
