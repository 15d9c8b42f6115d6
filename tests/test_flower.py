"""The example federation, run by Flower's own simulation and audited."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxleak import capture, metrics

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower" / "federation.py"


@pytest.mark.slow
def test_four_clients_of_pytorch_are_recorded_audited_and_reported_by_one_script(tmp_path):
    for module in ("torch", "flwr", "ray"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; pip install flwr torch")
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--minutes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "LEAKS" in done.stdout
    assert done.stdout.rstrip().endswith("report.html.")
    for of_the_client in sorted((tmp_path / "clients").glob("*-sent.safetensors")):
        here, there = (capture.load(tmp_path / side / of_the_client.name) for side in ("clients", "server"))
        assert here.facts == there.facts
        for name, array in here.arrays.items():
            np.testing.assert_array_equal(array, there.arrays[name])
    assert len(list((tmp_path / "server").glob("*-sent.safetensors"))) == 2 * 4
    assert json.loads((tmp_path / "audit" / "results.json").read_text())["metrics"]["verdict"] == "leaks"
    from sklearn.datasets import load_digits

    # The number of a node does not tell which client was audited, but its digits belong to one of them.
    found = np.load(tmp_path / "audit" / "reconstruction.npz")["x"]
    digits = load_digits().images[: 4 * 2].reshape(4, 2, 8, 8, 1) / 16
    scores = [metrics.psnr(own[metrics.match_one_to_one(found, own)], found).mean() for own in digits]
    assert max(scores) > 30
