"""The study's command as a user types it: what it leaves behind, how it continues, and what it refuses."""

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

import numpy as np
import pytest
import tyro

from experiments.sweep import STUDIES
from jaxleak.checkpoint import Checkpoints

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "experiments" / "cafe_scale.py"
TINY = ("--data", "digits", "--num-samples", "24", "--batch-size", "6")


def _command(out, *options):
    return [sys.executable, "-m", "experiments.cafe_scale", *TINY, *options, "--out", str(out)]


def _environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def _score_names():
    """The keys that `_score` promises, read from its source."""
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
    """Run the command's own main block in this process, and return the one line that it ends with."""
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
