import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jaxleak import models, protocols
from jaxleak._base import Batch
from jaxleak.defenses import clipped_gaussian, gaussian_noise, marvell, stateless
from jaxleak.objectives import cross_entropy
from jaxleak.protocols._sampling import defense_key, draw_batch, draw_worker_batches

N, K = 6, 2


@pytest.fixture(scope="module")
def problem():
    return reference.small_problem()


@pytest.fixture(scope="module")
def workers():
    model = models.logistic((5,), num_classes=3)
    protocol = protocols.horizontal(model, workers=3, num_samples=12, batch_size=6)
    x = reference.uniform(12, 1, 5)
    private = Batch(x, jax.random.randint(jax.random.key(1), (12,), 0, 3), jnp.arange(12))
    return model, protocol, private


def _draws(sampling, rounds, n=7, k=3, key=0, draw=draw_batch, **options):
    one = jax.jit(lambda key, t: draw(key, t, num_samples=n, batch_size=k, sampling=sampling, **options))
    return np.stack([one(jax.random.key(key), t) for t in range(rounds)])


def _trees_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def test_share_is_the_mean_of_the_samples_gradients(problem):
    private = problem.private
    shared = jax.jit(problem.protocol.share)(problem.params, private)
    slow = reference.mean_of_sample_gradients(problem.model, problem.params, private)
    assert jax.tree.structure(shared) == jax.tree.structure(problem.params)
    _trees_close(shared, slow, atol=1e-6)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(slow)) > 1e-2


def test_logits_of_another_width_than_the_classes_are_refused(problem):
    model = problem.model._replace(num_classes=problem.model.num_classes + 1)
    protocol = protocols.vertical(model, num_samples=N, batch_size=K)
    with pytest.raises(ValueError, match=r"logits must have shape \(B, num_classes\)"):
        jax.eval_shape(protocol.share, problem.params, problem.private)


def test_share_is_differentiable_in_the_batch(problem):
    def size(x):
        batch = problem.private._replace(x=x)
        return sum(jnp.vdot(g, g) for g in jax.tree.leaves(problem.protocol.share(problem.params, batch)))

    gradient = jax.jit(jax.grad(size))(problem.private.x)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
def test_batches_have_no_repeats_and_stay_in_range(sampling):
    draws = _draws(sampling, 40)
    assert draws.shape == (40, 3)
    assert (np.sort(draws, axis=1)[:, 1:] > np.sort(draws, axis=1)[:, :-1]).all()
    assert draws.min() == 0
    assert draws.max() == 6
    np.testing.assert_array_equal(draws, _draws(sampling, 40))
    assert (draws != _draws(sampling, 40, key=1)).any()


def test_an_epoch_shows_every_sample_once_and_reshuffles():
    draws = _draws("epoch", 9, n=6, k=2).reshape(3, 6)
    np.testing.assert_array_equal(np.sort(draws, axis=1), np.tile(np.arange(6), (3, 1)))
    partitions = [{frozenset(batch) for batch in epoch.reshape(3, 2).tolist()} for epoch in draws]
    assert len(set(map(frozenset, partitions))) > 1
    # 7 = 2 * 3 + 1: each epoch leaves one sample out, not always the same.
    epochs = _draws("epoch", 40, n=7, k=3).reshape(20, 6)
    left_out = {(set(range(7)) - set(epoch)).pop() for epoch in epochs.tolist()}
    assert all(len(set(epoch)) == 6 for epoch in epochs.tolist())
    assert len(left_out) > 3


def test_uniform_batches_are_uniform_and_differ_between_rounds():
    draws = np.sort(_draws("uniform", 400, n=5, k=2), axis=1)
    counts = {pair: int((draws == pair).all(axis=1).sum()) for pair in [(i, j) for j in range(5) for i in range(j)]}
    # Binomial(400, 1/10): mean 40, standard deviation 6; a partition would never repeat samples within three rounds.
    assert min(counts.values()) > 16
    assert max(counts.values()) < 64
    assert any(set(a) & set(b) for a, b in zip(draws.tolist(), draws.tolist()[1:], strict=False))


@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
def test_what_a_defense_draws_says_nothing_of_who_was_chosen(sampling):
    """A shuffle sorts by bits of a child of its key; a defense with the same child would reveal who is in the batch."""
    chosen, low = [], []
    for seed in range(60):
        key = jax.random.key(seed)
        index = draw_batch(key, jnp.int32(0), num_samples=64, batch_size=4, sampling=sampling)
        bits = jax.random.uniform(defense_key(key, jnp.int32(0)), (64,))
        chosen.append(float(bits[index].mean()))
        low.append(float(bits.mean()))
    assert abs(np.mean(chosen) - np.mean(low)) < 0.1  # with the shuffle's own bits it would be 0.45
    assert not np.array_equal(*(jax.random.key_data(defense_key(key, r)) for r in (0, 1)))


