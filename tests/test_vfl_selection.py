"""The choice of a record's fields on held-out shadow records, and learning from several shadow runs."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments._vfl.cells import fig3, validated
from jaxleak import attacks, audit, defenses, models
from jaxleak._base import Batch, Observation, PartyRecord
from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import reconstruction_net, selection
from jaxleak.study.parties import ADVERSARY, THREAT, Runs, SplitCase, seconds_of, split_problem
from jaxleak.study.parties import _runs as parties_runs
from jaxleak.study.parties._truth import Truth

N, B, STEPS = 48, 8, 12
KEY = jax.random.key(0)
MODEL = models.bottom_top((2, 2), 2, bottom=(4, 4), top=(4,))
SMALL = {"party": 0, "hidden": (16,), "epochs": 30}


def _private():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=N)
    return Batch(jnp.asarray(rng.random((N, 2, 2)), jnp.float32), jnp.asarray(y, jnp.int32), jnp.arange(N))


def _run(seed, private, telling="gradient"):
    """A synthetic run: the field `telling` holds the label; other fields identify a sample or hold noise."""
    rng = np.random.default_rng(seed)
    index = np.concatenate([rng.permutation(N) for _ in range(STEPS * B // N)]).reshape(STEPS, B)
    label = np.asarray(private.y)[index][..., None] * np.ones(4) + 0.1 * rng.standard_normal((STEPS, B, 4))
    noise = rng.standard_normal((STEPS, B, 4))
    gradient, output = (label, noise) if telling == "gradient" else (noise, label)
    seen = PartyRecord(np.asarray(private.x)[index, 0], None, None, None, output, output, gradient)
    return Observation(jnp.arange(STEPS), index=jnp.asarray(index), party=jax.tree.map(jnp.float32, seen))


@pytest.mark.parametrize("telling", ["gradient", pytest.param("outputs", marks=pytest.mark.slow)])
def test_the_field_that_tells_wins(telling):
    private = _private()
    runs = [_run(seed, private, telling) for seed in range(2)]
    found = party_records.select_fields(
        KEY, runs, private, MODEL, task="labels", candidates=(("gradient",), ("outputs",), ("inputs",)), **SMALL
    )
    assert found.fields == (telling,)
    assert found.losses[telling,] < 0.2
    assert found.losses["inputs",] > 0.6  # log 2 = 0.69: memorised records do not count
    assert set(found.losses) == {("gradient",), ("outputs",), ("inputs",)}


@pytest.mark.parametrize(
    ("share", "count", "held"),
    [(None, 48, 12), (0.2, 48, 10), (0.25, 10, 2), (0.01, 10, 1), (0.99, 10, 9), (0.5, 2, 1)],
)
def test_a_share_of_the_records_is_held_out_and_the_last_run_judges(monkeypatch, share, count, held):
    asked = []

    def train(key, learned, private, model, *, held_out, fields, **_):
        asked.append((int(held_out.sum()), len(held_out), learned.round.tolist()))
        return fields

    def loss(net, judged, target, chosen, task):
        assert judged.round.tolist() == [2]
        return {"gradient": 0.4, "inputs": 0.3}[net[0]]

    monkeypatch.setattr(selection, "train_vflrecon", train)
    monkeypatch.setattr(selection, "_held_out_loss", loss)
    private = jax.tree.map(lambda leaf: leaf[:count], _private())
    runs = [Observation(jnp.array([n]), index=jnp.arange(count)[None]) for n in range(3)]
    unseen = [run._replace(index=jnp.zeros((1, 0), jnp.int32)) for run in runs]
    with pytest.raises(ValueError, match=r"none of the \d+ of \d+ records took part"):
        party_records.select_fields(KEY, unseen, private, MODEL, party=0, task="labels")
    options = {} if share is None else {"held_out": share}
    found = party_records.select_fields(
        KEY, runs, private, MODEL, party=0, task="labels", candidates=(("gradient",), ["inputs"]), **options
    )
    assert asked == [(held, count, [0, 1])] * 2
    assert found.fields == ("inputs",)
    party_records.select_fields(KEY, runs[2:], private, MODEL, party=0, task="labels", candidates=(("inputs",),))
    assert asked[-1][2] == [2]  # a single run serves both purposes


def test_the_held_out_records_alone_are_judged_and_a_network_without_an_answer_loses():
    judged = Observation(jnp.arange(2), index=jnp.array([[0, 2], [1, 0]]), party=jnp.arange(8.0).reshape(2, 2, 2))
    target = jnp.array([[1.0, 1.0], [0.0, 3.0], [5.0, 5.0]])
    chosen = jnp.array([True, False, True])
    # Rows 0 and 1 of the first step and row 1 of the second belong to held-out records.
    errors = [((0 - 1) ** 2 + 0) / 2, ((2 - 5) ** 2 + (3 - 5) ** 2) / 2, ((6 - 1) ** 2 + (7 - 1) ** 2) / 2]
    net = reconstruction_net.ReconstructionNet(None, None, None, None, (), None)
    for factor in (1.0, np.nan):
        seen = jax.tree.map(lambda leaf, factor=factor: leaf * factor, judged.party)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reconstruction_net.ReconstructionNet, "__call__", lambda self, seen: seen)
            found = selection._held_out_loss(net, judged._replace(party=seen), target, chosen, "features")
        assert found == (pytest.approx(np.mean(errors)) if factor == 1 else np.inf)


def test_held_out_targets_are_not_learned():
    private = _private()
    runs = [_run(seed, private) for seed in range(2)]
    held = jnp.arange(N) < N // 4
    lies = private._replace(y=jnp.where(held, 1 - private.y, private.y))
    nets = [
        attacks.train_vflrecon(KEY, runs[0], told, MODEL, task="labels", fields=("inputs",), held_out=held, **SMALL)
        for told in (private, lies)
    ]
    for a, b in zip(*map(jax.tree.leaves, nets), strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_weights_are_no_weights():
    private = _private()
    nets = [
        attacks.train_vflrecon(
            KEY,
            _run(0, private),
            private,
            MODEL,
            task="features",
            fields=("gradient", "inputs"),
            held_out=held,
            **SMALL,
        )
        for held in (None, jnp.zeros(N, bool))
    ]
    for a, b in zip(*map(jax.tree.leaves, nets), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_runs_are_joined_along_steps():
    private = _private()
    first, second = _run(0, private), _run(1, private)
    joined = party_records.join_runs([first, second])
    np.testing.assert_array_equal(joined.index, np.concatenate([first.index, second.index]))
    np.testing.assert_array_equal(joined.party.output_gradient[STEPS:], second.party.output_gradient)
    assert party_records.join_runs([first]) is first


def test_bad_input():
    private = _private()
    run = _run(0, private)
    for options, message in (
        ({"held_out": 0.0}, r"held_out must be in \(0, 1\), got 0"),
        ({"held_out": 1.0}, r"held_out must be in \(0, 1\), got 1"),
        ({"candidates": ()}, "at least one set of fields"),
        ({"candidates": (("weights",),)}, "fields must be some of"),
    ):
        with pytest.raises(ValueError, match=message):
            party_records.select_fields(KEY, [run], private, MODEL, task="labels", **(SMALL | options))
    with pytest.raises(ValueError, match="at least one shadow run"):
        party_records.select_fields(KEY, [], private, MODEL, task="labels", **SMALL)
    with pytest.raises(ValueError, match="at least one run"):
        party_records.join_runs([])
    for held in (jnp.ones(N, bool), jnp.zeros(3, bool)):
        with pytest.raises(ValueError, match="held_out must have shape"):
            attacks.train_vflrecon(KEY, run, private, MODEL, task="labels", held_out=held, **SMALL)
    for case, message in (
        (SplitCase("breast_cancer", shadow_runs=0), "shadow_runs must be > 0"),
        (SplitCase("breast_cancer", select="best"), "select must be one of fixed, validation"),
    ):
        with pytest.raises(ValueError, match=message):
            split_problem(case, seed=0)


def test_only_a_shared_start_is_the_real_one(monkeypatch):
    case = SplitCase("breast_cancer", shadow_records=32, victim_records=32)
    problem = split_problem(case, 0)
    start = problem.victim_protocol.init(KEY).params
    begun = []

    def watch(protocol, threat, private, state, **options):
        begun.append((state, private))
        return state, None

    monkeypatch.setattr(parties_runs.audit, "watch", watch)
    same = {}
    for how in party_records.SHADOW_INITS:
        parties_runs._shadow_run(case, problem, problem.shadow_protocol, how, start, jax.random.key(1))
        state, private = begun.pop()
        np.testing.assert_array_equal(private.x, problem.shadow.x)
        equal = jax.tree.map(lambda a, b: bool((a == b).all()), state.params, start)
        tops, bottoms = all(jax.tree.leaves(equal["top"])), [all(jax.tree.leaves(b)) for b in equal["bottom"]]
        same[how] = (tops, bottoms[ADVERSARY], bottoms[1 - ADVERSARY])
    assert same == {
        "shared": (True, True, True),
        "own_bottom": (False, True, False),
        "independent": (False, False, False),
    }


@pytest.mark.slow
def test_a_study_learns_from_several_runs_and_says_what_it_chose(monkeypatch):
    asked = []
    original = party_records.select_fields

    def select_fields(key, shadows, private, model, **options):
        asked.append((len(shadows), shadows[0].index.tolist() != shadows[1].index.tolist(), private, options["task"]))
        return original(key, shadows, private, model, candidates=(("gradient",), ("inputs",)), hidden=(8,), **options)

    monkeypatch.setattr(party_records, "select_fields", select_fields)
    monkeypatch.setattr(attacks, "train_vflrecon", functools.partial(attacks.train_vflrecon, hidden=(8,)))
    case = SplitCase(
        "breast_cancer", shadow_records=48, victim_records=48, network_epochs=1, shadow_runs=2, select="validation"
    )
    problem = split_problem(case, 0)
    start = problem.victim_protocol.init(KEY)
    _, seen = audit.watch(problem.victim_protocol, THREAT, problem.victim, start, key=KEY, rounds=3)
    runs, truth = Runs(("shared", "independent"), features=False), Truth(problem, np.asarray(seen.index))
    scores, _ = parties_runs._with_shadow_runs(case, 0, runs, problem, start.params, seen, problem.victim.y, truth)
    assert [(count, differ, task) for count, differ, _, task in asked] == [(2, True, "labels")] * 2
    # Validation uses only the attacker's own records.
    np.testing.assert_array_equal(asked[0][2].x, problem.shadow.x)
    for how in ("shared", "independent"):
        assert scores[f"chose_gradient_labels_{how}"] + scores[f"chose_inputs_labels_{how}"] == 1


def test_validated_rows_stand_beside_the_plain_ones():
    listed = {cell.id: cell for cell in fig3(SplitCase("sensorless"))}
    cell = listed["fig3/adult#validated"]
    (case, score), (plain, of_plain) = cell.jobs[0], listed["fig3/adult"].jobs[0]
    assert (case, score) == (validated(plain), of_plain)
    assert (case.select, case.shadow_runs) == ("validation", 6)
    runs = Runs(("shared",), features=False)
    assert seconds_of(case, runs) > 2 * seconds_of(plain, runs)


def test_what_experiments_need_is_public():
    assert set(party_records.PAPER_FIELDS) < set(party_records.FIELDS)
    assert inspect.isclass(party_records.ReconstructionNet)
    assert "Reading" in defenses.__all__
