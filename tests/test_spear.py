"""All samples of a batch from the gradient of a first dense layer with ReLUs, against NumPy."""

import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, attacks, audit, models, objectives, protocols
from jaxleak.attacks._inversion import affine
from jaxleak.attacks._inversion import spear as solver
from jaxleak.audit._verdict import several_samples
from jaxleak.audit._verdict.several_samples import _unsolved

B, SHAPE, K, WIDTH = 4, (3, 4, 1), 12, 40
LAYER = "dense_0/kernel"


def _client(samples=B, **options):
    """A network on rows of a table, its weights, a batch of standardised rows, the client's share, and the update."""
    model = models.mlp(SHAPE, 3, widths=(WIDTH, 6), **options)
    variables = reference.drawn(model, seed=1)
    x = reference.normal(samples, 1, *SHAPE, seed=3)
    batch = Batch(jnp.asarray(x), jnp.arange(samples, dtype=jnp.int32) % 3, jnp.arange(samples))
    share = protocols.ClientShare(model)
    return model, variables, batch, share, jax.jit(share)(variables, batch)


@pytest.fixture(scope="module")
def client():
    return _client()


def _answer(client, payload=None, attack=None, **options):
    model, variables, batch, share, gradient = client
    attack = attack or attacks.spear(model, share, batch_size=len(batch.y), **options)
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=gradient if payload is None else payload)
    return audit.invert(attack, seen, audit.template_of(batch), key=jax.random.key(0))


def _places(found, true):
    """The index of the true sample that is nearest to each found one."""
    difference = np.asarray(found).reshape(len(found), 1, -1) - np.asarray(true).reshape(1, len(true), -1)
    return np.abs(difference).max(axis=-1).argmin(axis=1)


def _gradients_at_outputs(client):
    """The loss gradients (B, m) of a batch at the layer's outputs, computed one sample at a time."""
    _, variables, batch, share, _ = client
    ones = (Batch(x[None], y[None], jnp.arange(1)) for x, y in zip(batch.x, batch.y, strict=True))
    rows = [jax.jit(share)(variables, one) for one in ones]
    return np.stack([np.asarray(row["dense_0"]["bias"]) for row in rows]) / len(batch.y)


def test_rows_and_labels_of_a_batch_are_exact(client):
    model, variables, batch, share, gradient = client
    attack = attacks.spear(model, share, batch_size=B, draws=512)
    answer, run, infos = _answer(client, attack=attack)
    assert answer.answered.all()
    assert answer.gradient_matched.all()
    assert float(answer.score.max()) < 1e-5
    places = _places(answer.x, batch.x)
    assert sorted(places) == list(range(B))
    np.testing.assert_allclose(answer.x, batch.x[places], atol=1e-4)
    np.testing.assert_array_equal(answer.y, np.asarray(batch.y)[places])
    # Each column is orthogonal to those outputs that one sample leaves off and that another turns on.
    d = _gradients_at_outputs(client)
    off = np.sort((d == 0)[:, (d != 0).any(axis=0)].sum(axis=1))
    by_chance = np.sort(run.attack.zeros) - off
    assert by_chance.min() >= 0
    assert by_chance.max() <= 1
    assert infos["found"][-1] == B
    # Neither a slightly noisy update nor a batch that contains a sample twice has an exact solution.
    twice = batch._replace(x=batch.x.at[1].set(batch.x[0]), y=batch.y.at[1].set(batch.y[0]))
    for payload in (
        jax.tree.map(lambda g: g * (1 + 1e-2 * reference.normal(*g.shape, seed=5)), gradient),
        jax.jit(share)(variables, twice),
    ):
        refused, _, _ = _answer(client, payload, attack)
        assert not refused.answered.any()
        assert not refused.gradient_matched.any()
        np.testing.assert_array_equal(refused.x, 0.5)
        np.testing.assert_array_equal(refused.y, -1)


@pytest.mark.slow
def test_the_printed_draws_find_the_same(client):
    _, _, batch, _, _ = client
    answer, _, _ = _answer(client, draws=2048, reweighted=0)
    assert answer.answered.all()
    places = _places(answer.x, batch.x)
    np.testing.assert_allclose(answer.x, batch.x[places], atol=1e-4)


