"""VFLRecon, its baselines and its comparisons, on problems that train in a second."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxleak import attacks, audit, metrics, models, protocols
from jaxleak._base import Batch, Observation, PartyRecord
from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import reconstruction_net, record_fields
from jaxleak.threats import party_view

THREAT = party_view(0)
STILL = optax.sgd(0.0)


def _as_it_is(seen):
    return seen


def _samples(seed, count, classes=3):
    """Samples with two features per party; the victim's reveal the class, the attacker's hardly do."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    x = np.stack(
        [
            rng.random((count, 2)) + 0.3 * np.eye(classes)[y][:, :2],
            np.eye(classes)[y][:, :2] + 0.1 * rng.random((count, 2)),
        ],
        1,
    )
    return Batch(jnp.asarray(x / 1.3, jnp.float32), jnp.asarray(y, jnp.int32), jnp.arange(count))


@pytest.fixture(scope="module")
def setting():
    model = models.bottom_top((2, 2), 3, bottom=(16, 16), top=(16, 16))
    shadow, victim = _samples(0, 96), _samples(1, 96)
    protocol = protocols.split_training(model, num_samples=96, batch_size=8)
    start = jax.jit(protocol.init)(jax.random.key(0))
    _, seen = audit.watch(protocol, THREAT, victim, start, key=jax.random.key(1), rounds=24)
    _, shadow_seen = audit.watch(protocol, THREAT, shadow, start, key=jax.random.key(2), rounds=24)
    return model, shadow, victim, start, seen, shadow_seen


def _train(setting, task, **options):
    model, shadow, *_, shadow_seen = setting
    options = {"hidden": (32,), "epochs": 40, "fields": ("gradient", "inputs"), **options}
    return attacks.train_vflrecon(jax.random.key(3), shadow_seen, shadow, model, party=0, task=task, **options)


def test_a_shared_start_gives_labels_and_features_online(setting):
    model, _, victim, _, seen, _ = setting
    labels, features = _train(setting, "labels"), _train(setting, "features")
    attack = attacks.vflrecon(model, party=0, num_samples=96, labels=labels, features=features)
    state, infos = audit.replay(attack, seen, audit.template_of(victim), key=jax.random.key(4))
    answer = attack.reconstruct(state, jax.tree.map(lambda leaf: leaf[-1], seen))
    assert np.mean(answer.y == victim.y) > 0.95
    assert answer.answered.all()
    assert infos["samples_seen"][-1] == 96
    np.testing.assert_array_equal(answer.x[:, 0], victim.x[:, 0])
    truth = np.asarray(victim.x)[:, 1]
    assert np.mean((answer.x[:, 1] - truth) ** 2) < 0.5 * truth.var(axis=0).mean()


def test_a_sample_seen_twice_gets_the_mean_and_an_unseen_one_is_not_answered(setting):
    model, *_, seen, _ = setting
    net = _train(setting, "features")
    attack = attacks.vflrecon(model, party=0, num_samples=97, features=net)
    template = Batch(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((97, 2, 2), (97,), (97,))))
    state, _ = audit.replay(attack, seen, template, key=jax.random.key(4))
    answer = attack.reconstruct(state, None)
    sums, apply = np.zeros((97, 2)), jax.jit(lambda seen: net(seen))
    for t in range(24):
        step = jax.tree.map(lambda leaf, t=t: leaf[t], seen)
        for row, n in zip(np.asarray(apply(step.party)), np.asarray(step.index), strict=True):
            sums[n] += row / 2  # two epochs
    np.testing.assert_allclose(answer.x[:96, 1], sums[:96], atol=1e-5)
    assert not answer.answered[96]
    assert answer.score[96] == 1


