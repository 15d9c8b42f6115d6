"""Uploads of clients: one gradient or several local steps, with or without a defense, and refused inputs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jaxleak import defenses, models, objectives, protocols
from jaxleak._base import Batch

B, SHAPE, CLASSES = 2, (4, 4, 1), 3


@pytest.fixture(scope="module")
def model():
    return reference.sigmoid_mlp()


@pytest.fixture(scope="module")
def problem(model):
    return reference.client_problem(B, model)


def test_one_step_is_the_gradient(model, problem):
    protocol, truth = problem.protocol, problem.private
    variables = model.init(jax.random.key(5))
    expected = reference.mean_of_classifier_gradients(model, variables, truth)
    payload = jax.jit(protocol.share)(variables, truth)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), payload, expected)


@pytest.mark.parametrize("defense", [defenses.gaussian_noise(100.0), defenses.dp_sgd(1.0, 200.0)])
def test_noise_is_drawn_anew_in_every_round(model, problem, defense):
    """Equal noise in two rounds would cancel in their difference."""
    protocol = protocols.client(protocols.ClientShare(model), num_samples=B, batch_size=B, defense=defense)
    state, step, sent = jax.jit(protocol.init)(jax.random.key(0)), jax.jit(protocol.round), []
    for _ in range(2):
        state, transcript = step(jax.random.key(1), state, problem.private)
        sent.append(reference.flat(transcript.payload))
    assert np.abs(sent[1] - sent[0]).max() > 10


def test_clients_that_compute_the_same_are_equal(model):
    """Equal clients can share a compiled program."""
    share, again = protocols.ClientShare(model), protocols.ClientShare(model)
    assert share == again
    assert hash(share) == hash(again)
    assert share.in_mode("eval").in_mode("train") == share
    others = {
        "model": reference.sigmoid_mlp()._replace(notes=("another",)), "local_steps": 2, "local_epochs": 2,
        "learning_rate": 0.5, "momentum": 0.5, "clients": 2, "batch_norm": "eval", "loss": lambda logits, y: 0.0,
    }  # fmt: skip
    different = [protocols.ClientShare(**{"model": model, name: value}) for name, value in others.items()]
    assert len({share, *different}) == 1 + len(others)
    assert share != "a client"


def test_local_steps_are_sgd(model, problem):
    """The upload is (w - w') / (rate * steps) with w' from plain SGD, averaged over the clients."""
    share = protocols.ClientShare(model, local_steps=2, clients=2, learning_rate=0.5)
    variables = model.init(jax.random.key(5))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((8, 1, *SHAPE)), jnp.float32)
    y = jnp.arange(8, dtype=jnp.int32) % CLASSES
    start = jax.tree.map(np.asarray, variables["params"])
    total = jax.tree.map(np.zeros_like, start)
    for c in range(2):
        weights = start
        for step in range(2):
            part = slice(4 * c + 2 * step, 4 * c + 2 * step + 2)
            g = reference.mean_of_classifier_gradients(
                model, {**variables, "params": weights}, Batch(x[part], y[part], None)
            )
            weights = jax.tree.map(lambda w, d: w - 0.5 * np.asarray(d), weights, g)
        total = jax.tree.map(lambda t, w0, w: t + (w0 - w) / (0.5 * 2 * 2), total, start, weights)
    payload = jax.jit(share)(variables, Batch(x, y, jnp.arange(8)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), payload, total)
    assert objectives.cosine(payload, jax.jit(protocols.averaged_share(share))(variables, Batch(x, y, None))) > 1e-6


def _momentum_sgd(model, variables, x, y, *, visits, rate, momentum):
    """A reference for momentum SGD: (w - w') divided by the sum of the rates at which the gradients act."""
    weights = jax.tree.map(np.asarray, variables["params"])
    velocity = jax.tree.map(np.zeros_like, weights)
    shares = np.zeros(len(visits))
    for step, part in enumerate(visits):
        now = {**variables, "params": weights}
        g = reference.mean_of_classifier_gradients(model, now, Batch(x[part], y[part], None))
        velocity = jax.tree.map(lambda v, d: momentum * v + np.asarray(d), velocity, g)
        weights = jax.tree.map(lambda w, v: w - rate * v, weights, velocity)
        shares[step] = sum(momentum**later for later in range(len(visits) - step))
    return jax.tree.map(lambda a, b: (np.asarray(a) - b) / (rate * shares.sum()), variables["params"], weights)


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_epochs_take_the_same_samples_again_and_new_orders_are_the_clients_own(model, momentum):
    share = protocols.ClientShare(model, local_steps=2, local_epochs=3, learning_rate=0.5, momentum=momentum, clients=2)
    assert share.total_steps == 6
    variables, rng = model.init(jax.random.key(5)), np.random.default_rng(0)
    x = jnp.asarray(rng.random((8, 1, *SHAPE)), jnp.float32)
    batch = Batch(x, jnp.arange(8, dtype=jnp.int32) % CLASSES, jnp.arange(8))
    orders = np.stack([[rng.permutation(4) for _ in range(2)] for _ in range(2)])
    for later in (None, jnp.asarray(orders)):
        uploads = []
        for client in range(2):
            epochs = [np.arange(4), *([np.arange(4)] * 2 if later is None else orders[client])]
            visits = [4 * client + part for epoch in epochs for part in (epoch[:2], epoch[2:])]
            uploads.append(_momentum_sgd(model, variables, x, batch.y, visits=visits, rate=0.5, momentum=momentum))
        payload = jax.jit(share)(variables, batch, orders=later)
        expected = jax.tree.map(lambda a, b: (a + b) / 2, *uploads)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), payload, expected)


