import gc
import weakref
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jaxleak import attacks, audit, models, protocols, threats
from jaxleak._base import Attack, Batch, Observation, Protocol, ProtocolState, Reconstruction, Transcript
from jaxleak.attacks import aggregated, presets
from jaxleak.audit import _invert
from jaxleak.audit._invert import _even
from jaxleak.audit._restarts import trial_keys
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError

KEY = jax.random.key(0)
PRIVATE = Batch(reference.uniform(6, 1, 3, seed=9), jnp.arange(6) % 2, jnp.arange(6))
SERVER = threats.HONEST_BUT_CURIOUS_SERVER


class Toy(NamedTuple):
    attack: Attack
    protocol: Protocol


def toy(nan_round=-1):
    """A protocol that trains, and an attack with random start and steps; both compile immediately."""

    def init(key):
        return ProtocolState(jnp.zeros((), jnp.int32), {"w": jax.random.normal(key, (3,))}, ())

    def round_(key, state, private):
        index = jax.random.permutation(jax.random.fold_in(key, state.round), 6)[:2]
        payload = {"w": jnp.tanh(private.x[index, 0] * state.params["w"]).mean(axis=0)}
        payload = {"w": jnp.where(state.round == nan_round, jnp.nan, payload["w"])}
        batch = jax.tree.map(lambda leaf: leaf[index], private)
        transcript = Transcript(state.round, state.params, payload, index, None, batch)
        params = {"w": state.params["w"] - 0.1 * payload["w"]}
        return ProtocolState(state.round + 1, params, ()), transcript

    def attack_init(key, template):
        return {"x": jax.random.normal(key, template.x.shape), "rounds": jnp.zeros((), jnp.int32)}

    def step(key, state, observation):
        noise = jax.random.normal(key, state["x"].shape)
        x = jnp.sin(state["x"] + 0.1 * noise) + observation.payload["w"]
        return {"x": x, "rounds": state["rounds"] + 1}, {"size": jnp.linalg.norm(x), "round": observation.round}

    def reconstruct(state, observation):
        score = jnp.abs(state["x"]).sum(axis=(1, 2))
        return Reconstruction(state["x"], jnp.zeros(6, jnp.int32), score, jnp.ones(6, bool))

    return Toy(Attack(attack_init, step, reconstruct), Protocol(init, round_, lambda params, batch: params))


TOY = toy()


def _run(case=TOY, private=PRIVATE, rounds=7, **options):
    return audit.run(case.attack, case.protocol, SERVER, private, key=KEY, rounds=rounds, **options)


@pytest.fixture(scope="module")
def uninterrupted():
    return _run()


def test_infos_are_those_of_every_round(uninterrupted):
    state, infos = uninterrupted
    np.testing.assert_array_equal(infos["round"], np.arange(7))
    assert int(state.protocol.round) == int(state.attack["rounds"]) == 7
    assert int(state.bad_round) == -1
    assert infos["size"][-1] == pytest.approx(float(jnp.linalg.norm(state.attack["x"])))
    assert len(set(infos["size"].tolist())) == 7


def test_an_inversion_compiles_once_and_lets_go_of_its_attack_with_the_programs():
    traced = []

    def step(key, state, observation):
        traced.append(1)
        return TOY.attack.step(key, state, observation)

    seen = Observation(jnp.int32(0), payload={"w": jnp.ones(3)})
    attack, alive = TOY.attack._replace(step=step), weakref.ref(step)
    for _ in range(2):
        audit.invert(attack, seen, PRIVATE, key=KEY, iterations=2)
    assert len(traced) == 1
    del attack, step
    _invert.both_ends.cache_clear()
    _invert.loop_of.cache_clear()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("executor", ["step", "eager"])
