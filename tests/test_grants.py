"""What each attack is granted by default, written down; one field more has to be put into a table here first."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from experiments._cafe import runs as cafe_runs
from jaxleak import audit, protocols, threats
from jaxleak._base import Observation
from jaxleak.study.parties import ADVERSARY, THREAT, SplitCase, split_problem
from jaxleak.study.rounds import vertical_problem
from jaxleak.study.rounds._exact import audit as cafe_audit
from jaxleak.study.updates import ATTACKS, Case, observe, resolved, victim
from jaxleak.threats import Threat

#: The server of gradient inversion sees the model and one upload. Exceptions are named, attack by attack.
INVERSION = Threat(index=False, labels=False, statistics=False, running_statistics=False, payload=None, party=None)
GRANTED_MORE = {"fedleak_upstream": {"labels": True}}

#: Of an `Observation`, what is not None under each threat of the module.
SEEN = {
    "HONEST_BUT_CURIOUS_SERVER": {"round", "params", "payload", "index"},
    "BIAS_GRADIENT_ONLY": {"round", "params", "payload", "index"},
    "FIRST_LAYER_ONLY": {"round", "params", "payload", "index"},
    "SERVER_WITHOUT_INDICES": {"round", "params", "payload"},
}


def seen(observation):
    return {name for name, field in observation._asdict().items() if field is not None}


def test_every_field_of_a_threat_and_of_an_observation_is_known_here():
    assert Threat._fields == ("index", "labels", "statistics", "running_statistics", "payload", "party")
    assert Observation._fields == ("round", "params", "payload", "index", "labels", "statistics", "party")
    assert Threat() == Threat(True, False, False, False, None, None)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_inversion_is_granted_no_more_than_the_table_says(attack):
    expected = INVERSION._replace(**GRANTED_MORE.get(attack, {}))
    case = Case(attack=attack, model="mlp", data="digits", pool=2)
    assert resolved(case).threat == expected
    # What is asked for by name is granted, and nothing beside it.
    assert resolved(replace(case, batch_norm="eval")).threat == expected._replace(running_statistics=True)
    if attack != "patch_embedding":
        assert resolved(replace(case, labels="given")).threat == expected._replace(labels=True)
    if attack == "gradinversion":
        assert resolved(replace(case, granted_statistics=True)).threat == expected._replace(statistics=True)


@pytest.mark.parametrize(
    ("attack", "fields"),
    [("fedleak", {"round", "params", "payload"}), ("fedleak_upstream", {"round", "params", "payload", "labels"})],
)
def test_an_inversion_sees_no_more_than_it_is_granted(attack, fields):
    case = Case(attack=attack, model="mlp", data="digits", pool=2)
    assert seen(observe(case, 0, victim(case, 0))[0]) == fields


def test_every_threat_of_the_module_shows_what_the_table_says():
    problem = vertical_problem("breast_cancer", num_samples=4, parties=2, seed=0, key=jax.random.key(0))
    protocol = protocols.vertical(problem.model, num_samples=4, batch_size=2, with_statistics=True)
    state = protocol.init(jax.random.key(0))
    transcript = jax.eval_shape(protocol.round, jax.random.key(1), state, problem.private)[1]
    named = {name: value for name, value in vars(threats).items() if isinstance(value, Threat)}
    assert {name: seen(threats.view(threat, transcript)) for name, threat in named.items()} == SEEN


def watched(monkeypatch):
    """The threats under which rounds are watched, in their order."""
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
        *((name, {}) for name in ("cafe", "cafe-cosine", "dlg", "cosine", "sapag", "gc")),
        ("idlg", {"labels": True}),
        ("bn", {"statistics": True}),
    ],
)
def test_cafes_baselines_are_granted_what_their_name_says(method, granted, monkeypatch):
    found = []

    def note(*_, threat, **__):
        found.append(threat)
        return None, {}

    monkeypatch.setattr(cafe_runs.rounds, "step_three", note)
    monkeypatch.setattr(cafe_runs, "_psnr", lambda *_: {})
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