@pytest.mark.slow
def test_a_client_that_shuffles_anew_uploads_what_its_own_orders_give_and_the_attacker_has_the_first_order(model):
    share = protocols.ClientShare(model, local_steps=4, local_epochs=3, learning_rate=0.5)
    private = Batch(jnp.arange(128.0).reshape(8, 1, *SHAPE) / 128, jnp.arange(8) % CLASSES, jnp.arange(8))
    sent = []
    for reshuffle in (False, True):
        protocol = protocols.client(share, num_samples=8, batch_size=2, reshuffle=reshuffle)
        assert protocol.share is share
        state = protocol.init(jax.random.key(0))
        _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, private)
        sent.append(transcript.payload)
        simulated = jax.jit(share)(state.params, transcript.private)
        distance = float(objectives.cosine(simulated, transcript.payload))
        assert (1e-6 < distance < 0.1) if reshuffle else distance < 1e-6
    with pytest.raises(ValueError, match="needs local_epochs > 1 and local_steps > 1, got 3 and 1"):
        protocols.client(protocols.ClientShare(model, local_epochs=3), num_samples=8, batch_size=2, reshuffle=True)


def test_the_averaged_estimate_is_one_gradient_of_all_samples(model):
    """A reference in NumPy: a sigmoid layer of 24 units, a dense layer, and the mean cross-entropy's backward pass."""
    variables, rng = model.init(jax.random.key(5)), np.random.default_rng(0)
    x, y = rng.random((8, 1, *SHAPE)).astype(np.float32), np.arange(8) % CLASSES
    share = protocols.averaged_share(protocols.ClientShare(model, local_steps=2, clients=2, learning_rate=0.5))
    payload = jax.jit(share)(variables, Batch(jnp.asarray(x), jnp.asarray(y, jnp.int32), None))
    weights = jax.tree.map(np.asarray, variables["params"])
    (first,) = weights.keys() - {model.head}
    flat = x.reshape(8, -1)
    hidden = 1 / (1 + np.exp(-(flat @ weights[first]["kernel"] + weights[first]["bias"])))
    logits = hidden @ weights[model.head]["kernel"] + weights[model.head]["bias"]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    outer = (p - np.eye(CLASSES)[y]) / 8
    inner = outer @ weights[model.head]["kernel"].T * hidden * (1 - hidden)
    expected = {
        model.head: {"kernel": hidden.T @ outer, "bias": outer.sum(axis=0)},
        first: {"kernel": flat.T @ inner, "bias": inner.sum(axis=0)},
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), payload, expected)