def test_the_free_attack_needs_no_shadow_run(setting):
    model, shadow, victim, _, seen, _ = setting
    baseline = party_records.fit_label_baseline(np.asarray(shadow.x)[:, 0], np.asarray(shadow.y), 3)
    attack = attacks.vflrecon_free(model, baseline, party=0, num_samples=96, rounds=24, batch_size=8)
    state, _ = audit.replay(attack, seen, audit.template_of(victim), key=jax.random.key(2))
    answer = attack.reconstruct(state, None)
    assert np.mean(baseline.predict(np.asarray(victim.x)[:, 0]) == victim.y) < 0.75
    assert np.mean(answer.y == victim.y) > 0.98
    np.testing.assert_array_equal(answer.x[:, 0], victim.x[:, 0])


def test_the_record_of_another_party_is_refused_by_all_who_read_it(setting):
    """Both parties have two columns, so shapes cannot reveal the mistake."""
    model, shadow, victim, _, seen, shadow_seen = setting
    shown_another = "for party 1 and was shown the record of another one"
    train = functools.partial(attacks.train_vflrecon, jax.random.key(0), hidden=(2,), epochs=1, task="features")
    with pytest.raises(ValueError, match=f"train_vflrecon is {shown_another}"):
        train(shadow_seen, shadow, model, party=1)
    nameless = shadow_seen._replace(party=shadow_seen.party._replace(party=None))
    for other in (shadow._replace(x=shadow.x[:, ::-1]), victim):
        with pytest.raises(
            ValueError, match=r"private must be the records of the shadow run: .* party 0 are not those"
        ):
            train(nameless, other, model, party=0)
    net = train(nameless, shadow._replace(x=shadow.x[:, ::-1]), model, party=1)
    with pytest.raises(ValueError, match="party must be that of the network for features, 1, got 0"):
        attacks.vflrecon(model, party=0, num_samples=96, features=net)
    rounds = jax.tree.map(lambda leaf: leaf[:2], seen)
    for attack in (
        attacks.vflrecon(model, party=1, num_samples=96, features=net),
        attacks.vflrecon_free(model, None, party=1, num_samples=96, rounds=2, batch_size=8),
    ):
        state, _ = audit.replay(attack, rounds, audit.template_of(victim), key=jax.random.key(4))
        with pytest.raises(ValueError, match=shown_another):
            attack.reconstruct(state, None)


def test_the_free_attack_refuses_batches_of_another_size(setting):
    model, _, victim, _, seen, _ = setting
    attack = attacks.vflrecon_free(model, None, party=0, num_samples=96, rounds=24, batch_size=7)
    with pytest.raises(ValueError, match=r"batch_size of the rounds must be the attack's, 7, got index \(8,\)"):
        audit.replay(attack, seen, audit.template_of(victim), key=jax.random.key(2))


def test_records_hold_the_fields_in_order():
    b, theta = np.ones((3, 2)), {"w": jnp.full((2, 2), 5.0)}
    seen = PartyRecord(7 * b, theta, jax.tree.map(lambda leaf: leaf + 1, theta), None, 2 * b, 4 * b, 3 * b)
    seen = jax.tree.map(jnp.asarray, seen)
    row = np.asarray(record_fields.Record(("gradient", "outputs", "parameters", "inputs", "differences"))(seen))
    expected = [3, 3, 2, 2, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 2, 2]
    np.testing.assert_array_equal(row, [expected] * 3)


@pytest.mark.parametrize("scales", ["item", "entry"])
def test_a_record_without_what_a_field_reads_is_refused(setting, scales):
    model, shadow, *_, seen = setting
    bare = seen._replace(party=seen.party._replace(output_after=None, params=None))
    message = "fields must be some of what the record holds, gradient, inputs, got outputs, parameters, differences"
    with pytest.raises(ValueError, match=f"(?m)^{message}$"):
        attacks.train_vflrecon(
            jax.random.key(0), bare, shadow, model, party=0, task="labels", scales=scales,
            fields=("outputs", "gradient", "parameters", "inputs", "differences"),
        )  # fmt: skip


