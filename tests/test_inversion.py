"""The gradient-inversion engine: its steps, and the inputs that it refuses."""

import json
import shutil

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, models, objectives, protocols
from jaxleak._base import Batch, Observation, Transcript
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion.engine import assemble
from jaxleak.audit._invert import placed
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError
from jaxleak.threats import SERVER_WITHOUT_INDICES, Threat, view

B, SHAPE, CLASSES = 2, (4, 4, 1), 3


@pytest.fixture(scope="module")
def model():
    return reference.sigmoid_mlp()


@pytest.fixture(scope="module")
def observed(model):
    """The protocol of one client, the server's observation of a round, and the truth."""
    rng = np.random.default_rng(1)
    private = Batch(jnp.asarray(rng.random((B, 1, *SHAPE)), jnp.float32), jnp.array([0, 2], jnp.int32), jnp.arange(B))
    protocol = protocols.client(protocols.ClientShare(model), num_samples=B, batch_size=B)
    state = jax.jit(protocol.init)(jax.random.key(0))
    _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, private)
    return protocol, view(SERVER_WITHOUT_INDICES, transcript), transcript.private


def engine(model, protocol, settings):
    return attacks.inversion(model, protocol.share, settings, batch_size=B)


def settings(iterations=300, *priors, tv=0.0, activation=0.0, weights=(), **changes):
    weighed = presets.fedleak(iterations, homotopy=False).weighing(
        *priors, tv=tv, activation=activation, **dict(weights)
    )
    return weighed._replace(**changes)


@pytest.fixture(scope="module")
def attack(model, observed):
    return engine(model, observed[0], settings())


def invert(attack, observed, iterations=300, **options):
    _, seen, truth = observed
    return audit.invert(
        attack, seen, audit.template_of(truth), key=jax.random.key(2), iterations=iterations, chunk=100, **options
    )


def test_a_batch_is_recovered_with_its_labels(attack, observed):
    found, _, infos = invert(attack, observed, restarts=3, microbatch=2)
    truth = observed[2]
    order = np.argsort(truth.y)
    np.testing.assert_array_equal(found.y, np.sort(truth.y))
    assert np.abs(found.x - truth.x[order]).mean() < 0.05
    assert found.gradient_matched.all()
    assert infos["distance"].shape == (300, 3)


@pytest.mark.parametrize("better", ["best", "last"])
def test_the_answer_is_the_better_of_the_best_and_the_last_iterate(attack, observed, better):
    """The last iterate results from the last step, so no step has compared it yet."""
    _, seen, truth = observed
    state = jax.jit(attack.init)(jax.random.key(0), truth)
    x, order = np.asarray(truth.x), np.argsort(truth.y)
    near, far = ({**state.variables, "x": of} for of in (x[order, 0], 1 - x[order, 0]))
    best, last = (near, far) if better == "best" else (far, near)
    found = jax.jit(attack.reconstruct)(state._replace(best=best, variables=last), seen)
    np.testing.assert_array_equal(found.x, x[order])
    assert found.gradient_matched.all()
    assert found.score[0] < 1e-4


@pytest.mark.parametrize(("sharpness", "kept"), [(jnp.inf, True), (4.0, False)])
def test_losses_of_another_sharpness_do_not_compare(attack, observed, sharpness, kept):
    """The loss of a smooth model may be lower than any of the exact one, and would keep an early iterate for good."""
    _, seen, truth = observed
    state = jax.jit(attack.init)(jax.random.key(0), audit.template_of(truth))
    lowest = state._replace(best_loss=jnp.float32(-1), best_sharpness=jnp.float32(sharpness))
    lowest = lowest._replace(best={**state.variables, "x": 1 - state.variables["x"]})
    new, info = jax.jit(attack.step)(jax.random.key(1), lowest, seen)
    np.testing.assert_array_equal(new.best["x"], (lowest.best if kept else state.variables)["x"])
    assert new.best_loss == (-1 if kept else info["loss"])