def test_workers_draw_from_their_own_blocks():
    draws = _draws("epoch", 6, n=12, k=6, draw=draw_worker_batches, workers=3)
    assert draws.shape == (6, 6)
    np.testing.assert_array_equal(draws // 4, np.tile([0, 0, 1, 1, 2, 2], (6, 1)))
    # Two rounds are an epoch of every worker; workers shuffle independently.
    for epoch in draws.reshape(3, 12):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(12))
    assert any((draw[:2] != draw[2:4] - 4).any() for draw in draws)


@pytest.mark.parametrize("optimizer", [None, optax.sgd(0.1)])
def test_a_defense_remembers_the_rounds_before(workers, optimizer):
    model, _, private = workers
    protocol = protocols.horizontal(
        model, workers=1, num_samples=12, batch_size=2, defense=reference.growing("payload"), optimizer=optimizer
    )
    state, one_round = protocol.init(jax.random.key(0)), jax.jit(protocol.round)
    for number in (1, 2, 3):
        plain = state.params
        state, seen = one_round(jax.random.key(1), state, private)
        expected = jax.tree.map(lambda leaf, n=number: n * leaf, protocol.share(plain, seen.private))
        _trees_close(seen.payload, expected, atol=1e-6)


def test_a_defense_is_told_the_round(workers):
    model, _, private = workers
    decaying = stateless(
        "payload", lambda key, payload, *, round, **_: jax.tree.map(lambda g: g / (1 + round), payload)
    )
    protocol = protocols.horizontal(model, workers=1, num_samples=12, batch_size=2, defense=decaying)
    state = protocol.init(jax.random.key(0))
    for number in (1, 2):
        state, seen = protocol.round(jax.random.key(1), state, private)
        expected = jax.tree.map(lambda g, n=number: g / n, protocol.share(state.params, seen.private))
        _trees_close(seen.payload, expected, atol=1e-6)


def test_a_round_records_what_happened(problem):
    state = jax.jit(problem.protocol.init)(jax.random.key(1))
    one_round = jax.jit(problem.protocol.round)
    seen = []
    for t in range(3):
        index = np.asarray(draw_batch(jax.random.key(2), t, num_samples=N, batch_size=K, sampling="uniform"))
        state, transcript = one_round(jax.random.key(2), state, problem.private)
        assert int(transcript.round) == t
        assert int(state.round) == t + 1
        np.testing.assert_array_equal(transcript.index, index)
        np.testing.assert_array_equal(transcript.private.x, problem.private.x[index])
        np.testing.assert_array_equal(transcript.private.y, problem.private.y[index])
        expected = reference.mean_of_sample_gradients(problem.model, problem.params, transcript.private)
        _trees_close(transcript.payload, expected, atol=1e-6)
        seen.append(tuple(index))
    assert transcript.statistics is None
    _trees_close(state.params, problem.params, atol=0)


def test_noise_is_drawn_anew_in_every_round(workers):
    """Equal noise in two rounds would cancel in their difference."""
    model, _, private = workers
    protocol = protocols.vertical(model, num_samples=12, batch_size=12, defense=gaussian_noise(100.0))
    state, step, sent = jax.jit(protocol.init)(jax.random.key(1)), jax.jit(protocol.round), []
    for _ in range(2):
        state, transcript = step(jax.random.key(2), state, private)
        sent.append(reference.flat(transcript.payload))
    assert np.abs(sent[1] - sent[0]).max() > 10


def test_the_servers_step_uses_the_defended_payload(workers):
    model, _, private = workers
    for defense in (None, clipped_gaussian(0.01, 0.0)):
        protocol = protocols.vertical(model, num_samples=12, batch_size=6, optimizer=optax.sgd(0.1), defense=defense)
        before = jax.jit(protocol.init)(jax.random.key(1))
        after, transcript = jax.jit(protocol.round)(jax.random.key(2), before, private)
        by_hand = jax.tree.map(lambda p, g: np.asarray(p) - 0.1 * np.asarray(g), before.params, transcript.payload)
        _trees_close(after.params, by_hand, atol=1e-7)
        _trees_close(transcript.params, before.params, atol=0)
        assert int(after.round) == 1
        assert max(np.abs(g).max() for g in jax.tree.leaves(transcript.payload)) > 1e-4
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(transcript.payload)))
    assert norm == pytest.approx(0.01, rel=1e-5)


