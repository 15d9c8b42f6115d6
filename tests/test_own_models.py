"""Studies of a user's network, `--model FILE.py:NAME`: its weights, and changed networks that are refused."""

import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxleak import data, models, protocols
from jaxleak._base import Batch
from jaxleak._configuration import fingerprint
from jaxleak.attacks import adaptive
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.models._classifier import digest_of
from jaxleak.study import RunFolder, read_weights
from jaxleak.study.updates import (
    Case,
    Federation,
    Inversion,
    Inversions,
    Utilities,
    _own_model,
    about_model,
    attack,
    build_model,
    check,
    observe,
    utility_of,
    victim,
)
from jaxleak.study.updates._sources import sources_of_client

NETWORKS = """
import flax.linen as nn
import jax
import numpy as np
from flax import nnx


class Net(nnx.Module):
    def __init__(self):
        self.last = nnx.Linear(64, 10, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.last(x.reshape(len(x), -1))


class Drawn(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="last")(x.reshape(len(x), -1))


def unseeded():
    net = Net()
    net.last.kernel[...] = jax.numpy.asarray(np.random.default_rng().random((64, 10)), "float32")
    return net
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "somebodys_networks.py"
    path.write_text(NETWORKS)
    return path


def _case(file, name="Net", **options):
    return Case(model=f"{file}:{name}", data="digits", pool=8, batch_size=2, **options)


def _weights(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_weights_are_those_of_the_file_or_drawn_by_the_key(file):
    of_seeds = [_weights(build_model(_case(file), (8, 8, 1), 10).init(jax.random.key(seed))) for seed in (0, 1)]
    np.testing.assert_array_equal(*of_seeds)
    drawn = [_weights(build_model(_case(file, "Drawn"), (8, 8, 1), 10).init(jax.random.key(seed))) for seed in (0, 1)]
    assert abs(drawn[0] - drawn[1]).max() > 0.01


def test_a_client_trains_the_network_of_the_file_with_the_weights_of_any_library(file, tmp_path):
    kernel = np.random.default_rng(5).normal(size=(64, 10)).astype(np.float32)
    np.savez(tmp_path / "w.npz", **{"last.kernel": kernel, "last.bias": np.zeros(10, np.float32)})
    case = _case(file, weights=tmp_path / "w.npz")
    seen, truth = observe(case, 0, victim(case, 0))
    pixels, label = np.asarray(truth.x).reshape(2, 64), np.asarray(truth.y)
    logits = pixels @ kernel
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = pixels.T @ (softmax - np.eye(10)[label]) / 2
    np.testing.assert_allclose(seen.payload["last"]["kernel"], expected, atol=1e-5)


def test_a_federation_begins_with_the_weights_that_are_given(file, tmp_path):
    model = build_model(_case(file), (8, 8, 1), 10)
    weights = jax.tree.map(lambda leaf: leaf + 1, model.init(jax.random.key(0)))
    models.save_weights(tmp_path / "w.safetensors", weights)
    federation = Federation(rounds=1, learning_rate=1e-6, clients=2, samples=8, batch_size=2, test_samples=4)
    case = _case(file, weights=tmp_path / "w.safetensors", attacked_round=1)
    reached = Utilities(federation, tmp_path).variables(utility_of(case), 0)
    np.testing.assert_allclose(_weights(reached), _weights(weights), atol=1e-4)


def test_trainings_of_other_weights_or_another_normalisation_are_others(file, tmp_path):
    same = utility_of(_case(file))
    assert utility_of(_case(file, iterations=7)) == same
    assert utility_of(_case(file, weights=tmp_path / "w.npz")) != same
    assert utility_of(_case(file, mean=(0.5,), std=(0.2,))) != same


@pytest.mark.parametrize("name", ["Net", "unseeded"])
def test_results_of_a_network_that_has_changed_since_are_refused(file, tmp_path, name):
    folder = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    folder.sources.bind(sources_of_client(_case(file, name)))
    folder.sources.begin()
    if name == "Net":
        file.write_text(NETWORKS + "# another line\n")
    again = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    _own_model._loaded.cache_clear()  # as in another process
    changed = "the file of the network" if name == "Net" else "what .*unseeded computes"
    with pytest.raises(ConfigMismatchError, match=f"results on other contents of {changed}"):
        again.sources.check(sources_of_client(_case(file, name)))


def test_an_edited_file_is_read_again(file):
    before = build_model(_case(file), (8, 8, 1), 10)
    assert build_model(_case(file), (8, 8, 1), 10) is before
    file.write_text(NETWORKS.replace("Rngs(0)", "Rngs(7)"))
    after = build_model(_case(file), (8, 8, 1), 10)
    assert abs(_weights(after.init(None)) - _weights(before.init(None))).max() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 4}, r"width is for built-in networks, and model is .*: set it in that file"),
        ({"activation": "sigmoid"}, "activation is for built-in networks"),
        ({"init": "wide_uniform"}, "init is for built-in networks"),
    ],
)
def test_options_of_built_in_networks_are_refused(file, options, message):
    check(_case(file))
    with pytest.raises(ValueError, match=message):
        check(_case(file, **options))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model: no such file: .*nets\.py"):
        check(_case(tmp_path / "nets.py"))


def test_an_unknown_name_says_how_ones_own_is_given():
    with pytest.raises(ValueError, match=r"model must be FILE\.py:NAME of your own or one of lenet, .*, got 'alexnet'"):
        check(Case(model="alexnet"))


def test_from_file_gives_the_network_as_its_door_does(file):
    model = models.from_file(f"{file}:Net", image_shape=(8, 8, 1), num_classes=10)
    scope = {}
    exec(NETWORKS, scope)
    plain, variables = models.from_flax(scope["Net"](), image_shape=(8, 8, 1), num_classes=10)
    digits = data.load("digits", 2)
    batch = Batch(digits.x[:, None], digits.y, np.arange(2))
    own, other = (protocols.ClientShare(m)(variables, batch) for m in (model, plain))
    np.testing.assert_array_equal(_weights(own), _weights(other))


@pytest.mark.parametrize("changed", [False, True])
def test_weights_with_another_constant_than_the_networks_are_refused(file, tmp_path, changed):
    scale = np.arange(3, dtype=np.float32)
    model = build_model(_case(file), (8, 8, 1), 10)._replace(constants=(("norm.scale", digest_of(scale)),))
    kernel, bias = np.zeros((64, 10), np.float32), np.zeros(10, np.float32)
    held = {"module.last.kernel": kernel, "module.last.bias": bias, "module.norm.scale": scale + changed}
    np.savez(tmp_path / "w.npz", **held)
    if not changed:
        np.testing.assert_array_equal(_weights(read_weights(tmp_path / "w.npz", model)), 0)
        return
    with pytest.raises(ValueError, match=r"norm\.scale is a constant of the network, and not the one that the module"):
        read_weights(tmp_path / "w.npz", model)


TRIED = """
import flax.linen as nn
import jax
import jax.numpy as jnp


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
        return self.ends(nn.Dense(10, name="last")(self.begins(x).reshape(len(x), -1)))

    def begins(self, x):
        return x

    def ends(self, z):
        return z