def test_restarts_do_not_know_of_each_other(attack, observed):
    """The scores of three trials, and the returned trial, do not depend on how many trials run at once."""
    together, a, _ = invert(attack, observed, iterations=5, restarts=3)
    one_by_one, b, _ = invert(attack, observed, iterations=5, restarts=3, microbatch=1)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)
    np.testing.assert_allclose(together.x, one_by_one.x, atol=1e-5)
    scores = jax.lax.map(lambda s: attack.reconstruct(s, observed[1]).score[0], a.attack)
    np.testing.assert_allclose(together.score[0], scores.min(), rtol=1e-6)


@pytest.mark.slow
def test_more_restarts_add_to_fewer(attack, observed):
    runs = {restarts: invert(attack, observed, iterations=5, restarts=restarts) for restarts in (1, 2, 3)}
    single, *more = [runs[restarts][1].attack.best["x"] for restarts in (1, 2, 3)]
    for trials in more:
        np.testing.assert_allclose(trials[0], single, atol=1e-5)
    np.testing.assert_allclose(more[1][:2], more[0], atol=1e-5)
    assert np.abs(more[1][1] - more[1][2]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["scan", "step"])
def test_devices_share_the_restarts(attack, observed, executor):
    devices = jax.devices()[:2]
    alone, a, infos = invert(attack, observed, iterations=3, restarts=4)
    shared, b, shared_infos = invert(attack, observed, iterations=3, restarts=4, devices=devices, executor=executor)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), (a, infos), (b, shared_infos))
    np.testing.assert_allclose(shared.x, alone.x, atol=1e-5)
    assert all(len(leaf.sharding.device_set) == 2 for leaf in jax.tree.leaves(b.attack))


@pytest.mark.slow
def test_devices_share_the_images_of_a_single_trial(attack, observed):
    alone, a, infos = invert(attack, observed, iterations=3)
    shared, b, shared_infos = invert(attack, observed, iterations=3, devices=jax.devices()[:2])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), (a, infos), (b, shared_infos))
    np.testing.assert_allclose(shared.x, alone.x, atol=1e-4)
    sharding = b.attack.variables["x"].sharding
    assert not sharding.is_fully_replicated
    assert len(sharding.device_set) == 2


def test_images_that_devices_cannot_share_are_refused(attack, observed):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("devices",))
    _, run, _ = invert(attack, observed, iterations=1)
    with pytest.raises(ValueError, match="number must be a multiple, got 3"):
        placed(run, mesh, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restarts": 3}, "restarts must be a multiple of the 2 devices, got 3"),
        ({"restarts": 4, "microbatch": 3}, r"microbatch must be in \[1, 2\], got 3"),
        ({"restarts": 4, "executor": "eager"}, "devices share compiled programs"),
    ],
)
def test_restarts_that_devices_cannot_share_are_refused(attack, observed, options, message):
    with pytest.raises(ValueError, match=message):
        invert(attack, observed, iterations=1, devices=jax.devices()[:2], **options)


def test_a_resumed_inversion_ends_with_the_same_bits(attack, observed, tmp_path):
    whole, _, expected = invert(attack, observed, iterations=200)
    invert(attack, observed, iterations=100, checkpoints=Checkpoints(tmp_path / "c", {}))
    # The second call continues where the first ended, and the third has nothing left to do.
    for _ in range(2):
        resumed, _, infos = invert(attack, observed, iterations=200, checkpoints=Checkpoints(tmp_path / "c", {}))
        jax.tree.map(np.testing.assert_array_equal, whole, resumed)
        chex.assert_trees_all_equal(infos, expected)
    with pytest.raises(ValueError, match="iterations must be at least the 200 that the checkpoint has done, got 100"):
        invert(attack, observed, iterations=100, checkpoints=Checkpoints(tmp_path / "c", {}))