@pytest.mark.parametrize(
    "defense",
    [defenses.dp_sgd(1.0, 0.0), defenses.soteria(0.5), defenses.sparsify(10.0), defenses.withhold_top(10.0)],
    ids=lambda defense: defense.place,
)
def test_defenses_act_at_their_places(model, problem, defense):
    protocol = protocols.client(problem.protocol.share, num_samples=B, batch_size=B, defense=defense)
    state = jax.jit(protocol.init)(jax.random.key(0))
    _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, problem.private)
    plain = jax.jit(problem.protocol.share)(state.params, transcript.private)
    assert jax.tree.structure(plain) == jax.tree.structure(transcript.payload)
    differs = jax.tree.map(lambda a, b: not np.allclose(a, b, atol=1e-7), plain, transcript.payload)
    assert any(jax.tree.leaves(differs))


def test_defenses_that_a_client_does_not_have(model):
    wide = protocols.ClientShare(model, clients=2)
    with pytest.raises(ValueError, match="needs clients = 1, got 2"):
        protocols.client(wide, num_samples=8, batch_size=2, defense=defenses.sparsify(10.0))
    steps = protocols.ClientShare(model, local_steps=2)
    for inside in (defenses.dp_sgd(), defenses.feature_dropout(0.5), defenses.chain(defenses.feature_dropout(0.5))):
        for several in (steps, protocols.ClientShare(model, local_epochs=2)):
            with pytest.raises(ValueError, match="needs one local step in all, got 2"):
                protocols.client(several, num_samples=8, batch_size=2, defense=inside)
    with pytest.raises(ValueError, match=r"defense must be made by jaxleak\.defenses \(a Defense\), got \[\]"):
        protocols.client(protocols.ClientShare(model), num_samples=8, batch_size=4, defense=[])
    with pytest.raises(ValueError, match="place must be one of payload"):
        protocols.client(steps, num_samples=8, batch_size=2, defense=defenses.marvell(num_classes=2))
    other = defenses.marvell(num_classes=CLASSES + 1)._replace(place="payload")
    with pytest.raises(ValueError, match=f"must be that of the model, {CLASSES}, got {CLASSES + 1}"):
        protocols.client(protocols.ClientShare(model), num_samples=8, batch_size=4, defense=other)


def test_rounds_of_an_epoch_take_samples_in_turn(model):
    """The model does not change, so rounds differ only in their number and their samples."""
    protocol = protocols.client(protocols.ClientShare(model), num_samples=6, batch_size=2)
    private = Batch(jnp.arange(96.0).reshape(6, 1, *SHAPE), jnp.arange(6) % CLASSES, jnp.arange(6))
    state, one_round, seen = protocol.init(jax.random.key(0)), jax.jit(protocol.round), []
    for t in range(3):
        state, transcript = one_round(jax.random.key(1), state, private)
        assert (int(transcript.round), int(state.round)) == (t, t + 1)
        np.testing.assert_array_equal(transcript.private.x, private.x[transcript.index])
        seen += transcript.index.tolist()
    assert sorted(seen) == list(range(6))


def test_defenses_of_the_upload_allow_several_steps_and_networks_that_mix_examples():
    network = models.convnet(SHAPE, CLASSES, channels=(2,), strides=(1,), batch_norm=True)
    steps = protocols.ClientShare(network, local_steps=2)
    protocols.client(steps, num_samples=8, batch_size=2, defense=defenses.sparsify(10.0))
    protocols.client(protocols.ClientShare(network), num_samples=8, batch_size=2, defense=defenses.soteria(0.5))
    with pytest.raises(ValueError, match="take batch_norm='eval'"):
        protocols.client(protocols.ClientShare(network), num_samples=8, batch_size=2, defense=defenses.dp_sgd())
    still = protocols.ClientShare(network, batch_norm="eval")
    protocols.client(still, num_samples=8, batch_size=2, defense=defenses.dp_sgd())


