"""The study of networks that others wrote: which finished results it reuses, and which packages it needs."""

import importlib.util
import pathlib

import numpy as np
import pytest
from tiny_studies import Killed, studies  # noqa: F401

from experiments import audited
from experiments._by_path import module_at
from jaxleak import capture


def _psnr(metrics):
    return {name: row["psnr"] for name, row in metrics["by_case"].items()}


@pytest.mark.slow
def test_results_of_another_seed_budget_or_data_set_are_not_taken_for_this_runs(studies):  # noqa: F811
    studies.draw("audited", 0)
    first = _psnr(studies.audited(out=studies.out))
    assert studies.calls == 2
    longer = _psnr(studies.audited(out=studies.out, minutes=3.0))
    other_seed = _psnr(studies.audited(out=studies.out, seed=1))
    studies.draw("audited", 1)
    (studies.root / "d.npz").rename(studies.root / "other.npz")
    studies.draw("audited", 0)
    mine, studies.spec = studies.spec, f"npz:{studies.root / 'other.npz'}"
    other_data = _psnr(studies.audited(out=studies.out))
    assert studies.calls == 8
    for name in first:
        assert len({round(found[name], 6) for found in (first, longer, other_seed, other_data)}) == 4
    studies.spec = mine
    assert _psnr(studies.audited(out=studies.out)) == first
    assert studies.calls == 8


def test_a_fresh_run_takes_nothing_over_even_if_it_is_killed(studies):  # noqa: F811
    studies.draw("audited", 0)
    first = _psnr(studies.audited(out=studies.out))
    studies.draw("audited", 1)
    studies.kill_at = 4
    with pytest.raises(Killed):
        studies.audited(out=studies.out, fresh=True)
    studies.kill_at = None
    second = _psnr(studies.audited(out=studies.out))
    assert all(abs(second[name] - first[name]) > 1e-6 for name in first)


@pytest.mark.parametrize(("only", "packages"), [(("cnn-b1",), "torch"), (("cnn-b1", "cnn-nnx-b1"), "torch equinox")])
def test_a_missing_framework_is_named_before_anything_is_written(only, packages, monkeypatch, tmp_path):
    there = importlib.util.find_spec
    absent = ("torch", "equinox")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else there(name))
    with pytest.raises(ImportError, match=rf"need .*torch.*pip install {packages}$"):
        audited.main(audited.Args(only=only, data="digits", out=tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_network_has_the_same_gradient_in_flax_and_in_equinox():
    pytest.importorskip("equinox")
    networks = module_at("examples/networks/jax_networks.py")
    rng = np.random.default_rng(0)
    shapes = {
        "conv1": (16, 3, 3, 3), "conv2": (32, 16, 3, 3), "fc1": (64, networks.HIDDEN), "fc2": (10, 64),
    }  # fmt: skip
    state = {}  # in PyTorch's layout
    for layer, shape in shapes.items():
        scale = np.sqrt(1 / np.prod(shape[1:]))
        state[f"{layer}.weight"] = (scale * rng.normal(size=shape)).astype(np.float32)
        state[f"{layer}.bias"] = (0.1 * rng.normal(size=shape[0])).astype(np.float32)
    x, y = rng.random((2, 32, 32, 3), np.float32), np.array([3, 7])
    by_flax = networks.nnx_gradient(networks.in_nnx(state), x, y)
    by_equinox = networks.equinox_gradient(networks.in_equinox(state), x, y)
    assert by_equinox["conv1.bias"].shape == (16, 1, 1)
    for layer, shape in shapes.items():
        kernel = by_equinox[f"{layer}.weight"]
        expected = kernel.transpose(2, 3, 1, 0) if len(shape) == 4 else kernel.T
        np.testing.assert_allclose(by_flax[f"{layer}.kernel"], expected, atol=1e-6)
        np.testing.assert_allclose(by_flax[f"{layer}.bias"], by_equinox[f"{layer}.bias"].ravel(), atol=1e-6)
    assert max(np.abs(leaf).max() for leaf in by_flax.values()) > 1e-3


def test_a_client_of_several_steps_sends_its_weights_and_the_server_knows_those_before(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 32, 32, 3), np.float32), np.array([1, 2, 3, 4])
    case = audited.Case("Cnn", 2, local_steps=2)
    audited._torch_client(case, None, audited.Args(), (x, y), tmp_path / "weights.pt")
    before = torch.load(tmp_path / "weights.pt", weights_only=True)
    sent = capture.load(tmp_path / "update.safetensors")
    facts = sent.facts
    assert (facts.kind, facts.local_steps, facts.batch_size, facts.learning_rate) == ("weights", 2, 2, audited._RATE)
    net = module_at("examples/networks/torch_networks.py").Cnn()
    net.load_state_dict(before)
    for rows in (slice(0, 2), slice(2, 4)):  # the same steps by hand
        net.zero_grad()
        logits = net(torch.tensor(x[rows]).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.tensor(y[rows])).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= audited._RATE * parameter.grad
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(sent.arrays[name], parameter.detach().numpy(), atol=1e-6)


def test_the_folders_of_cases_of_one_step_are_those_of_before():
    folder = audited.folder_of(pathlib.Path("runs"), "cnn-b1", audited.Args())
    assert folder.name == "cnn-b1-d21ae00c0fb4d62a"
    assert audited.folder_of(pathlib.Path("runs"), "cnn-steps4-b1", audited.Args()).name.startswith("cnn-steps4-b1-")
