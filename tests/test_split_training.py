"""Bottom and top models, and vertical training with them, against loops in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from jax.flatten_util import ravel_pytree

from jaxleak import attacks, audit, models, protocols
from jaxleak._base import Batch
from jaxleak.defenses import SPLIT_PLACES, Defense, adaptive_dp_sgd, dp_sgd, gaussian_noise
from jaxleak.threats import party_view, view

N, B, WIDTHS, C = 6, 3, (2, 3), 3


@pytest.fixture(scope="module")
def model():
    return models.bottom_top(WIDTHS, C, bottom=(7, 6), top=(8, 7))


@pytest.fixture(scope="module")
def private():
    x = reference.uniform(N, 2, 3).at[:, 0, 2].set(0.0)
    return Batch(x, jnp.array([0, 1, 2, 2, 1, 0]), jnp.arange(N))


def _step(model, private, **options):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B, **options)
    state = jax.jit(protocol.init)(jax.random.key(1))
    after, transcript = jax.jit(protocol.round)(jax.random.key(2), state, private)
    return state, after, transcript


def _dense(params, x):
    out = np.array(params["bias"], np.float64)
    for j in range(len(out)):
        for i in range(len(x)):
            out[j] += params["kernel"][i, j] * x[i]
    return out


def _bottom(params, x):
    for name in sorted(params):
        x = np.maximum(_dense(params[name], x), 0)
    return x


def _top(params, embeddings):
    z = np.maximum(_dense(params["first"], np.concatenate(embeddings)), 0)
    layers = sorted(params["rest"])
    for name in layers[:-1]:
        z = np.maximum(_dense(params["rest"][name], z), 0)
    return _dense(params["rest"][layers[-1]], z)


def _numpy_loss(params, embeddings, y):
    total = 0.0
    for n in range(len(y)):
        o = _top(params, [b[n] for b in embeddings])
        total += np.log(np.exp(o - o.max()).sum()) + o.max() - o[int(y[n])]
    return total / len(y)


def test_every_partys_record_is_what_loops_compute(model, private):
    state, after, transcript = jax.tree.map(np.asarray, _step(model, private, optimizer=optax.sgd(0.1)))
    slices = [np.asarray(private.x)[np.asarray(transcript.index), p, :width] for p, width in enumerate(WIDTHS)]
    y = np.asarray(private.y)[np.asarray(transcript.index)]
    bottoms = [[_bottom(state.params["bottom"][p], x) for x in slices[p]] for p in range(2)]
    for p, seen in enumerate(transcript.parties):
        np.testing.assert_array_equal(seen.x, slices[p])
        np.testing.assert_allclose(seen.output, bottoms[p], rtol=1e-5, atol=1e-6)

        def loss_at(b, p=p):
            return _numpy_loss(state.params["top"], [b if q == p else bottoms[q] for q in range(2)], y)

        expected = reference.numerical_gradient(loss_at, np.asarray(seen.output))
        np.testing.assert_allclose(seen.output_gradient, expected, atol=1e-4)
        for old, gradient, new in zip(
            *map(jax.tree.leaves, (seen.params, seen.params_gradient, seen.params_after)), strict=True
        ):
            np.testing.assert_allclose(new, old - 0.1 * gradient, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            seen.output_after, [_bottom(after.params["bottom"][p], x) for x in slices[p]], rtol=1e-5, atol=1e-6
        )


def test_a_step_is_the_step_of_the_joint_loss(model, private):
    state, after, transcript = _step(model, private)
    batch = jax.tree.map(lambda leaf: leaf[transcript.index], private)
    adam = optax.adam(1e-3)

    @jax.jit
    def joint(params):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, batch.x), batch.y).mean()

        return optax.apply_updates(params, adam.update(jax.grad(loss)(params), adam.init(params), params)[0])

    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(joint(state.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def test_padding_reaches_nothing(model, private):
    poisoned = private.x.at[:, 0, 2].set(jnp.nan)
    params, apply = jax.jit(model.init)(jax.random.key(0)), jax.jit(model.apply)
    np.testing.assert_array_equal(apply(params, poisoned), apply(params, private.x))


def test_a_top_without_parameters_shows_labels(private):
    model = models.bottom_top(WIDTHS, C, bottom=(4,), top=None)
    _, _, transcript = _step(model, private, optimizer=optax.sgd(0.1))
    assert model.embedding == C
    np.testing.assert_array_equal(np.argmin(transcript.parties[0].output_gradient, axis=1), private.y[transcript.index])
    np.testing.assert_array_equal(transcript.payload[0], transcript.payload[1])


def _scale(place, factor):
    def update(updates, state, params=None, *, key, labels=None, **extra):
        assert place == "bottom_output" if labels is None else labels.shape == (B,)
        return jax.tree.map(lambda leaf: factor * leaf, updates), state

    return Defense(place, optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update))


@pytest.mark.parametrize("place", ["top_output_gradient", "cut_gradient"])
def test_defenses_act_where_they_say(model, private, place):
    _, after, defended = _step(model, private, optimizer=optax.sgd(1.0), defenses=[_scale(place, 0.0)])
    assert not np.asarray(defended.parties[0].output_gradient).any()
    top_moves = any(
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(jax.tree.leaves(after.params["top"]), jax.tree.leaves(defended.params["top"]), strict=True)
    )
    assert top_moves == (place == "cut_gradient")


def test_embeddings_are_defended_before_the_label_holder_sees_them(model, private):
    def shift(updates, state, params=None, *, key, round):  # `labels` would be refused: parties have none
        return jax.tree.map(lambda leaf: leaf + 0.5, updates), state

    shifted = Defense("bottom_output", optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), shift))
    state, after, transcript = _step(model, private, optimizer=optax.sgd(1.0), defenses=[shifted])
    batch = jax.tree.map(lambda leaf: leaf[transcript.index], private)

    @jax.jit
    def gradient(params):
        def loss(params):
            own = [model.bottom(b, x) for b, x in zip(params["bottom"], model.slices(batch.x), strict=True)]
            logits = model.top(params["top"], tuple(b + 0.5 for b in own))
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch.y).mean()

        return jax.grad(loss)(params)

    for a, b in zip(*map(jax.tree.leaves, (_gradients(state, after, transcript), gradient(state.params))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for p, (own, x) in enumerate(zip(state.params["bottom"], model.slices(batch.x), strict=True)):
        np.testing.assert_allclose(transcript.parties[p].output, model.bottom(own, x), rtol=1e-5, atol=1e-6)


def test_noise_is_drawn_anew_in_every_step(model, private):
    """Equal noise in two steps would cancel in their difference."""
    noise = gaussian_noise(100.0, place="cut_gradient")
    protocol = protocols.split_training(model, num_samples=N, batch_size=B, optimizer=optax.sgd(0.0), defenses=noise)
    state, step, sent = jax.jit(protocol.init)(jax.random.key(1)), jax.jit(protocol.round), []
    for _ in range(2):
        state, transcript = step(jax.random.key(2), state, private)
        sent.append(reference.flat(transcript.payload))
    assert np.abs(sent[1] - sent[0]).max() > 10


def _gradients(state, after, transcript):
    """The gradients of all owners, from the parameters before and after a step of plain SGD with rate 1."""
    del transcript
    return jax.tree.map(lambda old, new: np.asarray(old) - np.asarray(new), state.params, after.params)


@pytest.mark.parametrize("before", [(), ("bottom_output", "top_output", "cut_gradient")])
def test_gradients_of_single_examples_have_the_batchs_as_their_mean(model, private, before):
    """This also holds if other defenses changed the inputs of the examples' gradients."""
    others = [_scale(place, 2.0) for place in before]
    plain = _gradients(*_step(model, private, optimizer=optax.sgd(1.0), defenses=others))
    own = _scale("per_example_gradient", 1.0)
    kept = _gradients(*_step(model, private, optimizer=optax.sgd(1.0), defenses=[*others, own]))
    for a, b in zip(*map(jax.tree.leaves, (plain, kept)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_noise_that_decays_knows_the_step(model, private):
    def trained(noise_multiplier, step):
        protocol = protocols.split_training(
            model,
            num_samples=N,
            batch_size=B,
            optimizer=optax.sgd(1.0),
            defenses=[adaptive_dp_sgd(10.0, noise_multiplier, decay=0.5)],
        )
        state = protocol.init(jax.random.key(1))._replace(round=jnp.asarray(step))
        return ravel_pytree(jax.jit(protocol.round)(jax.random.key(2), state, private)[0].params)[0]

    sizes = [float(jnp.abs(trained(1.0, step) - trained(0.0, step)).max()) for step in (0, 40)]
    assert sizes[0] > 0.1 > 1e-4 > sizes[1]


@pytest.mark.slow
def test_dp_sgd_clips_each_examples_gradient_at_its_owner_and_leaves_the_messages(model, private):
    clip = 0.3
    state, after, transcript = _step(
        model, private, optimizer=optax.sgd(1.0), defenses=[dp_sgd(clip, noise_multiplier=0.0)]
    )
    _, _, plain = _step(model, private, optimizer=optax.sgd(1.0))
    found = _gradients(state, after, transcript)

    @jax.jit
    def of_example(params, x, y):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x[None])[0], y)

        return jax.grad(loss)(params)

    index, clipped = np.asarray(transcript.index), 0
    expected = {"bottom": [None, None], "top": None}
    for n in index:
        g = of_example(state.params, private.x[n], private.y[n])
        for owner, part in (("top", g["top"]), *(((p), g["bottom"][p]) for p in range(2))):
            norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(part)))
            factor = min(1.0, clip / np.sqrt(3) / norm)
            clipped += factor < 0.9
            part = jax.tree.map(lambda leaf, f=factor: f * np.asarray(leaf) / B, part)
            old = expected["top"] if owner == "top" else expected["bottom"][owner]
            new = part if old is None else jax.tree.map(np.add, old, part)
            if owner == "top":
                expected["top"] = new
            else:
                expected["bottom"][owner] = new
    expected["bottom"] = tuple(expected["bottom"])
    assert clipped > 3
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
    # DP-SGD does not change the gradients that label attacks read.
    for a, b in zip(transcript.parties, plain.parties, strict=True):
        np.testing.assert_array_equal(a.output_gradient, b.output_gradient)