def test_bad_sizes(model):
    with pytest.raises(ValueError, match="local_steps must be > 0, got 0"):
        protocols.ClientShare(model, local_steps=0)
    with pytest.raises(ValueError, match="local_epochs must be > 0, got 0"):
        protocols.ClientShare(model, local_epochs=0)
    with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\), got 1"):
        protocols.ClientShare(model, momentum=1)
    twice = protocols.ClientShare(model, local_epochs=2)
    batch = Batch(jnp.zeros((2, 1, *SHAPE)), jnp.zeros(2, jnp.int32), None)
    with pytest.raises(ValueError, match=r"orders must be .* = \(1, 1, 2\), got \(1, 2\)"):
        twice(model.init(jax.random.key(0)), batch, orders=jnp.zeros((1, 2), jnp.int32))
    with pytest.raises(ValueError, match="batch_norm must be one of train, eval"):
        protocols.ClientShare(model, batch_norm="both")
    share = protocols.ClientShare(model, local_steps=3)
    with pytest.raises(ValueError, match="clients \\* local_steps \\* batch_size must be in"):
        protocols.client(share, num_samples=8, batch_size=3)
    protocols.client(share, num_samples=3, batch_size=1)
    wide = protocols.ClientShare(model, local_steps=2, clients=2)
    with pytest.raises(ValueError, match="2 \\* 2 equal parts, got 6 samples"):
        wide(model.init(jax.random.key(0)), Batch(jnp.zeros((6, 1, *SHAPE)), jnp.zeros(6, jnp.int32), None))
    with pytest.raises(ValueError, match="3 equal parts, got 4 samples"):
        share(model.init(jax.random.key(0)), Batch(jnp.zeros((4, 1, *SHAPE)), jnp.zeros(4, jnp.int32), None))


def test_a_batch_without_the_axis_of_parties_is_refused():
    model = models.mlp((4, 3, 1), 3, widths=())
    share, variables = protocols.ClientShare(model), model.init(jax.random.key(0))
    for shape, hint in (((2, 4, 3, 1), r": add the axis of parties, x\[:, None\]$"), ((2, 1, 3, 4, 1), r"$")):
        batch = Batch(jnp.zeros(shape), jnp.zeros(2, jnp.int32), jnp.arange(2))
        got = ", ".join(map(str, shape))
        with pytest.raises(ValueError, match=rf"x of a batch must have shape \(B, 1, 4, 3, 1\), got \({got}\){hint}"):
            share(variables, batch)


def test_bytes_are_refused_as_integers_and_as_floats(model):
    batch = Batch(jnp.full((1, 1, *SHAPE), 255.0), jnp.array([0]), jnp.arange(1))
    with pytest.raises(ValueError, match=r"must hold pixels in .*, got whole numbers up to 255: divide by 255"):
        protocols.ClientShare(model)(model.init(jax.random.key(5)), batch)
    batch = Batch(jnp.zeros((1, 1, *SHAPE), jnp.uint8), jnp.array([0]), jnp.arange(1))
    with pytest.raises(ValueError, match=r"must hold float pixels in .*got dtype uint8: divide bytes by 255"):
        protocols.ClientShare(model)(model.init(jax.random.key(5)), batch)


