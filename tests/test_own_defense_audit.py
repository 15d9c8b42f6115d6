"""Audits of an update with a user's defense: what the audit knows of the defense, and what it refuses."""

import json

import jax
import jax.numpy as jnp
import pytest
from small_updates import perceptron, sent_by

from jaxleak import audit, capture, models
from jaxleak.__main__ import main
from jaxleak.audit._verdict.own_defense import identity_of
from jaxleak.defenses import CLIENT_DEFENSES, per_leaf, stateless
from jaxleak.defenses.mechanisms import GaussianNoise, Mechanism, RankedNoise, Recomputed, Replayed
from jaxleak.protocols import ClientShare

#: A file with functions that make Gaussian noise of a strength and show whether they ran.
FILE = """
import jax

from jaxleak import defenses
from jaxleak.defenses.mechanisms import GaussianNoise, Mechanism

open("ran", "w").close()


def noise(strength):
    def change(key, leaf):
        return leaf + strength * jax.random.normal(key, leaf.shape)

    return defenses.per_leaf("payload", change, mechanism=Mechanism(noise=GaussianNoise(strength)))
"""


def noise(deviation, declared=None):
    def change(key, leaf):
        return leaf + deviation * jax.random.normal(key, leaf.shape)

    return per_leaf("payload", change, mechanism=Mechanism(noise=GaussianNoise(declared or deviation)))


@pytest.fixture(scope="module")
def client():
    """A client of three images of classes 3, 4 and 5, and the update with noise of 0.001."""
    model = perceptron()
    variables, _, gradient = sent_by(model, images=3)
    return model, variables, noise(1e-3).apply(jax.random.key(0), gradient)


def audited(client, **stated):
    return audit.update(*client, **{"batch_size": 3, "minutes": 1e-4} | stated)


def test_it_is_known_as_well_as_a_built_in_one_that_does_the_same(client):
    own, built_in = audited(client, own_defense=noise(1e-3)), audited(client, defense="gaussian", strength=1e-3)
    assert own.findings == built_in.findings
    assert own.headline == built_in.headline == "leaks labels"
    assert own.reasons[0] == built_in.reasons[0]  # the labels that are proven despite it
    believed = [reason for reason in own.reasons if "believes the mechanism that it declares, which was" in reason]
    assert len(believed) == 1
    assert "the defense (own) and its strength" in own.threat


def test_what_could_not_be_compared_is_said(client):
    drawn = stateless("payload", lambda key, payload, **_: payload, mechanism=Mechanism(Replayed(random=True)))
    told = audited(client, own_defense=drawn, defense="my own")
    (sentence,) = (reason for reason in told.reasons if "not all of which could be compared" in reason)
    assert sentence.startswith("The attacker who knows the defense (my own) believes")
    assert "Replayed(random=True), whose law is not declared" in sentence


def test_an_attacker_whom_the_defense_blinds_is_said(client):
    def signs(key, leaf):
        return leaf * jax.random.rademacher(key, leaf.shape)

    blinding = per_leaf("payload", signs, mechanism=Mechanism(Replayed(random=True)))
    told = audited(client, own_defense=blinding, defense="my own")
    (sentence,) = (reason for reason in told.reasons if "learns next to nothing" in reason)
    assert sentence.endswith("That this attacker finds little says nothing about the defense.")


def failing(key, payload, **_):
    return {"no_such": payload["no_such"]}


@pytest.mark.parametrize(
    ("own", "stated", "message"),
    [
        (noise, {}, r"^own_defense must be made by jaxleak\.defenses"),
        (noise(1e-3)._replace(mechanism=None), {}, r"^own_defense must declare its mechanism.*--defense other"),
        (noise(1e-3, 1e-2), {}, r"^mechanism declares noise with a standard deviation of 0\.01, and the defense adds"),
        (noise(1e-3)._replace(place="cut_gradient"), {}, r"^own_defense must act at one of .* got cut_gradient"),
        (noise(1e-3), {"defense": "gaussian"}, r"^own_defense is given and defense is 'gaussian': state one of them"),
        (noise(1e-3), {"defense": "other"}, r"^own_defense is given and defense is 'other'"),
        (noise(1e-3), {"defense": None, "clip": 1.0}, r"^clip must be part of own_defense, got 1 beside it"),
        (stateless("payload", failing, mechanism=Mechanism()), {}, "own_defense fails on an update of this network: K"),
        (noise(1e-3)._replace(place="per_example_gradient"), {"local_steps": 2, "learning_rate": 0.1}, "one local"),
        (
            noise(1e-3)._replace(mechanism=Mechanism(noise=RankedNoise("none", 1.0, "absolute"))),
            {},
            "ordered like the gradient",
        ),
        (
            noise(1e-3)._replace(place="per_example_gradient", mechanism=Mechanism(Replayed())),
            {},
            "its place must be payload",
        ),
        (
            stateless("client_payloads", failing, mechanism=Mechanism()),
            {},
            "own_defense fails on an update of this network: K",
        ),
    ],
)  # fmt: skip
def test_a_defense_that_no_attacker_can_know_is_refused(client, own, stated, message):
    with pytest.raises(ValueError, match=message):
        audited(client, own_defense=own, **stated)