def test_samples_beyond_the_last_and_parties_without_others_are_refused(setting):
    model, _, victim, _, seen, _ = setting
    rounds = jax.tree.map(lambda leaf: leaf[:12], seen)
    attack = attacks.vflrecon(model, party=0, num_samples=95, labels=_train(setting, "labels", hidden=(2,), epochs=1))
    free = attacks.vflrecon_free(model, None, party=0, num_samples=95, rounds=12, batch_size=8)
    for one in (attack, free):
        with pytest.raises(ValueError, match=r"^num_samples must be the number .* run, 96, got 95$"):
            audit.replay(one, rounds, audit.template_of(victim), key=jax.random.key(4))
    fewer = jax.tree.map(lambda leaf: leaf[:95], victim)
    state, _ = audit.replay(attack, rounds, audit.template_of(fewer), key=jax.random.key(4))
    with pytest.raises(
        ValueError, match=r"^num_samples must be above the number of every sample, got 95 and 95: samples are .*$"
    ):
        attack.reconstruct(state, None)
    with pytest.raises(ValueError, match=r"^model must have at least 2 parties, .* got 1$"):
        party_records.victims_features(models.bottom_top((2,), 3), victim.x[:, :1], 0)


def test_shadow_parameters_share_what_they_say(setting):
    model, _, _, start, *_ = setting
    real = start.params

    def same(a, b):
        return all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))

    for how, parts in (("shared", (1, 1, 1)), ("own_bottom", (1, 0, 0)), ("independent", (0, 0, 0))):
        drawn = party_records.shadow_params(
            model, jax.random.key(9), how, party=0, initial=real, own_bottom=real["bottom"][0]
        )
        shared = (
            same(drawn["bottom"][0], real["bottom"][0]),
            same(drawn["bottom"][1], real["bottom"][1]),
            same(drawn["top"], real["top"]),
        )
        assert shared == tuple(map(bool, parts))
    for how in ("shared", "own_bottom"):
        with pytest.raises(ValueError, match="needs the"):
            party_records.shadow_params(model, jax.random.key(9), how, party=0)


@pytest.mark.slow
def test_the_baselines_find_what_is_there_and_stay_calm_otherwise():
    rng = np.random.default_rng(0)
    x, noise = rng.random((150, 3)), rng.random((150, 3))
    y = (x[:, 0] > 0.5).astype(np.int32)
    good, none = party_records.fit_label_baseline(x, y, 2), party_records.fit_label_baseline(noise, y, 3)
    assert np.mean(good.predict(x) == y) > 0.9
    assert 0.66 < none.log_loss < 0.8  # log 2 = 0.69: overconfidence is above, leaked labels are below
    assert np.exp(none.log_proba(noise)).max() < 0.85
    assert np.exp(none.log_proba(noise))[:, 2].min() > 0
    np.testing.assert_allclose(np.exp(none.log_proba(noise)).sum(axis=1), 1)
    target = np.stack([x[:, 0], rng.random(150)], axis=1)
    known = party_records.fit_feature_baseline(x, target)
    assert known.mse < 0.6 * target.var(axis=0).mean()
    unknown = party_records.fit_feature_baseline(noise, target)
    assert 0.95 < unknown.mse / target.var(axis=0).mean() < 1.1  # an error below chance would be a training error
    with pytest.raises(ValueError, match="at least 3 shadow records"):
        party_records.fit_label_baseline(x[:2], y[:2], 2)
    with pytest.raises(ValueError, match="at least two classes"):
        party_records.fit_label_baseline(x, np.zeros(150, np.int32), 2)


