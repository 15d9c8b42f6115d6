"""Attackers who know the defense: their simulation, their distance, and their random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxleak import defenses, models, protocols
from jaxleak._base import Batch, Observation, TransformedShare
from jaxleak._own_keys import Purpose, own_key
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.attacks.adaptive import _likelihood, _simulation
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.defenses import CLIENT_DEFENSES, client_defense
from jaxleak.defenses.mechanisms import Mechanism, Recomputed, Replayed
from jaxleak.protocols import ClientShare

SHAPE = (8, 8, 1)
SETTINGS = presets.preset("fedleak", 10)._replace(
    labels="given", white_point=0.5, candidate="a candidate", optimizer="one"
)


@pytest.fixture(scope="module")
def client():
    model = models.build("mlp", SHAPE, 10, widths=(6,))
    x = jnp.asarray(np.random.default_rng(0).random((2, 1, *SHAPE)), jnp.float32)
    return model, ClientShare(model), model.init(jax.random.key(0)), Batch(x, jnp.array([1, 2]), jnp.arange(2))


@pytest.fixture(scope="module")
def payload(client):
    """The client's upload without a defense."""
    _, share, variables, batch = client
    return jax.tree.map(np.asarray, jax.jit(share)(variables, batch))


def informed(client, defense, settings=SETTINGS, **options):
    model, share, *_ = client
    return adaptive.informed(defense, model, share, settings, batch_size=2, **options)


@pytest.mark.parametrize("kind", CLIENT_DEFENSES)
def test_every_defense_of_a_client_has_an_attacker_who_knows_it(client, kind):
    """Knowing the defense changes either the simulated share of the client or the distance between gradients."""
    found = informed(client, client_defense(kind, CLIENT_DEFENSES[kind].strengths[-1]))
    assert found.share is not client[1] or found.settings.compare != SETTINGS.compare


def test_a_random_defense_is_averaged_over_four_draws_of_the_attackers_own(client):
    """A single draw has all entries on a grid, and the mean of four on one that is four times finer."""
    known = informed(client, defenses.quantize(4, stochastic=True))
    sent = jax.jit(known.share)(*client[2:])
    steps = np.concatenate([np.ravel(7 * leaf / np.abs(leaf).max()) for leaf in jax.tree.leaves(sent)])
    np.testing.assert_allclose(4 * steps, np.round(4 * steps), atol=1e-3)
    assert {0.25, 0.5, 0.75} <= set(np.round(np.abs(steps) % 1, 3))


def test_the_name_of_a_defense_is_no_defense(client):
    with pytest.raises(ValueError, match=r"^defense must be made by jaxleak\.defenses .* got 'gaussian', a text"):
        adaptive.informed("gaussian", client[0], ClientShare(client[0]), presets.fedleak(3), batch_size=2)


def test_what_nobody_can_know_is_refused(client):
    for unknown in (
        defenses.fake_gradients(3, reading="printed"),
        defenses.marvell(num_classes=2),
        defenses.gaussian_noise(0.1, place="top_output"),
        defenses.laplace_noise(0.1, place="cut_gradient"),
        defenses.chain(defenses.quantize(8), defenses.gaussian_noise(0.1)),
        defenses.composed(defenses.dp_sgd(), defenses.guardian(1.0)),
        defenses.outpost(0.5, decay=0.1),
        defenses.dp_sgd(expected_batch=3.0),
    ):
        with pytest.raises(ValueError, match=f"at {unknown.place}, declares none"):
            informed(client, unknown)
    with pytest.raises(ValueError, match=r"attacked over many rounds \(`informed_rounds`\)"):
        informed(client, defenses.fake_gradients(3))
    inside = defenses.per_leaf("per_example_gradient", lambda _, g: jnp.sign(g), mechanism=Mechanism(Replayed()))
    with pytest.raises(ValueError, match="place must be payload, got per_example_gradient"):
        informed(client, inside)
    alone = defenses.chain(defenses.quantize(8))
    assert alone.mechanism == defenses.quantize(8).mechanism is not None
    with pytest.raises(ValueError, match="batch_size"):
        adaptive.informed(alone, client[0], client[1], SETTINGS, batch_size=0)
    for number, message in ((-1, "round must be >= 0"), (0.5, "round must be a whole number")):
        with pytest.raises(ValueError, match=message):
            adaptive.informed(alone, client[0], client[1], SETTINGS, batch_size=2, round=number)
    steps = ClientShare(client[0], local_steps=3)
    for inside in (defenses.dp_sgd(), defenses.feature_dropout(0.5)):
        with pytest.raises(ValueError, match="needs one local step in all, got 3"):
            adaptive.informed(inside, client[0], steps, SETTINGS, batch_size=3)