def test_executors_agree(uninterrupted, executor):
    state, infos = _run(executor=executor, chunk=3)
    chex.assert_trees_all_close(state, uninterrupted[0], atol=1e-6)
    chex.assert_trees_all_close(infos, uninterrupted[1], atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_chunks_length_changes_no_bit(uninterrupted, chunk):
    chex.assert_trees_all_equal(_run(chunk=chunk), uninterrupted)


def test_chunks_are_of_one_length_where_a_little_shorter_ones_fit():
    assert [_even(*sizes) for sizes in ((4250, 100), (400, 100), (97, 100), (5, 2), (101, 100), (0, 100))] == [
        85, 100, 97, 2, 100, 100,
    ]  # fmt: skip


def test_a_chunks_length_changes_no_bit_of_a_real_attack():
    model = models.logistic((3,), num_classes=2)
    protocol = protocols.vertical(model, num_samples=6, batch_size=2, optimizer=optax.sgd(0.1))
    attack = attacks.cafe_exact(model, aggregated.CafeExactPlan(6, 2, 1, 3, 2, direct=True))
    runs = [_run(Toy(attack, protocol), rounds=5, chunk=chunk) for chunk in (5, 2)]
    chex.assert_trees_all_equal(*runs)


def test_a_run_continues_from_a_state_that_stays_usable(uninterrupted):
    first, _ = _run(rounds=3)
    again, infos = _run(state=first)
    np.testing.assert_array_equal(infos["round"], np.arange(3, 7))
    chex.assert_trees_all_equal(again, uninterrupted[0])
    chex.assert_trees_all_equal(_run(state=first)[0], again)  # the caller's arrays were not donated
    assert _run(rounds=3, state=first)[1] == {}


class InterruptedRunError(Exception):
    pass


def test_a_run_that_was_interrupted_ends_with_the_same_bits(uninterrupted, tmp_path):
    seen = []

    def interrupt(done, state, infos):
        seen.append((done, len(infos["size"])))
        if done == 4:
            raise InterruptedRunError

    with pytest.raises(InterruptedRunError):
        _run(chunk=2, checkpoints=Checkpoints(tmp_path, {}), callbacks=[interrupt])
    assert seen == [(2, 2), (4, 2)]
    resumed = Checkpoints(tmp_path, {})
    assert resumed.latest_step() == 4
    state, infos = _run(chunk=2, checkpoints=resumed)
    np.testing.assert_array_equal(infos["round"], [4, 5, 6])
    chex.assert_trees_all_equal(state, uninterrupted[0])
    np.testing.assert_array_equal(infos["size"], uninterrupted[1]["size"][4:])


def test_checkpoints_of_another_run_are_refused_with_what_differs(tmp_path):
    _run(rounds=1, checkpoints=Checkpoints(tmp_path, {}))
    for named, changes in {
        "private set": {"private": PRIVATE._replace(x=1 - PRIVATE.x)},
        "number of restarts": {"restarts": 2},
    }.items():
        with pytest.raises(ConfigMismatchError, match=f"of another run, with another {named}; choose another folder"):
            _run(rounds=1, checkpoints=Checkpoints(tmp_path, {}), **changes)


def test_phases_of_other_threats_share_a_folder_where_the_caller_hands_on_the_state(uninterrupted, tmp_path):
    saved = Checkpoints(tmp_path, {})
    state = audit.start(TOY.attack, TOY.protocol, PRIVATE, key=KEY)
    for rounds, threat in ((3, SERVER), (7, SERVER._replace(labels=True))):
        state, _ = audit.run(
            TOY.attack, TOY.protocol, threat, PRIVATE, key=KEY, rounds=rounds, state=state, checkpoints=saved
        )
    chex.assert_trees_all_equal(state, uninterrupted[0])
    chex.assert_trees_all_equal(Checkpoints(tmp_path, {}).restore_latest(uninterrupted[0]), uninterrupted[0])


def test_each_restart_is_a_single_run_with_its_own_keys():
    state, infos = _run(restarts=3)
    assert infos["size"].shape == (7, 3)
    inits = trial_keys(jax.random.fold_in(KEY, 2), 3)
    single, protocol_state = jax.jit(TOY.attack.step), audit.start(TOY.attack, TOY.protocol, PRIVATE, key=KEY).protocol
    states = [TOY.attack.init(k, audit.template_of(PRIVATE)) for k in inits]
    for t in range(7):
        protocol_state, transcript = TOY.protocol.round(jax.random.fold_in(KEY, 1), protocol_state, PRIVATE)
        keys = trial_keys(jax.random.fold_in(jax.random.fold_in(KEY, 3), t), 3)
        observation = threats.view(SERVER, transcript)
        states = [single(k, s, observation)[0] for k, s in zip(keys, states, strict=True)]
    for r in range(3):
        np.testing.assert_allclose(state.attack["x"][r], states[r]["x"], atol=1e-5)
    assert np.abs(state.attack["x"][0] - state.attack["x"][1]).max() > 1e-2
    alone, _ = _run()
    np.testing.assert_allclose(state.attack["x"][0], alone.attack["x"], atol=1e-5)


def test_the_best_restart_is_the_attackers_choice_per_sample():
    x = jnp.arange(6.0).reshape(2, 3, 1)
    score = jnp.array([[1.0, 5.0, jnp.inf], [2.0, 3.0, 0.0]])
    both = Reconstruction(x, jnp.arange(6).reshape(2, 3), score, score < 4)
    best = audit.best_restart(both)
    np.testing.assert_array_equal(best.x[:, 0], [0, 4, 5])
    np.testing.assert_array_equal(best.y, [0, 4, 5])
    np.testing.assert_array_equal(best.score, [1, 3, 0])
    assert best.answered.all()


def test_a_payload_that_is_not_finite_names_its_round(tmp_path):
    checkpoints, poisoned = Checkpoints(tmp_path, {}), toy(nan_round=5)
    message = r"round 5: .* \(in rounds 4 to 6\); rounds before 4 are unaffected"
    with pytest.raises(FloatingPointError, match=message):
        _run(poisoned, chunk=4, checkpoints=checkpoints)
    assert checkpoints.latest_step() == 4
    kept = checkpoints.restore_latest(audit.start(TOY.attack, TOY.protocol, PRIVATE, key=KEY))
    chex.assert_trees_all_equal(kept, _run(rounds=4)[0])
    with pytest.raises(FloatingPointError, match=message):
        _run(poisoned, chunk=4, state=kept, executor="step")
    _run(poisoned, rounds=5)


def test_bad_arguments_are_refused():
    for options, match in (
        ({"rounds": 0}, "rounds must be > 0, got 0"),
        ({"chunk": 0}, "chunk must be > 0, got 0"),
        ({"restarts": 0}, "restarts must be > 0, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number, got 2.5"),
        ({"chunk": 1.5}, "chunk must be a whole number, got 1.5"),
        ({"restarts": 1.5}, "restarts must be a whole number, got 1.5"),
        ({"executor": "pmap"}, "executor must be one of scan, step, eager, got 'pmap'"),
    ):
        with pytest.raises(ValueError, match=match):
            _run(**options)
    for name in ("chunk", "restarts", "microbatch"):
        options = {"restarts": 4, name: 1.5}
        with pytest.raises(ValueError, match=rf"{name} must be a whole number, got 1\.5"):
            audit.invert(TOY.attack, Observation(jnp.int32(0)), PRIVATE, key=KEY, iterations=2, **options)
    with pytest.raises(ValueError, match=r"rounds must be a whole number, got 1\.5"):
        audit.watch(
            TOY.protocol, threats.HONEST_BUT_CURIOUS_SERVER, PRIVATE, TOY.protocol.init(KEY), key=KEY, rounds=1.5
        )


@pytest.mark.parametrize("labels", [[1, 2, 3, 1, 2, 3], [-1, 1, -1, 1, 1, 1]])
@pytest.mark.parametrize("kind", ["client", "horizontal", "split_training"])
def test_labels_out_of_range_are_refused_before_rounds_are_compiled(kind, labels):
    if kind == "client":
        share = protocols.ClientShare(models.mlp((2, 2, 1), 3, widths=()))
        protocol, shape = protocols.client(share, num_samples=6, batch_size=2), (1, 2, 2, 1)
    elif kind == "horizontal":
        model = models.logistic((5,), num_classes=3)
        protocol, shape = protocols.horizontal(model, workers=1, num_samples=6, batch_size=2), (1, 5)
    else:
        model = models.bottom_top((2, 2), 3, bottom=(2,), top=None)
        protocol, shape = protocols.split_training(model, num_samples=6, batch_size=2), (2, 2)
    private = Batch(jnp.zeros((6, *shape)), jnp.array(labels), jnp.arange(6))
    state = protocol.init(KEY)
    message = r"labels must be in \[0, 3\), got (3|-1)"
    with pytest.raises(ValueError, match=message):
        audit.watch(protocol, SERVER, private, state, key=KEY, rounds=1)
    with pytest.raises(ValueError, match=message):
        audit.start(TOY.attack, protocol, private, key=KEY)
    run_state = audit.RunState(state, (), jnp.full((), -1, jnp.int32))
    with pytest.raises(ValueError, match=message):
        audit.run(TOY.attack, protocol, SERVER, private, key=KEY, rounds=1, state=run_state)


@pytest.mark.parametrize(
    ("field", "where", "said"),
    [
        ("x", (2, 0, 1), "private.x must be finite, got nan at sample 2, party 0, column 1"),
        ("y", (4, 1), "private.y must be finite, got nan at sample 4, class 1"),
    ],
)
def test_private_values_that_are_not_finite_are_refused_before_rounds_are_compiled(field, where, said):
    """This holds also if a run continues from a state, and if the protocol itself checks nothing."""
    private = PRIVATE._replace(y=jnp.full((6, 2), 0.5))
    private = private._replace(**{field: getattr(private, field).at[where].set(jnp.nan)})
    protocol = TOY.protocol._replace(round=lambda *_: pytest.fail("ran a round"))
    state = audit.start(TOY.attack, TOY.protocol, PRIVATE, key=KEY)
    for begun in (None, state):
        with pytest.raises(ValueError, match=f"^{said}$"):
            audit.run(TOY.attack, protocol, SERVER, private, key=KEY, rounds=1, state=begun)


def test_what_is_not_finite_in_images_is_named_by_its_pixel():
    spoilt = np.zeros((2, 1, 4, 3, 1), np.float32)
    spoilt[1, 0, 2, 1, 0] = np.inf
    with pytest.raises(ValueError, match="got inf at sample 1, party 0, row 2, column 1, channel 0"):
        audit.start(TOY.attack, TOY.protocol, PRIVATE._replace(x=spoilt), key=KEY)


def test_of_a_template_of_arrays_only_the_shapes_are_read():
    def init(key, template):
        assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in template)
        return TOY.attack.init(key, template)

    attack = TOY.attack._replace(init=init)
    seen = Observation(jnp.int32(0), payload={"w": jnp.ones(3)})
    of_arrays, of_shapes = (
        audit.invert(attack, seen, template, key=KEY, iterations=2)[0]
        for template in (PRIVATE, audit.template_of(PRIVATE))
    )
    chex.assert_trees_all_equal(of_arrays, of_shapes)
    rounds = jax.tree.map(lambda leaf: leaf[None], seen)
    chex.assert_trees_all_equal(
        *(audit.replay(attack, rounds, template, key=KEY) for template in (PRIVATE, audit.template_of(PRIVATE)))
    )