class TestLabels:
    """An invalid label has a one-hot row of zeros, hence a gradient of zeros that would look like no leak."""

    def batch(self, y):
        y = jnp.asarray(y)
        return Batch(jnp.full((len(y), 1, *SHAPE), 0.5), y, jnp.arange(len(y)))

    @pytest.mark.parametrize("bad", [3, 8, -1])
    @pytest.mark.parametrize("method", ["__call__", "updates", "example_gradients"])
    def test_values_out_of_range_are_named(self, bad, method, model):
        share, variables = protocols.ClientShare(model), model.init(jax.random.key(5))
        with pytest.raises(ValueError, match=rf"labels must be in \[0, 3\), got {bad}"):
            getattr(share, method)(variables, self.batch([0, bad]))

    @pytest.mark.parametrize("how", [lambda f: f, jax.jit])
    @pytest.mark.parametrize(
        ("y", "message"),
        [
            ([0.0, 1.0], "labels must be integers, got dtype float32"),
            ([0, 1, 2], r"labels must have shape \(2,\), one per sample, or \(2, 3\) if they are soft, got \(3,\)"),
            ([[0], [1]], r"got \(2, 1\)"),
        ],
    )
    def test_other_types_and_shapes_are_refused_traced_or_not(self, y, message, how, model):
        batch = self.batch([0, 1])._replace(y=jnp.asarray(y))
        with pytest.raises(ValueError, match=message):
            how(protocols.ClientShare(model))(model.init(jax.random.key(5)), batch)

    def test_soft_labels_are_left_as_they_are(self, model):
        share, variables = protocols.ClientShare(model), model.init(jax.random.key(5))
        batches = self.batch([0, 2]), self.batch([[1.0, 0, 0], [0, 0, 1.0]])
        hard, soft = jax.jit(lambda: [share(variables, batch) for batch in batches])()  # y is concrete
        chex.assert_trees_all_close(hard, soft, rtol=1e-5)

    @pytest.mark.parametrize("bad", [-0.5, jnp.nan, jnp.inf])
    @pytest.mark.parametrize("method", ["__call__", "updates", "example_gradients"])
    def test_soft_ones_that_are_negative_or_not_finite_are_refused_under_every_loss(self, bad, method, model):
        batch, variables = self.batch([[1.0, 0, 0], [1.0, bad, 0]]), model.init(jax.random.key(5))
        for loss in (objectives.cross_entropy, several_labels):
            share = protocols.ClientShare(model, loss=loss)
            with pytest.raises(ValueError, match=f"soft labels must be finite and >= 0, got {bad}"):
                getattr(share, method)(variables, batch)

    def test_soft_ones_sum_to_one_under_a_cross_entropy_alone(self, model):
        batch, variables = self.batch([[1.0, 0, 0], [1.0, 1.0, 0]]), model.init(jax.random.key(5))
        for loss in (
            objectives.cross_entropy,
            objectives.double_softmax_cross_entropy,
            objectives.smoothed_cross_entropy,
            objectives.focal_loss,
        ):
            share = protocols.ClientShare(model, loss=loss)
            protocol = protocols.client(share, num_samples=2, batch_size=2)
            for refuses, given in ((share, (variables, batch)), (protocol.check, (batch,))):
                with pytest.raises(ValueError, match="must sum to one in every row, got 2: divide rows by"):
                    refuses(*given)
            share(variables, batch._replace(y=jnp.full((2, 3), 1 / 3, jnp.bfloat16)))
        share = protocols.ClientShare(model, loss=several_labels)
        share(variables, batch)
        protocols.client(share, num_samples=2, batch_size=2).check(batch)


def several_labels(logits, y):
    return optax.sigmoid_binary_cross_entropy(logits, y).mean()


def test_a_loss_refuses_labels_that_are_not_integers():
    with pytest.raises(ValueError, match="labels must be integers, got dtype float32"):
        objectives.cross_entropy(jnp.zeros((2, 3)), jnp.array([0.0, 1.0]))


def test_a_private_set_of_another_size_is_refused(problem):
    protocol, private = problem.protocol, problem.private
    state = protocol.init(jax.random.key(0))
    for round_ in (protocol.round, jax.jit(protocol.round)):
        with pytest.raises(ValueError, match=r"private\.y must hold num_samples = 2 samples, got shape \(1,\)"):
            round_(jax.random.key(1), state, private._replace(y=private.y[1:]))


def test_logits_of_another_width_than_the_classes_are_refused(model, problem):
    share = protocols.ClientShare(model._replace(num_classes=4))
    with pytest.raises(ValueError, match=r"logits must have shape \(B, num_classes\) = \(B, 4\), got \(2, 3\)"):
        share(problem.params, problem.private)


@pytest.mark.parametrize("place", defenses.HORIZONTAL_PLACES)
def test_a_defense_remembers_the_rounds_before(model, place):
    share, neighbours = protocols.ClientShare(model), int(place == "client_payloads")
    batch_size = 4 // (1 + neighbours)
    protocol = protocols.client(
        share, num_samples=4, batch_size=batch_size, neighbours=neighbours, defense=reference.growing(place)
    )
    private = reference.client_problem(4, model).private
    state, one_round, alone = protocol.init(jax.random.key(0)), jax.jit(protocol.round), jax.jit(share)
    for number in (1, 2, 3):
        state, seen = one_round(jax.random.key(1), state, private)
        plain = alone(state.params, seen.private)
        jax.tree.map(
            lambda a, b, n=number: np.testing.assert_allclose(a, n * np.asarray(b), rtol=1e-4, atol=1e-6),
            seen.payload,
            plain,
        )
    with pytest.raises(ValueError, match=f"remembers earlier rounds, and no state of it is kept here, at {place}"):
        jax.eval_shape(protocol.round, jax.random.key(1), state._replace(defense=()), private)