def test_li_and_fu_by_hand():
    y = np.array([1, 0, 0, 0, 1, 0])
    gradients = np.outer(np.where(y == 1, -0.9, 0.1), [1.0, -2.0])
    np.testing.assert_array_equal(party_records.norm_labels(gradients, 1 / 3), y)
    np.testing.assert_array_equal(party_records.norm_labels(gradients, 2 / 3), 1 - y)
    np.testing.assert_array_equal(party_records.direction_labels(gradients, gradients[4]), y)
    np.testing.assert_array_equal(party_records.direction_labels(gradients, gradients[1], 0), y)
    logits = np.random.default_rng(0).standard_normal((6, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels, certain = party_records.sign_labels(p - np.eye(4)[y])
    np.testing.assert_array_equal(labels, y)
    assert certain.all()
    assert not party_records.sign_labels(p)[1].any()
    labels, certain = party_records.sign_labels(np.zeros((3, 4)))
    assert labels.tolist() == [-1] * 3
    assert not certain.any()
    # Equal norms on both sides of the cut give no label, whatever the order of the rows.
    assert party_records.norm_labels(np.ones((10, 3)), 0.3).tolist() == [-1] * 10
    assert party_records.norm_labels(np.array([[3.0], [2.0], [2.0], [1.0]]), 0.5).tolist() == [1, -1, -1, 0]
    assert party_records.norm_labels(np.array([[3.0], [3.0], [2.0], [2.0]]), 0.5).tolist() == [1, 1, 0, 0]
    with pytest.raises(ValueError, match="positive_share"):
        party_records.norm_labels(gradients, 1.0)
    with pytest.raises(ValueError, match="anchor must have shape"):
        party_records.direction_labels(gradients, np.ones(3))
    with pytest.raises(ValueError, match="must not be zero"):
        party_records.direction_labels(gradients, np.zeros(2))
    with pytest.raises(ValueError, match="anchor_label must be 0 or 1"):
        party_records.direction_labels(gradients, np.ones(2), 2)
    with pytest.raises(ValueError, match="non-empty"):
        party_records.sign_labels(np.zeros((0, 3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_labels_are_not_read_off_gradients_that_are_not_finite(bad):
    gradients = np.array([[1.0, -2.0], [0.5, bad]])
    message = rf"^gradients must be finite, got {bad} in 1 of 4 entries$"
    for read in (
        lambda: party_records.norm_labels(gradients, 0.5),
        lambda: party_records.direction_labels(gradients, np.ones(2)),
        lambda: party_records.sign_labels(gradients),
    ):
        with pytest.raises(ValueError, match=message):
            read()
    with pytest.raises(ValueError, match=rf"^anchor must be finite, got {bad} in 1 of 2 entries$"):
        party_records.direction_labels(np.ones((3, 2)), gradients[1])


def test_bad_input(setting):
    model, shadow, *_, shadow_seen = setting
    with pytest.raises(ValueError, match="fields must be some of"):
        _train(setting, "labels", fields=("weights",))
    with pytest.raises(ValueError, match="fields must be some of"):
        _train(setting, "labels", fields=())
    with pytest.raises(ValueError, match="task must be one of"):
        _train(setting, "images")
    with pytest.raises(ValueError, match="reads one party's own record; the threat must grant that of a party"):
        attacks.train_vflrecon(
            jax.random.key(0), shadow_seen._replace(party=None), shadow, model, party=0, task="labels"
        )
    with pytest.raises(ValueError, match="a network for labels or one for features"):
        attacks.vflrecon(model, party=0, num_samples=4)
    with pytest.raises(ValueError, match="party must be in"):
        attacks.vflrecon(model, party=2, num_samples=4, labels=lambda seen: seen)


def test_what_does_not_fit_the_shadow_run_is_refused(setting):
    model, shadow, *_, seen = setting

    def refuses(message, *, private=shadow, model=model, **options):
        with pytest.raises(ValueError, match=message):
            attacks.train_vflrecon(jax.random.key(0), seen, private, model, **{"party": 0, "task": "labels", **options})

    refuses(r"party must be in \[0, 2\), got 2", party=2)
    refuses(r"party must be in \[0, 2\), got -1", party=-1)
    wide = models.bottom_top((2, 3), 3, bottom=(4,), top=(4,))
    refuses("party 1 has 3 features, got a record of 2", model=wide, party=1)
    for task in ("labels", "features"):
        short = jax.tree.map(lambda leaf: leaf[:90], shadow)
        refuses("private must hold every sample of the shadow run, got 90, and sample 95", private=short, task=task)
    refuses(r"labels must be in \[0, 3\), got 3", private=shadow._replace(y=shadow.y.at[5].set(3)))
    refuses(r"labels must have shape \(96,\)", private=shadow._replace(y=shadow.y[1:]))
    refuses(r"held_out must have shape \(96,\), dtype bool .*, got \(96,\), int32", held_out=jnp.zeros(96, jnp.int32))
    refuses("held_out must have", held_out=jnp.zeros(95, bool))
    refuses("held_out must have", held_out=jnp.ones(96, bool))
    refuses("epochs must be a whole number, got 1.5", epochs=1.5)
    refuses("steps_per_batch must be a whole number, got 0.5", steps_per_batch=0.5)
    with pytest.raises(ValueError, match=r"num_samples must be a whole number, got 4\.5"):
        attacks.vflrecon(model, party=0, num_samples=4.5, labels=lambda seen: seen)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_network_standardises_its_records_and_reports_the_last_epochs_loss(weighted):
    """The optimizer makes no step, so the loss is the initial one, on four of five steps (two are taken at a time)."""
    rng = np.random.default_rng(0)
    steps = (100 + rng.standard_normal((5, 3, 2)) * [1.0, 0.0]).astype(np.float32)
    targets = rng.random((5, 3, 2)).astype(np.float32)
    weights = np.tile([[0.0, 1.0, 3.0]], (5, 1)).astype(np.float32) if weighted else None
    steps[1:], targets[1:] = steps[:1], targets[:1]  # equal steps, so that it does not matter which is left out
    steps[:, 0] += np.array([50.0, 0.0])  # so far off that it is clipped
    net = reconstruction_net.train_network(
        jax.random.key(0), jnp.asarray(steps), jnp.asarray(targets), _as_it_is, hidden=(4,), task="features", epochs=2,
        steps_per_batch=2, optimizer=STILL, weights=weights,
    )  # fmt: skip
    rows = steps.reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(net.mean, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(net.scale, np.maximum(rows.std(axis=0), 1e-8), rtol=1e-4)
    z = np.clip((steps[0] - np.asarray(net.mean)) / np.asarray(net.scale), -5, 5)
    first, last = (jax.tree.map(np.asarray, net.params[f"Dense_{i}"]) for i in (0, 1))
    out = np.maximum(z @ first["kernel"] + first["bias"], 0) @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(net(jnp.asarray(steps[0])), out.clip(0, 1), atol=1e-4)
    losses = ((out - targets[0]) ** 2).mean(axis=1)
    expected = losses @ [0, 0.25, 0.75] if weighted else losses.mean()
    assert float(net.loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_features_are_answered_in_the_range_of_what_was_learned(weighted):
    """The last target is far off, and ignored if it has no weight; the range always includes [0, 1]."""
    targets = jnp.array([[[-2.0, 0.25, 2.0], [3.0, 0.75, 5.0]], [[0.5, 0.5, 4.0], [9.0, -4.0, 4.0]]])
    net = reconstruction_net.train_network(
        jax.random.key(0), jnp.ones((2, 2, 2)), targets, _as_it_is, hidden=(2,), task="features", epochs=1,
        steps_per_batch=1, optimizer=STILL, weights=jnp.array([[1.0, 1.0], [1.0, 0.0]]) if weighted else None,
    )  # fmt: skip
    for shift, expected in (
        (100.0, [3.0, 1.0, 5.0] if weighted else [9.0, 1.0, 5.0]),
        (-100.0, [-2.0, 0.0 if weighted else -4.0, 0.0]),
    ):
        biases = jax.tree.map(
            lambda leaf, shift=shift: leaf + shift if leaf.ndim == 1 else 0 * leaf, net.params["Dense_1"]
        )
        moved = net.replace(params={**net.params, "Dense_1": biases})
        np.testing.assert_array_equal(moved(jnp.ones((1, 2))), [expected])


def test_losses_of_tasks_by_hand():
    out, target = jnp.array([[1.0, 3.0], [0.0, 0.0]]), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    entropy = reconstruction_net.task_losses(out, target, "labels")
    np.testing.assert_allclose(entropy, [np.log1p(np.exp(-2)), np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(reconstruction_net.task_losses(out, target, "features"), [2.5, 0.5])


def test_sightings_are_averaged_and_every_party_gets_its_own_columns():
    """The networks return the party's view, so the answer is known; the attacker is the middle one of three parties."""
    model = models.bottom_top((2, 1, 3), 2, bottom=(4,), top=(4,))
    rng, index = np.random.default_rng(0), np.array([[3, 0], [1, 3]])
    logits, victims, own = (rng.standard_normal((2, 2, width)).astype(np.float32) for width in (2, 5, 1))
    template, answers = Batch(jnp.zeros((5, 3, 3)), jnp.zeros(5, jnp.int32), jnp.arange(5)), []
    for labels, features in (
        (lambda seen: seen.output, lambda seen: seen.output_after),
        (None, lambda seen: seen.output),
    ):
        attack = attacks.vflrecon(model, party=1, num_samples=5, labels=labels, features=features)
        state = attack.init(jax.random.key(0), template)
        for t in range(2):
            seen = PartyRecord(own[t], None, None, None, logits[t] if labels else victims[t], victims[t], None)
            observation = Observation(jnp.int32(t), index=jnp.asarray(index[t]), party=seen)
            state, infos = attack.step(jax.random.key(1), state, observation)
            p = np.exp(logits[t]) / np.exp(logits[t]).sum(axis=1, keepdims=True)
            assert float(infos["confidence"]) == pytest.approx(p.max(axis=1).mean() if labels else 0, rel=1e-5)
            assert int(infos["samples_seen"]) == (2, 3)[t]
        answers.append((attack.reconstruct(state, None), state.guess))
    (found, guess), (without, _) = answers
    log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    mean = {0: log_p[0, 1], 1: log_p[1, 0], 3: (log_p[0, 0] + log_p[1, 1]) / 2}
    others = {0: victims[0, 1], 1: victims[1, 0], 3: (victims[0, 0] + victims[1, 1]) / 2}
    last = {0: own[0, 1], 1: own[1, 0], 3: own[1, 1]}
    for n in range(5):
        assert bool(found.answered[n]) == (n in mean)
        if n in mean:
            p = np.exp(mean[n]) / np.exp(mean[n]).sum()
            assert int(found.y[n]) == p.argmax()
            assert float(found.score[n]) == pytest.approx(1 - p.max(), rel=1e-4)
            expected = np.zeros((3, 3))
            expected[0, :2], expected[1, :1], expected[2] = others[n][:2], last[n], others[n][2:]
            np.testing.assert_allclose(found.x[n], expected, rtol=1e-5)
        else:
            assert (int(found.y[n]), float(found.score[n])) == (int(guess[n]), 1)
    np.testing.assert_allclose(without.x, found.x, rtol=1e-5)
    np.testing.assert_array_equal(without.score, [0, 0, 1, 0, 1])
    # Without a network for labels there is no label, and a score must not count this as class 0.
    np.testing.assert_array_equal(without.answered, found.answered)
    np.testing.assert_array_equal(without.y, np.full(5, -1, np.int32))
    with pytest.raises(ValueError, match="estimate must hold labels >= 0, got -1 among 5 negative ones of 5"):
        metrics.label_accuracy(np.zeros(5, int), without.y)
    x = jnp.asarray(rng.random((4, 3, 3)))
    given = party_records.victims_features(model, x, 1)
    np.testing.assert_array_equal(given, np.concatenate([x[:, 0, :2], x[:, 2]], axis=1))


@pytest.mark.parametrize(
    ("share", "labels"), [(0.2, "00001"), (0.3, "00011"), (0.5, "00011"), (0.6, "11100"), (0.8, "11110")]
)
def test_so_many_of_the_largest_norms_are_the_rare_class(share, labels):
    gradients = np.diag([1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(party_records.norm_labels(gradients, share), [*map(int, labels)])
    with pytest.raises(ValueError, match="positive_share"):
        party_records.norm_labels(gradients, 0.0)
    certain = party_records.sign_labels(np.array([[-1.0, 0.0, 2.0], [-1.0, -0.1, 2.0], [0.0, 1.0, 2.0]]))[1]
    assert certain.tolist() == [True, False, False]
    anchors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])  # an orthogonal gradient is not of the anchor's class
    np.testing.assert_array_equal(party_records.direction_labels(anchors, anchors[0]), [1, 0, 0])
    for label in (0, 1):  # a row of zeros has no direction
        nothing = party_records.direction_labels(np.array([[2.0, 0.0], [0.0, 0.0]]), anchors[0], label)
        np.testing.assert_array_equal(nothing, [label, -1])


def test_an_item_has_one_scale_where_that_is_asked_for():
    rng = np.random.default_rng(0)
    steps = jnp.asarray(rng.standard_normal((5, 4, 6)) * [1, 1, 1, 1e-3, 2e-3, 3e-3] + [0, 1, 2, 7, 8, 9], jnp.float32)
    targets = jnp.asarray(rng.random((5, 4, 2)), jnp.float32)
    options = {"hidden": (3,), "task": "features", "epochs": 1, "steps_per_batch": 2, "optimizer": optax.sgd(0.1)}
    record = lambda step: step  # noqa: E731
    net = reconstruction_net.train_network(jax.random.key(0), steps, targets, record, items=(3, 3), **options)
    for item in (slice(0, 3), slice(3, 6)):
        entries = np.asarray(steps)[..., item]
        np.testing.assert_allclose(net.mean[item], entries.mean(), rtol=1e-5)
        np.testing.assert_allclose(net.scale[item], entries.std(), rtol=1e-4)
    alone = reconstruction_net.train_network(jax.random.key(0), steps, targets, record, **options)
    np.testing.assert_allclose(alone.scale, np.asarray(steps).std(axis=(0, 1)), rtol=1e-2)


def test_items_are_those_of_the_record():
    b, theta = np.ones((1, 3, 2)), {"w": jnp.ones((1, 2, 5)), "b": jnp.ones((1, 5))}
    steps = jax.tree.map(jnp.asarray, PartyRecord(np.ones((1, 3, 4)), theta, theta, None, b, b, b))
    fields = ("gradient", "outputs", "parameters", "inputs")
    assert record_fields.item_widths(steps, fields) == (2, 2, 2, 15, 15, 4)  # the paper's six


@pytest.mark.slow
def test_a_record_that_is_not_finite_gives_no_answer(setting):
    model, _, victim, _, seen, _ = setting
    attack = attacks.vflrecon(model, party=0, num_samples=96, labels=_train(setting, "labels", epochs=2))
    step = jax.tree.map(lambda leaf: leaf[0], seen)
    broken = step._replace(party=step.party._replace(output_gradient=step.party.output_gradient.at[0, 0].set(jnp.nan)))
    state, _ = attack.step(jax.random.key(5), attack.init(jax.random.key(4), audit.template_of(victim)), broken)
    answer = attack.reconstruct(state, None)
    lost, others = int(step.index[0]), np.asarray(step.index[1:])
    assert not answer.answered[lost]
    assert answer.score[lost] == 1.0
    assert answer.answered[others].all()
    assert np.isfinite(answer.x).all()
    assert np.isfinite(answer.score).all()
