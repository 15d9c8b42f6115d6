"""A free copy of the images for every epoch: the prior, the matching, and the simulation of the client's steps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_but

from jaxleak import attacks, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks import presets
from jaxleak.attacks._inversion.epoch_copies import epoch_distance, merged
from jaxleak.audit import template_of
from jaxleak.protocols._client import draw_orders
from jaxleak.study.updates import Case, resolved, share_of

GRANTED = threats.Threat(index=False, labels=True)


def test_the_prior_is_the_mean_over_pairs_of_epochs_and_knows_no_order_within_a_class():
    rng = np.random.default_rng(0)
    x = rng.random((3, 4, 5, 5, 2)).astype(np.float32)
    for y in (np.array([2, 0, 2, 2]), np.zeros(4, int)):
        expected = []
        for a, b in itertools.combinations(range(3), 2):
            for label in y:  # a class counts as often as it has images
                expected.append(np.mean((x[a][y == label].mean(axis=0) - x[b][y == label].mean(axis=0)) ** 2))
        order = rng.permutation(np.flatnonzero(y == y[0]))
        shuffled = x.copy()
        shuffled[1, y == y[0]] = x[1, order]
        labels = jnp.asarray(np.eye(3)[y])
        for copies in (x, shuffled):
            found = epoch_distance(jnp.asarray(copies).reshape(12, 5, 5, 2), labels, 3)
            np.testing.assert_allclose(found, np.mean(expected), rtol=1e-5)
        assert epoch_distance(jnp.tile(x[0], (3, 1, 1, 1)), labels, 3) < 1e-12


@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (1, 1, 1, 0), (2, 2, 2, 2)])
def test_copies_are_matched_as_all_permutations_tried_one_by_one_say(labels):
    rng = np.random.default_rng(1)
    x, y = rng.random((3, 4, 2, 2, 1)), np.stack([np.array(labels)[rng.permutation(4)] for _ in range(3)])
    total = x[0].copy()
    for copies, own in zip(x[1:], y[1:], strict=True):
        best = min(
            itertools.permutations(range(4)),
            key=lambda p: (sum(own[list(p)] != y[0]), np.sum((copies[list(p)] - x[0]) ** 2)),
        )
        total += copies[list(best)]
    found = jax.jit(merged, static_argnums=2)(x.reshape(12, 2, 2, 1), y.reshape(12), 3)
    np.testing.assert_allclose(found, total / 3, rtol=1e-5)


def seen(share, samples, labels):
    """A round of a client that reshuffles every epoch: the attacker's observation, the batch, and the true orders."""
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.random((samples, 1, 4, 4, 1)), jnp.float32)
    size = samples // (share.clients * share.local_steps)
    protocol = protocols.client(share, num_samples=samples, batch_size=size, reshuffle=True)
    key = jax.random.key(3)
    state = protocol.init(jax.random.key(4))
    private = Batch(x, jnp.asarray(labels, jnp.int32), jnp.arange(samples))
    _, transcript = jax.jit(protocol.round)(key, state, private)
    orders = draw_orders(share, jax.random.fold_in(jax.random.fold_in(key, 0), 2), samples // share.clients)
    return threats.view(GRANTED, transcript), transcript.private, orders


@pytest.mark.slow
@pytest.mark.parametrize("clients", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_copies_in_the_clients_orders_give_its_update(clients):
    """All images have the same label, so the order of labels has no effect."""
    share = protocols.ClientShare(
        reference.sigmoid_mlp(), local_steps=2, local_epochs=3, learning_rate=0.5, momentum=0.5, clients=clients
    )
    observation, batch, orders = seen(share, 8, np.zeros(8))
    settings = presets.fedleak(3).weighing(tv=0, activation=0)
    attack = attacks.epoch_copies(share.model, share, settings._replace(labels="given"), batch_size=8)
    state = attack.init(jax.random.key(5), template_of(batch))
    first = batch.x[:, 0]
    own = first.reshape(clients, -1, 4, 4, 1)
    later = [jnp.concatenate([own[m][orders[m, e]] for m in range(clients)]) for e in range(2)]
    step, found = jax.jit(attack.step), {}
    for name, copies in {"first": [first] * 3, "true": [first, *later]}.items():
        state = state._replace(variables={**state.variables, "x": jnp.concatenate(copies)})
        found[name] = float(step(jax.random.key(6), state, observation)[1]["distance"])
    assert found["true"] < 1e-5 < found["first"] / 10
    answer = jax.jit(attack.reconstruct)(state._replace(best=state.variables), observation)
    np.testing.assert_allclose(answer.x, batch.x, atol=1e-5)
    assert answer.gradient_matched.all()


@pytest.mark.parametrize("strategy", slow_but(("given", "bias_rule", "joint"), ("given",)))
def test_every_epoch_has_the_labels_of_the_first(strategy):
    share = protocols.ClientShare(reference.sigmoid_mlp(), local_steps=2, local_epochs=2, learning_rate=0.1)
    observation, batch, _ = seen(share, 4, np.arange(4) % 3)
    settings = presets.fedleak(3)._replace(labels=strategy)
    attack = attacks.epoch_copies(share.model, share, settings, batch_size=4)
    state = attack.init(jax.random.key(5), template_of(batch))
    assert state.variables["x"].shape == (8, 4, 4, 1)
    answer = attack.reconstruct(state, observation)
    assert answer.x.shape == batch.x.shape
    assert answer.y.shape == (4,)
    if strategy == "given":
        np.testing.assert_array_equal(answer.y, batch.y)


@pytest.mark.parametrize(("weight", "copies"), [(None, 1), (0.0, 2)])
def test_the_option_asks_for_it(weight, copies):
    case, model = Case(epoch_copies=weight, local_epochs=2, local_steps=2, labels="given"), reference.sigmoid_mlp()
    attack = resolved(case).build(model, share_of(case, model))
    template = Batch(jnp.zeros((2, 1, 4, 4, 1)), jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32))
    state = jax.eval_shape(lambda key: attack.init(key, template), jax.random.key(0))
    assert state.variables["x"].shape == (copies * 2, 4, 4, 1)


def test_attacks_with_other_rules_or_weights_are_told_apart():
    """A checkpoint of one rule would else go on with the labels of another one."""
    model = reference.sigmoid_mlp()
    share = protocols.ClientShare(model, local_steps=2, local_epochs=2)

    def identity(labels, weight=0.3):
        settings = presets.fedleak(3)._replace(labels=labels)
        return attacks.epoch_copies(model, share, settings, batch_size=4, weight=weight).made_of

    of_all = [identity("calibrated"), identity("bias_rule"), identity("given"), identity("calibrated", 0.5)]
    assert len(set(of_all)) == 4
    assert identity("calibrated") == of_all[0]


def test_what_copies_cannot_serve_is_refused():
    model = reference.sigmoid_mlp()
    settings = presets.fedleak(3)
    share = protocols.ClientShare(model, local_steps=2, local_epochs=2)
    for wrong in (
        protocols.ClientShare(model, local_steps=2),
        protocols.ClientShare(model, local_epochs=2),
        protocols.averaged_share(share),
        None,
    ):
        with pytest.raises(ValueError, match="local_epochs > 1 and local_steps > 1, got"):
            attacks.epoch_copies(model, wrong, settings, batch_size=4)
    with pytest.raises(ValueError, match="weight must be >= 0"):
        attacks.epoch_copies(model, share, settings, batch_size=4, weight=-1.0)
    with pytest.raises(ValueError, match="RowSpaces does not simulate"):
        attacks.epoch_copies(model, share, presets.row_space(6000), batch_size=4)
    with pytest.raises(
        ValueError, match="labels='none' is for comparisons that read no labels, but Gradients reads them"
    ):
        attacks.epoch_copies(model, share, settings._replace(labels="none"), batch_size=4)
    attack = attacks.epoch_copies(model, share, settings._replace(labels="given"), batch_size=4)
    observation, batch, _ = seen(share, 4, np.zeros(4))
    state = attack.init(jax.random.key(0), template_of(batch))
    with pytest.raises(ValueError, match="the threat must grant labels"):
        attack.step(jax.random.key(0), state, observation._replace(labels=None))