@pytest.mark.parametrize(
    "identity",
    [
        defenses.gaussian_noise(0.0),
        defenses.laplace_noise(0.0),
        defenses.magnitude_noise(0.0),
        defenses.cancelling_noise(0.0, 3),
        defenses.feature_dropout(0.0),
        defenses.guardian(0.0),
        defenses.withhold_top(0.0),
    ],
)
def test_who_knows_that_nothing_is_changed_changes_nothing(client, identity):
    found = informed(client, identity)
    assert found.share is client[1]
    assert found.settings == SETTINGS


def test_the_weights_are_read_where_the_noise_follows_from_them():
    kinds = {kind for kind, known in CLIENT_DEFENSES.items() if adaptive.reads_weights(known.build(known.strengths[0]))}
    assert kinds == {"outpost", "guardian"}
    assert not adaptive.reads_weights(defenses.fake_gradients(3))


@pytest.mark.slow
def test_dp_before_soteria_is_both(client):
    model, share, variables, batch = client
    payload = share(variables, batch)
    known = {"model": model, "variables": variables, "x": batch.x[:, 0], "y": batch.y, "round": 0}
    known["mode"] = "eval"
    key = jax.random.key(3)
    weak = defenses.composed(defenses.dp_sgd(1e6, 0.0), defenses.soteria(0.0)).apply(key, payload, **known)
    for a, b in zip(jax.tree.leaves(weak), jax.tree.leaves(payload), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    both = defenses.composed(defenses.dp_sgd(1.0, 1.0), defenses.soteria(0.5))
    sent = both.apply(key, payload, **known)
    kernel = sent[model.head]["kernel"]
    assert int((kernel == 0).all(axis=1).sum()) == kernel.shape[0] // 2
    assert all((leaf != 0).all() for name, of in sent.items() for leaf in of.values() if name != model.head)
    assert both.mechanism == defenses.dp_sgd(1.0, 1.0).mechanism._replace(zeroes=True)
    with pytest.raises(ValueError, match="per_example must be a defense at per_example_gradient, got one at repr"):
        defenses.composed(defenses.soteria(0.5), defenses.soteria(0.5))


@pytest.mark.slow
def test_straight_through_has_the_defended_value_and_the_plain_derivative(client):
    _, share, variables, batch = client
    known = informed(client, defenses.quantize(4)).share
    sent = defenses.quantize(4).apply(jax.random.key(9), share(variables, batch))
    for a, b in zip(jax.tree.leaves(known(variables, batch)), jax.tree.leaves(sent), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)

    def head_sum(of, x):
        return of(variables, batch._replace(x=x))["head"]["kernel"].sum()

    np.testing.assert_allclose(
        jax.grad(lambda x: head_sum(known, x))(batch.x), jax.grad(lambda x: head_sum(share, x))(batch.x), atol=1e-6
    )


def test_clipped_examples_are_dp_without_noise(client):
    _, share, variables, batch = client
    known = informed(client, defenses.dp_sgd(0.1, 0.0))
    assert known.settings == SETTINGS

    @jax.jit
    def both(batch):
        each = jax.vmap(lambda x, y: share(variables, Batch(x[None], y[None], jnp.arange(1))))(batch.x, batch.y)
        defended = defenses.dp_sgd(0.1, 0.0).apply(jax.random.key(0), each)
        return known.share(variables, batch), jax.tree.map(lambda leaf: leaf.mean(axis=0), defended)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), *both(batch))


@pytest.mark.slow
def test_guardians_shadow_weights_say_where_the_noise_is(client):
    model, share, _, _ = client
    weak, strong = (
        _likelihood.shadow_weights(KnownClient(defenses.guardian(beta), model, share, 2)) for beta in (1e-9, 1000.0)
    )
    assert weak == (1.0,) * len(weak)
    assert 0 < min(strong) < 0.5


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "magnitude_noise", "outpost", "dp_sgd", "dp_update"])
def test_who_knows_the_noise_compares_in_its_units(client, payload, kind):
    """With twice the noise, deviations weigh less; candidate, optimizer, labels and other settings do not change."""
    other = jax.tree.map(lambda leaf: leaf + 1e-4, payload)  # within the noise
    weak, strong = (0.1, 0.9) if kind == "outpost" else (1e4, 1e3) if kind.startswith("dp") else (0.1, 0.2)
    distances = []
    for strength in (weak, strong):
        settings = informed(client, client_defense(kind, strength)).settings
        distance = jax.jit(settings.gradients.distance)
        distances.append(distance(payload, other))
        kept = ("candidate", "optimizer", "labels", "white_point", "smoothing", "iterations")
        assert all(getattr(settings, field) == getattr(SETTINGS, field) for field in kept)
        assert distance(payload, payload) == 0
    ratio = distances[0] / distances[1]
    expected = {"gaussian": 4, "laplace": 2, "magnitude_noise": 4, "dp_sgd": 100, "dp_update": 100}
    if kind == "outpost":
        assert ratio > 2  # only the entries that survive pruning are compared
    else:
        np.testing.assert_allclose(ratio, expected[kind], rtol=1e-4)


