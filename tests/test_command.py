"""The command `jaxleak audit`, from files to a report."""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from PIL import Image

from jaxleak import Batch, audit, capture, models, protocols
from jaxleak.__main__ import main
from jaxleak._command.models import model_of
from jaxleak.audit import Answer, Finding, Verdict
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.models import CLASSIFIERS
from jaxleak.study import read_weights


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Weights, update and truth of a perceptron on one image."""
    folder = tmp_path_factory.mktemp("audited")
    model = models.mlp((4, 4, 1), 10, widths=(16, 8))
    variables = reference.drawn(model)
    x = reference.uniform(1, 1, 4, 4, 1, seed=1)
    batch = Batch(x, jnp.array([3], jnp.int32), jnp.zeros(1, jnp.int32))
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    models.save_weights(folder / "w.safetensors", variables)
    capture.save(folder / "u.safetensors", gradient, batch_size=1)
    np.savez(folder / "truth.npz", x=x[:, 0], y=batch.y)
    model_options = ["--model", "mlp", "--option", "widths=(16, 8)", "--image", "4", "4", "1"]
    common = ["audit", *model_options, "--weights", str(folder / "w.safetensors")]
    return folder, [*common, "--update", str(folder / "u.safetensors"), "--out"]


def test_a_verdict_and_a_report_come_out(files, tmp_path, capsys):
    folder, command = files
    assert main([*command, str(tmp_path / "run"), "--truth", str(folder / "truth.npz")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["metrics"]["verdict"] == "leaks"
    assert results["metrics"]["psnr"] > 60
    assert 0 < results["provenance"]["seconds"] < 600
    assert "LEAKS" in capsys.readouterr().out
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count("data:image/png;base64,") == 2
    assert "<h1>Leaks images and labels</h1>" in report
    assert results["headline"] == "leaks images and labels"
    assert (results["config"]["samples"], results["config"]["defense"]) == (1, None)
    assert len(results["config"]["weights"]) == 64
    assert "http" not in report  # the report opens offline
    with np.load(tmp_path / "run" / "reconstruction.npz") as found:
        assert found["x"].shape == (1, 4, 4, 1)
    again = [*command, str(tmp_path / "run"), "--truth", str(folder / "truth.npz"), "--fail-on-leak"]
    assert main(again) == 5  # the same audit, already finished


def test_a_seed_that_would_be_another_one_is_refused(files, tmp_path, capsys):
    _, command = files
    assert main([*command, str(tmp_path / "out"), "--seed", str(2**32)]) == 1
    assert "seed must be whole numbers in [0, 2^32), got 4294967296" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_of_what_is_not_certified_says_so(tmp_path):
    x, labels = np.zeros((1, 4, 4, 1)), np.eye(10, dtype=int)[3]
    far = Answer(
        "fedleak_400", x, np.zeros(1, int), 0.9, 0.3, agreement=np.array([0.87]), iterations=50, finished=False
    )
    finding = Finding("batch", "suspicious", "Evidence <1>.", "a cause", ("--batch-norm eval",))
    notes = ("kinks that are not smoothed: 1 x sort",)
    verdict = Verdict("leaks", (), (finding,), (far,), far, labels, "", {"verdict": "leaks"}, notes=notes)
    text = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
    assert "<h1>Leaks labels</h1>" in text
    assert "which the budget ended" in text
    assert "only the truth can say whether they are right" in text
    assert "0.87" not in text  # the agreement of starts that match another gradient
    assert notes[0] in text
    assert '<span class="option">--batch-norm</span> eval' in text  # no line break inside the option
    assert "Evidence &lt;1&gt;." in text


def test_a_report_shows_rows_of_tables_as_numbers_and_pictures_with_their_transparency(tmp_path):
    labels = np.eye(3, dtype=int)[1]
    for shape, image in (((1, 1, 3), False), ((2, 2, 4), True), ((2, 2, 2), False), ((2, 2, 1), True)):
        x = np.linspace(0.25, 1, int(np.prod(shape))).reshape(1, *shape)
        found = Answer("spear", x, np.ones(1, int), 0.0, 0.0, solved=True)
        verdict = Verdict("leaks", (), (), (found,), found, labels, "", {"verdict": "leaks"}, truth=x)
        text = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
        assert (text.count("data:image/png"), text.count("0.25")) == ((2, 0) if image else (0, 2)), shape


def test_inconsistent_inputs_end_with_their_own_status(files, tmp_path):
    _, command = files
    (tmp_path / "reconstruction.npz").write_bytes(b"of another audit")
    assert main([*command, str(tmp_path), "--kind", "difference", "--learning-rate", "0.1", "--fail-on-leak"]) == 3
    assert json.loads((tmp_path / "results.json").read_text())["metrics"]["verdict"] == "inputs inconsistent"
    assert "Likeliest cause" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "reconstruction.npz").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--model", "nosuch"], "--model must be FILE.py:NAME or one of"),
        (["--model", "nosuch.py:Net"], "no such file"),
        (["--weights", "nosuch"], "nosuch does not exist"),
        (["--image", "5", "5", "1"], r"must have shape"),
        (["--batch-size", "0"], "batch_size must be > 0"),
        (["--minutes", "-1"], "minutes must be > 0"),
        (["--minutes", "nan"], "minutes must be > 0"),
        (["--minutes", "inf"], "minutes must be finite"),
        (["--strength", "0.1"], "strength must be given with the defense"),
        (["--defense", "gaussian"], "strength of gaussian must be given: its standard deviation"),
        (["--defense", "nosuch", "--strength", "1"], "defense must be one that an attacker can know"),
        (["--classes", "7"], "must have shape"),
        (["--classes", "0"], "num_classes must be"),
        (["--local-steps", "0"], "local_steps must be > 0"),
        (["--local-steps", "3"], "learning_rate must be given: a client of several steps moves its weights by it"),
        (["--mean", "0.5", "0.5", "--std", "1"], "mean and std must have one entry for each of 1 channels"),
    ],
)
def test_unusable_inputs_are_named(files, tmp_path, capsys, change, message):
    _, command = files
    assert main([*command, str(tmp_path), *change]) == 1
    assert message in capsys.readouterr().err


#: Contents, by name, that a user may give in place of a tensor file.
HOSTILE = {
    "empty": b"",
    "text": b"no tensors",
    "truncated": b"\x40\x01\0\0\0\0\0\0{",
    "header of 2^60 bytes": struct.pack("<Q", 2**60) + b"{}",
    "pickle": b"\x80\x04cos\nsystem\n(S'touch opened'\ntR.",
}


@pytest.mark.parametrize("option", ["--weights", "--update"])
@pytest.mark.parametrize("content", HOSTILE)
def test_files_without_tensors_are_refused_and_nothing_is_left(files, tmp_path, monkeypatch, capsys, option, content):
    if content == "pickle":  # only PyTorch could read a pickle
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.pt").write_bytes(HOSTILE[content])
    assert main([*files[1], str(tmp_path / "out"), option, "hostile.pt"]) == 1
    error = capsys.readouterr().err
    assert "hostile.pt cannot be read as safetensors, npz or PyTorch tensors" in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.pt"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "--out must name a folder of its own"),
        ("file", "--out file is a file"),
        ("file/out", "cannot write file/out"),
    ],
)
def test_a_folder_that_cannot_be_is_refused(files, tmp_path, monkeypatch, capsys, out, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert main([*files[1], out]) == 1
    assert message in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("option", ["--weights", "--update", "--truth"])
def test_what_is_no_file_is_not_waited_for(files, tmp_path, capsys, option):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "loop", "."):
        assert main([*files[1], str(tmp_path / "out"), option, str(tmp_path / name)]) == 1
        assert f"{option} {tmp_path / name} does not exist or is not a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4, 4, 1)), "y": [3, 1]}, r"images of shape \(1, 4, 4, 1\), got \(2, 4, 4, 1\)"),
        ({"x": np.zeros((1, 5, 4, 1)), "y": [3]}, r"images of shape \(1, 4, 4, 1\), got \(1, 5, 4, 1\)"),
        ({"x": np.full((1, 4, 4, 1), np.nan), "y": [3]}, r"images in \[0, 1\], got nan"),
        ({"x": np.full((1, 4, 4, 1), 255.0), "y": [3]}, r"images in \[0, 1\], got 255"),
        ({"x": np.zeros((1, 4, 4, 1)), "y": [10]}, r"labels in \[0, 10\), got \[10\]"),
        ({"images": np.zeros((1, 4, 4, 1))}, "must be an npz file with x and y"),
        ({"x": np.array([{}], object), "y": [3]}, "Object arrays cannot be loaded"),
    ],
)
def test_a_truth_that_cannot_be_that_of_the_update_is_refused(files, tmp_path, capsys, arrays, message):
    np.savez(tmp_path / "truth.npz", **arrays)
    assert main([*files[1], str(tmp_path / "out"), "--truth", str(tmp_path / "truth.npz")]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", r"net.py cannot be imported: SyntaxError: invalid syntax"),
        ("\n1 / 0\n", r"net.py cannot be imported: ZeroDivisionError: division by zero \(line 2\)"),
        ("import nosuchmodule\n", r"ModuleNotFoundError: No module named 'nosuchmodule' \(line 1\)"),
        ("import os\nclass Other: pass\n", r"net.py has no 'Net'; it has Other$"),
        ("Net = 7\n", "must be a jaxleak Classifier or a module of PyTorch, Flax or Equinox, got int"),
        ("def Net(width, depth=2): pass\n", r"Net needs arguments \(width\): write a function without any that makes"),
        ("def Net():\n    return 1 / 0\n", r"Net cannot be made: ZeroDivisionError: division by zero \(line 2\)$"),
        (
            "from jaxleak import models\nNet = models.mlp((4, 4, 1), 10, widths=(8,)), 0\n",
            "--option is for built-in models",
        ),
    ],
)
def test_a_models_file_that_is_of_no_use_is_refused_in_a_line(files, tmp_path, capsys, text, message, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    (tmp_path / "net.py").write_text(text)
    assert main([*files[1], str(tmp_path / "out"), "--model", f"{tmp_path / 'net.py'}:Net"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_checkpoints_of_another_configuration_end_with_one_line(files, monkeypatch, capsys):
    def refuse(_):
        raise ConfigMismatchError("made of other arrays")

    monkeypatch.setattr("jaxleak._command.audit.audit", refuse)
    assert main([*files[1], "out"]) == 1
    assert capsys.readouterr().err == "error: made of other arrays\n"


def test_a_models_names_and_shapes_are_printed(tmp_path, capsys):
    file = tmp_path / "net.py"
    file.write_text("from jaxleak import models\ndef net():\n    return models.mlp((4, 4, 1), 10, widths=(3,))\n")
    assert main(["models", "--model", f"{file}:net"]) == 0
    assert "params/dense_0/kernel  (16, 3)" in capsys.readouterr().out
    assert main(["models", "--model", f"{file}:other"]) == 1
    assert "has no 'other'" in capsys.readouterr().err


def test_a_model_ends_with_its_input_and_its_number_of_parameters(capsys):
    assert main(["models", "--model", "mlp", "--image", "4", "5", "1", "--option", "widths=(3,)"]) == 0
    weights, biases = 4 * 5 * 3 + 3 * 10, 3 + 10
    ending = f"\n\ninput       4 x 5 x 1, pixels in [0, 1]\nparameters  {weights + biases}\n"
    ending += "head        head\n"
    assert capsys.readouterr().out.endswith(ending)


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [({"mean": (0.3, 0.4)}, (0.3, 0.4), (1, 1)), ({"std": (0.2, 0.3)}, (0, 0), (0.2, 0.3)), ({}, (), ())],
)
def test_what_is_not_said_of_the_normalisation_changes_nothing(given, mean, std):
    said = {"model": "mlp", "image": (3, 3, 2), "classes": 4, "option": (), "mean": None, "std": None} | given
    model = model_of(argparse.Namespace(head=None, layout=None, dropout=None, **said))
    assert (model.mean, model.std) == (pytest.approx(mean), pytest.approx(std))


def test_without_a_name_all_built_in_models_are_listed_with_a_whole_sentence_each(capsys):
    assert main(["models"]) == 0
    listed = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed if not line.startswith(" ")] == list(CLASSIFIERS)
    assert all(len(line.split()) > 1 for line in listed)
    assert not any("..." in line or "*" in line for line in listed)


@pytest.mark.slow
def test_a_reader_who_goes_away_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxleak", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()  # as `jaxleak models | head -1` does after the first line
    assert (process.stderr.read(), process.wait()) == ("", 0)


def test_a_module_that_does_not_fit_the_image_or_the_classes_names_both_options(tmp_path, capsys):
    file = tmp_path / "linear_net.py"
    file.write_text(
        "from flax import nnx\n\n\nclass Net(nnx.Module):\n    def __init__(self):\n"
        "        self.head = nnx.Linear(48, 10, rngs=nnx.Rngs(0))\n\n"
        "    def __call__(self, x):\n        return self.head(x.reshape(len(x), -1))\n"
    )
    fits = ["models", "--model", f"{file}:Net", "--image", "4", "4", "3"]
    assert main(fits) == 0
    assert main([*fits, "--classes", "7"]) == 1
    assert "it was given images of 4 x 4 x 3 and 7 classes" in capsys.readouterr().err


#: Networks in other libraries, as users write them; each factory has no arguments.
NETWORKS = """
import equinox as eqx, flax.linen as nn, jax
from flax import nnx


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3))(x))
        return nn.Dense(10, name="last")(x.mean((1, 2)))