def test_an_interactive_layer_replaces_the_first(model, private):
    # The interactive layer doubles z, so the gradients at its inputs are those of the doubled value.
    start, after, transcript = _step(
        model, private, optimizer=optax.sgd(1.0), interactive=lambda key, params, b: 2 * model.first(params, b)
    )
    doubled = jax.tree.map(lambda leaf: 2 * leaf, start.params["top"]["first"])
    batch = jax.tree.map(lambda leaf: leaf[transcript.index], private)

    def loss(first):
        params = {**start.params, "top": {**start.params["top"], "first": first}}
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, batch.x), batch.y).mean()

    gradient = jax.jit(jax.grad(loss))(doubled)
    for old, new, g in zip(
        *map(jax.tree.leaves, (start.params["top"]["first"], after.params["top"]["first"], gradient)), strict=True
    ):
        np.testing.assert_allclose(new, old - 2 * g, rtol=1e-4, atol=1e-6)
        assert np.abs(g).max() > 1e-3


def test_watching_is_running_step_by_step(model, private):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    start, key, threat = jax.jit(protocol.init)(jax.random.key(1)), jax.random.key(2), party_view(1)
    final, seen = audit.watch(protocol, threat, private, start, key=key, rounds=4)
    state, one_round = start, jax.jit(protocol.round)
    for t in range(4):
        state, transcript = one_round(key, state, private)
        for a, b in zip(
            jax.tree.leaves(view(threat, transcript)),
            jax.tree.leaves(jax.tree.map(lambda leaf, t=t: leaf[t], seen)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert int(final.round) == 4
    epoch = np.asarray(seen.index).reshape(2, -1)
    np.testing.assert_array_equal(np.sort(epoch, axis=1), [range(N)] * 2)
    diverged = start._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, start.params))
    with pytest.raises(FloatingPointError, match="round 0"):
        audit.watch(protocol, threat, private, diverged, key=key, rounds=4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_private_values_that_are_not_finite_are_named_before_a_round_runs(model, private, bad):
    """Earlier versions named only the round that first drew the sample, where a party's whole view was NaN."""
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    protocol = protocol._replace(round=lambda *_: pytest.fail("ran a round"))
    spoilt = private._replace(x=private.x.at[3, 1, 0].set(bad).at[5, 0, 0].set(bad))
    start, key = jax.jit(protocol.init)(jax.random.key(1)), jax.random.key(2)
    with pytest.raises(ValueError, match=rf"^private\.x must be finite, got {bad} at sample 3, party 1, column 0$"):
        audit.watch(protocol, party_view(0), spoilt, start, key=key, rounds=4)


def test_given_parameters_start_a_run(model):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    drawn = jax.jit(protocol.init)(jax.random.key(3))
    given = protocols.split_state(drawn.params)
    for a, b in zip(jax.tree.leaves(drawn), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_input():
    with pytest.raises(ValueError, match="party 1 has no features"):
        models.bottom_top((3, 0), 2)
    with pytest.raises(ValueError, match="num_classes"):
        models.bottom_top((3, 1), 1)
    with pytest.raises(ValueError, match="at least one party"):
        models.bottom_top((), 2)
    with pytest.raises(ValueError, match="at least one layer"):
        models.bottom_top((3,), 2, top=())
    model = models.bottom_top((2, 2), 2, bottom=(2,), top=(2,))
    with pytest.raises(ValueError, match=r"batch_size must be in \[1, 4\], got 5"):
        protocols.split_training(model, num_samples=4, batch_size=5)
    with pytest.raises(ValueError, match=r"num_samples must be a whole number, got 4\.5"):
        protocols.split_training(model, num_samples=4.5, batch_size=2)
    with pytest.raises(ValueError, match=r"batch_size must be a whole number, got 1\.5"):
        protocols.split_training(model, num_samples=4, batch_size=1.5)
    for one_or_several in (_scale("payload", 1.0), [_scale("payload", 1.0)]):
        with pytest.raises(ValueError, match="place must be one of bottom_output, top_output"):
            protocols.split_training(model, num_samples=4, batch_size=2, defenses=one_or_several)
    protocols.split_training(model, num_samples=4, batch_size=2, defenses=_scale("cut_gradient", 1.0))
    for text in ("marvell", ["marvell"]):
        made = (
            r"defenses must be made by jaxleak\.defenses \(a Defense\), got 'marvell', a text: call a function, such as"
        )
        with pytest.raises(ValueError, match=made):
            protocols.split_training(model, num_samples=4, batch_size=2, defenses=text)
    for none in (None, 5):
        with pytest.raises(ValueError, match=rf"defenses must be made by jaxleak\.defenses \(a Defense\), got {none}$"):
            protocols.split_training(model, num_samples=4, batch_size=2, defenses=none)
    with pytest.raises(ValueError, match=r"per_example_gradient \(dp_sgd\) needs gradients of single examples"):
        protocols.split_training(
            model,
            num_samples=4,
            batch_size=2,
            defenses=[dp_sgd()],
            interactive=protocols.encrypted_first(cipher="plain"),
        )
    with pytest.raises(ValueError, match="loss must be a mean over the batch behind a defense of single examples"):
        protocols.split_training(
            model, num_samples=4, batch_size=2, defenses=dp_sgd(), loss=lambda logits, y: jnp.sum(logits**2)
        )
    invalid = model._replace(bottom=lambda own, x: jnp.log(-1 - model.bottom(own, x) ** 2))
    protocols.split_training(invalid, num_samples=4, batch_size=2, defenses=dp_sgd())  # its outputs are NaN
    mixing = model._replace(bottom=lambda own, x: model.bottom(own, x) - model.bottom(own, x).mean(axis=0))
    protocols.split_training(mixing, num_samples=4, batch_size=2)
    with pytest.raises(ValueError, match="depends on the other samples of the batch"):
        protocols.split_training(mixing, num_samples=4, batch_size=2, defenses=dp_sgd())
    with pytest.raises(ValueError, match="party must be >= 0"):
        party_view(-1)


def test_a_private_set_of_another_size_is_refused(model, private):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    state = protocol.init(jax.random.key(0))
    for round_ in (protocol.round, jax.jit(protocol.round)):
        with pytest.raises(ValueError, match=r"private\.y must hold num_samples = 6 samples, got shape \(5,\)"):
            round_(jax.random.key(1), state, private._replace(y=private.y[1:]))


@pytest.mark.parametrize("shape", [(N, 1, 3), (N, 3, 3), (N, 2, 2), (N, 2, 4), (N, 6)])
def test_samples_of_other_parties_or_columns_are_refused(model, private, shape):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    state = protocol.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"x must have shape \(B, 2, 3\), .*, got \("):
        jax.eval_shape(protocol.round, jax.random.key(1), state, private._replace(x=jnp.zeros(shape)))


def test_columns_beyond_a_partys_width_are_refused_before_anything_is_compiled(model, private):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    state = protocol.init(jax.random.key(0))
    swapped = private._replace(x=private.x[:, ::-1])
    attack = attacks.vflrecon(model, party=0, num_samples=N, labels=lambda seen: seen.output)
    for refuses in (
        lambda: protocol.round(jax.random.key(1), state, swapped),
        lambda: audit.watch(protocol, party_view(0), swapped, state, key=jax.random.key(1), rounds=1),
        lambda: audit.run(attack, protocol, party_view(0), swapped, key=jax.random.key(1), rounds=1),
    ):
        with pytest.raises(ValueError, match=r"party 0 has 3 columns in x, but widths \(2, 3\) give it 2"):
            refuses()
    narrow = private._replace(x=private.x.at[:, 1, 1:].set(0.0))  # constant columns are accepted
    protocol.check(narrow)


def test_labels_out_of_range_are_refused_where_they_have_values(model, private):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    state = protocol.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), got -1"):
        protocol.round(jax.random.key(1), state, private._replace(y=private.y.at[2].set(-1)))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), got -1"):
        audit.watch(
            protocol, party_view(0), private._replace(y=private.y.at[2].set(-1)), state, key=jax.random.key(1), rounds=1
        )
    with pytest.raises(ValueError, match="labels must be integers, got dtype float32"):
        jax.eval_shape(protocol.round, jax.random.key(1), state, private._replace(y=private.y * 1.0))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_logits_of_another_width_than_the_classes_are_refused_under_jit_too(model, private, width):
    other = model._replace(rest=lambda params, z: z[:, :width])
    protocol = protocols.split_training(other, num_samples=N, batch_size=B)
    state = protocol.init(jax.random.key(0))
    message = rf"logits must have shape \(B, num_classes\) = \(B, 3\), got \(3, {width}\)"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(protocol.round, jax.random.key(1), state, private)
    with pytest.raises(ValueError, match=message.replace(r"\(3, ", r"\(6, ")):
        jax.eval_shape(protocol.share, state.params, private)


