"""`experiments.invert` on a gradient from a file, here a file that the command itself saved."""

import contextlib
import io
import json
import shlex
from dataclasses import replace

import jax
import numpy as np
import pytest
import tyro

from experiments import invert
from jaxleak import capture, models
from jaxleak._command.invert import captured
from jaxleak._command.invert.options import HELP
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import Progress, plots
from jaxleak.study.updates import Case


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Options of an attack on a saved gradient of one digit, and the model's weights."""
    folder = tmp_path_factory.mktemp("captured")
    model = models.build("mlp", (8, 8, 1), 10)
    models.save_weights(folder / "weights.safetensors", model.init(jax.random.key(0)))
    case = Case(data="digits", model="mlp", pool=8, iterations=3, weights=folder / "weights.safetensors")
    payload = folder / "payload.npz"
    invert.main(invert.Args(case=case, save_payload=payload, out=folder / "client"))
    return {"case": case, "payload": payload, "image_shape": (8, 8, 1), "num_classes": 10}


@pytest.fixture(scope="module")
def attacked(arguments, tmp_path_factory):
    """One attack on a saved gradient: folder, scores, printed text, updates of the progress bar, and drawn curves."""
    folder, shown, drawn = tmp_path_factory.mktemp("attacked"), [], {}
    update, curves = Progress.update, plots.curves

    def told(bar, *said):
        shown.append(said)
        update(bar, *said)

    def kept(path, series, **how):
        drawn[path.name] = series, how
        return curves(path, series, **how)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(Progress, "update", told)
        patch.setattr(plots, "curves", kept)
        scores = invert.main(invert.Args(**arguments, out=folder))
    return folder, scores, printed.getvalue(), shown, drawn