def test_the_noise_of_a_sum_is_divided_by_the_images_behind_it(client, payload):
    model, share, *_ = client
    other = jax.tree.map(lambda leaf: leaf + 0.01, payload)
    for defense, ratio in ((defenses.dp_sgd(1.0, 0.5), 16), (defenses.clipped_gaussian(1.0, 0.5), 1)):
        two, eight = (
            adaptive.informed(defense, model, share, SETTINGS, batch_size=size).settings.gradients for size in (2, 8)
        )
        found = jax.jit(lambda a, b, two=two, eight=eight: eight.distance(a, b) / two.distance(a, b))(payload, other)
        np.testing.assert_allclose(found, ratio, rtol=1e-4)


def test_who_knows_that_noise_decays_goes_by_the_round(client, payload):
    other = jax.tree.map(lambda leaf: leaf + 0.1, payload)
    defense = defenses.adaptive_dp_sgd(1.0, 0.5, decay=0.99)
    early, late = (informed(client, defense, round=t).settings.gradients for t in (0, 10))
    found = jax.jit(lambda a, b: late.distance(a, b) / early.distance(a, b))(payload, other)
    np.testing.assert_allclose(found, 0.99**-20, rtol=1e-4)


@pytest.mark.parametrize(("kind", "strength"), [("sparsification", 10.0), ("withhold_top", 20.0), ("soteria", 0.5)])
def test_the_truth_has_the_gradient_that_arrived(client, payload, kind, strength):
    model, _, variables, batch = client
    known = {"model": model, "variables": variables, "x": batch.x[:, 0], "y": batch.y, "round": 0, "mode": "train"}
    defense = client_defense(kind, strength)
    sent = defense.apply(jax.random.key(0), payload, **known)
    seen = Observation(jnp.zeros((), jnp.int32), variables, sent, labels=batch.y)
    settings = presets.fedleak(10, homotopy=False)._replace(labels="given")
    own = informed(client, defense, settings)
    term = own.settings.compare.term(Setup(model, own.share, 2))
    soft = jnp.eye(10)[batch.y]
    for x, matched in ((batch.x[:, 0], True), (1 - batch.x[:, 0], False)):
        assert bool(term.compare(seen, x, soft, None, None).misfit < term.matched_below) == matched


def test_labels_are_optimised_where_the_heads_gradient_is_withheld(client, payload):
    """The largest entries belong to the head; without them, a label rule finds all classes equally often."""
    model, *_ = client
    encrypted = client_defense("encrypt_top", 20.0), client_defense("encrypt_bottom", 80.0)
    seen, kept = jax.jit(lambda payload: [of.apply(jax.random.key(0), payload) for of in encrypted])(payload)
    assert not np.asarray(seen[model.head]["bias"]).any()
    np.testing.assert_array_equal(kept[model.head]["bias"], payload[model.head]["bias"])
    for kind, labels, expected in (
        ("encrypt_top", "calibrated", "joint"),
        ("withhold_top", "given", "given"),
        ("encrypt_bottom", "calibrated", "calibrated"),
        ("soteria", "calibrated", "calibrated"),
    ):
        own = SETTINGS._replace(labels=labels)
        assert informed(client, client_defense(kind, 0.5), own).settings.labels == expected


@pytest.mark.parametrize(
    ("kind", "strength", "rule"),
    [
        ("magnitude_noise", 1.0, "corrected_counts"), ("outpost", 0.9, "averaged_counts"),
        ("quantization", 1, "averaged_counts"), ("gaussian", 0.01, "calibrated"), ("sparsification", 10, "calibrated"),
    ],
)  # fmt: skip
def test_labels_are_read_by_the_rule_that_suits_what_is_left_of_the_head(client, kind, strength, rule):
    defense = client_defense(kind, strength)
    assert informed(client, defense, SETTINGS._replace(labels="calibrated")).settings.labels == rule
    # Granted labels are not inferred.
    assert informed(client, defense).settings.labels == "given"