@pytest.fixture(scope="module")
def begun(attack, observed, tmp_path_factory):
    """The checkpoint folder of an inversion that ended after one iteration."""
    folder = tmp_path_factory.mktemp("begun") / "c"
    invert(attack, observed, iterations=1, checkpoints=Checkpoints(folder, {}))
    return folder


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("key, another start of the attack", lambda *_: {"key": jax.random.key(3)}),
        ("observation", lambda _, seen: {"observation": seen[1]._replace(round=seen[1].round + 1)}),
        ("number of restarts, another start of the attack", lambda *_: {"restarts": 2}),
        (
            "length of the attack's schedules, another choice of settings",
            lambda model, seen: {"attack": engine(model, seen[0], settings(200))},
        ),
        (
            "choice of settings",
            lambda model, seen: {"attack": engine(model, seen[0], settings().weighing(tv=0.3))},
        ),
    ],
)
def test_checkpoints_of_another_run_are_refused_with_what_differs(model, attack, observed, begun, named, changes):
    asked = {"attack": attack, "observation": observed[1], "key": jax.random.key(2), **changes(model, observed)}
    template = audit.template_of(observed[2])
    with pytest.raises(ConfigMismatchError, match=rf"of another run, with another {named}; choose another folder or"):
        audit.invert(**asked, template=template, iterations=1, checkpoints=Checkpoints(begun, {}))


def test_another_rounding_of_an_observation_is_the_same_run(attack, observed, begun):
    rounded = jax.tree.map(lambda leaf: leaf * (1 + 1e-6) if leaf.dtype == jnp.float32 else leaf, observed[1])
    invert(attack, (None, rounded, observed[2]), iterations=1, checkpoints=Checkpoints(begun, {}))


def test_checkpoints_that_do_not_say_what_they_come_from_are_resumed(attack, observed, begun, tmp_path):
    shutil.copytree(begun, tmp_path / "c", ignore=shutil.ignore_patterns(".lock*"))
    metadata = tmp_path / "c" / "steps" / "1" / "_CHECKPOINT_METADATA"
    said = json.loads(metadata.read_text())
    assert said["custom_metadata"].pop("origin")["key"]
    metadata.write_text(json.dumps(said))
    _, run, _ = audit.invert(
        attack, observed[1], audit.template_of(observed[2]), key=jax.random.key(3), iterations=1,
        checkpoints=Checkpoints(tmp_path / "c", {}),
    )  # fmt: skip
    assert int(run.iteration) == 1


def test_a_transcript_is_no_observation(attack):
    seen = Transcript(None, None, None, None, None, None)
    with pytest.raises(ValueError, match=r"observation must be what a threat grants, .* got a transcript"):
        audit.invert(attack, seen, None, key=jax.random.key(0), iterations=1)


def test_executors_agree(attack, observed):
    found, _, _ = invert(attack, observed, iterations=2, executor="step")
    expected, _, _ = invert(attack, observed, iterations=2)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-4)