def test_a_folder_is_of_one_defense(client, tmp_path):
    audited(client, own_defense=noise(1e-3), out=tmp_path)
    audited(client, own_defense=noise(1e-3), out=tmp_path)
    with pytest.raises(ValueError, match=r"holds an audit of other inputs \(defense\)"):
        audited(client, own_defense=noise(2e-3), out=tmp_path)


@pytest.mark.parametrize("kind", ["soteria", "dp_sgd", "cancelling_noise", "encrypt_bottom"])
def test_defenses_at_every_place_are_told_apart_by_what_they_do(client, kind):
    share, strengths = ClientShare(client[0]), CLIENT_DEFENSES[kind].strengths
    weak, strong = (CLIENT_DEFENSES[kind].build(strength) for strength in (strengths[0], strengths[-1]))
    found = identity_of(weak, share, client[1])
    assert found == identity_of(weak, share, client[1])
    assert found != identity_of(strong, share, client[1])


def test_a_defense_that_works_on_the_images_is_given_what_it_reads(client):
    read = {}

    def note(key, payload, **extra):
        read.update(extra)
        return jax.tree.map(jnp.zeros_like, payload)

    own = stateless("representation", note, one_step=True, mechanism=Mechanism(Recomputed()))
    audited(client, own_defense=own)
    assert {"model", "variables", "x", "y", "mode", "round"} <= read.keys()


@pytest.fixture
def command(client, tmp_path, monkeypatch):
    """The words of a `jaxleak audit` command on files, in a folder with `mine.py`."""
    _, variables, sent = client
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    models.save_weights(tmp_path / "w.safetensors", variables)
    capture.save(tmp_path / "u.safetensors", sent, batch_size=3)
    model = ["--model", "mlp", "--option", "widths=(16, 8)", "--image", "4", "4", "1"]
    options = ["--weights", "w.safetensors", "--minutes", "1e-4", "--out", "out"]
    return ["audit", *model, *options, "--update", "u.safetensors"]


def test_the_command_takes_a_function_of_a_file(command, tmp_path):
    main([*command, "--defense", "mine.py:noise", "--strength", "0.001"])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["headline"] == "leaks labels"
    assert "the defense (mine.py:noise) and its strength" in results["threat"]
    assert results["provenance"]["defense"].startswith("mine.py (SHA-256 ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--defense", "mine.py:noise"], "--strength must be given: mine.py:noise makes a defense from it"),
        (["--defense", "not.py:noise", "--strength", "1"], "defense: no such file"),
        (["--defense", "mine.py:no", "--strength", "1"], "--defense: mine.py has no 'no'; it has noise"),
    ],
)
def test_the_command_names_what_is_wrong_with_a_defense_of_a_file(command, tmp_path, capsys, options, message):
    assert main([*command, *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_code_runs_that_an_updates_file_names(command, tmp_path, capsys):
    arrays = capture.load(tmp_path / "u.safetensors").arrays
    capture.save(tmp_path / "u.safetensors", arrays, batch_size=3, defense="mine.py:noise", strength=1e-3)
    assert main(command) == 1
    assert not (tmp_path / "ran").exists()
    said = capsys.readouterr().err
    assert "a name that is only stated runs no code: give the command --defense mine.py:noise --strength S" in said


def test_an_update_that_names_a_function_of_a_file_is_audited_where_the_command_names_it_too(command, client):
    capture.save("u.safetensors", client[2], batch_size=3, defense="mine.py:noise", strength=1e-3)
    assert capture.load("u.safetensors").facts.defense == "mine.py:noise"
    assert main([*command, "--defense", "mine.py:noise", "--strength", "0.001"]) == 0