@pytest.mark.slow
def test_attacks_run_where_jax_computes_in_64_bits():
    """The states of attacks keep their initial types, whatever precision a step uses."""
    model = models.mlp((4, 4, 1), 3, widths=(5,), activation="sigmoid")
    share = protocols.ClientShare(model)
    attack = attacks.inversion(model, share, presets.fedleak(2), batch_size=1)
    with jax.enable_x64(True):
        private = Batch(jnp.full((1, 1, 4, 4, 1), 0.5, jnp.float32), jnp.array([2]), jnp.arange(1))
        protocol = protocols.client(share, num_samples=1, batch_size=1)
        state = protocol.init(KEY)
        _, seen = audit.watch(protocol, threats.SERVER_WITHOUT_INDICES, private, state, key=KEY, rounds=1)
        seen = jax.tree.map(lambda leaf: leaf[0], seen)
        found, run, _ = audit.invert(attack, seen, private, key=KEY, restarts=2)
        began = audit.start(attack, protocol, private, key=KEY, restarts=2)
        ended, _ = audit.run(attack, protocol, threats.SERVER_WITHOUT_INDICES, private, key=KEY, rounds=1, restarts=2)
    assert np.isfinite(found.x).all()
    chex.assert_trees_all_equal_dtypes(run.attack, ended.attack, began.attack)