def test_a_file_of_capture_is_taken_as_well_and_must_be_of_the_stated_client(arguments, tmp_path):
    model = models.build("mlp", (8, 8, 1), 10)
    params = models.load_weights(arguments["case"].weights, model.init(jax.random.key(0)))["params"]
    gradient = captured.load_payload(arguments["payload"], params)
    after = jax.tree.map(lambda before, g: before - 0.25 * g, params, gradient)
    sent = tmp_path / "update.safetensors"
    capture.save(sent, after, kind="weights", learning_rate=0.25, batch_size=1)
    found = captured.load_payload(sent, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, gradient)
    case = replace(arguments["case"], learning_rate=0.25)
    jax.tree.map(np.testing.assert_array_equal, captured.load_payload(sent, params, case=case), found)
    for wrong, message in (
        ({"batch_size": 2, "learning_rate": 0.5}, "--batch-size 1 --learning-rate 0.25; got 2, 0.5"),
        ({"learning_rate": 0.5}, "--learning-rate 0.25; got 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            captured.load_payload(sent, params, case=replace(case, **wrong))
    capture.save(sent, gradient, batch_size=1)
    with pytest.raises(ValueError, match="--local-steps 1; got 8"):  # the file of a single gradient states no steps
        captured.load_payload(sent, params, case=replace(case, local_steps=8))
    # Options give the facts that the file leaves out: here two steps of that rate.
    capture.save(sent, after, kind="weights")
    halved = captured.load_payload(sent, params, case=replace(case, local_steps=2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b / 2, atol=1e-6), halved, gradient)
    for said in ({"reduction": "sum"}, {"defense": "gaussian"}, {"momentum": 0.9}):
        capture.save(sent, after, kind="weights", **said)
        with pytest.raises(ValueError, match=next(iter(said))):
            captured.load_payload(sent, params, case=case)


def test_it_is_attacked_and_the_verdict_printed(attacked):
    folder, scores, printed, *_ = attacked
    assert scores["gradient_matched"] == 0  # three iterations
    assert "gradient matched" in printed
    with np.load(folder / "reconstruction.npz") as found:
        assert found["x"].shape == (1, 8, 8, 1)
    assert (folder / "figures" / "contact_sheet.png").exists()


def test_it_has_a_bar_a_curve_and_the_origin_of_its_data(arguments, attacked):
    folder, *_, shown, drawn = attacked
    ((phase, done, total, note),) = shown
    assert (phase, done, total) == ("attack", 3, 3)
    series, how = drawn["distance.png"]
    assert "lower is closer" in how["ylabel"]
    (curve,) = series.values()
    assert list(curve[0]) == [0, 1, 2]
    assert note == f"distance {curve[1][-1]:.3g}"
    config = json.loads((folder / "results.json").read_text())["config"]
    assert config["data"] == f"not known: images behind the captured update {arguments['payload']}"


@pytest.mark.slow
def test_two_starts_give_an_agreement_without_a_truth(arguments, tmp_path):
    two = {**arguments, "case": replace(arguments["case"], restarts=2)}
    scores = invert.main(invert.Args(**two, out=tmp_path))
    (cell,) = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert cell == {"image": 0, "agreement": scores["agreement"]}
    assert -1 <= scores["agreement"] < 1


@pytest.mark.slow
def test_another_start_does_not_resume_this_one(arguments, tmp_path):
    first = invert.main(invert.Args(**arguments, out=tmp_path))
    assert invert.main(invert.Args(**arguments, out=tmp_path)) == first
    with pytest.raises(ConfigMismatchError, match="seed: 0 there, 1 now"):
        invert.main(invert.Args(**arguments, out=tmp_path, seeds=(1,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (0, 1)}, "--seeds takes one number, got 2"),
        ({"case": Case(model="mlp")}, "needs the model's weights"),
        (
            {"case": Case(model="mlp", weights="w.safetensors", defense="gaussian", strength=0.1)},
            "--defense is for simulated clients",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(arguments, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        invert.main(invert.Args(**{**arguments, **changes}, out=tmp_path))


def test_arrays_that_the_attack_does_not_read_may_be_missing(tmp_path):
    params = {"first": {"kernel": np.ones((2, 3), np.float32)}, "head": {"bias": np.ones(3, np.float32)}}
    np.savez(tmp_path / "part.npz", **{"first/kernel": 2 * params["first"]["kernel"]})
    found = captured.load_payload(tmp_path / "part.npz", params, ("first",))
    np.testing.assert_array_equal(found["first"]["kernel"], 2)
    assert found["head"]["bias"] is None
    with pytest.raises(ValueError, match=r"it lacks head/bias \(1 arrays in all\)"):
        captured.load_payload(tmp_path / "part.npz", params)
    np.savez(tmp_path / "more.npz", **{"first/kernel": np.ones((2, 3)), "head/bias": np.ones(3), "other": np.ones(1)})
    with pytest.raises(ValueError, match="it has arrays that the model does not know: 'other'"):
        captured.load_payload(tmp_path / "more.npz", params)
    for missing in (None, tmp_path / "nothing.npz", tmp_path):
        with pytest.raises(FileNotFoundError, match="does not exist or is not a file"):
            captured.load_payload(missing, params)


@pytest.mark.parametrize(("name", "written"), [("a.npz", "a.npz"), ("a", "a.npz"), ("a.b", "a.b.npz")])
def test_a_payload_is_written_with_its_ending(tmp_path, name, written):
    payload = {"first": {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, "head": {"bias": np.ones(2)}}
    assert captured.save_payload(tmp_path / name, payload) == tmp_path / written
    jax.tree.map(np.testing.assert_array_equal, captured.load_payload(tmp_path / written, payload), payload)


@pytest.mark.slow
def test_the_pair_of_commands_in_the_docstring_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = "jaxleak invert"
    pair = [line.strip() for line in HELP.splitlines() if f"{command} " in line and "payload" in line]
    assert len(pair) == 2
    for line in pair:
        words = shlex.split(line.removeprefix(f"    {command}").strip().removeprefix(command))
        scores = invert.main(tyro.cli(invert.Args, args=[*words, "--iterations", "2"]))
    assert np.isfinite(scores["cosine_distance"])
    assert "update.npz" in capsys.readouterr().out
    with np.load(next(tmp_path.glob("runs/invert/*/reconstruction.npz"))) as found:
        assert found["x"].shape == (4, 32, 32, 3)


def test_weights_are_saved_with_a_payload_only(tmp_path):
    with pytest.raises(ValueError, match="--save-weights goes with --save-payload"):
        invert.main(invert.Args(save_weights=tmp_path / "weights.safetensors", out=tmp_path / "run"))