def test_statistics_are_those_of_the_batch():
    problem = reference.small_problem(with_statistics=True)
    transcript = reference.first_transcript(problem)
    again = jax.jit(problem.model.statistics)(problem.params, transcript.private.x)
    _trees_close(transcript.statistics, again, atol=1e-6)
    assert jax.tree.leaves(again)


def test_a_horizontal_payload_is_the_average_of_the_workers_gradients(workers):
    model, protocol, private = workers
    start = jax.jit(protocol.init)(jax.random.key(2))
    state, transcript = jax.jit(protocol.round)(jax.random.key(3), start, private)
    index = np.asarray(transcript.index)
    gradient = jax.jit(jax.grad(lambda params, x, y: cross_entropy(model.apply(params, x), y)))
    own = [
        gradient(state.params, private.x[rows], private.y[rows]) for rows in (index[index // 4 == m] for m in range(3))
    ]
    assert [int((index // 4 == m).sum()) for m in range(3)] == [2, 2, 2]
    _trees_close(transcript.payload, jax.tree.map(lambda *g: sum(g) / 3, *own), atol=1e-6)


def test_soft_labels_and_hard_labels_agree(workers):
    model, protocol, private = workers
    params = reference.drawn(model, seed=2)
    soft = private._replace(y=jax.nn.one_hot(private.y, 3))
    share = jax.jit(protocol.share)
    _trees_close(share(params, private), share(params, soft), atol=1e-6)


def test_bad_arguments_are_refused(workers):
    one_party = workers[0]
    two_parties = models.all_dense((5,), parties=2, num_classes=3, width=4, hidden=3)

    def refuses(match, build, model, **options):
        with pytest.raises(ValueError, match=match):
            build(model, **{"num_samples": 12, "batch_size": 6, **options})

    for build, options in ((protocols.vertical, {}), (protocols.horizontal, {"workers": 3})):
        refuses(r"batch_size must be in \[\d, 12\], got 13", build, one_party, batch_size=13, **options)
        refuses(r"batch_size must be in \[\d, 12\], got 0", build, one_party, batch_size=0, **options)
        refuses("num_samples must be > 0, got 0", build, one_party, num_samples=0, **options)
        refuses(r"num_samples must be a whole number, got 12\.5", build, one_party, num_samples=12.5, **options)
        refuses(r"batch_size must be a whole number, got 4\.5", build, one_party, batch_size=4.5, **options)
        refuses(
            "sampling must be one of epoch, uniform, got 'poisson'", build, one_party, sampling="poisson", **options
        )
        other = marvell(num_classes=4)._replace(place="payload")
        refuses(
            "num_classes of a defense must be that of the model, 3, got 4", build, one_party, defense=other, **options
        )
        build(one_party, num_samples=12, batch_size=12, **options)
    protocols.vertical(one_party, num_samples=1, batch_size=1)
    protocols.horizontal(one_party, workers=3, num_samples=12, batch_size=3)
    refuses(r"batch_size must be in \[3, 12\], got 2", protocols.horizontal, one_party, workers=3, batch_size=2)
    refuses("workers must be > 0, got 0", protocols.horizontal, one_party, workers=0)
    refuses("multiples of workers=5, got 12 and 6", protocols.horizontal, one_party, workers=5)
    refuses("multiples of workers=4, got 12 and 6", protocols.horizontal, one_party, workers=4)
    refuses("one party in horizontal federated learning, got 2", protocols.horizontal, two_parties, workers=3)


def test_a_private_set_of_another_size_is_refused(workers):
    _, protocol, private = workers
    state = protocol.init(jax.random.key(0))
    for round_ in (protocol.round, jax.jit(protocol.round)):
        with pytest.raises(ValueError, match=r"private\.y must hold num_samples = 12 samples, got shape \(11,\)"):
            round_(jax.random.key(1), state, private._replace(y=private.y[1:]))


def test_labels_out_of_range_are_refused_where_they_have_values(workers):
    _, protocol, private = workers
    state = protocol.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), got -1"):
        protocol.round(jax.random.key(1), state, private._replace(y=private.y.at[2].set(-1)))
    with pytest.raises(ValueError, match="labels must be integers, got dtype float32"):
        jax.eval_shape(protocol.round, jax.random.key(1), state, private._replace(y=private.y * 1.0))