class TestLengthOfAnInversion:
    def test_an_attack_without_a_schedule_has_to_be_told(self):
        with pytest.raises(ValueError, match="iterations must be given: this attack has no schedule"):
            _invert._length(TOY.attack, None)
        assert _invert._length(TOY.attack, 3) == 3

    def test_a_schedule_is_run_to_its_end_unless_it_is_cut_short_which_is_said(self, caplog):
        planned = TOY.attack._replace(iterations=5)
        assert _invert._length(planned, None) == _invert._length(planned, 5) == 5
        assert not caplog.records
        assert _invert._length(planned, 4) == 4
        assert "cut short: 4 iterations of a schedule of 5" in caplog.text
        with pytest.raises(ValueError, match=r"iterations must be at most 5, .* got 6"):
            _invert._length(planned, 6)
        with pytest.raises(ValueError, match="iterations must be"):
            _invert._length(TOY.attack, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": jnp.zeros((6, 3))}, r"reconstruct of the attack must give x of shape \(6, 1, 3\), got shape \(6, 3\)"),
        ({"score": jnp.zeros(())}, r"score of shape \(6,\), got shape \(\)"),
        ({"score": None}, "score .* got no array"),
        ({"y": jnp.zeros((6, 2))}, r"y of shape \(6,\), got shape \(6, 2\)"),
    ],
)
@pytest.mark.parametrize("restarts", [1, 2])
def test_an_answer_of_other_shapes_is_refused_before_a_step_is_taken(changed, message, restarts):
    attack = TOY.attack._replace(
        step=lambda *_: pytest.fail("a step was taken"),
        reconstruct=lambda state, observation: TOY.attack.reconstruct(state, observation)._replace(**changed),
    )
    seen = Observation(jnp.zeros((), jnp.int32), payload={"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=message):
        audit.invert(attack, seen, audit.template_of(PRIVATE), key=KEY, iterations=1, restarts=restarts)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda key, state, seen: state["best"], r"\(state, info\), where info is a dict, got an array"),
        (lambda key, state, seen: (state, jnp.zeros(())), "got info of type"),
        (lambda key, state, seen: (state, {}, {}), "got 3 values"),
        (lambda key, state, seen: ((state, state), {}), "a state of the structure that it got"),
        (lambda key, state, seen: ({"best": state["best"][:1]}, {}), r"floating of shape \(6,\) became .* \(1,\)"),
        (lambda key, state, seen: ({"best": state["best"].astype(int)}, {}), "floating of .* became integer"),
        (lambda key, state, seen: (state, {"loss": state["best"]}), r"scalars as info, got 'loss' of shape \(6,\)"),
    ],
)
@pytest.mark.parametrize("restarts", [1, 2])
def test_what_a_step_gives_is_looked_at_while_it_is_traced(step, message, restarts):
    attack = TOY.attack._replace(init=lambda key, template: {"best": jnp.zeros(6)}, step=step)
    attack = attack._replace(
        reconstruct=lambda state, seen: Reconstruction(
            jnp.zeros((6, 1, 3)), jnp.zeros(6, jnp.int32), state["best"], jnp.ones(6, bool)
        )
    )
    seen = Observation(jnp.zeros((), jnp.int32), payload={"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=message):
        audit.invert(attack, seen, audit.template_of(PRIVATE), key=KEY, iterations=1, restarts=restarts)


def test_an_answer_that_is_no_reconstruction_is_refused():
    attack = TOY.attack._replace(reconstruct=lambda state, seen: jnp.zeros((6, 1, 3)))
    seen = Observation(jnp.zeros((), jnp.int32), payload={"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"must return a jaxleak\.Reconstruction, got an array"):
        audit.invert(attack, seen, audit.template_of(PRIVATE), key=KEY, iterations=1)


def test_whoever_asks_a_finished_checkpoint_is_told(tmp_path, caplog):
    seen = Observation(jnp.zeros((), jnp.int32), payload={"w": jnp.ones(3)})
    for _ in range(2):
        checkpoints = Checkpoints(tmp_path, {"settings": (TOY.attack.step, np.float32(2))})
        audit.invert(TOY.attack, seen, audit.template_of(PRIVATE), key=KEY, iterations=2, checkpoints=checkpoints)
    assert caplog.text.count("nothing is left to do: the answer is that of the checkpoint of iteration 2") == 1