class Hot(Plain):
    def ends(self, z):
        return 16 * z


class LogSoftmax(Plain):
    def ends(self, z):
        return jax.nn.log_softmax(z)


class Softmax(Plain):
    def ends(self, z):
        return jax.nn.softmax(z)


class Sigmoids(Plain):
    def ends(self, z):
        return jax.nn.sigmoid(z)


class Mixing(Plain):
    def begins(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1)


class Flagged(nn.Module):
    @nn.compact
    def __call__(self, x, learning=False):
        x = nn.BatchNorm(use_running_average=not learning)(x.reshape(len(x), -1))
        return nn.Dense(10, name="last")(x)
"""


def test_what_a_network_does_is_found_by_trying_it(file):
    file.write_text(TRIED)
    plain, hot, mixing = (build_model(_case(file, name), (8, 8, 1), 10) for name in ("Plain", "Hot", "Mixing"))
    assert (plain.head, plain.by_batch, plain.notes) == ("last", (), ())
    assert build_model(_case(file, "LogSoftmax"), (8, 8, 1), 10).head == "last"  # equal for every softmax
    assert hot.head == ""
    assert any("something follows its last dense layer" in note for note in hot.notes)
    sigmoids = build_model(_case(file, "Sigmoids"), (8, 8, 1), 10)
    assert len([note for note in sigmoids.notes if "sigmoids" in note]) == 1
    assert not any("between 0 and 1" in note for note in hot.notes)
    assert all(mixing.mixes_images(mode) for mode in ("train", "eval"))
    assert not any(plain.mixes_images(mode) for mode in ("train", "eval"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Softmax", "outputs are probabilities: take the softmax off"),
        ("Flagged", r"keeps running statistics and does not"),
    ],
)
def test_networks_that_would_be_trained_otherwise_than_their_owner_does_are_refused(file, name, message):
    file.write_text(TRIED)
    with pytest.raises(ValueError, match=message):
        build_model(_case(file, name), (8, 8, 1), 10)
    if name == "Flagged":
        assert build_model(_case(file, name, batch_norm="eval"), (8, 8, 1), 10).head == "last"


def test_an_attack_that_cannot_be_built_is_refused_before_anything_is_trained(file, tmp_path):
    file.write_text(TRIED)
    jobs = Inversions(RunFolder(tmp_path / "run", "defenses", {}, fresh=False), fresh=False)
    jobs.require(Inversion(_case(file, "Plain", activation_penalty=0.0)), 0)
    with pytest.raises(
        ValueError,
        match=r"known \(something follows .*\); .* or say --labels given \(granted\) or joint",
    ):
        jobs.require(Inversion(_case(file, "Hot", activation_penalty=0.0)), 0)
    with pytest.raises(ValueError, match="row_space needs a layer") as refused:  # no labels would help
        jobs.require(Inversion(_case(file, "Plain", attack="row_space")), 0)
    assert "--labels" not in str(refused.value)
    jobs.require(Inversion(_case(file, "Hot", activation_penalty=0.0, labels="joint")), 0)


def test_a_report_says_which_weights_are_the_same_and_what_is_found(file):
    file.write_text(NETWORKS + TRIED.replace("import flax.linen as nn", ""))
    same = "The weights before training are the same for every seed."
    assert about_model(_case(file)) == [same]
    assert about_model(_case(file, "Drawn")) == []
    assert "Of the network: something follows its last dense layer" in about_model(_case(file, "Hot"))[0]
    assert about_model(Case()) == []


def test_an_imported_module_that_has_changed_since_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = NETWORKS.replace("return self.last(x.", "return self.last(SCALE * x.").replace("class Net", HELPER)
    (tmp_path / "nets.py").write_text(text)
    kept = []
    for scale in (1, 20):  # of different length, since Python caches bytecode by length and second
        (tmp_path / "its_helper.py").write_text(f"SCALE = {float(scale)}\n")
        sys.modules.pop("its_helper", None)
        _own_model._loaded.cache_clear()  # as in another process
        kept.append(
            {name: fingerprint(load()) for name, load in sources_of_client(_case(tmp_path / "nets.py")).items()}
        )
    changed = [name for name in kept[0] if kept[0][name] != kept[1][name]]
    assert changed == [f"what {tmp_path / 'nets.py'}:Net computes"]


HELPER = "from its_helper import SCALE\n\n\nclass Net"


@pytest.mark.parametrize("given", ["by a file", pytest.param("by whoever calls", marks=pytest.mark.slow)])
def test_whoever_knows_noise_that_follows_the_weights_knows_the_weights_attacked(file, tmp_path, monkeypatch, given):
    class KnownError(Exception):
        """Raised to end the attack after it has shown its knowledge."""

    def informed(*_, variables, **__):
        raise KnownError(variables)

    monkeypatch.setattr(adaptive, "informed", informed)
    case = _case(file) if given == "by a file" else Case(model="mlp", data="digits", pool=8, batch_size=2)
    options = {"defense": "outpost", "strength": 0.5, "adaptive": True, "iterations": 1, "activation_penalty": 0.0}
    case = replace(case, **options)
    weights = jax.tree.map(lambda leaf: leaf * 3, build_model(case, (8, 8, 1), 10).init(jax.random.key(0)))
    models.save_weights(tmp_path / "w.safetensors", weights)
    by_file = given == "by a file"
    case = replace(case, weights=tmp_path / "w.safetensors" if by_file else None)
    with pytest.raises(KnownError) as known:
        attack(case, 0, variables=None if by_file else weights)
    np.testing.assert_array_equal(_weights(known.value.args[0]), _weights(weights))


def test_an_upload_of_a_later_round_is_of_the_weights_that_training_gave(file, tmp_path):
    model = build_model(_case(file), (8, 8, 1), 10)
    start, later = (jax.tree.map(lambda leaf, c=c: leaf + c, model.init(jax.random.key(0))) for c in (1, 2))
    models.save_weights(tmp_path / "w.safetensors", start)
    case = _case(file, weights=tmp_path / "w.safetensors", attacked_round=1)
    seen, _ = observe(case, 0, victim(case, 0, later))
    np.testing.assert_array_equal(_weights(seen.params), _weights(later))


def test_variables_beside_a_classifier_are_its_weights_and_its_sizes_must_be_those_of_the_data(file):
    file.write_text(
        "import jax\nfrom jaxleak import models\nmodel = models.mlp((8, 8, 1), 10, widths=(4,))\n"
        "pair = model, jax.tree.map(lambda leaf: leaf + 7, model.init(jax.random.key(0)))\n"
    )
    pair = build_model(_case(file, "pair"), (8, 8, 1), 10)
    model = build_model(_case(file, "model"), (8, 8, 1), 10)
    given, drawn = (_weights(m.init(jax.random.key(0))) for m in (pair, model))
    np.testing.assert_allclose(given, drawn + 7, atol=1e-5)
    with pytest.raises(ValueError, match=r"reads images \(8, 8, 1\) of 10 classes, and the data have \(8, 8, 3\)"):
        build_model(_case(file, "model"), (8, 8, 3), 10)