class Normed(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        self.conv, self.norm = eqx.nn.Conv2d(3, 4, 3, key=key), eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.last = eqx.nn.Linear(4, 10, key=key)

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        return self.last(x.mean((1, 2))), state


def equinox():
    return eqx.nn.make_with_state(Normed)(jax.random.key(0))


class Dropped(nnx.Module):
    def __init__(self):
        self.drop, self.last = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Linear(48, 10, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.last(self.drop(x.reshape(len(x), -1)))


class Sorted(nnx.Module):
    def __init__(self):
        self.last = nnx.Linear(48, 10, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.last(jax.numpy.sort(x.reshape(len(x), -1), axis=1))


class Needs(nnx.Module):
    def __init__(self, width, *, rngs):
        self.last = nnx.Linear(width, 10, rngs=rngs)


class Twice(nnx.Module):
    def __init__(self):
        self.first, self.last = (nnx.Linear(n, 10, rngs=nnx.Rngs(0)) for n in (48, 10))

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x.reshape(len(x), -1))))
"""


def _shown(tmp_path, capsys, name, *options):
    """Run `jaxleak models` on one of the `NETWORKS`; returns exit status, output and errors."""
    (tmp_path / "networks.py").write_text(NETWORKS)
    model = ["models", "--model", f"{tmp_path / 'networks.py'}:{name}", "--image", "4", "4", "3"]
    status = main([*model, *options])
    return (status, *capsys.readouterr())


def test_linen_modules_and_equinox_modules_with_a_state_are_taken(tmp_path, capsys):
    status, out, _ = _shown(tmp_path, capsys, "Linen")
    assert status == 0
    assert re.search(r"params/last/kernel +\(4, 10\)", out)
    assert "batch_stats/BatchNorm_0/mean" in out
    status, out, _ = _shown(tmp_path, capsys, "equinox")
    assert status == 0
    assert re.search(r"params/conv/weight +\(4, 3, 3, 3\)", out)
    assert "batch_stats/" in out


@pytest.mark.parametrize("name", ["Sorted", "equinox"])
def test_weights_of_jaxs_libraries_are_written_and_read_by_the_names_of_a_door(tmp_path, name):
    (tmp_path / "networks.py").write_text(NETWORKS)
    scope = {}
    exec(NETWORKS, scope)
    found = scope[name]()
    door = models.from_equinox if name == "equinox" else models.from_flax
    model, variables = door(*(found if name == "equinox" else (found,)), image_shape=(4, 4, 3))
    models.save_weights(tmp_path / "w.safetensors", variables)
    read = read_weights(tmp_path / "w.safetensors", model)
    assert jax.tree.structure(read) == jax.tree.structure(variables)
    for a, b in zip(*map(jax.tree.leaves, (read, variables)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_an_attack_has_to_take_as_it_is_is_printed(tmp_path, capsys):
    assert "note: kinks that are not smoothed: 1 x sort" in _shown(tmp_path, capsys, "Sorted")[1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Dropped", (), "dropout with rate 0.5"),
        ("Dropped", ("--dropout", "off"), "dropout off is for PyTorch alone"),
        ("Needs", (), "Needs needs arguments (width, rngs): write a function without any that makes the network"),
        ("Twice", ("--head", "nosuch"), "head must be a dense layer with 10 outputs (last, first), got 'nosuch'"),
    ],
)
def test_what_has_nothing_to_do_with_shapes_gets_no_hint_at_them(tmp_path, capsys, name, options, message):
    status, _, error = _shown(tmp_path, capsys, name, *options)
    assert status == 1
    assert message in error
    assert "classes" not in error


@pytest.mark.parametrize(("image", "said"), [(("5", "4", "3"), "images of 5 x 4 x 3 and 10 classes"), ((), None)])
def test_another_image_is_named_in_one_line(tmp_path, capsys, image, said):
    status, _, error = _shown(tmp_path, capsys, "Twice", *(["--image", *image] if image else []))
    assert status == (1 if said else 0)
    assert (said or "") in error
    assert len(error.splitlines()) == status


@pytest.mark.parametrize("option", [["--head", "head"], ["--layout", "NCHW"], ["--dropout", "off"]])
def test_options_of_modules_are_refused_for_built_in_models(capsys, option):
    assert main(["models", "--model", "lenet", *option]) == 1
    assert f"{option[0]} is for modules of other libraries" in capsys.readouterr().err


def test_a_model_finds_its_neighbours_before_installed_modules_of_their_name(tmp_path, capsys, monkeypatch):
    """Imports resolve as when the user runs the file: `tabnanny` is also a module of Python's library."""
    (tmp_path / "tabnanny.py").write_text("WIDTH = 7\n")
    text = "from tabnanny import WIDTH\nfrom jaxleak import models\n\n"
    text += "def net():\n    return models.mlp((4, 4, 1), 3, widths=(WIDTH,))\n"
    (tmp_path / "beside.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    assert main(["models", "--model", f"{tmp_path / 'beside.py'}:net", "--image", "4", "4", "1", "--classes", "3"]) == 0
    assert "(16, 7)" in capsys.readouterr().out
    del sys.modules["tabnanny"], sys.modules["beside"]


def test_help_imports_nothing_heavy():
    program = "import sys, jaxleak.__main__ as m\nbefore = set(sys.modules)\n"
    program += "try:\n    m.main(['audit', '--help'])\nexcept SystemExit:\n    pass\n"
    program += "assert not {'flax', 'optax', 'jaxleak.attacks'} & (set(sys.modules) - before)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_report(files, tmp_path, scheme):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    folder, command = files
    assert main([*command, str(tmp_path), "--truth", str(folder / "truth.npz")]) == 0
    page = tmp_path / "page.html"
    text = (tmp_path / "report.html").read_text()
    page.write_text(text.replace("(prefers-color-scheme: dark)", "all" if scheme == "dark" else "not all"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,1200"]
    subprocess.run(
        [browser, *options, f"--screenshot={tmp_path / 'page.png'}", page.as_uri()], check=True, capture_output=True
    )
    with Image.open(tmp_path / "page.png") as shown:
        pixels = np.asarray(shown.convert("L"), np.float64)
    assert (np.median(pixels) < 60) == (scheme == "dark")  # the page's background
    assert pixels.std() > 10  # something is written on it


@pytest.mark.slow
def test_an_audit_that_was_killed_goes_on_and_ends_with_the_same_images(tmp_path):
    model = models.convnet((6, 6, 1), 10, channels=(4, 4), strides=(1, 1))
    variables = reference.drawn(model)
    x = reference.uniform(2, 1, 6, 6, 1, seed=1)
    gradient = jax.jit(protocols.ClientShare(model))(variables, Batch(x, jnp.array([3, 5]), jnp.arange(2)))
    models.save_weights(tmp_path / "w.safetensors", variables)
    capture.save(tmp_path / "u.safetensors", gradient, batch_size=2)
    options = {"model": "convnet", "weights": tmp_path / "w.safetensors", "update": tmp_path / "u.safetensors"}
    command = [sys.executable, "-m", "jaxleak", "audit", "--image", "6", "6", "1", "--minutes", "10"]
    command += ["--option", "channels=(4, 4)", "--option", "strides=(1, 1)"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))] + ["--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    with subprocess.Popen([*command, str(tmp_path / "killed")], stderr=subprocess.PIPE, text=True) as run:
        first = next(line for line in run.stderr if "FedLeak, 400 iterations: 50/400" in line)
        while not list((tmp_path / "killed" / "checkpoints").glob("*/steps/50")):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
    done = subprocess.run([*command, str(tmp_path / "killed")], check=True, capture_output=True, text=True)
    assert first.startswith("FedLeak, 400 iterations: 50/400, ...")
    assert " 50/400" not in done.stderr  # iterations of the killed run are not repeated
    whole, resumed = (np.load(tmp_path / name / "reconstruction.npz")["x"] for name in ("whole", "killed"))
    np.testing.assert_array_equal(whole, resumed)