def test_a_trial_that_is_not_finite_freezes_and_says_when(model, observed):
    class Exploding:
        """The client's share until iteration 3 of the attack, then NaN."""

        batch_norm, local_steps, clients = "train", 1, 1

        def __call__(self, params, batch, *, sharpness=None):
            payload = observed[0].share(params, batch)
            return jax.tree.map(lambda leaf: jnp.where(sharpness > 3.5, jnp.nan, leaf), payload)

    s = settings(8, smoothing=client_updates.smoothing(1.0, 8.0))
    attack = attacks.inversion(model, Exploding(), s, batch_size=B)
    state = attack.init(jax.random.key(0), audit.template_of(observed[2]))
    step, states = jax.jit(attack.step), []
    for _ in range(8):
        state, info = step(jax.random.key(0), state, observed[1])
        states.append(state)
    sharpness = [1.0 * 8 ** (t / 7) for t in range(8)]
    first = next(t for t, beta in enumerate(sharpness) if beta > 3.5)
    assert int(state.failed_at) == first
    assert bool(info["frozen"])
    np.testing.assert_array_equal(state.variables["x"], states[first - 1].variables["x"])
    assert np.isfinite(state.best_loss)


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"labels": "guessed"}, "labels must be one of given, joint"),
            ({"tv": -1.0}, "tv must be >= 0"),
            ({"tv": 3.5e38}, "tv must be finite and at most 3.40e.38"),
            ({"group": 0}, "group must be > 0"),
            (
                {"smoothing": "Auto"},
                "smoothing must be None, 'auto' or from attacks.client_updates.smoothing, got 'Auto'",
            ),
            ({"activation": "auto"}, "activation has no recommended weight"),
            ({"weights": {"edges": 1.0}}, "prior must be one of tv, l2, activation, batch_norm, latent, got 'edges'"),
            ({"consistency": 1.0}, "group must be > 1"),
            ({"weights": {"batch_norm": 1.0}}, "keeps none"),
            ({"weights": {"latent": 1.0}}, "this candidate has none"),
        ],
    )
    def test_settings(self, model, observed, changes, message):
        with pytest.raises(ValueError, match=message):
            engine(model, observed[0], settings(**changes))

    def test_priors(self):
        with pytest.raises(
            ValueError, match="kind must be one of anisotropic, isotropic, sum, truncated, relative, got 'huber'"
        ):
            client_updates.variation_prior("huber")
        with pytest.raises(ValueError, match='threshold is read by kind="truncated" only'):
            client_updates.variation_prior(threshold=1.0)
        with pytest.raises(ValueError, match="reduction must be one of mean, sum"):
            client_updates.activation_prior("max")

    def test_what_row_spaces_do_not_have(self):
        with pytest.raises(ValueError, match="but these settings compare RowSpaces"):
            presets.row_space().comparing(distance=objectives.cosine)

    def test_a_label_rule_outside_its_range(self, model, observed):
        with pytest.raises(ValueError, match="batch_size 4 is more than 3 classes"):
            attacks.inversion(model, observed[0].share, settings(labels="sum_rule"), batch_size=4)

    def test_labels_that_are_not_granted(self, model, observed):
        attack = engine(model, observed[0], settings(labels="given"))
        state = attack.init(jax.random.key(0), audit.template_of(observed[2]))
        with pytest.raises(ValueError, match="the threat must grant labels"):
            attack.step(jax.random.key(0), state, observed[1])

    def test_a_payload_that_only_broadcasts_against_the_model(self, attack, observed):
        state = jax.eval_shape(attack.init, jax.random.key(0), audit.template_of(observed[2]))
        seen = observed[1]
        for change, message in (
            (lambda leaf: leaf[:1], r"payload leaf head/bias must have shape \(3,\), got \(1,\)"),
            (lambda leaf: leaf.astype(jnp.int32), "must have the model's dtype float32, got int32"),
        ):
            head = {**seen.payload["head"], "bias": change(seen.payload["head"]["bias"])}
            other = seen._replace(payload={**seen.payload, "head": head})
            with pytest.raises(ValueError, match=message):
                jax.eval_shape(attack.step, jax.random.key(0), state, other)

    def test_running_statistics_that_are_not_granted(self):
        problem = reference.client_problem(2, batch_norm="eval")
        transcript = reference.first_transcript(problem)
        attack = attacks.inversion(problem.model, problem.protocol.share, settings(), batch_size=2)
        state = attack.init(jax.random.key(0), problem.template)
        with pytest.raises(ValueError, match="not granted"):
            jax.eval_shape(attack.step, jax.random.key(0), state, view(SERVER_WITHOUT_INDICES, transcript))
        granted = view(Threat(index=False, running_statistics=True), transcript)
        jax.eval_shape(attack.step, jax.random.key(0), state, granted)

    def test_presets(self):
        with pytest.raises(ValueError, match="preset must be one of dlg, idlg"):
            presets.preset("deep")
        with pytest.raises(ValueError, match="iterations must be > 0"):
            presets.preset("dlg", 0)
        with pytest.raises(ValueError, match="iterations must be at most 2147483647"):
            presets.preset("dlg", 2**31)
        with pytest.raises(ValueError, match="noise must be one of"):
            presets.bayes(noise="pink")

    def test_candidates(self):
        with pytest.raises(ValueError, match="start must be one of"):
            client_updates.pixels("truth")
        with pytest.raises(ValueError, match="low < high"):
            client_updates.pixels(box=(1.0, 0.0))
        with pytest.raises(ValueError, match="channels must be > 0"):
            client_updates.generator_weights(channels=0)

    def test_smoothing(self):
        with pytest.raises(ValueError, match="start must be > 0"):
            client_updates.smoothing(0.0)
        with pytest.raises(ValueError, match="end must be in"):
            client_updates.smoothing(4.0, 2.0)
        with pytest.raises(ValueError, match="hold \\+ finish must be < 1"):
            client_updates.smoothing(hold=0.5, finish=0.5)

    def test_parts_that_were_made_without_a_check(self, model, observed):
        for change, message in (
            ({"smoothing": client_updates.Smoothing(30.0, 1.0)}, "end must be in"),
            ({"regularization": objectives.GradientRegularization(blend=7.0)}, "blend must be in"),
        ):
            with pytest.raises(ValueError, match=message):
                attacks.inversion(model, observed[0], settings()._replace(**change), batch_size=2)

    def test_payload_of_another_model(self, model):
        variables = model.init(jax.random.key(0))
        payload = jax.tree.map(np.zeros_like, variables["params"])
        attacks.check_payload(payload, variables)
        lacking = {name: leaf for name, leaf in payload.items() if name != "head"}
        with pytest.raises(ValueError, match=r"lacks .*head"):
            attacks.check_payload(lacking, variables)
        with pytest.raises(ValueError, match="must have shape"):
            attacks.check_payload({**payload, "head": jax.tree.map(lambda leaf: leaf[:1], payload["head"])}, variables)
        with pytest.raises(ValueError, match="not finite"):
            attacks.check_payload(jax.tree.map(lambda leaf: leaf * jnp.nan, payload), variables)
        with pytest.raises(ValueError, match="must have the model's dtype"):
            attacks.check_payload(jax.tree.map(lambda leaf: leaf.astype(jnp.int32), payload), variables)
        with pytest.raises(ValueError, match="float32, got float16"):
            attacks.check_payload(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), payload), variables)

    def test_more_iterations_than_the_schedule_has(self, attack, observed, caplog):
        with pytest.raises(
            ValueError, match="iterations must be at most 300, where the attack's schedules end, got 301"
        ):
            invert(attack, observed, iterations=301)
        invert(attack, observed, iterations=1)
        assert "cut short: 1 iterations of a schedule of 300" in caplog.text
        with pytest.raises(ValueError, match="iterations must be given"):
            invert(attack._replace(iterations=None), observed, iterations=None)

    def test_data_of_another_shape(self, attack):
        template = Batch(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 1, 5, 5, 1), (2,), (2,))))
        with pytest.raises(ValueError, match="must have shape"):
            attack.init(jax.random.key(0), template)


