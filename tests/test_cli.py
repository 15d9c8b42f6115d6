"""The study's command as a user types it: the files that it writes, how it continues, and what it refuses."""

import ast
import importlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tyro

from experiments.sweep import STUDIES
from jaxleak._command.cafe_scale import descent, exact, report, sizes
from jaxleak._command.cafe_scale import run as cafe_scale
from jaxleak._command.cafe_scale.options import Args
from jaxleak.attacks import aggregated
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import distributed, rounds

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "experiments" / "cafe_scale.py"
TINY = ("--data", "digits", "--num-samples", "24", "--batch-size", "6")


def _command(out, *options):
    return [sys.executable, "-m", "experiments.cafe_scale", *TINY, *options, "--out", str(out)]


def _environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def _score_names():
    """The keys that `_score` returns, read from its source."""
    function = next(
        node
        for node in ast.walk(ast.parse((ROOT / "jaxleak" / "_command" / "cafe_scale" / "exact.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_score"
    )
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return {key.value for value in returned for key in value.keys if key is not None}


def _reconstruction_metrics(out):
    metrics = json.loads((out / "results.json").read_text())["metrics"]
    measured = ("seconds_", "peak_memory", "samples_per_second")
    return {name: value for name, value in metrics.items() if not name.startswith(measured)}


@pytest.mark.slow
def test_a_study_leaves_its_results_and_survives_a_kill(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = subprocess.run(
        _command(whole, "--images", "24"), cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((whole / "results.json").read_text())
    assert result["status"] == "complete"
    assert result["metrics"].keys() >= _score_names() > {"psnr_mean", "answered_fraction"}
    assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in result["metrics"].values())
    assert result["metrics"]["answered_fraction"] == result["metrics"]["label_accuracy"] == 1
    assert result["metrics"]["psnr_median"] > 60
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in lines if "samples" in line] == [8, 16, 24]
    assert {line.get("phase") for line in lines} >= {"I", "II"}
    for figure in ("contact_sheet.png", "residual_psnr.png"):
        assert (whole / "figures" / figure).stat().st_size > 1000

    process = subprocess.Popen(
        _command(killed, "--images", "24"),
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log, deadline = killed / "metrics.jsonl", time.monotonic() + 300
    while not (log.exists() and '"samples": 8' in log.read_text()):
        assert process.poll() is None, "the study ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "results.json").exists()
    subprocess.run(_command(killed, "--images", "24"), cwd=ROOT, env=_environment(), check=True, capture_output=True)
    assert _reconstruction_metrics(killed) == _reconstruction_metrics(whole)
    again = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in again if "samples" in line] == [8, 16, 24]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """A function that runs the command's main block in this process; returns the one line of its error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))

    def run(*options):
        monkeypatch.setattr(
            sys, "argv", ["cafe_scale", *TINY, "--images", "4", "--out", str(tmp_path / "out"), *options]
        )
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(STUDY), run_name="__main__")
        message = stop.value.code
        assert isinstance(message, str)  # Python prints it to stderr and exits with 1
        assert message.startswith("error: ")
        assert "\n" not in message
        assert not (tmp_path / "out" / "results.json").exists()
        return message

    return run


@pytest.mark.parametrize("study", STUDIES)
def test_help_is_for_users(study, capsys):
    module = importlib.import_module(f"experiments.{study}")
    with pytest.raises(SystemExit) as stop:
        tyro.cli(module.Args, args=["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "type: ignore" not in printed
    for choice in {
        "cafe_tables": ("iclr-table4", "linnaeus5"),
        "fedleak": ("table19", "vit_tiny", "calibrated", "softplus"),
        "homotopy": ("vit_tiny-b1", "exact"),
        "vflrecon": ("encryption", "differences", "marvell"),
    }.get(study, ()):
        assert choice in printed


def test_unknown_data_lists_what_is_known(refused):
    message = refused("--data", "imagenet")
    for name in ("imagenet", "digits", "lfw_faces", "mnist"):
        assert name in message


def test_whole_and_larger_batches_are_refused(refused, tmp_path):
    assert "Theorem 1 needs K < N" in refused("--network", "logistic", "--batch-size", "24")
    assert "batch_size must be in [1, 24], got 25" in refused(
        "--network", "logistic", "--batch-size", "25", "--out", str(tmp_path / "larger")
    )


def test_sizes_out_of_range_are_refused(refused):
    assert "num_samples must be > 0, got 0" in refused("--num-samples", "0")
    assert "images must be in [1, 24], got 25" in refused("--images", "25")
    assert "parties must be > 0, got -1" in refused("--parties", "-1")


def test_parties_that_cannot_tile_are_refused(refused):
    assert "parties" in refused("--parties", "3")


def test_a_folder_that_cannot_be_written_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert f"--out {tmp_path / 'file'} cannot be written" in refused("--out", str(tmp_path / "file"))


def test_checkpoints_of_another_configuration_say_which_fields_differ(refused, tmp_path):
    there = Checkpoints(tmp_path / "out" / "checkpoints" / "rounds", {"batch_size": 24, "num_samples": 24, "seed": 0})
    there.save(1, {"anything": np.zeros(2)})
    (tmp_path / "out" / "config.json").write_text("{}")
    message = refused("--seed", "1")
    assert "batch_size: 24 there, 6 now" in message
    assert "seed: 0 there, 1 now" in message
    assert "num_samples:" not in message
    assert (tmp_path / "out" / "config.json").read_text() == "{}"


def test_the_process_exits_with_1_and_one_line(tmp_path):
    (tmp_path / "out").write_text("in the way")
    done = subprocess.run(
        _command(tmp_path / "out", "--images", "4"),
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: --out ")
    assert "Traceback" not in done.stderr


def test_values_that_are_left_out_come_from_the_preset():
    default = Args().resolved()
    assert (default.data, default.num_samples, default.batch_size, default.images) == ("lfw_faces", 100, 20, 100)
    assert (default.solver, default.iterations, default.parties, default.fresh) == ("exact", 800, 4, False)
    assert Args(preset="paper").resolved().solver == "nested"
    assert Args(preset="paper", solver="single").resolved().solver == "single"
    # By default, at most as many images are inverted as there are.
    assert [Args(num_samples=n).resolved().images for n in (24, 100, 101)] == [24, 100, 100]
    assert Args(num_samples=24, images=30).resolved().images == 30


def test_a_preset_a_solver_and_devices_say_what_runs(monkeypatch, tmp_path):
    ran, asked = [], []
    mesh = SimpleNamespace(size=2)
    for name, module in (("exact", exact), ("descent", descent), ("sizes", sizes)):
        monkeypatch.setattr(module, "run", lambda *given, name=name: ran.append((name, given)) or {})
    monkeypatch.setattr(report, "write", lambda *_: None)
    monkeypatch.setattr(cafe_scale, "require_memory_of_rounds", lambda *given: asked.append(given))
    monkeypatch.setattr(distributed, "join_devices", lambda where: mesh if where.devices else None)
    small, two = {"num_samples": 24, "batch_size": 6, "data": "digits"}, distributed.Devices(devices=2)
    for number, (given, name, solver) in enumerate(
        (
            ({}, "exact", "auto"),
            ({"preset": "scale"}, "exact", "auto"),
            ({"preset": "scale", "num_samples": None}, "sizes", "auto"),
            ({"solver": "nested"}, "descent", "auto"),
            ({"where": two}, "exact", "matrix_free"),
            ({"where": two, "linear_solver": "direct"}, "exact", "direct"),
        )
    ):
        cafe_scale.main(Args(**small | given, out=tmp_path / str(number)))
        assert ran[-1][0] == name
        args = ran[-1][1][1 if name == "sizes" else 0]
        assert args.linear_solver == solver
        assert len(asked) == sum(ran_name == "exact" for ran_name, _ in ran)
        if name == "exact":
            assert (ran[-1][1][3] is mesh) == ("where" in given)
            assert asked[-1] == (24, solver)
    for given in ({"preset": "scale", "num_samples": None}, {"solver": "single"}):
        with pytest.raises(ValueError, match="several devices share one run"):
            cafe_scale.main(Args(**small | given, where=two, out=tmp_path / "refused"))


@pytest.mark.parametrize(("solver", "before", "rounds_of_data"), [("single", [], 6), ("nested", [20], 2)])
def test_a_single_loop_has_the_rounds_of_all_three_steps(solver, before, rounds_of_data, monkeypatch, tmp_path):
    class StoppedError(Exception):
        pass

    def step_three(*_, rounds, **__):
        raise StoppedError(rounds)

    ran = []
    monkeypatch.setattr(descent, "steps_one_and_two", lambda *_, iterations, **__: ran.append(iterations))
    monkeypatch.setattr(descent, "step_three", step_three)
    small = {"data": "digits", "network": "logistic", "num_samples": 6, "batch_size": 3, "iterations": 2}
    with pytest.raises(StoppedError) as stop:
        cafe_scale.main(Args(**small, solver=solver, out=tmp_path))
    assert (ran, stop.value.args) == (before, (rounds_of_data,))


class _Kept:
    """A stub of checkpoints that keeps them in memory."""

    def __init__(self, saved=None):
        self.saved, self.steps = saved, []

    def restore_latest(self, tree):
        return tree if self.saved is None else self.saved

    def save(self, step, tree):
        self.steps.append(step)
        self.saved = jax.tree.map(np.array, tree)


@pytest.mark.parametrize("mesh", [None, SimpleNamespace(size=2)])
def test_slices_are_inverted_eight_at_a_time_and_go_on_where_they_were(monkeypatch, mesh):
    wanted = np.arange(1, 23, 2)  # eleven samples
    recovery = SimpleNamespace(H=np.arange(24.0)[:, None, None] * np.ones((24, 2, 3)))
    problem = SimpleNamespace(model=SimpleNamespace(parties=2, slice_shape=(3,)), params=None)
    calls, logged, kept_before = [], [], []

    def inverter(features, numbers):
        calls.append(list(numbers))
        two = np.stack([numbers, 2 * numbers], axis=1)
        return aggregated.FeatureInversionResult(x=features, residual=two, steps=two + 1, restarts=two + 2)

    monkeypatch.setattr(aggregated, "SliceInverter", lambda *_, **__: inverter)
    monkeypatch.setattr(exact, "image_psnr", lambda problem, x, index: np.asarray(index, float))
    folder = SimpleNamespace(
        log=lambda **line: logged.append(line), keep_log_before=lambda **line: kept_before.append(line)
    )
    progress = SimpleNamespace(begin=lambda *_: None, update=lambda *_: None)

    def run(kept):
        calls.clear()
        return exact._step_three(problem, recovery, wanted, 0, kept, folder, progress, mesh)

    kept = _Kept()
    table = run(kept)
    size = 8 if mesh is None else 16
    assert calls == ([[1, 3, 5, 7, 9, 11, 13, 15], [17, 19, 21, 21, 21, 21, 21, 21]] if mesh is None
                     else [[1, 3, 5, 7, 9, 11, 13, 15, 17, 19, *[21] * 6]])  # fmt: skip
    assert kept.steps == ([8, 11] if mesh is None else [11])
    np.testing.assert_array_equal(table.x, recovery.H[wanted])
    np.testing.assert_array_equal(table.residual, np.stack([wanted, 2 * wanted], axis=1))
    np.testing.assert_array_equal(table.restarts, np.stack([wanted, 2 * wanted], axis=1) + 2)
    assert logged[-1] == {"samples": 11, "residual_median": 22.0, "psnr_truth_side_mean": 11.0}
    assert kept_before == [{"samples": 0}]
    again = run(kept)  # all are done
    assert calls == []
    np.testing.assert_array_equal(again.x, table.x)
    run(_Kept({"done": np.int32(8), "table": kept.saved["table"]}))
    assert calls == [[17, 19, 21, *[21] * (size - 3)]]
    assert kept_before[1:] == [{"samples": 11}, {"samples": 8}]


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ({}, "mean PSNR of 61.2 dB (30 dB"),
        ({"feature_r2": 0.75}, "with an R2 of 0.7500 (an R2 of 1"),
        ({"feature_r2": float("nan")}, "mean PSNR of 61.2 dB (30 dB"),
    ],
)
def test_the_report_of_the_demo_says_how_much_of_a_table_was_found(score, said):
    config = Args(num_samples=6, batch_size=3, images=4).resolved()
    assert said in report._answer(config, {"psnr_mean": 61.2} | score)


def test_scores_of_the_exact_engine_by_hand():
    problem = rounds.vertical_problem(
        "digits", num_samples=6, parties=4, seed=0, key=jax.random.key(0), network="logistic"
    )
    features = np.asarray(rounds.forward_features(problem))
    assert features.shape[:2] == (6, 4)
    sent = aggregated.true_output_gradients(problem.model, problem.params, features, problem.private.y, 3)
    live = np.ones((6, 4), bool)
    live[5, 2] = False  # wrong values of a dead slice do not count
    values, inputs = sent * 1.25, features * 0.5
    values[5, 2], inputs[5, 2] = 100.0, 100.0
    labels = np.array(problem.dataset.y)
    labels[1:3] = (labels[1:3] + 1) % 10
    recovery = SimpleNamespace(
        V=values, H=inputs, live=live, labels=labels, answered=np.array([True, False, True, True, True, False]),
        label_margin=np.array([3.0, 2.0, 5.0, 9.0, 9.0, 9.0]), output_rank=6, output_condition=7.0, feature_rank=5,
        feature_condition=8.0,
    )  # fmt: skip
    wanted = np.array([0, 2, 3])
    off = np.array([0.1, 0.2, 0.4])
    result = SimpleNamespace(
        x=np.asarray(problem.private.x)[wanted] + off[:, None, None, None, None].astype(np.float32),
        residual=np.array([[1e-5] * 4, [1e-5, 1e-5, 1e-3, 1e-5], [9.9e-5] * 4]),
    )
    folder = SimpleNamespace(writes=False, seconds={"simulator_features": 1.0, "steps_1_2": 2.0, "step_3": 4.0})
    plan = SimpleNamespace(batch_size=3, rounds=11)
    config = Args(data="digits", num_samples=6, batch_size=3, images=4).resolved()
    found = exact._score(config, folder, problem, features, plan, recovery, wanted, result)
    psnr = -20 * np.log10(off)
    expected = {
        "output_gradient_relative_error": 0.25, "feature_relative_error": 0.5, "answered_fraction": 4 / 6,
        "certified_fraction": 2 / 4, "psnr_mean": psnr.mean(), "psnr_median": psnr[1], "psnr_min": psnr[2],
        "mse_mean": np.mean(off**2), "images_inverted": 3, "label_accuracy": 4 / 6, "label_margin_min": 2,
        "output_rank": 6, "output_condition": 7, "feature_rank": 5, "feature_condition": 8, "rounds_observed": 11,
        "seconds_simulator_features": 1, "seconds_steps_1_2": 2, "seconds_step_3": 4, "samples_per_second": 3 / 4,
        "simulator_features_gb": 6 * 4 * features.shape[2] * 4 / 1e9,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert found.keys() - expected.keys() == {"ssim_mean", "peak_memory_gb"}
    assert 0 < found["ssim_mean"] < 1