def test_a_solution_is_that_of_least_squares_and_an_output_that_is_off_by_mistake_counts_little(client):
    model, _, batch, _, gradient = client
    factors = solver.factors_of(model, gradient, LAYER, B)
    assert int(factors.rank) == B
    d = _gradients_at_outputs(client)
    off = (d == 0) & np.asarray(factors.live)
    wrong = off.copy()
    wrong[0, np.flatnonzero(~off[0] & np.asarray(factors.live))[0]] = True
    solve = jax.jit(solver.solution)
    for given, atol in ((off, 1e-4), (wrong, 1e-2)):
        h, found = solve(factors, jnp.asarray(given))
        np.testing.assert_allclose(found, d, atol=atol * np.abs(d).max())
        np.testing.assert_allclose(h, np.asarray(batch.x).reshape(B, -1), atol=10 * atol)


def test_the_independent_columns_with_most_zeros_are_kept():
    """The kept basis has the largest sum of zeros among all bases, as a search over all of them shows."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((9, 3)).astype(np.float32)
    columns[1], columns[4] = 2 * columns[0], columns[2] + columns[3]
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    zeros = np.array([9, 8, 7, 7, 7, 3, 2, 1, -1], np.int32)
    most = max(
        sum(zeros[list(chosen)])
        for chosen in itertools.combinations(range(8), 3)
        if abs(np.linalg.det(columns[list(chosen)])) > 1e-3
    )
    factors = solver.Factors(jnp.zeros((5, 3)), *[None] * 4)
    start = solver.SpearState(jnp.zeros((3, 3)), jnp.full(3, -1, jnp.int32), jnp.ones(()), None)
    found = jax.jit(lambda c, z: solver._best_columns(factors, start, c, z))(columns, zeros)
    assert int(found.zeros.sum()) == most
    assert abs(np.linalg.det(np.asarray(found.columns))) > 1e-3
    # Columns that were found before are also candidates.
    again = jax.jit(lambda s, c, z: solver._best_columns(factors, s, c, z))(found, columns[5:7], zeros[5:7])
    assert int(again.zeros.sum()) == most


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (models.mlp(SHAPE, 3, widths=(8,)), {"batch_size": 1}, r"batch_size must be in \[2, 64\], got 1"),
        (
            models.mlp(SHAPE, 3, widths=(8,)),
            {"batch_size": 9},
            "at most the 12 inputs and 8 outputs of dense_0/kernel",
        ),
        (models.mlp(SHAPE, 3, widths=(8,)), {"draws": 0}, "draws must be > 0, got 0"),
        (models.mlp(SHAPE, 3, widths=(8,)), {"reweighted": -1}, "reweighted must be"),
        (models.convnet((4, 4, 1), 3, channels=(2,), strides=(1,)), {}, "a first layer that is dense and has a bias"),
    ],
)
def test_what_it_cannot_solve_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        attacks.spear(model, protocols.ClientShare(model), **{"batch_size": 2} | options)


def test_clients_of_several_steps_are_refused(client):
    model = client[0]
    for options in ({"local_steps": 2}, {"local_epochs": 2}, {"clients": 2}):
        share = protocols.ClientShare(model, learning_rate=0.1, **options)
        with pytest.raises(ValueError, match="one step, and be a single one"):
            attacks.spear(model, share, batch_size=4)


def test_a_share_of_ones_own_that_states_no_epochs_is_refused_for_its_local_steps(client):
    class Own:
        batch_norm, local_steps, clients = "train", 4, 1

    with pytest.raises(ValueError, match="one step, and be a single one"):
        attacks.spear(client[0], Own(), batch_size=4)


def test_a_client_whose_loss_is_a_sum_is_solved_as_one_whose_loss_is_a_mean(client):
    model, variables, batch, _, gradient = client

    def summed(logits, y):
        return len(logits) * objectives.cross_entropy(logits, y)

    share = protocols.ClientShare(model, loss=summed)
    sent = jax.tree.map(lambda g: len(batch.y) * g, gradient)
    answer, _, _ = _answer((model, variables, batch, share, sent), draws=512)
    assert answer.answered.all()
    np.testing.assert_array_equal(answer.y, np.asarray(batch.y)[_places(answer.x, batch.x)])


def test_a_dense_layer_that_reads_no_affine_map_of_the_sample_is_refused():
    def apply(variables, x):
        h = jnp.sin(x.reshape(len(x), -1)) @ variables["params"]["a"]["kernel"] + variables["params"]["a"]["bias"]
        return jax.nn.relu(h)

    params = {"a": {"kernel": reference.normal(K, 6), "bias": jnp.zeros(6)}}
    model, _ = models.from_function(apply, {"params": params}, image_shape=SHAPE)
    with pytest.raises(ValueError, match="a dense layer that reads the image itself; a/kernel does not"):
        attacks.spear(model, protocols.ClientShare(model), batch_size=2)


def test_an_audit_certifies_the_rows_of_a_batch(client):
    model, variables, batch, _, gradient = client
    verdict = audit.update(model, variables, gradient, batch_size=B, minutes=2)
    assert verdict.headline.startswith("leaks images")
    assert verdict.best.attack == "spear"
    assert verdict.best.shown.all()
    np.testing.assert_allclose(verdict.best.x, batch.x[_places(verdict.best.x, batch.x), 0], atol=1e-4)
    assert any("4 of 4 images are certified" in reason for reason in verdict.reasons)


def _of_other_losses(client, weights):
    """The update for a cross-entropy with its own weight for every sample."""
    model, variables, batch, _, _ = client

    def loss(params):
        logits = model.apply({**variables, "params": params}, batch.x[:, 0], mode="train").logits
        each = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch.y[:, None], axis=1)[:, 0]
        return (jnp.asarray(weights) * each).mean()

    return jax.jit(jax.grad(loss))(variables["params"])


@pytest.mark.parametrize("facts", [{"loss": "other"}, {"defense": "other"}, {}])
def test_an_audit_certifies_the_rows_of_a_batch_whatever_the_loss(client, facts):
    model, variables, batch, _, _ = client
    gradient = _of_other_losses(client, [0.9, 1.2, 0.8, 1.1])
    verdict = audit.update(model, variables, gradient, batch_size=B, minutes=2, **facts)
    assert verdict.headline == "leaks images"
    assert verdict.best.attack == "spear_alone"
    assert verdict.best.shown.all()
    assert (verdict.best.y == -1).all()
    np.testing.assert_allclose(verdict.best.x, batch.x[_places(verdict.best.x, batch.x), 0], atol=1e-4)
    odd = [finding for finding in verdict.findings if finding.name == "gradient explained"]
    assert [finding.cause[:12] for finding in odd] == ([] if facts else ["another loss"])


def test_a_solution_without_the_loss_takes_relus_that_agree_and_enough_of_them(client, monkeypatch):
    model, variables, batch, share, gradient = client
    attack = attacks.spear(model, share, batch_size=B, draws=512)
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=gradient)
    _, run, _ = audit.invert(attack, seen, audit.template_of(batch), key=jax.random.key(0))
    layer = solver.dense_layer_on_images(model, share.batch_norm)
    assert WIDTH > solver._OUTPUTS
    found = jax.jit(functools.partial(solver.images_without_loss, model, share.batch_norm, layer))
    right = found(run.attack, seen)
    assert right.certain.all()
    assert not right.dimmer.all()  # the layer's biases determine the brightness of the samples
    assert right.misfit < 1e-5
    np.testing.assert_allclose(right.x, batch.x[_places(right.x, batch.x), 0], atol=1e-4)
    columns = run.attack.columns
    mixed = columns.at[0].set((columns[0] + columns[1]) / jnp.linalg.norm(columns[0] + columns[1]))
    assert not found(run.attack._replace(columns=mixed), seen).certain[0]
    noisy = {**gradient, "dense_0": {**gradient["dense_0"], "bias": gradient["dense_0"]["bias"][::-1]}}
    assert found(run.attack, seen._replace(payload=noisy)).misfit > 0.1
    monkeypatch.setattr(solver, "_OUTPUTS", WIDTH + 1)
    anew = jax.jit(functools.partial(solver.images_without_loss, model, share.batch_norm, layer))
    assert not anew(run.attack, seen).certain.any()


def test_a_sample_that_turns_on_what_another_does_is_not_certain(client):
    model, variables, _, share, _ = client
    dense = variables["params"]["dense_0"]
    moved = {**dense, "kernel": dense["kernel"].at[0].set(5.0)}
    variables = {**variables, "params": {**variables["params"], "dense_0": moved}}
    x = np.asarray(reference.normal(2, 1, *SHAPE, seed=3)).copy()
    x[0, 0, 0, 0], x[1, 0] = 0.0, np.eye(K)[0].reshape(SHAPE)  # the second sample turns on every output
    batch = Batch(jnp.asarray(x), jnp.arange(2, dtype=jnp.int32), jnp.arange(2))
    gradient = jax.jit(share)(variables, batch)
    attack = attacks.spear(model, share, batch_size=2, draws=512)
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=gradient)
    _, run, _ = audit.invert(attack, seen, audit.template_of(batch), key=jax.random.key(0))
    layer = solver.dense_layer_on_images(model, share.batch_norm)
    found = jax.jit(functools.partial(solver.images_without_loss, model, share.batch_norm, layer))(run.attack, seen)
    assert not found.certain.all()


@pytest.mark.parametrize(
    ("certain", "misfit", "certified"),
    [([True, True], 1e-4, True), ([True, False], 1e-4, False), ([True] * 2, 2e-3, False)],
)
def test_a_solution_without_the_loss_certifies_what_is_certain_throughout(monkeypatch, certain, misfit, certified):
    found = solver.ImagesWithoutLoss(
        jnp.full((2, *SHAPE), 0.5), jnp.array(certain), jnp.array([False, True]), jnp.asarray(misfit)
    )
    replaced = {"_images_without_loss": found, "dense_layer_on_images": None, "rounding_of": 0.0}
    for name, value in replaced.items():
        monkeypatch.setattr(several_samples, name, lambda *_, value=value: value)
    share, run = SimpleNamespace(model=None, batch_norm="train"), SimpleNamespace(attack=None)
    for defended, toned in ((False, None), (True, [False, True])):  # a changed bias does not determine the brightness
        case = SimpleNamespace(share=share, observation=None, samples=2, loss_known=False, defended=defended)
        answer = several_samples._answer(case, None, run)
        assert (answer is not None) == certified
        assert not certified or answer.shown.all()
        assert not certified or answer.cosine_distance == pytest.approx(misfit**2 / 2)
        assert not certified or (answer.toned if toned is None else answer.toned.tolist()) == toned


def test_what_kept_the_equations_from_a_solution_is_said(client):
    model, _, _, _, gradient = client
    factors = solver.factors_of(model, gradient, LAYER, B + 1)
    state = solver.SpearState(None, None, jnp.ones(()), factors)
    assert "has the rank 4" in _unsolved(SimpleNamespace(samples=B + 1), state, 1.0)
    assert "within its draws" in _unsolved(SimpleNamespace(samples=B), state, 1.0)
    assert "no other samples have" in _unsolved(SimpleNamespace(samples=B), state._replace(wrong=0.0), 1.0)


def _masked(x):
    return x * (np.arange(K).reshape(SHAPE) != 5)


def test_images_that_others_could_replace_match_the_gradient_and_are_no_answer(client):
    plain, variables, batch, _, _ = client

    def apply(variables, x):
        return plain.apply(variables, jax.vmap(_masked)(x)).logits

    model, _ = models.from_function(apply, variables, image_shape=SHAPE)
    share = protocols.ClientShare(model)
    gradient = jax.jit(share)(variables, batch)
    answer, _, _ = _answer((model, variables, batch, share, gradient), draws=512)
    assert answer.gradient_matched.all()
    assert not answer.answered.any()


def _centred(x):
    return x - x.mean()


def _mixed(x):
    return (reference.normal(K, K, seed=9) @ x.reshape(-1)).reshape(SHAPE)


@pytest.mark.parametrize(
    ("inputs", "one_by_one", "unique"),
    [
        (lambda x: (x - 0.3) / np.geomspace(0.01, 0.3, K).reshape(SHAPE), True, True),
        (lambda x: jnp.pad(x, ((1, 1), (0, 0), (0, 0))), True, True),
        (_mixed, False, True),
        (_masked, True, False),
        (_centred, False, False),
        (lambda x: x.reshape(-1)[: K // 2], True, False),
    ],
)
def test_images_are_solved_for_where_their_inputs_are_those_of_no_others(inputs, one_by_one, unique):
    flat = lambda x: jnp.ravel(inputs(x))  # noqa: E731
    assert affine.by_pixel(flat, SHAPE) == one_by_one
    x = reference.uniform(3, *SHAPE, seed=2)
    observed = jnp.stack([flat(one) for one in x])
    found, alone = jax.jit(lambda h: affine.images_of(flat, SHAPE, h, one_by_one=one_by_one))(observed)
    assert bool(alone) == unique
    if unique:
        np.testing.assert_allclose(found, x, atol=1e-4)
    np.testing.assert_allclose([flat(one) for one in found], observed, rtol=1e-3, atol=1e-3)