def test_the_paper_s_priors_are_the_printed_sums(model, observed):
    """The priors are alpha times the sum of all pixel differences, and beta times the sum of all activations."""
    attack = engine(model, observed[0], presets.fedleak_paper(3)._replace(labels="calibrated"))
    state = jax.jit(attack.init)(jax.random.key(0), observed[2])
    x = np.asarray(state.variables["x"])
    _, info = jax.jit(attack.step)(jax.random.key(0), state, observed[1])
    weights = jax.tree.map(np.asarray, observed[1].params["params"])
    (dense,) = (layer for name, layer in weights.items() if name != model.head)
    hidden = 1 / (1 + np.exp(-(x.reshape(B, -1) @ dense["kernel"] + dense["bias"])))
    variation = np.abs(np.diff(x, axis=1)).sum() + np.abs(np.diff(x, axis=2)).sum()
    np.testing.assert_allclose(info["loss"] - info["distance"], 1e-5 * variation + 1e-4 * hidden.sum(), rtol=1e-2)


@pytest.mark.slow
def test_inferred_labels_are_dealt_out_over_local_steps():
    """Sorted labels would give each local step a single class, unlike the batches of any client."""
    model = models.build("mlp", (4, 4, 1), 10, widths=(6,))
    variables = reference.drawn(model)
    y = jnp.repeat(jnp.arange(4), 3)
    x = reference.uniform(12, 1, 4, 4, 1, seed=1)
    answers = []
    for steps in (1, 6):
        share = protocols.ClientShare(model, local_steps=steps, learning_rate=1e-3)
        order = jnp.array([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
        payload = jax.jit(share)(variables, Batch(x, y[order], jnp.arange(12)))
        settings = attacks.presets.preset("fedleak", 1)._replace(labels="calibrated", smoothing=None)
        attack = attacks.inversion(model, share, settings, batch_size=12)
        template = audit.template_of(Batch(x, y, y))
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
        answer = jax.jit(attack.reconstruct)
        answers.append([answer(attack.init(jax.random.key(k), template), seen).y for k in (2, 3)])
    (one, other), (dealt, again) = answers
    np.testing.assert_array_equal(one, np.sort(one))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.sort(dealt), np.sort(again))
    assert (dealt != np.sort(dealt)).any()
    assert (dealt != again).any()  # each restart has its own order
    state = attack.init(jax.random.key(2, impl="rbg"), template)
    np.testing.assert_array_equal(np.sort(answer(state, seen).y), np.sort(dealt))


def test_a_group_answers_with_the_candidate_that_matches_best():
    """The answer is the best among the best and last iterates of all candidates; one that is not finite never wins."""
    model = models.build("mlp", (4, 4, 1), 10, widths=(6,))
    variables, y = model.init(jax.random.key(0)), jnp.array([1, 2])
    batch = Batch(np.random.default_rng(1).random((2, 1, 4, 4, 1)).astype(np.float32), y, jnp.arange(2))
    share = protocols.ClientShare(model)
    payload = jax.jit(share)(variables, batch)
    settings = attacks.presets.preset("gradinversion", 3)._replace(group=3, labels="given")
    attack = attacks.inversion(model, share, settings, batch_size=2)
    seen = Observation(jnp.zeros((), jnp.int32), variables, payload, labels=y)
    init, answer = jax.jit(attack.init), jax.jit(attack.reconstruct)
    best, last = (init(jax.random.key(k), batch) for k in (2, 3))

    @jax.jit
    def distance(x):
        return settings.gradients.distance(payload, share(variables, batch._replace(x=x[:, None])))

    for one, other in ((best, last), (last, best)):
        broken = np.array(one.variables["x"])
        broken[0] = np.nan
        found = answer(one._replace(best={**one.best, "x": broken}, variables=other.variables), seen)
        contenders = np.concatenate([broken[1:], other.variables["x"]])
        distances = [float(distance(c)) for c in contenders]
        np.testing.assert_array_equal(found.x[:, 0], contenders[int(np.argmin(distances))])
        np.testing.assert_allclose(found.score, min(distances), rtol=1e-5)


@pytest.mark.slow
def test_a_group_pays_for_what_its_candidates_differ_by(model, observed):
    _, seen, truth = observed
    losses = []
    for consistency in (0.0, 2.0):
        attack = engine(model, observed[0], settings(group=2, consistency=consistency, labels="given"))
        state = jax.jit(attack.init)(jax.random.key(3), truth)
        seen_with_labels = seen._replace(labels=truth.y)
        _, info = jax.jit(attack.step)(jax.random.key(4), state, seen_with_labels)
        losses.append(float(info["loss"]))
    spread = float(jax.jit(objectives.group_distance)(state.variables["x"]))
    assert spread > 0.1
    assert losses[1] - losses[0] == pytest.approx(2.0 * spread / 2, rel=1e-4)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_granted_labels_that_are_no_classes_end_the_search(model, observed, label):
    """As one-hot vectors they would be zero, and their gradient would look like that of an irrecoverable image."""
    _, seen, truth = observed
    attack = engine(model, observed[0], settings(labels="given"))
    state = jax.jit(attack.init)(jax.random.key(3), truth)
    _, info = jax.jit(attack.step)(jax.random.key(4), state, seen._replace(labels=truth.y.at[0].set(label)))
    assert np.isnan(info["loss"])
    assert info["frozen"]


def test_a_search_that_never_left_its_start_has_no_answer(model, observed):
    _, seen, truth = observed
    attack = engine(model, observed[0], settings(labels="given"))
    state = jax.jit(attack.init)(jax.random.key(3), truth)
    for labels, answered in ((truth.y, True), (truth.y.at[0].set(-1), False)):
        found = jax.jit(attack.reconstruct)(state, seen._replace(labels=labels))
        assert bool(found.answered.all()) == bool(found.answered.any()) == answered


def test_of_several_labels_per_image_none_may_be_a_finding(model, observed):
    _, seen, truth = observed
    share = protocols.ClientShare(model, loss=objectives.binary_cross_entropy)
    attack = attacks.inversion(model, share, settings(labels="given"), batch_size=B)
    state = jax.jit(attack.init)(jax.random.key(3), truth)
    findings = jnp.array([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    _, info = jax.jit(attack.step)(jax.random.key(4), state, seen._replace(labels=findings))
    assert np.isfinite(info["loss"])
    assert not info["frozen"]


def test_a_last_layer_without_bias_or_name_is_explained():
    class Bare(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, use_bias=False, name="out")(x.reshape(len(x), -1))

    bare = models.classifier(Bare(), image_shape=SHAPE, num_classes=CLASSES, head="out")
    share = protocols.ClientShare(bare)
    with pytest.raises(
        ValueError, match="bias_rule needs the gradient of the bias; longest_column does without for one"
    ):
        attacks.inversion(bare, share, settings(labels="bias_rule"), batch_size=2)
    attacks.inversion(bare, share, settings(labels="corrected_counts"), batch_size=2)
    with pytest.raises(ValueError, match="the model's head is 'last', but these parameters do not hold last/kernel"):
        attacks.inversion(
            bare._replace(head="last", head_leaves=("last/kernel",)), share, settings(labels="bias_rule"), batch_size=2
        )


def test_a_share_must_say_how_the_client_computes():
    plain, normal = (models.convnet((4, 4, 1), 3, channels=(2,), strides=(1,), batch_norm=b) for b in (False, True))
    for mode in ("train", "eval"):
        share = protocols.ClientShare(normal, batch_norm=mode)
        assert assemble(normal, share, presets.fedleak(3), 1).setup.mode == mode
    for model in (plain, normal):
        with pytest.raises(ValueError, match="attributes batch_norm, local_steps and clients"):
            attacks.inversion(model, lambda *_: None, presets.fedleak(3), batch_size=1)


class HeadSquares:
    """A user's comparison, unknown to the engine: squared differences of only the last layer's gradient."""

    reads_labels = True

    def leaves(self, model, batch_size):
        del model, batch_size
        return ("head",)

    def term(self, setup):
        def compare(observation, x, y, mask, sharpness):
            batch = Batch(x[:, None], y, jnp.arange(setup.batch_size))
            simulated = setup.share(observation.params, batch, sharpness=sharpness)
            squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), observation.payload["head"], simulated["head"])
            square = sum(jax.tree.leaves(squares))
            return client_updates.Compared(mask, square, jax.lax.stop_gradient(square))

        return client_updates.DataTerm(compare, matched_below=1e-5)


def test_more_images_than_the_template_holds_are_refused(model, observed):
    protocol, _, truth = observed
    attack = attacks.inversion(model, protocol.share, settings(), batch_size=B + 1)
    with pytest.raises(ValueError, match="batch_size must be at most the number of images of the template, 2, got 3"):
        attack.init(jax.random.key(0), audit.template_of(truth))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compare": lambda a, b: 0.0}, "compare must be a Comparison, .* without reads_labels, leaves, term"),
        ({"priors": (client_updates.variation_prior(),)}, r"priors must be pairs \(weight, prior\)"),
        ({"priors": ((client_updates.variation_prior(), 0.1),)}, r"priors must be pairs \(weight, prior\)"),
    ],
)
def test_parts_of_the_wrong_kind_are_named(change, message, model, observed):
    with pytest.raises(ValueError, match=message):
        engine(model, observed[0], settings()._replace(**change))


def test_a_new_comparison_needs_nothing_of_the_engine(model, observed):
    own = settings()._replace(compare=HeadSquares())
    protocol, seen, truth = observed
    assert client_updates.leaves_read(model, own, batch_size=B)[0] == "head"
    granted = seen._replace(payload={"head": seen.payload["head"]})
    found, _, infos = invert(engine(model, protocol, own), (protocol, granted, truth))
    assert infos["distance"][-1] < 0.01 * infos["distance"][0]
    np.testing.assert_array_equal(found.y, np.sort(truth.y))
    assert found.gradient_matched.all()