def test_attackers_draw_from_keys_of_their_own():
    """No purpose has a key that a run derives from its seed by small numbers, and no two purposes share a key."""
    own = {tuple(jax.random.key_data(own_key(purpose)).tolist()) for purpose in Purpose}
    assert len(own) == len(Purpose)
    roots = [jax.random.key(seed) for seed in range(5)]
    children = [jax.random.fold_in(root, n) for root in roots for n in range(8)]
    theirs = [*roots, *children, *(jax.random.fold_in(child, n) for child in children for n in range(4))]
    assert not own & {tuple(jax.random.key_data(key).tolist()) for key in theirs}


def test_who_knows_of_dropout_averages_over_masks(client):
    model, _, variables, batch = client
    half = jax.jit(informed(client, defenses.feature_dropout(0.5)).share)(variables, batch)

    @jax.jit
    def draw(key):
        known = {"model": model, "variables": variables, "x": batch.x[:, 0], "y": batch.y}
        return ravel_pytree(defenses.feature_dropout(0.5).apply(key, variables["params"], **known))[0]

    draws = [draw(key) for key in jax.random.split(own_key(Purpose.MASKS), _simulation.DRAWS)]
    np.testing.assert_allclose(ravel_pytree(half)[0], np.mean(draws, axis=0), atol=1e-6)


@pytest.mark.parametrize("number", [0, 50])
def test_who_knows_of_what_is_computed_anew_computes_as_the_client_in_that_round(client, number):
    """The defense mixes inputs in the first ten rounds only, and the attacker simulates the round in question."""
    _, share, variables, batch = client

    def update(key, payload, *, variables, x, y, round, **_):
        mixed = jnp.where(round < 10, (x + x[::-1]) / 2, x)
        return share(variables, Batch(mixed[:, None], y, jnp.arange(2)))

    defense = defenses.stateless("representation", update, mechanism=Mechanism(Recomputed()))
    protocol = protocols.client(share, num_samples=2, batch_size=2, variables=variables, defense=defense)
    state = jax.jit(protocol.init)(jax.random.key(0))._replace(round=np.int32(number))
    _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, batch)
    found = jax.jit(informed(client, defense, round=number).share)(variables, transcript.private)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, transcript.payload)


def test_private_noise_is_measured_in_the_payloads_round(client):
    model, share, variables, _ = client
    noisy_later = defenses.stateless(
        "representation", lambda key, payload, *, round, **_: jax.tree.map(lambda leaf: leaf + (round > 9), payload)
    )
    early, late = (KnownClient(noisy_later, model, share, 2, number, variables) for number in (9, 10))
    assert min(_likelihood.shadow_weights(early)) == 1.0
    assert max(_likelihood.shadow_weights(late)) < 0.9


def test_who_knows_outpost_trusts_tensors_without_noise(client, payload):
    """Zero biases get no noise, so a deviation in them costs more than an equal one in a noisy kernel."""
    model, share, *_ = client
    noise = defenses.outpost(0.0, decay=0.0).mechanism.noise
    distance = jax.jit(_likelihood.tensor_likelihood(noise, KnownClient(None, model, share, 2)))
    drawn = model.init(own_key(Purpose.WEIGHTS))["params"]
    spread = jax.tree.map(lambda leaf: float(np.asarray(leaf).var(ddof=1)), drawn)

    def moved(layer, leaf):
        other = {**payload, layer: {**payload[layer], leaf: payload[layer][leaf] + 0.1}}
        # Zeros count as pruned.
        return float(distance(payload, other)) / np.count_nonzero(payload[layer][leaf])

    floor = max(0.8 * v for v in jax.tree.leaves(spread)) * _likelihood._CLEAN
    for layer, leaf in (("dense_0", "kernel"), ("dense_0", "bias"), ("head", "kernel")):
        deviation = 0.8 * spread[layer][leaf]
        np.testing.assert_allclose(moved(layer, leaf), 0.01 / 2 / (deviation**2 + floor**2), rtol=1e-3)


def test_what_acts_inside_a_step_is_refused_for_a_share_of_several_epochs_behind_another_transform(client):
    model, *_ = client
    share = ClientShare(model, local_epochs=2)
    for several in (share, TransformedShare(share, share), TransformedShare(TransformedShare(share, share), share)):
        with pytest.raises(ValueError, match="needs one local step in all, got 2"):
            adaptive.informed(defenses.feature_dropout(0.5), model, several, SETTINGS, batch_size=2)


def test_shares_behind_a_defense_say_how_the_client_computes(client):
    model, *_ = client
    share = ClientShare(model, local_steps=3, clients=2, batch_norm="eval")
    for defense in (defenses.quantize(4), defenses.clipped_gaussian(1.0, 0.5)):
        known = adaptive.informed(defense, model, share, SETTINGS, batch_size=6).share
        assert known is not share
        assert (known.local_steps, known.clients, known.batch_norm) == (3, 2, "eval")
