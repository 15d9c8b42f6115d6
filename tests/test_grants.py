"""Tables of the fields that each attack is granted by default; a further field must first be added here."""

import importlib
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import test_common_attacks as common
from slowness import slow_among

from jaxleak import audit, models, protocols, threats
from jaxleak._base import Batch, Observation
from jaxleak.study.parties import ADVERSARY, THREAT, SplitCase, split_problem
from jaxleak.study.rounds import runs as cafe_runs
from jaxleak.study.rounds import vertical_problem
from jaxleak.study.rounds._exact import audit as cafe_audit
from jaxleak.study.updates import ATTACKS, CLOSED_FORM, Case, observe, resolved, victim
from jaxleak.threats import Threat

#: Threat of gradient inversion: the server sees the model and one upload. `GRANTED_MORE` lists the exceptions.
INVERSION = Threat(index=False, labels=False, statistics=False, running_statistics=False, payload=None, party=None)
GRANTED_MORE = {"fedleak_upstream": {"labels": True}}
#: Attacks that see only a few layers of the upload. All others see the whole upload.
READ_A_PART = {"row_space"}

#: Fields of an `Observation` that are not None, by threat of the module.
SEEN = {
    "HONEST_BUT_CURIOUS_SERVER": {"round", "params", "payload", "index"},
    "BIAS_GRADIENT_ONLY": {"round", "params", "payload", "index"},
    "FIRST_LAYER_ONLY": {"round", "params", "payload", "index"},
    "SERVER_WITHOUT_INDICES": {"round", "params", "payload"},
}


def seen(observation):
    return {name for name, field in observation._asdict().items() if field is not None}


def test_every_field_of_a_threat_and_of_an_observation_is_known_here():
    both = ("index", "labels", "statistics")
    assert Threat._fields == (*both, "running_statistics", "payload", "party", "label_holder")
    assert Observation._fields == ("round", "params", "payload", *both, "party", "label_holder")
    assert Threat() == Threat(True, False, False, False, None, None, False)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_inversion_is_granted_no_more_than_the_table_says(attack):
    expected = INVERSION._replace(**GRANTED_MORE.get(attack, {}))
    case = Case(attack=attack, model="mlp", data="digits", pool=2)
    assert resolved(case).threat == expected
    # Grants that are requested by name are given, and nothing else.
    assert resolved(replace(case, batch_norm="eval")).threat == expected._replace(running_statistics=True)
    if attack not in CLOSED_FORM:
        assert resolved(replace(case, labels="given")).threat == expected._replace(labels=True)
    if attack == "gradinversion":
        assert resolved(replace(case, granted_statistics=True)).threat == expected._replace(statistics=True)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_inversion_sees_no_more_than_it_is_granted(attack):
    case = Case(attack=attack, model="convnet" if attack == "row_space" else "mlp", data="digits", pool=2)
    observation = observe(case, 0, victim(case, 0))[0]
    assert seen(observation) == {"round", "params", "payload", *GRANTED_MORE.get(attack, {})}
    assert observation.params["batch_stats"] in ({}, None)
    withheld = [leaf is None for leaf in jax.tree.leaves(observation.payload, is_leaf=lambda leaf: leaf is None)]
    assert any(withheld) == (attack in READ_A_PART)
    assert not all(withheld)


@pytest.mark.slow
def test_statistics_are_seen_where_they_were_asked_for():
    case = Case(attack="gradinversion", model="resnet10", width=2, data="digits", pool=2, granted_statistics=True)
    assert seen(observe(case, 0, victim(case, 0))[0]) == {"round", "params", "payload", "statistics"}


def audited(monkeypatch, truth):
    """The case that `jaxleak audit` passes to the attacking stages, and the inputs of the audit."""
    stages = importlib.import_module("jaxleak.audit._verdict.update")
    model = models.mlp((4, 4, 1), 3, widths=(8,))
    variables = reference.drawn(model)
    private = Batch(reference.uniform(1, 1, 4, 4, 1, seed=1), jnp.array([1]), jnp.arange(1))
    sent = jax.jit(protocols.ClientShare(model))(variables, private)
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(stages, "run_stages", lambda case: found.append(case) or iter(()))
        patch.setattr(stages, "checked_update", lambda *_, **__: ([], None))
        audit.update(model, variables, sent, batch_size=1, truth=truth and truth(private))
    return found[0], variables, sent