def test_soft_labels_sum_to_one_under_a_cross_entropy(model, private):
    several = private._replace(y=jnp.ones((N, C)))
    with pytest.raises(ValueError, match="must sum to one in every row, got 3"):
        protocols.split_training(model, num_samples=N, batch_size=B).check(several)
    own = protocols.split_training(
        model, num_samples=N, batch_size=B, loss=lambda z, y: optax.sigmoid_binary_cross_entropy(z, y).mean()
    )
    own.check(several)


@pytest.mark.slow
def test_one_logit_for_two_classes_takes_a_binary_loss_or_becomes_two(private):
    def binary(logits, y):
        return optax.sigmoid_binary_cross_entropy(logits[:, 0], y).mean()

    two = models.bottom_top(WIDTHS, 2, bottom=(7, 6), top=(8, 7))
    one = two._replace(rest=lambda params, z: two.rest(params, z)[:, :1])
    private = private._replace(y=private.y % 2)
    _, _, transcript = _step(one, private, loss=binary)
    assert all(np.abs(leaf).max() > 0 for leaf in transcript.payload)
    with pytest.raises(ValueError, match=r"cross_entropy of one logit is zero.*the two logits \(0, z\)"):
        _step(one, private)
    # The advice of the message gives the same gradients as the binary loss.
    wrapped = two._replace(rest=lambda params, z: one.rest(params, z) * jnp.array([0.0, 1.0]))
    _, _, advised = _step(wrapped, private)
    chex.assert_trees_all_close(advised.payload, transcript.payload, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("place", SPLIT_PLACES)
def test_a_defense_with_memory_is_refused(model, private, place):
    protocol = protocols.split_training(model, num_samples=N, batch_size=B, defenses=[reference.growing(place)])
    state = protocol.init(jax.random.key(0))
    with pytest.raises(ValueError, match=f"remembers earlier rounds, and no state of it is kept here, at {place}"):
        jax.eval_shape(protocol.round, jax.random.key(1), state, private)