def test_an_audit_sees_weights_and_update_and_no_truth(monkeypatch):
    case, variables, sent = audited(monkeypatch, None)
    assert seen(case.observation) == {"round", "params", "payload"}
    jax.tree.map(np.testing.assert_array_equal, (case.observation.params, case.observation.payload), (variables, sent))
    known = ("defended", "defense", "loss_known", "loss_shown", "precision", "unknowns", "contradicted")
    expected = ("share", "observation", "samples", "store", "key", "show", *known)
    assert case._fields == expected
    for leaf in jax.tree.leaves(case.template):
        assert isinstance(leaf, jax.ShapeDtypeStruct)
    # The truth serves only the scores, and does not change the case that the stages get.
    told, *_ = audited(monkeypatch, lambda private: (private.x[:, 0], private.y))
    handed = [(c.observation, c.samples, jax.random.key_data(c.key), c.defended, c.defense) for c in (case, told)]
    jax.tree.map(np.testing.assert_array_equal, *handed)


@pytest.mark.parametrize(
    "name",
    slow_among(
        sorted(common.OTHER_SETTINGS),
        ("inversion_ggl", "inversion_fedleak_upstream", "inversion_rog", "inversion_row_space", "epoch_copies"),
    ),
)
def test_a_grant_that_an_attack_misses_is_named(name):
    """The same test as in `test_common_attacks`, for attacks that run there only with -m slow."""
    case = common.CASES[name]
    problem = common.PROBLEMS[case.setting]()
    protocol, key = problem.protocol, jax.random.key(0)
    transcript = jax.eval_shape(lambda key: protocol.round(key, protocol.init(key), problem.private)[1], key)
    attack = case.build(problem.model, protocol.share, num_samples=common.N, **case.options)
    state = jax.eval_shape(attack.init, key, problem.template)
    granted = threats.view(case.threat, transcript)
    jax.eval_shape(attack.step, key, state, granted)
    common.assert_misses_are_named(name, attack, state, granted)


def test_every_threat_of_the_module_shows_what_the_table_says():
    problem = vertical_problem("breast_cancer", num_samples=4, parties=2, seed=0, key=jax.random.key(0))
    protocol = protocols.vertical(problem.model, num_samples=4, batch_size=2, with_statistics=True)
    state = protocol.init(jax.random.key(0))
    transcript = jax.eval_shape(protocol.round, jax.random.key(1), state, problem.private)[1]
    named = {name: value for name, value in vars(threats).items() if isinstance(value, Threat)}
    assert {name: seen(threats.view(threat, transcript)) for name, threat in named.items()} == SEEN


def watched(monkeypatch):
    """A list of the threats under which rounds are watched, in order."""
    found, run = [], audit.run

    def note(attack, protocol, threat, *args, **options):
        found.append(threat)
        return run(attack, protocol, threat, *args, **options)

    monkeypatch.setattr(cafe_audit, "run", note)
    return found


def test_cafe_sees_indices_and_gradients_and_no_labels(monkeypatch):
    found = watched(monkeypatch)
    problem = vertical_problem("breast_cancer", num_samples=8, parties=2, seed=0, key=jax.random.key(0))
    setting = cafe_runs.Setting("exact", num_samples=8, batch_size=2, parties=2, images=2)
    cafe_runs.exact(setting, problem)
    server = Threat(True, False, False, False, None, None)
    assert found == [server._replace(payload=p) for p in (("first/bias",), ("first/bias", "first/kernel"))]


@pytest.mark.parametrize(
    ("method", "granted"),
    [
        *((name, {}) for name in ("cafe", "dlg", "cosine", "sapag", "gc")),
        ("idlg", {"labels": True}),
        ("bn", {"statistics": True}),
    ],
)
def test_cafes_baselines_are_granted_what_their_name_says(method, granted, monkeypatch):
    found = []

    def note(*_, threat, **__):
        found.append(threat)
        return None, {}

    monkeypatch.setattr(cafe_runs, "step_three", note)
    monkeypatch.setattr(cafe_runs, "_psnr", lambda *_, **__: {})
    problem = SimpleNamespace(private=SimpleNamespace(y=[0]))
    cafe_runs.descent(cafe_runs.Setting("descent", method=method), problem, None)
    assert found == [Threat(True, False, False, False, None, None)._replace(**granted)]


def test_a_party_sees_its_own_record_and_may_be_kept_from_the_indices():
    assert Threat(True, False, False, False, None, ADVERSARY) == THREAT
    problem = split_problem(SplitCase("breast_cancer", shadow_records=16, victim_records=16), 0)
    state = problem.victim_protocol.init(jax.random.key(0))
    transcript = jax.eval_shape(problem.victim_protocol.round, jax.random.key(1), state, problem.victim)[1]
    assert seen(threats.view(THREAT, transcript)) == {"round", "index", "party"}
    assert seen(threats.view(THREAT._replace(index=False), transcript)) == {"round", "party"}
    active = threats.party_view(ADVERSARY, active=True)
    assert seen(threats.view(active, transcript)) == {"round", "index", "party", "labels"}
    holder = threats.label_holder_view(1)
    assert seen(threats.view(holder, transcript)) == {"round", "index", "party", "labels", "label_holder"}
    assert seen(threats.view(threats.label_holder_view(), transcript)) == {"round", "index", "labels", "label_holder"}
